"""The state behind a semaphore: payload, failure, waiters and claims (M1, M4 to M12).

Whoever waits holds the state; whoever may signal holds the `Semaphore` (M12). All functions here whose name ends in
`_locked` run inside a core section. They collect what becomes free in `out`, the thread's trampoline queue, and never
run it.

*calm* and the fast path. A timeline is calm while nobody waits for it, no submission claims it and it has not failed.
Then `Semaphore.signal` raises the payload by a test and a store without the lock: under the GIL nothing can come
between them, for there is no call and no loop (M38). Whoever wants to wait or claim ends the calm first and looks at
the payload afterwards, so either the signaller sees it, or it sees the signal.

*Claims and promises.* A claim belongs to a submission, known weakly, because a held one is owned by what it waits for
alone (M12). It is a promise once the submission is issued on a device that counts (M3); only those can be armed and
looked at, and only those may be many without anybody walking over them in vain.

*Again after an interrupt.* A section may be left by a KeyboardInterrupt after any call. So each step is repeatable:
`due` of a waiter notes only once, a bucket of waiters is removed after all in it were noted, and stale entries of the
heap are skipped. `finish` runs the steps again and is what an interrupted thread leaves to the reaper.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import AbortedError, InvalidArgumentError, SemaphoreFailedError, TidegateError
from ..types import MAX_VALUE
from . import process
from .background import reaper
from .fast_path import StateBase
from .lock import core_lock, interrupted_here
from .thread_state import Firing, drain, hand_over, thread_state
from .unseen import Unseen, forget_frames, record_of

if TYPE_CHECKING:
    from types import CodeType

    from .semaphore import Semaphore
    from .submission import Claim, Submission

Site = tuple["CodeType", int]
"""Where the user made a call: a code object and the instruction in it. Resolved to file and line when asked (M13)."""

GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether a straight-line test-and-store may do without the lock (M38)."""


class Waiter(Firing, Protocol):
    """What waits at a timeline."""

    def due(self, state: TimelineState, error: BaseException | None, out: deque[Firing]) -> None:
        """Note that `state` is reached (error None) or failed, and join `out` if that decides.

        Called in a core section, perhaps more than once.
        """


class TimelineState(StateBase):
    """A payload that only rises, at most one failure, the waiters and the claims."""

    __slots__ = (
        "__weakref__",
        "claims",
        "failure",
        "high",
        "label",
        "owner",
        "process",
        "promises",
        "site",
        "unseen",
        "values",
        "waiters",
    )

    def __init__(self, payload: int, label: str, site: Site | None) -> None:
        self.payload = payload
        self.failure: BaseException | None = None
        self.unseen: Unseen | None = None
        self.calm = GIL
        self.process = process.here
        self.high = payload
        self.waiters: dict[int, dict[Waiter, None]] = {}
        self.values: list[int] = []
        self.claims: dict[int, Claim] = {}
        self.promises: dict[int, Submission] = {}
        self.label = label
        self.site = site
        self.owner: weakref.ref[Semaphore] | None = None

    def describe(self) -> str:
        """Return how texts name this timeline."""
        return f"semaphore {self.label!r}" if self.label else f"semaphore at {id(self):#x}"


def checked_value(value: Any, what: str) -> int:
    """Return a payload value as an exact int, or raise what is wrong with it."""
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{what}: the value must be an int, not {type(value).__name__}")
        value = value.__index__()
    if not 0 <= value <= MAX_VALUE:
        raise InvalidArgumentError(f"{what}: the value is {value}, and must be in 0..2**64-2", value=value)
    return int(value)


def add_waiter_locked(state: TimelineState, value: int, waiter: Waiter) -> bool:
    """Register a waiter. False: the timepoint is already reached or the timeline has failed."""
    state.calm = False
    if state.payload >= value or state.failure is not None:
        settle_locked(state)
        return False
    bucket = state.waiters.get(value)
    if bucket is None:
        heappush(state.values, value)
        bucket = state.waiters[value] = {}
    bucket[waiter] = None
    return True


def remove_waiter_locked(state: TimelineState, value: int, waiter: Waiter) -> None:
    """Forget a waiter, leaving no residue; unknown ones are ignored."""
    bucket = state.waiters.get(value)
    if bucket is not None:
        bucket.pop(waiter, None)
        if not bucket:
            del state.waiters[value]
            if len(state.values) > 2 * len(state.waiters):
                state.values[:] = state.waiters
                heapify(state.values)
    settle_locked(state)


def waiting_up_to_locked(state: TimelineState, limit: int) -> list[Waiter]:
    """Return who waits for a value up to `limit`. Down the heap, so that those above cost nothing."""
    values = state.values
    found: dict[Waiter, None] = {}  # a value may stand in the heap twice
    places = [0]
    while places:
        place = places.pop()
        if place < len(values) and values[place] <= limit:
            found.update(state.waiters.get(values[place], ()))
            places += (2 * place + 1, 2 * place + 2)
    return list(found)


def settle_locked(state: TimelineState) -> None:
    """Say whether the timeline is calm."""
    state.calm = GIL and not (state.waiters or state.claims or state.failure is not None)


def collect_locked(state: TimelineState, out: deque[Firing]) -> None:
    """Move every waiter that is decided by now to `out`."""
    error = state.failure
    waiters = state.waiters
    values = state.values
    limit = state.payload if error is None else MAX_VALUE
    while values and values[0] <= limit:
        value = values[0]
        bucket = waiters.get(value)
        if bucket is not None:
            reason = None if value <= state.payload else error
            for waiter in bucket:
                waiter.due(state, reason, out)
            del waiters[value]
        heappop(values)
    settle_locked(state)


def raise_locked(state: TimelineState, value: int, out: deque[Firing]) -> None:
    """Take the payload to `value`, which is above it, and collect."""
    state.payload = value
    if state.waiters:
        collect_locked(state, out)


def fail_locked(state: TimelineState, error: BaseException, out: deque[Firing]) -> None:
    """Fail with `error` unless there is a failure already, and collect."""
    state.calm = False
    if state.failure is None:
        state.failure = error
        state.unseen = record_of(error)
    collect_locked(state, out)


def advance(semaphore: Semaphore, value: Any) -> None:
    """Signal from the host, with the lock: the way of every signal that is not the plain case (M6)."""
    state = semaphore._state
    if type(value) is not int or not 0 <= value <= MAX_VALUE:
        value = checked_value(value, state.describe())
    if state.process.forked:
        process.refuse_forked(state.process, state.describe())
    if interrupted_here():
        # A finalizer may bring back what is collected with it: the semaphore has an owner until it has signalled.
        if state.owner is None or state.owner() is None:
            state.owner = weakref.ref(semaphore)
        reaper.leave(advance, semaphore, value)
        reaper.leave(abandon, state)
        return
    out = thread_state.queue
    try:
        with core_lock:
            state.calm = False
            if state.failure is not None or state.payload >= value:
                settle_locked(state)
                raise _not_raised(semaphore, value)  # noqa: TRY301 - the test and the store are one section
            raise_locked(state, value, out)
            settle_locked(state)
        drain()
    except TidegateError:
        raise
    except BaseException:
        reaper.leave(finish, state)
        hand_over(out)
        raise


def _not_raised(semaphore: Semaphore, value: int) -> TidegateError:
    state = semaphore._state
    if state.failure is not None:
        return failed_error(state, value, semaphore)
    return InvalidArgumentError(
        f"{state.describe()}: cannot signal {value}: the payload is {state.payload} and must rise",
        value=value,
        payload=state.payload,
    )


def fail(state: TimelineState, error: BaseException) -> None:
    """Fail a timeline; the first failure wins (M7)."""
    if interrupted_here():
        reaper.leave(fail, state, error)
        return
    forget_frames(error)
    out = thread_state.queue
    try:
        with core_lock:
            state.calm = False
            fail_locked(state, error, out)
        drain()
    except BaseException:
        reaper.leave(finish, state)
        hand_over(out)
        raise


def finish(state: TimelineState) -> None:
    """Complete what an interrupted thread began on `state`."""
    with core_lock:
        state.calm = False
        collect_locked(state, thread_state.queue)
    drain()


def abandon(state: TimelineState) -> None:
    """Fail a timeline that nobody is left to signal (M12). A note to the reaper."""
    if state.owner is None or state.owner() is None:
        fail(state, AbortedError(f"{state.describe()} was dropped at {state.payload}: nobody is left who could signal"))


def failed_error(state: TimelineState, value: int, semaphore: Semaphore | None = None) -> SemaphoreFailedError:
    """Return the error for somebody who waits for, or wants to signal, a failed timeline."""
    if semaphore is None and state.owner is not None:
        semaphore = state.owner()
    cause = state.failure
    if state.unseen is not None:
        state.unseen.seen = True
    text = f"{state.describe()} failed at {state.payload}, before {value}: {brief(cause)}"
    error = SemaphoreFailedError(text, timepoint=None if semaphore is None else semaphore._at(value))
    error.__cause__ = cause
    return error


def brief(error: BaseException | None) -> str:
    """Return an error as one line."""
    text = str(error)
    name = type(error).__name__
    return f"{name}: {text}" if text else name
