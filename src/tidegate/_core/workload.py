"""What is on a device: held, issued, put off, starving; and how it ends (M22, M35, M36).

The private side of `Device`: the policy that the compiled core calls when work ends or a driver has no room.
"""

from __future__ import annotations

import time
import weakref
from _thread import allocate_lock
from collections import deque
from functools import partial
from threading import TIMEOUT_MAX

from ..driver import DriverDevice, EpochTimeline, Storage
from ..errors import (
    ClosedError,
    DeadlineExceededError,
    DeviceLostError,
    FailedPreconditionError,
)
from ..types import MemoryKind
from . import compiled, process
from .background import deferred
from .compiled import (
    HostWork,
    Sink,
    Submission,
    ask_for_wake_up,
    call_driver,
    inside_driver,
    look_at_device,
    try_again,
    when_over,
)
from .failures import Unseen
from .following import followers
from .host_calls import pool as host_pool
from .starvation import Starvation
from .thread_state import thread_state

_AHEAD = 64
"""How many of the backlog are tried at a time."""
_DROPPED = 8
"""How many failures are remembered that nobody had looked at when they were reported."""


class Poller:
    """What waiting threads do for a device; does not hold the device itself."""

    def __init__(self, driver: DriverDevice) -> None:
        self._poll = driver.poll
        self.timelines: set[EpochTimeline] = set()

    def __call__(self) -> bool:
        if inside_driver():
            return False
        done = call_driver(self._poll)
        for timeline in tuple(self.timelines):
            look_at_device(timeline)
        return done


class Workload(compiled.Workload):
    """Everything of a device that concerns the work on it.

    The device knows its held submissions without owning them. It owns a submission from the moment that is ready until
    it is over. Meanwhile the driver has it, or it waits in the `_backlog` because the driver had no room, or it is an
    allocation that starves for memory. While there are any of the last two, `_attention` is set, and the end of any
    work tries them again.
    """

    def __init__(self, driver: DriverDevice) -> None:
        self._driver = driver
        self._promises = driver.promises
        self._process = process.here
        self._lost: BaseException | None = None
        self._starvation = Starvation(self)
        self._failures: weakref.WeakSet[Unseen] = weakref.WeakSet()
        self._dropped_failures: deque[tuple[str, BaseException]] = deque(maxlen=_DROPPED)
        driver.connect(Sink(self))
        self._poller = Poller(driver)

    def describe(self) -> str:
        """Return how texts name the device."""
        raise NotImplementedError

    def _submissions_to_abort(self) -> list[Submission]:
        """Return the held submissions that do not follow from issued work alone: a close gives those up (M35)."""
        owned, waiting = self._unfinished()
        held = dict.fromkeys(waiting)
        sure = [submission for submission in held if submission._is_decided]
        safe = followers(owned + sure, held).union(sure)
        return [submission for submission in held if submission not in safe]

    def _drain(self, deadline: float | None) -> None:
        while True:
            self._poller()
            owned, held = self._unfinished()
            left = owned + held
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

    def _lose(self, cause: BaseException) -> None:
        """The device is gone: everything on it and held for it fails (M36)."""
        error = cause if isinstance(cause, DeviceLostError) else DeviceLostError(f"{self.describe()} is lost: {cause}")
        if error is not cause:
            error.__cause__ = cause
        if self._lost is not None:
            return
        self._lost = error
        self._refuse(partial(_lost_error, error))
        owned, held = self._unfinished()
        gone = owned + held
        try:
            for submission in gone:
                compiled.retire_submission(submission, error)
        except BaseException:
            for submission in gone:
                deferred.leave(compiled.retire_submission, submission, error)
            raise

    def _run_on_host(self, submission: Submission, work: HostWork) -> None:
        host_pool.run(partial(_host_task, submission, work), submission)

    def _request_room(self) -> None:
        """Request a wake-up when a native queue is half done with what it has, so that it never runs dry."""
        for timeline in tuple(self._poller.timelines):
            in_flight = timeline.in_flight
            for ticket in in_flight[len(in_flight) // 2 :: max(1, len(in_flight) - 1 - len(in_flight) // 2)]:
                ask_for_wake_up(ticket)

    def _allocate_now(self, nbytes: int, memory: MemoryKind) -> Storage:
        """Return storage now."""
        return call_driver(self._driver.allocate, nbytes, memory)

    def _starves_anew(self) -> None:
        """One more allocation has found no memory (M22)."""
        self._starvation.listen()
        self._after_retirement()

    def _after_retirement(self) -> None:
        """Something ended, so there may be room: try again what is in the backlog or starves."""
        self._one_at_a_time(self._try_what_waits)

    def _try_what_waits(self) -> None:
        self._try_backlog()
        self._starvation.retry()
        self._attention = bool(self._starving or self._backlog)

    def _try_backlog(self) -> None:
        """Give what is in the backlog to the driver, the oldest first.

        Room that one kind of work lacks another kind may not need, so a refused kind does not stop the others (M15).
        Only the first `_AHEAD` are tried: behind more than that of a refused kind, the others wait too.
        """
        refused: set[object] = set()
        index = 0
        while index < min(len(self._backlog), _AHEAD):
            submission = self._backlog[index]
            kind = _kind_of(submission)
            if kind not in refused and try_again(submission) is not False:
                self._backlog.remove(submission)
            else:
                refused.add(kind)
                index += 1
        if refused:
            self._request_room()

    def _why_not_issued(self, submission: Submission) -> str:
        if submission in self._starving:
            return "ready, but waiting for memory"
        return "ready, waiting for room on the device" if submission in self._backlog else "ready"

    def _looks_at(self, timeline: EpochTimeline) -> None:
        """Waiting threads look at a native timeline from now on."""
        self._poller.timelines.add(timeline)


def _kind_of(submission: Submission) -> object:
    """Return what decides whether a device has room for it: the class of the work and the queue it goes to."""
    work = submission._work
    return submission._queue._port, work.__class__, getattr(work, "prepared", None).__class__


def _wait_quietly(submission: Submission, timeout: float | None) -> None:
    """Wait for the end of a submission, well or not, without marking its failure as seen."""
    if submission._is_over:
        return
    gate = allocate_lock()
    gate.acquire()
    subscription = when_over(submission, gate.release)
    try:
        if not gate.acquire(timeout=-1 if timeout is None else min(timeout, TIMEOUT_MAX)) and not submission.done:
            raise DeadlineExceededError(f"{submission.describe()} is not over", timeout=timeout)
    finally:
        subscription.cancel()


def closed_error(submission: Submission) -> Exception:
    """Return what a closed device refuses a submission with."""
    return ClosedError(f"{submission._kind} on {submission._queue.describe()}: the device is closed")


def forked_error(submission: Submission) -> Exception:
    """Return what the parent's device refuses a forked child's submission with."""
    return FailedPreconditionError(
        f"{submission._kind} on {submission._queue.describe()}: the device was opened before this process was forked"
    )


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
    compiled.retire_submission(submission, error)
    # An error keeps this frame as long as it lives, and the frame would keep the work.
    del submission, work, error
