"""Semaphores, timepoints and callbacks at their edges: texts, copies, values, reports (M1, M4, M6, M10)."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import sys
from typing import Any

import pytest

import tidegate as tg

LIMIT = 30.0
TOP = 2**64 - 2


def test_a_semaphore_tells_its_label_value_and_failure() -> None:
    assert repr(tg.Semaphore(3)) == "<tidegate.Semaphore value=3>"
    semaphore = tg.Semaphore(2, label="x")
    assert (semaphore.label, repr(semaphore)) == ("x", "<tidegate.Semaphore 'x' value=2>")
    semaphore.fail(ValueError("no"))
    assert repr(semaphore) == "<tidegate.Semaphore 'x' value=2 failed=ValueError('no')>"


def test_a_timepoint_tells_its_semaphore_and_value() -> None:
    assert repr(tg.Semaphore(label="x").at(4)) == "<tidegate.Timepoint x@4>"
    one, other = tg.Semaphore(), tg.Semaphore()
    assert repr(one.at(4)).startswith("<tidegate.Timepoint 0x")
    assert repr(one.at(4)) == repr(one.at(4)) != repr(other.at(4))


def test_a_refused_first_value_names_the_semaphore_and_leaves_nothing_to_finalize(unraisable: list[Any]) -> None:
    for label, name in (("", "a new semaphore"), ("x", "semaphore 'x'")):
        for value in (-1, TOP + 1):
            with pytest.raises(tg.InvalidArgumentError, match=f"^{name}: the value is {value}, and must be in 0"):
                tg.Semaphore(value, label)
    del value
    tg.Semaphore.__new__(tg.Semaphore)
    gc.collect()
    assert unraisable == []


def test_a_semaphore_cannot_be_copied_or_pickled() -> None:
    semaphore = tg.Semaphore(label="one")
    assert copy.copy(semaphore) is semaphore
    assert copy.deepcopy(semaphore) is semaphore
    with pytest.raises(TypeError, match=r"^semaphore 'one' belongs to its process and cannot be pickled$"):
        pickle.dumps(semaphore)


@pytest.mark.parametrize("value", [0, 1, 2**30 - 2, 2**30 - 1, 2**30, 2**63 - 1, 2**63, TOP])
def test_a_semaphore_names_signals_and_is_waited_for_at_every_value(value: int) -> None:
    semaphore = tg.Semaphore()
    assert semaphore.at(value).value == value
    if value:
        semaphore.signal(value)
    semaphore.wait(value, LIMIT)
    semaphore.wait(value)
    semaphore.wait(value, 0)
    assert semaphore.value == semaphore.query() == value
    assert type(semaphore.value) is int


def test_values_may_be_whatever_counts_as_an_integer_and_nothing_else() -> None:
    class Index:
        def __index__(self) -> int:
            return 3

    class Odd(int):
        pass

    semaphore = tg.Semaphore(label="s")
    semaphore.signal(Index())  # type: ignore[arg-type]
    semaphore.signal(Odd(4))
    assert (semaphore.value, type(semaphore.value)) == (4, int)
    semaphore.wait(Index(), LIMIT)  # type: ignore[arg-type]
    assert semaphore.at(Index()) == semaphore.at(3)  # type: ignore[arg-type]
    for call in (semaphore.signal, semaphore.wait, semaphore.at):
        for wrong in (True, 1.0, "1", None):
            with pytest.raises(TypeError, match=r"^semaphore 's': the value must be an int, not "):
                call(wrong)  # type: ignore[arg-type]
        for outside in (-1, TOP + 1):
            with pytest.raises(tg.InvalidArgumentError, match="must be in 0") as caught:
                call(outside)
            assert caught.value.value == outside  # type: ignore[attr-defined]


def test_a_signal_that_does_not_raise_the_payload_is_refused_with_both_values() -> None:
    semaphore = tg.Semaphore(5, label="s")
    for value in (0, 4, 5):
        with pytest.raises(tg.InvalidArgumentError) as caught:
            semaphore.signal(value)
        assert str(caught.value) == f"semaphore 's': cannot signal {value}: the payload is 5 and must rise"
        assert (caught.value.value, caught.value.payload) == (value, 5)  # type: ignore[attr-defined]


def test_the_error_of_a_failed_semaphore_names_the_point_and_the_cause() -> None:
    semaphore, problem = tg.Semaphore(4, label="s"), ValueError("broken")
    semaphore.fail(problem)
    for call, value in ((semaphore.query, 5), (lambda: semaphore.wait(7, LIMIT), 7), (lambda: semaphore.signal(8), 8)):
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            call()
        assert str(caught.value) == f"semaphore 's' failed at 4, before {value}: ValueError: broken"
        assert caught.value.timepoint == semaphore.at(value)
        assert caught.value.__cause__ is problem
    end = tg.Semaphore(TOP)
    end.fail(ValueError())
    with pytest.raises(tg.SemaphoreFailedError, match=f"failed at {TOP}, before {TOP}: ValueError$"):
        end.query()


def test_failing_takes_exceptions_only() -> None:
    semaphore = tg.Semaphore(label="s")
    for wrong, name in ((ValueError, "type"), ("x", "str"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"^semaphore 's': fail takes an exception, not {name}$"):
            semaphore.fail(wrong)  # type: ignore[arg-type]
    semaphore.at(3).fail(KeyError("k"))
    assert isinstance(semaphore.failure, KeyError)


def test_a_failure_clears_the_frames_of_its_causes_and_contexts_also_in_a_circle() -> None:
    class Thing:
        pass

    def fails() -> None:
        thing = Thing()
        try:
            raise KeyError(id(thing))
        except KeyError as error:
            raise ValueError from error

    semaphore = tg.Semaphore()
    with pytest.raises(ValueError) as caught:
        fails()
    cause = caught.value.__cause__
    assert cause is not None
    cause.__context__ = caught.value
    semaphore.fail(caught.value)
    assert not [one for one in gc.get_objects() if type(one) is Thing]


def test_a_timepoint_is_awaited_to_its_value_and_not_below() -> None:
    semaphore, seen = tg.Semaphore(), []

    async def wait() -> None:
        await semaphore.at(2)
        seen.append(semaphore.value)

    async def main() -> None:
        task = asyncio.ensure_future(wait())
        for value in (1, 2):
            await asyncio.sleep(0)
            semaphore.signal(value)
            await asyncio.sleep(0)
        await asyncio.wait_for(task, LIMIT)

    asyncio.run(main())
    assert seen == [2]


def test_calls_leave_no_references_behind() -> None:
    semaphore, big = tg.Semaphore(), 10**15
    before = sys.getrefcount(big), sys.getrefcount(semaphore)
    for _ in range(100):
        point = semaphore.at(big)
        tg.Timepoint(semaphore, big)
        semaphore.wait(0)
        semaphore.query()
        point.add_callback(len).cancel()
    semaphore.signal(big)
    semaphore.signal(big + 1)
    del point
    assert (sys.getrefcount(big), sys.getrefcount(semaphore)) == before


def test_what_a_callback_raises_is_reported_with_the_function(unraisable: list[Any]) -> None:
    def fails(*_told: object) -> None:
        raise ValueError("from the callback")

    tg.Semaphore(1).at(1).add_callback(fails)
    (report,) = unraisable
    assert (report.exc_type, report.object, report.err_msg) == (ValueError, fails, "exception ignored in")
    assert report.exc_traceback is report.exc_value.__traceback__


def test_a_hook_for_reports_that_raises_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(_report: object) -> None:
        raise RuntimeError("the hook itself")

    monkeypatch.setattr(sys, "unraisablehook", hook)
    semaphore, told = tg.Semaphore(), []
    semaphore.at(1).add_callback(lambda *_told: 1 / 0)
    semaphore.at(1).add_callback(lambda *_told: told.append(1))
    semaphore.signal(1)
    assert told == [1]


def test_a_callback_lets_go_of_its_function_once_it_was_called_or_cancelled() -> None:
    class Function:
        def __call__(self, *_told: object) -> None:
            pass

    semaphore = tg.Semaphore(1)
    kept = [semaphore.at(1).add_callback(Function()), semaphore.at(2).add_callback(Function())]
    assert kept[1].cancel()
    assert not [one for one in gc.get_objects() if type(one) is Function]
