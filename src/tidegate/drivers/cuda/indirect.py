"""Indirect dispatch (M32): CUDA reads no grid from memory, so the host does.

A recording is split there. What comes before goes onto a stream that is lent for this execution, and behind it a copy
of the counts into page-locked memory. When that is over, a thread of the driver reads the counts, launches, and goes on
with the rest. Indirect dispatches that stand next to each other, and do not follow one another, are read together.

What it costs: for each split the device runs dry for the time it takes to wake a thread, 0.1 ms on an idle host, 5 ms
and more beside busy Python threads; one indirect dispatch and a wait for it take 0.2 ms, a direct one 0.05. The
submission is reported by the host rather than counted by a stream, so what depends on it is held on the host as well,
and it takes one of the streams until it is over. Counts that the host knows are better given to `dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_uint32
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.driver import Command, DispatchIndirect, Recording, Span, Ticket
from tidegate.errors import OutOfRangeError

from ._errors import is_loss, translate
from ._native import NativeError
from .encoding import Encoded, NotNow, address_of
from .stream_command_buffer import launch_of

if TYPE_CHECKING:
    from .device import CudaDevice
    from .page_locked import LockedBlock
    from .stream import Stream

COUNTS = 12
"""Three times 32 bits."""

TOGETHER = 64
"""So many are read together at most: each takes a place of the stream for its counts, and one for its launch."""


class Part(NamedTuple):
    """Commands without a split, prepared, or None; and the indirect dispatches behind them."""

    form: Any
    dispatches: tuple[DispatchIndirect, ...]


class SplitCommandBuffer:
    """A recording with indirect dispatches.

    Args:
        recording: what was recorded.
        form: makes the native form of a part of it.

    """

    cold = True

    def __init__(self, recording: Recording, form: Callable[[Recording], Any]) -> None:
        self.parts = [
            Part(form(_part_of(recording, plain)) if plain else None, dispatches)
            for plain, dispatches in split(recording.commands)
        ]

    def warm(self, table: Sequence[Span]) -> None:
        """Make what the parts need. The context is current, the device's lock not held."""
        for part in self.parts:
            if part.form is not None and part.form.cold:
                part.form.warm(table)

    def encode(self, table: Sequence[Span], stream: Any) -> Encoded:
        """It goes onto no stream as one piece of work: it comes again when its waits are over."""
        raise NotNow


def split(commands: Sequence[Command]) -> list[tuple[list[int], tuple[DispatchIndirect, ...]]]:
    """Return, in order, the commands by index that come before each split, and the indirect dispatches there."""
    parts: list[tuple[list[int], tuple[DispatchIndirect, ...]]] = []
    plain: list[int] = []
    together: dict[int, DispatchIndirect] = {}
    for index, command in enumerate(commands):
        work = command.work
        joins = isinstance(work, DispatchIndirect) and together.keys().isdisjoint(command.after)
        if together and not (joins and len(together) < TOGETHER):
            parts.append((plain, tuple(together.values())))
            plain, together = [], {}
        if isinstance(work, DispatchIndirect):
            together[index] = work
        else:
            plain.append(index)
    parts.append((plain, tuple(together.values())))
    return parts


def _part_of(recording: Recording, chosen: list[int]) -> Recording:
    """Return some commands as a recording of their own; what they follow outside of it is over before they begin."""
    position = {index: place for place, index in enumerate(chosen)}
    commands = [
        Command(command.work, tuple(position[index] for index in command.after if index in position), command.groups)
        for command in (recording.commands[index] for index in chosen)
    ]
    return Recording(tuple(commands), recording.slots, recording.label, recording.one_shot)


class LentStream:
    """A stream for the time it is lent: one submission alone on it, over when that is."""

    state = None

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.device = stream.device
        self.handle = stream.handle
        self.issued = 1
        self.reached = 0


class Run:
    """One execution on its way through its parts. Begins on one of the driver's threads, and goes on there."""

    def __init__(self, device: CudaDevice, ticket: Ticket, parts: Sequence[Part], table: Sequence[Span]) -> None:
        self._device = device
        self._ticket = ticket
        self._parts = parts
        self._table = table
        self._next = 0
        self._begun = False
        self._error: BaseException | None = None
        self._counts: LockedBlock | None = None
        self._stream: Stream | None = None
        self._lent: LentStream | None = None

    def borrow(self) -> bool:
        """Have a stream for itself, until its end. False: there is none now."""
        device = self._device
        with device.entered(), device.lock:
            stream = self._stream = device.spare_stream()
            if stream is not None:
                stream.state.lent = True  # not before: whoever has one gives it back
        return stream is not None

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:  # interrupted before it began; or the device is closed
            stream.state.lent = False

    def start(self) -> None:
        """Hand it to the driver's threads."""
        assert self._stream is not None
        self._lent = LentStream(self._stream)
        try:
            self._ticket.taken = True
            self._device.sleepers.run(self._begin)
        except BaseException:
            self._device.sleepers.run(self._begin)  # an interrupt may have come before or behind; the first one counts
            raise

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._step(self._first)

    def _first(self) -> None:
        most = max(len(part.dispatches) for part in self._parts)
        self._counts = self._device.default_pool.page_locked.take(most * COUNTS)
        self._go_on()

    def _step(self, action: Callable[[], None]) -> None:
        """Do something on the stream; what it raises ends the run, when what is on the stream is over."""
        device = self._device
        try:
            with device.entered(), device.lock:
                action()
        except NativeError as error:
            if is_loss(error):
                device.lose(error)
            self._fail(translate(error))
        except BaseException as error:
            self._fail(error)

    def _go_on(self) -> None:
        """Put the next part on the stream."""
        stream: Any = self._lent
        assert self._counts is not None
        if self._next == len(self._parts):
            self._when_over(self._end)
            return
        part = self._parts[self._next]
        if part.form is not None:
            part.form.encode(self._table, stream).run(stream)
        if not part.dispatches:
            self._next += 1
            self._go_on()
            return
        for place, work in enumerate(part.dispatches):
            counts = address_of(work.counts.bind(self._table))
            self._device.native.copy(self._counts.address + place * COUNTS, counts, COUNTS, stream.handle)
        self._when_over(lambda: self._step(self._launch))

    def _launch(self) -> None:
        """The counts are there."""
        native, stream = self._device.native, self._lent
        assert stream is not None
        assert self._counts is not None
        dispatches = self._parts[self._next].dispatches
        found = (c_uint32 * (3 * len(dispatches))).from_address(self._counts.address)
        for place, work in enumerate(dispatches):
            groups = (found[3 * place], found[3 * place + 1], found[3 * place + 2])
            if 0 not in groups:
                _check(work, groups)
                native.launch(launch_of(work, groups, self._table), stream.handle)
        self._next += 1
        self._go_on()

    def _when_over(self, then: Callable[[], None]) -> None:
        """Go on when everything on the stream is over."""
        device, stream = self._device, self._lent
        assert stream is not None
        event = device.sleep_events.take()
        device.native.record_event(event.handle, stream.handle)
        device.after_event(event, then)

    def _fail(self, error: BaseException) -> None:
        """End with an error, but not before what is on the stream: it uses the submission's memory."""
        self._error = error
        try:
            with self._device.entered(), self._device.lock:
                self._when_over(self._end)
        except BaseException:
            self._end()  # the device is lost, or closed: nothing runs any more

    def _end(self) -> None:
        stream, ticket, error = self._lent, self._ticket, self._error
        assert stream is not None
        stream.reached = stream.issued
        # The memory must be free before the end is told: whoever waits for it may allocate at once.
        self._parts = self._table = ()
        self._error = None
        if self._counts is not None:
            self._device.default_pool.page_locked.give(self._counts)
        self._stream = None
        self._device.return_stream(stream.stream)
        self._device.sink.finished(ticket, error)


def _check(work: DispatchIndirect, groups: tuple[int, int, int]) -> None:
    most = work.function.limits.max_workgroups
    if any(count > limit for count, limit in zip(groups, most, strict=True)):
        raise OutOfRangeError(
            f"function {work.function.name!r}: the indirect counts are {groups}, and the device takes {most} at most"
        )


def take(device: CudaDevice, ticket: Ticket, parts: Sequence[Part], table: Sequence[Span]) -> bool:
    """Begin an execution on a stream that is lent for it. False: there is none now."""
    run = Run(device, ticket, parts, table)
    lent = run.borrow()
    if lent:
        run.start()
    return lent
