"""The Metal driver over a simulated Metal of its own, and the steps that its tests take."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import tidegate as tg
from tidegate import lowlevel
from tidegate._core.device import Device
from tidegate.conformance import kernels
from tidegate.driver import DeviceRequest
from tidegate.drivers.metal import MetalDriver
from tidegate.drivers.metal.device import MetalDevice
from tidegate.drivers.metal.queue import MetalTimeline
from tidegate.testing import metal_simulated
from tidegate.testing.metal_device import register_fill_kernels

LIMIT = 30.0


class Latch:
    """Work that has been issued and is not over: a command buffer that waits for an event of the host's."""

    def __init__(self, device: tg.Device) -> None:
        self._event = device._driver.events.new_event()
        self._opened = False

    def block(self, queue: tg.Queue, **points: Any) -> tg.Submission:
        return lowlevel.event_barrier(queue, waits=[(self._event, 1)], **points)

    def open(self) -> None:
        if not self._opened:
            self._opened = True
            self._event.setSignaledValue_(1)


class DriverBench:
    """A device of the driver, its simulation, and what they are made to do."""

    def __init__(self, *, uri: str = "metal-simulated", check: bool = True, **settings: Any) -> None:
        self.native = metal_simulated.native(**{"seed": 1, "owns_new": False, **settings})
        register_fill_kernels(self.native)
        self.native.register_kernels(kernels.ALL)
        for name, function in kernels.HOST_FUNCTIONS.items():
            self.native.register(name, function)
        self.driver = MetalDriver(self.native, scheme="metal-simulated")
        self._check = check
        self._devices: list[tg.Device] = []
        self._latches: list[Latch] = []
        self._names = itertools.count()
        self.device = self.open(uri)
        self.queue = self.device.queue()

    def open(self, uri: str = "metal-simulated") -> tg.Device:
        """Open one more device."""
        _, _, query = uri.partition("?")
        options = dict(pair.split("=") for pair in query.split("&")) if query else {}
        device = Device(self.driver, self.driver.open(DeviceRequest(uri, "metal-simulated", "", options)), uri, "")
        self._devices.append(device)
        return device

    @property
    def inner(self) -> MetalDevice:
        """The driver's side of the device."""
        inner = self.device._driver
        assert isinstance(inner, MetalDevice)
        return inner

    @property
    def timelines(self) -> list[MetalTimeline]:
        """All native queues."""
        return [timeline for timelines in self.inner.timelines.values() for timeline in timelines]

    def latch(self, device: tg.Device | None = None) -> Latch:
        """Return a closed latch; opened at the end at the latest."""
        made = Latch(device or self.device)
        self._latches.append(made)
        return made

    def park_all_but(self, free: int, queue: tg.Queue | None = None) -> Latch:
        """Occupy compute queues with blocked work, until only so many are idle."""
        latch = self.latch()
        for _ in range(len(self.inner.timelines["compute"]) - free):
            latch.block(queue or self.queue)
        return latch

    def host_kernel(
        self, function: Callable[[Any, Any, Any], None], parameters: str = "", **declared: Any
    ) -> tg.Function:
        """Load a kernel that is a Python function."""
        name = f"tested_{next(self._names)}"
        _, source = self.native.host_kernel(function, parameters, name)
        kernel = tg.Kernel(name, metal=source, **{"bindings": 0, "constants": [], "workgroup": 1, **declared})
        return self.device.load(kernel)[name]

    def upload(self, count: int = 64, memory: Any = "device") -> tg.Buffer:
        """Return a buffer of ascending words."""
        return self.device.upload(np.arange(count, dtype=np.uint32), memory=memory)

    def close(self) -> None:
        """Close everything; whatever a test did, no rule of Metal's may have been broken."""
        for latch in self._latches:
            latch.open()
        for device in self._devices:
            device.close(LIMIT)
        if self._check:
            self.native.check()
        assert self.native.close()


def words(buffer: tg.Buffer) -> list[int]:
    """Return a buffer's words, after the last write to it."""
    return [int(word) for word in buffer.to_numpy(np.uint32, timeout=LIMIT)]


def in_threads(count: int, run: Callable[[int], None]) -> None:
    """Run something in several threads at once; raises what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def body(number: int) -> None:
        try:
            start.wait(LIMIT)
            run(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20 * LIMIT)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
