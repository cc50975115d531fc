"""Which native form a recording takes, and how it is executed.

| recording | `commands=auto` | `graph` | `stream` |
| --- | --- | --- | --- |
| can be reused | graph | graph | stream |
| one-shot, 16 commands or fewer | stream | graph | stream |
| one-shot, more | graph | graph | stream |
| more than 200 commands | graph | graph | graph |
| with indirect dispatches | split there, each part as above | | |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.driver import DispatchIndirect, Execute, Recording, Ticket

from ._errors import translated
from .encoding import ENCODERS, REPORTED, Encoded
from .graph_command_buffer import GraphCommandBuffer
from .graph_order import does_nothing
from .indirect import Part, SplitCommandBuffer, take
from .stream_command_buffer import MOST, StreamCommandBuffer

if TYPE_CHECKING:
    from .device import CudaDevice
    from .stream import Stream

FEW = 16
"""Making a graph of so many commands costs more than calling them once."""

Form = GraphCommandBuffer | StreamCommandBuffer | SplitCommandBuffer


def prepare(device: CudaDevice, recording: Recording) -> Form:
    """Return the native form of a finished recording. Nothing native is made yet."""
    if any(isinstance(command.work, DispatchIndirect) for command in recording.commands):
        return SplitCommandBuffer(recording, lambda part: _form(device, part))
    return _form(device, recording)


def _form(device: CudaDevice, recording: Recording) -> Form:
    count = sum(not does_nothing(command.work) for command in recording.commands)
    wanted = device.options["commands"]
    if wanted == "auto":
        wanted = "stream" if recording.one_shot and count <= FEW else "graph"
    kind = StreamCommandBuffer if wanted == "stream" and count <= MOST else GraphCommandBuffer
    return kind(device, recording)


def _encode_execute(device: CudaDevice, work: Execute, stream: Stream) -> Encoded:
    return work.prepared.encode(work.table, stream)  # type: ignore[no-any-return]


def _take_execute(device: CudaDevice, ticket: Ticket, work: Execute) -> bool | None:
    """Do without the lock what takes a while; begin what cannot go onto a stream as one piece."""
    form: Form = work.prepared
    if not form.cold:
        return None
    with translated(), device.entered():
        form.warm(work.table)
        return take(device, ticket, form.parts, work.table) if isinstance(form, SplitCommandBuffer) else None


def _take_dispatch(device: CudaDevice, ticket: Ticket, work: DispatchIndirect) -> bool | None:
    with translated(), device.entered():
        return take(device, ticket, (Part(None, (work,)),), ())


ENCODERS[Execute] = _encode_execute
REPORTED[Execute] = _take_execute
REPORTED[DispatchIndirect] = _take_dispatch
