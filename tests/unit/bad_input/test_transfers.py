"""Ranges, patterns and data that make no sense (M16, M22, M27)."""

from __future__ import annotations

import numpy as np
import pytest

import tidegate as tg

from .world import LIMIT, NBYTES, Case, Invalid, Range, World

CASES = [
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused_in_words_and_leaves_no_trace(world: World, case: Case) -> None:
    case.check(world)


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
