"""Submissions from the call to their end: what is noted, what is undone, and what an interrupt between leaves."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import retirement, scheduling
from tidegate._core import submission as submissions
from tidegate._core.lock import core_lock
from tidegate._core.retirement import retire
from tidegate._core.scheduling import signals_of, submit, waits_of
from tidegate._core.submission import HELD, ISSUED, RETIRED, Submission, _Unseen, over, site_text
from tidegate._core.thread_state import thread_state
from tidegate._core.timeline import TimelineState
from tidegate.driver import Barrier

from .hand_driver import LIMIT, HandDevice, catch_up, close_by_hand, open_by_hand


def once(function: Any, error: BaseException, after: bool = False) -> Any:
    errors = [error]

    def wrapped(*arguments: Any) -> Any:
        if errors and not after:
            raise errors.pop()
        result = function(*arguments)
        if errors:
            raise errors.pop()
        return result

    return wrapped


@pytest.fixture
def opened() -> Iterator[tuple[tg.Device, HandDevice]]:
    device, hand = open_by_hand()
    yield device, hand
    close_by_hand(device, hand)


@pytest.fixture
def device(opened: tuple[tg.Device, HandDevice]) -> tg.Device:
    return opened[0]


@pytest.fixture
def hand(opened: tuple[tg.Device, HandDevice]) -> HandDevice:
    return opened[1]


# What is given -----------------------------------------------------------------------------------------------------


def test_waits_are_one_point_several_or_none() -> None:
    semaphore = tg.Semaphore()
    one, two = semaphore.at(1), semaphore.at(2)
    assert waits_of(None) == []
    assert waits_of(one) == [(semaphore._state, 1)]
    assert waits_of(iter([one, two])) == [(semaphore._state, 1), (semaphore._state, 2)]
    with pytest.raises(TypeError, match=r"^wait= takes timepoints and submissions, not int$"):
        waits_of(3)
    with pytest.raises(TypeError, match=r"^wait= takes timepoints and submissions, not int$"):
        waits_of([one, 3])


def test_of_two_signals_on_one_semaphore_the_higher_counts() -> None:
    one, two = tg.Semaphore(), tg.Semaphore()
    assert signals_of(None) == ()
    assert signals_of(one.at(1)) == (one.at(1),)
    assert set(signals_of([one.at(1), two.at(4), one.at(3), one.at(2)])) == {one.at(3), two.at(4)}
    for wrong, name in ((3, "int"), ([3], "int"), ([one], "Semaphore")):
        with pytest.raises(TypeError, match=f"^signal= takes timepoints, not {name}$"):
            signals_of(wrong)


# What passes at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
def test_empty_work_with_nothing_to_wait_for_never_meets_the_device(
    device: tg.Device, hand: HandDevice, many: bool
) -> None:
    reached, done = tg.Semaphore(1), tg.Semaphore()
    wait, signal = reached.at(1), done.at(2)
    passed = device.queue().barrier(wait=[wait] if many else wait, signal=[signal] if many else signal)
    alone = device.queue().barrier(wait=[wait])
    assert hand.asked == []
    for submission in (passed, alone):
        assert (submission._stage, submission._work, submission._completion) == (RETIRED, None, None)
    assert done.value == 2
    assert done.next().value == 3
    statistics = device.statistics()
    assert (statistics.submitted, statistics.retired, statistics.issued) == (2, 2, 0)


def test_empty_work_with_several_signals_meets_the_device(device: tg.Device, hand: HandDevice) -> None:
    one, two = tg.Semaphore(), tg.Semaphore()
    both = device.queue().barrier(signal=[one.at(1), two.at(1)])
    assert both._stage == ISSUED
    hand.one.over(1)
    assert (one.value, two.value) == (1, 1)


@pytest.mark.parametrize("many", [False, True])
def test_empty_work_below_the_payload_or_on_a_claim_is_refused(device: tg.Device, many: bool) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore(5, label="done")
    held = device.queue().barrier(wait=gate.at(1), signal=done.at(9))
    for value, found in ((5, "the payload is 5 already"), (4, "the payload is 5 already"), (9, f"{held.describe()}")):
        point = done.at(value)
        with pytest.raises(tg.InvalidArgumentError, match="cannot signal semaphore 'done' to") as caught:
            device.queue().barrier(signal=[point] if many else point)
        assert found in str(caught.value)
    assert device.statistics().submitted == 1
    assert not done._state.calm
    held.cancel()


def test_empty_work_on_a_failed_semaphore_does_not_move_it(device: tg.Device, hand: HandDevice) -> None:
    done, problem = tg.Semaphore(), ValueError("x")
    done.fail(problem)
    for points in (done.at(1), [done.at(1)]):
        submission = device.queue().barrier(signal=points)
        assert submission._stage == ISSUED
        assert done._state.claims == {}
        hand.one.over(hand.one.issued)
        assert submission.done
        assert (done.value, done.failure) == (0, problem)


def test_passing_wakes_those_who_wait_and_keeps_the_claims_of_others(device: tg.Device) -> None:
    gate, done, told = tg.Semaphore(), tg.Semaphore(), []
    done.at(1).add_callback(lambda *_told: told.append(1))
    held = device.queue().barrier(wait=gate.at(1), signal=done.at(9))
    device.queue().barrier(signal=[done.at(2)])
    assert told == [1]
    assert not done._state.calm
    assert done.next().value == 10
    held.cancel()
    assert done._state.failure is not None


class Touchy(TimelineState):
    """Raises when its payload changes, after the change; notes whether it was calm then."""

    __slots__ = ("armed", "calm_then")

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "payload" and getattr(self, "armed", False):
            self.calm_then = self.calm
            self.armed = False
            raise KeyboardInterrupt


def touchy() -> tuple[tg.Semaphore, Touchy]:
    import weakref

    semaphore = tg.Semaphore()
    state = Touchy(0, "touchy", None)
    state.owner = weakref.ref(semaphore)
    semaphore._state = state
    return semaphore, state


def test_an_interrupt_after_the_signal_of_passing_work_is_completed_by_the_reaper(device: tg.Device) -> None:
    semaphore, state = touchy()
    told: list[int] = []
    semaphore.at(1).add_callback(lambda *_told: told.append(1))
    state.armed = True
    with pytest.raises(KeyboardInterrupt):
        device.queue().barrier(signal=[semaphore.at(1)])
    catch_up()
    assert told == [1]
    assert not state.calm_then
    assert (semaphore.value, state.failure) == (1, None)


def test_passing_work_ends_the_calm_before_it_looks(device: tg.Device) -> None:
    semaphore, state = touchy()
    state.armed = True
    with pytest.raises(KeyboardInterrupt):
        device.queue().barrier(signal=[semaphore.at(1)])
    assert not state.calm_then
    catch_up()
    assert state.calm


def test_an_interrupt_before_it_is_admitted_leaves_no_trace(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tg.Semaphore()
    monkeypatch.setattr(scheduling, "_pass_locked", once(scheduling._pass_locked, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        device.queue().barrier(signal=[done.at(1)])
    catch_up()
    assert (done.value, done.failure, device.statistics().submitted) == (0, None, 0)


def test_what_a_submission_frees_runs_before_the_call_returns_or_after_an_interrupt_on_the_reaper(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, told = tg.Semaphore(), []
    done.at(1).add_callback(lambda *_told: told.append(threading.current_thread().name))
    monkeypatch.setattr(scheduling, "drain", once(scheduling.drain, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        device.queue().barrier(signal=[done.at(1)])
    assert not thread_state.queue
    catch_up()
    assert told == ["tidegate-reaper"]
    done.at(2).add_callback(lambda *_told: told.append(threading.current_thread().name))
    device.queue().barrier(signal=[done.at(2)])
    assert told == ["tidegate-reaper", threading.current_thread().name]


# What is admitted --------------------------------------------------------------------------------------------------


def memory_of(buffer: tg.Buffer) -> Any:
    return buffer._memory


def test_work_under_way_counts_as_a_use_and_as_the_last_write_of_its_memory(
    device: tg.Device, hand: HandDevice
) -> None:
    source, target = device.allocate(8), device.allocate(8)
    copy = device.queue().copy(source, target)
    assert (memory_of(source).uses, memory_of(target).uses) == (1, 1)
    assert memory_of(source).last_write is None
    assert memory_of(target).pending_write() is copy
    assert copy in device._issued
    second = device.queue().fill(target, 0)
    assert memory_of(target).uses == 2
    hand.one.over(1)
    assert copy.done
    assert (memory_of(source).uses, memory_of(target).uses) == (0, 1)
    assert memory_of(target).pending_write() is second
    hand.one.over(2)
    assert second.done
    assert (memory_of(target).uses, memory_of(target).last_write) == (0, None)


def test_held_work_counts_too_and_is_known_weakly(device: tg.Device) -> None:
    gate, buffer = tg.Semaphore(), device.allocate(8)
    held = device.queue().fill(buffer, 0, wait=gate.at(1))
    assert (held._stage, memory_of(buffer).uses, memory_of(buffer).pending_write()) == (HELD, 1, held)
    assert [ref() for ref in device._held.values()] == [held]
    assert held._weakly() is held._weakly()
    held.cancel()
    assert (memory_of(buffer).uses, memory_of(buffer).last_write) == (0, None)
    assert isinstance(memory_of(buffer).write_error, tg.AbortedError)


def test_a_new_write_makes_up_for_one_that_failed(device: tg.Device, hand: HandDevice) -> None:
    buffer = device.allocate(8)
    hand.one.failures[1] = ValueError("lost")
    device.queue().fill(buffer, 0)
    hand.one.over(1)
    device._poller()
    assert isinstance(memory_of(buffer).write_error, ValueError)
    device.queue().fill(buffer, 0)
    assert memory_of(buffer).write_error is None
    hand.one.over(2)
    device._poller()
    assert memory_of(buffer).write_error is None


def test_a_failed_write_that_was_followed_by_another_is_forgotten(device: tg.Device, hand: HandDevice) -> None:
    buffer = device.allocate(8)
    device.queue().fill(buffer, 0)
    second = device.queue().fill(buffer, 0)
    hand.one.failures[1] = ValueError("lost")
    hand.one.over(1)
    device._poller()
    assert memory_of(buffer).write_error is None
    assert memory_of(buffer).pending_write() is second


def test_a_ready_submission_is_not_fired_a_second_time(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, gate, fired = tg.Semaphore(), tg.Semaphore(), []
    failed.fail(ValueError())
    launch = scheduling.launch

    def meanwhile(submission: Submission) -> None:
        assert submission in device._issued
        gate.signal(1)
        launch(submission)

    monkeypatch.setattr(scheduling, "launch", meanwhile)
    monkeypatch.setattr(Submission, "fire", lambda self: fired.append(self))
    late = device.queue().barrier(wait=[failed.at(1), gate.at(1)])
    assert late.done
    assert fired == []
    assert failed._state.seen


def test_a_failure_that_decides_a_wait_counts_as_seen_and_a_reached_wait_does_not(device: tg.Device) -> None:
    failed = tg.Semaphore(1)
    failed.fail(ValueError())
    device.queue().barrier(wait=[failed.at(1)])
    assert not failed._state.seen
    assert isinstance(device.queue().barrier(wait=[failed.at(2)]).error, ValueError)
    assert failed._state.seen


def test_of_several_failures_the_first_in_line_counts(device: tg.Device) -> None:
    first, second = tg.Semaphore(), tg.Semaphore()
    first.fail(ValueError())
    second.fail(KeyError())
    assert isinstance(device.queue().barrier(wait=[first.at(1), second.at(1)]).error, ValueError)
    gates = tg.Semaphore(), tg.Semaphore()
    held = device.queue().barrier(wait=[gates[0].at(1), gates[1].at(1)])
    gates[1].fail(KeyError())
    gates[0].fail(ValueError())
    assert isinstance(held.error, KeyError)
    assert gates[1]._state.seen


@pytest.mark.parametrize("where", ["_line_up_locked", "_note_uses"])
def test_an_interrupted_admission_is_withdrawn(device: tg.Device, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    gate, done, other = tg.Semaphore(), tg.Semaphore(), tg.Semaphore(3)
    kept = device.queue().barrier(wait=gate.at(1), signal=other.at(8))
    monkeypatch.setattr(scheduling, where, once(getattr(scheduling, where), KeyboardInterrupt(), after=True))
    with pytest.raises(KeyboardInterrupt):
        device.queue().barrier(wait=gate.at(1), signal=[done.at(7), other.at(9)])
    catch_up()
    assert (done._state.claims, done._state.high, done._state.calm) == ({}, 0, True)
    assert (list(other._state.claims), other._state.high, other._state.calm) == ([8], 8, False)
    assert [list(bucket) for bucket in gate._state.waiters.values()] == [[kept]]
    assert (done.failure, other.failure) == (None, None)
    assert list(device._held) == [id(kept)]
    assert device._issued == {}
    assert device._retired == 0
    kept.cancel()


def test_withdrawing_keeps_the_claims_that_are_not_its_own(device: tg.Device) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    held = device.queue().barrier(wait=gate.at(1), signal=done.at(5))
    stranger = Submission(device.queue(), Barrier(), None)
    stranger._signals = (done.at(5),)
    stranger._queued = True
    with core_lock:
        scheduling._withdraw_locked(stranger, (done.at(5),))
    assert (stranger._signals, stranger._stage, stranger._queued) == ((), HELD, False)
    assert done._state.claims[5]() is held
    assert done._state.high == 5
    held.cancel()


def test_a_refused_claim_names_the_one_that_has_it_or_that_it_is_gone(device: tg.Device) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore(label="done")
    held = device.queue().barrier(wait=gate.at(1), signal=done.at(5))
    late = Submission(device.queue(), Barrier(), None)
    text = f"barrier on queue 'compute' of device 'hand': cannot signal semaphore 'done' to 5: {held.describe()} claims"
    assert str(scheduling._claim_refused(late, done.at(5))).startswith(text)
    done._state.claims[5] = lambda: None  # type: ignore[assignment]
    assert str(scheduling._claim_refused(late, done.at(5))).endswith("another submission claims it already")
    done._state.claims.clear()
    held.cancel()


def test_a_submission_on_semaphores_of_the_parent_is_refused_in_a_child(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling.process, "checking", True)
    parent = type("Parent", (), {"forked": True})()
    for role in ("wait", "signal"):
        semaphore = tg.Semaphore()
        semaphore._state.process = parent
        for points in (semaphore.at(1), [semaphore.at(1)]):
            with pytest.raises(tg.FailedPreconditionError, match="made before this process was forked"):
                device.queue().barrier(**{role: points})
        with pytest.raises(tg.FailedPreconditionError, match="made before this process was forked"):
            device.queue().fill(device.allocate(4), 0, **{role: semaphore.at(1)})
        assert semaphore._state.waiters == {}
        assert semaphore._state.claims == {}
    reached = tg.Semaphore(1)
    reached._state.process = parent
    with pytest.raises(tg.FailedPreconditionError, match="made before this process was forked"):
        device.queue().barrier(wait=[reached.at(1)])
    assert device.statistics().submitted == 0


def test_a_submission_made_inside_a_core_section_that_is_refused_later_fails_its_signals(device: tg.Device) -> None:
    done, used = tg.Semaphore(), tg.Semaphore(5)
    with core_lock:
        late = device.queue().barrier(signal=[done.at(1), used.at(5)])
        assert late._stage == HELD
    catch_up()
    assert isinstance(late.error, tg.InvalidArgumentError)
    assert done.failure is late.error


def test_a_submission_made_inside_a_core_section_waits_for_what_it_was_given(device: tg.Device) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    with core_lock:
        late = device.queue().barrier(wait=[gate.at(2), gate.at(1)], signal=done.at(1))
    catch_up()
    assert (late._stage, list(gate._state.waiters)) == (HELD, [2])
    gate.signal(2)
    assert late._stage == ISSUED


def test_a_lane_follows_its_last_operation_whatever_was_passed_or_claimed(device: tg.Device, hand: HandDevice) -> None:
    lane, buffer = device.lane(), device.allocate(4)
    assert lane.tail.value == 0
    lane.barrier()
    assert (lane.tail.value, lane.tail.reached) == (1, True)
    first = lane.fill(buffer, 0)
    second = lane.fill(buffer, 0)
    assert lane.tail.value == 3
    assert second._promised[0][2] is first
    hand.one.over(2)
    lane.wait(LIMIT)
    lane.reset()
    assert lane.tail.value == 0
    assert repr(lane) == "<tidegate.Lane '' on queue 'compute' of device 'hand'>"
    assert lane.queue is device.queue()
    assert lane.device is device
    assert device.lane(label="x")._line.label == "x"
    assert lane._line.label == "lane"


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
    assert (done._state.claims, done._state.promises, memory_of(buffer).last_write) == ({}, {}, None)
    assert device.statistics().retired == 1
    assert device._issued == {}
    if where != "_let_go":
        assert (work._work, work._signals, work._touches, memory_of(buffer).uses) == (None, (), (), 0)


def test_an_end_lets_go_of_everything(device: tg.Device) -> None:
    done, buffer = tg.Semaphore(), device.allocate(4)
    work = device.queue().fill(buffer, 0, signal=done.at(1))
    work._promised = ((done._state, 1, work),)
    retire(work)
    assert (work._work, work._signals, work._writes, work._touches, work._promised) == (None, (), (), (), ())
    assert memory_of(buffer).uses == 0


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
    assert (Submission.epoch, Submission.taken, Submission.armed, Submission.is_work) == (0, False, False, True)


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


def test_a_report_of_an_unseen_failure_that_was_not_finished_making_reports_nothing(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()
    catch_up()
    caplog.clear()  # of what tests before this one left
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(Submission, "describe", once(Submission.describe, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        _Unseen(over(device.queue()), ValueError())
    gc.collect()
    catch_up()
    assert (unraisable, caplog.records) == ([], [])


def test_a_failure_is_reported_neither_at_exit_nor_if_a_state_of_it_was_seen(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[Any] = []
    monkeypatch.setattr(
        submissions, "reaper", type("R", (), {"leave": staticmethod(lambda *note: notes.append(note))})()
    )
    done = over(device.queue())
    state, _ = done._wait_target()
    for seen, exiting, told in ((False, False, 1), (True, False, 0), (False, True, 0)):
        state.seen = seen
        monkeypatch.setattr(submissions.process.here, "exiting", exiting)
        notes.clear()
        problem = ValueError()
        unseen = _Unseen(done, problem)
        assert unseen.states == [state]
        text = unseen.text
        del unseen
        assert notes == [(submissions._report, text, problem)] * told


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


def test_a_result_is_awaited_and_waited_for(device: tg.Device) -> None:
    async def result() -> Any:
        return await device.queue().host_call(lambda: 42)

    assert asyncio.run(result()) == 42
    assert device.queue().host_call(lambda: 43).result(LIMIT) == 43


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
    submissions._vanished(claim)
    catch_up()
    assert told == [1]
    assert isinstance(done.failure, tg.AbortedError)
    held.cancel()


def test_a_submission_whose_claim_was_taken_over_signals_nothing(device: tg.Device) -> None:
    done = tg.Semaphore()
    work = device.queue().fill(device.allocate(4), 0, signal=done.at(2))
    other = over(device.queue())
    done._state.claims[2] = submissions.stake(other, done._state, 2)
    assert not work._claims_locked(done._state, 2)
    assert not work._claims_locked(done._state, 3)
    retire(work)
    assert (done.value, done.failure, list(done._state.claims)) == (0, None, [2])
    done._state.claims.clear()


def test_submitting_returns_the_submission_itself(device: tg.Device) -> None:
    made = Submission(device.queue(), Barrier(), None)
    assert submit(made, None, None) is made
    with core_lock:
        late = Submission(device.queue(), Barrier(), None)
        assert submit(late, None, None) is late
    catch_up()
    assert late.done


def test_an_interrupt_between_admission_and_launch_fails_the_signals(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tg.Semaphore()
    monkeypatch.setattr(scheduling, "launch", once(scheduling.launch, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        device.queue().fill(device.allocate(4), 0, signal=done.at(1))
    catch_up()
    assert isinstance(done.failure, KeyboardInterrupt)
    assert device._issued == {}


def test_an_admission_interrupted_when_it_was_ready_is_withdrawn(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, seen = tg.Semaphore(), []
    note_uses = scheduling._note_uses

    def interrupted(submission: Submission) -> None:
        seen.append(submission)
        note_uses(submission)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(scheduling, "_note_uses", interrupted)
        with pytest.raises(KeyboardInterrupt):
            device.queue().fill(device.allocate(4), 0, signal=done.at(1))
    catch_up()
    assert (seen[0]._stage, seen[0]._queued, seen[0]._signals) == (HELD, False, ())
    assert (done._state.claims, done.failure, device._issued) == ({}, None, {})
    assert device._retired == 0


def test_a_wait_that_is_reached_leaves_its_timeline_unseen_and_a_failed_one_fires_once(device: tg.Device) -> None:
    from collections import deque

    one, two = tg.Semaphore(), tg.Semaphore()
    held = device.queue().barrier(wait=[one.at(1), two.at(1)])
    one.signal(1)
    assert not one._state.seen
    out: deque[Any] = deque()
    error = ValueError()
    held.due(two._state, error, out)
    held.due(two._state, KeyError(), out)
    assert (list(out), held._doom, held._queued) == ([held], error, True)
    held.fire()
    assert held.error is error


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


def test_a_claim_that_vanished_takes_its_promise_with_it(device: tg.Device) -> None:
    done = tg.Semaphore()
    work = device.queue().fill(device.allocate(4), 0, signal=done.at(2))
    assert done._state.promises == {2: work}
    submissions._abandon(done._state.claims[2])
    assert (done._state.promises, done._state.claims) == ({}, {})


def test_waits_met_while_standing_in_line_count_as_met(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tg.Semaphore(), tg.Semaphore()
    add_waiter = scheduling.add_waiter_locked

    def rising(state: TimelineState, value: int, waiter: Any) -> bool:
        if state is one._state:
            state.payload = value
        return add_waiter(state, value, waiter)

    monkeypatch.setattr(scheduling, "add_waiter_locked", rising)
    held = device.queue().barrier(wait=[one.at(1), two.at(1)])
    assert (held._pending, held._doom, one._state.seen) == ({two._state: 1}, None, False)
    held.cancel()


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


def test_a_lower_wait_behind_a_higher_one_does_not_hide_the_next(device: tg.Device) -> None:
    one, two = tg.Semaphore(), tg.Semaphore()
    held = device.queue().barrier(wait=[one.at(2), one.at(1), two.at(1)])
    assert held._pending == {one._state: 2, two._state: 1}
    held.cancel()
