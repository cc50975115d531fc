"""The reaper: what finalizers leave to it is done, whenever it comes."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from tidegate._core.background import Background
from tidegate._core.semaphore import Semaphore


@pytest.fixture
def fast_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaper takes a note while whoever leaves it is still at it."""
    monkeypatch.setattr(Background, "leave", lambda self, function, *arguments: function(*arguments))


@pytest.mark.usefixtures("fast_reaper")
def test_a_reaper_that_is_faster_than_the_finalizer_aborts_the_waiters() -> None:
    told: list[Any] = []
    semaphore = tg.Semaphore()
    semaphore.at(1).add_callback(lambda _point, outcome, error: told.append((outcome, type(error))))
    del semaphore
    assert told == [(tg.Outcome.FAILED, tg.AbortedError)]


def test_a_note_about_a_semaphore_that_has_an_owner_again_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []
    monkeypatch.setattr(Background, "leave", lambda self, *note: notes.append(note))
    semaphore = tg.Semaphore()
    subscription = semaphore.at(1).add_callback(lambda *_: None)
    state = semaphore._state
    del semaphore
    again = Semaphore._over(state)
    for function, *arguments in notes:
        function(*arguments)
    assert len(notes) == 1
    assert again.failure is None
    again.signal(1)
    assert not subscription.cancel()
