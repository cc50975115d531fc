"""Submissions that are admitted: what is noted of them, what they stand in line for, and what an interrupt undoes."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from tidegate._core import scheduling
from tidegate._core import submission as submissions
from tidegate._core.lock import core_lock
from tidegate._core.retirement import retire
from tidegate._core.submission import HELD, ISSUED, Submission, over
from tidegate._core.timeline import TimelineState
from tidegate.driver import Barrier

from .hand_driver import LIMIT, HandDevice, catch_up
from .raising import once


@pytest.fixture
def device(opened: tuple[tg.Device, HandDevice]) -> tg.Device:
    return opened[0]


# What is noted -----------------------------------------------------------------------------------------------------


def test_work_under_way_counts_as_a_use_and_as_the_last_write_of_its_memory(
    device: tg.Device, hand: HandDevice
) -> None:
    source, target = device.allocate(8), device.allocate(8)
    copy = device.queue().copy(source, target)
    assert (source._memory.uses, target._memory.uses) == (1, 1)
    assert source._memory.last_write is None
    assert target._memory.pending_write() is copy
    assert copy in device._issued
    second = device.queue().fill(target, 0)
    assert target._memory.uses == 2
    hand.one.over(1)
    assert copy.done
    assert (source._memory.uses, target._memory.uses) == (0, 1)
    assert target._memory.pending_write() is second
    hand.one.over(2)
    assert second.done
    assert (target._memory.uses, target._memory.last_write) == (0, None)


def test_held_work_counts_too_and_is_known_weakly(device: tg.Device) -> None:
    gate, buffer = tg.Semaphore(), device.allocate(8)
    held = device.queue().fill(buffer, 0, wait=gate.at(1))
    assert (held._stage, buffer._memory.uses, buffer._memory.pending_write()) == (HELD, 1, held)
    assert [ref() for ref in device._held.values()] == [held]
    assert held._weakly() is held._weakly()
    held.cancel()
    assert (buffer._memory.uses, buffer._memory.last_write) == (0, None)
    assert isinstance(buffer._memory.write_error, tg.AbortedError)


def test_a_new_write_makes_up_for_one_that_failed(device: tg.Device, hand: HandDevice) -> None:
    buffer = device.allocate(8)
    hand.one.failures[1] = ValueError("lost")
    device.queue().fill(buffer, 0)
    hand.one.over(1)
    device._poller()
    assert isinstance(buffer._memory.write_error, ValueError)
    device.queue().fill(buffer, 0)
    assert buffer._memory.write_error is None
    hand.one.over(2)
    device._poller()
    assert buffer._memory.write_error is None


def test_a_failed_write_that_was_followed_by_another_is_forgotten(device: tg.Device, hand: HandDevice) -> None:
    buffer = device.allocate(8)
    device.queue().fill(buffer, 0)
    second = device.queue().fill(buffer, 0)
    hand.one.failures[1] = ValueError("lost")
    hand.one.over(1)
    device._poller()
    assert buffer._memory.write_error is None
    assert buffer._memory.pending_write() is second


# Waits -------------------------------------------------------------------------------------------------------------


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


def test_a_failure_that_decides_a_wait_counts_as_seen_and_a_reached_wait_does_not(device: tg.Device) -> None:
    failed = tg.Semaphore(1)
    failed.fail(ValueError())
    device.queue().barrier(wait=[failed.at(1)])
    assert isinstance(device.queue().barrier(wait=[failed.at(2)]).error, ValueError)


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


def test_a_wait_that_is_reached_leaves_its_timeline_unseen_and_a_failed_one_fires_once(device: tg.Device) -> None:
    from collections import deque

    one, two = tg.Semaphore(), tg.Semaphore()
    held = device.queue().barrier(wait=[one.at(1), two.at(1)])
    one.signal(1)
    out: deque[Any] = deque()
    error = ValueError()
    held.due(two._state, error, out)
    held.due(two._state, KeyError(), out)
    assert (list(out), held._doom, held._queued) == ([held], error, True)
    held.fire()
    assert held.error is error


def test_waits_met_while_standing_in_line_count_as_met(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tg.Semaphore(), tg.Semaphore()
    add_waiter = scheduling.add_waiter_locked

    def rising(state: TimelineState, value: int, waiter: Any) -> bool:
        if state is one._state:
            state.payload = value
        return add_waiter(state, value, waiter)

    monkeypatch.setattr(scheduling, "add_waiter_locked", rising)
    held = device.queue().barrier(wait=[one.at(1), two.at(1)])
    assert (held._pending, held._doom) == ({two._state: 1}, None)
    held.cancel()


def test_a_lower_wait_behind_a_higher_one_does_not_hide_the_next(device: tg.Device) -> None:
    one, two = tg.Semaphore(), tg.Semaphore()
    held = device.queue().barrier(wait=[one.at(2), one.at(1), two.at(1)])
    assert held._pending == {one._state: 2, two._state: 1}
    held.cancel()


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


# Claims ------------------------------------------------------------------------------------------------------------


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


def test_a_claim_that_vanished_takes_its_promise_with_it(device: tg.Device) -> None:
    done = tg.Semaphore()
    work = device.queue().fill(device.allocate(4), 0, signal=done.at(2))
    assert done._state.promises == {2: work}
    submissions._abandon(done._state.claims[2])
    assert (done._state.promises, done._state.claims) == ({}, {})


# What is refused or done later -------------------------------------------------------------------------------------


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


# Interrupts --------------------------------------------------------------------------------------------------------


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
