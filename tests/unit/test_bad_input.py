"""Bad input: a typed error that names the object and the need; nothing submitted, nothing lost.

One table, one test. Each case is a call that is given a timepoint to signal, if it is of a kind that signals. After
the refusal the timepoint has not moved, nobody has claimed it, and the memory is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg

LIMIT = 30.0
NBYTES = 64

C_KERNEL = "tidegate_kernel void twice(float *x, uint32_t n) { tidegate_for(i, n) x[i] *= 2; }"


def python_kernel(workgroups: Any, bindings: Any, constants: Any) -> None:
    bindings[0][:] = 0xFF


KERNEL = tg.Kernel("scribble", cpu=python_kernel, bindings=2, constants=[np.uint32, np.float32], workgroup=(1, 1, 1))


@dataclass
class World:
    """What a case may use: live objects, and their counterparts on a device that is closed."""

    folder: Path
    device: tg.Device
    queue: tg.Queue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = self.device.queue()
        self.buffer = self.device.upload(np.arange(NBYTES, dtype=np.uint8), label="victim")
        self.other = self.device.upload(np.zeros(NBYTES, np.uint8), label="other")
        self.function = self.device.load(KERNEL)["scribble"]
        self.semaphore = tg.Semaphore(5, label="counter")
        with self.device.record(label="recorded") as self.commands:
            self.commands.fill(tg.slot(3), 1)
        self.closed_buffer = self.device.upload(np.zeros(NBYTES, np.uint8), label="shut")
        self.closed_buffer.close()
        self.closed_device = tg.open_device("cpu", label="gone")
        self.closed_queue = self.closed_device.queue()
        self.buffer_of_closed_device = self.closed_device.allocate(NBYTES, label="left behind")
        self.closed_device.close(LIMIT)
        self.foreign_device = tg.open_device("cpu", label="abroad")
        self.foreign_buffer = self.foreign_device.allocate(NBYTES, label="foreigner")

    def dispatch(self, signal: tg.Timepoint, **options: Any) -> tg.Submission:
        """Dispatch with good arguments but for those given."""
        good = {"workgroups": (1, 1, 1), "bindings": [self.buffer, self.other], "constants": [1, 1]}
        return self.queue.dispatch(self.function, **{**good, **options}, signal=signal)

    def record(self, record: Callable[[tg.CommandBuffer], object]) -> None:
        with self.device.record(label="tape") as commands:
            record(commands)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with tg.open_device("cpu?workers=1", label="home") as device:
        made = World(tmp_path, device)
        yield made
        made.foreign_device.close(LIMIT)


@dataclass
class Case:
    """A call that must be refused, the type of the refusal, and words its text must have."""

    name: str
    kind: type[BaseException]
    words: tuple[str, ...]
    call: Callable[[World, tg.Timepoint], object]


Invalid, Range, Precondition = tg.InvalidArgumentError, tg.OutOfRangeError, tg.FailedPreconditionError

VALUES = [
    Case("initial value negative", Invalid, ("-1", "2**64-2"), lambda w, p: tg.Semaphore(-1)),
    Case("initial value too large", Invalid, (str(2**64 - 1), "2**64-2"), lambda w, p: tg.Semaphore(2**64 - 1)),
    Case("initial value a float", TypeError, ("int", "float"), lambda w, p: tg.Semaphore(1.0)),
    Case("signal negative", Invalid, ("counter", "-1"), lambda w, p: w.semaphore.signal(-1)),
    Case("signal too large", Invalid, ("counter", str(2**64 - 1)), lambda w, p: w.semaphore.signal(2**64 - 1)),
    Case("signal a string", TypeError, ("counter", "str"), lambda w, p: w.semaphore.signal("6")),
    Case("at negative", Invalid, ("counter", "-1"), lambda w, p: w.semaphore.at(-1)),
    Case("at too large", Invalid, ("counter", str(2**64 - 1)), lambda w, p: w.semaphore.at(2**64 - 1)),
    Case("at None", TypeError, ("counter", "NoneType"), lambda w, p: w.semaphore.at(None)),
    Case("wait negative", Invalid, ("counter", "-1"), lambda w, p: w.semaphore.wait(-1, LIMIT)),
    Case("wait too large", Invalid, ("counter", str(2**64 - 1)), lambda w, p: w.semaphore.wait(2**64 - 1, LIMIT)),
    Case("timeout negative", Invalid, ("timeout", "-1"), lambda w, p: w.semaphore.wait(6, -1)),
    Case("timeout nan", Invalid, ("timeout", "nan"), lambda w, p: w.semaphore.wait(6, float("nan"))),
    Case("timeout a string", TypeError, ("timeout", "str"), lambda w, p: w.semaphore.wait(6, "soon")),
    Case("signal backwards", Invalid, ("counter", "4", "5"), lambda w, p: w.semaphore.signal(4)),
    Case("signal the same again", Invalid, ("counter", "5"), lambda w, p: w.semaphore.signal(5)),
    Case("timepoint backwards", Invalid, ("counter", "4", "5"), lambda w, p: w.semaphore.at(4).signal()),
    Case("fail with no error", TypeError, ("counter", "str"), lambda w, p: w.semaphore.fail("oops")),
    Case("wait_all of foreign", TypeError, ("str",), lambda w, p: tg.wait_all([p, "x"], LIMIT)),
    Case("wait_any of foreign", TypeError, ("int",), lambda w, p: tg.wait_any([7], LIMIT)),
]

WAITS_AND_SIGNALS = [
    Case("wait= a string", TypeError, ("wait=", "str"), lambda w, p: w.queue.fill(w.buffer, 9, wait="x", signal=p)),
    Case("wait= an int", TypeError, ("wait=", "int"), lambda w, p: w.queue.fill(w.buffer, 9, wait=3, signal=p)),
    Case(
        "wait= a semaphore", TypeError, ("wait=", "Semaphore"), lambda w, p: w.queue.barrier(wait=w.semaphore, signal=p)
    ),
    Case("wait= a buffer", TypeError, ("wait=", "Buffer"), lambda w, p: w.queue.barrier(wait=[w.buffer], signal=p)),
    Case(
        "wait= one foreign among good ones",
        TypeError,
        ("wait=", "object"),
        lambda w, p: w.queue.fill(w.buffer, 9, wait=[w.semaphore.at(5), object()], signal=p),
    ),
    Case("signal= a string", TypeError, ("signal=", "str"), lambda w, p: w.queue.fill(w.buffer, 9, signal="x")),
    Case(
        "signal= a submission",
        TypeError,
        ("signal=", "Submission"),
        lambda w, p: w.queue.fill(w.buffer, 9, signal=[p, w.queue.barrier()]),
    ),
    Case(
        "signal= reached already",
        Invalid,
        ("counter", "3", "5"),
        lambda w, p: w.queue.fill(w.buffer, 9, signal=[p, w.semaphore.at(3)]),
    ),
    Case(
        "cancelled by a generator that raises",
        ZeroDivisionError,
        ("division",),
        lambda w, p: w.queue.fill(w.buffer, 9, wait=(w.semaphore.at(1 // i) for i in (1, 0)), signal=p),
    ),
]

TRANSFERS = [
    Case(
        "overlapping copy",
        Invalid,
        ("victim", "overlap"),
        lambda w, p: w.queue.copy(w.buffer, w.buffer, target_offset=8, length=16, signal=p),
    ),
    Case(
        "misaligned fill offset",
        Invalid,
        ("victim", "offset 2", "4"),
        lambda w, p: w.queue.fill(w.buffer, b"abcd", offset=2, length=4, signal=p),
    ),
    Case(
        "misaligned fill length",
        Invalid,
        ("victim", "length 3", "2"),
        lambda w, p: w.queue.fill(w.buffer, b"ab", length=3, signal=p),
    ),
    Case(
        "pattern of 3 bytes",
        Invalid,
        ("pattern", "3", "1, 2 or 4"),
        lambda w, p: w.queue.fill(w.buffer, b"abc", signal=p),
    ),
    Case(
        "pattern of no bytes",
        Invalid,
        ("pattern", "0", "1, 2 or 4"),
        lambda w, p: w.queue.fill(w.buffer, b"", signal=p),
    ),
    Case("pattern 256", Invalid, ("pattern", "256", "255"), lambda w, p: w.queue.fill(w.buffer, 256, signal=p)),
    Case("pattern a float", TypeError, ("pattern", "float"), lambda w, p: w.queue.fill(w.buffer, 1.5, signal=p)),
    Case("fill of an array", TypeError, ("fill", "ndarray"), lambda w, p: w.queue.fill(np.zeros(4), 1, signal=p)),
    Case("fill of None", TypeError, ("fill", "NoneType"), lambda w, p: w.queue.fill(None, 1, signal=p)),
    Case(
        "fill past the end",
        Range,
        ("victim", "64"),
        lambda w, p: w.queue.fill(w.buffer, 9, offset=60, length=5, signal=p),
    ),
    Case(
        "fill at a negative offset",
        Range,
        ("victim", "-4"),
        lambda w, p: w.queue.fill(w.buffer, 9, offset=-4, signal=p),
    ),
    Case(
        "offset a float", TypeError, ("offset", "float"), lambda w, p: w.queue.fill(w.buffer, 9, offset=1.0, signal=p)
    ),
    Case(
        "copy that does not fit",
        Range,
        ("other", "64"),
        lambda w, p: w.queue.copy(w.buffer, w.other, target_offset=1, signal=p),
    ),
    Case(
        "update that does not fit", Range, ("victim", "64"), lambda w, p: w.queue.update(w.buffer, bytes(65), signal=p)
    ),
    Case("update with text", TypeError, ("update", "str"), lambda w, p: w.queue.update(w.buffer, "text", signal=p)),
    Case("update with a number", TypeError, ("update", "int"), lambda w, p: w.queue.update(w.buffer, 5, signal=p)),
    Case("update with None", TypeError, ("update", "NoneType"), lambda w, p: w.queue.update(w.buffer, None, signal=p)),
    Case(
        "update with an array of objects",
        TypeError,
        ("update", "object"),
        lambda w, p: w.queue.update(w.buffer, np.array([object()]), signal=p),
    ),
    Case(
        "upload that does not fit",
        Range,
        ("victim", "64"),
        lambda w, p: w.queue.upload(np.zeros(65, np.uint8), w.buffer, signal=p),
    ),
    Case("upload of text", TypeError, ("upload", "str"), lambda w, p: w.queue.upload("text", w.buffer, signal=p)),
    Case(
        "download past the end", Range, ("victim", "64"), lambda w, p: w.queue.download(w.buffer, offset=65, signal=p)
    ),
    Case(
        "download into too small an array",
        Invalid,
        ("download", "64", "63"),
        lambda w, p: w.queue.download(w.buffer, np.zeros(63, np.uint8), length=64, signal=p),
    ),
    Case(
        "download into bytes that cannot be written",
        Invalid,
        ("download", "out", "read-only"),
        lambda w, p: w.queue.download(w.buffer, np.frombuffer(bytes(64), np.uint8), signal=p),
    ),
    Case("subspan out of range", Range, ("victim", "64"), lambda w, p: w.buffer.subspan(60, 5)),
    Case("subspan negative", Range, ("victim", "-1"), lambda w, p: w.buffer.subspan(-1, 5)),
    Case("subspan of negative length", Range, ("victim", "-5"), lambda w, p: w.buffer.subspan(0, -5)),
    Case(
        "buffer of another device",
        Invalid,
        ("foreigner", "abroad", "home"),
        lambda w, p: w.queue.fill(w.foreign_buffer, 1, signal=p),
    ),
    Case(
        "missing file",
        FileNotFoundError,
        ("nothing-here",),
        lambda w, p: w.queue.read_file(w.folder / "nothing-here", w.buffer, signal=p),
    ),
    Case("size negative", Invalid, ("-1",), lambda w, p: w.queue.allocate(-1, signal=p)),
    Case(
        "memory kind unknown",
        Invalid,
        ("attic", "device", "host", "shared"),
        lambda w, p: w.queue.allocate(4, memory="attic", signal=p),
    ),
    Case("host call of nothing", TypeError, ("host_call", "NoneType"), lambda w, p: w.queue.host_call(None, signal=p)),
    Case("queue of an unknown kind", Invalid, ("quantum", "compute"), lambda w, p: w.device.queue("quantum")),
]

HUGE = 2**63
FAR = 10**5000
"""A number that Python refuses to write out."""

SIZES = [
    Case("size beyond C", Invalid, ("home", str(HUGE), "2**62"), lambda w, p: w.device.allocate(HUGE)),
    Case("queue size beyond C", Invalid, ("home", str(HUGE)), lambda w, p: w.queue.allocate(HUGE, signal=p)),
    Case("lane size beyond C", Invalid, ("home",), lambda w, p: w.device.lane().allocate(2**200, signal=p)),
    Case("size far beyond", Range, ("size", "bits"), lambda w, p: w.device.allocate(FAR)),
    Case("size for no host", tg.ResourceExhaustedError, (str(2**60),), lambda w, p: w.device.allocate(2**60)),
    Case("subspan offset beyond C", Range, ("victim", str(HUGE)), lambda w, p: w.buffer.subspan(HUGE, 1)),
    Case("subspan length beyond C", Range, ("victim", str(HUGE)), lambda w, p: w.buffer.subspan(0, HUGE)),
    Case("subspan that wraps", Range, ("victim",), lambda w, p: w.buffer.subspan(-HUGE, HUGE)),
    Case("subspan far beyond", Range, ("offset", "bits"), lambda w, p: w.buffer.subspan(FAR)),
    Case("write beyond C", Range, ("victim", str(HUGE)), lambda w, p: w.buffer.write(b"x", HUGE)),
    Case("fill beyond C", Range, ("victim",), lambda w, p: w.queue.fill(w.buffer, 1, offset=2**64, signal=p)),
    Case("fill of 2**64", Range, ("victim",), lambda w, p: w.queue.fill(w.buffer, 1, length=2**64, signal=p)),
    Case("fill with a far pattern", Range, ("pattern", "bits"), lambda w, p: w.queue.fill(w.buffer, FAR, signal=p)),
    Case("update beyond C", Range, ("victim",), lambda w, p: w.queue.update(w.buffer, b"x", offset=HUGE, signal=p)),
    Case(
        "upload beyond C", Range, ("victim",), lambda w, p: w.queue.upload(np.zeros(1), w.buffer, offset=HUGE, signal=p)
    ),
    Case("download beyond C", Range, ("victim",), lambda w, p: w.queue.download(w.buffer, length=HUGE, signal=p)),
    Case(
        "copy beyond C",
        Range,
        ("other", str(HUGE)),
        lambda w, p: w.queue.copy(w.buffer, w.other, target_offset=HUGE, signal=p),
    ),
    Case("shape beyond C", Range, ("victim", str(HUGE)), lambda w, p: w.buffer.to_numpy(np.uint8, HUGE)),
    Case("shape that wraps", Range, ("victim",), lambda w, p: w.buffer.to_numpy(np.uint8, (2**32, 2**32))),
    Case("shape of nothing beyond C", Invalid, ("victim",), lambda w, p: w.buffer.to_numpy(np.uint8, (0, HUGE))),
    Case("shape of too many", Invalid, ("victim", "65"), lambda w, p: w.buffer.to_numpy(np.uint8, (1,) * 65)),
    Case("shape hugely negative", Invalid, ("victim", "-"), lambda w, p: w.buffer.to_numpy(np.uint8, -HUGE)),
    Case("view beyond C", Range, ("victim",), lambda w, p: w.buffer.view(np.float32, (HUGE, 4))),
    Case("view of nothing beyond C", Invalid, ("victim",), lambda w, p: w.buffer.view(np.uint8, (HUGE, 0))),
    Case(
        "download of nothing beyond C",
        Invalid,
        ("victim",),
        lambda w, p: w.queue.download(w.buffer, shape=(0, HUGE), signal=p),
    ),
    Case("page-locked beyond C", Invalid, ("pinned_empty",), lambda w, p: tg.pinned_empty(HUGE)),
    Case("page-locked that wraps", Invalid, ("pinned_empty",), lambda w, p: tg.pinned_empty((2**32, 2**32), "u1")),
    Case("page-locked negative", Invalid, ("pinned_empty", "-1"), lambda w, p: tg.pinned_empty(-1, "u1", w.device)),
    Case("page-locked a float", TypeError, ("shape", "float"), lambda w, p: tg.pinned_empty(1.5)),
    Case(
        "page-locked without room", tg.ResourceExhaustedError, (str(2**60),), lambda w, p: tg.pinned_empty(2**60, "u1")
    ),
    Case("staging beyond C", Invalid, ("home", str(HUGE)), lambda w, p: tg.lowlevel.StagingBuffer(w.device, HUGE)),
    Case("staging negative", Invalid, ("-1",), lambda w, p: tg.lowlevel.StagingBuffer(w.device, -1)),
    Case(
        "reservation beyond C",
        Range,
        ("staging", str(HUGE)),
        lambda w, p: tg.lowlevel.StagingBuffer(w.device, 64).reserve(HUGE),
    ),
    Case(
        "alignment beyond C",
        Invalid,
        ("alignment", str(HUGE + 1)),
        lambda w, p: tg.lowlevel.StagingBuffer(w.device, 64).reserve(1, HUGE + 1),
    ),
    Case(
        "file offset beyond files",
        Range,
        ("read_file", str(HUGE)),
        lambda w, p: w.queue.read_file(__file__, w.buffer, file_offset=HUGE, signal=p),
    ),
    Case(
        "file range beyond files",
        Range,
        ("read_file", "8 bytes"),
        lambda w, p: w.queue.read_file(__file__, w.buffer, file_offset=HUGE - 8, length=8, signal=p),
    ),
    Case(
        "written range beyond files",
        Range,
        ("write_file", "64 bytes"),
        lambda w, p: w.queue.write_file(w.buffer, w.folder / "new", file_offset=HUGE - 8, signal=p),
    ),
    Case(
        "file offset far beyond", Range, ("bits",), lambda w, p: w.queue.read_file(__file__, w.buffer, file_offset=FAR)
    ),
    Case(
        "recorded fill beyond C", Range, ("victim",), lambda w, p: w.record(lambda c: c.fill(w.buffer, 1, offset=HUGE))
    ),
    Case("recorded slot far beyond", Range, ("bits",), lambda w, p: w.record(lambda c: c.fill(tg.slot(FAR), 1))),
    Case(
        "range of a slot beyond C",
        Range,
        ("slot 0", "-1"),
        lambda w, p: w.record(lambda c: c.fill(tg.slot(0), 1, offset=HUGE, length=-1)),
    ),
    Case("local memory beyond C", Invalid, ("scribble", str(HUGE)), lambda w, p: w.dispatch(p, local_memory=HUGE)),
    Case("local memory far beyond", Range, ("local memory", "bits"), lambda w, p: w.dispatch(p, local_memory=FAR)),
    Case("workgroups beyond C", Invalid, ("scribble", str(HUGE)), lambda w, p: w.dispatch(p, workgroups=HUGE)),
    Case("workgroups far beyond", Range, ("workgroups", "bits"), lambda w, p: w.dispatch(p, workgroups=(1, FAR))),
    Case("items beyond C", Invalid, ("scribble", str(HUGE)), lambda w, p: w.function.workgroups_for(HUGE)),
    Case("bindings beyond all", Invalid, ("'k'", str(HUGE)), lambda w, p: tg.Kernel("k", cpu=len, bindings=HUGE)),
    Case("workgroup beyond C", Invalid, ("'k'",), lambda w, p: tg.Kernel("k", cpu=len, bindings=0, workgroup=HUGE)),
]

RECORDINGS = [
    Case(
        "update of 64 KiB + 1 in a recording",
        Invalid,
        ("tape", "65537", "65536"),
        lambda w, p: w.record(lambda c: c.update(w.buffer, bytes(65537))),
    ),
    Case(
        "overlapping copy in a recording",
        Invalid,
        ("victim", "overlap"),
        lambda w, p: w.record(lambda c: c.copy(w.buffer, w.buffer, target_offset=8, length=16)),
    ),
    Case(
        "missing slot",
        Range,
        ("recorded", "slot 3", "2"),
        lambda w, p: w.queue.execute(w.commands, bindings=[w.buffer] * 2, signal=p),
    ),
    Case("empty table", Range, ("recorded", "slot 3"), lambda w, p: w.queue.execute(w.commands, signal=p)),
    Case("negative slot", Invalid, ("slot", "-1"), lambda w, p: tg.slot(-1)),
    Case(
        "table of foreign objects",
        TypeError,
        ("binding", "int"),
        lambda w, p: w.queue.execute(w.commands, bindings=[1, 2, 3, 4], signal=p),
    ),
    Case("execute of no command buffer", TypeError, ("execute", "list"), lambda w, p: w.queue.execute([], signal=p)),
    Case(
        "after= of foreign objects",
        TypeError,
        ("after=", "int"),
        lambda w, p: w.record(lambda c: c.fill(w.buffer, 9, after=[1])),
    ),
    Case("recording after the end", Precondition, ("recorded", "ended"), lambda w, p: w.commands.fill(w.buffer, 9)),
]

KERNELS = [
    Case("too few bindings", Invalid, ("scribble", "2", "1"), lambda w, p: w.dispatch(p, bindings=[w.buffer])),
    Case("too many bindings", Invalid, ("scribble", "2", "3"), lambda w, p: w.dispatch(p, bindings=[w.buffer] * 3)),
    Case(
        "binding of a wrong type",
        TypeError,
        ("dispatch", "buffer", "ndarray"),
        lambda w, p: w.dispatch(p, bindings=[w.buffer, np.zeros(4)]),
    ),
    Case("too few constants", Invalid, ("scribble", "2", "1"), lambda w, p: w.dispatch(p, constants=[1])),
    Case("too many constants", Invalid, ("scribble", "2", "3"), lambda w, p: w.dispatch(p, constants=[1, 1, 1])),
    Case(
        "constant of a wrong type",
        TypeError,
        ("scribble", "constant 0", "uint32", "str"),
        lambda w, p: w.dispatch(p, constants=["1", 1]),
    ),
    Case(
        "constant negative",
        Invalid,
        ("scribble", "constant 0", "uint32", "-1"),
        lambda w, p: w.dispatch(p, constants=[-1, 1]),
    ),
    Case(
        "constant too large",
        Invalid,
        ("scribble", "constant 0", "uint32", str(2**32)),
        lambda w, p: w.dispatch(p, constants=[2**32, 1]),
    ),
    Case(
        "float constant too large",
        Invalid,
        ("scribble", "constant 1", "float32"),
        lambda w, p: w.dispatch(p, constants=[1, 1e300]),
    ),
    Case("workgroups negative", Invalid, ("scribble", "-1"), lambda w, p: w.dispatch(p, workgroups=(-1, 1, 1))),
    Case(
        "workgroups of four dimensions", Invalid, ("scribble", "4"), lambda w, p: w.dispatch(p, workgroups=(1, 1, 1, 1))
    ),
    Case(
        "local memory negative",
        Invalid,
        ("scribble", "local memory", "-1"),
        lambda w, p: w.dispatch(p, local_memory=-1),
    ),
    Case("unknown function", tg.NotFoundError, ("'absent'", "scribble"), lambda w, p: w.device.load(KERNEL)["absent"]),
    Case(
        "C source that does not compile",
        tg.CompileError,
        ("no_such_name",),
        lambda w, p: w.device.load("tidegate_kernel void f(float *x) { x[0] = no_such_name; }"),
    ),
    Case(
        "kernel for another driver",
        tg.UnsupportedError,
        ("'far'", "elsewhere", "cpu"),
        lambda w, p: w.device.load(tg.Kernel("far", bindings=0, elsewhere="source")),
    ),
    Case("source of no known kind", tg.UnsupportedError, ("cpu", "int"), lambda w, p: w.device.load(5)),
]

CLOSED = [
    Case(
        "fill on a closed device",
        tg.ClosedError,
        ("gone",),
        lambda w, p: w.closed_queue.fill(w.buffer_of_closed_device, 1, signal=p),
    ),
    Case("barrier on a closed device", tg.ClosedError, ("gone",), lambda w, p: w.closed_queue.barrier(signal=p)),
    Case(
        "host call on a closed device",
        tg.ClosedError,
        ("gone",),
        lambda w, p: w.closed_queue.host_call(print, signal=p),
    ),
    Case(
        "queue.allocate on a closed device",
        tg.ClosedError,
        ("gone",),
        lambda w, p: w.closed_queue.allocate(4, signal=p),
    ),
    Case("allocate on a closed device", tg.ClosedError, ("gone",), lambda w, p: w.closed_device.allocate(4)),
    Case("upload on a closed device", tg.ClosedError, ("gone",), lambda w, p: w.closed_device.upload(np.zeros(4))),
    Case("load on a closed device", tg.ClosedError, ("gone",), lambda w, p: w.closed_device.load(KERNEL)),
    Case("record on a closed device", tg.ClosedError, ("gone",), lambda w, p: w.closed_device.record()),
    Case(
        "read from a closed device",
        tg.ClosedError,
        ("gone",),
        lambda w, p: w.buffer_of_closed_device.read(timeout=LIMIT),
    ),
    Case("fill of a closed buffer", tg.ClosedError, ("shut",), lambda w, p: w.queue.fill(w.closed_buffer, 1, signal=p)),
    Case(
        "copy from a closed buffer",
        tg.ClosedError,
        ("shut",),
        lambda w, p: w.queue.copy(w.closed_buffer, w.buffer, signal=p),
    ),
    Case(
        "copy to a closed buffer",
        tg.ClosedError,
        ("shut",),
        lambda w, p: w.queue.copy(w.buffer, w.closed_buffer, signal=p),
    ),
    Case("free of a closed buffer", tg.ClosedError, ("shut",), lambda w, p: w.queue.free(w.closed_buffer, signal=p)),
    Case(
        "dispatch on a closed buffer",
        tg.ClosedError,
        ("shut",),
        lambda w, p: w.dispatch(p, bindings=[w.buffer, w.closed_buffer]),
    ),
    Case(
        "execute with a closed buffer",
        tg.ClosedError,
        ("shut",),
        lambda w, p: w.queue.execute(w.commands, bindings=[w.closed_buffer] * 4, signal=p),
    ),
    Case(
        "record with a closed buffer",
        tg.ClosedError,
        ("shut",),
        lambda w, p: w.record(lambda c: c.fill(w.closed_buffer, 1)),
    ),
    Case("read of a closed buffer", tg.ClosedError, ("shut",), lambda w, p: w.closed_buffer.read(timeout=LIMIT)),
    Case("write to a closed buffer", tg.ClosedError, ("shut",), lambda w, p: w.closed_buffer.write(b"x")),
]

DEVICES = [
    Case("unknown driver", tg.NotFoundError, ("'abacus'", "cpu"), lambda w, p: tg.open_device("abacus")),
    Case("unknown URI option", Invalid, ("cpu", "'wings'", "workers"), lambda w, p: tg.open_device("cpu?wings=2")),
    Case("URI option of a wrong value", Invalid, ("workers", "many"), lambda w, p: tg.open_device("cpu?workers=many")),
    Case("no workers", Invalid, ("workers", "0"), lambda w, p: tg.open_device("cpu?workers=0")),
    Case(
        "memory of a wrong unit",
        Invalid,
        ("memory", "5 elephants"),
        lambda w, p: tg.open_device("cpu?memory=5 elephants"),
    ),
    Case("memory negative", Invalid, ("memory", "-5"), lambda w, p: tg.open_device("cpu?memory=-5MiB")),
    Case("URI of a wrong type", TypeError, ("int",), lambda w, p: tg.open_device(5)),
    Case("the validation layer", tg.UnsupportedError, ("validate",), lambda w, p: tg.open_device("cpu", validate=True)),
    Case("the tracing layer", tg.UnsupportedError, ("trace",), lambda w, p: tg.open_device("cpu", trace="out.json")),
    Case("the simulator", tg.UnsupportedError, ("sim", "version"), lambda w, p: tg.open_device("sim?seed=7")),
]

CASES = [*VALUES, *WAITS_AND_SIGNALS, *TRANSFERS, *SIZES, *RECORDINGS, *KERNELS, *CLOSED, *DEVICES]


@contextmanager
def compiler_or_skip() -> Iterator[None]:
    """What needs a C compiler is skipped where there is none."""
    try:
        yield
    except tg.DriverUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_refused_in_words_and_leaves_no_trace(world: World, case: Case) -> None:
    point = tg.Semaphore(label="untouched").at(1)
    with compiler_or_skip() if case.kind is tg.CompileError else nullcontext(), pytest.raises(case.kind) as caught:
        case.call(world, point)
    text = str(caught.value)
    assert "\n" not in text
    assert not [word for word in case.words if word not in text], text
    assert isinstance(caught.value, tg.TidegateError) == issubclass(case.kind, tg.TidegateError)
    assert_no_trace(world, point)


def assert_no_trace(world: World, point: tg.Timepoint) -> None:
    assert point.semaphore.value == 0
    assert point.semaphore.failure is None
    assert point.semaphore.next().value == 1, "the refused call has left its claim behind"
    assert world.semaphore.value == 5
    assert world.semaphore.failure is None
    assert (world.device.statistics().held, world.device.statistics().issued) == (0, 0)
    assert world.buffer.read(timeout=LIMIT) == bytes(range(NBYTES))
    assert world.other.read(timeout=LIMIT) == bytes(NBYTES)
    world.queue.barrier(signal=point).wait(LIMIT)
    assert point.reached


def test_the_log_of_a_failed_compilation_is_kept_apart_from_the_text(world: World) -> None:
    with compiler_or_skip(), pytest.raises(tg.CompileError) as caught:
        world.device.load(
            "tidegate_kernel void f(float *x) {\n    x[0] = first_wrong_name;\n    second_wrong_name();\n}"
        )
    assert "first_wrong_name" in caught.value.log
    assert "second_wrong_name" in caught.value.log


def test_without_a_compiler_c_kernels_say_what_to_install_and_python_kernels_work(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    source = C_KERNEL + f" /* {world.folder} */"  # not compiled before, so no cache can have it
    point = tg.Semaphore().at(1)
    with pytest.raises(tg.DriverUnavailableError, match=r"compiler.*install"):
        world.device.load(source)
    assert_no_trace(world, point)
    both = tg.Kernel("twice", cpu=[source, python_kernel], bindings=1, constants=[np.uint32])
    target = world.device.upload(np.zeros(8, np.uint8))
    world.queue.dispatch(world.device.load(both)["twice"], (1, 1, 1), bindings=[target], constants=[2]).wait(LIMIT)
    assert target.read(timeout=LIMIT) == b"\xff" * 8


def test_a_compiler_that_is_not_there_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(tg.DriverUnavailableError, match="no-such-compiler"):
        world.device.load(C_KERNEL + f" /* {world.folder} */")


def test_a_refused_call_of_a_lane_takes_no_place_in_it(world: World) -> None:
    lane = world.device.lane()
    first = lane.fill(world.other, 1)
    with pytest.raises(Range):
        lane.fill(world.other, 2, length=65)
    with pytest.raises(TypeError):
        lane.update(world.other, "text")
    last = lane.copy(world.other, world.buffer)
    tg.wait_all([first, last], LIMIT)
    assert world.buffer.read(timeout=LIMIT) == b"\x01" * NBYTES


def test_one_refused_signal_withdraws_the_claims_of_all(world: World) -> None:
    good = [tg.Semaphore() for _ in range(3)]
    signals = [good[0].at(1), good[1].at(1), world.semaphore.at(2), good[2].at(1)]
    with pytest.raises(Invalid, match="counter"):
        world.queue.fill(world.buffer, 9, signal=signals)
    assert [semaphore.next().value for semaphore in good] == [1, 1, 1]
    world.queue.barrier(signal=[semaphore.at(1) for semaphore in good]).wait(LIMIT)
    assert world.buffer.read(timeout=LIMIT) == bytes(range(NBYTES))


def test_claiming_what_another_submission_has_claimed_names_that_submission(world: World) -> None:
    gate, done = tg.Semaphore(label="gate"), tg.Semaphore(label="finish line")
    first = world.queue.barrier(wait=gate.at(1), signal=done.at(1))
    with pytest.raises(Invalid, match=r"finish line.*1.*test_bad_input"):
        world.queue.fill(world.buffer, 9, signal=done.at(1))
    gate.signal(1)
    first.wait(LIMIT)
    assert done.value == 1
    assert world.buffer.read(timeout=LIMIT) == bytes(range(NBYTES))
