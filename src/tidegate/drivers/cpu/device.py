"""The CPU device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from tidegate.driver import DriverDevice, DriverPool, DriverQueue, Signature, Sink, Storage
from tidegate.drivers.cpu import executable
from tidegate.drivers.cpu.memory import CpuPool, WrappedStorage
from tidegate.drivers.cpu.queue import CpuQueue
from tidegate.drivers.cpu.workers import Workers
from tidegate.errors import InvalidArgumentError
from tidegate.types import DeviceInfo, MemoryKind

_CLOSE_PATIENCE = 5.0
_EXIT_PATIENCE = 0.2


class CpuDevice(DriverDevice):
    """Worker threads and host memory."""

    sink: Sink
    make_pool: type[CpuPool] = CpuPool

    def __init__(self, info: DeviceInfo, workers: int, budget: int | None) -> None:
        self.info = info
        self.workers = Workers(workers, "tidegate-cpu")
        self._pool = self.make_pool(budget)
        self._pools: WeakSet[CpuPool] = WeakSet()

    def connect(self, sink: Sink) -> None:
        self.sink = sink
        self._pool.sink = sink

    def queue(self, kind: str, priority: int) -> DriverQueue:
        return CpuQueue(self)

    def allocate(self, nbytes: int, memory: MemoryKind, pool: DriverPool | None = None) -> Storage:
        chosen = self._pool if pool is None else pool
        if not isinstance(chosen, CpuPool):
            raise InvalidArgumentError(f"device {self.info.uri!r}: the pool is not one of this device")
        return chosen.allocate(nbytes, memory)

    def wrap(self, array: npt.NDArray[np.uint8]) -> Storage:
        return WrappedStorage(array)

    def create_pool(self, budget: int | None) -> CpuPool:
        pool = self.make_pool(budget)
        pool.sink = self.sink
        self._pools.add(pool)
        return pool

    @property
    def default_pool(self) -> CpuPool:
        return self._pool

    def load(
        self, source: Any, *, signature: Signature | None, format: str | None, options: Sequence[str]
    ) -> dict[str, Any]:
        return dict(executable.load(source, signature=signature, format=format, options=options))

    def poll(self) -> bool:
        return self.workers.steal()

    def trim(self) -> None:
        self._pool.trim()

    def close(self) -> None:
        self.workers.stop(_CLOSE_PATIENCE)
        for pool in (self._pool, *self._pools):
            pool.close()

    def abandon(self) -> None:
        self.workers.stop(_EXIT_PATIENCE)
