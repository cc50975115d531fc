"""Blocking waits of host threads, for one point or several (M8, M9, M34).

A wait looks, spins briefly, and sleeps. Waking a sleeping thread can cost hundreds of microseconds, so the spin is
worth it where the signal comes soon; it gives up the GIL at each turn, so that the signaller can run, by computing a
checksum of a few KiB, which CPython does without the GIL: about 2 us, where `time.sleep(0)` costs up to 100 and
`os.sched_yield` keeps the GIL on some versions. A spin that failed halves the next one's budget.

While it looks, a thread also lets the devices progress (`progress`): it runs small ready transfers itself instead of
waiting for a worker to wake.
"""

from __future__ import annotations

import math
from _thread import allocate_lock
from collections import deque
from collections.abc import Iterable, Sequence
from threading import TIMEOUT_MAX
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

from ..errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from . import process
from .arming import arm
from .background import reaper
from .lock import call_driver, core_lock, interrupted_here
from .progress import look, poll_devices
from .thread_state import Firing, drain, thread_state
from .timeline import TimelineState, add_waiter_locked, failed_error, remove_waiter_locked

if TYPE_CHECKING:
    from .submission import Submission
    from .timepoint import Timepoint

    Point: TypeAlias = Timepoint | Submission

Target = tuple[TimelineState, int]

_BREATH = bytes(8192)
_MOST_LOOKS = 64
_SPIN_AT_MOST = 4
_SHORT = 0.005
_TOO_LONG = 0.001
"""A turn of the spin that takes so long has met a busy thread: then each look would cost a switch interval."""


class _Spin:
    """The adaptive budget of the spin, in looks. A race between threads costs a wrong guess, nothing more."""

    looks = 32


def target_of(point: Any, what: str = "wait") -> Target:
    """Return the timeline and value behind a timepoint or a submission."""
    target = getattr(point, "_wait_target", None)
    if target is None:
        raise TypeError(f"{what} takes timepoints and submissions, not {type(point).__name__}")
    return target()  # type: ignore[no-any-return]


def targets_of(points: Iterable[Point], what: str) -> tuple[list[Point], list[Target]]:
    """Return the points as a list, and their targets."""
    try:
        listed = list(points)
    except TypeError:
        raise TypeError(
            f"{what} takes an iterable of timepoints and submissions, not {type(points).__name__}"
        ) from None
    return listed, [target_of(point, what) for point in listed]


def checked_timeout(timeout: float | None) -> float | None:
    """Return a timeout in seconds, None for ever."""
    if timeout is None:
        return None
    if not isinstance(timeout, (int, float)):
        try:
            timeout = float(timeout)
        except (TypeError, ValueError):
            raise TypeError(f"a timeout is None or seconds, not {type(timeout).__name__}") from None
    if math.isnan(timeout) or timeout < 0:
        raise InvalidArgumentError(f"the timeout is {timeout}, and must be 0 or more seconds", timeout=timeout)
    return None if timeout > TIMEOUT_MAX else timeout


def decided(targets: Sequence[Target], any_of_them: bool) -> int | None:
    """Return the index that decides a wait, or None: of *any* the first reached; of *all* anything once all are.

    Raises:
        SemaphoreFailedError: a failure decides.

    """
    failed: Target | None = None
    reached = 0
    for index, (state, value) in enumerate(targets):
        if state.payload >= value:
            if any_of_them:
                return index
            reached += 1
        elif state.failure is not None and failed is None:
            failed = (state, value)
    if failed is not None:
        # Between the two looks the payload may have risen first, and then the past stands.
        if failed[0].payload >= failed[1]:
            return decided(targets, any_of_them)
        raise failed_error(*failed)
    return 0 if reached == len(targets) and not any_of_them else None


class GroupWaiter:
    """Waits for all or any of some targets. What happens then is up to the subclass's `fire`."""

    is_work = False

    def __init__(self, targets: Sequence[Target], any_of_them: bool) -> None:
        self._any = any_of_them
        pick = min if any_of_them else max
        self._pending: dict[TimelineState, int] = {}
        for state, value in targets:
            self._pending[state] = pick(self._pending.get(state, value), value)
        self._registered = dict(self._pending)
        self._over = False

    def fire(self) -> None:
        """Tell the one who waits."""
        raise NotImplementedError

    def due(self, state: TimelineState, error: BaseException | None, out: deque[Firing]) -> None:
        """See `timeline.Waiter`."""
        self._pending.pop(state, None)
        if not self._over and (error is not None or self._any or not self._pending):
            self._over = True
            out.append(self)

    def register(self) -> bool:
        """Join all timelines. False: it is decided already."""
        reaper.ensure()
        with core_lock:
            for state, value in self._registered.items():
                if not add_waiter_locked(state, value, self):
                    self._pending.pop(state, None)
                    if self._any or state.payload < value:
                        return False
            if not self._pending:
                return False
        for state, value in self._registered.items():
            if state.promises:
                arm(state, value)
        return True

    def unregister(self) -> None:
        """Leave no residue."""
        with core_lock:
            for state, value in self._registered.items():
                remove_waiter_locked(state, value, self)


class _HostWaiter(GroupWaiter):
    """A sleeping thread."""

    def __init__(self, targets: Sequence[Target], any_of_them: bool) -> None:
        super().__init__(targets, any_of_them)
        self._gate = allocate_lock()
        self._gate.acquire()
        self._open = False

    def fire(self) -> None:
        if not self._open:
            self._open = True
            self._gate.release()

    def sleep(self, deadline: float | None) -> bool:
        """Sleep until fired or until the deadline; False if that passed. Answers Ctrl-C."""
        if deadline is None:
            return self._gate.acquire()
        return self._gate.acquire(timeout=max(0.0, min(deadline - monotonic(), TIMEOUT_MAX)))


def is_lasting(timeout: Any) -> bool:
    """Whether a timeout is right, and leaves time to spin a while."""
    return timeout is None or (timeout.__class__ in (float, int) and timeout > _SHORT)


def watch(submission: Submission) -> None:
    """Wait as long as it pays for what is on a device, where the device can tell without a call."""
    timeline = submission.timeline
    if (
        timeline is not None
        and not thread_state.running
        and not interrupted_here()
        and timeline.watch(submission.epoch)
    ):
        call_driver(timeline.advance)


def wait_for(state: TimelineState, value: int, timeout: float | None) -> None:
    """Wait for one target."""
    wait_targets([(state, value)], any_of_them=False, timeout=timeout)


def wait_targets(targets: list[Target], *, any_of_them: bool, timeout: float | None) -> int:
    """Wait for targets; returns the index of the one that decided.

    Raises:
        DeadlineExceededError: over time.
        SemaphoreFailedError: a failure decided.
        FailedPreconditionError: this thread must not block here.

    """
    timeout = checked_timeout(timeout)
    for state, _ in targets:
        if state.process.forked:
            process.refuse_forked(state.process, state.describe())
        if state.promises:
            look(state)
    index = decided(targets, any_of_them)
    if index is not None:
        return index
    if timeout == 0:
        index = _poll(targets, any_of_them)
        if index is not None:
            return index
        raise _deadline(targets, 0.0)
    _refuse_blocking(targets)
    if thread_state.queue:
        drain()  # two interrupts, one upon the other, may have left something there: nobody else would run it
    deadline = None if timeout is None else monotonic() + timeout
    if len(targets) == 1 and is_lasting(timeout):
        state, value = targets[0]
        promised = state.promises.get(value)
        if promised is not None:
            watch(promised)
            if state.payload >= value:
                return 0
    index = _spin(targets, any_of_them, deadline)
    return _sleep(targets, any_of_them, deadline, timeout) if index is None else index


def _poll(targets: list[Target], any_of_them: bool) -> int | None:
    if interrupted_here():
        return None
    if not thread_state.running:
        poll_devices()
    with core_lock:
        pass  # a step that was under way is over then: who has seen a part of it finds the rest
    return decided(targets, any_of_them)


def _refuse_blocking(targets: list[Target]) -> None:
    if thread_state.running or interrupted_here():
        state, value = targets[0]
        raise FailedPreconditionError(
            f"cannot block for {state.describe()} to reach {value} inside a callback, a finalizer or a signal handler"
            " that interrupted the core: poll with timeout=0, or wait elsewhere"
        )


def _spin(targets: list[Target], any_of_them: bool, deadline: float | None) -> int | None:
    """Look for a short while. Returns the deciding index, or None to sleep."""
    looks = _Spin.looks if len(targets) <= _SPIN_AT_MOST else 0
    budget = looks
    while True:
        if poll_devices():
            if deadline is not None and monotonic() >= deadline:
                return None
        elif looks <= 0 or not breathe():
            break
        else:
            looks -= 1
        index = decided(targets, any_of_them)
        if index is not None:
            _Spin.looks = min(_MOST_LOOKS, max(1, budget) * 2)
            return index
    _Spin.looks = max(1, budget // 2)
    return None


def breathe() -> bool:
    """Do without the GIL for about 2 us. False: it took so long to get it back that spinning is no use here."""
    begin = monotonic()
    crc32(_BREATH)
    return monotonic() - begin < _TOO_LONG


def spin_for(state: TimelineState, value: int) -> bool:
    """Look for a short while at one timeline, with next to nothing between the looks; True if it got there.

    A thread that comes back for the GIL while the signaller still holds it falls asleep, so the signaller's way from
    its own signal to its own first breath must be short: hence this loop of its own, at the very start of a wait.
    """
    if thread_state.running or state.promises or poll_devices():
        return state.payload >= value
    budget = left = _Spin.looks
    begin = monotonic()
    while left:
        crc32(_BREATH)
        if state.payload >= value:
            _Spin.looks = min(_MOST_LOOKS, budget * 2)
            return True
        left -= 1
        if left % 4 == 0:
            now = monotonic()
            if now - begin > _TOO_LONG:
                break
            begin = now
    _Spin.looks = max(1, budget // 2)
    return False


def _sleep(targets: list[Target], any_of_them: bool, deadline: float | None, timeout: float | None) -> int:
    waiter = _HostWaiter(targets, any_of_them)
    pool = thread_state.pool
    try:
        if waiter.register():
            if pool is not None:
                pool.worker_blocks()
            try:
                waiter.sleep(deadline)
            finally:
                if pool is not None:
                    pool.worker_resumes()
    finally:
        waiter.unregister()
    for state, _ in targets:
        if state.promises:
            look(state)
    index = decided(targets, any_of_them)
    if index is None:
        raise _deadline(targets, timeout)
    return index


def _deadline(targets: list[Target], timeout: float | None) -> DeadlineExceededError:
    """The error of a wait that ran over. A poll's text is made only when read."""
    from .explain import explain_targets

    missing = [(state, value) for state, value in targets if state.payload < value]

    def text() -> str:
        return f"not reached within {timeout:g} s\n{explain_targets(missing)}"

    return DeadlineExceededError(text if timeout == 0 else text(), timeout=timeout)


def wait_all(points: Iterable[Point], timeout: float | None = None) -> None:
    """Block until every timepoint and submission is reached; an empty collection returns at once.

    Args:
        points: timepoints and submissions, of any devices.
        timeout: seconds for the whole call; None waits for ever, 0 polls.

    Raises:
        SemaphoreFailedError: the first failure among them; the others are left alone.
        DeadlineExceededError: over time.

    """
    _, targets = targets_of(points, "wait_all")
    checked_timeout(timeout)
    if targets:
        wait_targets(targets, any_of_them=False, timeout=timeout)


def wait_any(points: Iterable[Point], timeout: float | None = None) -> Point | None:
    """Block until one timepoint or submission is reached, and return that very object; None for an empty collection.

    Raises:
        SemaphoreFailedError: one failed before any was reached.
        DeadlineExceededError: over time.

    """
    listed, targets = targets_of(points, "wait_any")
    checked_timeout(timeout)
    return listed[wait_targets(targets, any_of_them=True, timeout=timeout)] if targets else None
