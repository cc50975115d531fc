"""Heaps: memory taken once, from which buffers are made without asking the system."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from .memory import MANAGED, MEMORYLESS, TRACKED, Block, Buffer, cache_of, storage_of, tracking_of
from .objects import Labelled, Metal

if TYPE_CHECKING:
    from .device import Device
    from .simulation import Simulation

__all__ = ["Heap", "HeapDescriptor"]

ALIGNMENT = 256
AUTOMATIC, PLACEMENT = 0, 1


class HeapDescriptor(Metal, registered="MTLHeapDescriptor"):
    """What a heap shall be."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._size = 0
        self._type = AUTOMATIC
        self._options = 32  # private storage is the default of heaps

    def setSize_(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def setType_(self, type: int) -> None:
        self._type = type

    def type(self) -> int:
        return self._type

    def setResourceOptions_(self, options: int) -> None:
        self._options = options

    def resourceOptions(self) -> int:
        return self._options

    def setStorageMode_(self, mode: int) -> None:
        self._options = self._options & ~0xF0 | mode << 4

    def storageMode(self) -> int:
        return storage_of(self._options)

    def setCpuCacheMode_(self, mode: int) -> None:
        self._options = self._options & ~0xF | mode

    def cpuCacheMode(self) -> int:
        return cache_of(self._options)

    def setHazardTrackingMode_(self, mode: int) -> None:
        self._options = self._options & ~0x300 | mode << 8

    def hazardTrackingMode(self) -> int:
        return tracking_of(self._options)


class Heap(Labelled, registered="MTLHeap"):
    """An MTLHeap, automatic or with placement by the caller."""

    def __init__(self, device: Device, descriptor: HeapDescriptor) -> None:
        super().__init__(device._simulation)
        self._device = device
        self._options = descriptor._options
        self._placed = descriptor._type == PLACEMENT
        self._size = descriptor._size
        storage = storage_of(self._options)
        self._simulation.demand(
            self._size > 0 and storage not in (MANAGED, MEMORYLESS),
            "heap-descriptor",
            f"a heap of {self._size} bytes with storage mode {storage}",
        )
        self._block = Block(self._simulation, device._account, self._size)
        self._used: dict[int, int] = {}
        self._returned: deque[tuple[int, int]] = deque()

    def device(self) -> Any:
        return self._device

    def size(self) -> int:
        return self._size

    def type(self) -> int:
        return PLACEMENT if self._placed else AUTOMATIC

    def storageMode(self) -> int:
        return storage_of(self._options)

    def cpuCacheMode(self) -> int:
        return cache_of(self._options)

    def resourceOptions(self) -> int:
        return self._options

    def hazardTrackingMode(self) -> int:
        return 2 if self._tracked else 1

    def usedSize(self) -> int:
        with self._simulation.lock:
            return sum(_rounded(length) for length in self._taken().values())

    def currentAllocatedSize(self) -> int:
        return self._size

    def setPurgeableState_(self, state: int) -> int:
        return 2

    def maxAvailableSizeWithAlignment_(self, alignment: int) -> int:
        with self._simulation.lock:
            return max((end - _up(start, alignment) for start, end in self._gaps()), default=0)

    def newBufferWithLength_options_(self, length: int, options: int) -> Buffer | None:
        self._simulation.demand(not self._placed, "heap-placement", f"{self!r}: a buffer without an offset")
        self._check_buffer(length, options)
        with self._simulation.lock:
            for start, end in self._gaps():
                if end - start >= length:
                    return self._make(start, length, options)
        return None

    def newBufferWithLength_options_offset_(self, length: int, options: int, offset: int) -> Buffer | None:
        self._simulation.demand(
            self._placed and offset % ALIGNMENT == 0 and offset + length <= self._size,
            "heap-placement",
            f"{self!r}: {length} bytes at offset {offset}",
        )
        self._check_buffer(length, options)
        with self._simulation.lock:
            return self._make(offset, length, options)

    def _check_buffer(self, length: int, options: int) -> None:
        demand = self._simulation.demand
        demand(length > 0, "buffer-length", f"{self!r}: a buffer of {length} bytes")
        same = storage_of(options) == storage_of(self._options) and cache_of(options) == cache_of(self._options)
        demand(same, "heap-options", f"{self!r}: options {options:#x}, the heap has {self._options:#x}")

    def _make(self, start: int, length: int, options: int) -> Buffer:
        if not self._placed:
            self._used[start] = length
            # What fresh memory of a heap holds is open.
            self._block.array[start : start + min(length, 1 << 16)] = self._simulation.random.randrange(256)
        return Buffer(self._device, self._block, start, length, options, self)

    def _return(self, start: int, length: int) -> None:
        self._returned.append((start, length))

    def _taken(self) -> dict[int, int]:
        while self._returned:
            start, _ = self._returned.popleft()
            self._used.pop(start, None)
        return self._used

    def _gaps(self) -> list[tuple[int, int]]:
        gaps, start = [], 0
        for used, length in sorted(self._taken().items()):
            if used > start:
                gaps.append((start, used))
            start = used + _rounded(length)
        if start < self._size:
            gaps.append((start, self._size))
        return gaps

    @property
    def _tracked(self) -> bool:
        return tracking_of(self._options) == TRACKED


def _rounded(length: int) -> int:
    return _up(length, ALIGNMENT)


def _up(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def demand_of(length: int) -> tuple[int, int]:
    """Return the size and the alignment that a buffer needs in a heap."""
    return _rounded(length), ALIGNMENT
