"""The core's two background threads: the reaper and the runner.

The *reaper* acts on notes: what finalizers, signal handlers and interrupted threads could not do where they were. A
note may be left anywhere, also inside a core section, because `SimpleQueue.put` may interrupt itself.
The *runner* takes over work that one signal set free beyond its share (M10). It is another thread because user
callbacks may run on it, and those must not keep the reaper from its notes.

Threads are started from ordinary code only (`ensure`), never from a note: starting a thread takes locks.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from . import process

Note = tuple[Callable[..., object], tuple[Any, ...]]


class Background:
    """A daemon thread that runs what it is given, in order."""

    __slots__ = ("_name", "_notes", "_started", "_starting")

    def __init__(self, name: str) -> None:
        self._name = name
        self._renew()
        process.in_child(self._renew)

    def _renew(self) -> None:
        self._notes: SimpleQueue[Note] = SimpleQueue()
        self._started = False
        self._starting = threading.RLock()  # a finalizer may come here while the thread is being made

    def ensure(self) -> None:
        """Start the thread if need be. For ordinary code only."""
        if self._started:
            return
        with self._starting:
            if self._started:
                return
            try:
                threading.Thread(target=self._run, args=(self._notes,), name=self._name, daemon=True).start()
            except RuntimeError:
                if not process.here.exiting and not sys.is_finalizing():
                    raise
                return
            self._started = True

    def leave(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the thread call `function(*arguments)` soon. Callable from anywhere."""
        self._notes.put((function, arguments))

    @staticmethod
    def _run(notes: SimpleQueue[Note]) -> None:
        while True:
            function, arguments = notes.get()
            try:
                function(*arguments)
            except BaseException as error:
                report_unraisable(error, function)
            # A note may hold the last reference to something: drop it before sleeping.
            del function, arguments


class _Unraisable:
    """The arguments of `sys.unraisablehook`."""

    def __init__(self, error: BaseException, source: object) -> None:
        self.exc_type = type(error)
        self.exc_value = error
        self.exc_traceback = error.__traceback__
        self.err_msg = "exception ignored in"
        self.object = source


def report_unraisable(error: BaseException, source: object) -> None:
    """Give an error that has nobody to go to `sys.unraisablehook`; never raises."""
    try:
        sys.unraisablehook(_Unraisable(error, source))  # type: ignore[arg-type]
    except Exception:
        pass


reaper = Background("tidegate-reaper")
runner = Background("tidegate-runner")
