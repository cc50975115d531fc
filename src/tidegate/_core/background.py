"""The core's two background threads: the deferred worker and the runner.

The *deferred worker* calls what could not be called where it came up: in a finalizer, in a signal handler that
interrupted a driver, or where an interrupt cut a call short. Anything may be deferred from anywhere, because
`SimpleQueue.put` is safe in a finalizer or a handler that interrupts another `put`.
The *runner* takes over the work that one signal set free beyond its share (M10). It is a thread of its own, so that a
great deal of work does not delay what was deferred.

Both are started by ordinary code (`ensure`) before they are needed: starting a thread takes locks, which a finalizer
or a signal handler must not wait for.
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

        It takes no lock (see `start_thread`), so two callers at the same moment may start two threads. The second one
        ends at once.
        """
        if not self._started:
            self._started = start_thread(partial(self._run, self._notes), self._name) is not None

    def leave(self, function: Callable[..., object], *arguments: Any) -> None:
        """Defer a call: the thread calls `function(*arguments)` soon. Callable from anywhere."""
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
            # These may be the last references to something: drop them before sleeping.
            del function, arguments


def start_thread(function: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a daemon thread; return None if the interpreter exits.

    The caller must hold no lock, so this is mostly done by the deferred worker: the call returns when the new thread
    has begun, and before that a finalizer on the new thread may wait for a lock that the caller holds.
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
