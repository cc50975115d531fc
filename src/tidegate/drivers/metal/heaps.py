"""Private memory out of heaps: one call to the system for many buffers, and a buffer's room comes back with it.

A buffer of a heap is made and released without the kernel's help, which is what keeps queue-ordered allocation from
blocking. Large buffers stand alone: in a heap they would keep the rest of it alive.
"""

from __future__ import annotations

from tidegate.drivers.metal import _native
from tidegate.drivers.metal._native import Native, Object

HEAP = 16 * 2**20
"""The size of a heap."""
LARGE = HEAP // 4
"""Buffers from this size on are made alone."""


class Heaps:
    """The heaps of one pool, which also locks: methods are called one at a time.

    With a budget below a few heaps every buffer is made alone: a heap takes its memory whole, whatever is used of it.
    """

    def __init__(self, native: Native, handle: Object, options: int, budget: int | None) -> None:
        self._native = native
        self._handle = handle
        self._options = options
        self._alone = budget is not None and budget < 4 * HEAP
        self._heaps: list[Object] = []

    def new_buffer(self, size: int) -> Object | None:
        """Return a private buffer; None if there is no room."""
        if self._alone or size >= LARGE:
            return _native.new_buffer(self._handle, size, self._options)
        demand, alignment = _native.heap_demand(self._handle, size, self._options)
        for heap in self._heaps:
            if _native.heap_room(heap, alignment) >= demand:
                buffer = _native.new_buffer(heap, size, self._options)
                if buffer is not None:
                    return buffer
        return self._from_new_heap(size)

    def _from_new_heap(self, size: int) -> Object | None:
        heap = _native.new_heap(self._native, self._handle, HEAP, self._options)
        if heap is None:
            return _native.new_buffer(self._handle, size, self._options)
        self._heaps.append(heap)
        return _native.new_buffer(heap, size, self._options)

    def close(self) -> None:
        """Give back all heaps: one with buffers in it goes with the last of them, for they keep it."""
        self._heaps = []

    def trim(self) -> None:
        """Give back the heaps in which nothing is left."""
        self._heaps = [heap for heap in self._heaps if _native.heap_used(heap)]
