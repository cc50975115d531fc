"""The end of a submission, on the host: decide once, signal or fail, release, free what was held (M3, M6, M17, M18)."""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING

from ..errors import FailedPreconditionError
from ..types import MAX_VALUE
from . import express, unseen
from .arming import arm
from .background import reaper
from .lock import call_driver, core_lock
from .submission import FINISHING, RETIRED, Submission
from .thread_state import Firing, drain, hand_over, thread_state
from .timeline import (
    TimelineState,
    add_waiter_locked,
    collect_locked,
    fail,
    fail_locked,
    raise_locked,
    remove_waiter_locked,
    settle_locked,
)

if TYPE_CHECKING:
    from ..driver import EpochTimeline


def retire(submission: Submission, error: BaseException | None = None) -> None:
    """End a submission. The first call decides; calling again completes what an interrupt cut short."""
    out = thread_state.queue
    try:
        if error is None:
            error = submission._doom
        if error is not None:
            _undo(submission, error)
        with core_lock:
            stage = submission._stage
            if stage != RETIRED:
                if stage == FINISHING:
                    submission._again = True  # an interrupt cut it short
                else:
                    # Who gave it up first has told so: a cancel that came through is not overtaken by a loss.
                    submission._error = error if error is None or submission._doom is None else submission._doom
                    submission._stage = FINISHING
                _end_locked(submission, out)
                if submission._touches:
                    submission._device._releasing[submission] = get_ident()
                submission._stage = RETIRED
        if error is not None and submission._line is not None:
            arm(submission._line._state, MAX_VALUE)  # the lane's failure may wait for those in front
        _let_go(submission)
        device = submission._device
        if device._attention:
            device._after_retirement()
        drain()
    except BaseException:
        reaper.leave(retire, submission, error)
        hand_over(out)
        raise


def _undo(submission: Submission, error: BaseException) -> None:
    """The work failed or will never run."""
    unseen.forget_frames(error)
    work = submission._work
    if work is not None and work.on_failure is not None:
        work.on_failure(error)


def _let_go(submission: Submission) -> None:
    """Release what was kept; outside of the lock, for it may have finalizers."""
    submission._work = None
    submission._signals = ()
    submission._writes = ()
    submission._promised = ()
    # In one step, for two threads may retire the same submission, and an interrupted retirement is repeated.
    count = len(submission._touches)
    touches, submission._touches = submission._touches, ()
    ended = 0
    try:
        for memory in touches:
            memory.end_use()
            ended += 1
    except BaseException:
        submission._touches = touches[ended:]
        raise
    finally:
        if touches and ended == count:
            touches = memory = None  # type: ignore[assignment]  # perhaps the last references
            submission._device._releasing.pop(submission, None)


def _end_locked(submission: Submission, out: deque[Firing]) -> None:
    error = submission._error
    device = submission._device
    if submission._pending is not None:
        leave_waits_locked(submission)
    if error is not None:
        unseen.note(submission, error)  # first: the timelines take it over
    for point in submission._signals:
        _signal_locked(submission, point._state, point.value, error, out)
    for memory in submission._writes:
        if memory.last_write is submission._ref:
            memory.write_error = error  # a host read after it fails too, and finds it before the write is gone
            memory.last_write = None
    completion = submission._completion
    if completion is not None:
        _signal_locked(submission, completion, 1, error, out)
    device._issued.pop(submission, None)
    if not submission._counted:
        submission._counted = True
        device._retired += 1


def leave_waits_locked(submission: Submission) -> None:
    """Stand in line nowhere any more."""
    if submission._pending is not None:
        for state, value in tuple(submission._pending.items()):
            remove_waiter_locked(state, value, submission)
        submission._pending = None
    submission._device._held.pop(id(submission), None)


def _signal_locked(
    submission: Submission, state: TimelineState, value: int, error: BaseException | None, out: deque[Firing]
) -> None:
    """Take one claimed timepoint to its value, or fail it."""
    claimed = submission._claims_locked(state, value)
    if error is not None:
        if _is_ahead_of_its_lane(submission, state, value):
            add_waiter_locked(state, value - 1, _LaneFailure(state, error))
        else:
            fail_locked(state, error, out)
    elif claimed and state.failure is None:
        if state.payload < value:
            raise_locked(state, value, out)
        elif submission._again:
            collect_locked(state, out)  # raised before the interrupt, which left waiters behind
        else:
            fail_locked(state, _overtaken(submission, state.describe(), state.payload, value), out)
    if claimed:
        state.promises.pop(value, None)
        del state.claims[value]
    settle_locked(state)


def _is_ahead_of_its_lane(submission: Submission, state: TimelineState, value: int) -> bool:
    """Whether a lane's operation ends before the one that it follows: cancelled, or for another wait that failed."""
    line = submission._line
    return line is not None and line._state is state and state.failure is None and state.payload < value - 1


class _LaneFailure:
    """Fails the timeline of a lane when it gets to the place of an operation that failed before its turn.

    Failing it at once would reach the operations in front of that one, which do not depend on it (M17).
    """

    __slots__ = ("_error", "_state", "_unseen")
    is_work = True

    def __init__(self, state: TimelineState, error: BaseException) -> None:
        self._state = state
        self._error = error
        self._unseen = unseen.record_of(error)  # kept until the lane carries it

    def due(self, _state: TimelineState, error: BaseException | None, out: deque[Firing]) -> None:
        """See `timeline.Waiter`."""
        if error is None:
            out.append(self)

    def fire(self) -> None:
        """It is the turn of the operation that failed."""
        fail(self._state, self._error)


def _overtaken(submission: Submission, name: str, payload: int, value: int) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{submission.describe()} was to signal {name} to {value}, but the payload was {payload} already:"
        " somebody was released too early"
    )


def advance(timeline: EpochTimeline) -> None:
    """Retire, in order, what a counting device has finished."""
    reached = timeline.reached
    in_flight = timeline.in_flight
    while in_flight:
        try:
            submission = in_flight[0]
        except IndexError:
            return  # another thread was faster
        if submission.epoch > reached:
            return
        _retire_counted(submission)  # type: ignore[arg-type]
        try:
            in_flight.remove(submission)  # one step, and mostly the first one: another thread may be at it too
        except ValueError:
            pass


def _retire_counted(submission: Submission) -> None:
    """Retire a submission whose epoch is over, what it was promised first; their epochs are over too (M17)."""
    if submission._express and express.retire(submission):
        return
    promised = submission._promised
    if not promised or (len(promised) == 1 and promised[0][2]._stage == RETIRED):
        if submission._stage != RETIRED:
            retire(submission, _outcome(submission))
        return
    stack = [submission]
    while stack:
        current = stack[-1]
        open_ones = [producer for _, _, producer in current._promised if producer._stage != RETIRED]
        if current._stage != RETIRED and open_ones:
            stack += open_ones
            continue
        stack.pop()
        if current._stage != RETIRED:
            retire(current, _outcome(current))


def _outcome(submission: Submission) -> BaseException | None:
    assert submission.timeline is not None
    error = call_driver(submission.timeline.outcome, submission.epoch)
    if error is not None or submission._doom is not None:
        return submission._doom or error
    for state, value, producer in submission._promised:
        if state is None:
            if producer._error is not None:
                submission._unseen = producer._unseen
                return producer._error
        elif state.payload < value and state.failure is not None:
            submission._unseen = state.unseen
            return state.failure
    return None
