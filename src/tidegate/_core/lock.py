"""The one lock of the core.

A single lock, rather than one per object, because every interesting step touches several: checking and claiming all
signals of a submission, counting down waits, retiring. One lock has no order to get wrong, and behind the GIL a finer
grain would buy nothing. The rules that keep it cheap and safe:

- A section is short and calls neither user code nor a driver, but for the express way (`_express.c`), which only tries
  the lock and has the driver issue inside of it, without any Python. It is always entered by `with core_lock:`, the
  only form in which CPython cannot be interrupted between taking a lock and being sure to give it back.
- It is an RLock not in order to be taken twice, but because an RLock knows its owner. A collector's finalizer or a
  signal handler may start on a thread that is inside a section; whatever it calls asks `interrupted_here` first and
  leaves a note for the reaper instead (M12).
- Sections are written so that an exception at any point leaves something that can be run again: see `timeline`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")

core_lock = threading.RLock()

_is_owned = core_lock._is_owned  # type: ignore[attr-defined]


class Inside(threading.local):
    """What this thread is in the middle of."""

    driver = False
    """A driver's call, which may hold locks and be half-way through an epoch: no other call may begin there."""


inside = Inside()


def call_driver(function: Callable[..., R], *arguments: Any) -> R:
    """Call into a driver; what a signal handler or finalizer begins meanwhile is put off. For all but `issue`."""
    before = inside.driver
    try:
        inside.driver = True
        return function(*arguments)
    finally:
        inside.driver = before


def interrupted_here() -> bool:
    """Whether this thread is inside a section or a driver, so that the caller is a finalizer or a signal handler."""
    return inside.driver or _is_owned()
