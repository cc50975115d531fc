"""From the call to the queue: claiming, passing, holding (M3, M5, M6, M14 to M20).

`submit` makes one locked section of everything that must be one step: checking and claiming the signals, and standing
in line at the waits. After it the submission is either held, and whoever decides its last wait fires it through the
trampoline, or ready, and goes down at once on the calling thread (`issuing`). Empty work that need not wait passes in
that one step, or without even the lock.

The record exists before the first driver call. From then on a BaseException fails its signals instead of losing them
(M19).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError
from . import express, process
from .background import reaper
from .host_wait import Target, target_of
from .issuing import HostWork, give_up, hold, issue, launch, listen, native_waits, promise
from .lock import core_lock, interrupted_here
from .process import refuse_forked
from .retirement import leave_waits_locked, retire
from .submission import FINISHING, HELD, READY, RETIRED, Submission, stake
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
    from .semaphore import Semaphore


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
    port = submission._queue._port.express
    if port is not None and not submission._device._attention and _go_express(port, submission, wait, signal):
        return submission
    waits = waits_of(wait)
    signals = signals_of(signal)
    if interrupted_here():
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
            if submission._promised:
                _go_on_promises(submission, waits)
            elif ready:
                launch(submission)
            else:
                hold(submission)
        if queue:
            drain()
    except BaseException as error:
        _interrupted(submission, signals, error)
        raise
    return submission


def _go_express(port: Any, submission: Submission, wait: Any, signal: Any) -> bool:
    """Have the plain case done in one step. False: it is another, and nothing has happened."""
    try:
        told = express.submit(port, submission, wait, signal)
        if told:
            promise(submission)
            drain()
    except BaseException as error:
        _interrupted(submission, submission._signals, error)
        if submission.timeline is not None:
            reaper.leave(promise, submission)
        raise
    return told is not None


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
        give_up(submission, error)
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
    refusal = None if device._refusal is None else device._refusal(submission)
    if refusal is not None:
        raise refusal
    _claim_locked(submission, signals)
    if waits and not (device._driver.promises and _promised_locked(submission, waits)):
        _line_up_locked(submission, waits)
    submission._signals = signals
    ready = not submission._pending or submission._doom is not None
    if ready:
        submission._queued = True
        submission._stage = READY
        device._issued[submission] = None  # in sight without a gap: close and starving allocations look there
    else:
        device._held[id(submission)] = submission._weakly()
    _note_uses(submission)
    device._submitted += 1
    return ready


def _claim_locked(submission: Submission, signals: tuple[Timepoint, ...]) -> None:
    """Check all signals, then claim all."""
    for point in signals:
        state = point._state
        state.calm = False
        if state.process.forked:
            refuse_forked(state.process, state.describe())
        if state.failure is None and (point.value <= state.payload or point.value in state.claims):
            raise _claim_refused(submission, point)
    for point in signals:
        state = point._state
        # On a failed timeline nothing can come of a claim, and it might collide with an older one.
        if state.failure is None:
            state.claims[point.value] = stake(submission, state, point.value)
            if state.high < point.value:
                state.high = point.value


def _promised_locked(submission: Submission, waits: list[Target]) -> bool:
    """Whether all that is not reached yet is promised by the same device: then it need not stand in line (M3)."""
    if submission._work.__class__ is HostWork:
        return False
    found = []
    for state, value in waits:
        if state.payload < value:
            producer = state.promises.get(value)
            if producer is None or producer._device is not submission._device or state.process.forked:
                return False
            if state.failure is not None:
                return False  # by the host, above a promise: the work must not run any more (M17)
            found.append((state, value, producer))
    submission._promised = tuple(found)
    return bool(found)


def _go_on_promises(submission: Submission, waits: list[Target]) -> None:
    """Issue behind what is on the device already; where the driver would rather not, hold after all."""
    if issue(submission, native_waits(submission._promised)):
        return
    with core_lock:
        if submission._stage >= FINISHING:
            return  # its device was lost meanwhile
        submission._promised = ()
        _line_up_locked(submission, waits)
        ready = not submission._pending or submission._doom is not None
        if not ready:
            device = submission._device
            device._held[id(submission)] = submission._weakly()
            submission._queued = False
            submission._stage = HELD  # not before: an interrupt would take it for one that was never admitted
            device._issued.pop(submission, None)
    if ready:
        launch(submission)
    else:
        listen(submission)


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
                submission._unseen = state.unseen


def _note_uses(submission: Submission) -> None:
    """The last step of an admission: what an interrupt cuts short is as if it had not been."""
    counted = 0
    before = []
    try:
        for memory in submission._touches:
            memory.uses += 1
            counted += 1
        if submission._writes:
            last = submission._weakly()
            for memory in submission._writes:
                before.append((memory, memory.last_write, memory.write_error))
                memory.last_write = last
                memory.write_error = None
    except BaseException:
        for memory, write, error in reversed(before):
            memory.last_write, memory.write_error = write, error
        for memory in submission._touches[:counted]:
            reaper.leave(memory.end_use)  # not here, inside the section: storage may go with it
        raise


def _claim_refused(submission: Submission, point: Timepoint) -> InvalidArgumentError:
    state = point._state
    claim = state.claims.get(point.value)
    if claim is not None:
        other = claim()
        found = f"{'another submission' if other is None else other.describe()} claims it already"
    else:
        found = f"the payload is {state.payload} already"
    return InvalidArgumentError(
        f"{submission._kind} on {submission._queue.describe()}: cannot signal {state.describe()} to {point.value}:"
        f" {found}"
    )


def _withdraw_locked(submission: Submission, signals: tuple[Timepoint, ...]) -> None:
    """Undo a refused or interrupted admission."""
    submission._signals = ()
    submission._stage = HELD
    submission._queued = False
    for point in signals:
        state = point._state
        claim = state.claims.get(point.value)
        if claim is not None and claim() is submission:
            del state.claims[point.value]
            if state.high == point.value:
                state.high = max(state.payload, *state.claims, 0)
        settle_locked(state)
    submission._device._issued.pop(submission, None)
    leave_waits_locked(submission)
