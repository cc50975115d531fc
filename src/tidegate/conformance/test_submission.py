"""Submissions: waits, signals, claims, failure to exactly the dependents, cancelling, lanes, several devices."""

from __future__ import annotations

import gc
import itertools
import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .threads import all_at_once, background

pytestmark = pytest.mark.rules("M14", "M3")


class Log:
    """What ran, in order, told by host calls."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def call(self, queue: tg.Queue | tg.Lane, entry: str, *, wait: Any = None, signal: Any = None) -> tg.Submission:
        return queue.host_call(self.entries.append, entry, wait=wait, signal=signal)


@pytest.fixture
def log() -> Log:
    return Log()


def failure_of(point: tg.Timepoint | tg.Submission) -> BaseException:
    """Wait for something to fail and give the cause."""
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        point.wait(timeout=LIMIT)
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


# Waits and signals --------------------------------------------------------------------------------------------------


def test_a_submission_without_work_signals(queue: tg.Queue) -> None:
    sem = tg.Semaphore()
    barrier = queue.barrier(signal=sem.at(1))
    barrier.wait(timeout=LIMIT)
    assert barrier.done
    assert sem.query() == 1


def test_a_submission_may_have_neither_waits_nor_signals(queue: tg.Queue) -> None:
    barrier = queue.barrier()
    barrier.wait(timeout=LIMIT)
    assert (barrier.done, barrier.error) == (True, None)


def test_the_signal_comes_after_the_work(queue: tg.Queue, latch: Latch) -> None:
    sem = tg.Semaphore()
    blocked = latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    assert not blocked.done
    assert not sem.at(1).reached
    with pytest.raises(tg.DeadlineExceededError):
        sem.wait(1, timeout=0.01)
    latch.open()
    sem.wait(1, timeout=LIMIT)
    blocked.wait(timeout=LIMIT)


@pytest.mark.needs("work")
def test_what_the_work_wrote_is_there_when_its_signal_is(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.allocate(4096, memory="shared")
    sem = tg.Semaphore()
    for value in range(1, 30):
        queue.fill(buffer, value, signal=sem.at(value))
        sem.wait(value, timeout=LIMIT)
        with buffer.map("r", wait=()) as data:
            assert (data == value).all()


def test_a_wait_holds_the_work(queue: tg.Queue, log: Log) -> None:
    gate = tg.Semaphore()
    work = log.call(queue, "ran", wait=gate.at(2))
    gate.signal(1)
    with pytest.raises(tg.DeadlineExceededError):
        work.wait(timeout=0.01)
    assert log.entries == []
    gate.signal(2)
    work.wait(timeout=LIMIT)
    assert log.entries == ["ran"]


def test_a_wait_for_what_is_reached_does_not_hold(queue: tg.Queue) -> None:
    gate = tg.Semaphore(7)
    queue.barrier(wait=[gate.at(0), gate.at(3), gate.at(7)]).wait(timeout=LIMIT)


def test_a_submission_that_is_held_is_not_done_and_a_poll_of_it_runs_over_its_time(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    held = queue.barrier(wait=gate.at(1))
    assert not held.done
    for poll in (held.wait, held.result):
        with pytest.raises(tg.DeadlineExceededError):
            poll(timeout=0)
    gate.signal(1)
    held.wait(timeout=LIMIT)
    assert held.done


@pytest.mark.rules("M5", "M15")
def test_the_consumer_may_be_submitted_before_the_producer_on_one_queue(queue: tg.Queue, log: Log) -> None:
    sem = tg.Semaphore()
    consumer = log.call(queue, "consumer", wait=sem.at(1))
    log.call(queue, "producer", signal=sem.at(1))
    consumer.wait(timeout=LIMIT)
    assert log.entries == ["producer", "consumer"]


@pytest.mark.rules("M5", "M15")
def test_the_consumer_may_be_submitted_before_the_producer_on_another_queue(
    queue: tg.Queue, second_queue: tg.Queue, log: Log
) -> None:
    sem = tg.Semaphore()
    consumer = log.call(second_queue, "consumer", wait=sem.at(1))
    log.call(queue, "producer", signal=sem.at(1))
    consumer.wait(timeout=LIMIT)
    assert log.entries == ["producer", "consumer"]


@pytest.mark.rules("M4", "M3")
def test_one_signal_frees_waits_for_two_values(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    works = [queue.barrier(wait=gate.at(value)) for value in (1, 2)]
    later = queue.barrier(wait=gate.at(3))
    gate.signal(2)
    tg.wait_all(works, timeout=LIMIT)
    assert not later.done
    gate.signal(3)
    later.wait(timeout=LIMIT)


@pytest.mark.rules("M5", "M6")
def test_a_diamond_may_be_submitted_in_reverse(queue: tg.Queue, second_queue: tg.Queue, log: Log) -> None:
    top, left, right, end = (tg.Semaphore() for _ in range(4))
    log.call(queue, "bottom", wait=[left.at(1), right.at(1)], signal=end.at(1))
    log.call(second_queue, "right", wait=top.at(1), signal=right.at(1))
    log.call(queue, "left", wait=top.at(1), signal=left.at(1))
    assert log.entries == []
    log.call(second_queue, "top", signal=top.at(1))
    end.wait(1, timeout=LIMIT)
    assert log.entries[0] == "top"
    assert sorted(log.entries[1:3]) == ["left", "right"]
    assert log.entries[3] == "bottom"


def test_several_waits_are_all_needed_and_several_signals_all_come(queue: tg.Queue) -> None:
    gates = [tg.Semaphore() for _ in range(3)]
    ends = [tg.Semaphore() for _ in range(3)]
    work = queue.barrier(wait=[gate.at(2) for gate in gates], signal=[end.at(5) for end in ends])
    for gate in gates:
        assert not work.done
        assert [end.value for end in ends] == [0, 0, 0]
        gate.signal(2)
    work.wait(timeout=LIMIT)
    assert [end.value for end in ends] == [5, 5, 5]


@pytest.mark.rules("M3")
def test_of_two_points_of_one_semaphore_in_signal_the_higher_counts(queue: tg.Queue) -> None:
    sem = tg.Semaphore()
    seen: list[int] = []
    sem.at(1).add_callback(lambda *_: seen.append(sem.value))
    queue.barrier(signal=[sem.at(5), sem.at(3)]).wait(timeout=LIMIT)
    assert sem.value == 5
    assert seen == [5]
    queue.barrier(signal=[sem.at(7), sem.at(7)]).wait(timeout=LIMIT)
    assert sem.query() == 7


@pytest.mark.rules("M3", "M6")
def test_the_same_wait_may_stand_twice(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    work = queue.barrier(wait=[gate.at(1), gate.at(1), gate.at(2)])
    gate.signal(1)
    assert not work.done
    gate.signal(2)
    work.wait(timeout=LIMIT)


def test_wait_and_signal_take_none_a_point_and_any_iterable(queue: tg.Queue) -> None:
    gate, end = tg.Semaphore(), tg.Semaphore()
    before = queue.barrier()
    forms: list[Any] = [
        None,
        gate.at(1),
        before,
        [gate.at(1), before],
        (before,),
        {gate.at(1)},
        (point for point in [gate.at(1), before]),
        [],
    ]
    works = [queue.barrier(wait=form) for form in forms]
    gate.signal(1)
    tg.wait_all(works, timeout=LIMIT)
    signals: list[Any] = [None, end.at(1), [end.at(2)], (end.at(3),), {end.at(4)}, iter([end.at(5)]), []]
    lane = queue.device.lane(queue)
    works = [lane.barrier(signal=form) for form in signals]
    tg.wait_all(works, timeout=LIMIT)
    assert end.value == 5


@pytest.mark.rules("M21", "M14")
def test_a_submission_stands_for_its_end_in_wait(queue: tg.Queue, second_queue: tg.Queue, log: Log) -> None:
    gate = tg.Semaphore()
    first = log.call(queue, "first", wait=gate.at(1))
    second = log.call(second_queue, "second", wait=first)
    third = log.call(queue, "third", wait=[second, first])
    gate.signal(1)
    third.wait(timeout=LIMIT)
    assert log.entries == ["first", "second", "third"]


@pytest.mark.rules("M9", "M14")
def test_host_and_device_points_mix_in_any_and_all(queue: tg.Queue) -> None:
    host, gate, work = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    held = queue.barrier(wait=gate.at(1), signal=work.at(1))
    host_point, work_point = host.at(1), work.at(1)
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_any([host_point, work_point, held], timeout=0)
    host.signal(1)
    assert tg.wait_any([work_point, held, host_point], timeout=LIMIT) is host_point
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_all([work_point, held, host_point], timeout=0.01)
    gate.signal(1)
    tg.wait_all([work_point, held, host_point], timeout=LIMIT)
    assert tg.wait_any([held], timeout=LIMIT) is held


@pytest.mark.rules("M4", "M5")
def test_a_smaller_value_may_be_waited_for_before_and_after_the_signal(queue: tg.Queue) -> None:
    sem = tg.Semaphore()
    before = queue.barrier(wait=sem.at(3))
    queue.barrier(signal=sem.at(10)).wait(timeout=LIMIT)
    after = queue.barrier(wait=sem.at(4))
    tg.wait_all([before, after], timeout=LIMIT)


@pytest.mark.rules("M20")
@pytest.mark.parametrize("count", [100, 1000])
def test_a_submission_takes_any_number_of_waits_and_signals(queue: tg.Queue, count: int) -> None:
    gates = [tg.Semaphore() for _ in range(count)]
    ends = [tg.Semaphore() for _ in range(count)]
    work = queue.barrier(wait=[gate.at(1) for gate in gates], signal=[end.at(1) for end in ends])
    random.Random(count).shuffle(gates)
    for gate in gates[:-1]:
        gate.signal(1)
    assert not work.done
    gates[-1].signal(1)
    work.wait(timeout=LIMIT)
    assert all(end.value == 1 for end in ends)


@pytest.mark.rules("M5", "M10", "M20")
@pytest.mark.parametrize("count", [1000])
def test_a_long_chain_submitted_in_reverse_completes(queue: tg.Queue, count: int) -> None:
    sem = tg.Semaphore()
    for value in range(count, 0, -1):
        queue.barrier(wait=sem.at(value), signal=sem.at(value + 1))
    assert sem.value == 0
    sem.signal(1)
    sem.wait(count + 1, timeout=LIMIT)
    assert sem.failure is None


@pytest.mark.rules("M5", "M10", "M20")
@pytest.mark.slow
def test_a_long_chain_over_two_queues_in_random_order_completes(queue: tg.Queue, second_queue: tg.Queue) -> None:
    count = 1000
    chain = [tg.Semaphore() for _ in range(count + 1)]
    order = list(range(count))
    random.Random(7).shuffle(order)
    for index in order:
        (queue, second_queue)[index % 2].barrier(wait=chain[index].at(1), signal=chain[index + 1].at(1))
    chain[0].signal(1)
    chain[-1].wait(1, timeout=LIMIT)


@pytest.mark.rules("M10", "M20")
@pytest.mark.slow
def test_ten_thousand_held_submissions_are_freed_by_one_signal(device: tg.Device, queue: tg.Queue) -> None:
    count = 10_000
    gate = tg.Semaphore()
    works = [queue.barrier(wait=gate.at(1)) for _ in range(count)]
    assert device.statistics().held == count
    gate.signal(1)
    tg.wait_all(works, timeout=LIMIT)
    assert device.statistics().held == 0


@pytest.mark.rules("M14", "M38")
@pytest.mark.slow
def test_many_threads_submit_to_one_queue_at_once(queue: tg.Queue, switch_often: None) -> None:
    gate = tg.Semaphore()
    ends = [tg.Semaphore() for _ in range(4)]

    def submit(index: int) -> list[tg.Submission]:
        works = []
        for value in range(1, 101):
            works.append(queue.barrier(wait=[gate.at(1), ends[index].at(value - 1)], signal=ends[index].at(value)))
            if index == 0 and value == 50:
                gate.signal(1)
        return works

    for works in all_at_once(4, submit):
        tg.wait_all(works, timeout=LIMIT)
    assert [end.query() for end in ends] == [100] * 4


# Order on a queue ---------------------------------------------------------------------------------------------------


@pytest.mark.rules("M15")
def test_held_work_never_delays_ready_work(queue: tg.Queue, log: Log) -> None:
    gate = tg.Semaphore()
    held = [log.call(queue, "held", wait=gate.at(1)) for _ in range(50)]
    log.call(queue, "ready").wait(timeout=LIMIT)
    assert log.entries == ["ready"]
    gate.signal(1)
    tg.wait_all(held, timeout=LIMIT)


@pytest.mark.rules("M15", "M20")
def test_64_lanes_parked_on_the_host_do_not_stop_a_65th(device: tg.Device, log: Log) -> None:
    gate = tg.Semaphore()
    parked = []
    for index in range(64):
        lane = device.lane(label=f"parked {index}")
        lane.barrier(wait=gate.at(1))
        parked.append(log.call(lane, "parked"))
    free = device.lane(label="free")
    free.barrier()
    log.call(free, "free").wait(timeout=LIMIT)
    assert log.entries == ["free"]
    gate.signal(1)
    tg.wait_all(parked, timeout=LIMIT)
    assert log.entries.count("parked") == 64


@pytest.mark.rules("M15", "M20")
@pytest.mark.needs("latch", "beside")
def test_64_lanes_parked_behind_a_long_kernel_do_not_stop_a_65th(
    device: tg.Device, queue: tg.Queue, latch: Latch
) -> None:
    running = tg.Semaphore()
    buffer = device.allocate(65 * 256, memory="shared")
    latch.block(queue, signal=running.at(1))
    latch.wait_until_running()
    parked = []
    for index in range(64):
        lane = device.lane()
        lane.barrier(wait=running.at(1))
        parked.append(lane.fill(buffer, 1, offset=256 * index, length=256))
    free = device.lane()
    free.fill(buffer, 2, offset=256 * 64, length=128)
    free.fill(buffer, 3, offset=256 * 64 + 128, length=128).wait(timeout=LIMIT)
    assert not any(work.done for work in parked)
    latch.open()
    tg.wait_all(parked, timeout=LIMIT)


@pytest.mark.rules("M14", "M15", "M20")
@pytest.mark.slow
def test_calls_behind_a_long_kernel_return_at_once_while_other_threads_run_on(
    device: tg.Device, queue: tg.Queue, latch: Latch
) -> None:
    """Were a call to block for the kernel, the latch would never be opened, and fail."""
    count = 5000
    running, ends = tg.Semaphore(), tg.Semaphore()
    blocked = latch.block(queue, signal=running.at(1))
    latch.wait_until_running()
    stop = threading.Event()

    def runs_on() -> int:
        beats = 0
        sem = tg.Semaphore()
        while not stop.is_set():
            beats += 1
            sem.signal(beats)
            sem.wait(beats, timeout=LIMIT)
        return beats

    other = background(runs_on)
    buffer = device.allocate(256, memory="shared")
    works = [queue.fill(buffer, value % 256, wait=running.at(1)) for value in range(count)]
    last = queue.barrier(wait=works, signal=ends.at(1))
    assert not blocked.done
    assert not last.done
    stop.set()
    assert other.result() > 0
    latch.open()
    ends.wait(1, timeout=LIMIT)


@pytest.mark.rules("M14")
def test_allocating_and_freeing_behind_a_long_kernel_return_at_once(
    device: tg.Device, queue: tg.Queue, latch: Latch
) -> None:
    running = tg.Semaphore()
    latch.block(queue, signal=running.at(1))
    latch.wait_until_running()
    buffer = queue.allocate(1 << 16, wait=running.at(1))
    freed = queue.free(buffer, wait=buffer.ready)
    immediate = device.allocate(1 << 16)
    assert buffer.ready is not None
    assert not buffer.ready.done
    assert not freed.done
    latch.open()
    freed.wait(timeout=LIMIT)
    immediate.close()


@pytest.mark.rules("M14")
def test_flush_never_blocks(queue: tg.Queue, latch: Latch) -> None:
    blocked = latch.block(queue)
    latch.wait_until_running()
    queue.flush()
    assert not blocked.done
    latch.open()
    blocked.wait(timeout=LIMIT)


@pytest.mark.rules("M1", "M2")
def test_queues_signal_and_wait_for_any_value_up_to_the_largest(queue: tg.Queue, second_queue: tg.Queue) -> None:
    """User values never reach a device word, so none is too large, too far apart, or in the way of another."""
    sem, other = tg.Semaphore(), tg.Semaphore(2**63)
    values = [1, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 3, 2**64 - 2]
    for before, value in itertools.pairwise([0, *values]):
        second_queue.barrier(wait=sem.at(before), signal=sem.at(value))
    last = queue.barrier(wait=[sem.at(values[-1]), other.at(2**63)], signal=other.at(2**64 - 2))
    last.wait(timeout=LIMIT)
    assert (sem.query(), other.query()) == (2**64 - 2, 2**64 - 2)


@pytest.mark.rules("M2", "M7")
def test_a_failure_releases_no_work_that_waits_for_a_higher_value(
    queue: tg.Queue, second_queue: tg.Queue, latch: Latch, log: Log
) -> None:
    sem = tg.Semaphore()
    latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    waiting = [log.call(each, "ran", wait=sem.at(2**64 - 2)) for each in (queue, second_queue)]
    sem.fail(ValueError("no further"))
    latch.open()
    for work in waiting:
        failure_of(work)
    assert log.entries == []


# Claims -------------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M6", "M16")
def test_a_point_that_is_claimed_already_is_refused_at_the_call(device: tg.Device, queue: tg.Queue) -> None:
    gate, sem = tg.Semaphore(), tg.Semaphore(label="tide")
    first = queue.barrier(wait=gate.at(1), signal=sem.at(1))
    submitted = device.statistics().submitted
    with pytest.raises(tg.InvalidArgumentError, match="tide"):
        queue.barrier(signal=sem.at(1))
    assert device.statistics().submitted == submitted
    assert sem.value == 0
    gate.signal(1)
    first.wait(timeout=LIMIT)
    assert sem.query() == 1


@pytest.mark.rules("M6", "M3")
def test_a_promise_made_twice_is_refused_while_the_first_runs(queue: tg.Queue, latch: Latch) -> None:
    sem = tg.Semaphore()
    first = latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    with pytest.raises(tg.InvalidArgumentError):
        queue.barrier(signal=sem.at(1))
    latch.open()
    first.wait(timeout=LIMIT)
    assert sem.query() == 1


@pytest.mark.rules("M6", "M16")
def test_a_point_that_is_reached_already_is_refused_at_the_call(queue: tg.Queue) -> None:
    sem = tg.Semaphore(5, label="tide")
    for value in (0, 3, 5):
        with pytest.raises(tg.InvalidArgumentError, match="tide"):
            queue.barrier(signal=sem.at(value))
    assert (sem.value, sem.failure) == (5, None)
    queue.barrier(signal=sem.at(6)).wait(timeout=LIMIT)


@pytest.mark.rules("M6")
def test_a_refusal_withdraws_the_claims_made_before_it(queue: tg.Queue) -> None:
    fresh, taken = tg.Semaphore(), tg.Semaphore(1)
    with pytest.raises(tg.InvalidArgumentError):
        queue.barrier(signal=[fresh.at(1), taken.at(1)])
    queue.barrier(signal=fresh.at(1)).wait(timeout=LIMIT)
    assert fresh.query() == 1


@pytest.mark.rules("M6", "M38")
def test_of_threads_that_claim_the_same_points_exactly_one_succeeds(queue: tg.Queue, switch_often: None) -> None:
    gate, one, other = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    for value in range(1, 30):

        def claim(index: int, value: int = value) -> tg.Submission | None:
            points = [one.at(value), other.at(value)]
            try:
                return queue.barrier(wait=gate.at(value), signal=points if index % 2 else points[::-1])
            except tg.InvalidArgumentError:
                return None

        made = [work for work in all_at_once(4, claim) if work is not None]
        assert len(made) == 1
        gate.signal(value)
        made[0].wait(timeout=LIMIT)
    assert (one.query(), other.query()) == (29, 29)


@pytest.mark.rules("M6")
def test_a_lower_value_that_nobody_claimed_may_be_claimed_after_a_higher_one(queue: tg.Queue) -> None:
    sem, gate = tg.Semaphore(), tg.Semaphore()
    last = queue.barrier(wait=gate.at(2), signal=sem.at(2))
    first = queue.barrier(wait=gate.at(1), signal=sem.at(1))
    gate.signal(1)
    first.wait(timeout=LIMIT)
    assert sem.query() == 1
    gate.signal(2)
    last.wait(timeout=LIMIT)
    assert sem.query() == 2


@pytest.mark.rules("M6")
def test_a_signal_out_of_order_fails_the_semaphore_loudly(queue: tg.Queue) -> None:
    sem, gate, bystander = tg.Semaphore(label="tide"), tg.Semaphore(), tg.Semaphore()
    early = queue.barrier(wait=gate.at(1), signal=[sem.at(1), bystander.at(1)])
    queue.barrier(signal=sem.at(2)).wait(timeout=LIMIT)
    assert sem.query() == 2
    dependent = queue.barrier(wait=sem.at(3))
    gate.signal(1)
    cause = failure_of(dependent)
    assert sem.failure is cause
    assert isinstance(cause, tg.TidegateError)
    assert "tide" in str(cause)
    assert sem.value == 2
    sem.wait(2, timeout=0)
    bystander.wait(1, timeout=LIMIT)
    with pytest.raises((tg.SemaphoreFailedError, tg.DeadlineExceededError)):
        sem.wait(3, timeout=0)
    del early


@pytest.mark.rules("M6")
def test_a_host_signal_over_a_claimed_value_is_legal_and_the_claim_then_fails_loudly(
    queue: tg.Queue, latch: Latch
) -> None:
    sem = tg.Semaphore(label="tide")
    work = latch.block(queue, signal=sem.at(3))
    latch.wait_until_running()
    sem.signal(5)
    assert sem.query() == 5
    waiter = sem.at(6)
    latch.open()
    cause = failure_of(waiter)
    assert "tide" in str(cause)
    assert sem.value == 5
    sem.wait(5, timeout=0)
    del work


@pytest.mark.rules("M6", "M3")
def test_a_host_signal_below_a_claimed_value_disturbs_nothing(queue: tg.Queue) -> None:
    gate, sem = tg.Semaphore(), tg.Semaphore()
    work = queue.barrier(wait=gate.at(1), signal=sem.at(10))
    sem.signal(4)
    sem.signal(9)
    gate.signal(1)
    work.wait(timeout=LIMIT)
    assert sem.query() == 10


# Failure ------------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M16", "M21")
def test_what_goes_wrong_in_the_work_fails_every_signal_with_that_very_error(queue: tg.Queue) -> None:
    ends = [tg.Semaphore() for _ in range(3)]
    error = ValueError("from the work")

    def broken() -> None:
        raise error

    work = queue.host_call(broken, signal=[end.at(1) for end in ends])
    for end in ends:
        assert failure_of(end.at(1)) is error
        assert end.failure is error
    assert failure_of(work) is error
    assert work.error is error
    assert work.done
    with pytest.raises(tg.SemaphoreFailedError):
        work.result(timeout=LIMIT)


@pytest.mark.rules("M17")
def test_a_failed_wait_fails_exactly_the_dependents_and_nothing_else_on_that_queue(queue: tg.Queue, log: Log) -> None:
    gate, sound_gate, middle, end, sound = (tg.Semaphore() for _ in range(5))
    first = log.call(queue, "first", wait=gate.at(1), signal=middle.at(1))
    second = log.call(queue, "second", wait=middle.at(1), signal=end.at(1))
    unrelated = log.call(queue, "unrelated", wait=sound_gate.at(1), signal=sound.at(1))
    error = ValueError("no gate")
    gate.fail(error)
    assert failure_of(first) is error
    assert failure_of(second) is error
    assert failure_of(end.at(1)) is error
    assert (first.error, second.error) == (error, error)
    assert (unrelated.done, unrelated.error) == (False, None)
    sound_gate.signal(1)
    unrelated.wait(timeout=LIMIT)
    assert sound.query() == 1
    log.call(queue, "later").wait(timeout=LIMIT)
    assert log.entries == ["unrelated", "later"]


@pytest.mark.rules("M17")
def test_one_failed_wait_of_several_fails_the_submission_at_once(queue: tg.Queue, log: Log) -> None:
    gates = [tg.Semaphore() for _ in range(3)]
    end = tg.Semaphore()
    work = log.call(queue, "ran", wait=[gate.at(1) for gate in gates], signal=end.at(1))
    error = ValueError("one is enough")
    gates[0].signal(1)
    gates[1].fail(error)
    assert failure_of(end.at(1)) is error
    gates[2].signal(1)
    work_error = failure_of(work)
    assert work_error is error
    assert log.entries == []


@pytest.mark.rules("M7", "M17")
def test_submitting_against_a_failed_wait_never_raises_and_fails_with_the_first_cause(
    queue: tg.Queue, log: Log
) -> None:
    broken, end = tg.Semaphore(3), tg.Semaphore()
    error = ValueError("broken before")
    broken.fail(error)
    work = log.call(queue, "ran", wait=broken.at(4), signal=end.at(1))
    assert failure_of(work) is error
    assert failure_of(end.at(1)) is error
    assert log.entries == []
    log.call(queue, "past", wait=broken.at(3)).wait(timeout=LIMIT)
    assert log.entries == ["past"]


@pytest.mark.rules("M7")
def test_in_signal_a_failed_semaphore_never_raises_the_work_runs_and_the_first_failure_stays(
    queue: tg.Queue, log: Log
) -> None:
    broken, sound = tg.Semaphore(), tg.Semaphore()
    error = ValueError("broken before")
    broken.fail(error)
    log.call(queue, "ran", signal=[broken.at(1), sound.at(1)])
    sound.wait(1, timeout=LIMIT)
    assert log.entries == ["ran"]
    assert broken.failure is error
    assert broken.value == 0


@pytest.mark.rules("M17", "M3", "M7")
def test_a_host_failure_after_issue_fails_the_dependents_at_retirement_and_transitively(
    queue: tg.Queue, second_queue: tg.Queue, latch: Latch
) -> None:
    one, two, three, sound = (tg.Semaphore() for _ in range(4))
    latch.block(queue, signal=[one.at(1), sound.at(1)])
    latch.wait_until_running()
    second = queue.barrier(wait=one.at(1), signal=two.at(1))
    third = second_queue.barrier(wait=two.at(1), signal=three.at(1))
    unrelated = second_queue.barrier(wait=sound.at(1))
    error = ValueError("failed by the host")
    one.fail(error)
    with pytest.raises(tg.SemaphoreFailedError):
        one.wait(1, timeout=0)
    latch.open()
    assert failure_of(two.at(1)) is error
    assert failure_of(three.at(1)) is error
    assert failure_of(second) is error
    assert failure_of(third) is error
    unrelated.wait(timeout=LIMIT)
    assert (one.value, two.value, three.value) == (0, 0, 0)


@pytest.mark.rules("M7")
def test_fail_first_retires_what_the_device_has_finished(queue: tg.Queue, log: Log) -> None:
    """What had been reached before the failure stays reached, although nobody had looked yet."""
    sem = tg.Semaphore()
    work = log.call(queue, "ran", signal=sem.at(1))
    work.wait(timeout=LIMIT)
    sem.fail(ValueError("later"))
    assert sem.value == 1
    sem.wait(1, timeout=0)


@pytest.mark.rules("M17", "M21")
def test_a_failed_submission_in_wait_passes_its_own_error_on(queue: tg.Queue, second_queue: tg.Queue) -> None:
    error = ValueError("from the work")

    def broken() -> None:
        raise error

    first = queue.host_call(broken)
    second = second_queue.barrier(wait=first)
    third = queue.barrier(wait=[second])
    assert failure_of(third) is error
    assert failure_of(second) is error
    assert failure_of(first) is error
    late = queue.barrier(wait=first)
    assert failure_of(late) is error


@pytest.mark.rules("M17")
def test_a_failure_travels_down_a_long_chain_without_recursion(queue: tg.Queue) -> None:
    count = 1000
    chain = [tg.Semaphore() for _ in range(count + 1)]
    for index in reversed(range(count)):
        queue.barrier(wait=chain[index].at(1), signal=chain[index + 1].at(1))
    error = ValueError("at the very start")
    chain[0].fail(error)
    assert failure_of(chain[-1].at(1)) is error


class Reports(logging.Handler):
    """What is reported for want of somebody to raise it to: by the unraisable hook or by a log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.some = threading.Event()
        monkeypatch.setattr("sys.unraisablehook", lambda report: self.add(f"{report.err_msg} {report.exc_value}"))
        monkeypatch.setattr(logging.getLogger("tidegate"), "handlers", [self])

    def emit(self, record: logging.LogRecord) -> None:
        self.add(self.format(record))

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.some.set()


@pytest.mark.rules("M21")
def test_a_failure_that_nobody_looked_at_is_reported_once_when_it_is_collected(
    queue: tg.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports(monkeypatch)

    def broken() -> None:
        raise ValueError("nobody looks")

    queue.host_call(broken)
    for _ in range(int(LIMIT / 0.05)):
        gc.collect()  # an error and its frames hold each other
        if reports.some.wait(0.05):
            break
    gc.collect()
    queue.host_call(gc.collect).wait(timeout=LIMIT)
    assert len(reports.texts) == 1
    assert "nobody looks" in reports.texts[0]


@pytest.mark.rules("M21")
@pytest.mark.parametrize("look", ["wait", "error", "result", "wait_all", "dependent"])
def test_a_failure_that_somebody_looked_at_is_not_reported(
    queue: tg.Queue, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    reports = Reports(monkeypatch)

    def broken() -> None:
        raise ValueError("somebody looks")

    work = queue.host_call(broken)
    if look == "dependent":
        failure_of(queue.barrier(wait=work))
    elif look == "wait_all":
        with pytest.raises(tg.SemaphoreFailedError):
            tg.wait_all([work], timeout=LIMIT)
    elif look == "result":
        with pytest.raises(tg.SemaphoreFailedError):
            work.result(timeout=LIMIT)
    else:
        failure_of(work)
        assert isinstance(work.error, ValueError)
    del work
    gc.collect()
    queue.host_call(gc.collect).wait(timeout=LIMIT)
    assert reports.texts == []


# Cancelling ---------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M21")
def test_cancelling_a_held_submission_aborts_its_signals_and_dependents(queue: tg.Queue, log: Log) -> None:
    gate, end, after = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    work = log.call(queue, "cancelled", wait=gate.at(1), signal=end.at(1))
    dependent = log.call(queue, "dependent", wait=end.at(1), signal=after.at(1))
    neighbour = log.call(queue, "neighbour", wait=gate.at(1))
    assert work.cancel() is True
    work.cancel()
    cause = failure_of(end.at(1))
    assert isinstance(cause, tg.AbortedError)
    assert failure_of(after.at(1)) is cause
    assert failure_of(dependent) is cause
    assert isinstance(work.error, tg.AbortedError)
    assert work.done
    gate.signal(1)
    neighbour.wait(timeout=LIMIT)
    assert log.entries == ["neighbour"]


@pytest.mark.rules("M21")
def test_what_runs_or_is_over_cannot_be_cancelled(queue: tg.Queue, latch: Latch) -> None:
    end = tg.Semaphore()
    work = latch.block(queue, signal=end.at(1))
    latch.wait_until_running()
    assert work.cancel() is False
    latch.open()
    end.wait(1, timeout=LIMIT)
    work.wait(timeout=LIMIT)
    assert work.cancel() is False
    assert work.error is None


@pytest.mark.rules("M21", "M38")
@pytest.mark.slow
def test_cancelling_races_with_the_signal_and_its_answer_is_true(queue: tg.Queue, switch_often: None) -> None:
    for _ in range(200):
        gate, end = tg.Semaphore(), tg.Semaphore()
        ran: list[int] = []
        work = queue.host_call(ran.append, 1, wait=gate.at(1), signal=end.at(1))

        def cancel_or_signal(index: int, gate: tg.Semaphore = gate, work: tg.Submission = work) -> bool | None:
            if index:
                return work.cancel()
            gate.signal(1)
            return None

        _, cancelled = all_at_once(2, cancel_or_signal)
        if cancelled:
            assert isinstance(failure_of(end.at(1)), tg.AbortedError)
            assert ran == []
        else:
            end.wait(1, timeout=LIMIT)
            assert ran == [1]


@pytest.mark.rules("M6", "M21")
def test_cancelling_one_submission_leaves_the_semaphore_of_its_wait_alone(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    assert queue.barrier(wait=gate.at(1)).cancel()
    assert (gate.value, gate.failure) == (0, None)
    other = queue.barrier(wait=gate.at(1))
    gate.signal(1)
    other.wait(timeout=LIMIT)


# The submission object ----------------------------------------------------------------------------------------------


@pytest.mark.rules("M21")
def test_a_submission_knows_its_queue_and_its_result(queue: tg.Queue) -> None:
    work = queue.host_call(lambda left, right: left + right, 40, 2)
    assert work.queue is queue
    assert work.result(timeout=LIMIT) == 42
    assert work.result(timeout=0) == 42
    assert work.error is None
    assert queue.barrier().result(timeout=LIMIT) is None


@pytest.mark.rules("M21")
def test_a_submission_shows_the_line_it_was_made_at(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    work = queue.barrier(wait=gate.at(1))
    assert "test_submission.py" in work.explain()
    gate.signal(1)


@pytest.mark.rules("M14")
def test_the_device_counts_its_submissions(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    before = device.statistics()
    works = [queue.barrier(wait=gate.at(1)) for _ in range(5)]
    now = device.statistics()
    assert now.held == before.held + 5
    assert now.submitted == before.submitted + 5
    gate.signal(1)
    tg.wait_all(works, timeout=LIMIT)
    then = device.statistics()
    assert (then.held, then.issued) == (before.held, before.issued)
    assert then.retired == before.retired + 5


# What is refused at the call ----------------------------------------------------------------------------------------


FOREIGN: dict[str, Any] = {"int": 3, "str": "sem", "object": object(), "semaphore": tg.Semaphore}


@pytest.mark.rules("M16")
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("place", ["wait", "signal"])
@pytest.mark.parametrize("listed", [False, True])
def test_foreign_objects_in_wait_and_signal_are_a_type_error(
    device: tg.Device, queue: tg.Queue, log: Log, kind: str, place: str, listed: bool
) -> None:
    foreign = FOREIGN[kind]() if kind == "semaphore" else FOREIGN[kind]
    end = tg.Semaphore()
    arguments: dict[str, Any] = {"signal": [end.at(1)]}
    if place == "wait":
        arguments["wait"] = [end.at(0), foreign] if listed else foreign
    else:
        arguments["signal"] = [end.at(1), foreign] if listed else foreign
    before = device.statistics().submitted
    with pytest.raises(TypeError):
        log.call(queue, "ran", **arguments)
    assert device.statistics().submitted == before
    queue.barrier(signal=end.at(1)).wait(timeout=LIMIT)
    assert log.entries == []


@pytest.mark.rules("M16")
def test_a_submission_in_signal_is_a_type_error(queue: tg.Queue) -> None:
    work: Any = queue.barrier()
    with pytest.raises(TypeError):
        queue.barrier(signal=work)


@pytest.mark.rules("M16")
def test_an_iterable_that_raises_submits_nothing(device: tg.Device, queue: tg.Queue) -> None:
    class Stop(Exception):
        pass

    sem = tg.Semaphore()

    def broken() -> Iterable[tg.Timepoint]:
        yield sem.at(1)
        raise Stop

    before = device.statistics().submitted
    with pytest.raises(Stop):
        queue.barrier(signal=broken())
    with pytest.raises(Stop):
        queue.barrier(wait=broken(), signal=sem.at(1))
    assert device.statistics().submitted == before
    queue.barrier(signal=sem.at(1)).wait(timeout=LIMIT)


@pytest.mark.rules("M16")
def test_a_refused_operation_moves_no_signal(device: tg.Device, queue: tg.Queue) -> None:
    end = tg.Semaphore()
    buffer = device.allocate(64)
    with pytest.raises(tg.InvalidArgumentError):
        queue.fill(buffer, b"abc", signal=end.at(1))
    with pytest.raises(tg.OutOfRangeError):
        queue.fill(buffer, 0, offset=60, length=8, signal=end.at(1))
    with pytest.raises(TypeError):
        queue.host_call("not callable", signal=end.at(1))  # type: ignore[arg-type]
    assert (end.value, end.failure) == (0, None)
    queue.barrier(signal=end.at(1)).wait(timeout=LIMIT)
    assert end.query() == 1


@pytest.mark.rules("M14", "M16")
@pytest.mark.parametrize("kind", ["no such kind", "", 3])
def test_an_unknown_kind_of_queue_is_refused(device: tg.Device, kind: Any) -> None:
    with pytest.raises((tg.TidegateError, TypeError)):
        device.queue(kind)


# Lanes --------------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M15")
def test_a_lane_runs_its_operations_in_order(device: tg.Device, log: Log) -> None:
    lane = device.lane(label="in order")
    gate = tg.Semaphore()
    lane.barrier(wait=gate.at(1))
    for index in range(20):
        log.call(lane, str(index))
    assert log.entries == []
    gate.signal(1)
    lane.barrier().wait(timeout=LIMIT)
    assert log.entries == [str(index) for index in range(20)]


@pytest.mark.rules("M15")
def test_lanes_have_no_order_between_them_but_what_waits_say(device: tg.Device, log: Log) -> None:
    one, other = device.lane(), device.lane()
    gate = tg.Semaphore()
    one.barrier(wait=gate.at(1))
    parked = log.call(one, "one")
    log.call(other, "other").wait(timeout=LIMIT)
    assert log.entries == ["other"]
    joined = log.call(other, "joined", wait=parked)
    gate.signal(1)
    joined.wait(timeout=LIMIT)
    assert log.entries == ["other", "one", "joined"]


@pytest.mark.rules("M15", "M17")
def test_a_failure_in_a_lane_fails_what_is_behind_it_until_the_lane_is_reset(device: tg.Device, log: Log) -> None:
    lane = device.lane()
    error = ValueError("in the lane")

    def broken() -> None:
        raise error

    first = log.call(lane, "before")
    lane.host_call(broken)
    behind = log.call(lane, "behind")
    assert failure_of(behind) is error
    first.wait(timeout=LIMIT)
    assert failure_of(log.call(lane, "still behind")) is error
    lane.reset()
    log.call(lane, "afresh").wait(timeout=LIMIT)
    assert log.entries == ["before", "afresh"]


@pytest.mark.rules("M15", "M16")
def test_a_refused_operation_takes_no_place_in_the_lane(device: tg.Device, log: Log) -> None:
    lane = device.lane()
    buffer = device.allocate(16)
    taken = tg.Semaphore(1)
    log.call(lane, "one")
    with pytest.raises(tg.InvalidArgumentError):
        lane.fill(buffer, b"abc")
    with pytest.raises(tg.InvalidArgumentError):
        lane.barrier(signal=taken.at(1))
    log.call(lane, "two").wait(timeout=LIMIT)
    assert log.entries == ["one", "two"]


@pytest.mark.rules("M15")
def test_a_lane_signals_and_joins(device: tg.Device, queue: tg.Queue, log: Log) -> None:
    lane = device.lane(queue)
    sem, gate = tg.Semaphore(), tg.Semaphore()
    log.call(lane, "one", signal=sem.at(1))
    log.call(queue, "beside", wait=sem.at(1), signal=sem.at(2))
    log.call(lane, "two", wait=[sem.at(2), gate.at(1)])
    sem.wait(2, timeout=LIMIT)
    assert log.entries == ["one", "beside"]
    gate.signal(1)
    lane.barrier().wait(timeout=LIMIT)
    assert log.entries == ["one", "beside", "two"]


@pytest.mark.rules("M15", "M22")
@pytest.mark.needs("work")
def test_a_lane_allocates_uses_and_frees(device: tg.Device) -> None:
    lane = device.lane()
    buffer = lane.allocate(1024)
    lane.fill(buffer, 7)
    data = lane.download(buffer).result(timeout=LIMIT)
    lane.free(buffer).wait(timeout=LIMIT)
    assert bytes(data) == b"\x07" * 1024


@pytest.mark.rules("M15", "M38")
def test_threads_may_share_a_lane(device: tg.Device, switch_often: None) -> None:
    lane = device.lane()
    running: list[int] = []
    most: list[int] = []

    def step() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    for works in all_at_once(4, lambda index: [lane.host_call(step) for _ in range(25)]):
        tg.wait_all(works, timeout=LIMIT)
    assert most == [1] * 100


# Several devices and drivers ----------------------------------------------------------------------------------------


@pytest.mark.rules("M1", "M5")
def test_two_devices_share_semaphores_in_both_orders(
    device: tg.Device, open_device: Callable[..., tg.Device], log: Log
) -> None:
    one, other = device.queue(), open_device(label="second").queue()
    sem = tg.Semaphore()
    log.call(other, "third", wait=sem.at(2), signal=sem.at(3))
    log.call(one, "second", wait=sem.at(1), signal=sem.at(2))
    log.call(other, "first", signal=sem.at(1))
    sem.wait(3, timeout=LIMIT)
    assert log.entries == ["first", "second", "third"]


@pytest.mark.rules("M1", "M5")
def test_two_drivers_share_semaphores_in_both_orders(device: tg.Device, partner_device: tg.Device, log: Log) -> None:
    assert partner_device.info.driver != device.info.driver
    one, other = device.queue(), partner_device.queue()
    sem = tg.Semaphore()
    log.call(one, "fourth", wait=sem.at(3), signal=sem.at(4))
    log.call(other, "third", wait=sem.at(2), signal=sem.at(3))
    log.call(one, "second", wait=sem.at(1), signal=sem.at(2))
    log.call(other, "first", signal=sem.at(1))
    sem.wait(4, timeout=LIMIT)
    assert log.entries == ["first", "second", "third", "fourth"]


@pytest.mark.rules("M17", "M1")
def test_a_failure_on_one_device_reaches_exactly_the_dependents_on_another(
    device: tg.Device, open_device: Callable[..., tg.Device], partner_device: tg.Device
) -> None:
    error = ValueError("on the first device")

    def broken() -> None:
        raise error

    second = open_device(label="second")
    sem, end = tg.Semaphore(), tg.Semaphore()
    dependent = second.queue().barrier(wait=sem.at(1), signal=end.at(1))
    far = partner_device.queue().barrier(wait=end.at(1))
    unrelated = [opened.queue().barrier() for opened in (device, second, partner_device)]
    device.queue().host_call(broken, signal=sem.at(1))
    assert failure_of(dependent) is error
    assert failure_of(far) is error
    tg.wait_all(unrelated, timeout=LIMIT)


@pytest.mark.rules("M5", "M3")
def test_work_of_one_device_waits_for_running_work_of_another(
    queue: tg.Queue, latch: Latch, open_device: Callable[..., tg.Device], partner_device: tg.Device
) -> None:
    sem = tg.Semaphore()
    latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    others = [opened.queue().barrier(wait=sem.at(1)) for opened in (open_device(), partner_device)]
    assert not any(work.done for work in others)
    latch.open()
    tg.wait_all(others, timeout=LIMIT)


@pytest.mark.rules("M9", "M1")
def test_any_and_all_take_submissions_of_several_devices(
    queue: tg.Queue, open_device: Callable[..., tg.Device], partner_device: tg.Device
) -> None:
    gate = tg.Semaphore()
    queues = [queue, open_device().queue(), partner_device.queue()]
    works = [each.barrier(wait=gate.at(index + 1)) for index, each in enumerate(queues)]
    gate.signal(1)
    assert tg.wait_any(works, timeout=LIMIT) is works[0]
    gate.signal(3)
    tg.wait_all(works, timeout=LIMIT)
