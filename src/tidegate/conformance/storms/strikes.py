"""What strikes: timer signals at random moments, the collector, and the hook that hears what nobody could raise."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from ..interrupts import in_finalizer, in_simulation, inside_tidegate, is_inside, is_streams

#: How long the next signal keeps people waiting, in seconds.
SOONEST, LATEST = 20e-6, 2e-3

_AGAIN_S = 10e-6
"""What struck a simulation comes again so much later."""

#: A collection of the youngest so many objects apart, where finalizers are to come.
_OFTEN = 60


class StormError(Exception):
    """Raised on purpose."""


class Timer:
    """Signals at random moments, on the main thread alone.

    Args:
        random: draws the moments.
        handler: is called when one has struck code that can be struck.

    """

    def __init__(self, random: Random, handler: Callable[[FrameType | None], None]) -> None:
        self._random = random
        self._handler = handler
        self._on = False
        self.strikes = 0
        self.inside = 0

    def __enter__(self) -> Timer:
        self._before = signal.signal(signal.SIGALRM, self._struck)
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        signal.signal(signal.SIGALRM, self._before)

    def start(self) -> None:
        """Let them come from now on."""
        self._on = True
        self._arm()

    def stop(self) -> None:
        """Let none come any more."""
        self._on = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _arm(self, delay: float | None = None) -> None:
        if delay is None:
            # As many short delays as long ones: an operation takes tens of microseconds.
            delay = SOONEST * (LATEST / SOONEST) ** self._random.random()
        signal.setitimer(signal.ITIMER_REAL, delay)

    def _struck(self, number: int, frame: FrameType | None) -> None:
        if not self._on:
            return
        if in_simulation(frame):
            self._arm(_AGAIN_S)
            return
        self.strikes += 1
        self.inside += inside_tidegate(frame)
        try:
            self._handler(frame)
        finally:
            if self._on:
                self._arm()


#: Functions that the collector calls, out of which no exception can come.
_COLLECTED = frozenset({"vanished"})

_STORMS = str(Path(__file__).parent)


def can_be_interrupted(frame: FrameType | None) -> bool:
    """Whether Ctrl-C may strike here: in Tidegate itself, whose promise it is that is tried, and in no finalizer.

    What Tidegate calls, a callback or an argument, is the program's own: an interrupt there says nothing.
    """
    if in_finalizer(frame) or is_users(frame) or not inside_tidegate(frame):
        return False
    while frame is not None:
        if frame.f_code.co_name in _COLLECTED:
            return False
        frame = frame.f_back
    return True


def is_users(frame: FrameType | None) -> bool:
    """Whether it is code of the program that is running, and not Tidegate or what that calls."""
    while frame is not None and not is_inside(frame.f_code) and not is_streams(frame.f_code):
        if frame.f_code.co_filename.startswith(_STORMS):
            return True
        frame = frame.f_back
    return False


class Mourned:
    """An object in a cycle, which does something when it is collected, on whatever thread that happens."""

    def __init__(self, act: Callable[[FrameType], None]) -> None:
        self._act = act
        self._cycle = self

    def __del__(self) -> None:
        self._act(sys._getframe())


@contextmanager
def collecting_often(wanted: bool) -> Iterator[None]:
    """Have the collector run all the time, or hardly ever."""
    before = gc.get_threshold()
    gc.set_threshold(*((_OFTEN, 3, 3) if wanted else (5000, 10, 10)))
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Unraisable:
    """Hears what could not be raised, in any thread. A context manager.

    Args:
        interrupts: whether KeyboardInterrupt may be among it: one that struck a callback.

    """

    def __init__(self, *, interrupts: bool) -> None:
        self._expected = (StormError, KeyboardInterrupt) if interrupts else (StormError,)
        self.heard: list[str] = []

    def __enter__(self) -> Unraisable:
        self._before = sys.unraisablehook, threading.excepthook
        sys.unraisablehook = self._hear
        threading.excepthook = self._hear
        return self

    def __exit__(self, *exception: object) -> None:
        sys.unraisablehook, threading.excepthook = self._before

    def _hear(self, what: Any) -> None:
        if not issubclass(what.exc_type, self._expected):
            import traceback

            text = "".join(traceback.format_exception(what.exc_type, what.exc_value, what.exc_traceback))
            self.heard.append(
                f"{getattr(what, 'err_msg', None) or 'in a thread'} {getattr(what, 'object', '')}: {text}"
            )
