"""Submissions: what they wait for, what they signal, and what their handles know."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .threads import all_at_once
from .witnesses import Log

pytestmark = pytest.mark.rules("M14", "M3")


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


# The submission object ----------------------------------------------------------------------------------------------


@pytest.mark.rules("M21")
def test_a_submission_knows_its_queue_and_its_result(queue: tg.Queue) -> None:
    work = queue.host_call(lambda left, right: left + right, 40, 2)
    assert work.queue is queue
    assert work.result(timeout=LIMIT) == 42
    assert work.result(timeout=0) == 42
    assert work.error is None
    assert queue.barrier().result(timeout=LIMIT) is None


@pytest.mark.rules("M3", "M21")
@pytest.mark.parametrize("by", ["submission", "signal"])
def test_who_has_waited_for_a_submission_finds_it_done(queue: tg.Queue, by: str, switch_often: None) -> None:
    for count in range(1, 501):
        end = tg.Semaphore()
        work = queue.host_call([].pop if count % 2 else list, signal=end.at(1))
        waited = work if by == "submission" else end.at(1)
        if count % 2:
            with pytest.raises(tg.SemaphoreFailedError) as failure:
                waited.wait(timeout=LIMIT)
            assert work.done
            assert isinstance(work.error, IndexError)
            assert failure.value.__cause__ is work.error
        else:
            waited.wait(timeout=LIMIT)
            assert work.done
            assert work.error is None


@pytest.mark.rules("M21")
def test_a_submission_tells_the_kind_of_its_work(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    source, target = (device.upload(np.zeros(64, np.uint8)) for _ in range(2))
    with device.record() as commands:
        commands.fill(target, 1)
    path = tmp_path / "file"
    path.write_bytes(bytes(64))
    allocated = queue.allocate(64)
    made = {
        "barrier": queue.barrier(),
        "fill": queue.fill(target, 1),
        "update": queue.update(target, b"1234"),
        "upload": queue.upload(np.zeros(64, np.uint8), target),
        "download": queue.download(target),
        "copy": queue.copy(source, target),
        "execute": queue.execute(commands),
        "host_call": queue.host_call(int),
        "read_file": queue.read_file(path, target),
        "write_file": queue.write_file(target, path),
        "allocate": allocated.ready,
        "free": queue.free(allocated, wait=allocated.ready),
    }
    for kind, submission in made.items():
        assert submission.kind == kind
        assert kind in repr(submission)
        submission.wait(LIMIT)


def test_submissions_and_subscriptions_are_made_by_calls_only() -> None:
    for cls in (tg.Submission, tg.Subscription):
        with pytest.raises(TypeError, match="made by"):
            cls()


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
