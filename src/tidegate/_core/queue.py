"""A queue: where work is given, without an order of its own (M15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..driver import DriverQueue
from .operations import Operations

if TYPE_CHECKING:
    from .device import Device


class Queue(Operations):
    """A place to give work to. Operations have no order but what their waits say; a `Lane` orders.

    Made by `device.queue`. Held work never delays ready work.
    """

    def __init__(self, device: Device, port: DriverQueue, kind: str, priority: int) -> None:
        self._join(device, device)
        self._port = port
        self._use_native(port.native, port)
        self.kind = kind
        self.priority = priority

    def __repr__(self) -> str:
        return f"<tidegate.Queue {self.describe()}>"

    def describe(self) -> str:
        """Return how texts name it."""
        return f"queue {self.kind!r} of {self._device.describe()}"

    @property
    def device(self) -> Device:
        """The device it belongs to."""
        return self._device
