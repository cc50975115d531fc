"""What is closed, and devices that there are not (M16, M18, M35)."""

from __future__ import annotations

import numpy as np
import pytest

import tidegate as tg

from .world import KERNEL, LIMIT, Case, Invalid, World

CASES = [
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused_in_words_and_leaves_no_trace(world: World, case: Case) -> None:
    case.check(world)
