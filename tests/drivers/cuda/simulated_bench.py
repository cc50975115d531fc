"""A CUDA device over a simulated machine of its own, for tests of how the driver's parts work together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import tidegate as tg
from tidegate._core.device import Device
from tidegate.conformance.latches import Latch, block_by_watched_memory
from tidegate.driver import DeviceRequest
from tidegate.drivers.cuda import CudaDriver
from tidegate.testing import cuda_simulated

LIMIT = 30.0

TOUCH = tg.Kernel(
    "touch",
    cuda='extern "C" __global__ void touch(unsigned *x) { x[0] += 1; }',
    bindings=1,
)


class SimulatedBench:
    """A machine, a driver for it, and one device that is open.

    Args:
        options: of the URI.
        connections: what CUDA_DEVICE_MAX_CONNECTIONS says.
        machine: of `cuda_simulated.native`.

    """

    def __init__(self, options: dict[str, str] | None = None, connections: int = 32, **machine: Any) -> None:
        self.native: Any = cuda_simulated.native(**machine)
        self.cuda = CudaDriver(lambda release_gil: self.native, cuda_simulated.SimulatedNvrtc)
        self._latches: list[Latch] = []
        self._words: list[Any] = []
        self.opened: list[Device] = []
        with _connections(connections):
            self.device = self.open(options)

    def open(self, options: dict[str, str] | None = None) -> Device:
        """Open one more device on the same machine."""
        opened = Device(self.cuda, self.cuda.open(DeviceRequest("cuda", "cuda", "", options or {})), "cuda", "")
        self.opened.append(opened)
        return opened

    @property
    def driver(self) -> Any:
        """The driver's side of the device."""
        return self.device._driver

    @property
    def queue(self) -> tg.Queue:
        return self.device.queue()

    def latch(self, queue: tg.Queue | None = None, wait: Any = None) -> tuple[Latch, tg.Submission]:
        """Have a kernel run until the latch is open."""
        latch = Latch(block_by_watched_memory)
        self._latches.append(latch)
        blocked = latch.block(queue or self.queue, wait=wait)
        if wait is None:
            latch.wait_until_running(LIMIT)
        return latch, blocked

    def shared(self, nbytes: int = 256) -> tg.Buffer:
        """Return memory that both sides see, zeroed."""
        buffer = self.device.allocate(nbytes, memory="shared")
        with buffer.map("rw") as data:
            data[:] = 0
        return buffer

    @contextmanager
    def foreign_stream(self) -> Iterator[int]:
        """A stream of somebody else."""
        with self.driver.entered():
            stream = self.native.create_stream()
        yield stream
        with self.driver.entered():
            self.native.destroy_stream(stream)

    @contextmanager
    def parked(self, stream: int) -> Iterator[None]:
        """Have a foreign stream wait for as long as the block takes."""
        word = self.shared(8)
        with self.driver.entered():
            self.native.wait_value(stream, word.locate()[0].address, 1)
        try:
            yield
        finally:
            with word.map("rw") as data:
                data.view(np.uint64)[0] = 1
            with self.driver.entered():
                self.native.synchronize_stream(stream)

    def close(self) -> None:
        for latch in self._latches:
            latch.open_all()
        for device in self.opened:
            device.close(LIMIT)


@contextmanager
def _connections(count: int) -> Iterator[None]:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    before = os.environ.get(name)
    os.environ[name] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def bench(*args: Any, **options: Any) -> Iterator[SimulatedBench]:
    made = SimulatedBench(*args, **options)
    try:
        yield made
    finally:
        made.close()


def until(condition: Callable[[], object]) -> None:
    """Give other threads their turn until something holds, or for as long as anything may take."""
    turn, limit = threading.Event(), time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit
        turn.wait(0.001)
