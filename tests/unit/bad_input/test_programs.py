"""Recordings, kernels and sources that make no sense (M16, M29, M31)."""

from __future__ import annotations

import numpy as np
import pytest

import tidegate as tg

from .world import KERNEL, Case, Invalid, Precondition, Range, World

CASES = [
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
        "kernel for another driver",
        tg.UnsupportedError,
        ("'far'", "elsewhere", "cpu"),
        lambda w, p: w.device.load(tg.Kernel("far", bindings=0, elsewhere="source")),
    ),
    Case("source of no known kind", tg.UnsupportedError, ("cpu", "int"), lambda w, p: w.device.load(5)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused_in_words_and_leaves_no_trace(world: World, case: Case) -> None:
    case.check(world)
