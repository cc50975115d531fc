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
from functools import partial
from queue import SimpleQueue
from typing import Any

from . import process

Note = tuple[Callable[..., object], tuple[Any, ...]]


class Background:
    """A daemon thread that runs what it is given, in order."""

    __slots__ = ("_begun", "_name", "_notes", "_started")

    def __init__(self, name: str) -> None:
        self._name = name
        self._renew()
        process.in_child(self._renew)

    def _renew(self) -> None:
        self._notes: SimpleQueue[Note] = SimpleQueue()
        self._started = False
        self._begun = False

    def ensure(self) -> None:
        """Start the thread if need be. For ordinary code only.

        Under no lock (see `start_thread`): whoever is not alone here starts one too many, and that one ends at once.
        """
        if not self._started:
            self._started = start_thread(partial(self._run, self._notes), self._name) is not None

    def leave(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the thread call `function(*arguments)` soon. Callable from anywhere."""
        self._notes.put((function, arguments))

    def _run(self, notes: SimpleQueue[Note]) -> None:
        if self._begun:  # no call between test and store (M38)
            return
        self._begun = True
        while True:
            function, arguments = notes.get()
            try:
                function(*arguments)
            except BaseException as error:
                report_unraisable(error, function)
            # A note may hold the last reference to something: drop it before sleeping.
            del function, arguments


def start_thread(function: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a daemon thread; None: the interpreter exits.

    Under no lock, and so mostly as a note to the reaper: the call returns when the thread has begun, and before that a
    finalizer on it may come to wait for any lock that this thread has.
    """
    try:
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
    except RuntimeError:
        if not process.here.exiting and not sys.is_finalizing():
            raise
        return None
    return thread


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


deferred = Background("tidegate-deferred")
runner = Background("tidegate-runner")
