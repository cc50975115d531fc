"""What is on a device: held, issued, put off, starving; and how it ends (M22, M35, M36).

The private side of `Device`, as scheduling and retirement see it.
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
from .compiled import HostWork, Sink, Submission, ask_for_wake_up, call_driver, inside_driver, try_again, when_over
from .failures import Unseen
from .following import followers
from .host_calls import pool as host_pool
from .starvation import Starvation
from .thread_state import thread_state

_AHEAD = 64
"""How far is looked among what was put off."""
_DROPPED = 8
"""So many failures that were dropped unseen are remembered."""


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
            if timeline.oldest is not None:
                call_driver(timeline.advance)
        return done


class Workload(compiled.Workload):
    """Everything of a device that concerns the work on it.

    Its submissions are held, and known weakly; or its own, from the moment they are ready: some of them put off, in the
    `_backlog`, and some starving; `_attention` says whether somebody need come to try those again.
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

    def _doomed_submissions(self) -> list[Submission]:
        """Return the held submissions that do not follow from issued work alone."""
        held = dict.fromkeys(self._held_submissions())
        sure = [submission for submission in held if submission._is_decided]
        safe = followers(self._owned_submissions() + sure, held).union(sure)
        return [submission for submission in held if submission not in safe]

    def _drain(self, deadline: float | None) -> None:
        while True:
            self._poller()
            left = self._owned_submissions() + self._held_submissions()
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
        gone = self._owned_submissions() + self._held_submissions()
        try:
            for submission in gone:
                compiled.retire_submission(submission, error)
        except BaseException:
            for submission in gone:
                deferred.leave(compiled.retire_submission, submission, error)
            raise

    def _run_on_host(self, submission: Submission, work: HostWork) -> None:
        host_pool.run(partial(_host_task, submission, work), submission)

    def _arm_for_room(self) -> None:
        """Have the devices tell when they are half done with what they have, so that they never run dry."""
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
        """Something ended, so there may be room: try what was put off or starves."""
        self._one_at_a_time(self._try_what_waits)

    def _try_what_waits(self) -> None:
        self._try_backlog()
        self._starvation.retry()
        self._attention = bool(self._starving or self._backlog)

    def _try_backlog(self) -> None:
        """Give what was put off to the driver, the oldest first.

        What one kind of work lacks, another may not need, and it must not wait for that (M15). Only so far ahead: when
        very much of one kind is put off, what stands behind that waits with it.
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
            self._arm_for_room()

    def _why_not_issued(self, submission: Submission) -> str:
        if submission in self._starving:
            return "ready, but waiting for memory"
        return "ready, waiting for room on the device" if submission in self._backlog else "ready"

    def _looks_at(self, timeline: EpochTimeline) -> None:
        """Waiting threads look at a native timeline from now on."""
        self._poller.timelines.add(timeline)


def _kind_of(submission: Submission) -> object:
    """What decides whether a device has room: which work, and where it goes."""
    work = submission._work
    return submission._queue._port, work.__class__, getattr(work, "prepared", None).__class__


def _wait_quietly(submission: Submission, timeout: float | None) -> None:
    """Wait for the end of a submission, well or not; its failure does not count as looked at."""
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


def closed_error(submission: Submission) -> Exception | None:
    """Return what a closed device refuses a submission with; not if that is a part of work which it still drains."""
    if submission._nested:
        return None
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
    # The frames that an error passed through know this one for as long as it is kept, and this one would keep the work.
    del submission, work, error
