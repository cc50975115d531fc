"""Buffers, the blocks of memory behind them, and what the host sees of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .objects import Labelled

if TYPE_CHECKING:
    from .device import Device
    from .heaps import Heap
    from .simulation import Simulation

__all__ = ["Block", "Buffer", "Contents"]

Bytes = npt.NDArray[np.uint8]

SHARED, MANAGED, PRIVATE, MEMORYLESS = range(4)
DEFAULT, UNTRACKED, TRACKED = range(3)
DEAD = 0xDD
"""What stands in memory whose buffer was released: reading it is use after free."""
POISONED = 1 << 16
"""How much of a released block is overwritten: enough to be noticed."""


def storage_of(options: int) -> int:
    return (options >> 4) & 15


def cache_of(options: int) -> int:
    return options & 15


def tracking_of(options: int) -> int:
    return (options >> 8) & 3


class Block:
    """Memory of a device, aligned to pages, with its past for the search for races."""

    def __init__(self, simulation: Simulation, account: Account, nbytes: int, array: Bytes | None = None) -> None:
        page = simulation.settings.page
        self._account = account
        self._nbytes = nbytes if array is None else 0
        if array is None:
            whole = np.zeros(nbytes + page, np.uint8)
            start = -whole.ctypes.data % page
            array = whole[start : start + nbytes]
        self.array = array
        self.owned = bool(self._nbytes)
        self.address = simulation.next_address(len(array))
        self.past: deque[Any] = deque()
        account.taken += self._nbytes
        if self.owned:
            when_gone(self.array, _release, whole[start : start + nbytes], account.returned, self._nbytes)


def when_gone(array: Bytes, function: Callable[..., object], *arguments: Any) -> None:
    """Call a function when an array, of which there is one reference, is gone with the object that has that.

    Not a finalizer: the collector calls those of all objects in a cycle, also of one that another's finalizer then
    keeps, as a storage does that gives its buffer back to a pool. An object of Metal's is released only when it goes.
    An array is nothing that the collector knows of.
    """
    weakref.finalize(array, function, *arguments).atexit = False


def _release(array: Bytes, returned: deque[int], nbytes: int) -> None:
    array[:POISONED] = DEAD
    array[-POISONED:] = DEAD
    returned.append(nbytes)


class Account:
    """How much memory of a device is in use. Finalizers only note what came back."""

    def __init__(self) -> None:
        self.taken = 0
        self.returned: deque[int] = deque()

    def used(self) -> int:
        """Return how many bytes are in use."""
        while self.returned:
            self.taken -= self.returned.popleft()
        return self.taken


class Contents:
    """An `objc.varlist`: a pointer without a length. It keeps nothing alive."""

    def __init__(self, array: Bytes) -> None:
        self._array = array

    def as_buffer(self, count: int) -> memoryview:
        """Return a writable view of the first `count` bytes."""
        if not 0 <= count <= len(self._array):
            raise ValueError(f"{count} bytes of a buffer that has {len(self._array)}")
        return self._array[:count].data


class Resource(Labelled, registered="MTLResource"):
    """What buffers and indirect command buffers have in common."""

    def __init__(self, device: Device, options: int, heap: Heap | None = None) -> None:
        super().__init__(device._simulation)
        self._device = device
        self._options = options
        self._heap = heap
        self._fate: list[None] = []
        """Empty, unless it was made aliasable."""

    def device(self) -> Any:
        return self._device

    def heap(self) -> Any:
        return self._heap

    def storageMode(self) -> int:
        return storage_of(self._options)

    def cpuCacheMode(self) -> int:
        return cache_of(self._options)

    def resourceOptions(self) -> int:
        return self._options

    def hazardTrackingMode(self) -> int:
        return TRACKED if self._tracked else UNTRACKED

    def makeAliasable(self) -> None:
        self._simulation.demand(
            self._heap is not None and not self._heap._placed, "aliasable", f"{self!r}: it is of no automatic heap"
        )
        self._fate.append(None)
        self._give_back()

    def isAliasable(self) -> bool:
        return bool(self._fate)

    def setPurgeableState_(self, state: int) -> int:
        return 2

    def _give_back(self) -> None:
        """Let the heap use the memory for others."""

    def _check_usable(self) -> None:
        if self._fate:
            self._simulation.refuse("aliasable", f"{self!r}: it was made aliasable")

    @property
    def _tracked(self) -> bool:
        """Whether Metal orders accesses by itself: the default of a device's memory, but not of a heap's."""
        return tracking_of(self._options) != UNTRACKED if self._heap is None else self._heap._tracked


class Buffer(Resource, registered="MTLBuffer"):
    """An MTLBuffer."""

    def __init__(
        self, device: Device, block: Block, start: int, length: int, options: int, heap: Heap | None = None
    ) -> None:
        super().__init__(device, options, heap)
        self._block = block
        self._start = start
        self._length = length
        self._bytes: Bytes = block.array[start : start + length]
        if heap is not None and not heap._placed:
            when_gone(self._bytes, _vacate, block.array[start : start + length], heap, start, self._fate)

    def length(self) -> int:
        return self._length

    def allocatedSize(self) -> int:
        page = self._simulation.settings.page
        return self._length if self._heap is not None else -(-self._length // page) * page

    def contents(self) -> Any:
        """NULL, which is None in Python, where the host does not see it."""
        return None if storage_of(self._options) == PRIVATE else Contents(self._bytes[:])

    def didModifyRange_(self, range: Any) -> None:
        managed = storage_of(self._options) == MANAGED
        self._simulation.demand(managed, "synchronize-managed", f"{self!r}: didModifyRange, and it is not managed")

    def gpuAddress(self) -> int:
        return self._address

    def heapOffset(self) -> int:
        return self._start if self._heap is not None else 0

    @property
    def _address(self) -> int:
        return self._block.address + self._start

    def _give_back(self) -> None:
        if self._heap is not None:
            self._heap._return(self._start, self._length)


def _vacate(array: Bytes, heap: Heap, start: int, aliasable: list[None]) -> None:
    if not aliasable:
        array[:POISONED] = DEAD
        heap._return(start, len(array))
