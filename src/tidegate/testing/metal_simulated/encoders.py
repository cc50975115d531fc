"""What encoders have in common, and the blit encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from .events import Fence
from .execution import Pass
from .hazards import Access
from .memory import MANAGED, Buffer, Resource, storage_of
from .objects import Labelled
from .rules import RULES

if TYPE_CHECKING:
    from .command_buffer import CommandBuffer

__all__ = ["BlitEncoder", "Encoder"]

Command = Callable[[], list[Access]]


class Encoder(Labelled, registered="MTLCommandEncoder"):
    """Puts commands into a command buffer. What it keeps of them is up to the command buffer."""

    _ordering: ClassVar[bool] = False

    def __init__(self, commands: CommandBuffer) -> None:
        super().__init__(commands._simulation)
        self._device = commands._queue._device
        self._encoded = commands._encoded
        self._pass = Pass(ordering=self._ordering)
        self._encoded.operations.append(self._pass)
        self._ended = False
        self._groups = 0

    def device(self) -> Any:
        return self._device

    def endEncoding(self) -> None:
        self._check_open("endEncoding")
        self._simulation.demand(not self._groups, "debug-groups", f"{self!r}: ended inside a debug group")
        self._ended = True

    def pushDebugGroup_(self, name: str) -> None:
        self._check_open("pushDebugGroup")
        self._groups += 1

    def popDebugGroup(self) -> None:
        self._check_open("popDebugGroup")
        self._simulation.demand(self._groups > 0, "debug-groups", f"{self!r}: a group is popped that nobody pushed")
        self._groups -= 1

    def insertDebugSignpost_(self, name: str) -> None:
        self._check_open("insertDebugSignpost")

    def updateFence_(self, fence: Fence) -> None:
        self._check_open("updateFence")
        self._pass.updates.append(self._encoded.reference(fence))

    def waitForFence_(self, fence: Fence) -> None:
        self._check_open("waitForFence")
        self._pass.waits.append(self._encoded.reference(fence))

    def _add(self, command: Command, apart: bool = True) -> None:
        """Add a command, ordered behind those before it if `apart`."""
        if apart and self._pass.groups[-1]:
            self._pass.groups.append([])
        self._pass.groups[-1].append(command)

    def _check_open(self, what: str) -> None:
        if self._ended:
            self._simulation.refuse("ended-encoder", f"{self!r}: {what} behind endEncoding")

    def __del__(self) -> None:
        if not self.__dict__.get("_ended", True):
            self._simulation.record(RULES["one-encoder"], f"{self!r}: released without endEncoding")


class BlitEncoder(Encoder, registered="MTLBlitCommandEncoder"):
    """Fills and copies."""

    def fillBuffer_range_value_(self, buffer: Buffer, range: Any, value: int) -> None:
        self._check_open("fillBuffer")
        start, length = range
        self._check_blit(buffer, start, length)
        target = self._encoded.reference(buffer)

        def fill() -> list[Access]:
            live = target()
            live._bytes[start : start + length] = value & 0xFF
            return [access(live, start, length, True, "a fill")]

        self._add(fill)

    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: Buffer, start: int, target: Buffer, to: int, length: int
    ) -> None:
        self._check_open("copyFromBuffer")
        self._check_blit(source, start, length)
        self._check_blit(target, to, length)
        apart = source._block is not target._block or (
            source._start + start + length <= target._start + to or target._start + to + length <= source._start + start
        )
        self._simulation.demand(apart, "blit-range", f"{self!r}: source and destination overlap")
        read, written = self._encoded.reference(source), self._encoded.reference(target)

        def copy() -> list[Access]:
            origin, live = read(), written()
            live._bytes[to : to + length] = origin._bytes[start : start + length]
            return [access(origin, start, length, False, "a copy"), access(live, to, length, True, "a copy")]

        self._add(copy)

    def synchronizeResource_(self, resource: Resource) -> None:
        self._check_open("synchronizeResource")
        self._simulation.demand(
            storage_of(resource._options) == MANAGED, "synchronize-managed", f"{self!r}: {resource!r} is not managed"
        )

    def optimizeContentsForGPUAccess_(self, resource: Resource) -> None:
        self._check_open("optimizeContentsForGPUAccess")

    def optimizeContentsForCPUAccess_(self, resource: Resource) -> None:
        self._check_open("optimizeContentsForCPUAccess")

    def _check_blit(self, buffer: Buffer, start: int, length: int) -> None:
        buffer._check_usable()
        if start % 4 or length % 4:
            self._simulation.refuse("blit-alignment", f"{self!r}: {length} bytes at {start} of {buffer!r}")
        if length <= 0 or start + length > buffer._length:
            text = f"{self!r}: {length} bytes at {start} of {buffer!r}, which has {buffer._length}"
            self._simulation.refuse("blit-range", text)


def access(buffer: Buffer, start: int, length: int, write: bool, what: str) -> Access:
    """Return what a command does to a range of a buffer."""
    begin = buffer._start + start
    return Access(buffer._block, begin, begin + length, write, buffer._tracked, f"{what} of {buffer!r}")
