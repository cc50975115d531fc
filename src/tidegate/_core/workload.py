"""What is on a device: held, issued, put off, starving; and how it ends (M22, M35, M36).

The private side of `Device`, as scheduling and retirement see it.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice

from ..driver import DriverDevice, EpochTimeline
from ..errors import (
    ClosedError,
    DeadlineExceededError,
    DeviceLostError,
    FailedPreconditionError,
    ResourceExhaustedError,
)
from . import process
from .arming import arm_submission
from .background import reaper
from .host_calls import pool as host_pool
from .host_wait import wait_all
from .issuing import HostWork, issue
from .lock import core_lock
from .retirement import advance, retire
from .starvation import Starvation
from .submission import HELD, RETIRED, Submission
from .thread_state import thread_state
from .timeline import TimelineState

_HOUSEKEEPING = 64
"""Every so many epochs one is armed although nobody listens, so that what it kept comes back."""
_AHEAD = 64
"""How far is looked among what was put off."""


class Sink:
    """Where the driver reports to. Knows the device weakly, so that one that was dropped can be collected."""

    def __init__(self, workload: Workload) -> None:
        self._workload = weakref.ref(workload)

    finished = staticmethod(retire)
    wake = staticmethod(advance)
    advance = staticmethod(advance)

    def room(self) -> None:
        workload = self._workload()
        if workload is not None and workload._attention:
            reaper.leave(workload._after_retirement)

    def lost(self, error: BaseException) -> None:
        workload = self._workload()
        if workload is not None:
            workload._lose(error)


class Poller:
    """What waiting threads do for a device; does not hold the device itself."""

    def __init__(self, driver: DriverDevice) -> None:
        self._poll = driver.poll
        self.timelines: set[EpochTimeline] = set()

    def __call__(self) -> bool:
        done = self._poll()
        for timeline in tuple(self.timelines):
            if timeline.in_flight:
                timeline.advance()
        return done


class Workload:
    """Everything of a device that concerns the work on it."""

    def __init__(self, driver: DriverDevice) -> None:
        self._driver = driver
        self._process = process.here
        self._refusal: Callable[[Submission], Exception] | None = None
        self._lost: BaseException | None = None
        self._held: dict[int, weakref.ref[Submission]] = {}
        self._issued: dict[Submission, None] = {}
        self._backlog: deque[Submission] = deque()
        self._starvation = Starvation(self)
        self._attention = False
        self._submitted = 0
        self._retired = 0
        driver.connect(Sink(self))  # type: ignore[arg-type]  # a ticket is a submission of ours
        self._poller = Poller(driver)

    def describe(self) -> str:
        """Return how texts name the device."""
        raise NotImplementedError

    def _held_locked(self) -> list[Submission]:
        found = [ref() for ref in self._held.values()]
        return [submission for submission in found if submission is not None and submission._stage == HELD]

    def _under_way_locked(self) -> list[Submission]:
        """Everything that is past being held and not over."""
        found = (*self._issued, *self._backlog, *self._starvation.submissions())
        return [submission for submission in found if submission._stage != RETIRED]

    def _doomed_locked(self) -> list[Submission]:
        """Return the held submissions that do not follow from issued work alone."""
        held = {id(submission): submission for submission in self._held_locked()}
        sure = self._under_way_locked() + [submission for submission in held.values() if submission._queued]
        safe = {id(submission) for submission in sure}
        while sure:
            producer = sure.pop()
            for follower in _waiting_for_locked(producer):
                if id(follower) in held and id(follower) not in safe and _follows_locked(follower, safe):
                    safe.add(id(follower))
                    sure.append(follower)
        return [submission for submission in held.values() if id(submission) not in safe]

    def _drain(self, deadline: float | None) -> None:
        while True:
            self._poller()
            with core_lock:
                left = self._under_way_locked() + self._held_locked()
            if not left:
                return
            try:
                for submission in left:
                    _wait_quietly(submission, None if deadline is None else max(0.0, deadline - time.monotonic()))
            except DeadlineExceededError:
                running = [submission for submission in left if not submission.done]
                if not running:
                    continue
                names = "; ".join(submission.describe() for submission in running[:8])
                raise DeadlineExceededError(
                    f"{self.describe()} is not drained: {len(running)} submissions still run: {names}",
                    submissions=running,
                ) from None

    def _closed_error(self, submission: Submission) -> Exception:
        return ClosedError(f"{submission._kind} on {submission._queue.describe()}: the device is closed")

    def _forked_error(self, submission: Submission) -> Exception:
        return FailedPreconditionError(
            f"{submission._kind} on {submission._queue.describe()}: the device was opened before this process"
            " was forked"
        )

    def _lose(self, cause: BaseException) -> None:
        """The device is gone: everything on it and held for it fails (M36)."""
        error = cause if isinstance(cause, DeviceLostError) else DeviceLostError(f"{self.describe()} is lost: {cause}")
        if error is not cause:
            error.__cause__ = cause
        with core_lock:
            if self._lost is not None:
                return
            self._lost = error
            self._refusal = partial(_lost_error, error)
            gone = self._under_way_locked() + self._held_locked()
        try:
            for submission in gone:
                retire(submission, error)
        except BaseException:
            for submission in gone:
                reaper.leave(retire, submission, error)
            raise

    def _run_on_host(self, submission: Submission, work: HostWork) -> None:
        host_pool.run(partial(_host_task, submission, work), submission)

    def _put_off(self, submission: Submission) -> None:
        """The driver said "not now": keep it, and try again when something has ended."""
        with core_lock:
            self._backlog.append(submission)
            self._issued.pop(submission, None)
            self._attention = True
        # Whatever made the driver refuse may have ended before this stood in the backlog.
        self._after_retirement()

    def _arm_for_room(self) -> None:
        """Have the devices tell when they are half done with what they have, so that they never run dry."""
        for timeline in tuple(self._poller.timelines):
            in_flight = tuple(timeline.in_flight)
            for ticket in in_flight[len(in_flight) // 2 :: max(1, len(in_flight) - 1 - len(in_flight) // 2)]:
                arm_submission(ticket)  # type: ignore[arg-type]

    def _starve(self, submission: Submission, error: ResourceExhaustedError) -> None:
        """There was no memory for it (M22)."""
        self._starvation.add(submission, error)

    def _after_retirement(self) -> None:
        """Something ended, so there may be room: try what was put off or starves."""
        refused: set[object] = set()
        while self._issue_next(refused):
            pass
        self._starvation.retry()
        with core_lock:
            self._attention = bool(self._backlog or self._starvation)

    def _issue_next(self, refused: set[object] | None = None) -> bool:
        """Try the oldest that was put off, of a kind that was not `refused` before. False: none is left to try."""
        refused = set() if refused is None else refused
        submission: Submission | None = None
        place = -1
        taken = False
        retired = self._retired
        try:
            with core_lock:
                place = self._next_place_locked(refused)
                if place < 0:
                    return False
                submission = self._backlog[place]
                del self._backlog[place]
            taken = submission._stage == RETIRED or issue(submission, ())
        finally:
            # Also after an interrupt: what is neither taken nor over goes back to its place.
            if submission is not None and not taken and submission._stage != RETIRED and not submission.taken:
                with core_lock:
                    self._backlog.insert(place, submission)
                    self._issued.pop(submission, None)
                self._arm_for_room()
        if taken:
            return True
        if self._retired != retired:
            refused.clear()  # who ended something meanwhile found nothing put off here, and will not come again
            return True
        refused.add(_kind_of(submission))
        with core_lock:
            return self._next_place_locked(refused) >= 0

    def _next_place_locked(self, refused: set[object]) -> int:
        """Where the oldest stands that was put off and is not of a refused kind; -1: nowhere.

        What one kind of work lacks, another may not need, and it must not wait for that (M15). Only so far ahead: when
        very much of one kind is put off, what stands behind that waits with it.
        """
        if not refused:
            return 0 if self._backlog else -1
        ahead = list(islice(self._backlog, _AHEAD))
        return next((place for place, one in enumerate(ahead) if _kind_of(one) not in refused), -1)

    def _why_not_issued(self, submission: Submission) -> str:
        if submission in self._starvation.submissions():
            return "ready, but waiting for memory"
        return "ready, waiting for room on the device" if submission in self._backlog else "ready"

    def _count(self, submission: Submission, timeline: EpochTimeline) -> None:
        """A counting device took a submission."""
        self._poller.timelines.add(timeline)
        if submission.epoch % _HOUSEKEEPING == 0:
            arm_submission(submission)


def _kind_of(submission: Submission) -> object:
    """What decides whether a device has room: which work, and where it goes."""
    work = submission._work
    return submission._queue._port, work.__class__, getattr(work, "prepared", None).__class__


def _waiting_for_locked(producer: Submission) -> list[Submission]:
    """Return the submissions that wait for something the producer will signal."""
    states: list[TimelineState] = [point._state for point in producer._signals]
    if producer._completion is not None:
        states.append(producer._completion)
    buckets = [bucket for state in states for bucket in state.waiters.values()]
    return [waiter for bucket in buckets for waiter in bucket if isinstance(waiter, Submission)]


def _follows_locked(submission: Submission, safe: set[int]) -> bool:
    """Whether every unmet wait is claimed by one of the safe submissions."""
    for state, value in (submission._pending or {}).items():
        claims = [ref() for claim, ref in state.claims.items() if claim >= value]
        if not any(producer is not None and id(producer) in safe for producer in claims):
            return False
    return True


def _wait_quietly(submission: Submission, timeout: float | None) -> None:
    """Wait for the end of a submission, well or not."""
    if submission._stage == RETIRED:
        return
    try:
        wait_all([submission], timeout)
    except DeadlineExceededError:
        raise
    except Exception:
        pass


def _lost_error(error: BaseException, submission: Submission) -> Exception:
    lost = DeviceLostError(f"{submission._kind} on {submission._queue.describe()}: the device is lost")
    lost.__cause__ = error
    return lost


def _host_task(submission: Submission, work: HostWork) -> None:
    error: BaseException | None = None
    thread_state.host_call_device = submission._device
    try:
        result = work.run()
        if result is not None:
            submission._result = result
    except BaseException as raised:
        error = raised
    finally:
        thread_state.host_call_device = None
    retire(submission, error)
