"""Buffers and heaps of the simulated Metal."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from .workbench import COMPLETED, PRIVATE, SHARED, Workbench

WRITE_COMBINED, UNTRACKED, TRACKED = 1, 256, 512


def heap(bench: Workbench, size: int = 4096, options: int = PRIVATE, kind: int = 0) -> Any:
    descriptor = bench.metal.MTLHeapDescriptor.alloc().init()
    descriptor.setSize_(size)
    descriptor.setResourceOptions_(options)
    descriptor.setType_(kind)
    return bench.device.newHeapWithDescriptor_(descriptor)


def test_a_fresh_buffer_of_a_device_is_zero(bench: Workbench) -> None:
    """Rule zeroed."""
    assert not bytes(bench.buffer(4096).contents().as_buffer(4096)).strip(b"\0")


def test_fresh_memory_of_a_heap_is_whatever_the_seed_says() -> None:
    """Choice heap-contents."""
    found = set()
    for seed in range(5):
        bench = Workbench(seed=seed)
        buffer = heap(bench, options=SHARED).newBufferWithLength_options_(4, SHARED)
        found.add(bytes(buffer.contents().as_buffer(4)))
        bench.close()
    assert len(found) > 2


def test_the_host_writes_and_reads_shared_memory(bench: Workbench) -> None:
    buffer = bench.buffer(16, SHARED | WRITE_COMBINED)
    bench.words(buffer)[:] = [1, 2, 3, 4]
    assert bench.words(buffer).tolist() == [1, 2, 3, 4]
    assert (buffer.storageMode(), buffer.cpuCacheMode(), buffer.length()) == (0, 1, 16)


def test_the_contents_of_private_memory_are_null(bench: Workbench) -> None:
    """Rule private-contents."""
    assert bench.buffer(16, PRIVATE).contents() is None


def test_no_more_is_seen_than_there_is(bench: Workbench) -> None:
    with pytest.raises(ValueError, match="17 bytes of a buffer that has 16"):
        bench.buffer(16).contents().as_buffer(17)


def test_the_bytes_of_a_released_buffer_are_overwritten(bench: Workbench) -> None:
    buffer = bench.buffer(16)
    view = buffer.contents().as_buffer(16)
    del buffer
    assert set(bytes(view)) == {0xDD}


@pytest.mark.parametrize("length", [0, 4097])
def test_a_buffer_has_a_byte_and_not_too_many(length: int) -> None:
    """Rule buffer-length."""
    bench = Workbench(max_buffer=4096)
    with bench.breaks("buffer-length"):
        bench.buffer(length)
    bench.close()


def test_memory_is_bounded_and_comes_back() -> None:
    bench = Workbench(memory=8192)
    first, second = bench.buffer(4096), bench.buffer(4096)
    assert bench.buffer(1) is None
    assert heap(bench, 1) is None
    assert bench.device.currentAllocatedSize() == 8192
    del first
    assert bench.device.currentAllocatedSize() == 4096
    assert bench.buffer(4096) is not None
    assert second is not None
    bench.close()


def test_memory_used_by_the_gpu_comes_back_too() -> None:
    bench = Workbench(memory=8192)
    for _ in range(5):
        bench.fill(bench.buffer(4096), 1).waitUntilCompleted()
    assert bench.device.currentAllocatedSize() == 0
    bench.close()


def test_an_allocation_can_be_made_to_fail(bench: Workbench) -> None:
    bench.metal.fault("allocation", count=2)
    assert bench.buffer(16) is None
    assert heap(bench) is None
    assert bench.buffer(16) is not None


def pages(count: int) -> Any:
    return np.frombuffer(mmap.mmap(-1, count * mmap.PAGESIZE), np.uint8)


def test_host_memory_is_used_without_a_copy(bench: Workbench) -> None:
    array = pages(1)
    buffer = bench.device.newBufferWithBytesNoCopy_length_options_deallocator_(array, len(array), SHARED, None)
    bench.fill(buffer, 3).waitUntilCompleted()
    assert set(array) == {3}
    assert bench.device.currentAllocatedSize() == 0
    del buffer
    assert set(array) == {3}


def test_host_memory_is_whole_pages(bench: Workbench) -> None:
    """Rule no-copy."""
    array, make = pages(2), bench.device.newBufferWithBytesNoCopy_length_options_deallocator_
    with bench.breaks("no-copy"):
        make(array, 100, SHARED, None)
    with bench.breaks("no-copy"):
        make(array[16:], mmap.PAGESIZE, SHARED, None)
    with bench.breaks("no-copy"):
        make(array, mmap.PAGESIZE, PRIVATE, None)


def test_the_deallocator_runs_when_the_buffer_goes(bench: Workbench) -> None:
    array, seen = pages(1), []
    buffer = bench.device.newBufferWithBytesNoCopy_length_options_deallocator_(
        array, len(array), SHARED, lambda pointer, length: seen.append(length)
    )
    assert seen == []
    del buffer
    assert seen == [mmap.PAGESIZE]


def test_bytes_are_copied_into_a_buffer(bench: Workbench) -> None:
    buffer = bench.device.newBufferWithBytes_length_options_(b"12345678", 4, SHARED)
    assert bytes(buffer.contents().as_buffer(4)) == b"1234"


def test_a_buffer_of_a_heap_has_its_modes(bench: Workbench) -> None:
    """Rule heap-options."""
    made = heap(bench, options=PRIVATE | TRACKED)
    for options in (SHARED, PRIVATE | WRITE_COMBINED):
        with bench.breaks("heap-options"):
            made.newBufferWithLength_options_(16, options)
    assert made.newBufferWithLength_options_(16, PRIVATE).heap() is made
    for options in (PRIVATE, PRIVATE | TRACKED, PRIVATE | UNTRACKED):
        assert made.newBufferWithLength_options_(16, options).hazardTrackingMode() == 2


def test_heaps_are_untracked_unless_asked_and_devices_track(bench: Workbench) -> None:
    assert heap(bench).hazardTrackingMode() == 1
    assert heap(bench).newBufferWithLength_options_(16, PRIVATE).hazardTrackingMode() == 1
    assert bench.buffer(16).hazardTrackingMode() == 2
    assert bench.buffer(16, UNTRACKED).hazardTrackingMode() == 1


def test_a_heap_serves_what_fits_and_takes_back_what_is_released(bench: Workbench) -> None:
    made = heap(bench, 1024)
    buffers = [made.newBufferWithLength_options_(256, PRIVATE) for _ in range(4)]
    assert len({buffer.gpuAddress() for buffer in buffers}) == 4
    assert made.newBufferWithLength_options_(1, PRIVATE) is None
    assert (made.usedSize(), made.maxAvailableSizeWithAlignment_(256)) == (1024, 0)
    del buffers[1:3]
    assert (made.usedSize(), made.maxAvailableSizeWithAlignment_(256)) == (512, 512)
    again = made.newBufferWithLength_options_(512, PRIVATE)
    assert again.heapOffset() == 256


def test_a_heap_asks_for_more_than_the_length(bench: Workbench) -> None:
    assert bench.device.heapBufferSizeAndAlignWithLength_options_(1, PRIVATE) == (256, 256)


def test_an_empty_or_managed_heap_is_refused(bench: Workbench) -> None:
    """Rule heap-descriptor."""
    with bench.breaks("heap-descriptor"):
        heap(bench, 0)
    with bench.breaks("heap-descriptor"):
        heap(bench, options=16)


def test_the_caller_places_the_buffers_of_a_placement_heap(bench: Workbench) -> None:
    """Rule heap-placement."""
    made = heap(bench, 1024, SHARED, kind=1)
    first = made.newBufferWithLength_options_offset_(512, SHARED, 0)
    second = made.newBufferWithLength_options_offset_(512, SHARED, 256)
    bench.words(first)[64] = 7
    assert bench.words(second)[0] == 7
    for length, offset in ((16, 8), (16, 1024), (512, 768)):
        with bench.breaks("heap-placement"):
            made.newBufferWithLength_options_offset_(length, SHARED, offset)
    with bench.breaks("heap-placement"):
        made.newBufferWithLength_options_(16, SHARED)
    with bench.breaks("heap-placement"):
        heap(bench).newBufferWithLength_options_offset_(16, PRIVATE, 0)


def test_an_aliasable_buffer_gives_its_place_away_and_is_not_used(bench: Workbench) -> None:
    """Rule aliasable."""
    made = heap(bench, 256)
    first = made.newBufferWithLength_options_(256, PRIVATE)
    first.makeAliasable()
    assert first.isAliasable()
    second = made.newBufferWithLength_options_(256, PRIVATE)
    assert second.heapOffset() == first.heapOffset()
    encoder = bench.blit(bench.commands())
    with bench.breaks("aliasable"):
        encoder.fillBuffer_range_value_(first, (0, 256), 1)
    encoder.endEncoding()
    del first
    assert made.newBufferWithLength_options_(256, PRIVATE) is None
    with bench.breaks("aliasable"):
        bench.buffer(16).makeAliasable()


def test_a_heap_outlives_its_handle_while_a_buffer_lives(bench: Workbench) -> None:
    buffer = heap(bench, 4096, SHARED).newBufferWithLength_options_(16, SHARED)
    commands = bench.fill(buffer, 1)
    commands.waitUntilCompleted()
    assert commands.status() == COMPLETED
    assert set(bytes(buffer.contents().as_buffer(16))) == {1}
    assert bench.device.currentAllocatedSize() == 4096
    del buffer
    assert bench.device.currentAllocatedSize() == 0
