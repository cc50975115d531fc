"""Allocating and freeing in queue order, memory kinds, pools and budgets."""

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .subjects import Subject

MIB = 2**20

MemoryKind = Literal["device", "host", "shared"]

pytestmark = pytest.mark.rules("M22")


def assert_fails_with(submission: tg.Submission, kind: type[BaseException]) -> None:
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        submission.wait(LIMIT)
    assert isinstance(caught.value.__cause__, kind)
    assert isinstance(submission.error, kind)


def ready(buffer: tg.Buffer) -> tg.Submission:
    """The submission that commits a queue-ordered buffer."""
    assert buffer.ready is not None
    return buffer.ready


@pytest.fixture
def frantic_switching() -> Iterator[None]:
    """Threads take turns as often as they can, so that a step that is not one shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def small_device(open_device: Callable[..., tg.Device]) -> tg.Device:
    """A device whose pools may hold 4 MiB."""
    return open_device(memory="4MiB")


# Allocate


@pytest.mark.needs("work")
def test_an_allocation_is_usable_once_it_is_ready(device: tg.Device, queue: tg.Queue) -> None:
    done = tg.Semaphore()
    buffer = queue.allocate(1000, signal=done.at(1))
    done.wait(1, LIMIT)
    ready(buffer).wait(LIMIT)
    queue.fill(buffer, 7).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == b"\x07" * 1000


def test_an_allocation_tells_all_about_itself_before_it_has_storage(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    for memory in ("device", "host", "shared"):
        buffer = queue.allocate(1234, memory=memory, label=f"a {memory} buffer", wait=gate.at(1))
        assert not ready(buffer).done
        assert buffer.nbytes == 1234
        assert buffer.memory == memory
        assert buffer.device is device
        assert buffer.label == f"a {memory} buffer"
        assert f"a {memory} buffer" in repr(buffer)
        assert buffer.subspan(200, 34).nbytes == 34
        assert buffer.view(np.uint16).shape == (617,)
        assert ready(buffer).cancel()


@pytest.mark.needs("work")
@pytest.mark.rules("M14", "M22")
def test_an_allocation_with_an_unmet_wait_returns_at_once_and_its_signal_waits(
    device: tg.Device, queue: tg.Queue
) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    buffer = queue.allocate(64, wait=gate.at(1), signal=done.at(1))
    queue.barrier().wait(LIMIT)
    assert not ready(buffer).done
    assert done.value == 0
    gate.signal(1)
    done.wait(1, LIMIT)
    ready(buffer).wait(LIMIT)
    queue.fill(buffer, 1).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == b"\x01" * 64


@pytest.mark.needs("work")
@pytest.mark.rules("M22", "M26")
def test_host_access_before_the_storage_is_committed_is_refused(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    buffer = queue.allocate(64, memory="shared", wait=gate.at(1))
    with pytest.raises(tg.FailedPreconditionError):
        buffer.read(timeout=LIMIT)
    with pytest.raises(tg.FailedPreconditionError):
        buffer.to_numpy(np.uint8, timeout=LIMIT)
    with pytest.raises(tg.FailedPreconditionError):
        buffer.write(b"early")
    with pytest.raises(tg.FailedPreconditionError), buffer.map("rw", timeout=LIMIT):
        pass
    with pytest.raises(tg.FailedPreconditionError), buffer.map("r", wait=()):
        pass
    with pytest.raises(tg.FailedPreconditionError):
        np.asarray(buffer.view(np.uint8))
    gate.signal(1)
    ready(buffer).wait(LIMIT)
    buffer.write(b"now it goes".ljust(64))
    assert buffer.read(timeout=LIMIT) == b"now it goes".ljust(64)


@pytest.mark.rules("M17", "M22")
def test_an_allocation_whose_wait_fails_gives_no_storage_and_fails_what_follows_it(
    device: tg.Device, queue: tg.Queue
) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    buffer = queue.allocate(64, wait=gate.at(1), signal=done.at(1))
    filled = queue.fill(buffer, 1, wait=buffer.ready)
    error = ValueError("no gate")
    gate.fail(error)
    for submission in (ready(buffer), filled):
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            submission.wait(LIMIT)
        assert caught.value.__cause__ is error
    with pytest.raises(tg.SemaphoreFailedError):
        done.wait(1, LIMIT)


@pytest.mark.rules("M21", "M22")
def test_a_held_allocation_can_be_cancelled(device: tg.Device, queue: tg.Queue) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    before = device.statistics().allocated_bytes
    buffer = queue.allocate(MIB, wait=gate.at(1), signal=done.at(1))
    assert ready(buffer).cancel()
    assert isinstance(done.failure, tg.AbortedError)
    gate.signal(1)
    queue.barrier().wait(LIMIT)
    assert device.statistics().allocated_bytes == before
    with pytest.raises(tg.FailedPreconditionError):
        buffer.read(timeout=LIMIT)


def test_an_unknown_memory_kind_is_refused_and_the_known_ones_are_named(device: tg.Device, queue: tg.Queue) -> None:
    for allocate in (queue.allocate, device.allocate):
        with pytest.raises(tg.InvalidArgumentError, match=r"device.*host.*shared"):
            allocate(16, memory="attic")  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [-1, -(2**40)])
def test_a_negative_size_is_refused(device: tg.Device, queue: tg.Queue, nbytes: int) -> None:
    semaphore = tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError):
        queue.allocate(nbytes, signal=semaphore.at(1))
    with pytest.raises(tg.InvalidArgumentError):
        device.allocate(nbytes)
    queue.barrier(signal=semaphore.at(1)).wait(LIMIT)


@pytest.mark.needs("work")
@pytest.mark.rules("M22", "M23", "M27")
def test_a_zero_size_buffer_lives_like_any_other(device: tg.Device, queue: tg.Queue) -> None:
    buffer = queue.allocate(0)
    ready(buffer).wait(LIMIT)
    queue.fill(buffer, 1).wait(LIMIT)
    assert buffer.nbytes == 0
    assert buffer.read(timeout=LIMIT) == b""
    queue.free(buffer).wait(LIMIT)
    with pytest.raises(tg.FailedPreconditionError):
        queue.fill(buffer, 1)
    with device.allocate(0, memory="shared").map("rw") as mapped:
        assert mapped.size == 0


# Free


@pytest.mark.needs("work")
@pytest.mark.rules("M23")
def test_every_use_after_a_free_is_refused(device: tg.Device, queue: tg.Queue) -> None:
    buffer = queue.allocate(64, memory="shared")
    other = device.allocate(64)
    queue.fill(buffer, 1, wait=buffer.ready).wait(LIMIT)
    span = buffer.subspan(0, 8)
    queue.free(buffer).wait(LIMIT)
    semaphore = tg.Semaphore()
    point = semaphore.at(1)
    uses: list[Callable[[], object]] = [
        lambda: queue.fill(buffer, 1, signal=point),
        lambda: queue.fill(span, 1, signal=point),
        lambda: queue.update(buffer, b"x", signal=point),
        lambda: queue.upload(np.zeros(4, np.uint8), buffer, signal=point),
        lambda: queue.copy(buffer, other, signal=point),
        lambda: queue.copy(other, buffer, signal=point),
        lambda: queue.download(buffer, signal=point),
        lambda: queue.free(buffer, signal=point),
        lambda: buffer.read(timeout=LIMIT),
        lambda: buffer.to_numpy(np.uint8, timeout=LIMIT),
        lambda: buffer.write(b"x"),
        lambda: buffer.map("r").__enter__(),
        lambda: span.read(timeout=LIMIT),
    ]
    for use in uses:
        with pytest.raises(tg.FailedPreconditionError):
            use()
    assert semaphore.value == 0
    queue.barrier(signal=point).wait(LIMIT)


@pytest.mark.needs("work")
@pytest.mark.rules("M23")
def test_a_free_takes_effect_when_its_wait_is_met_and_not_before(device: tg.Device, queue: tg.Queue) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    buffer = queue.allocate(64)
    queue.fill(buffer, 5, wait=buffer.ready).wait(LIMIT)
    allocated = device.statistics().allocated_bytes
    free = queue.free(buffer, wait=gate.at(1), signal=done.at(1))
    queue.fill(buffer, 6).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == b"\x06" * 64
    assert device.statistics().allocated_bytes == allocated
    assert done.value == 0
    gate.signal(1)
    free.wait(LIMIT)
    done.wait(1, LIMIT)
    assert device.statistics().allocated_bytes < allocated


@pytest.mark.needs("work")
@pytest.mark.rules("M16", "M23")
def test_held_work_that_comes_after_the_free_in_time_fails(device: tg.Device, queue: tg.Queue) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    buffer = queue.allocate(64)
    ready(buffer).wait(LIMIT)
    late = queue.fill(buffer, 1, wait=gate.at(1), signal=done.at(1))
    queue.free(buffer).wait(LIMIT)
    gate.signal(1)
    assert_fails_with(late, tg.FailedPreconditionError)
    assert isinstance(done.failure, tg.FailedPreconditionError)


@pytest.mark.needs("work")
@pytest.mark.rules("M17", "M23")
def test_a_free_whose_wait_fails_leaves_the_buffer_there(device: tg.Device, queue: tg.Queue) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    buffer = queue.allocate(64)
    queue.fill(buffer, 5, wait=buffer.ready).wait(LIMIT)
    free = queue.free(buffer, wait=gate.at(1), signal=done.at(1))
    error = ValueError("stay")
    gate.fail(error)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        free.wait(LIMIT)
    assert caught.value.__cause__ is error
    assert done.failure is error
    assert buffer.read(timeout=LIMIT) == b"\x05" * 64
    queue.fill(buffer, 6).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == b"\x06" * 64
    queue.free(buffer).wait(LIMIT)


@pytest.mark.needs("work")
@pytest.mark.rules("M21", "M23")
def test_a_cancelled_free_leaves_the_buffer_there(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    buffer = queue.allocate(64)
    queue.fill(buffer, 5, wait=buffer.ready).wait(LIMIT)
    assert queue.free(buffer, wait=gate.at(1)).cancel()
    gate.signal(1)
    queue.barrier().wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == b"\x05" * 64
    queue.free(buffer).wait(LIMIT)


@pytest.mark.rules("M23")
def test_a_second_free_while_one_is_held_fails_its_signals_and_the_first_goes_on(
    device: tg.Device, queue: tg.Queue
) -> None:
    gate, first_done, second_done = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    buffer = queue.allocate(64)
    ready(buffer).wait(LIMIT)
    first = queue.free(buffer, wait=gate.at(1), signal=first_done.at(1))
    second = queue.free(buffer, signal=second_done.at(1))
    assert_fails_with(second, tg.FailedPreconditionError)
    with pytest.raises(tg.SemaphoreFailedError):
        second_done.wait(1, LIMIT)
    assert not first.done
    gate.signal(1)
    first.wait(LIMIT)
    assert first_done.value == 1


@pytest.mark.rules("M22", "M23")
def test_freeing_before_the_allocation_is_committed_waits_for_it_when_told_to(
    device: tg.Device, queue: tg.Queue
) -> None:
    before = device.statistics().allocated_bytes
    gate = tg.Semaphore()
    buffer = queue.allocate(MIB, wait=gate.at(1))
    filled = queue.fill(buffer, 1, wait=buffer.ready)
    free = queue.free(buffer, wait=filled)
    assert not free.done
    gate.signal(1)
    free.wait(LIMIT)
    assert device.statistics().allocated_bytes == before


@pytest.mark.needs("work")
@pytest.mark.rules("M23", "M24")
def test_freed_memory_is_never_handed_out_while_it_is_still_in_use(
    device: tg.Device, queue: tg.Queue, second_queue: tg.Queue
) -> None:
    """Neighbours allocate as fast as they can while one buffer's free is still held."""
    gate = tg.Semaphore()
    kept = queue.allocate(64 * 1024)
    queue.fill(kept, 1, wait=kept.ready).wait(LIMIT)
    free = queue.free(kept, wait=gate.at(1))
    for round_ in range(20):
        other = second_queue.allocate(64 * 1024)
        filled = second_queue.fill(other, 100 + round_, wait=other.ready)
        second_queue.free(other, wait=filled).wait(LIMIT)
    assert kept.read(timeout=LIMIT) == b"\x01" * 65536
    gate.signal(1)
    free.wait(LIMIT)


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
@pytest.mark.usefixtures("frantic_switching")
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


# Pools


@pytest.mark.rules("M24")
def test_immediate_allocation_and_closing_never_wait_for_work(device: tg.Device, queue: tg.Queue, latch: Latch) -> None:
    blocked = latch.block(queue)
    latch.wait_until_running()
    for _ in range(50):
        device.allocate(64 * 1024).close()
    assert not blocked.done
    latch.open()
    blocked.wait(LIMIT)


@pytest.mark.needs("work")
@pytest.mark.rules("M24")
def test_queue_ordered_and_immediate_memory_come_from_the_same_pools(device: tg.Device, queue: tg.Queue) -> None:
    buffer = queue.allocate(MIB)
    ready(buffer).wait(LIMIT)
    queue.free(buffer).wait(LIMIT)
    pooled = device.statistics()
    immediate = device.allocate(MIB)
    now = device.statistics()
    assert now.reuses == pooled.reuses + 1
    assert now.reserved_bytes == pooled.reserved_bytes
    immediate.close()


@pytest.mark.needs("work")
@pytest.mark.rules("M24")
def test_the_statistics_add_up_and_trim_gives_the_pooled_bytes_back(device: tg.Device, queue: tg.Queue) -> None:
    start = device.statistics()
    buffers = [device.allocate(n) for n in (1000, 65536, MIB)]
    grown = device.statistics()
    assert grown.allocated_bytes - start.allocated_bytes >= 1000 + 65536 + MIB
    assert grown.allocations - start.allocations == 3
    assert grown.peak_bytes >= grown.allocated_bytes
    assert grown.reserved_bytes == grown.allocated_bytes + grown.pooled_bytes
    for buffer in buffers:
        buffer.close()
    idle = device.statistics()
    assert idle.allocated_bytes == start.allocated_bytes
    assert idle.reserved_bytes == idle.allocated_bytes + idle.pooled_bytes
    device.trim()
    assert device.statistics().pooled_bytes == 0
    assert device.statistics().peak_bytes >= grown.allocated_bytes


@pytest.mark.needs("work")
@pytest.mark.rules("M24")
def test_trim_leaves_living_buffers_alone(device: tg.Device, queue: tg.Queue) -> None:
    kept = device.upload(np.full(100_000, 9, np.uint8))
    device.allocate(100_000).close()
    device.trim()
    assert kept.read(timeout=LIMIT) == b"\x09" * 100_000


@pytest.mark.needs("budget")
@pytest.mark.rules("M18", "M24")
def test_a_dropped_buffer_makes_room_for_the_next(small_device: tg.Device) -> None:
    queue = small_device.queue()
    for _ in range(20):
        buffer = small_device.allocate(3 * MIB)
        queue.fill(buffer, 1).wait(LIMIT)
        del buffer
        gc.collect()


@pytest.mark.needs("budget")
@pytest.mark.rules("M22", "M24")
def test_a_pool_of_its_own_has_a_budget_of_its_own(device: tg.Device, queue: tg.Queue) -> None:
    pool = device.create_pool(2 * MIB, label="small")
    first = queue.allocate(MIB, pool=pool)
    ready(first).wait(LIMIT)
    assert_fails_with(ready(queue.allocate(2 * MIB, pool=pool)), tg.ResourceExhaustedError)
    ready(queue.allocate(2 * MIB)).wait(LIMIT)
    queue.free(first).wait(LIMIT)
    ready(queue.allocate(2 * MIB, pool=pool)).wait(LIMIT)


# Kinds


@pytest.mark.needs("work")
@pytest.mark.rules("M25")
@pytest.mark.parametrize("memory", ["host", "shared"])
def test_host_visible_memory_maps_and_the_device_sees_what_was_written(
    device: tg.Device, queue: tg.Queue, memory: MemoryKind
) -> None:
    buffer = device.allocate(4096, memory=memory)
    target = device.allocate(4096)
    with buffer.map("w") as mapped:
        mapped[:] = np.arange(4096) % 251
    queue.copy(buffer, target).wait(LIMIT)
    assert np.array_equal(target.to_numpy(np.uint8, timeout=LIMIT), np.arange(4096) % 251)


@pytest.mark.needs("work")
@pytest.mark.rules("M25")
def test_the_host_sees_what_the_device_wrote_to_shared_memory(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.allocate(4096, memory="shared")
    queue.fill(buffer, b"\x01\x02").wait(LIMIT)
    with buffer.map("r", timeout=LIMIT) as mapped:
        assert mapped.tobytes() == b"\x01\x02" * 2048


@pytest.mark.needs("work", "map_device")
@pytest.mark.rules("M25")
def test_device_memory_can_be_mapped_where_the_host_sees_it(device: tg.Device) -> None:
    buffer = device.upload(np.full(64, 3, np.uint8))
    with buffer.map("r", timeout=LIMIT) as mapped:
        assert mapped.tobytes() == b"\x03" * 64


@pytest.mark.needs("work")
@pytest.mark.rules("M25")
def test_mapping_device_memory_is_unsupported_where_the_host_does_not_see_it(
    device: tg.Device, subject: Subject
) -> None:
    if "map_device" not in subject.lacks:
        pytest.skip("the host sees this device's memory")
    buffer = device.upload(np.full(64, 3, np.uint8), label="far away")
    with pytest.raises(tg.UnsupportedError, match="far away"), buffer.map("r", timeout=LIMIT):
        pass
    assert buffer.read(timeout=LIMIT) == b"\x03" * 64


@pytest.mark.needs("work")
@pytest.mark.rules("M25")
@pytest.mark.parametrize("memory", ["device", "host", "shared"])
def test_every_memory_kind_serves_every_transfer(device: tg.Device, queue: tg.Queue, memory: MemoryKind) -> None:
    first = queue.allocate(256, memory=memory)
    second = queue.allocate(256, memory=memory)
    filled = queue.fill(first, 1, wait=first.ready)
    updated = queue.update(first, b"update", offset=10, wait=filled)
    uploaded = queue.upload(np.full(8, 2, np.uint8), first, offset=100, wait=updated)
    copied = queue.copy(first, second, wait=[uploaded, ready(second)])
    expected = np.full(256, 1, np.uint8)
    expected[10:16] = np.frombuffer(b"update", np.uint8)
    expected[100:108] = 2
    assert np.array_equal(queue.download(second, wait=copied).result(LIMIT), expected)
    assert second.read(timeout=LIMIT) == expected.tobytes()
    second.write(b"host", offset=250)
    assert second.read(timeout=LIMIT)[250:254] == b"host"


@pytest.mark.needs("work")
@pytest.mark.rules("M18", "M25")
def test_a_mapped_array_keeps_its_storage_alive(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.allocate(64 * 1024, memory="shared")
    with buffer.map("rw") as mapped:
        mapped[:] = 7
        kept = mapped
    buffer.close()
    del buffer, mapped
    gc.collect()
    for value in range(20):
        other = device.allocate(64 * 1024, memory="shared")
        queue.fill(other, 100 + value).wait(LIMIT)
        other.close()
    device.trim()
    assert set(kept.tolist()) == {7}
