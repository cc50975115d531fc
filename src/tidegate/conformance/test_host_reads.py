"""Host reads follow the last submitted write.

A read with a timeout of 0 is a poll, so it tells without any race whether the read would have waited.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .buffers import GUARD, downloaded, guarded
from .latches import LIMIT
from .threads import background

pytestmark = [pytest.mark.rules("M26"), pytest.mark.needs("work")]


@pytest.mark.rules("M26")
def test_a_host_read_waits_for_a_held_write(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    gate = tg.Semaphore()
    queue.fill(buffer, 1, wait=gate.at(1))
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    with pytest.raises(tg.DeadlineExceededError):
        buffer.to_numpy(np.uint8, timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == b"\x01" * 16
    assert buffer.to_numpy(np.uint8, timeout=LIMIT).tolist() == [1] * 16


@pytest.mark.rules("M26")
@pytest.mark.parametrize("operation", ["fill", "update", "upload", "copy", "execute"])
def test_every_writing_operation_orders_a_host_read(device: tg.Device, queue: tg.Queue, operation: str) -> None:
    buffer = guarded(device, 16)
    data = np.full(16, 4, np.uint8)
    other = device.upload(data)
    with device.record() as commands:
        commands.copy(other, tg.slot(0))
    gate = tg.Semaphore()
    wait = gate.at(1)
    submission = {
        "fill": lambda: queue.fill(buffer, 4, wait=wait),
        "update": lambda: queue.update(buffer, data, wait=wait),
        "upload": lambda: queue.upload(data, buffer, wait=wait),
        "copy": lambda: queue.copy(other, buffer, wait=wait),
        "execute": lambda: queue.execute(commands, bindings=[buffer], wait=wait),
    }[operation]()
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == data.tobytes()
    assert submission.done


@pytest.mark.rules("M26")
def test_a_host_read_follows_the_write_submitted_last_and_not_the_one_that_ended_last(
    device: tg.Device, queue: tg.Queue
) -> None:
    buffer = guarded(device, 16)
    early, late = tg.Semaphore(), tg.Semaphore()
    first = queue.fill(buffer, 1, wait=early.at(1))
    queue.fill(buffer, 2, wait=[late.at(1), first])
    early.signal(1)
    first.wait(LIMIT)
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    late.signal(1)
    assert buffer.read(timeout=LIMIT) == b"\x02" * 16


@pytest.mark.rules("M26")
def test_reading_operations_and_free_do_not_delay_a_host_read(device: tg.Device, queue: tg.Queue) -> None:
    buffer, other = guarded(device, 16), guarded(device, 16)
    gate = tg.Semaphore()
    out = np.zeros(16, np.uint8)
    held = [
        queue.copy(buffer, other, wait=gate.at(1)),
        queue.download(buffer, out, wait=gate.at(1)),
    ]
    free = queue.free(buffer, wait=[gate.at(1), *held])
    assert buffer.read(timeout=LIMIT) == bytes([GUARD]) * 16
    gate.signal(1)
    free.wait(LIMIT)


@pytest.mark.rules("M26")
def test_a_write_through_a_subspan_orders_a_read_of_the_whole_and_the_other_way_round(
    device: tg.Device, queue: tg.Queue
) -> None:
    buffer = guarded(device, 16)
    gate = tg.Semaphore()
    queue.fill(buffer.subspan(8, 4), 1, wait=gate.at(1))
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == bytes([GUARD] * 8 + [1] * 4 + [GUARD] * 4)
    queue.fill(buffer, 2, wait=gate.at(2))
    with pytest.raises(tg.DeadlineExceededError):
        buffer.subspan(0, 4).read(timeout=0)
    gate.signal(2)
    assert buffer.subspan(0, 4).read(timeout=LIMIT) == b"\x02" * 4


@pytest.mark.rules("M17", "M26")
def test_a_host_read_after_a_failed_write_raises_its_cause(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    gate = tg.Semaphore()
    queue.fill(buffer, 1, wait=gate.at(1))
    error = ValueError("the gate broke")
    gate.fail(error)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        buffer.read(timeout=LIMIT)
    assert caught.value.__cause__ is error


@pytest.mark.rules("M22", "M26")
def test_a_host_read_waits_for_the_first_write_to_a_buffer_that_has_no_storage_yet(
    device: tg.Device, queue: tg.Queue
) -> None:
    gate = tg.Semaphore()
    buffer = queue.allocate(16, wait=gate.at(1))
    with pytest.raises(tg.FailedPreconditionError):
        buffer.read(timeout=0)
    queue.fill(buffer, 3, wait=buffer.ready)
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == b"\x03" * 16


@pytest.mark.rules("M26")
def test_a_host_read_inside_a_host_call_waits_for_nothing_by_default(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    gate = tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    assert queue.host_call(lambda: buffer.read(timeout=LIMIT)).result(LIMIT) == bytes([GUARD]) * 16
    gate.signal(1)
    held.wait(LIMIT)


@pytest.mark.rules("M10", "M26")
def test_a_host_read_inside_a_callback_waits_for_nothing_by_default(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.upload(np.full(16, GUARD, np.uint8), memory="shared")
    gate, bell = tg.Semaphore(), tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    found: list[bytes] = []
    bell.at(1).add_callback(lambda *_: found.append(buffer.read(timeout=LIMIT)))
    bell.signal(1)
    assert found == [bytes([GUARD]) * 16]
    gate.signal(1)
    held.wait(LIMIT)


@pytest.mark.rules("M5", "M26")
def test_a_blocked_host_read_is_woken_by_the_write_it_waits_for(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 300_000)
    gate = tg.Semaphore()
    queue.fill(buffer, 6, wait=gate.at(1))
    found: list[bytes] = []
    arrived = threading.Event()

    def read() -> None:
        arrived.set()
        found.append(buffer.read(timeout=LIMIT))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert arrived.wait(LIMIT)
    gate.signal(1)
    reader.join(LIMIT)
    assert found == [b"\x06" * 300_000]


class Once:
    """A timeout that is long when it is first looked at, and over by then."""

    def __init__(self) -> None:
        self.looked_at = threading.Event()

    def __float__(self) -> float:
        if self.looked_at.is_set():
            return 0.0
        self.looked_at.set()
        return LIMIT


@pytest.mark.rules("M8", "M26")
@pytest.mark.parametrize(
    "read",
    [
        lambda buffer, timeout: buffer.read(timeout=timeout),
        lambda buffer, timeout: buffer.to_numpy(np.uint8, 16, timeout=timeout).tobytes(),
    ],
    ids=["read", "to_numpy"],
)
def test_a_host_read_has_one_timeout_for_all_that_it_waits_for(
    device: tg.Device, queue: tg.Queue, read: Callable[[tg.Buffer, Any], bytes]
) -> None:
    """For the write before it, and for the bytes where the host cannot see them: it does not begin anew for these."""
    buffer, gate, timeout = guarded(device, 16), tg.Semaphore(), Once()
    queue.fill(buffer, 1, wait=gate.at(1))
    reader = background(read, buffer, timeout)
    assert timeout.looked_at.wait(LIMIT)
    gate.signal(1)
    assert reader.result() == b"\x01" * 16


@pytest.mark.rules("M8", "M26")
@pytest.mark.parametrize("timeout", [-1, float("nan"), -(2**70)])
def test_an_impossible_timeout_of_a_host_read_is_refused_whether_or_not_it_would_wait(
    device: tg.Device, queue: tg.Queue, timeout: float
) -> None:
    buffer = device.upload(np.full(16, GUARD, np.uint8), memory="shared")
    for _ in range(2):
        with pytest.raises(tg.InvalidArgumentError, match="timeout"):
            buffer.read(timeout=timeout)
        with pytest.raises(tg.InvalidArgumentError, match="timeout"), buffer.map(timeout=timeout):
            pass
        with pytest.raises(tg.InvalidArgumentError, match="timeout"), buffer.map(wait=(), timeout=timeout):
            pass
        held = queue.fill(buffer, 1, wait=tg.Semaphore(label="never").at(1))
    held.cancel()


@pytest.mark.rules("M26", "M27")
def test_a_host_write_is_seen_by_the_work_submitted_after_it(device: tg.Device, queue: tg.Queue) -> None:
    source, target = guarded(device, 32), guarded(device, 32)
    source.write(b"0123456789", offset=5)
    found = downloaded(queue, target, queue.copy(source, target))
    assert found.tobytes() == bytes([GUARD] * 5) + b"0123456789" + bytes([GUARD] * 17)


@pytest.mark.slow
@pytest.mark.rules("M18", "M23", "M26")
@pytest.mark.needs("work")
def test_memory_is_not_freed_below_a_host_access_that_was_given_up(device: tg.Device, queue: tg.Queue) -> None:
    """Who gave up a read has nothing to wait for by which a free could come after it."""
    for round_ in range(200):
        buffer = queue.allocate(1 << 16)
        filled = queue.fill(buffer, round_ % 256, wait=buffer.ready)
        filled.wait(LIMIT)
        with suppress(tg.DeadlineExceededError):
            buffer.read(timeout=1e-5)
        queue.free(buffer).wait(LIMIT)
    assert device.health is tg.Health.OK
