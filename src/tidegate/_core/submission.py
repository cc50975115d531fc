"""A submission: work on its way, and the handle the user holds (M3, M14 to M21).

Who holds whom. A held submission is owned by the timelines it waits for, among whose waiters it stands, and by nothing
else: those it will signal, the buffers it will write and its device know it weakly. So when nobody is left who could
signal what it waits for, the semaphores are collected and it ends (M12). An issued one is held by its device. It holds
what it touches, and the semaphore objects it will signal, until it retires.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from ..driver import Barrier
from ..errors import AbortedError
from . import process, unseen
from .awaiting import wait_async
from .background import reaper
from .host_wait import is_lasting, wait_for, watch
from .lock import call_driver, core_lock, interrupted_here
from .thread_state import Firing, drain, thread_state
from .timeline import Site, TimelineState, fail_locked

if TYPE_CHECKING:
    from ..driver import EpochTimeline, Work
    from .buffer import Memory
    from .device import Device
    from .queue import Queue
    from .semaphore import Semaphore
    from .timepoint import Timepoint

    Promised = tuple[tuple[TimelineState | None, int, "Submission"], ...]
    """What a submission was issued behind: a timeline, its value, and who will take it there.

    No timeline: the submission itself is waited for, and nobody has asked for its timeline yet.
    """

HELD, READY, ISSUED, FINISHING, RETIRED = range(5)
STAGES = ("held", "ready", "issued", "finishing", "retired")


class Completion(TimelineState):
    """The timeline of one submission: 0, then 1. Made when somebody first waits for the submission itself."""

    __slots__ = ("_kind", "_queue")

    def __init__(self, submission: Submission) -> None:
        super().__init__(0, "", submission._site)
        self._kind = submission._kind
        self._queue = submission._queue

    def describe(self) -> str:
        return _described(self._kind, self._queue, self.site)


class Claim(weakref.ref["Submission"]):
    """A submission's stake in one timepoint that it will signal. It knows the submission weakly.

    Should a submission ever vanish without having retired, whoever waits for it fails instead of hanging.
    """

    __slots__ = ("state", "value")
    state: TimelineState
    value: int


def stake(submission: Submission, state: TimelineState, value: int) -> Claim:
    """Return a claim, to be put among those of `state`."""
    claim = Claim(submission, vanished)
    claim.state = state
    claim.value = value
    return claim


def claims_of(submission: Submission) -> list[tuple[TimelineState, int]]:
    """Return what a submission will signal: timelines and values."""
    points = [(point._state, point.value) for point in submission._signals]
    if submission._completion is not None:
        points.append((submission._completion, 1))
    return points


def vanished(claim: weakref.ref[Submission]) -> None:
    """The finalizer of a claim that still stands: only leaves a note."""
    reaper.leave(_abandon, claim)


def _abandon(claim: Claim) -> None:
    state, value = claim.state, claim.value
    with core_lock:
        if state.process.forked or state.claims.get(value) is not claim:
            return
        state.promises.pop(value, None)
        del state.claims[value]
        lost = AbortedError(f"{state.describe()} at {value}: the submission that was to signal it is gone")
        fail_locked(state, lost, thread_state.queue)
    drain()


class Submission:
    """Work given to a queue: awaitable, waitable, usable in `wait=`, cancellable while it is held.

    Made by queue operations only. Every member may be used from any thread.
    """

    is_work = True
    _nested = False
    """Whether it is a part of other work, without which that cannot end: taken also while the device closes."""

    __slots__ = (
        "__weakref__",
        "_again",
        "_completion",
        "_counted",
        "_device",
        "_doom",
        "_error",
        "_express",
        "_kind",
        "_line",
        "_pending",
        "_promised",
        "_queue",
        "_queued",
        "_ref",
        "_result",
        "_signals",
        "_site",
        "_stage",
        "_touches",
        "_unseen",
        "_work",
        "_writes",
        "armed",
        "epoch",
        "taken",
        "timeline",
    )

    def __init__(self, queue: Queue, work: Work, site: Site | None) -> None:
        self._queue = queue
        self._device: Device = queue._device
        self._work: Work | None = work
        self._kind = work.kind
        self._site = site
        self._stage = HELD
        self._signals: tuple[Timepoint, ...] = ()
        self._writes: Sequence[Memory] = ()
        self._touches: Sequence[Memory] = ()
        self._promised: Promised = ()
        self.timeline: EpochTimeline | None = None
        self._pending: dict[TimelineState, int] | None = None
        self._line: Semaphore | None = None
        self._completion: Completion | None = None
        self._doom: BaseException | None = None
        self._error: BaseException | None = None
        self._unseen: unseen.Unseen | None = None
        self._ref: weakref.ref[Submission] | None = None
        self._result: Any = None
        self.epoch = 0
        self.taken = self.armed = self._queued = self._again = self._counted = self._express = False

    # What the timelines and the trampoline call -------------------------------------------------------------------

    def due(self, state: TimelineState, error: BaseException | None, out: deque[Firing]) -> None:
        """See `timeline.Waiter`."""
        pending = self._pending
        if pending is not None:
            pending.pop(state, None)
        if error is not None and self._doom is None:
            self._doom = error
            self._unseen = unseen.record_of(error)
        if (not pending or self._doom is not None) and not self._queued:
            self._queued = True
            out.append(self)

    def fire(self) -> None:
        """All waits are over: go down, or fail."""
        from .issuing import launch

        launch(self)

    # The user's side ---------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return how texts name this submission: what, where and from which line."""
        return _described(self._kind, self._queue, self._site)

    def __repr__(self) -> str:
        failed = "" if self._error is None else f" error={self._error!r}"
        return f"<tidegate.Submission {self.describe()} {STAGES[self._stage]}{failed}>"

    @property
    def line(self) -> str:
        """The file and line of the call that made it."""
        return site_text(self._site)

    @property
    def queue(self) -> Queue:
        """The queue it was given to."""
        return self._queue

    @property
    def done(self) -> bool:
        """Whether it is over, well or not. Never blocks."""
        if self._stage != RETIRED and not self._device._process.forked and not interrupted_here():
            if self.timeline is not None:
                call_driver(self.timeline.advance)
            if self._stage == FINISHING:
                _see_to_the_end(self)
        return self._stage == RETIRED

    @property
    def error(self) -> BaseException | None:
        """The work's error, None if there is none so far."""
        done = self.done  # first: it may be this look that finds it over
        if self._unseen is not None:
            self._unseen.seen = True
        return self._error if done else None

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is over.

        Raises:
            SemaphoreFailedError: it failed; `__cause__` is the work's error.
            DeadlineExceededError: over time.

        """
        if is_lasting(timeout) and not self._device._process.forked:
            if self._stage != RETIRED:
                watch(self)
            if self._stage == RETIRED and self._error is None:
                return
        wait_for(*self._wait_target(), timeout)  # a failure that comes out of it counts as looked at

    def result(self, timeout: float | None = None) -> Any:
        """Block until it is over and return what it made: the array of a download, what a host call returned."""
        self.wait(timeout)
        return self._result

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from wait_async([self], any_of_them=False).__await__()
        return self._result

    def cancel(self) -> bool:
        """Give it up while it is still held: its signals fail with AbortedError. False: too late."""
        from .issuing import abort

        return abort(self, AbortedError(f"{self.describe()} was cancelled"))

    def explain(self) -> str:
        """Say what it waits for, down to the missing signal (M13)."""
        from .explain import explain

        return explain(self)

    def _claims_locked(self, state: TimelineState, value: int) -> bool:
        """Whether the claim on a timepoint is this submission's.

        One whose submission is gone can only be met by that submission itself, brought back by its finalizers.
        """
        claim = state.claims.get(value)
        return claim is not None and claim() in (self, None)

    def _wait_target(self) -> tuple[TimelineState, int]:
        completion = self._completion
        if completion is None:
            if self._device._process.forked:
                process.refuse_forked(self._device._process, self.describe())
            completion = Completion(self)
            with core_lock:
                if self._completion is None:
                    self._begin_completion_locked(completion)
                    self._completion = completion
                completion = self._completion
        return completion, 1

    def _begin_completion_locked(self, completion: Completion) -> None:
        if self._stage != RETIRED:
            completion.calm = False
            completion.claims[1] = stake(self, completion, 1)
            if self.timeline is not None:
                completion.promises[1] = self
            return
        completion.failure = self._error
        completion.unseen = self._unseen
        completion.payload = 1 if self._error is None else 0

    def _weakly(self) -> weakref.ref[Submission]:
        """Return the weak reference by which its device and the buffers it writes know it."""
        if self._ref is None:
            self._ref = weakref.ref(self)
        return self._ref


def _see_to_the_end(submission: Submission) -> None:
    """Let the retirement that is under way be over: who has seen one of its signals must find it done."""
    from .retirement import retire

    retire(submission)


def over(queue: Queue) -> Submission:
    """Return a submission that is over: for what needed none."""
    submission = Submission(queue, Barrier(), None)
    submission._stage = RETIRED
    submission._work = None
    return submission


def _described(kind: str, queue: Queue, site: Site | None) -> str:
    return f"{kind} on {queue.describe()} ({site_text(site)})"


def site_text(site: Site | None) -> str:
    """Return a site as `file:line`."""
    if site is None:
        return "unknown line"
    code, instruction = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
            break
    return f"{code.co_filename}:{line}"
