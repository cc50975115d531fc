"""Command buffers: from the first encoder to the last handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .compute_encoder import ComputeEncoder
from .encoders import BlitEncoder, Encoder
from .events import Event
from .execution import COMMITTED, COMPLETED, SCHEDULED, Encoded, Signal, Wait
from .objects import Labelled

if TYPE_CHECKING:
    from .queue import Queue

__all__ = ["CommandBuffer"]


class CommandBuffer(Labelled, registered="MTLCommandBuffer"):
    """An MTLCommandBuffer."""

    _autoreleased = frozenset({"blitCommandEncoder", "computeCommandEncoder", "computeCommandEncoderWithDispatchType_"})

    def __init__(self, queue: Queue, retained: bool) -> None:
        super().__init__(queue._simulation)
        queue._line.take_place()
        self._queue = queue
        self._line = queue._line
        self._encoded = Encoded(retained)
        self._encoder: Encoder | None = None

    def device(self) -> Any:
        return self._queue._device

    def commandQueue(self) -> Any:
        return self._queue

    def retainedReferences(self) -> bool:
        return self._encoded.retained

    def status(self) -> int:
        encoded = self._encoded
        if encoded.status >= COMPLETED:
            self._simulation.hazards.host_saw(encoded.over)
        return encoded.status

    def error(self) -> Any:
        return self._encoded.error

    def errorOptions(self) -> int:
        return 0

    def GPUStartTime(self) -> float:
        return 0.0

    def GPUEndTime(self) -> float:
        return 0.0

    def logs(self) -> Any:
        return ()

    # Encoding

    def encodeWaitForEvent_value_(self, event: Event, value: int) -> None:
        self._check_open("an event wait")
        self._encoded.operations.append(Wait(self._encoded.reference(event), value))

    def encodeSignalEvent_value_(self, event: Event, value: int) -> None:
        self._check_open("an event signal")
        self._encoded.operations.append(Signal(self._encoded.reference(event), value))

    def blitCommandEncoder(self) -> Any:
        self._check_open("an encoder")
        self._encoder = BlitEncoder(self)
        return self._encoder

    def computeCommandEncoder(self) -> Any:
        return self._begin_compute(concurrent=False)

    def computeCommandEncoderWithDispatchType_(self, type: int) -> Any:
        return self._begin_compute(concurrent=type == 1)

    def pushDebugGroup_(self, name: str) -> None:
        self._check_open("a debug group")

    def popDebugGroup(self) -> None:
        self._check_open("a debug group")

    # Execution

    def addScheduledHandler_(self, block: Any) -> None:
        self._check_not_committed("handler-before-commit", "a scheduled handler")
        self._encoded.scheduled.append(block)

    def addCompletedHandler_(self, block: Any) -> None:
        self._check_not_committed("handler-before-commit", "a completed handler")
        self._encoded.completed.append(block)

    def enqueue(self) -> None:
        self._check_not_committed("commit-once", "enqueue")
        self._line.enqueue(self._encoded)

    def commit(self) -> None:
        self._check_open("commit")
        self._simulation.count("commits")
        self._line.commit(self._encoded, self)

    def waitUntilScheduled(self) -> None:
        self._check_committed()
        self._line.wait(self._encoded, SCHEDULED)

    def waitUntilCompleted(self) -> None:
        self._check_committed()
        self._line.wait(self._encoded, COMPLETED)

    def _begin_compute(self, concurrent: bool) -> ComputeEncoder:
        self._check_open("an encoder")
        self._encoder = ComputeEncoder(self, concurrent)
        return self._encoder

    def _check_not_committed(self, rule: str, what: str) -> None:
        if self._encoded.status >= COMMITTED:
            self._simulation.refuse(rule, f"{self!r}: {what} behind the commit")

    def _check_open(self, what: str) -> None:
        self._check_not_committed("commit-once", what)
        if self._encoder is not None and not self._encoder._ended:
            self._simulation.refuse("one-encoder", f"{self!r}: {what} while an encoder is open")

    def _check_committed(self) -> None:
        if self._encoded.status < COMMITTED:
            self._simulation.refuse("wait-after-commit", f"{self!r}: a wait before the commit")

    def __del__(self) -> None:
        encoded = self.__dict__.get("_encoded")
        if encoded is not None and encoded.status < COMMITTED:
            self._line.give_up(encoded)
