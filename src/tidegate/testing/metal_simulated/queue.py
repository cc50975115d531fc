"""Command queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .command_buffer import CommandBuffer
from .execution import Line
from .objects import Labelled, Metal

if TYPE_CHECKING:
    from .device import Device
    from .simulation import Simulation

__all__ = ["CommandBufferDescriptor", "Queue"]


class CommandBufferDescriptor(Metal, registered="MTLCommandBufferDescriptor"):
    """What a command buffer shall be."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._retained = True
        self._options = 0

    def setRetainedReferences_(self, retained: bool) -> None:
        self._retained = retained

    def retainedReferences(self) -> bool:
        return self._retained

    def setErrorOptions_(self, options: int) -> None:
        self._options = options

    def errorOptions(self) -> int:
        return self._options


class Queue(Labelled, registered="MTLCommandQueue"):
    """An MTLCommandQueue. Its thread ends with it."""

    _autoreleased = frozenset(
        {"commandBuffer", "commandBufferWithUnretainedReferences", "commandBufferWithDescriptor_"}
    )

    def __init__(self, device: Device, capacity: int) -> None:
        super().__init__(device._simulation)
        self._device = device
        self._line = Line(self._simulation, capacity, f"queue-{id(self):x}")

    def device(self) -> Any:
        return self._device

    def commandBuffer(self) -> CommandBuffer:
        return CommandBuffer(self, retained=True)

    def commandBufferWithUnretainedReferences(self) -> CommandBuffer:
        return CommandBuffer(self, retained=False)

    def commandBufferWithDescriptor_(self, descriptor: CommandBufferDescriptor) -> CommandBuffer:
        return CommandBuffer(self, retained=descriptor._retained)

    def __del__(self) -> None:
        line = self.__dict__.get("_line")
        if line is not None:
            line.end()
