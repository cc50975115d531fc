"""Memory: storage modes, heaps, budgets, and host memory without a copy."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import tidegate as tg
from tidegate.drivers.block_pool import size_class
from tidegate.drivers.metal import heaps
from tidegate.drivers.metal.memory import PAGE, MetalPool, MetalStorage

from .driver_bench import LIMIT, DriverBench


def storage_of(buffer: tg.Buffer) -> MetalStorage:
    storage = buffer.locate()[0]
    assert isinstance(storage, MetalStorage)
    return storage


@pytest.mark.parametrize(("memory", "mode", "cache"), [("device", 2, 0), ("host", 0, 1), ("shared", 0, 0)])
def test_each_kind_has_its_storage_and_cache_mode(
    metal: DriverBench, memory: tg.MemoryKind, mode: int, cache: int
) -> None:
    native = storage_of(metal.device.allocate(1000, memory=memory)).buffer
    assert (native.storageMode(), native.cpuCacheMode()) == (mode, cache)
    assert native.hazardTrackingMode() == 2


def test_small_private_buffers_come_from_heaps_and_large_ones_stand_alone(metal: DriverBench) -> None:
    small = [metal.device.allocate(1000) for _ in range(20)]
    assert {storage_of(buffer).buffer.heap() for buffer in small} == set(metal.inner.default_pool._heaps._heaps)
    assert len(metal.inner.default_pool._heaps._heaps) == 1
    assert storage_of(metal.device.allocate(heaps.LARGE)).buffer.heap() is None
    assert storage_of(metal.device.allocate(64, memory="shared")).buffer.heap() is None


def test_a_full_heap_is_followed_by_another(metal: DriverBench) -> None:
    kept = [metal.device.allocate(heaps.LARGE // 2) for _ in range(10)]
    assert len(metal.inner.default_pool._heaps._heaps) > 1
    assert len({id(storage_of(buffer).buffer) for buffer in kept}) == 10


def test_trim_gives_back_the_heaps_in_which_nothing_is_left(metal: DriverBench) -> None:
    buffers = [metal.device.allocate(1000) for _ in range(5)]
    metal.device.trim()
    assert len(metal.inner.default_pool._heaps._heaps) == 1
    del buffers
    metal.device.trim()
    assert not metal.inner.default_pool._heaps._heaps
    assert metal.device.statistics().reserved_bytes == 0


def test_a_small_budget_takes_no_heap_which_would_exceed_it() -> None:
    bench = DriverBench(uri="metal-simulated?memory=1MiB")
    assert storage_of(bench.device.allocate(1000)).buffer.heap() is None
    bench.close()


def test_no_heap_from_metal_is_no_reason_to_fail(metal: DriverBench) -> None:
    metal.native.fault("allocation", count=1)
    assert storage_of(metal.device.allocate(1000)).buffer.heap() is None


def test_no_memory_from_metal_gives_up_what_is_kept_before_it_fails(metal: DriverBench) -> None:
    kept = metal.device.allocate(4096, memory="shared")
    del kept
    assert metal.device.statistics().pooled_bytes == 4096
    metal.native.fault("allocation", count=1)
    served = metal.device.allocate(1000, memory="shared")
    assert metal.device.statistics().pooled_bytes == 0
    assert storage_of(served).buffer.length() == 1024
    metal.native.fault("allocation", count=4)  # two tries by the pool, and all of it once more by the device
    with pytest.raises(tg.ResourceExhaustedError, match="Metal has no more memory"):
        metal.device.allocate(9000, memory="shared")


def test_a_buffer_larger_than_metal_makes_is_refused_without_asking() -> None:
    bench = DriverBench(max_buffer=1 << 20)
    with pytest.raises(tg.ResourceExhaustedError, match="at most 1048576"):
        bench.device.allocate(2 << 20)
    bench.close()


def test_blocks_are_reused_by_kind_and_size(metal: DriverBench) -> None:
    first = storage_of(metal.device.allocate(1000, memory="shared")).buffer
    other = metal.device.allocate(1000, memory="host")
    again = storage_of(metal.device.allocate(1010, memory="shared")).buffer
    assert again is first
    assert storage_of(other).buffer is not first
    assert metal.device.statistics().reuses == 1


def test_the_pools_of_the_driver_itself_keep_only_so_much(metal: DriverBench) -> None:
    pool = MetalPool(metal.inner, None, keep=8192)
    kept = [pool.allocate(4096, "shared") for _ in range(3)]
    del kept
    assert pool.statistics()["pooled_bytes"] == 8192
    assert pool.statistics()["allocated_bytes"] == 0


def test_a_mapped_array_keeps_its_block_from_reuse(metal: DriverBench) -> None:
    buffer = metal.device.upload(np.full(256, 7, np.uint8), memory="shared")
    with buffer.map("r") as mapped:
        array = mapped
    del buffer, mapped
    other = metal.device.upload(np.full(256, 9, np.uint8), memory="shared")
    assert set(array.tolist()) == {7}
    assert other.read(timeout=LIMIT) == bytes([9]) * 256


def pages(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    memory = np.frombuffer(mmap.mmap(-1, (count + 1) * PAGE), np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + count * PAGE]


def test_whole_pages_of_host_memory_are_used_without_a_copy(metal: DriverBench) -> None:
    array = pages(2)
    array[:] = 3
    view = tg.from_dlpack(array, device=metal.device)
    metal.queue.fill(view.buffer, 8, offset=PAGE, length=4).wait(LIMIT)
    assert array[PAGE : PAGE + 5].tolist() == [8, 8, 8, 8, 3]
    target = metal.device.allocate(2 * PAGE)
    metal.queue.copy(view.buffer, target).wait(LIMIT)
    assert target.read(timeout=LIMIT) == array.tobytes()


def test_host_memory_that_is_not_whole_pages_is_refused_with_the_reason(metal: DriverBench) -> None:
    for array in (pages(2)[64 : PAGE + 64], pages(1)[: PAGE - 64]):
        with pytest.raises(tg.UnsupportedError, match=f"whole pages of {PAGE}"):
            tg.from_dlpack(array, device=metal.device)


def test_where_the_gpu_sees_host_memory_nothing_follows_a_download_before_the_host_has_copied(
    metal: DriverBench,
) -> None:
    """The array that a download fills is the very memory that the next command reads on the GPU."""
    array = pages(1)
    view = tg.from_dlpack(array, device=metal.device)
    source = metal.device.upload(np.full(PAGE, 5, np.uint8))
    target = metal.device.allocate(PAGE)
    latch = metal.latch()
    blocked = latch.block(metal.queue)
    downloaded = metal.queue.download(source, array, wait=blocked)
    copied = metal.queue.copy(view.buffer, target, wait=downloaded)
    assert downloaded.timeline is not None
    assert copied.timeline is None
    latch.open()
    copied.wait(LIMIT)
    assert set(target.read(timeout=LIMIT)) == {5}


@pytest.mark.parametrize("nbytes", [0, 1, 256, 257, 1000, 4096, 100_000, 2**20 + 1])
def test_a_size_class_holds_its_sizes_with_little_waste(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size <= max(256, nbytes + max(64, nbytes // 8))
    assert size_class(size) == size
