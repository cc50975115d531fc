"""Callbacks on a timeline: exactly once, outside of every lock, on the thread that decides (M10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ..types import Outcome
from .arming import arm
from .background import reaper, report_unraisable
from .host_wait import target_of
from .lock import core_lock, interrupted_here
from .process import refuse_forked
from .thread_state import Firing, drain, hand_over, thread_state
from .timeline import TimelineState, add_waiter_locked, remove_waiter_locked
from .unseen import look_at

_ARMED, _DUE, _OVER, _CANCELLED = range(4)


class Subscription:
    """A registered callback."""

    __slots__ = ("_error", "_function", "_phase", "_state", "_value")

    is_work = False
    _error: BaseException | None
    """Why it failed, if it did; there when it is due."""

    def __init__(self, state: TimelineState, value: int, function: Callable[..., object]) -> None:
        self._state = state
        self._value = value
        self._function: Callable[..., object] | None = function
        self._phase = _ARMED

    def due(self, state: TimelineState, error: BaseException | None, out: deque[Firing]) -> None:
        """See `timeline.Waiter`."""
        if self._phase == _ARMED:
            self._phase = _DUE
            self._error = error
            out.append(self)

    def fire(self) -> None:
        """Call, once. What the callback raises goes to `sys.unraisablehook` and harms nobody."""
        if self._phase != _DUE:
            return
        function = self._function
        assert function is not None
        given = self._arguments()
        if given:
            look_at(self._error)
        # No call between this and the user's function: an interrupt comes before both, or into the function.
        self._phase = _OVER
        try:
            function(*given)
        except Exception as error:
            report_unraisable(error, function)
        self._function = None

    def _arguments(self) -> tuple[Any, ...]:
        # The waiter holds the state, not the semaphore (M12): the timepoint is made anew.
        from .semaphore import Semaphore

        outcome = Outcome.REACHED if self._error is None else Outcome.FAILED
        return Semaphore._over(self._state)._at(self._value), outcome, self._error

    def cancel(self) -> bool:
        """Take the callback back. True: it was not called and never will be."""
        if self._phase == _ARMED:
            self._phase = _CANCELLED  # no call between test and store: a finalizer may be the caller
            self._function = None
            if interrupted_here():
                reaper.leave(self._unregister)
            else:
                self._unregister()
            return True
        return self._phase == _CANCELLED

    def _unregister(self) -> None:
        with core_lock:
            remove_waiter_locked(self._state, self._value, self)


class _Over(Subscription):
    """A callback that is told nothing but that it is over."""

    __slots__ = ()

    def _arguments(self) -> tuple[Any, ...]:
        return ()


def subscribe(subscription: Subscription) -> Subscription:
    """Register a callback; called at once if its timepoint is decided."""
    state, value = subscription._state, subscription._value
    if state.process.forked:
        refuse_forked(state.process, state.describe())
    reaper.ensure()
    out = thread_state.queue
    try:
        with core_lock:
            if not add_waiter_locked(state, value, subscription):
                subscription.due(state, None if state.payload >= value else state.failure, out)
        if state.promises:
            arm(state, value)
        drain()
    except BaseException:
        subscription.cancel()
        hand_over(out)
        raise
    return subscription


def when_over(point: Any, function: Callable[[], object]) -> Subscription:
    """Have `function()` called when a timepoint or submission is over, well or not."""
    state, value = target_of(point, "when_over")
    return subscribe(_Over(state, value, function))
