"""Devices."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from . import library
from .dispatch import DispatchData
from .events import Event, Fence, SharedEvent, SharedEventHandle
from .foundation import URL, Error
from .heaps import Heap, HeapDescriptor, demand_of
from .library import CompileOptions, Function, Library, Pipeline
from .memory import Account, Block, Buffer
from .objects import Metal
from .queue import Queue

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["Device"]

CAPACITY = 64


class Device(Metal, registered="MTLDevice"):
    """An MTLDevice: one of Apple's, with unified memory."""

    _autoreleased = frozenset({"name"})

    def __init__(self, simulation: Simulation, index: int) -> None:
        super().__init__(simulation)
        self._index = index
        self._account = Account()

    def name(self) -> str:
        return f"Simulated Metal {self._index}"

    def registryID(self) -> int:
        return 0x1_0000_0000 + self._index

    def hasUnifiedMemory(self) -> bool:
        return True

    def isLowPower(self) -> bool:
        return False

    def isHeadless(self) -> bool:
        return False

    def isRemovable(self) -> bool:
        return False

    def location(self) -> int:
        return 0

    def supportsFamily_(self, family: int) -> bool:
        return family in (*range(1001, 1008), 2001, 2002, 3001, 3002, 3003, 5001)

    def argumentBuffersSupport(self) -> int:
        return 1

    def recommendedMaxWorkingSetSize(self) -> int:
        return self._simulation.settings.memory

    def currentAllocatedSize(self) -> int:
        with self._simulation.lock:
            return self._account.used()

    def maxBufferLength(self) -> int:
        return self._simulation.settings.max_buffer

    def maxThreadsPerThreadgroup(self) -> Any:
        limit = self._simulation.settings.max_threads
        return (limit, limit, limit)

    def maxThreadgroupMemoryLength(self) -> int:
        return self._simulation.settings.threadgroup_memory

    # Queues and events

    def newCommandQueue(self) -> Queue | None:
        return self._queue(CAPACITY)

    def newCommandQueueWithMaxCommandBufferCount_(self, count: int) -> Queue | None:
        self._simulation.demand(count > 0, "queue-capacity", f"a queue for {count} command buffers")
        return self._queue(count)

    def _queue(self, count: int) -> Queue | None:
        return None if self._simulation.take_fault("queue") else Queue(self, count)

    def newEvent(self) -> Event | None:
        return Event(self)

    def newSharedEvent(self) -> SharedEvent | None:
        return None if self._simulation.take_fault("event") else SharedEvent(self)

    def newSharedEventWithHandle_(self, handle: SharedEventHandle) -> SharedEvent | None:
        event = SharedEvent(self)
        event._state = handle._event._state
        return event

    def newFence(self) -> Fence | None:
        return Fence(self)

    # Memory

    def newBufferWithLength_options_(self, length: int, options: int) -> Buffer | None:
        return self._buffer(length, options)

    def _buffer(self, length: int, options: int) -> Buffer | None:
        self._check_length(length)
        block = self._block(length)
        return None if block is None else Buffer(self, block, 0, length, options)

    def newBufferWithBytes_length_options_(self, data: Any, length: int, options: int) -> Buffer | None:
        buffer = self._buffer(length, options)
        if buffer is not None:
            buffer._bytes[:] = np.frombuffer(data, np.uint8, length)
        return buffer

    def newBufferWithBytesNoCopy_length_options_deallocator_(
        self, data: Any, length: int, options: int, deallocator: Any
    ) -> Buffer | None:
        self._check_length(length)
        array = np.frombuffer(memoryview(data).cast("B"), np.uint8)[:length]
        page = self._simulation.settings.page
        whole = array.ctypes.data % page == 0 and length % page == 0
        self._simulation.demand(whole, "no-copy", f"{length} bytes at {array.ctypes.data:#x}, and pages have {page}")
        self._simulation.demand(options & 0xF0 != 0x20, "no-copy", "host memory as private storage")
        if self._simulation.take_fault("allocation"):
            return None
        buffer = Buffer(self, Block(self._simulation, self._account, length, array), 0, length, options)
        if deallocator is not None:
            weakref.finalize(buffer, deallocator, data, length)
        return buffer

    def newHeapWithDescriptor_(self, descriptor: HeapDescriptor) -> Heap | None:
        with self._simulation.lock:
            full = self._account.used() + descriptor._size > self._simulation.settings.memory
        return None if full or self._simulation.take_fault("allocation") else Heap(self, descriptor)

    def heapBufferSizeAndAlignWithLength_options_(self, length: int, options: int) -> Any:
        return demand_of(length)

    # Executables

    def newLibraryWithSource_options_error_(
        self, source: str, options: CompileOptions | None
    ) -> tuple[Library | None, Error | None]:
        return library.compile_source(self, source, options)

    def newLibraryWithData_error_(self, data: Any) -> tuple[Library | None, Error | None]:
        self._simulation.demand(isinstance(data, DispatchData), "library-data", f"{data!r} is no dispatch data")
        return library.open_library(self, data._bytes)

    def newLibraryWithURL_error_(self, url: URL) -> tuple[Library | None, Error | None]:
        return library.open_file(self, url._path)

    def newComputePipelineStateWithFunction_error_(self, function: Function) -> tuple[Pipeline | None, Error | None]:
        return library.make_pipeline(self, function)

    def _check_length(self, length: int) -> None:
        limit = self._simulation.settings.max_buffer
        self._simulation.demand(0 < length <= limit, "buffer-length", f"a buffer of {length} bytes, at most {limit}")

    def _block(self, length: int) -> Block | None:
        with self._simulation.lock:
            full = self._account.used() + length > self._simulation.settings.memory
            if full or self._simulation.take_fault("allocation"):
                return None
            return Block(self._simulation, self._account, length)
