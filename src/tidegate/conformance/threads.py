"""Threads for tests: daemons, with a result, and a limit on every join."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from .latches import LIMIT

P = ParamSpec("P")
T = TypeVar("T")


class Background(Generic[T]):
    """A function running on a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        # A daemon: a test that fails because a thread hangs must not hang the whole run.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._function())
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        """Whether the function has not ended yet."""
        return self._thread.is_alive()

    def error(self, timeout: float = LIMIT) -> BaseException | None:
        """What the function raised, once it has ended; None if it returned."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"a thread did not end within {timeout:g} s"
        return self._error

    def result(self, timeout: float = LIMIT) -> T:
        """What the function returned, once it has ended; raises what it raised."""
        error = self.error(timeout)
        if error is not None:
            raise error
        return self._outcome[0]


def background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Background[T]:
    """Call a function on a thread of its own."""
    return Background(lambda: function(*args, **kwargs))


def all_at_once(count: int, function: Callable[[int], T]) -> list[T]:
    """Call `function(0)` to `function(count - 1)` on a thread each, started together; the results in order."""
    together = threading.Barrier(count)

    def started(index: int) -> T:
        together.wait(LIMIT)
        return function(index)

    return [thread.result() for thread in [background(started, index) for index in range(count)]]
