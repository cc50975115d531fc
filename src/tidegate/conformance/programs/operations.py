"""The operations that random programs are made of, each with what NumPy does in its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from .program import Operation, Span

_WORD = 4
_MOST_SLOTS = 2


@dataclass
class Memory:
    """What steps of a program may touch.

    Attributes:
        sizes: of the buffers.
        visible: which buffers a host call may map.
        arrays: the sizes of the host arrays.

    """

    sizes: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    arrays: list[int] = field(default_factory=list)

    def span(self, random: Random, kind: str = "b", *, length: int | None = None, align: int = 1) -> Span:
        """Return a range of a buffer or array, of a given length or any, aligned, perhaps empty."""
        sizes = self.sizes if kind == "b" else self.arrays
        fitting = [index for index, size in enumerate(sizes) if length is None or size >= length]
        index = random.choice(fitting)
        return self.span_of(random, kind, index, length=length, align=align)

    def span_of(self, random: Random, kind: str, index: int, *, length: int | None = None, align: int = 1) -> Span:
        """Return a range of one buffer or array."""
        size = (self.sizes if kind == "b" else self.arrays)[index]
        if length is None:
            length = size if random.random() < 0.3 else random.randint(0, size)
            length -= length % align
        offset = random.randint(0, (size - length) // align) * align
        return Span(kind, index, offset, length)

    def longest(self, kind: str) -> int:
        """Return the size of the largest one."""
        return max(self.sizes if kind == "b" else self.arrays)


def fill(random: Random, memory: Memory) -> Operation:
    """Repeat a pattern."""
    width = random.choice((1, 2, 4))
    pattern = random.randbytes(width)
    span = memory.span(random, align=width)
    call = f"fill(b[{span.index}], {pattern!r}, offset={span.offset}, length={span.length})"
    return Operation("fill", call, (f"{span.twin} = repeat({pattern!r}, {span.length})",), writes=(span,))


def update(random: Random, memory: Memory) -> Operation:
    """Write captured data."""
    span = memory.span(random)
    key = random.randrange(1000)
    call = f"update(b[{span.index}], data({key}, {span.length}), offset={span.offset})"
    return Operation("update", call, (f"{span.twin} = data({key}, {span.length})",), writes=(span,))


def copy(random: Random, memory: Memory) -> Operation | None:
    """Copy between buffers, or within one."""
    source = memory.span(random)
    target = memory.span(random, length=source.length)
    if source.overlaps(target):
        return None
    call = (
        f"copy(b[{source.index}], b[{target.index}], source_offset={source.offset}, target_offset={target.offset},"
        f" length={source.length})"
    )
    return Operation("copy", call, (f"{target.twin} = {source.twin}",), (source,), (target,))


def upload(random: Random, memory: Memory) -> Operation:
    """Borrow a host array."""
    length = random.randint(0, min(memory.longest("h"), memory.longest("b")))
    source, target = memory.span(random, "h", length=length), memory.span(random, length=length)
    call = f"upload({source.array}, b[{target.index}], offset={target.offset})"
    return Operation("upload", call, (f"{target.twin} = {source.twin}",), (source,), (target,))


def download(random: Random, memory: Memory) -> Operation:
    """Write a host array, contiguous or with gaps."""
    length = random.randint(0, min(memory.longest("h"), memory.longest("b")))
    target = memory.span(random, "h", length=length)
    step = 2 if random.random() < 0.2 else 1
    count = (length + step - 1) // step
    source = memory.span(random, length=count)
    every = "" if step == 1 else f"[::{step}]"
    call = f"download(b[{source.index}], {target.array}{every}, offset={source.offset}, length={source.length})"
    return Operation("download", call, (f"{target.twin}[::{step}] = {source.twin}",), (source,), (target,))


def increment(random: Random, memory: Memory) -> Operation:
    """Run a kernel in place."""
    span = memory.span(random, align=_WORD)
    count = span.length // _WORD
    call = (
        f"dispatch(increment, increment.workgroups_for({count}), bindings=[{span.subspan}],"
        f" constants=[np.uint32({count})])"
    )
    return Operation("dispatch", call, (f"{span.twin}.view(np.uint32)[:] += 1",), (span,), (span,))


def mix(random: Random, memory: Memory) -> Operation | None:
    """Run a kernel over two inputs and an output, which may be one of the inputs."""
    a = memory.span(random, align=_WORD)
    b = memory.span(random, length=a.length, align=_WORD)
    out = a if random.random() < 0.2 else memory.span(random, length=a.length, align=_WORD)
    if (out != a and out.overlaps(a)) or (out != b and out.overlaps(b)):
        return None
    count, factor = a.length // _WORD, random.randrange(1, 9)
    call = (
        f"dispatch(mix, mix.workgroups_for({count}), bindings=[{a.subspan}, {b.subspan}, {out.subspan}],"
        f" constants=[np.uint32({factor}), np.uint32({count})])"
    )
    return Operation("dispatch", call, (_mixed(a, b, out, factor),), (a, b), (out,))


def _mixed(a: Span, b: Span, out: Span, factor: int) -> str:
    result, first, second = (f"{span.twin}.view(np.uint32)" for span in (out, a, b))
    return f"{result}[:] = {first} * np.uint32({factor}) + {second}"


def change_array(random: Random, memory: Memory) -> Operation:
    """Change a host array in a host call."""
    span = memory.span(random, "h")
    key = random.randrange(1, 256)
    return Operation(
        "host_call", f"host_call(flip, {span.array}, {key})", (f"flip({span.twin}, {key})",), (span,), (span,)
    )


def read_mapped(random: Random, memory: Memory) -> Operation | None:
    """Read a buffer in a host call, where it is mapped."""
    if not memory.visible:
        return None
    source = memory.span_of(random, "b", random.choice(memory.visible))
    if source.length > memory.longest("h"):
        return None
    target = memory.span(random, "h", length=source.length)
    call = f"host_call(read_mapped, {source.subspan}, {target.array})"
    return Operation("host_call", call, (f"{target.twin} = {source.twin}",), (source,), (target,))


def write_mapped(random: Random, memory: Memory) -> Operation | None:
    """Write a buffer in a host call, where it is mapped."""
    if not memory.visible:
        return None
    target = memory.span_of(random, "b", random.choice(memory.visible))
    if target.length > memory.longest("h"):
        return None
    source = memory.span(random, "h", length=target.length)
    call = f"host_call(write_mapped, {target.subspan}, {source.array})"
    return Operation("host_call", call, (f"{target.twin} = {source.twin}",), (source,), (target,))


def barrier(_random: Random, _memory: Memory) -> Operation:
    """Do nothing but wait and signal."""
    return Operation("barrier", "barrier()")


#: How often each is drawn, beside the executes of the recorded command buffers.
WEIGHTS = {
    fill: 5,
    update: 4,
    copy: 5,
    upload: 4,
    download: 4,
    increment: 4,
    mix: 3,
    change_array: 2,
    read_mapped: 2,
    write_mapped: 2,
    barrier: 1,
}


@dataclass
class Recording:
    """A command buffer: its text, and what it reads and writes, by slot and directly.

    Attributes:
        lines: the commands, as text.
        slots: how many entries its table needs, all of one size.
        size: of a slot's entry.
        commands: what each does, with slots as spans of the kind `slot`.

    """

    lines: list[str]
    slots: int
    size: int
    commands: list[Operation]


def record(random: Random, memory: Memory) -> Recording:
    """Draw a command buffer of a few commands over slots and buffers, in one order by barriers and edges."""
    slots = random.randint(0, _MOST_SLOTS)
    size = random.choice((64, 4096, 40_000))
    size = min(size, memory.longest("b") // _WORD * _WORD)
    commands: list[Operation] = []
    lines: list[str] = []
    fenced = 0
    for number in range(random.randint(1, 6)):
        command = _command(random, memory, slots, size)
        before = [n for n in range(fenced, number) if commands[n].conflicts(command)]
        after = ""
        if before and random.random() < 0.5:
            lines.append("commands.barrier()")
            fenced = number
        elif before:
            after = f", after=[{', '.join(f'n{n}' for n in before)}]"
        commands.append(command)
        lines.append(f"n{number} = commands.{command.call[:-1]}{after})")
    return Recording(lines, slots, size, commands)


def _command(random: Random, memory: Memory, slots: int, size: int) -> Operation:
    def pick(length: int | None = None) -> Span:
        if slots and random.random() < 0.7:
            whole = random.randint(0, size // _WORD) * _WORD if length is None else length
            if whole <= size:
                return Span("slot", random.randrange(slots), 0, whole)
        return memory.span(random, length=length, align=_WORD)

    target = pick()
    if random.random() < 0.4:
        pattern = random.randbytes(_WORD)
        call = f"fill({_place(target)}, {pattern!r}, offset={target.offset}, length={target.length})"
        return Operation("fill", call, (f"TARGET = repeat({pattern!r}, {target.length})",), writes=(target,))
    if random.random() < 0.5:
        count = target.length // _WORD
        binding = target.subspan if target.kind == "b" else _place(target)
        call = (
            f"dispatch(increment, increment.workgroups_for({count}), bindings=[{binding}],"
            f" constants=[np.uint32({count})])"
        )
        return Operation("dispatch", call, ("TARGET.view(np.uint32)[:] += 1",), (target,), (target,))
    source = pick(target.length)
    if source.overlaps(target):
        key = random.randrange(1000)
        length = min(target.length, 1024)
        target = Span(target.kind, target.index, target.offset, length)
        call = f"update({_place(target)}, data({key}, {length}), offset={target.offset})"
        return Operation("update", call, (f"TARGET = data({key}, {length})",), writes=(target,))
    call = (
        f"copy({_place(source)}, {_place(target)}, source_offset={source.offset},"
        f" target_offset={target.offset}, length={target.length})"
    )
    return Operation("copy", call, ("TARGET = SOURCE",), (source,), (target,))


def _place(span: Span) -> str:
    return f"tg.slot({span.index})" if span.kind == "slot" else f"b[{span.index}]"


def execute(random: Random, memory: Memory, index: int, recording: Recording) -> Operation | None:
    """Run a command buffer over a table of ranges that overlap nothing else it touches."""
    table: list[Span] = []
    direct = [span for command in recording.commands for span in (*command.reads, *command.writes) if span.kind == "b"]
    for _ in range(recording.slots):
        entry = memory.span(random, length=recording.size, align=_WORD)
        if any(entry.overlaps(other) for other in (*table, *direct)):
            return None
        table.append(entry)

    def bound(span: Span) -> Span:
        if span.kind == "b":
            return span
        entry = table[span.index]
        return Span("b", entry.index, entry.offset + span.offset, span.length)

    model: list[str] = []
    for command in recording.commands:
        (text,) = command.model
        text = text.replace("TARGET", bound(command.writes[0]).twin)
        if command.reads:
            text = text.replace("SOURCE", bound(command.reads[0]).twin)
        model.append(text)
    call = f"execute(c[{index}], bindings=[{', '.join(entry.subspan for entry in table)}])"
    reads = (*table, *(bound(span) for command in recording.commands for span in command.reads))
    writes = tuple(bound(span) for command in recording.commands for span in command.writes)
    return Operation("execute", call, tuple(model), reads, writes)
