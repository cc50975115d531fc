"""Work into a command buffer: blit and compute encoders, and the order within (M29 to M32).

A recording is encoded anew for each execution: its bindings may differ, and Metal's command buffers are used once.
Compute encoders are concurrent, so that commands without an order may overlap; a barrier or an edge becomes a memory
barrier there. Blit encoders know no barrier, and are ended instead. From one encoder to the next Metal itself orders
what conflicts, because all memory is hazard-tracked.

Blits are for offsets and lengths that are multiples of 4, as macOS wants them; the rest are kernels of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.driver import (
    Allocate,
    Barrier,
    Binding,
    Copy,
    Dispatch,
    DispatchIndirect,
    Download,
    Execute,
    Fill,
    Free,
    Span,
    Update,
    Upload,
    Work,
)
from tidegate.drivers.metal import MAX_BINDINGS, _native
from tidegate.drivers.metal._errors import given
from tidegate.drivers.metal._native import Object
from tidegate.drivers.metal.executable import MetalFunction, constant_bytes
from tidegate.drivers.metal.memory import MetalStorage
from tidegate.drivers.metal.retire import Flight
from tidegate.drivers.metal.shared_event import EventBarrier
from tidegate.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tidegate.drivers.metal.device import MetalDevice

GRID = 4
"""What offsets and lengths of blits are multiples of."""
INLINE = 4096
"""The most bytes that a command buffer takes as a constant; larger ones are staged."""
LIGHT = 256 * 1024
"""Copies on the host up to so many bytes are done by whoever looks or issues; larger ones by threads for that."""
_LOCAL_STEP = 16
Place = tuple[Object, int, int]
"""A buffer, an offset and a length."""


class Encoder:
    """The commands of one command buffer, one native encoder at a time."""

    def __init__(self, device: MetalDevice, flight: Flight) -> None:
        self.device = device
        self.kept = flight.kept
        self.flight = flight
        self.commands = flight.commands
        self._made: list[Object] = []
        self._ended: list[None] = []
        self._kind = ""
        self._groups: tuple[str, ...] = ()
        self._open: tuple[str, ...] = ()
        self._pushed: list[None] = []
        self._popped: list[None] = []

    def place(self, binding: Binding, table: Sequence[Span]) -> Place:
        """Return where a range is, and keep its storage until the command buffer is over."""
        span = binding.bind(table)
        storage, offset = span.locate()
        assert isinstance(storage, MetalStorage)
        self.kept.append(storage)
        return storage.buffer, offset, span.nbytes

    def blit(self) -> Object:
        """Return a blit encoder, at the end of the commands so far."""
        return self._encoder("blit", _native.blit_encoder)

    def compute(self) -> Object:
        """Return a compute encoder, at the end of the commands so far."""
        return self._encoder("compute", _native.compute_encoder)

    def _encoder(self, kind: str, make: Callable[[Object, list[Object]], None]) -> Object:
        if self._kind != kind:
            self.end()
            make(self.commands, self._made)
            if self._made[-1] is None:
                given(self._made.pop(), f"{kind} encoder")
            self._kind = kind
        if self._open != self._groups:
            self._regroup(self._groups)
        return self._made[-1]

    def barrier(self) -> None:
        """Order what follows behind all that precedes."""
        if self._kind == "compute":
            _native.barrier(self._made[-1])
        else:
            self.end()

    def group(self, groups: tuple[str, ...]) -> None:
        """Have what follows stand in these debug groups."""
        self._groups = groups

    def _regroup(self, groups: tuple[str, ...]) -> None:
        """Leave and enter groups of the native encoder until they are `groups`."""
        common = 0
        while common < min(len(groups), len(self._open)) and groups[common] == self._open[common]:
            common += 1
        while len(self._pushed) - len(self._popped) > common:
            _native.pop_group(self._made[-1], self._popped)
        for name in groups[common:]:
            _native.push_group(self._made[-1], name, self._pushed)
        self._open = groups

    def end(self) -> None:
        """End the native encoder, if there is one. After an interrupt it goes on where it was."""
        if len(self._made) > len(self._ended):
            self._open = ()
            self._regroup(())
            _native.end_encoding(self._made[-1], self._ended)
        self._kind = ""

    # What the commands are made of ---------------------------------------------------------------------------------

    def copy(self, source: Object, start: int, target: Object, to: int, length: int) -> None:
        """Copy bytes between ranges that do not overlap."""
        if length == 0:
            return
        if start % GRID or to % GRID or length % GRID:
            self.device.kernels.copy(self, source, start, target, to, length)
        else:
            _native.copy(self.blit(), source, start, target, to, length)

    def fill(self, target: Object, start: int, length: int, pattern: bytes) -> None:
        """Repeat a pattern of 1, 2 or 4 bytes."""
        if length == 0:
            return
        if start % GRID or length % GRID or len(set(pattern)) > 1:
            self.device.kernels.fill(self, target, start, length, pattern)
        else:
            _native.fill(self.blit(), target, start, length, pattern[0])

    def set_function(
        self, function: MetalFunction, bindings: Sequence[Binding], constants: Sequence[Any], local: int, table: Any
    ) -> Object:
        """Return a compute encoder with a function and its arguments set: bindings first, then constants."""
        if len(bindings) + len(constants) > MAX_BINDINGS:
            raise InvalidArgumentError(
                f"function {function.name!r}: {len(bindings)} bindings and {len(constants)} constants are more than the"
                f" {MAX_BINDINGS} arguments that Metal passes; put some into a structured constant"
            )
        encoder = self.compute()
        self.kept.append(function)
        _native.set_pipeline(encoder, function.pipeline)
        for index, binding in enumerate(bindings):
            buffer, offset, nbytes = self.place(binding, table)
            # An empty range may begin at the buffer's end, which is no offset that Metal takes.
            _native.set_buffer(encoder, buffer, offset if nbytes else 0, index)
        for index, value in enumerate(constants, len(bindings)):
            self._set_constant(encoder, constant_bytes(value), index)
        if local:
            function.check_local(local)
            _native.set_threadgroup_bytes(encoder, -(-local // _LOCAL_STEP) * _LOCAL_STEP)
        return encoder

    def _set_constant(self, encoder: Object, data: bytes, index: int) -> None:
        if len(data) <= INLINE:
            _native.set_bytes(encoder, data, index)
        else:
            buffer, offset = self.device.staging.put(data, self.kept)
            _native.set_buffer(encoder, buffer, offset, index)


def encode(device: MetalDevice, flight: Flight, work: Work) -> None:
    """Encode all of a submission's work; raises without having left an encoder open."""
    encoder = Encoder(device, flight)
    try:
        ENCODE[type(work)](encoder, work, ())
        encoder.end()
    except BaseException:
        encoder.end()
        raise


def _nothing(_encoder: Encoder, _work: Work, _table: Sequence[Span]) -> None:
    return None


def _fill(encoder: Encoder, work: Fill, table: Sequence[Span]) -> None:
    encoder.fill(*encoder.place(work.target, table), work.pattern)


def _update(encoder: Encoder, work: Update, table: Sequence[Span]) -> None:
    target, to, _ = encoder.place(work.target, table)
    if work.data:
        source, start = encoder.device.staging.put(work.data, encoder.kept)
        encoder.copy(source, start, target, to, len(work.data))


def _copy(encoder: Encoder, work: Copy, table: Sequence[Span]) -> None:
    source, start, length = encoder.place(work.source, table)
    target, to, _ = encoder.place(work.target, table)
    encoder.copy(source, start, target, to, length)


def _upload(encoder: Encoder, work: Upload, table: Sequence[Span]) -> None:
    """By way of memory of our own, since the user's is rarely whole pages.

    Large arrays are copied by a thread for that; the command buffer then waits for an event, which the thread signals.
    """
    target, to, length = encoder.place(work.target, table)
    if length == 0:
        return
    encoder.kept.append(work.array)
    source, finished = encoder.device.copier.bring(work.array, encoder.kept, at_once=length <= LIGHT)
    if finished is not None:
        encoder.kept.append(finished[0])
        _native.encode_wait(encoder.commands, *finished)
    encoder.copy(source, 0, target, to, length)


def _download(encoder: Encoder, work: Download, table: Sequence[Span]) -> None:
    """By way of memory of our own, from which the host copies when the command buffer is over."""
    source, start, length = encoder.place(work.source, table)
    if length == 0:
        return
    storage = encoder.device.readback.allocate(length, "shared")
    encoder.kept.append(storage)
    encoder.copy(source, start, storage.buffer, 0, length)
    found, array = storage.host(), work.array
    flight = encoder.flight
    flight.finish = lambda: np.copyto(array, found)  # type: ignore[arg-type]
    flight.heavy = length > LIGHT


def _dispatch(encoder: Encoder, work: Dispatch, table: Sequence[Span]) -> None:
    if 0 in work.workgroups:
        return
    function = work.function
    assert isinstance(function, MetalFunction)
    native = encoder.set_function(function, work.bindings, work.constants, work.local_memory, table)
    _native.dispatch(native, work.workgroups, function.workgroup)


def _dispatch_indirect(encoder: Encoder, work: DispatchIndirect, table: Sequence[Span]) -> None:
    function = work.function
    assert isinstance(function, MetalFunction)
    counts, offset, _ = encoder.place(work.counts, table)
    native = encoder.set_function(function, work.bindings, work.constants, work.local_memory, table)
    _native.dispatch_indirect(native, counts, offset, function.workgroup)


def _event_barrier(encoder: Encoder, work: EventBarrier, _table: Sequence[Span]) -> None:
    for event, value in work.signals:
        encoder.kept.append(event)
        _native.encode_signal(encoder.commands, event, value)
    for event, value in work.waits:
        encoder.kept.append(event)
        _native.encode_wait(encoder.commands, event, value)


def _execute(encoder: Encoder, work: Execute, _table: Sequence[Span]) -> None:
    ordered = 0
    """All commands below this index are ordered before whatever comes next."""
    for index, command in enumerate(work.recording.commands):
        if isinstance(command.work, Barrier) or any(edge >= ordered for edge in command.after):
            encoder.barrier()
            ordered = index + isinstance(command.work, Barrier)
        if not isinstance(command.work, Barrier):
            encoder.group(command.groups)
            ENCODE[type(command.work)](encoder, command.work, work.table)


Encode = Callable[[Encoder, Any, Sequence[Span]], None]

ENCODE: dict[type[Work], Encode] = {
    Barrier: _nothing,
    Allocate: _nothing,
    Free: _nothing,
    Fill: _fill,
    Update: _update,
    Upload: _upload,
    Download: _download,
    Copy: _copy,
    Dispatch: _dispatch,
    DispatchIndirect: _dispatch_indirect,
    Execute: _execute,
    EventBarrier: _event_barrier,
}
