"""Numbers beyond all memory, beyond C, and beyond what Python writes out (M16)."""

from __future__ import annotations

import numpy as np
import pytest

import tidegate as tg

from .world import Case, Invalid, Range, World

HUGE = 2**63
FAR = 10**5000
"""A number that Python refuses to write out."""

CASES = [
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused_in_words_and_leaves_no_trace(world: World, case: Case) -> None:
    case.check(world)
