"""Waiting for Tidegate's background threads, without sleeping."""

from __future__ import annotations

import threading
from collections.abc import Callable

import tidegate as tg

LIMIT = 30.0
"""Seconds that every blocking call gets: far above what a loaded machine needs."""


def let_background_threads_catch_up() -> None:
    """Return when what was left to a thread of Tidegate's by now is done.

    It takes things in order, and whoever waits for a semaphore that was dropped is told there.
    """
    semaphore, told = tg.Semaphore(), threading.Event()
    semaphore.at(1).add_callback(lambda *_told: told.set())
    del semaphore
    assert told.wait(LIMIT)


def until(condition: Callable[[], bool]) -> None:
    """Return when a condition holds that follows from what was told: who ends work tells first and releases then."""
    for _ in range(3000):
        if condition():
            return
        let_background_threads_catch_up()
    assert condition()
