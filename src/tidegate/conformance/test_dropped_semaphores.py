"""The right to signal, and what happens when nobody has it any more."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress

import pytest

import tidegate as tg

from .latches import LIMIT
from .witnesses import failure_of

pytestmark = pytest.mark.rules("M12")


@pytest.mark.rules("M12")
def test_when_a_semaphore_is_collected_a_held_submission_that_waits_for_it_is_aborted(queue: tg.Queue) -> None:
    sem = tg.Semaphore(label="dropped")
    held = queue.barrier(wait=sem.at(1))
    assert not held.done
    del sem
    gc.collect()
    assert isinstance(failure_of(held), tg.AbortedError)
    assert isinstance(held.error, tg.AbortedError)


@pytest.mark.rules("M12", "M38")
def test_each_of_many_dropped_semaphores_aborts_its_waiter(switch_often: None) -> None:
    for _ in range(500):
        told = threading.Event()
        sem = tg.Semaphore()
        sem.at(1).add_callback(lambda *_, told=told: told.set())
        del sem
        assert told.wait(LIMIT)


@pytest.mark.rules("M12", "M10")
def test_callbacks_of_a_dropped_semaphore_are_given_points_of_one_that_stands_for_it() -> None:
    points: list[tg.Timepoint] = []
    told = threading.Semaphore(0)

    def note(point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        points.append(point)
        told.release()

    sem = tg.Semaphore(3, label="dropped")
    for value in (5, 7):
        sem.at(value).add_callback(note)
    del sem
    for _ in range(2):
        assert told.acquire(timeout=LIMIT)
    first, second = points
    assert (first.value, second.value) == (5, 7)
    assert first.semaphore is second.semaphore
    assert (first.semaphore.value, first.semaphore.label) == (3, "dropped")
    assert isinstance(first.semaphore.failure, tg.AbortedError)


@pytest.mark.rules("M12")
def test_a_dropped_semaphore_aborts_the_dependents_down_the_chain(queue: tg.Queue) -> None:
    sem, end = tg.Semaphore(), tg.Semaphore()
    middle = tg.Semaphore()
    queue.barrier(wait=sem.at(1), signal=middle.at(1))
    queue.barrier(wait=middle.at(1), signal=end.at(1))
    del sem, middle
    gc.collect()
    assert isinstance(failure_of(end.at(1)), tg.AbortedError)


@pytest.mark.rules("M12")
def test_a_timepoint_holds_the_right_to_signal(queue: tg.Queue) -> None:
    point = tg.Semaphore().at(1)
    held = queue.barrier(wait=point)
    gc.collect()
    assert held.error is None
    point.signal()
    held.wait(timeout=LIMIT)


@pytest.mark.rules("M12")
def test_a_submission_holds_the_semaphores_it_will_signal(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    middle = tg.Semaphore()
    queue.barrier(wait=gate.at(1), signal=middle.at(1))
    last = queue.barrier(wait=middle.at(1))
    dropped = tg.Semaphore()
    told = queue.barrier(wait=dropped.at(1))
    del middle
    gc.collect()
    # Had that gone too, whoever waits for it would have been told by the time that those of the next one are.
    del dropped
    gc.collect()
    failure_of(told)
    gate.signal(1)
    last.wait(timeout=LIMIT)


@pytest.mark.rules("M12", "M18")
def test_an_unreachable_cycle_of_held_submissions_ends(queue: tg.Queue) -> None:
    one, other, watched = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    queue.barrier(wait=one.at(1), signal=[other.at(1), watched.at(1)])
    queue.barrier(wait=other.at(1), signal=one.at(1))
    del one, other
    gc.collect()
    assert isinstance(failure_of(watched.at(1)), tg.AbortedError)


@pytest.mark.rules("M12")
def test_a_reached_timepoint_of_a_dropped_semaphore_stays_reached(queue: tg.Queue) -> None:
    sem = tg.Semaphore(3)
    work = queue.barrier(wait=sem.at(2))
    del sem
    gc.collect()
    work.wait(timeout=LIMIT)
    assert work.error is None


@pytest.mark.rules("M12")
def test_a_finalizer_may_signal_and_fail() -> None:
    class Signaller:
        def __init__(self) -> None:
            self.itself = self  # only the collector frees it

        def __del__(self) -> None:
            signalled.signal(1)
            failed.fail(error)

    signalled, failed = tg.Semaphore(), tg.Semaphore()
    error = ValueError("from a finalizer")
    Signaller()
    gc.collect()
    signalled.wait(1, timeout=LIMIT)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        failed.wait(1, timeout=LIMIT)
    assert caught.value.__cause__ is error


@pytest.mark.rules("M12")
def test_a_finalizer_may_signal_a_semaphore_that_goes_with_it(queue: tg.Queue) -> None:
    class Signaller:
        def __init__(self, gate: tg.Semaphore) -> None:
            self.itself, self.gate = self, gate  # only the collector frees it, and the semaphore with it

        def __del__(self) -> None:
            told = threading.Event()
            tg.Semaphore().at(1).add_callback(lambda *_: told.set())
            assert told.wait(LIMIT)  # what was dropped before this has been dealt with by now
            with suppress(tg.SemaphoreFailedError):  # the waiter tells
                self.gate.signal(1)

    gate = tg.Semaphore()
    held = queue.barrier(wait=gate.at(1))
    Signaller(gate)
    del gate
    gc.collect()
    held.wait(timeout=LIMIT)
