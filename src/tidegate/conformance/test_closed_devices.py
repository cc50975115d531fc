"""What is left of a closed device: nothing that it does not have to keep (M18, M35)."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest

import tidegate as tg

from .buffers import MIB
from .latches import LIMIT
from .subjects import Subject

pytestmark = pytest.mark.rules("M18", "M35")


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Have things go with their last reference or not at all."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def used(device: tg.Device) -> tg.Submission:
    """Allocate, work, free; by a pool of the user's too. The submission is all that is left."""
    queue = device.queue()
    pool = device.create_pool()
    buffer = device.allocate(MIB)
    other = queue.allocate(MIB, pool=pool)
    queue.fill(other, 1, wait=other.ready).wait(LIMIT)
    submission = queue.fill(buffer, 1)
    queue.download(buffer, np.empty(MIB, np.uint8), wait=submission).wait(LIMIT)
    buffer.close()
    return submission


def test_a_closed_device_keeps_no_memory_for_reuse(subject: Subject) -> None:
    device = subject.open_device()
    kept = used(device)
    device.close(LIMIT)
    statistics = device.statistics()
    assert (statistics.allocated_bytes, statistics.pooled_bytes) == (0, 0)
    assert kept.done


def test_a_buffer_that_outlives_its_device_gives_its_memory_back_when_it_goes(
    subject: Subject, partner_device: tg.Device
) -> None:
    device = subject.open_device()
    buffer = device.allocate(MIB)
    device.queue().fill(buffer, 1).wait(LIMIT)
    device.close(LIMIT)
    del buffer
    for _ in range(int(LIMIT * 100)):  # it may be given back by another thread, which gets its turn here
        statistics = device.statistics()
        if not statistics.reserved_bytes:
            break
        partner_device.queue().host_call(int).wait(LIMIT)
    assert (statistics.allocated_bytes, statistics.pooled_bytes) == (0, 0)


@pytest.mark.slow
def test_devices_can_be_opened_and_closed_for_ever_although_their_submissions_are_kept(subject: Subject) -> None:
    kept = []
    for _ in range(80):
        device = subject.open_device()
        kept.append(device.queue().fill(device.allocate(128 * MIB), 1, length=64))
        device.close(LIMIT)
    assert all(submission.done for submission in kept)


@pytest.mark.parametrize("left", ["nothing", "a queue that was used", "a lane that was used"])
def test_a_closed_device_goes_with_the_last_reference_to_it(subject: Subject, no_collector: None, left: str) -> None:
    device = subject.open_device()
    reference = weakref.ref(device)
    gone = threading.Event()
    weakref.finalize(device, gone.set)
    used(device)
    lane = device.lane()
    lane.barrier()
    kept: list[object] = []
    if left == "a queue that was used":
        kept.append(device.queue())
    if left == "a lane that was used":
        kept.append(lane)
    device.close(LIMIT)
    del device, lane
    assert bool(kept) == (reference() is not None)
    kept.clear()
    assert gone.wait(LIMIT), gc.get_referrers(reference())


class Token:
    """Something that a host call is given."""


class Unreadable:
    """A file whose read fails."""

    closed = False

    def readable(self) -> bool:
        return True

    def seek(self, at: int, whence: int = 0) -> int:
        return at

    def read(self, count: int) -> bytes:
        raise OSError(f"{count} bytes cannot be read")


@pytest.mark.rules("M7", "M18")
@pytest.mark.parametrize(
    "failing", ["a host call", "a file", pytest.param("a kernel", marks=pytest.mark.needs("fault"))]
)
def test_an_error_that_is_kept_keeps_nothing_else(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, no_collector: None, failing: str
) -> None:
    token, gone = Token(), threading.Event()
    weakref.finalize(token, gone.set)
    buffer = device.allocate(16)
    buffer_gone = weakref.ref(buffer)

    def fail(_token: Token, _buffer: tg.Buffer) -> None:
        raise ValueError("on purpose")

    if failing == "a host call":
        submission = queue.host_call(fail, token, buffer)
    elif failing == "a file":
        file = Unreadable()
        file.token = token  # type: ignore[attr-defined]
        submission = queue.read_file(file, buffer, length=16)  # type: ignore[arg-type]
        del file
    else:
        submission = queue.dispatch(kernels.load(device, kernels.fault), (1, 1, 1))
    del token, buffer
    with pytest.raises(tg.SemaphoreFailedError):
        submission.wait(LIMIT)
    error = submission.error
    assert error is not None
    assert gone.wait(LIMIT), "it keeps what the work was given"
    kept = weakref.ref(submission)
    del submission
    for _ in range(int(LIMIT * 100)):  # the thread that ended it may have it a moment longer
        if kept() is None and buffer_gone() is None:
            break
        queue.host_call(int).wait(LIMIT)
    assert kept() is None, "it keeps its submission"
    assert buffer_gone() is None, "it keeps a buffer"


def test_what_is_left_of_a_closed_device_still_tells_what_it_was(subject: Subject) -> None:
    device = subject.open_device(label="spent")
    buffer = device.allocate(16, label="kept")
    submission = device.queue().fill(buffer, 1)
    queue = device.queue()
    device.close(LIMIT)
    assert (device.health, device.label, device.queues) == (tg.Health.CLOSED, "spent", ())
    assert "spent" in repr(device)
    assert buffer.ready.done
    assert (submission.done, submission.error) == (True, None)
    assert submission.queue is queue
    for use in refused_uses(device, queue, buffer):
        with pytest.raises(tg.ClosedError):
            use()


def refused_uses(device: tg.Device, queue: tg.Queue, buffer: tg.Buffer) -> list[Callable[[], object]]:
    """What nobody can do with a closed device."""
    return [
        lambda: queue.fill(buffer, 2),
        lambda: buffer.ready.queue.fill(buffer, 2),
        lambda: queue.allocate(16),
        queue.barrier,
        device.queue,
        device.lane,
        device.trim,
        lambda: device.allocate(16),
        buffer.read,
    ]
