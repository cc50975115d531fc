"""Command buffers: recorded once, submitted many times (M29 to M32)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..driver import (
    Barrier,
    Binding,
    Command,
    Copy,
    Dispatch,
    DispatchIndirect,
    Execute,
    Fill,
    Recording,
    SlotSpan,
    Update,
    Work,
)
from ..errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from ..types import Slot
from .checks import check_copy, check_fill, checked_counts, checked_int, update_data
from .compiled import BaseCommands, Memory, Span, call_driver, pattern_of, target_range
from .kernel import Function, checked_workgroups

if TYPE_CHECKING:
    from .buffer import Buffer
    from .device import Device

UPDATE_LIMIT = 64 * 1024
"""The most bytes a recorded update may carry (M27): it lives inside of the command buffer."""

_UNKNOWN = (0, 0, 0)
"""Workgroups that are read from a buffer when the time comes."""


class Node:
    """A recorded command, to be named in `after=`."""

    __slots__ = ("commands", "index")

    def __init__(self, commands: CommandBuffer, index: int) -> None:
        self.commands = commands
        self.index = index


class CommandBuffer(BaseCommands):
    """Commands recorded once, immutable afterwards, and submitted with `queue.execute`.

    Commands without an order between them may run at the same time; `barrier()` and `after=` make order. Record from
    one thread at a time; submit from any, also from several queues at once. Use it as a context manager: leaving it
    ends the recording, an exception discards it.
    """

    # There once the recording has ended.
    _recording: Recording
    _prepared: Any
    _cost: int | None
    _checked_when_bound: list[Work]

    def __init__(self, device: Device, one_shot: bool, label: str) -> None:
        super().__init__(device, one_shot)
        self.label = label
        self._commands: list[Command] = []
        self._touched: dict[Memory, bool] = {}  # memory -> whether it is written
        self._slot_spans: list[SlotSpan] = []
        self._slots_written: set[int] = set()
        self._barrier: int | None = None
        self._since_barrier: list[int] = []
        self._groups: list[str] = []
        self._state = "recording"
        self._used = False

    def __repr__(self) -> str:
        return f"<tidegate.CommandBuffer {self.describe()}, {len(self._commands)} commands, {self._state}>"

    def describe(self) -> str:
        """Return how texts name it."""
        return f"command buffer {self.label!r}" if self.label else f"command buffer at {id(self):#x}"

    # The recording's life ------------------------------------------------------------------------------------------

    def __enter__(self) -> CommandBuffer:
        self._refuse_ended()
        return self

    def __exit__(self, kind: object, *_rest: object) -> None:
        if kind is not None:
            self._state = "discarded"
            self._forget()
        elif self._state == "recording":
            self.end()

    def end(self) -> None:
        """Finish the recording: from now on it is immutable and may be executed.

        Raises:
            FailedPreconditionError: a group is still open, or the recording has ended already.

        """
        self._refuse_ended()
        if self._groups:
            raise FailedPreconditionError(f"{self.describe()}: group {self._groups[-1]!r} is still open")
        # An execution looks at each different range once, however many commands name it (M31).
        self._slot_spans = list(dict.fromkeys(self._slot_spans))
        self._checked_when_bound = [command.work for command in self._commands if _is_checked_when_bound(command.work)]
        slots = max((span.index + 1 for span in self._slot_spans), default=0)
        recording = Recording(tuple(self._commands), slots, self.label, self.one_shot)
        self._prepared = call_driver(self.device._driver.prepare, recording)
        costs = [command.work.cost for command in self._commands]
        self._cost = None if None in costs else sum(cost or 0 for cost in costs)
        self._recording = recording
        self._state = "ended"
        if not self._slot_spans:
            read, written = self._named()
            self._ended(Execute(recording, self._prepared, (), self._cost), (*read, *written), len(read))

    def _forget(self) -> None:
        self._commands.clear()
        self._touched.clear()

    def _refuse_ended(self) -> None:
        if self._state != "recording":
            raise FailedPreconditionError(f"{self.describe()} is {self._state}: nothing more can be recorded")

    # Commands ------------------------------------------------------------------------------------------------------

    def fill(
        self,
        target: Buffer | Slot,
        pattern: int | bytes,
        *,
        offset: int = 0,
        length: int | None = None,
        after: Iterable[Node] = (),
    ) -> Node:
        """Record a fill: see `queue.fill`."""
        data = pattern_of(pattern)
        span = self._range(target, offset, length, "fill")
        if isinstance(span, Span):
            check_fill(span, data)
        return self._add(Fill(span, data), after, writes=[span])

    def update(self, target: Buffer | Slot, data: Any, *, offset: int = 0, after: Iterable[Node] = ()) -> Node:
        """Record an update of at most 64 KiB; the data is captured now."""
        captured = update_data(data)
        if len(captured) > UPDATE_LIMIT:
            raise InvalidArgumentError(
                f"{self.describe()}: an update of {len(captured)} bytes is over the {UPDATE_LIMIT} a recording may"
                " carry: upload it to a buffer and record a copy"
            )
        span = self._range(target, offset, len(captured), "update")
        return self._add(Update(span, captured), after, writes=[span])

    def copy(
        self,
        source: Buffer | Slot,
        target: Buffer | Slot,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        length: int | None = None,
        after: Iterable[Node] = (),
    ) -> Node:
        """Record a copy between ranges that do not overlap: see `queue.copy`."""
        read = self._range(source, source_offset, length, "copy")
        if length is None and isinstance(read, Span):
            length = read.nbytes
        written = self._range(target, target_offset, length, "copy")
        check_copy(read, written)
        return self._add(Copy(read, written), after, reads=[read], writes=[written])

    def dispatch(
        self,
        function: Function,
        workgroups: int | Sequence[int],
        *,
        bindings: Iterable[Buffer | Slot] = (),
        constants: Sequence[Any] = (),
        local_memory: int = 0,
        after: Iterable[Node] = (),
    ) -> Node:
        """Record a dispatch: see `queue.dispatch`. A binding may be a slot."""
        spans, values, local = self._call(function, bindings, constants, local_memory)
        counts = checked_workgroups(workgroups, f"function {function.name!r}: workgroups")
        function.check_launch(counts, local)
        return self._add(Dispatch(function._function, counts, spans, values, local), after, writes=spans)

    def dispatch_indirect(
        self,
        function: Function,
        *,
        counts: Buffer | Slot,
        counts_offset: int = 0,
        bindings: Iterable[Buffer | Slot] = (),
        constants: Sequence[Any] = (),
        local_memory: int = 0,
        after: Iterable[Node] = (),
    ) -> Node:
        """Record a dispatch whose three u32 workgroup counts are read from a buffer when it runs."""
        spans, values, local = self._call(function, bindings, constants, local_memory)
        function.check_launch(_UNKNOWN, local)
        where = self._range(counts, counts_offset, 12, "dispatch_indirect")
        checked_counts(where._offset if isinstance(where, Span) else where.offset)
        return self._add(
            DispatchIndirect(function._function, where, spans, values, local), after, reads=[where], writes=spans
        )

    def barrier(self) -> None:
        """Order everything recorded so far before everything recorded from now on."""
        self._refuse_ended()
        before = tuple(self._since_barrier) or (() if self._barrier is None else (self._barrier,))
        if not before:
            return
        index = len(self._commands)
        self._commands.append(Command(Barrier(), before, tuple(self._groups)))
        self._barrier = index
        self._since_barrier = []

    def begin_group(self, name: str) -> None:
        """Open a debug group; groups nest and must balance."""
        self._refuse_ended()
        self._groups.append(str(name))

    def end_group(self) -> None:
        """Close the innermost debug group."""
        self._refuse_ended()
        if not self._groups:
            raise FailedPreconditionError(f"{self.describe()}: there is no open group to end")
        self._groups.pop()

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Name the commands recorded inside, for traces and errors."""
        self.begin_group(name)
        try:
            yield
        finally:
            if self._state == "recording":
                self.end_group()

    # How they are taken in -----------------------------------------------------------------------------------------

    def _range(self, target: Any, offset: Any, length: Any, what: str) -> Span | SlotSpan:
        self._refuse_ended()
        if isinstance(target, Slot):
            index = checked_int(target.index, "index of a slot")
            start = checked_int(offset, "offset")
            size = None if length is None else checked_int(length, "length")
            if start < 0 or (size is not None and size < 0):
                raise OutOfRangeError(f"{self.describe()}: {what} of slot {index} at {start}, length {size}")
            return SlotSpan(index, start, size)
        return target_range(self.device, target, offset, length, what)

    def _call(
        self, function: Any, bindings: Iterable[Any], constants: Sequence[Any], local_memory: Any
    ) -> tuple[tuple[Binding, ...], tuple[Any, ...], int]:
        self._refuse_ended()
        if not isinstance(function, Function):
            raise TypeError(f"dispatch takes a function of an executable, not {type(function).__name__}")
        if function.device is not self.device:
            raise InvalidArgumentError(
                f"function {function.name!r} belongs to {function.device.describe()}, not to {self.device.describe()}"
            )
        spans = tuple(self._range(binding, 0, None, "binding") for binding in bindings)
        function.check_bindings(len(spans))
        local = checked_int(local_memory, "local memory")
        if local < 0:
            raise InvalidArgumentError(
                f"function {function.name!r}: the local memory is {local}, and must be 0 or more"
            )
        return spans, function.convert_constants(constants), local

    def _add(
        self, work: Work, after: Iterable[Node], *, reads: Sequence[Binding] = (), writes: Sequence[Binding] = ()
    ) -> Node:
        edges = {self._edge(node) for node in after}
        if self._barrier is not None:
            edges.add(self._barrier)
        # Nothing below refuses: a refused command leaves the recording as it was.
        index = len(self._commands)
        self._commands.append(Command(work, tuple(sorted(edges)), tuple(self._groups)))
        self._since_barrier.append(index)
        for span in reads:
            self._note(span, written=False)
        for span in writes:
            self._note(span, written=True)
        return Node(self, index)

    def _edge(self, node: Any) -> int:
        if not isinstance(node, Node):
            raise TypeError(f"after= takes nodes of this recording, not {type(node).__name__}")
        if node.commands is not self:
            raise InvalidArgumentError(f"{self.describe()}: after= names a node of {node.commands.describe()}")
        return node.index

    def _note(self, span: Binding, *, written: bool) -> None:
        if isinstance(span, SlotSpan):
            self._slot_spans.append(span)
            if written:
                self._slots_written.add(span.index)
        elif isinstance(span, Span):
            memory = span._memory
            self._touched[memory] = self._touched.get(memory, False) or written

    def _use(self) -> None:
        """Take the one execution that a one-shot recording has."""
        if self._used:
            raise FailedPreconditionError(f"{self.describe()} is one-shot and was executed already")
        self._used = True

    # Submitting ----------------------------------------------------------------------------------------------------

    def _execute(self, device: Device, bindings: Iterable[Any]) -> tuple[Execute, tuple[Memory, ...], int]:
        """Return the work of one execution and what it touches, those last that it writes, and where they begin.

        Raises what is wrong at the call.
        """
        if self.device is not device:
            raise InvalidArgumentError(
                f"{self.describe()} belongs to {self.device.describe()}, not to {device.describe()}"
            )
        if self._state != "ended":
            raise FailedPreconditionError(f"{self.describe()} is {self._state}: it cannot be executed")
        for memory in self._touched:
            memory.refuse_unusable()
        table = tuple(target_range(device, entry, 0, None, "binding table") for entry in bindings)
        for span in self._slot_spans:
            if span.index >= len(table):
                raise OutOfRangeError(
                    f"{self.describe()}: slot {span.index} has no entry: the binding table has {len(table)}",
                    slot=span.index,
                    table=len(table),
                )
            span.bind(table)
        for work in self._checked_when_bound:
            _check_bound(work, table)
        read, written = self._named()
        for index, entry in enumerate(table):
            (written if index in self._slots_written else read).append(entry._memory)
        return Execute(self._recording, self._prepared, table, self._cost), (*read, *written), len(read)

    def _named(self) -> tuple[list[Memory], list[Memory]]:
        """Return the memories that are named outside of slots: those only read, and those written."""
        read = [memory for memory, is_written in self._touched.items() if not is_written]
        return read, [memory for memory, is_written in self._touched.items() if is_written]


def _is_checked_when_bound(work: Work) -> bool:
    """Whether slots leave something to check until they are filled."""
    if isinstance(work, Fill):
        return isinstance(work.target, SlotSpan)
    if isinstance(work, Copy):
        return isinstance(work.source, SlotSpan) or isinstance(work.target, SlotSpan)
    return isinstance(work, DispatchIndirect) and isinstance(work.counts, SlotSpan)


def _check_bound(work: Work, table: Sequence[Any]) -> None:
    """Check, now that the slots are filled, what could not be checked at recording."""
    if isinstance(work, Fill):
        check_fill(work.target.bind(table), work.pattern)
    elif isinstance(work, Copy):
        source, target = work.source.bind(table), work.target.bind(table)
        if source.nbytes > target.nbytes:
            raise OutOfRangeError(f"copy: {source.nbytes} bytes of source do not fit {target.nbytes} bytes of target")
        check_copy(source, target)
    elif isinstance(work, DispatchIndirect):
        counts = work.counts.bind(table)
        assert isinstance(counts, Span)
        checked_counts(counts._offset)
