"""Small host data on its way to the GPU: one write-combined buffer, cut into ranges by the core's staging component.

Updates and constants too large for the command buffer go through it. Any number of threads reserve at once; a range
comes back when the command buffer that reads it is over. What finds no room takes a buffer of its own instead (M28).
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate._core.background import deferred as reaper
from tidegate._core.background import start_thread
from tidegate._core.staging import StagingBuffer
from tidegate.drivers.metal import _native
from tidegate.drivers.metal._errors import given
from tidegate.drivers.metal._native import Object
from tidegate.drivers.metal.memory import Bytes, MetalPool, MetalStorage

if TYPE_CHECKING:
    from tidegate.drivers.metal.device import MetalDevice

CAPACITY = 128 * 1024
ALIGNMENT = 256
"""What Metal wants of a buffer offset in the constant address space, on every GPU."""
_KEEP = 4 * 2**20
"""How much memory of spilled data is kept for the next time."""


class _Memory:
    """Stands where the staging component expects a device and its buffer."""

    def __init__(self, pool: MetalPool) -> None:
        self._pool = pool

    def allocate(self, nbytes: int, *, memory: str, label: str) -> _Memory:
        assert memory == "host", label
        self.storage: MetalStorage | None = self._pool.allocate(nbytes, "host")
        return self

    def close(self) -> None:
        """Let go of the storage: what the staging component does with its buffer when it is closed."""
        self.storage = None

    def _host_bytes(self, *, writable: bool) -> Bytes:
        found = None if self.storage is None else self.storage.host()
        assert found is not None
        return found


class Held:
    """A range that is given back with the last reference to it, whatever became of its command buffer.

    It is put among what a command buffer keeps before it takes its room, so that an interrupt can lose neither.
    """

    __slots__ = ("_nbytes", "_ranges", "offset")
    offset: int | None

    def __init__(self, ranges: StagingBuffer, nbytes: int) -> None:
        self._ranges = ranges
        self._nbytes = nbytes

    def take(self) -> bool:
        """Reserve the room. False: there is none now, or there never is so much."""
        ranges = self._ranges
        if self._nbytes > ranges.capacity or ranges._lock._is_owned():  # type: ignore[attr-defined]
            return False  # the second: a finalizer or signal handler in the middle of a reservation
        with ranges._lock:
            # No call between taking the room and noting it.
            self.offset = ranges._take(self._nbytes, ALIGNMENT)
        return self.offset is not None

    def bytes(self) -> Bytes:
        """Return the room, to be written."""
        assert self.offset is not None
        return self._ranges._bytes[self.offset : self.offset + self._nbytes]

    def __del__(self) -> None:
        offset = getattr(self, "offset", None)  # it may never have come to taking anything
        if offset is not None:
            self._ranges._give_back(offset, self._nbytes)


class Staging:
    """Where encoders put host data."""

    def __init__(self, device: MetalDevice, capacity: int = CAPACITY) -> None:
        self._pool = MetalPool(device, None, keep=_KEEP)
        self._memory = _Memory(self._pool)
        self.ranges = StagingBuffer(self._memory, capacity)  # type: ignore[arg-type]
        self.spills = 0
        """How often there was no room."""

    def put(self, data: bytes, kept: list[Any]) -> tuple[Object, int]:
        """Copy `data` to where the GPU can read it; returns the buffer and the offset.

        Whoever empties `kept`, when the command buffer is over, gives the room back.
        """
        held = Held(self.ranges, len(data))
        kept.append(held)
        if not held.take():
            return self._spill(data, kept), 0
        np.copyto(held.bytes(), np.frombuffer(data, np.uint8))
        assert held.offset is not None
        assert self._memory.storage is not None
        return self._memory.storage.buffer, held.offset

    def _spill(self, data: bytes, kept: list[Any]) -> Object:
        self.spills += 1
        buffer, target = self.room_for(len(data), kept)
        np.copyto(target, np.frombuffer(data, np.uint8))
        return buffer

    def room_for(self, nbytes: int, kept: list[Any]) -> tuple[Object, Bytes]:
        """Return a buffer of its own for larger data, and its bytes."""
        storage = self._pool.allocate(nbytes, "host")
        kept.append(storage)
        target = storage.host()
        assert target is not None
        return storage.buffer, target

    def trim(self) -> None:
        """Give back what spilling has left."""
        self._pool.trim()

    def close(self) -> None:
        """Give everything back, for nothing is in flight any more."""
        self.ranges.close()
        self._memory.close()
        self._pool.close()


class Copier:
    """Copies large arrays to where the GPU can read them, on a thread of its own that starts with the first.

    A command buffer that needs the copy waits for an event, which the thread signals. So nobody who submits waits for a
    copy, and a queue that does wait has only this ahead of it.
    """

    def __init__(self, device: MetalDevice, staging: Staging) -> None:
        self._native = device.native
        self._staging = staging
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[tuple[Bytes, Bytes, int] | None] = SimpleQueue()
        self._count = 0
        self._thread: threading.Thread | None = None
        self._event = given(_native.new_event(device.handle), "shared event")

    def bring(self, array: Bytes, kept: list[Any], *, at_once: bool) -> tuple[Object, tuple[Object, int] | None]:
        """Return a buffer that has, or will have, the array's bytes, and the event and value to wait for."""
        buffer, target = self._staging.room_for(array.nbytes, kept)
        if at_once:
            np.copyto(target, array)
            return buffer, None
        with self._lock:
            if self._thread is None:
                reaper.leave(self._start)
            self._count += 1
            self._jobs.put((target, array, self._count))
            return buffer, (self._event, self._count)

    def _start(self) -> None:
        """A note to the reaper."""
        if self._thread is None:
            self._thread = start_thread(self._run, "tidegate-metal-copier")

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)
                return
            target, array, value = job
            np.copyto(target, array)
            del job, target, array  # they keep memory, which must be free before the end is told
            with self._native.autorelease_pool():
                _native.set_event_value(self._event, value)

    def stop(self) -> None:
        """End the thread, behind what it still has to do."""
        self._jobs.put(None)
