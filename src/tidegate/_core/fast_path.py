"""Which form of the shortest calls serves: C where it was built and Python has the GIL, Python otherwise.

Both forms behave alike. The Python form is the methods as they are written in `semaphore` and `timepoint`; the C form
(`_fast.c`) puts a plain case before each and calls them for all else. `TIDEGATE_PURE=1` in the environment asks for the
Python form, for whoever wants to trace, mutate or document the methods themselves.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

_FORM = 1
"""What `_fast.c` must say of itself: a checkout may hold a module that was built from an older source."""


def _compiled() -> Any:
    """Return the C module, or None."""
    if os.environ.get("TIDEGATE_PURE", "0") not in ("", "0"):
        return None
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        from . import _fast  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _fast if _fast.FORM == _FORM else None


_fast = _compiled()

COMPILED = _fast is not None
"""Whether the C form serves."""

if TYPE_CHECKING or _fast is None:

    class StateBase:
        """The part of a timeline's state that the plain cases touch."""

        __slots__ = ("calm", "payload")
        calm: bool
        payload: int

    class SemaphoreBase:
        """A semaphore's hold on its state."""

        __slots__ = ("_state",)

    class TimepointBase:
        """The three parts of a timepoint."""

        __slots__ = ("_state", "semaphore", "value")

else:
    StateBase = _fast.StateBase
    SemaphoreBase = _fast.SemaphoreBase
    TimepointBase = _fast.TimepointBase


def put_in_place(timeline: type[StateBase], semaphore: type[SemaphoreBase], timepoint: type[TimepointBase]) -> None:
    """Let the C form, if there is one, stand before the methods of these finished classes."""
    if _fast is None:
        return
    python: Any = semaphore
    _fast.install(timeline, timepoint, python.query, python.signal, python.wait, python.at)
    for name in ("query", "signal", "wait", "at"):
        setattr(semaphore, name, getattr(SemaphoreBase, name))
    python._at = python.at
    timepoint.__init__ = TimepointBase.__init__  # type: ignore[method-assign]
