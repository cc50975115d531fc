"""Where work goes: which stream takes it, and when none should (M15).

Streams are few and all alike. What follows a submission goes behind it on the same stream, where order costs nothing.
What waits for several, or for one that has others behind it already, needs a stream that would otherwise be empty, and
only half of them may stand waiting: a stream parked on an event holds up one of the device's few hardware queues, and
what is behind it too. The rest stays on the host until its waits are over. Independent work takes an empty stream; if
there is none it goes behind other independent work, never behind a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.driver import DriverQueue, EpochTimeline, Ticket, Work

from ._errors import translate
from ._native import NativeError
from .encoding import ENCODERS, REPORTED, NotNow
from .stream import BUDGET, Stream

if TYPE_CHECKING:
    from .device import CudaDevice

Waits = list[tuple[Any, int]]


class CudaQueue(DriverQueue):
    """Issues onto the streams of one priority.

    Args:
        device: the device.
        priority: the native priority of its streams.

    """

    _reported = REPORTED
    """What goes to threads of the driver instead of a stream."""

    def __init__(self, device: CudaDevice, priority: int) -> None:
        self._device = device
        self._priority = priority
        self._last: Stream | None = None

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        device = self._device
        if device.quiet:
            return False
        kind = type(work)
        open_waits: Waits = [wait for wait in waits if wait[0].reached < wait[1]] if waits else []
        submit = device.submit
        pushed = False
        try:
            if not waits:  # what is reached but not retired may still have failed, and nobody would ask again
                take = self._reported.get(kind)
                if take is not None:
                    taken = take(device, ticket, work)
                    if taken is not None:
                        return taken
            pushed = submit.enter(device.context)
            with device.lock:
                if device.garbage:
                    device.sweep()
                return self._issue_locked(ticket, work, kind, open_waits, bool(waits))
        except NativeError as error:
            raise translate(error) from error
        finally:
            if pushed:
                submit.leave()
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
        foreign = [wait for wait in open_waits if wait[0] is not stream] if open_waits else ()
        stream.put(ticket, encoded, foreign)
        self._last = stream
        return True

    def _choose(self, open_waits: Waits) -> Stream | None:
        if not open_waits:
            last = self._last
            return last if last is not None and last.idle and not last.lent else self._independent()
        if len(open_waits) == 1 or self._device.may_park():
            for stream, epoch in open_waits:
                mine = stream.priority == self._priority and not stream.lent  # and no other library's
                if mine and epoch == stream.issued and stream.places < BUDGET:
                    return stream  # type: ignore[no-any-return]
        return self._device.empty_stream(self._priority) if self._device.may_park() else None

    def _independent(self) -> Stream | None:
        device = self._device
        empty = device.empty_stream(self._priority)
        if empty is not None:
            return empty
        streams = [stream for stream in device.streams_of(self._priority) if not stream.lent and not stream.parked]
        least = min(streams, key=_load, default=None)
        if least is not None:
            least.collect(BUDGET)
        return least if least is not None and least.places < BUDGET else None


def _load(stream: Stream) -> int:
    return stream.issued - stream.reached
