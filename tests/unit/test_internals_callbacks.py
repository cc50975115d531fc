"""Callbacks: what they are told, once, and what an interrupt or a late cancel leaves."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import subscription as subscriptions
from tidegate._core.lock import core_lock
from tidegate._core.subscription import Subscription, when_over
from tidegate._core.thread_state import thread_state

from .hand_driver import catch_up
from .raising import once


def test_a_callback_gets_its_timepoint_outcome_and_error() -> None:
    semaphore, told = tg.Semaphore(1), []
    for value in (1, 2, 3):
        semaphore.at(value).add_callback(lambda *given: told.append(given))
    semaphore.signal(2)
    problem = ValueError()
    semaphore.fail(problem)
    semaphore.at(3).add_callback(lambda *given: told.append(given))
    assert told == [
        (semaphore.at(1), tg.Outcome.REACHED, None),
        (semaphore.at(2), tg.Outcome.REACHED, None),
        (semaphore.at(3), tg.Outcome.FAILED, problem),
        (semaphore.at(3), tg.Outcome.FAILED, problem),
    ]
    with pytest.raises(TypeError, match=r"^add_callback takes a function, not int$"):
        semaphore.at(3).add_callback(3)  # type: ignore[arg-type]


def test_a_callback_on_something_failed_counts_as_looking_and_on_something_reached_does_not() -> None:
    semaphore = tg.Semaphore(1)
    semaphore.fail(ValueError())
    semaphore.at(1).add_callback(lambda *_told: None)
    semaphore.at(2).add_callback(lambda *_told: None)
    semaphore.at(1).add_callback(lambda *_told: None)


def test_a_callback_is_told_once_cancelled_for_good_and_lets_its_function_go() -> None:
    semaphore, out = tg.Semaphore(), deque[Any]()

    def function(*_told: object) -> None:
        pass

    due = semaphore.at(1).add_callback(function)
    assert not due.is_work
    due.due(semaphore._state, None, out)
    due.due(semaphore._state, ValueError(), out)
    assert list(out) == [due]
    assert due._error is None
    assert not due.cancel()  # it is on its way
    due.fire()
    assert due._function is None
    due.fire()
    assert not due.cancel()
    cancelled = semaphore.at(1).add_callback(function)
    assert cancelled.cancel()
    assert cancelled._function is None
    cancelled.due(semaphore._state, None, out)
    cancelled.fire()
    assert list(out) == [due]
    assert cancelled.cancel()
    due._unregister()


def test_what_a_callback_raises_is_reported_with_the_function(unraisable: list[Any]) -> None:
    def fails(*_told: object) -> None:
        raise ValueError("from the callback")

    subscription = tg.Semaphore(1).at(1).add_callback(fails)
    (report,) = unraisable
    assert (report.exc_type, report.object) == (ValueError, fails)
    assert subscription._function is None


def test_a_callback_interrupted_before_it_is_registered_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told = tg.Semaphore(), []
    monkeypatch.setattr(subscriptions, "drain", once(subscriptions.drain, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        semaphore.at(1).add_callback(lambda *_told: told.append(1))
    assert semaphore._state.waiters == {}
    semaphore.signal(1)
    assert told == []


def test_a_callback_interrupted_when_it_is_due_is_called_by_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told = tg.Semaphore(1), []
    monkeypatch.setattr(subscriptions, "drain", once(subscriptions.drain, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        semaphore.at(1).add_callback(lambda *_told: told.append(threading.current_thread().name))
    assert not thread_state.queue
    catch_up()
    assert told == ["tidegate-reaper"]


def test_a_subscription_cancelled_inside_a_core_section_is_unregistered_later() -> None:
    semaphore = tg.Semaphore()
    subscription = semaphore.at(1).add_callback(lambda *_told: None)
    with core_lock:
        assert subscription.cancel()
        assert semaphore._state.waiters
    catch_up()
    assert semaphore._state.waiters == {}


def test_when_over_tells_nothing_but_that_it_is_over() -> None:
    semaphore, told = tg.Semaphore(), []
    subscription = when_over(semaphore.at(2), lambda *given: told.append(given))
    assert isinstance(subscription, Subscription)
    semaphore.fail(ValueError())
    when_over(semaphore.at(2), lambda *given: told.append(given))
    assert told == [(), ()]
    with pytest.raises(TypeError, match=r"^when_over takes timepoints and submissions, not int$"):
        when_over(3, print)
