"""The Metal device: its native queues, memory and programs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from tidegate.driver import DriverDevice, DriverPool, DriverQueue, Signature, Sink, Storage
from tidegate.drivers.metal import _native, executable
from tidegate.drivers.metal._native import Native, Object
from tidegate.drivers.metal.fill_kernels import FillKernels
from tidegate.drivers.metal.memory import MetalPool, import_array
from tidegate.drivers.metal.queue import MetalQueue, MetalTimeline
from tidegate.drivers.metal.shared_event import SharedEvents
from tidegate.drivers.metal.staging import Copier, Staging
from tidegate.errors import InvalidArgumentError
from tidegate.types import DeviceInfo, MemoryKind

NATIVE_QUEUES = {"compute": 6, "transfer": 2}
"""Native queues by kind: as many pieces of independent work run beside each other."""
_READBACK_KEPT = 16 * 2**20
"""How much memory for downloads is kept for the next ones."""


class MetalDevice(DriverDevice):
    """An open device.

    Attributes:
        native: what `_native.load` returned, or a simulation of it.
        handle: the MTLDevice.
        lock: held while a command buffer is made; the order of epochs depends on it.
        has_imports: whether the GPU was ever given host memory of the user's.

    """

    promises = True
    sink: Sink

    def __init__(self, native: Native, handle: Object, info: DeviceInfo, budget: int | None) -> None:
        self.info = info
        self.native = native
        self.handle = handle
        self.lock = threading.Lock()
        self.has_imports = False
        with native.autorelease_pool():
            self.max_buffer_bytes = _native.max_buffer_bytes(handle)
            self._pool = MetalPool(self, budget)
            self._pools: WeakSet[MetalPool] = WeakSet()
            self.readback = MetalPool(self, None, keep=_READBACK_KEPT)
            self.staging = Staging(self)
            self.copier = Copier(self, self.staging)
            self.kernels = FillKernels(self)
            self.events = SharedEvents(self)
            self.timelines = {
                kind: [MetalTimeline(self, f"tidegate-metal-{kind}-{index}") for index in range(count)]
                for kind, count in NATIVE_QUEUES.items()
            }

    def connect(self, sink: Sink) -> None:
        self.sink = sink
        self._pool.sink = sink
        for timeline in self._all_timelines():
            timeline.sink = sink

    def _all_timelines(self) -> list[MetalTimeline]:
        return [timeline for timelines in self.timelines.values() for timeline in timelines]

    def queue(self, kind: str, priority: int) -> DriverQueue:
        return MetalQueue(self, self.timelines[kind])  # Metal's queues have no priorities

    def allocate(self, nbytes: int, memory: MemoryKind, pool: DriverPool | None = None) -> Storage:
        chosen = self._pool if pool is None else pool
        if not isinstance(chosen, MetalPool):
            raise InvalidArgumentError(f"device {self.info.uri!r}: the pool is not one of this device")
        return chosen.allocate(nbytes, memory)

    def wrap(self, array: npt.NDArray[np.uint8]) -> Storage:
        storage = import_array(self, array)
        self.has_imports = True
        return storage

    def create_pool(self, budget: int | None) -> MetalPool:
        pool = MetalPool(self, budget)
        pool.sink = self.sink
        self._pools.add(pool)
        return pool

    @property
    def default_pool(self) -> MetalPool:
        return self._pool

    def load(
        self, source: Any, *, signature: Signature | None, format: str | None, options: Sequence[str]
    ) -> dict[str, Any]:
        return dict(executable.load(self, source, signature=signature, format=format, options=options))

    def trim(self) -> None:
        for pool in (self._pool, self.readback):
            pool.trim()
        self.staging.trim()

    def close(self) -> None:
        self.events.close()
        self.copier.stop()
        for timeline in self._all_timelines():
            timeline.close()
        self.staging.close()
        for pool in (self._pool, self.readback, *self._pools):
            pool.close()

    def abandon(self) -> None:
        # Nothing waits for the GPU. What it still uses must not be torn down with the interpreter: what the flights
        # keep, and the events that they signal.
        if any(timeline.flights for timeline in self._all_timelines()):
            _native.keep_for_ever(self)
