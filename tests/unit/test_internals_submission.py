"""A submission that is under way or over: its one end, and what its handle tells of it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import retirement
from tidegate._core import submission as submissions
from tidegate._core.retirement import retire
from tidegate._core.submission import RETIRED, Submission, over, site_text
from tidegate._core.thread_state import thread_state
from tidegate._core.timeline import TimelineState
from tidegate.driver import Barrier

from .hand_driver import LIMIT, HandDevice, catch_up
from .raising import once


@pytest.fixture
def device(opened: tuple[tg.Device, HandDevice]) -> tg.Device:
    return opened[0]


# The end -----------------------------------------------------------------------------------------------------------


def test_the_first_call_decides_the_end_also_if_it_is_interrupted(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tg.Semaphore()
    work = device.queue().fill(device.allocate(4), 0, signal=done.at(1))
    notes: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(retirement, "_end_locked", once(retirement._end_locked, KeyboardInterrupt()))
        patched.setattr(
            retirement, "reaper", type("R", (), {"leave": staticmethod(lambda *note: notes.append(note))})()
        )
        with pytest.raises(KeyboardInterrupt):
            retire(work)
    assert notes == [(retire, work, None)]
    retire(work, ValueError("second"))
    assert work.error is None
    assert done.value == 1
    retire(work, ValueError("third"))
    assert work.error is None


@pytest.mark.parametrize("error", [None, ValueError("x")])
@pytest.mark.parametrize("where", ["_end_locked", "_let_go", "_signal_locked"])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_retirement_is_completed_once(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException | None, after: bool
) -> None:
    done, told, buffer = tg.Semaphore(), [], device.allocate(4)
    done.at(1).add_callback(lambda *given: told.append(given))
    work = device.queue().fill(buffer, 0, signal=done.at(1))
    monkeypatch.setattr(retirement, where, once(getattr(retirement, where), KeyboardInterrupt(), after))
    with pytest.raises(KeyboardInterrupt):
        retire(work, error)
    assert not thread_state.queue
    catch_up()
    assert told == [(done.at(1), tg.Outcome.REACHED if error is None else tg.Outcome.FAILED, error)]
    assert (work._stage, work.error) == (RETIRED, error)
    assert (done._state.claims, done._state.promises, buffer._memory.last_write) == ({}, {}, None)
    assert device.statistics().retired == 1
    assert device._issued == {}
    if where != "_let_go":
        assert (work._work, work._signals, work._touches, buffer._memory.uses) == (None, (), (), 0)


def test_an_end_lets_go_of_everything(device: tg.Device) -> None:
    done, buffer = tg.Semaphore(), device.allocate(4)
    work = device.queue().fill(buffer, 0, signal=done.at(1))
    work._promised = ((done._state, 1, work),)
    retire(work)
    assert (work._work, work._signals, work._writes, work._touches, work._promised) == (None, (), (), (), ())
    assert buffer._memory.uses == 0


def test_somebody_else_who_signals_a_claimed_value_fails_the_timeline_and_its_text_names_both(
    device: tg.Device,
) -> None:
    done = tg.Semaphore(label="done")
    work = device.queue().fill(device.allocate(4), 0, signal=done.at(3))
    done.signal(4)
    retire(work)
    assert isinstance(done.failure, tg.FailedPreconditionError)
    assert str(done.failure) == (
        f"{work.describe()} was to signal semaphore 'done' to 3, but the payload was 4 already:"
        " somebody was released too early"
    )
    assert done._state.claims == {}
    exact = tg.Semaphore()
    work = device.queue().fill(device.allocate(4), 0, signal=exact.at(3))
    exact.signal(3)
    retire(work)
    assert isinstance(exact.failure, tg.FailedPreconditionError)


def test_an_end_undoes_the_work_with_its_error(device: tg.Device) -> None:
    undone: list[BaseException] = []
    work = device.queue().fill(device.allocate(4), 0)
    work._work = type("Undoing", (), {"on_failure": staticmethod(undone.append), "kind": "undoing"})()
    problem = ValueError()
    retire(work, problem)
    assert undone == [problem]
    good = device.queue().fill(device.allocate(4), 0)
    good._work = work._work or type("U", (), {"on_failure": staticmethod(undone.append), "kind": "undoing"})()
    retire(good)
    assert undone == [problem]


def test_a_retirement_interrupted_between_a_signal_and_its_waiters_tells_them(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, told = tg.Semaphore(), []
    done.at(1).add_callback(lambda _point, outcome, _error: told.append(outcome))
    work = device.queue().fill(device.allocate(4), 0, signal=done.at(1))
    raise_locked = retirement.raise_locked

    def interrupted(state: TimelineState, value: int, _out: Any) -> None:
        monkeypatch.setattr(retirement, "raise_locked", raise_locked)
        state.payload = value
        raise KeyboardInterrupt

    monkeypatch.setattr(retirement, "raise_locked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        retire(work)
    catch_up()
    assert told == [tg.Outcome.REACHED]
    assert (done.value, done.failure) == (1, None)


def test_an_error_kept_by_a_submission_pins_no_locals(device: tg.Device) -> None:
    def fails() -> None:
        kept = object()
        raise ValueError(id(kept))

    try:
        fails()
    except ValueError as error:
        problem = error
    work = device.queue().fill(device.allocate(4), 0)
    retire(work, problem)
    assert problem.__traceback__ is not None
    assert problem.__traceback__.tb_next is not None
    assert problem.__traceback__.tb_next.tb_frame.f_locals == {}


# The handle --------------------------------------------------------------------------------------------------------


def test_a_submission_tells_what_it_is_and_how_far(device: tg.Device, hand: HandDevice) -> None:
    line = sys._getframe().f_lineno + 1
    work = device.queue().fill(device.allocate(4), 0)
    where = f"fill on queue 'compute' of device 'hand' ({__file__}:{line})"
    assert work.describe() == where
    assert work.line == f"{__file__}:{line}"
    assert repr(work) == f"<tidegate.Submission {where} issued>"
    assert work.queue is device.queue()
    assert (work.epoch, work.taken, work.armed) == (1, True, False)
    hand.one.failures[1] = ValueError("x")
    hand.one.over(1)
    assert repr(work).endswith("issued>")
    assert work.done
    assert repr(work) == f"<tidegate.Submission {where} retired error=ValueError('x')>"
    fresh = Submission(device.queue(), Barrier(), None)
    assert (fresh.epoch, fresh.taken, fresh.armed, fresh.is_work) == (0, False, False, True)


def test_a_submission_that_is_over_from_the_start_is_well(device: tg.Device) -> None:
    done = over(device.queue())
    assert isinstance(done, Submission)
    assert (done.done, done.error, done._work) == (True, None, None)
    done.wait(LIMIT)
    ready = device.allocate(4).ready
    assert isinstance(ready, Submission)
    assert ready.done
    assert done.describe().endswith("(unknown line)")


def test_a_wait_for_what_is_over_still_checks_its_timeout(device: tg.Device) -> None:
    done = over(device.queue())
    with pytest.raises(tg.InvalidArgumentError):
        done.wait(-1)
    assert done.result() is None
    assert done.wait() is None
    assert done._completion is not None


def test_a_completion_is_not_calm_while_it_is_claimed(device: tg.Device, hand: HandDevice) -> None:
    work = device.queue().fill(device.allocate(4), 0)
    state, value = work._wait_target()
    assert (state.calm, value, list(state.claims), state.payload) == (False, 1, [1], 0)
    hand.one.over(1)
    assert work.done
    assert (state.payload, state.claims) == (1, {})


def test_the_site_of_every_instruction_is_its_line() -> None:
    code = compile("first = 1\nsecond = (first +\n  2)\n\nthird = second\n", "file.py", "exec")
    for start, end, number in code.co_lines():
        if number is None:
            continue
        for instruction in range(start, end, 2):
            assert site_text((code, instruction)) == f"file.py:{number}"
    assert site_text((code, 10_000)) == f"file.py:{code.co_firstlineno}"
    assert site_text(None) == "unknown line"


def test_a_result_is_awaited_and_waited_for(device: tg.Device) -> None:
    async def result() -> Any:
        return await device.queue().host_call(lambda: 42)

    assert asyncio.run(result()) == 42
    assert device.queue().host_call(lambda: 43).result(LIMIT) == 43


def test_a_wait_for_ever_returns_or_raises_as_the_work_ended(device: tg.Device, hand: HandDevice) -> None:
    good, bad = (device.queue().fill(device.allocate(4), 0) for _ in range(2))
    hand.one.failures[2] = ValueError("bad")
    hand.one.over(2)
    assert good.done
    good.wait()
    assert good._completion is None
    assert bad.done
    with pytest.raises(tg.SemaphoreFailedError, match="ValueError: bad"):
        bad.wait()


def test_of_two_threads_that_make_a_completion_the_first_counts(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tg.Semaphore()
    held = device.queue().barrier(wait=gate.at(1))
    made = submissions.Completion

    def racing(submission: Submission) -> Any:
        mine, theirs = made(submission), made(submission)
        if submission._completion is None:
            submission._begin_completion_locked(theirs)
            submission._completion = theirs
        return mine

    monkeypatch.setattr(submissions, "Completion", racing)
    state, _ = held._wait_target()
    assert state is held._completion
    claim = state.claims[1]
    assert (claim.state, claim.value, claim()) == (state, 1, held)
    held.cancel()


# Unseen failures ---------------------------------------------------------------------------------------------------


def test_an_awaited_failure_is_not_logged(device: tg.Device, caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()
    catch_up()
    caplog.clear()
    failed = tg.Semaphore()
    failed.fail(ZeroDivisionError("seen"))

    async def look() -> None:
        submission = device.queue().barrier(wait=[failed.at(1)])
        with pytest.raises(tg.SemaphoreFailedError):
            await submission

    asyncio.run(look())
    gc.collect()
    catch_up()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_vanished_submission_is_only_noted_and_one_of_the_parent_is_nobodys(device: tg.Device) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    held = device.queue().barrier(wait=gate.at(1), signal=done.at(4))
    claim = done._state.claims[4]
    here = done._state.process
    done._state.process = type("Parent", (), {"forked": True})()
    submissions._abandon(claim)
    assert done._state.claims == {4: claim}
    done._state.process = here
    told: list[int] = []
    done.at(4).add_callback(lambda *_told: told.append(1))
    submissions.vanished(claim)
    catch_up()
    assert told == [1]
    assert isinstance(done.failure, tg.AbortedError)
    held.cancel()
