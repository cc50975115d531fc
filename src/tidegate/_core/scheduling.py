"""From the call to the device: claiming, holding, issuing (M3, M5, M6, M14 to M20).

`submit` makes one locked section of everything that must be one step: checking and claiming the signals, and standing
in line at the waits. After it the submission is either held, and whoever decides its last wait fires it through the
trampoline, or ready, and goes down at once on the calling thread.

The record exists before the first driver call. From then on a BaseException fails its signals instead of losing them
(M19): `_give_up` decides whether the device may still have the work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

from ..driver import Allocate, Work
from ..errors import AbortedError, InvalidArgumentError, ResourceExhaustedError
from . import process
from .arming import arm, arm_submission, promise_for
from .background import reaper
from .host_wait import Target, target_of
from .lock import core_lock
from .process import refuse_forked
from .retirement import leave_waits_locked, retire
from .submission import HELD, ISSUED, READY, RETIRED, Submission
from .thread_state import Firing, drain, hand_over, thread_state
from .timeline import (
    GIL,
    TimelineState,
    add_waiter_locked,
    collect_locked,
    finish,
    remove_waiter_locked,
    settle_locked,
)
from .timepoint import Timepoint

if TYPE_CHECKING:
    from ..driver import EpochTimeline
    from .semaphore import Semaphore


class HostWork(Work):
    """Work that a host thread does: host calls and files. `run` returns the submission's result."""

    __slots__ = ("kind", "run")

    def __init__(self, kind: str, run: Any) -> None:
        self.kind = kind
        self.run = run


def waits_of(wait: Any) -> list[Target]:
    """Return the targets of `wait=`."""
    if wait is None:
        return []
    if wait.__class__ is Timepoint:
        return [(wait._state, wait.value)]
    if hasattr(wait, "_wait_target"):
        return [target_of(wait, "wait=")]
    if not isinstance(wait, Iterable):
        raise TypeError(f"wait= takes timepoints and submissions, not {type(wait).__name__}")
    return [target_of(point, "wait=") for point in wait]


def signals_of(signal: Any) -> tuple[Timepoint, ...]:
    """Return the timepoints of `signal=`, one per semaphore: of two, the higher counts (M3)."""
    if signal is None:
        return ()
    if isinstance(signal, Timepoint):
        return (signal,)
    if not isinstance(signal, Iterable):
        raise TypeError(f"signal= takes timepoints, not {type(signal).__name__}")
    highest: dict[TimelineState, Timepoint] = {}
    for point in signal:
        if not isinstance(point, Timepoint):
            raise TypeError(f"signal= takes timepoints, not {type(point).__name__}")
        known = highest.get(point._state)
        if known is None or known.value < point.value:
            highest[point._state] = point
    return tuple(highest.values())


def submit(submission: Submission, wait: Any, signal: Any) -> Submission:
    """Take a new submission in: claim its signals, then hold or issue it. Refusals raise and leave no trace."""
    waits = waits_of(wait)
    signals = signals_of(signal)
    if core_lock._is_owned():  # type: ignore[attr-defined]
        reaper.leave(_submit_later, submission, waits, signals)
        return submission
    queue = thread_state.queue
    try:
        with core_lock:
            if submission._line is not None:
                signals = _follow_locked(submission._line, waits, signals)
            if submission._work.empty and _pass_locked(submission, waits, signals, queue):  # type: ignore[union-attr]
                ready = None
            else:
                try:
                    ready = _admit_locked(submission, waits, signals)
                except BaseException:
                    _withdraw_locked(submission, signals)
                    raise
        if ready is not None:
            if ready:
                launch(submission)
            else:
                _hold(submission)
        if queue:
            drain()
    except BaseException as error:
        _interrupted(submission, signals, error)
        raise
    return submission


def pass_calmly(submission: Submission, wait: Any, signal: Any) -> bool:
    """Let empty work through without the lock, in the plainest case: a reached wait, a calm signal. False: submit it.

    The same step as in `Semaphore.signal`, and for the same reason free of the lock: from the test of `calm` to the
    store there is no call and no loop (M38). A device that refuses has its say in `submit`.
    """
    if wait is not None and (wait.__class__ is not Timepoint or wait._state.payload < wait.value):
        return False
    if signal.__class__ is not Timepoint:
        return False
    device = submission._device
    state = signal._state
    value = signal.value
    if device._refusal is not None or process.checking or not state.calm or not state.payload < value:
        return False
    submission._stage = RETIRED
    state.payload = value
    submission._work = None
    device._submitted += 1
    device._retired += 1
    return True


def _interrupted(submission: Submission, signals: tuple[Timepoint, ...], error: BaseException) -> None:
    """Something came between: what was admitted fails or runs on, and nobody is forgotten."""
    if submission._stage == RETIRED:
        for point in signals:
            reaper.leave(finish, point._state)
    elif submission._stage != HELD or submission._pending is not None:
        _give_up(submission, error)
    hand_over(thread_state.queue)


def _pass_locked(
    submission: Submission, waits: list[Target], signals: tuple[Timepoint, ...], out: deque[Firing]
) -> bool:
    """Let through in one step what has nothing to do and nothing to wait for. False: take the long way.

    With at most one signal its store is the one moment at which everything happens, so nothing need be claimed.
    """
    device = submission._device
    if device._refusal is not None or len(signals) > 1:
        return False
    for state, value in waits:
        if state.payload < value or state.process.forked:
            return False
    if signals:
        point = signals[0]
        state = point._state
        value = point.value
        state.calm = False
        if value <= state.payload or value in state.claims or state.failure is not None or state.process.forked:
            return False
        submission._stage = RETIRED
        state.payload = value
        if state.high < value:
            state.high = value
        if state.waiters:
            collect_locked(state, out)
        else:
            state.calm = GIL and not state.claims
    submission._stage = RETIRED
    submission._work = None
    device._submitted += 1
    device._retired += 1
    return True


def _follow_locked(line: Semaphore, waits: list[Target], signals: tuple[Timepoint, ...]) -> tuple[Timepoint, ...]:
    """Put a lane's operation behind the last one: wait for the highest claim on its line, claim the next."""
    state = line._state
    last = max(state.high, state.payload)
    waits.append((state, last))
    return (*signals, Timepoint(line, last + 1))


def _submit_later(submission: Submission, waits: list[Target], signals: tuple[Timepoint, ...]) -> None:
    """The reaper's side of a submission made in a finalizer or signal handler: a refusal can only fail it."""
    try:
        submit(submission, _Resolved(waits), signals)
    except Exception as error:
        submission._signals = signals
        retire(submission, error)


class _Resolved(list[Any]):
    """Targets that stand for themselves in `waits_of`."""

    def __iter__(self) -> Any:
        return (_ResolvedPoint(target) for target in list.__iter__(self))


class _ResolvedPoint:
    def __init__(self, target: Target) -> None:
        self._target = target

    def _wait_target(self) -> Target:
        return self._target


def _admit_locked(submission: Submission, waits: list[Target], signals: tuple[Timepoint, ...]) -> bool:
    """Claim the signals and stand in line at the waits. Returns whether the submission is ready."""
    device = submission._device
    if device._refusal is not None:
        raise device._refusal(submission)
    _claim_locked(submission, signals)
    if waits:
        _line_up_locked(submission, waits)
    submission._signals = signals
    device._submitted += 1
    if submission._pending and submission._doom is None:
        device._held[id(submission)] = submission._weakly()
        _note_uses(submission)
        return False
    submission._queued = True
    submission._stage = READY
    device._issued[submission] = None  # in sight without a gap: close and starving allocations look there
    _note_uses(submission)
    return True


def _claim_locked(submission: Submission, signals: tuple[Timepoint, ...]) -> None:
    """Check all signals, then claim all."""
    for point in signals:
        state = point._state
        state.calm = False
        if state.process.forked:
            refuse_forked(state.process, state.describe())
        if state.failure is None and (point.value <= state.payload or point.value in state.claims):
            raise _claim_refused(submission, point)
    if signals:
        claim = submission._weakly()
        for point in signals:
            state = point._state
            # On a failed timeline nothing can come of a claim, and it might collide with an older one.
            if state.failure is None:
                state.claims[point.value] = claim
                if state.high < point.value:
                    state.high = point.value


def _line_up_locked(submission: Submission, waits: list[Target]) -> None:
    """Join the waiters of what is not reached yet; note the first failure among the waits."""
    pending: dict[TimelineState, int] | None = submission._pending
    for state, value in waits:
        if state.process.forked:
            refuse_forked(state.process, state.describe())
        if state.payload >= value:
            continue
        if pending is None:
            pending = submission._pending = {}
        known = pending.get(state)
        if known is not None:
            if known >= value:
                continue
            remove_waiter_locked(state, known, submission)
        pending[state] = value
        if not add_waiter_locked(state, value, submission):
            del pending[state]
            if state.payload < value and submission._doom is None:
                submission._doom = state.failure
                state.seen = True


def _note_uses(submission: Submission) -> None:
    for memory in submission._touches:
        memory.uses += 1
    if submission._writes:
        last = submission._weakly()
        for memory in submission._writes:
            memory.last_write = last
            memory.write_error = None


def _claim_refused(submission: Submission, point: Timepoint) -> InvalidArgumentError:
    state = point._state
    claim = state.claims.get(point.value)
    if claim is not None:
        other = claim()
        found = f"{'another submission' if other is None else other.describe()} claims it already"
    else:
        found = f"the payload is {state.payload} already"
    return InvalidArgumentError(
        f"{submission._kind} on {submission._queue.describe()}: cannot signal {state.describe()} to {point.value}: {found}"
    )


def _withdraw_locked(submission: Submission, signals: tuple[Timepoint, ...]) -> None:
    """Undo a refused or interrupted admission."""
    submission._signals = ()
    submission._stage = HELD
    submission._queued = False
    for point in signals:
        state = point._state
        if submission._ref is not None and state.claims.get(point.value) is submission._ref:
            del state.claims[point.value]
            if state.high == point.value:
                state.high = max(state.payload, *state.claims, 0)
        settle_locked(state)
    submission._device._issued.pop(submission, None)
    leave_waits_locked(submission)


def _hold(submission: Submission) -> None:
    """A new submission is held: have the devices tell about what it waits for, or go down on their promise."""
    reaper.ensure()
    device = submission._device
    if device._driver.promises and not isinstance(submission._work, HostWork) and _try_promises(submission):
        return
    with core_lock:
        pending = {} if submission._pending is None else submission._pending.copy()
    for state, value in pending.items():
        if state.promises:
            arm(state, value)


def _try_promises(submission: Submission) -> bool:
    """Issue on promises: every unmet wait's producer is issued on the same device (M3). False: stay held."""
    with core_lock:
        promised = _promises_locked(submission)
        if promised is None or submission._queued:
            return False
        # From here on nobody else may fire it.
        submission._queued = True
        submission._promised = promised
        submission._stage = READY
    try:
        if _issue(submission, _native_waits(promised)):
            with core_lock:
                leave_waits_locked(submission)
            return True
        with core_lock:
            submission._stage = HELD
            submission._promised = ()
            submission._queued = False
            if submission._pending and submission._doom is None:
                return False
            submission._queued = True
        launch(submission)
    except BaseException as error:
        _give_up(submission, error)
        raise
    return True


def _promises_locked(submission: Submission) -> tuple[tuple[TimelineState, int, Submission], ...] | None:
    found = []
    for state, value in (submission._pending or {}).items():
        producer = promise_for(state, value)
        if producer is None or producer._device is not submission._device:
            return None
        found.append((state, value, producer))
    return tuple(found) if found and submission._doom is None else None


def _native_waits(promised: tuple[tuple[TimelineState, int, Submission], ...]) -> list[tuple[EpochTimeline, int]]:
    """Return the epochs to wait for, the last one per timeline."""
    last: dict[EpochTimeline, int] = {}
    for _, _, producer in promised:
        timeline = producer.timeline
        assert timeline is not None
        last[timeline] = max(last.get(timeline, 0), producer.epoch)
    return list(last.items())


def launch(submission: Submission) -> None:
    """All waits of a submission are decided: issue it, or fail it with what failed first."""
    if submission._stage == RETIRED or submission._stage == ISSUED:
        return
    if submission._pending is not None:
        with core_lock:
            if submission._stage == HELD:
                submission._stage = READY
                submission._device._issued[submission] = None
            leave_waits_locked(submission)
    if submission._doom is not None:
        retire(submission, submission._doom)
        return
    if not _issue(submission, ()):
        submission._device._put_off(submission)


def _issue(submission: Submission, waits: Any) -> bool:
    """Give the work to its device or to the host pool. What that raises fails the submission."""
    work = submission._work
    device = submission._device
    try:
        submission._stage = ISSUED
        device._issued[submission] = None
        if type(work) is HostWork:
            device._run_on_host(submission, work)
            return True
        if not submission._queue._port.issue(submission, work, waits):  # type: ignore[arg-type]
            device._issued.pop(submission, None)
            submission._stage = READY
            return False
    except BaseException as error:
        if isinstance(error, ResourceExhaustedError) and type(work) is Allocate and not submission.taken:
            device._issued.pop(submission, None)
            submission._stage = READY
            device._starve(submission, error)
            return True
        _give_up(submission, error)
        if submission.timeline is not None:
            reaper.leave(_promise, submission)
        if not isinstance(error, Exception):
            raise
        return True
    if submission.timeline is not None:
        try:
            _promise(submission)
        except BaseException:
            reaper.leave(_promise, submission)
            raise
    return True


def _promise(submission: Submission) -> None:
    """A counting device has taken a submission: its claims are promises now, for those who wait and may follow."""
    timeline = submission.timeline
    assert timeline is not None
    with core_lock:
        _promise_locked(submission)
    device = submission._device
    device._count(submission, timeline)
    if _listened_to(submission):
        arm_submission(submission)
    if device._driver.promises:
        _offer(submission)


def _promise_locked(submission: Submission) -> None:
    """The claims of an issued submission are promises now, unless it is over already."""
    if submission._stage != ISSUED:
        return
    for point in submission._signals:
        if point._state.claims.get(point.value) is submission._ref:
            point._state.promises[point.value] = submission
    if submission._completion is not None:
        submission._completion.promises[1] = submission


class _Offer:
    """A held submission whose producer has just been issued: it may go down on the promise."""

    __slots__ = ("_submission",)
    is_work = True

    def __init__(self, submission: Submission) -> None:
        self._submission = submission

    def fire(self) -> None:
        if self._submission._stage == HELD:
            _try_promises(self._submission)


def _offer(producer: Submission) -> None:
    """Let the held submissions that wait for a newly issued one try to follow it onto the device."""
    offers: list[_Offer] = []
    with core_lock:
        points = [(point._state, point.value) for point in producer._signals]
        if producer._completion is not None:
            points.append((producer._completion, 1))
        for state, claimed in points:
            for value, bucket in state.waiters.items():
                if value <= claimed:
                    offers += [_Offer(waiter) for waiter in bucket if _may_follow(waiter, producer)]
    thread_state.queue.extend(offers)


def _may_follow(waiter: object, producer: Submission) -> TypeGuard[Submission]:
    return (
        isinstance(waiter, Submission)
        and waiter._device is producer._device
        and not waiter._queued
        and not isinstance(waiter._work, HostWork)
    )


def _listened_to(submission: Submission) -> bool:
    completion = submission._completion
    if completion is not None and completion.waiters:
        return True
    return any(point._state.waiters for point in submission._signals)


def _give_up(submission: Submission, error: BaseException) -> None:
    """An exception came between: fail the submission, now or, if the device has it, when that is done with it."""
    if submission.taken and submission._stage != RETIRED:
        if submission._doom is None:
            submission._doom = error
        return
    retire(submission, error)


def abort(submission: Submission, error: AbortedError) -> bool:
    """Fail a submission that is still held. False: it is not, or no longer."""
    refuse_forked(submission._device._process, submission.describe())
    try:
        with core_lock:
            if submission._stage != HELD or submission._queued or submission._pending is None:
                return False
            submission._doom = error
            submission._queued = True
        retire(submission, error)
    except BaseException:
        if submission._doom is error:
            reaper.leave(retire, submission, error)
        raise
    return True
