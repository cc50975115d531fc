"""The public semaphore: the right to signal a timeline.

The three short calls, `query`, `signal` and a `wait` for what is reached, have a plain case that is one test of `calm`
and no call. That a semaphore was made before a fork is not tested there: a forked child puts the checking forms in
their place instead (`_check_forks`), so only programs that fork pay for it. Where the C form of the plain cases is
there, it stands before the methods written here, which then serve all the other cases (`fast_path`).
"""

from __future__ import annotations

import weakref
from sys import _getframe
from typing import Any

from ..types import MAX_VALUE
from . import process
from .background import reaper
from .fast_path import SemaphoreBase, put_in_place
from .host_wait import spin_for, wait_targets
from .lock import core_lock
from .progress import look
from .timeline import TimelineState, abandon, advance, checked_value, fail, failed_error
from .timepoint import Timepoint

_SHORT_WAIT = 0.001
_NUMBERS = (float, int)


class Semaphore(SemaphoreBase):
    """A timeline: a 64-bit payload that only rises, that everybody may wait for and signal.

    It is host state, belongs to no device and works with all of them. Any thread may call anything here. While a
    semaphore object exists somebody may still signal it; when it is collected, those who wait for values it has not
    reached fail with AbortedError instead of hanging (M12).

    Args:
        initial_value: the first payload.
        label: the name in errors, explanations and traces.

    Raises:
        InvalidArgumentError: the initial value is not in 0..2**64-2.

    """

    __slots__ = ("__weakref__",)
    _state: TimelineState

    def __init__(self, initial_value: int = 0, label: str = "") -> None:
        caller = _getframe(1)
        value = checked_value(initial_value, f"semaphore {label!r}" if label else "a new semaphore")
        self._state = TimelineState(value, label, (caller.f_code, caller.f_lasti))
        self._state.owner = weakref.ref(self)

    @classmethod
    def _over(cls, state: TimelineState) -> Semaphore:
        """Return the object of `state`, made anew if it was collected."""
        semaphore = state.owner() if state.owner is not None else None
        if semaphore is None:
            semaphore = cls.__new__(cls)
            semaphore._state = state
            state.owner = weakref.ref(semaphore)
        return semaphore

    def __del__(self) -> None:
        try:
            state = self._state
        except AttributeError:
            return  # the constructor refused
        if state.waiters and not state.process.forked:
            # Until this returns the weak reference still finds what is being finalized, and a fast reaper would take
            # that for an owner. One that was made anew meanwhile is left alone.
            if state.owner is not None and state.owner() is self:
                state.owner = None
            reaper.leave(abandon, state)

    def __repr__(self) -> str:
        state = self._state
        label = f" {state.label!r}" if state.label else ""
        failed = "" if state.failure is None else f" failed={state.failure!r}"
        return f"<tidegate.Semaphore{label} value={state.payload}{failed}>"

    @property
    def label(self) -> str:
        """The name given to it."""
        return self._state.label

    @property
    def value(self) -> int:
        """The last payload. Never raises, also after a failure."""
        state = self._state
        if state.promises:
            look(state)
        return state.payload

    @property
    def failure(self) -> BaseException | None:
        """The first error, or None."""
        state = self._state
        if state.promises:
            look(state)
        if state.unseen is not None:
            state.unseen.seen = True
        return state.failure

    def query(self) -> int:
        """Return the payload.

        Raises:
            SemaphoreFailedError: the semaphore has failed; `__cause__` is the first error.

        """
        state = self._state
        if state.calm:
            return state.payload
        return _query(self)

    def signal(self, value: int) -> None:
        """Raise the payload to `value` and set free whoever waits for it. Never blocks.

        Callbacks run on this thread before the call returns (M10).

        Raises:
            InvalidArgumentError: the value does not raise the payload; nothing has changed.
            SemaphoreFailedError: the semaphore has failed.

        """
        state = self._state
        # The plain case without the lock: no call and no loop from the test of `calm` to the store (M38). The bound is
        # a small int because comparing with a large one costs as much as all the rest.
        if value.__class__ is int and state.calm and state.payload < value < 0x3FFFFFFF:
            state.payload = value
            return
        advance(self, value)

    def fail(self, error: BaseException) -> None:
        """Fail the semaphore: whoever waits for an unreached value gets `error` as cause. The first failure wins.

        What was reached stays reached (M7). Never blocks.
        """
        state = self._state
        if not isinstance(error, BaseException):
            raise TypeError(f"{state.describe()}: fail takes an exception, not {type(error).__name__}")
        process.refuse_forked(state.process, state.describe())
        if state.promises:
            look(state)
        fail(state, error)

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Block until the payload is `value` or more.

        Args:
            value: the payload to wait for.
            timeout: seconds; None waits for ever, 0 polls.

        Raises:
            DeadlineExceededError: not reached in time; the text says who was to signal.
            SemaphoreFailedError: it failed before it got there.
            InvalidArgumentError: the timeout is negative or not a number.

        """
        state = self._state
        if value.__class__ is int and (timeout is None or (timeout.__class__ in _NUMBERS and timeout >= _SHORT_WAIT)):
            if 0 <= value <= state.payload:
                return
            if state.failure is None and value > 0 and spin_for(state, value):
                return
        wait_targets([(state, checked_value(value, state.describe()))], any_of_them=False, timeout=timeout)

    def at(self, value: int) -> Timepoint:
        """Return the timepoint of this semaphore at `value`."""
        if value.__class__ is int and 0 <= value <= MAX_VALUE:
            return Timepoint(self, value)
        return Timepoint(self, checked_value(value, self._state.describe()))

    _at = at

    def next(self) -> Timepoint:
        """Return the timepoint one above the payload and every value claimed or given out so far."""
        state = self._state
        with core_lock:
            value = state.high = max(state.high, state.payload) + 1
        return Timepoint(self, checked_value(value, state.describe()))

    def __copy__(self) -> Semaphore:
        return self

    def __deepcopy__(self, memo: Any) -> Semaphore:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"{self._state.describe()} belongs to its process and cannot be pickled")


put_in_place(TimelineState, Semaphore, Timepoint)


def _query(semaphore: Semaphore) -> int:
    """The whole of `query`."""
    state = semaphore._state
    process.refuse_forked(state.process, state.describe())
    if state.promises:
        look(state)
    if state.failure is not None:
        raise failed_error(state, min(state.payload + 1, MAX_VALUE), semaphore)
    return state.payload


def _wait(semaphore: Semaphore, value: int, timeout: float | None = None) -> None:
    """The whole of `wait`."""
    state = semaphore._state
    wait_targets([(state, checked_value(value, state.describe()))], any_of_them=False, timeout=timeout)


def _check_forks() -> None:
    Semaphore.query = _query  # type: ignore[method-assign,assignment]
    Semaphore.signal = advance  # type: ignore[method-assign,assignment]
    Semaphore.wait = _wait  # type: ignore[method-assign,assignment]


process.in_child(_check_forks)
