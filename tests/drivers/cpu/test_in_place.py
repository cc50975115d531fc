"""Where the CPU device does its work: the smallest in the call, somewhat larger work also by those who wait (M34)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance.latches import LIMIT, Latch, block_by_python_kernel

SMALL = 4096
#: Too much to be done in place, and little enough for a thread that waits.
MEDIUM = 64 * 1024

OPERATIONS = {
    "barrier": lambda queue, source, target: queue.barrier(),
    "fill": lambda queue, source, target: queue.fill(target, 1),
    "update": lambda queue, source, target: queue.update(target, b"1234"),
    "upload": lambda queue, source, target: queue.upload(np.zeros(source.nbytes, np.uint8), target),
    "download": lambda queue, source, target: queue.download(source),
    "copy": lambda queue, source, target: queue.copy(source, target),
    "allocate": lambda queue, source, target: queue.allocate(SMALL).ready,
}
TRANSFERS = [name for name in OPERATIONS if name not in ("barrier", "update", "allocate")]
Operation = Callable[[tg.Queue, tg.Buffer, tg.Buffer], tg.Submission]


@pytest.fixture
def device() -> Iterator[tg.Device]:
    """A device whose only worker never comes: it is inside of a kernel."""
    device = tg.open_device("cpu?workers=1")
    latch = Latch(block_by_python_kernel)
    latch.block(device.queue())
    latch.wait_until_running()
    yield device
    latch.open_all()
    device.close(LIMIT)


def submit(device: tg.Device, name: str, size: int) -> tg.Submission:
    """Submit an operation over buffers of this size."""
    source, target = device.allocate(size), device.allocate(size)
    return OPERATIONS[name](device.queue(), source, target)


@pytest.mark.parametrize("name", OPERATIONS)
def test_small_work_is_over_when_the_call_returns(device: tg.Device, name: str) -> None:
    assert submit(device, name, SMALL).done


@pytest.mark.parametrize("name", TRANSFERS)
def test_somewhat_larger_work_is_done_by_a_thread_that_waits(device: tg.Device, name: str) -> None:
    work = submit(device, name, MEDIUM)
    assert not work.done
    work.wait(LIMIT)


@pytest.mark.parametrize("name", TRANSFERS)
def test_somewhat_larger_work_is_done_by_a_poll(device: tg.Device, name: str) -> None:
    work = submit(device, name, MEDIUM)
    assert tg.wait_any([tg.Semaphore().at(1), work], timeout=0) is work
