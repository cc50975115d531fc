"""Work of every kind, which can be seen to be done: for tests that hold whatever the work is.

    piece = works.make("download-large", queue, wait=gate.at(1), signal=end.at(1))     # the fixture
    ...
    piece.assert_told()         # what the host can see without asking the device for anything
    piece.assert_written()      # what is in the memory of the device

Each piece does something of its own, so that what an earlier one has left in reused memory is not taken for it. On a
subject that does no work only that is looked at which host threads do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

import tidegate as tg

from . import kernels
from .buffers import contents, numbered, ready

#: Built-in work of so many bytes, in memory that the host sees, may be done where it becomes ready (M34).
SMALL = 64

#: More than is done in place, than a waiting thread does, and than small staging memory takes.
LARGE = 320 * 1024

#: How many words the kernels work on.
COUNT = 64

Place: TypeAlias = tg.Queue | tg.Lane
Maker: TypeAlias = "Callable[[Works, Place, Any, Any], Piece]"


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Piece:
    """A submission, and how to see that it did its work.

    Attributes:
        kind: Which of `KINDS`.
        submission: The submission.
        assert_told: Asserts what the host sees of it, and makes no progress of any device.
        assert_written: Asserts what it wrote into memory of the device; submits work of its own for that.
        begun: Whether a host thread has begun it; None where that cannot be told.
    """

    kind: str
    submission: tg.Submission
    assert_told: Callable[[], None] = _nothing
    assert_written: Callable[[], None] = _nothing
    begun: Callable[[], bool] | None = None


class Works:
    """Makes pieces of work on one device.

    Attributes:
        device: The device.
        real: Whether it does any work: on one that does none, only what the host does is looked at.
        kinds: The kinds of work that there are.
    """

    def __init__(self, device: tg.Device, real: bool) -> None:
        self.device = device
        self.real = real
        self.kinds = KINDS if real else tuple(kind for kind in KINDS if kind != "kernel")
        self.numbers = itertools.count(1)
        self.data = numbered(LARGE + 4 * 1024)
        self.source = device.upload(self.data)
        self.small_source = device.upload(self.data[:4096], memory="shared")
        with device.record() as commands:
            commands.fill(tg.slot(1), 1, offset=4 * COUNT)
            commands.copy(tg.slot(0), tg.slot(1), length=4 * COUNT)
            if real:
                commands.barrier()
                commands.dispatch(**self.mixing(self.source, tg.slot(1), tg.slot(2), 3))
        self.commands = commands

    def mixing(self, a: Any, b: Any, out: Any, factor: int) -> dict[str, Any]:
        """The arguments for a dispatch of the kernel `mix` over `COUNT` words."""
        mix = self._mix
        return {
            "function": mix,
            "workgroups": mix.workgroups_for(COUNT),
            "bindings": [a, b, out],
            "constants": [np.uint32(factor), np.uint32(COUNT)],
        }

    @functools.cached_property
    def _mix(self) -> tg.Function:
        return kernels.load(self.device, kernels.mix)

    def make(self, kind: str, place: Place, *, wait: Any = None, signal: Any = None) -> Piece:
        """Submit a piece of work. Returns at once."""
        return _MAKERS[kind](self, place, wait, signal)

    def next_number(self) -> int:
        """A number of its own for each piece, in a byte that is neither 0 nor that of `guarded`."""
        return next(self.numbers) % 200 + 1

    def next_offset(self) -> int:
        """A place of its own in the source, for each piece."""
        return 4 * (next(self.numbers) % 1000)

    def writes(self, kind: str, work: tg.Submission, buffer: tg.Buffer, expected: npt.NDArray[np.uint8]) -> Piece:
        """A piece that leaves known bytes in a buffer."""

        def written() -> None:
            assert not self.real or np.array_equal(contents(buffer), expected), f"{kind} was not done: {work!r}"

        return Piece(kind, work, assert_written=written)


def mixed(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8], factor: int) -> npt.NDArray[np.uint8]:
    """What the kernel `mix` makes of the first words of two arrays of bytes."""
    first, second = (array[: 4 * COUNT].copy().view(np.uint32) for array in (a, b))
    return (first * np.uint32(factor) + second).view(np.uint8)


# Transfers ----------------------------------------------------------------------------------------------------------


def _fill(works: Works, place: Place, wait: Any, signal: Any, size: int) -> Piece:
    number = works.next_number()
    buffer = works.device.allocate(size, memory="shared" if size == SMALL else "device")
    work = place.fill(buffer, number, wait=wait, signal=signal)
    return works.writes("fill", work, buffer, np.full(size, number, np.uint8))


def _copy(works: Works, place: Place, wait: Any, signal: Any, size: int) -> Piece:
    offset = works.next_offset() % (4096 - SMALL)
    buffer = works.device.allocate(size, memory="shared" if size == SMALL else "device")
    source = works.small_source if size == SMALL else works.source
    work = place.copy(source, buffer, source_offset=offset, length=size, wait=wait, signal=signal)
    return works.writes("copy", work, buffer, works.data[offset : offset + size])


def _upload(works: Works, place: Place, wait: Any, signal: Any, size: int) -> Piece:
    offset = works.next_offset()
    buffer = works.device.allocate(size)
    array = works.data[offset : offset + size].copy()
    return works.writes("upload", place.upload(array, buffer, wait=wait, signal=signal), buffer, array)


def _download(works: Works, place: Place, wait: Any, signal: Any, size: int) -> Piece:
    offset = works.next_offset()
    out = np.zeros(size, np.uint8)
    work = place.download(works.source, out, offset=offset, wait=wait, signal=signal)

    def told() -> None:
        expected = works.data[offset : offset + size]
        assert not works.real or np.array_equal(out, expected), f"the array is not written: {work!r}"

    return Piece("download", work, told)


# Programs and others ------------------------------------------------------------------------------------------------


def _kernel(works: Works, place: Place, wait: Any, signal: Any) -> Piece:
    factor = next(works.numbers)
    out = works.device.allocate(4 * COUNT)
    b = works.source.subspan(4 * COUNT, 4 * COUNT)
    work = place.dispatch(**works.mixing(works.source, b, out, factor), wait=wait, signal=signal)
    return works.writes("kernel", work, out, mixed(works.data, works.data[4 * COUNT :], factor))


def _execute(works: Works, place: Place, wait: Any, signal: Any) -> Piece:
    offset = works.next_offset()
    between, out = works.device.allocate(8 * COUNT), works.device.allocate(4 * COUNT)
    table = [works.source.subspan(offset, 4 * COUNT), between, out]
    work = place.execute(works.commands, bindings=table, wait=wait, signal=signal)
    return works.writes("execute", work, out, mixed(works.data, works.data[offset:], 3))


def _host_call(works: Works, place: Place, wait: Any, signal: Any) -> Piece:
    number = works.next_number()
    calls: list[int] = []
    work = place.host_call(calls.append, number, wait=wait, signal=signal)

    def told() -> None:
        assert calls == [number], f"the function was called {len(calls)} times: {work!r}"

    return Piece("host-call", work, told, begun=lambda: bool(calls))


def _barrier(_works: Works, place: Place, wait: Any, signal: Any) -> Piece:
    return Piece("barrier", place.barrier(wait=wait, signal=signal))


def _allocation(works: Works, place: Place, wait: Any, signal: Any) -> Piece:
    number = works.next_number()
    buffer = place.allocate(SMALL, wait=wait, signal=signal)
    work = ready(buffer)

    def written() -> None:
        works.device.queue().fill(buffer, number)
        assert not works.real or set(contents(buffer).tolist()) == {number}, f"the memory is of no use: {work!r}"

    return Piece("allocation", work, assert_written=written)


def _free(works: Works, place: Place, wait: Any, signal: Any) -> Piece:
    buffer = works.device.allocate(SMALL)
    work = place.free(buffer, wait=wait, signal=signal)

    def told() -> None:
        with pytest.raises(tg.FailedPreconditionError):
            buffer.read()

    return Piece("free", work, told)


def _sized(make: Callable[[Works, Place, Any, Any, int], Piece], size: int) -> Maker:
    return lambda works, place, wait, signal: make(works, place, wait, signal, size)


_MAKERS: dict[str, Maker] = {
    "fill-small": _sized(_fill, SMALL),
    "fill-large": _sized(_fill, LARGE),
    "copy-small": _sized(_copy, SMALL),
    "copy-large": _sized(_copy, LARGE),
    "upload-small": _sized(_upload, SMALL),
    "upload-large": _sized(_upload, LARGE),
    "download-small": _sized(_download, SMALL),
    "download-large": _sized(_download, LARGE),
    "kernel": _kernel,
    "execute": _execute,
    "host-call": _host_call,
    "barrier": _barrier,
    "allocation": _allocation,
    "free": _free,
}

#: Every kind of work that `Works.make` makes.
KINDS = tuple(_MAKERS)

#: The same as the cases of a test.
EVERY_KIND = tuple(pytest.param(kind, marks=pytest.mark.needs("work")) if kind == "kernel" else kind for kind in KINDS)

#: Of them, what goes to the device wherever that has memory or queues of its own, and takes a while.
ON_THE_DEVICE = ("fill-large", "copy-large", "upload-large", "download-small", "download-large", "kernel", "execute")

#: Of them, what may be done where it becomes ready.
IN_PLACE = ("fill-small", "copy-small", "upload-small", "barrier", "allocation", "free")


def places_of(device: tg.Device) -> list[Place]:
    """Every sort of place for work: a queue of each kind, one of another priority, and a new lane."""
    return [device.queue(), device.queue(priority=1), device.queues[1], device.lane()]
