"""The call that submits: what it is given, and what passes at once without the device."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import scheduling
from tidegate._core.lock import core_lock
from tidegate._core.scheduling import signals_of, submit, waits_of
from tidegate._core.submission import ISSUED, RETIRED, Submission
from tidegate._core.thread_state import thread_state
from tidegate._core.timeline import TimelineState
from tidegate.driver import Barrier

from .hand_driver import HandDevice, catch_up
from .raising import once


@pytest.fixture
def device(opened: tuple[tg.Device, HandDevice]) -> tg.Device:
    return opened[0]


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


def test_submitting_returns_the_submission_itself(device: tg.Device) -> None:
    made = Submission(device.queue(), Barrier(), None)
    assert submit(made, None, None) is made
    with core_lock:
        late = Submission(device.queue(), Barrier(), None)
        assert submit(late, None, None) is late
    catch_up()
    assert late.done


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
