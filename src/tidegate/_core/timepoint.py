"""A place on a timeline."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from ..types import Outcome
from .awaiting import wait_async
from .fast_path import TimepointBase
from .progress import look
from .subscription import Subscription, subscribe
from .timeline import TimelineState

if TYPE_CHECKING:
    from .semaphore import Semaphore

Callback = Callable[["Timepoint", Outcome, "BaseException | None"], object]


class Timepoint(TimepointBase):
    """(semaphore, value): reached once the payload is `value` or more. Equal and hashed by that pair.

    It may signal too, so it holds the semaphore.
    """

    __slots__ = ()
    _state: TimelineState
    semaphore: Semaphore
    value: int

    def __init__(self, semaphore: Semaphore, value: int) -> None:
        self._state = semaphore._state
        self.semaphore = semaphore
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timepoint) and self._state is other._state and self.value == other.value

    def __hash__(self) -> int:
        return hash((id(self._state), self.value))

    def __repr__(self) -> str:
        return f"<tidegate.Timepoint {self._state.label or hex(id(self._state))}@{self.value}>"

    @property
    def reached(self) -> bool:
        """Whether the payload has got there. Never raises."""
        state = self._state
        if state.payload < self.value and state.promises:
            look(state)
        return state.payload >= self.value

    def _wait_target(self) -> tuple[TimelineState, int]:
        return self._state, self.value

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is reached: see `Semaphore.wait`."""
        self.semaphore.wait(self.value, timeout)

    def __await__(self) -> Generator[Any, Any, None]:
        if not self.reached:
            yield from wait_async([self], any_of_them=False).__await__()

    def signal(self) -> None:
        """Raise the semaphore to this value: see `Semaphore.signal`."""
        self.semaphore.signal(self.value)

    def fail(self, error: BaseException) -> None:
        """Fail the semaphore: see `Semaphore.fail`."""
        self.semaphore.fail(error)

    def explain(self) -> str:
        """Say who is to signal this timepoint and what that waits for in turn (M13)."""
        from .explain import explain

        return explain(self)

    def add_callback(self, function: Callback) -> Subscription:
        """Have `function(timepoint, outcome, error)` called exactly once, when this is reached or failed (M10).

        It runs on the thread that decides, outside of every lock, and must not block; if the timepoint is decided
        already, on this thread before the call returns. What it raises goes to `sys.unraisablehook`.
        """
        if not callable(function):
            raise TypeError(f"add_callback takes a function, not {type(function).__name__}")
        return subscribe(Subscription(self._state, self.value, function))
