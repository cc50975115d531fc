"""Semaphores that fail, that are interrupted while they signal, and that are dropped."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import semaphore as module
from tidegate._core import timeline
from tidegate._core.semaphore import Semaphore
from tidegate._core.thread_state import thread_state
from tidegate._core.timeline import TimelineState, abandon, advance, brief, failed_error

from .hand_driver import catch_up
from .raising import once

# Failures ----------------------------------------------------------------------------------------------------------


def test_failing_takes_exceptions_only() -> None:
    semaphore = tg.Semaphore(label="s")
    for wrong in (ValueError, "x", None):
        with pytest.raises(TypeError, match=r"^semaphore 's': fail takes an exception, not "):
            semaphore.fail(wrong)  # type: ignore[arg-type]
    semaphore.at(3).fail(KeyError("k"))
    assert isinstance(semaphore.failure, KeyError)


def test_a_failure_is_seen_by_whoever_asks_for_it_and_not_by_asking_for_the_value() -> None:
    semaphore = tg.Semaphore()
    assert semaphore.failure is None
    semaphore.fail(ValueError())
    assert semaphore.value == 0
    assert semaphore.failure is not None
    assert semaphore.failure is not None


def test_the_error_of_a_failed_timeline_has_a_timepoint_only_while_its_semaphore_lives() -> None:
    semaphore = tg.Semaphore(1, label="s")
    state = semaphore._state
    state.failure = ValueError()
    error = failed_error(state, 4)
    assert error.timepoint == semaphore.at(4)
    assert str(error) == "semaphore 's' failed at 1, before 4: ValueError"
    assert error.__cause__ is state.failure
    error.timepoint = None
    del semaphore
    assert failed_error(state, 4).timepoint is None
    assert failed_error(TimelineState(0, "", None), 1).timepoint is None
    assert brief(KeyError("x")) == "KeyError: 'x'"


def test_a_dropped_semaphore_that_lives_again_is_not_abandoned() -> None:
    semaphore = tg.Semaphore(label="s")
    abandon(semaphore._state)
    assert semaphore.failure is None
    state = semaphore._state
    del semaphore
    abandon(state)
    assert isinstance(state.failure, tg.AbortedError)
    lonely = TimelineState(0, "l", None)
    abandon(lonely)
    assert isinstance(lonely.failure, tg.AbortedError)


def test_a_failure_looked_for_before_it_came_does_not_count_as_seen() -> None:
    semaphore = tg.Semaphore()
    told: list[Any] = []
    semaphore.at(1).add_callback(lambda *args: told.append(args))
    semaphore.fail(ValueError())
    assert told[0][1] is tg.Outcome.FAILED


# Interrupts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["raise_locked", "settle_locked", "drain"])
def test_an_interrupted_signal_is_completed_by_the_reaper(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told = tg.Semaphore(), []
    semaphore.at(1).add_callback(lambda *_told: told.append(threading.current_thread().name))
    original = getattr(timeline, where)

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(timeline, where, original)
        original(*arguments) if where != "drain" else None
        raise KeyboardInterrupt

    monkeypatch.setattr(timeline, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        semaphore.signal(1)
    assert not thread_state.queue
    catch_up()
    assert told == ["tidegate-reaper"]
    assert semaphore.value == 1
    assert semaphore._state.waiters == {}
    assert semaphore._state.calm is timeline.GIL


def test_a_signal_interrupted_between_store_and_collection_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told = tg.Semaphore(), []
    semaphore.at(1).add_callback(lambda *_told: told.append(1))
    monkeypatch.setattr(timeline, "collect_locked", once(timeline.collect_locked, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        semaphore.signal(1)
    catch_up()
    assert told == [1]


@pytest.mark.parametrize("where", ["fail_locked", "drain"])
def test_an_interrupted_failure_is_completed_by_the_reaper(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told, problem = tg.Semaphore(), [], ValueError()
    semaphore.at(1).add_callback(lambda _point, _outcome, error: told.append(error))
    original = getattr(timeline, where)

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(timeline, where, original)
        if where == "fail_locked":
            arguments[0].failure = arguments[1]
        raise KeyboardInterrupt

    monkeypatch.setattr(timeline, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        semaphore.fail(problem)
    assert not thread_state.queue
    catch_up()
    assert told == [problem]


def test_a_refused_signal_leaves_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore = tg.Semaphore(5)
    notes: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(timeline, "reaper", type("R", (), {"leave": staticmethod(lambda *note: notes.append(note))})())
        with pytest.raises(tg.InvalidArgumentError):
            advance(semaphore, 5)
    assert notes == []


# Dropping ----------------------------------------------------------------------------------------------------------


def test_a_semaphore_that_is_finalized_owns_nothing_and_one_made_anew_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[Any] = []
    monkeypatch.setattr(module, "reaper", type("R", (), {"leave": staticmethod(lambda *note: notes.append(note))})())
    semaphore = tg.Semaphore()
    state = semaphore._state
    state.waiters[1] = {}
    semaphore.__del__()
    assert state.owner is None
    assert notes == [(abandon, state)]
    semaphore.__del__()
    assert len(notes) == 2
    heir = Semaphore._over(state)
    semaphore.__del__()
    assert state.owner is not None
    assert state.owner() is heir
    state.waiters.clear()
    semaphore.__del__()
    heir.__del__()
    assert len(notes) == 3


def test_a_semaphore_whose_constructor_refused_is_finalized_in_silence(unraisable: list[Any]) -> None:
    with pytest.raises(tg.InvalidArgumentError):
        tg.Semaphore(-1)
    Semaphore.__new__(Semaphore).__del__()
    assert unraisable == []
