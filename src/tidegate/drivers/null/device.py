"""The device: where queues, memory and executables come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.driver import DriverDevice, DriverPool, DriverQueue, Signature, Sink, Storage
from tidegate.drivers.null.executable import NullFunction
from tidegate.drivers.null.memory import NullPool, NullStorage
from tidegate.drivers.null.queue import NullQueue
from tidegate.errors import UnsupportedError
from tidegate.types import DeviceInfo, MemoryKind


class NullDevice(DriverDevice):
    """An open device. Yours holds the context, the streams and the memory pools of its hardware."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self._pool = NullPool(None)

    def connect(self, sink: Sink) -> None:
        self._sink = sink

    def queue(self, kind: str, priority: int) -> DriverQueue:
        return NullQueue(self._sink)

    def allocate(self, nbytes: int, memory: MemoryKind, pool: DriverPool | None = None) -> Storage:
        return NullStorage(self._pool if pool is None else pool, nbytes, memory)

    def wrap(self, array: npt.NDArray[np.uint8]) -> Storage:
        raise UnsupportedError(f"device {self.info.uri!r} cannot use host memory")

    def create_pool(self, budget: int | None) -> NullPool:
        return NullPool(budget)

    @property
    def default_pool(self) -> NullPool:
        return self._pool

    def load(
        self, source: Any, *, signature: Signature | None, format: str | None, options: Sequence[str]
    ) -> dict[str, Any]:
        function = NullFunction(source, signature)
        return {function.name: function}

    def trim(self) -> None:
        self._pool.trim()

    def close(self) -> None:
        """Give back what `__init__` took. Nothing is in flight when this is called, unless the device is lost."""
