"""KeyboardInterrupt at every step of submit, signal, fail, retire, wait and close.

Each test does one thing again and again, interrupted one step later each time, until it comes through. After each try:
no lock is held (another thread can signal, submit and wait), what was claimed ends, and nobody is told twice.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .interrupts import Interruption, Striker, in_finalizer, inside_tidegate, interrupted_at
from .latches import LIMIT
from .threads import background
from .witnesses import failure_of

pytestmark = [pytest.mark.rules("M19"), pytest.mark.slow]

#: Nothing has as many steps; a loop that comes here counts something that never ends.
MOST_STEPS = 5000


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Keep the collector away: its finalizers would make the steps differ from try to try."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Told:
    """A callback that knows how often it was called."""

    def __init__(self, point: tg.Timepoint) -> None:
        self.outcomes: list[tg.Outcome] = []
        self._some = threading.Event()
        self.subscription = point.add_callback(self)

    def __call__(self, point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        self.outcomes.append(outcome)
        self._some.set()

    def once(self) -> tg.Outcome:
        """Wait for the call; there may be one only."""
        assert self._some.wait(LIMIT), "a waiter was lost"
        (outcome,) = self.outcomes
        return outcome


def at_every_step(attempt: Callable[[int], Interruption]) -> int:
    """Repeat an attempt until its interrupt is not reached any more; the number of steps."""
    for step in itertools.count(1):
        assert step < MOST_STEPS
        if not attempt(step).fired:
            return step - 1
    raise AssertionError("unreachable")


def assert_no_lock_is_held(queue: tg.Queue) -> None:
    """Another thread, which would not get a lock this one holds, signals, submits and waits."""

    def uses() -> None:
        sem = tg.Semaphore()
        told = Told(sem.at(1))
        queue.barrier(wait=sem.at(1), signal=sem.at(2))
        sem.signal(1)
        sem.wait(2, timeout=LIMIT)
        told.once()

    background(uses).result()


def assert_it_ends(point: tg.Timepoint | tg.Submission, what: Interruption) -> str:
    """What was claimed is reached or failed (the work that was being issued fails); anything else is a lost signal."""
    try:
        point.wait(timeout=LIMIT)
    except tg.SemaphoreFailedError:
        return "failed"
    except tg.DeadlineExceededError:
        pytest.fail(f"a signal was lost by the {what}: {point.explain()}")
    return "reached"


Submit = Callable[[tg.Queue, tg.Buffer, Any, Any, list[int]], object]

SUBMITS: dict[str, Submit] = {
    "barrier": lambda queue, buffer, wait, signal, ran: queue.barrier(wait=wait, signal=signal),
    "fill": lambda queue, buffer, wait, signal, ran: queue.fill(buffer, 1, wait=wait, signal=signal),
    "update": lambda queue, buffer, wait, signal, ran: queue.update(buffer, b"1234", wait=wait, signal=signal),
    "upload": lambda queue, buffer, wait, signal, ran: queue.upload(
        np.zeros(64, np.uint8), buffer, wait=wait, signal=signal
    ),
    "download": lambda queue, buffer, wait, signal, ran: queue.download(buffer, wait=wait, signal=signal),
    "allocate": lambda queue, buffer, wait, signal, ran: queue.allocate(64, wait=wait, signal=signal),
    "host_call": lambda queue, buffer, wait, signal, ran: queue.host_call(ran.append, 1, wait=wait, signal=signal),
}


#: Too large to be done in place, or by whoever waits: it goes to threads, or its end is seen by one.
LARGE = 300_000

LARGE_SUBMITS: dict[str, Submit] = {
    "large-fill": SUBMITS["fill"],
    "large-copy": lambda queue, buffer, wait, signal, ran: queue.copy(
        buffer, buffer, length=LARGE // 2, target_offset=LARGE // 2, wait=wait, signal=signal
    ),
    "large-upload": lambda queue, buffer, wait, signal, ran: queue.upload(
        np.zeros(LARGE, np.uint8), buffer, wait=wait, signal=signal
    ),
    "large-download": SUBMITS["download"],
}


@pytest.mark.parametrize("operation", SUBMITS | LARGE_SUBMITS)
@pytest.mark.parametrize("held", [False, True], ids=["ready", "held"])
def test_a_submit_is_all_or_nothing(device: tg.Device, queue: tg.Queue, operation: str, held: bool) -> None:
    buffer = device.allocate(LARGE if operation in LARGE_SUBMITS else 64)
    submit = (SUBMITS | LARGE_SUBMITS)[operation]

    def attempt(step: int) -> Interruption:
        gate, one, other = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
        ran: list[int] = []
        wait = [gate.at(1)] if held else None
        told = [Told(one.at(1)), Told(other.at(1))]
        with interrupted_at(step) as what:
            submit(queue, buffer, wait, [one.at(1), other.at(1)], ran)
        if held:
            gate.signal(1)
        try:
            queue.barrier(signal=[one.at(1), other.at(1)])
        except tg.InvalidArgumentError:
            pass  # it was submitted, and has claimed both
        outcomes = {assert_it_ends(sem.at(1), what) for sem in (one, other)}
        assert len(outcomes) == 1, f"half a submission after the {what}"
        assert len({waiter.once() for waiter in told}) == 1
        assert len(ran) <= 1
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


def test_a_refused_submit_leaves_nothing_claimed(queue: tg.Queue) -> None:
    taken = tg.Semaphore(1)

    def attempt(step: int) -> Interruption:
        fresh = tg.Semaphore()
        with interrupted_at(step) as what:
            try:
                queue.barrier(signal=[fresh.at(1), taken.at(1)])
            except tg.InvalidArgumentError:
                pass
        background(queue.barrier, signal=fresh.at(1)).result()
        assert assert_it_ends(fresh.at(1), what) == "reached"
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19", "M10")
def test_a_signal_takes_effect_for_every_waiter_or_not_at_all(queue: tg.Queue) -> None:
    def attempt(step: int) -> Interruption:
        sem = tg.Semaphore()
        told = [Told(sem.at(value)) for value in (1, 1, 2, 3)]
        works = [queue.barrier(wait=sem.at(value)) for value in (1, 3)]
        waiter = background(sem.wait, 2, LIMIT)
        with interrupted_at(step) as what:
            sem.signal(3)
        if sem.value == 0:
            background(sem.signal, 3).result()
        assert sem.value == 3
        assert [one.once() for one in told] == [tg.Outcome.REACHED] * 4
        waiter.result()
        for work in works:
            assert_it_ends(work, what)
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19", "M10")
def test_a_signal_without_waiters_takes_effect_or_not(queue: tg.Queue) -> None:
    def attempt(step: int) -> Interruption:
        sem = tg.Semaphore()
        with interrupted_at(step) as what:
            sem.signal(1)
        if sem.value == 0:
            background(sem.signal, 1).result()
        told = Told(sem.at(1))
        told.once()
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19", "M7", "M10")
def test_a_failure_reaches_every_waiter_or_nobody(queue: tg.Queue) -> None:
    def attempt(step: int) -> Interruption:
        sem, end = tg.Semaphore(), tg.Semaphore()
        told = [Told(sem.at(value)) for value in (1, 1, 2)]
        works = [queue.barrier(wait=sem.at(1), signal=end.at(value)) for value in (1, 2)]
        waiter = background(sem.wait, 2, LIMIT)
        error = ValueError("interrupted")
        with interrupted_at(step) as what:
            sem.fail(error)
        if sem.failure is None:
            background(sem.fail, error).result()
        assert sem.failure is error
        assert [one.once() for one in told] == [tg.Outcome.FAILED] * 3
        assert isinstance(waiter.error(), tg.SemaphoreFailedError)
        assert assert_it_ends(end.at(2), what) == "failed"
        for work in works:
            with pytest.raises(tg.SemaphoreFailedError):
                work.wait(timeout=LIMIT)
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19", "M3", "M34")
def test_retiring_what_a_signal_set_free_loses_no_signal(queue: tg.Queue, second_queue: tg.Queue) -> None:
    """A chain of barriers runs right where it becomes ready: on the thread that is interrupted."""

    def attempt(step: int) -> Interruption:
        gate = tg.Semaphore()
        ends = [tg.Semaphore() for _ in range(3)]
        told = [Told(end.at(1)) for end in ends]
        queue.barrier(wait=gate.at(1), signal=ends[0].at(1))
        second_queue.barrier(wait=ends[0].at(1), signal=[ends[1].at(1), ends[2].at(1)])
        with interrupted_at(step) as what:
            gate.signal(1)
        if gate.value == 0:
            background(gate.signal, 1).result()
        for end in ends:
            assert_it_ends(end.at(1), what)
        for one in told:
            one.once()
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19", "M21")
def test_cancelling_a_submission_aborts_it_or_leaves_it(queue: tg.Queue) -> None:
    def attempt(step: int) -> Interruption:
        gate, end = tg.Semaphore(), tg.Semaphore()
        told = Told(end.at(1))
        ran: list[int] = []
        work = queue.host_call(ran.append, 1, wait=gate.at(1), signal=end.at(1))
        with interrupted_at(step) as what:
            work.cancel()
        gate.signal(1)
        outcome = assert_it_ends(end.at(1), what)
        assert told.once() is (tg.Outcome.REACHED if outcome == "reached" else tg.Outcome.FAILED)
        assert len(ran) == (1 if outcome == "reached" else 0)
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19", "M10")
def test_adding_a_callback_calls_it_at_most_once(queue: tg.Queue) -> None:
    def attempt(step: int) -> Interruption:
        sem = tg.Semaphore()
        calls: list[int] = []
        with interrupted_at(step) as what:
            sem.at(1).add_callback(lambda *_: calls.append(1))
        background(sem.signal, 1).result()
        Told(sem.at(1)).once()
        assert len(calls) <= 1
        if not what.fired:
            assert calls == [1]
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19", "M10")
def test_cancelling_a_callback_cancels_it_or_not(queue: tg.Queue) -> None:
    def attempt(step: int) -> Interruption:
        sem = tg.Semaphore()
        calls: list[int] = []
        neighbour = Told(sem.at(1))
        subscription = sem.at(1).add_callback(lambda *_: calls.append(1))
        answers: list[bool] = []
        with interrupted_at(step) as what:
            answers.append(subscription.cancel())
        sem.signal(1)
        neighbour.once()
        assert len(calls) <= 1
        if answers:
            assert calls == ([] if answers[0] else [1])
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19", "M8", "M9")
@pytest.mark.parametrize("timeout", [0, 0.002])
def test_an_interrupted_wait_changes_nothing(queue: tg.Queue, timeout: float) -> None:
    """The waits that sleep spin before, so their steps are not the same each time: the first hundred have to do."""
    for step in range(1, 100):
        sem, other = tg.Semaphore(), tg.Semaphore(1)
        told = Told(sem.at(1))
        for wait in (
            lambda sem=sem: sem.wait(1, timeout),
            lambda sem=sem, other=other: tg.wait_all([other.at(1), sem.at(1)], timeout),
            lambda sem=sem, other=other: tg.wait_any([sem.at(1), other.at(2)], timeout),
        ):
            with interrupted_at(step):
                try:
                    wait()
                except tg.DeadlineExceededError:
                    pass
        assert (sem.value, sem.failure) == (0, None)
        background(sem.signal, 1).result()
        told.once()
        assert_no_lock_is_held(queue)


@pytest.mark.rules("M19", "M34")
def test_a_waiter_that_helps_with_the_work_may_be_interrupted(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.allocate(1 << 17)
    for step in range(1, 150):
        end = tg.Semaphore()
        told = Told(end.at(1))
        queue.fill(buffer, step % 256, signal=end.at(1))
        with interrupted_at(step) as what:
            end.wait(1, timeout=LIMIT)
        assert_it_ends(end.at(1), what)
        told.once()
        assert_no_lock_is_held(queue)


@pytest.mark.rules("M19", "M35")
def test_an_interrupted_close_can_be_called_again(device: tg.Device, open_device: Callable[..., tg.Device]) -> None:
    queue = device.queue()

    def attempt(step: int) -> Interruption:
        closing = open_device()
        gate, ready, end = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
        closing.queue().host_call(lambda: None, signal=ready.at(1))
        follower = closing.queue().host_call(lambda: None, wait=ready.at(1))
        held = [closing.queue().barrier(wait=gate.at(value), signal=end.at(value)) for value in (1, 2)]
        told = [Told(end.at(value)) for value in (1, 2)]
        with interrupted_at(step) as what:
            closing.close(timeout=LIMIT)
        background(closing.close, LIMIT).result()
        if assert_it_ends(ready.at(1), what) == "reached" and follower.error is not None:
            assert isinstance(follower.error, KeyboardInterrupt), "what follows from issued work is drained"
        for work in held:
            assert isinstance(failure_of(work), tg.AbortedError)
        for one in told:
            assert one.once() is tg.Outcome.FAILED
        with pytest.raises(tg.ClosedError):
            closing.queue()
        assert_no_lock_is_held(queue)
        return what

    at_every_step(attempt)


@pytest.mark.rules("M19")
def test_the_interrupt_comes_out_of_the_call(queue: tg.Queue) -> None:
    """Ctrl-C is never swallowed: what was interrupted says so to its caller."""
    swallowed: list[str | None] = []

    def attempt(step: int) -> Interruption:
        gate, end = tg.Semaphore(), tg.Semaphore()
        with interrupted_at(step) as what:
            queue.barrier(wait=gate.at(1), signal=end.at(1))
            gate.signal(1)
        if what.fired and not what.raised:
            swallowed.append(what.where)
        return what

    at_every_step(attempt)
    assert swallowed == []


@pytest.mark.rules("M19", "M38")
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
def test_real_signals_at_random_lose_nothing(
    queue: tg.Queue, switch_often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A callback of the collector may still be struck; what it cannot raise is not this test's business.
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: None)
    armed = False

    def interrupt(frame: FrameType | None) -> None:
        # Once per call: a second Ctrl-C that strikes while the first is being cleaned up after is beyond any promise.
        nonlocal armed
        if armed and inside_tidegate(frame) and not in_finalizer(frame):
            armed = False
            raise KeyboardInterrupt

    def interruptible(call: Callable[[], object]) -> None:
        nonlocal armed
        armed = True
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            armed = False

    rounds = []
    with Striker(signal.SIGINT, interrupt):
        for _ in range(500):
            gate, end = tg.Semaphore(), tg.Semaphore()
            rounds.append((gate, end))
            interruptible(partial(queue.host_call, int, wait=gate.at(1), signal=end.at(1)))
            interruptible(partial(queue.barrier, wait=end.at(1), signal=end.at(2)))
            interruptible(partial(gate.signal, 1))
    for gate, end in rounds:
        for value in (1, 2):
            with contextlib.suppress(tg.InvalidArgumentError):  # it is claimed
                queue.barrier(wait=gate.at(1), signal=end.at(value))
        with contextlib.suppress(tg.InvalidArgumentError):  # it is signalled
            gate.signal(1)
        with contextlib.suppress(tg.SemaphoreFailedError):
            end.wait(2, timeout=LIMIT)
    assert_no_lock_is_held(queue)
