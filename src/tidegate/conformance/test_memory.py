"""Pools and memory kinds."""

import gc
from typing import Literal

import numpy as np
import pytest

import tidegate as tg

from .buffers import MIB, ready
from .latches import LIMIT, Latch
from .subjects import Subject
from .witnesses import assert_fails_with

MemoryKind = Literal["device", "host", "shared"]

pytestmark = pytest.mark.rules("M22")


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
