"""No order on a queue but what waits say: nothing delays what is ready, and no call waits for the device."""

from __future__ import annotations

import itertools
import threading

import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .threads import background
from .witnesses import Log, failure_of

pytestmark = pytest.mark.rules("M15")


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


@pytest.mark.rules("M14", "M15")
@pytest.mark.needs("latch")
@pytest.mark.slow
def test_a_long_chain_behind_a_long_kernel_is_submitted_at_once(
    device: tg.Device, queue: tg.Queue, latch: Latch
) -> None:
    """A chain may go onto one stream, which has room for a part of it only."""
    buffer = device.allocate(256, memory="shared")
    blocked = latch.block(queue)
    latch.wait_until_running()
    last = blocked
    for value in range(1500):
        last = queue.fill(buffer, value % 256, wait=last)
    assert not blocked.done
    latch.open()
    last.wait(timeout=LIMIT)


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
