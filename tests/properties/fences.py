"""Waiting for Tidegate's background threads, without sleeping."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate._core.background import reaper, runner

LIMIT = 30.0
"""Seconds that every blocking call gets: far above what a loaded machine needs."""


def let_background_threads_catch_up() -> None:
    """Return when what they had been given by now is done. They take notes in order, so a note of ours tells."""
    for thread in (reaper, runner):
        done = threading.Event()
        thread.ensure()
        thread.leave(done.set)
        assert done.wait(LIMIT)


def until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds that follows from what was told: who ends work tells first and releases then."""
    for _ in range(3000):
        if condition():
            return
        let_background_threads_catch_up()
    assert condition()
