"""Cycles of allocating and freeing, and what happens when memory runs out."""

import gc

import numpy as np
import pytest

import tidegate as tg

from .buffers import MIB, ready
from .latches import LIMIT
from .witnesses import assert_fails_with

pytestmark = pytest.mark.rules("M22")


# Cycles


@pytest.mark.needs("work")
@pytest.mark.rules("M14", "M22", "M23", "M24")
def test_chained_cycles_submitted_without_a_host_wait_give_the_right_results(
    device: tg.Device, queue: tg.Queue
) -> None:
    cycles, block = 200, 4096
    gate = tg.Semaphore()
    results = device.upload(np.zeros(cycles, np.uint32))
    previous: tg.Timepoint | tg.Submission = gate.at(1)
    for i in range(cycles):
        scratch = queue.allocate(block, wait=previous)
        filled = queue.fill(scratch, int(i).to_bytes(4, "little"), wait=scratch.ready)
        copied = queue.copy(scratch, results, source_offset=block - 4, target_offset=4 * i, length=4, wait=filled)
        previous = queue.free(scratch, wait=copied)
    assert not previous.done if isinstance(previous, tg.Submission) else True
    gate.signal(1)
    tg.wait_all([previous], LIMIT)
    assert np.array_equal(results.to_numpy(np.uint32, timeout=LIMIT), np.arange(cycles, dtype=np.uint32))


@pytest.mark.needs("budget")
@pytest.mark.rules("M24")
def test_cycles_that_follow_one_another_need_the_memory_of_one(small_device: tg.Device) -> None:
    """1,000 cycles of 3 MiB, all submitted before the first may start, in 4 MiB."""
    queue = small_device.queue()
    gate = tg.Semaphore()
    previous: tg.Timepoint | tg.Submission = gate.at(1)
    for _ in range(1000):
        scratch = queue.allocate(3 * MIB, wait=previous)
        filled = queue.fill(scratch, 1, length=16, wait=scratch.ready)
        previous = queue.free(scratch, wait=filled)
    gate.signal(1)
    tg.wait_all([previous], LIMIT)
    assert small_device.statistics().peak_bytes <= 4 * MIB


@pytest.mark.needs("budget")
@pytest.mark.rules("M22", "M24")
def test_cycles_that_do_not_wait_for_one_another_share_what_memory_there_is(small_device: tg.Device) -> None:
    """Nothing orders these cycles but the memory itself: each allocation is retried as frees retire."""
    queue = small_device.queue()
    frees = []
    for _ in range(200):
        scratch = queue.allocate(MIB)
        filled = queue.fill(scratch, 1, length=16, wait=scratch.ready)
        frees.append(queue.free(scratch, wait=filled))
    tg.wait_all(frees, LIMIT)
    assert small_device.statistics().peak_bytes <= 4 * MIB
    assert small_device.statistics().allocated_bytes == 0


@pytest.mark.slow
@pytest.mark.rules("M24")
def test_memory_stays_bounded_over_ten_thousand_cycles(device: tg.Device, queue: tg.Queue) -> None:
    block, depth = 64 * 1024, 4
    before = device.statistics()
    in_flight: list[tg.Submission] = []
    for i in range(10_000):
        wait = in_flight.pop(0) if len(in_flight) == depth else None
        scratch = queue.allocate(block, wait=wait)
        filled = queue.fill(scratch, i & 255, length=64, wait=scratch.ready)
        in_flight.append(queue.free(scratch, wait=filled))
    tg.wait_all(in_flight, LIMIT)
    after = device.statistics()
    assert after.allocated_bytes == before.allocated_bytes
    # A device with an order of its own may have hundreds of cycles issued and not retired; 10,000 would be 640 MiB.
    assert after.peak_bytes - before.allocated_bytes <= 512 * block
    assert after.reserved_bytes - before.reserved_bytes <= 512 * block


# Running out


@pytest.mark.needs("budget")
@pytest.mark.rules("M22")
def test_an_allocation_that_does_not_fit_now_is_retried_when_a_free_retires(small_device: tg.Device) -> None:
    queue = small_device.queue()
    gate, done = tg.Semaphore(), tg.Semaphore()
    first = queue.allocate(3 * MIB)
    ready(first).wait(LIMIT)
    free = queue.free(first, wait=gate.at(1))
    second = queue.allocate(3 * MIB, signal=done.at(1))
    queue.barrier().wait(LIMIT)
    assert not ready(second).done
    assert done.value == 0
    assert done.failure is None
    gate.signal(1)
    free.wait(LIMIT)
    ready(second).wait(LIMIT)
    done.wait(1, LIMIT)
    queue.fill(second, 1).wait(LIMIT)
    queue.free(second).wait(LIMIT)


@pytest.mark.needs("budget")
@pytest.mark.rules("M22")
def test_waiting_allocations_are_all_served_as_frees_retire_one_by_one(small_device: tg.Device) -> None:
    queue = small_device.queue()
    gate = tg.Semaphore()
    first = [queue.allocate(MIB) for _ in range(4)]
    tg.wait_all([ready(buffer) for buffer in first], LIMIT)
    frees = [queue.free(buffer, wait=gate.at(i + 1)) for i, buffer in enumerate(first)]
    second = [queue.allocate(MIB) for _ in range(4)]
    waiting = [ready(buffer) for buffer in second]
    for i in range(4):
        gate.signal(i + 1)
        frees[i].wait(LIMIT)
        served = tg.wait_any(waiting, LIMIT)
        waiting = [submission for submission in waiting if submission is not served]
        if i < 3:
            with pytest.raises(tg.DeadlineExceededError):
                tg.wait_any(waiting, 0)
    tg.wait_all([queue.free(buffer) for buffer in second], LIMIT)


@pytest.mark.needs("budget")
@pytest.mark.usefixtures("switch_often")
@pytest.mark.rules("M22")
def test_memory_that_comes_back_while_others_are_being_served_is_not_overlooked(small_device: tg.Device) -> None:
    queue = small_device.queue()
    for _ in range(100):
        gate = tg.Semaphore()
        first = [queue.allocate(MIB) for _ in range(4)]
        tg.wait_all([ready(buffer) for buffer in first], LIMIT)
        frees = [queue.free(buffer, wait=gate.at(i + 1)) for i, buffer in enumerate(first)]
        second = [queue.allocate(MIB) for _ in range(4)]
        for i, free in enumerate(frees):
            gate.signal(i + 1)
            free.wait(LIMIT)
        tg.wait_all([ready(buffer) for buffer in second], LIMIT)
        tg.wait_all([queue.free(buffer) for buffer in second], LIMIT)


@pytest.mark.needs("work", "budget")
@pytest.mark.rules("M16", "M22")
def test_running_out_of_memory_fails_the_signals_and_nothing_else(small_device: tg.Device) -> None:
    queue = small_device.queue()
    done, other = tg.Semaphore(), tg.Semaphore()
    kept = queue.allocate(MIB)
    queue.fill(kept, 8, wait=kept.ready).wait(LIMIT)
    for nbytes in (5 * MIB, 2**45):
        done = tg.Semaphore()
        buffer = queue.allocate(nbytes, signal=done.at(1))
        behind = queue.fill(buffer, 1, length=4, wait=buffer.ready)
        assert_fails_with(ready(buffer), tg.ResourceExhaustedError)
        assert_fails_with(behind, tg.ResourceExhaustedError)
        with pytest.raises(tg.SemaphoreFailedError):
            done.wait(1, LIMIT)
        assert isinstance(done.failure, tg.ResourceExhaustedError)
    queue.barrier(signal=other.at(1)).wait(LIMIT)
    assert other.value == 1
    assert kept.read(timeout=LIMIT) == b"\x08" * MIB
    again = queue.allocate(2 * MIB)
    ready(again).wait(LIMIT)


@pytest.mark.needs("budget")
@pytest.mark.rules("M22", "M40")
def test_an_allocation_does_not_wait_for_a_free_that_will_not_come(small_device: tg.Device) -> None:
    queue = small_device.queue()
    gate = tg.Semaphore()
    first = queue.allocate(3 * MIB)
    ready(first).wait(LIMIT)
    free = queue.free(first, wait=gate.at(1))
    second = queue.allocate(3 * MIB)
    assert not ready(second).done
    gate.fail(ValueError("never"))
    assert_fails_with(free, ValueError)
    assert_fails_with(ready(second), tg.ResourceExhaustedError)


@pytest.mark.needs("budget")
@pytest.mark.rules("M22", "M40")
def test_an_allocation_does_not_wait_for_a_free_that_waits_for_it(small_device: tg.Device) -> None:
    queue = small_device.queue()
    promise = tg.Semaphore()
    first = queue.allocate(3 * MIB)
    ready(first).wait(LIMIT)
    free = queue.free(first, wait=promise.at(1))
    second = queue.allocate(3 * MIB, signal=promise.at(1))
    assert_fails_with(ready(second), tg.ResourceExhaustedError)
    assert_fails_with(free, tg.ResourceExhaustedError)
    queue.fill(first, 1).wait(LIMIT)
    queue.free(first).wait(LIMIT)


@pytest.mark.needs("budget")
@pytest.mark.rules("M22", "M24")
def test_an_immediate_allocation_that_does_not_fit_raises_at_the_call(small_device: tg.Device) -> None:
    with pytest.raises(tg.ResourceExhaustedError):
        small_device.allocate(5 * MIB)
    buffer = small_device.allocate(3 * MIB)
    with pytest.raises(tg.ResourceExhaustedError):
        small_device.allocate(3 * MIB)
    buffer.close()
    small_device.allocate(3 * MIB).close()


@pytest.mark.needs("budget")
@pytest.mark.rules("M22", "M24")
def test_closing_and_dropping_a_buffer_helps_an_allocation_that_waits_for_memory(small_device: tg.Device) -> None:
    queue = small_device.queue()
    gate = tg.Semaphore()
    first = queue.allocate(2 * MIB)
    immediate = small_device.allocate(2 * MIB)
    ready(first).wait(LIMIT)
    free = queue.free(first, wait=gate.at(1))
    second = queue.allocate(2 * MIB)
    assert not ready(second).done
    immediate.close()
    ready(second).wait(LIMIT)
    third = queue.allocate(2 * MIB)
    assert not ready(third).done
    del second
    gc.collect()
    ready(third).wait(LIMIT)
    gate.signal(1)
    free.wait(LIMIT)
