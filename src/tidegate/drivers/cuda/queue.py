"""Where work goes: how a submission comes onto a stream, unless the compiled way takes it.

Which stream takes it, and when none should, is decided in `native/placement.pxi` for both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.driver import DriverQueue, EpochTimeline, Ticket, Work

from ._errors import translate
from ._native import NativeError
from .encoding import ENCODERS, REPORTED, NotNow
from .native.compiled import QueueState
from .stream import Stream

if TYPE_CHECKING:
    from .device import CudaDevice

Waits = list[tuple[Any, int]]


class CudaQueue(QueueState, DriverQueue):
    """Issues onto the streams of one priority.

    Args:
        device: the device.
        priority: the native priority of its streams.
        takes_all: whether the compiled way may put work wherever it finds a place.

    """

    _reported = REPORTED
    """What goes to threads of the driver instead of a stream."""

    def __init__(self, device: CudaDevice, priority: int, takes_all: bool = True) -> None:
        super().__init__(device, priority, takes_all)
        self._device = device

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        device = self._device
        if device.quiet:
            return False
        kind = type(work)
        open_waits: Waits = [wait for wait in waits if wait[0].reached < wait[1]] if waits else []
        try:
            if not waits:  # what is reached but not retired may still have failed, and nobody would ask again
                take = self._reported.get(kind)
                if take is not None:
                    taken = take(device, ticket, work)
                    if taken is not None:
                        return taken
            with device.entered(), device.lock:
                if device.garbage:
                    device.sweep()
                return self._issue_locked(ticket, work, kind, open_waits, bool(waits))
        except NativeError as error:
            raise translate(error) from error
        finally:
            if device.doomed is not None:
                device.lose(device.doomed)

    def _issue_locked(self, ticket: Ticket, work: Work, kind: type[Work], open_waits: Waits, follows: bool) -> bool:
        encoder = ENCODERS.get(kind)
        if encoder is None or self._device.quiet:  # it may have come since
            return False
        stream = self._choose(open_waits)
        if stream is None:
            return False
        # Also where all of them are reached: what is not retired may still have to copy into host memory.
        stream.open_waits = follows
        try:
            encoded = encoder(self._device, work, stream)
        except NotNow:
            return False
        foreign = [wait for wait in open_waits if wait[0] is not stream and wait[0].reached < wait[1]]
        for wait in foreign:
            wait[0].event_at(wait[1])  # an epoch that an interrupt left open is closed before somebody follows it
        stream.put(ticket, encoded, foreign)
        return True

    def _choose(self, open_waits: Waits) -> Stream | None:
        waits = [(stream.state, epoch) for stream, epoch in open_waits]
        found = self.choose(waits)
        while found is None:
            self._device.make_stream(self.priority)
            found = self.choose(waits)
        return found.timeline if found else None
