"""Allocating and freeing in queue order."""

from collections.abc import Callable

import numpy as np
import pytest

import tidegate as tg

from .buffers import MIB, ready
from .latches import LIMIT
from .witnesses import assert_fails_with

pytestmark = pytest.mark.rules("M22")


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
