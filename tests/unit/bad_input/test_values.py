"""Values, timeouts and points that make no sense (M6, M8, M9, M16)."""

from __future__ import annotations

import pytest

import tidegate as tg

from .world import LIMIT, NBYTES, Case, Invalid, World

CASES = [
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused_in_words_and_leaves_no_trace(world: World, case: Case) -> None:
    case.check(world)


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
    with pytest.raises(Invalid, match=r"finish line.*1.*test_values"):
        world.queue.fill(world.buffer, 9, signal=done.at(1))
    gate.signal(1)
    first.wait(LIMIT)
    assert done.value == 1
    assert world.buffer.read(timeout=LIMIT) == bytes(range(NBYTES))
