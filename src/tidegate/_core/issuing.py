"""From the queue to the device: issuing, promises, giving up (M3, M15, M17, M19).

A submission whose waits are over is *launched*: given to its device, or to the host-call threads. One that is still
held may go down earlier on promises: when every unmet wait's producer is issued on the same device, and the driver
agrees, the device orders the two natively. Each newly issued submission offers that to those who wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from ..driver import Allocate, Work
from ..errors import AbortedError, ResourceExhaustedError
from .arming import arm, arm_submission, promise_for
from .background import reaper
from .lock import core_lock, inside
from .process import refuse_forked
from .retirement import leave_waits_locked, retire
from .submission import FINISHING, HELD, ISSUED, READY, RETIRED, Submission, claims_of
from .thread_state import thread_state
from .timeline import TimelineState, waiting_up_to_locked

if TYPE_CHECKING:
    from ..driver import EpochTimeline
    from .submission import Promised


class HostWork(Work):
    """Work that a host thread does: host calls and files. `run` returns the submission's result."""

    __slots__ = ("kind", "run")

    def __init__(self, kind: str, run: Any) -> None:
        self.kind = kind
        self.run = run


def hold(submission: Submission) -> None:
    """A new submission is held: have the devices tell about what it waits for, or go down on their promise."""
    device = submission._device
    if device._driver.promises and not isinstance(submission._work, HostWork) and _try_promises(submission):
        return
    listen(submission)


def listen(submission: Submission) -> None:
    """Have the devices tell about what a held submission waits for."""
    with core_lock:
        pending = {} if submission._pending is None else submission._pending.copy()
    for state, value in pending.items():
        if state.promises:
            arm(state, value)


def _try_promises(submission: Submission) -> bool:
    """Issue on promises: every unmet wait's producer is issued on the same device (M3). False: stay held."""
    mine = False
    try:
        with core_lock:
            promised = _promises_locked(submission)
            if promised is None or submission._queued:
                return False
            mine = submission._queued = True  # from here on nobody else may fire it
            submission._promised = promised  # it stays held, and so in sight, until it is issued
        if issue(submission, native_waits(promised)):
            with core_lock:
                leave_waits_locked(submission)
            return True
        with core_lock:
            if submission._stage >= FINISHING:
                return True  # its device was lost meanwhile
            submission._stage = HELD
            submission._promised = ()
            submission._queued = False
            submission._device._issued.pop(submission, None)
            if submission._pending and submission._doom is None:
                return False
            submission._queued = True
        launch(submission)
    except BaseException as error:
        if mine:
            try:
                give_up(submission, error)
            except BaseException:
                reaper.leave(give_up, submission, error)  # one interrupt came upon another
                raise
        raise
    return True


def _promises_locked(submission: Submission) -> Promised | None:
    found = []
    for state, value in (submission._pending or {}).items():
        producer = promise_for(state, value)
        if producer is None or producer._device is not submission._device:
            return None
        found.append((state, value, producer))
    return tuple(found) if found and submission._doom is None else None


def native_waits(promised: Promised) -> list[tuple[EpochTimeline, int]]:
    """Return the epochs to wait for, the last one per timeline."""
    if len(promised) == 1:
        producer = promised[0][2]
        return [(producer.timeline, producer.epoch)]  # type: ignore[list-item]
    last: dict[EpochTimeline, int] = {}
    for _, _, producer in promised:
        timeline = producer.timeline
        assert timeline is not None
        last[timeline] = max(last.get(timeline, 0), producer.epoch)
    return list(last.items())


def launch(submission: Submission) -> None:
    """All waits of a submission are decided: issue it, or fail it with what failed first."""
    if submission._stage in (RETIRED, ISSUED):
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
    if not issue(submission, ()):
        submission._device._put_off(submission)


def issue(submission: Submission, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
    """Give the work to its device or to the host pool. What that raises fails the submission."""
    # No local name for the work: it would keep the memory while a retirement below looks whether that has come back.
    device = submission._device
    try:
        with core_lock:
            if submission._stage >= ISSUED:
                return True  # its device was lost meanwhile; or an interrupt has left it to two threads
            submission._stage = ISSUED
            device._issued[submission] = None
        if type(submission._work) is HostWork:
            device._run_on_host(submission, submission._work)
            return True
        inside.driver = True
        try:
            taken = submission._queue._port.issue(submission, submission._work, waits)  # type: ignore[arg-type]
        finally:
            inside.driver = False
        if not taken:
            return not _take_back(submission)  # it stays in sight among the issued until the caller puts it elsewhere
    except BaseException as error:
        # This frame runs on the caller's stack: by the traceback the error would pin the locals of all who called.
        error.__traceback__ = None
        try:
            _not_issued(submission, error)
        except BaseException:
            reaper.leave(_not_issued, submission, error)  # one interrupt came upon another
            raise
        if not isinstance(error, Exception):
            raise
        return True
    if submission.timeline is not None:
        try:
            promise(submission)
        except BaseException:
            reaper.leave(promise, submission)
            raise
    return True


def _not_issued(submission: Submission, error: BaseException) -> None:
    """The driver raised, or somebody interrupted it: put an allocation among those that starve, and fail the rest."""
    if isinstance(error, ResourceExhaustedError) and type(submission._work) is Allocate and not submission.taken:
        if _take_back(submission):
            submission._device._starve(submission, error)
        return
    give_up(submission, error)
    if submission.timeline is not None:
        reaper.leave(promise, submission)
        # What the driver would have done behind the epoch may be missing: it is told of somebody who waits for the end.
        reaper.leave(arm_submission, submission)


def _take_back(submission: Submission) -> bool:
    """The device did not take it: it is ready as before. False: it is over, for the device was lost meanwhile."""
    with core_lock:
        if submission._stage >= FINISHING:
            return False
        submission._stage = READY
        return True


def promise(submission: Submission) -> None:
    """A counting device has taken a submission: its claims are promises now, for those who wait and may follow."""
    timeline = submission.timeline
    assert timeline is not None
    with core_lock:
        waited_for = _promise_locked(submission)
        listened_to = waited_for and _listened_to_locked(submission)
    device = submission._device
    device._count(submission, timeline)
    if listened_to:
        arm_submission(submission)
    if waited_for and device._driver.promises:
        _offer(submission)


def _promise_locked(submission: Submission) -> bool:
    """The claims of an issued submission are promises now, unless it is over already. True: somebody waits there."""
    if submission._stage != ISSUED:
        return False
    waited_for = False
    for point in submission._signals:
        state = point._state
        if submission._claims_locked(state, point.value):
            state.promises[point.value] = submission
            waited_for = waited_for or bool(state.waiters)
    completion = submission._completion
    if completion is not None:
        completion.promises[1] = submission
        waited_for = waited_for or bool(completion.waiters)
    return waited_for


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
        for state, claimed in claims_of(producer):
            waiters = waiting_up_to_locked(state, claimed)
            offers += [_Offer(waiter) for waiter in waiters if _may_follow(waiter, producer)]
    thread_state.queue.extend(offers)


def _may_follow(waiter: object, producer: Submission) -> TypeGuard[Submission]:
    return (
        isinstance(waiter, Submission)
        and waiter._device is producer._device
        and not waiter._queued
        and not isinstance(waiter._work, HostWork)
    )


def _listened_to_locked(submission: Submission) -> bool:
    """Whether anybody else waits at what a submission will signal: for its value, or a higher one that it may fail."""
    completion = submission._completion
    if completion is not None and completion.waiters:
        return True
    return any(point._state.waiters and _others_wait_locked(point._state, submission) for point in submission._signals)


def _others_wait_locked(state: TimelineState, submission: Submission) -> bool:
    # A link of a chain on one semaphore still stands in line there itself, while it goes down on a promise.
    if len(state.waiters) > 1:
        return True
    (bucket,) = state.waiters.values()
    return len(bucket) > 1 or submission not in bucket


def give_up(submission: Submission, error: BaseException) -> None:
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
