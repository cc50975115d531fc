"""An open device: its queues, memory and programs, what is on it, and its end (M22, M35, M36).

`Device` is what the user holds. What drivers report to is the `_DeviceSink`, which knows the device weakly: a device
that was dropped without `close` can be collected, and the reaper then closes it.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from sys import _getframe
from typing import Any

import numpy as np

from ..driver import Driver, DriverDevice, EpochTimeline
from ..errors import (
    AbortedError,
    ClosedError,
    DeadlineExceededError,
    DeviceLostError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from ..types import Compatibility, DeviceInfo, Health, MemoryKind, Statistics
from . import process, progress
from .arming import arm_submission
from .background import reaper
from .buffer import Buffer, host_bytes_of
from .host_calls import pool as host_pool
from .host_wait import checked_timeout, wait_all
from .issuing import HostWork, abort, issue
from .kernel import Executable, Kernel
from .lane import Lane
from .lock import core_lock
from .operations import new_memory
from .pool import Pool, memory_counts
from .queue import Queue
from .recording import CommandBuffer
from .retirement import advance, retire
from .semaphore import Semaphore
from .starvation import Starvation
from .submission import HELD, RETIRED, Submission
from .thread_state import thread_state
from .timeline import TimelineState

_HOUSEKEEPING = 64
"""Every so many epochs one is armed although nobody listens, so that what it kept comes back."""


class _DeviceSink:
    """Where the driver reports to."""

    def __init__(self, device: Device) -> None:
        self._device = weakref.ref(device)

    finished = staticmethod(retire)
    wake = staticmethod(advance)
    advance = staticmethod(advance)

    def room(self) -> None:
        device = self._device()
        if device is not None and device._attention:
            reaper.leave(device._after_retirement)

    def lost(self, error: BaseException) -> None:
        device = self._device()
        if device is not None:
            device._lose(error)


class _Poller:
    """What waiting threads do for a device; does not hold the device itself."""

    def __init__(self, driver: DriverDevice) -> None:
        self._poll = driver.poll
        self.timelines: set[EpochTimeline] = set()

    def __call__(self) -> bool:
        done = self._poll()
        for timeline in tuple(self.timelines):
            timeline.advance()
        return done


class Device:
    """An open device. A context manager; everything may be used from any thread."""

    def __init__(self, driver: Driver, device: DriverDevice, uri: str, label: str) -> None:
        self._driver = device
        self._driver_name = driver.name
        self._uri = uri
        self._label = label
        self._process = process.here
        self._refusal: Callable[[Submission], Exception] | None = None
        self._lost: BaseException | None = None
        self._closing = False
        self._closed = False
        self._held: dict[int, weakref.ref[Submission]] = {}
        self._issued: dict[Submission, None] = {}
        self._backlog: deque[Submission] = deque()
        self._starvation = Starvation(self)
        self._attention = False
        self._submitted = 0
        self._retired = 0
        self._queues: dict[tuple[str, int], Queue] = {}
        device.connect(_DeviceSink(self))  # type: ignore[arg-type]  # a ticket is a submission of ours
        self._poller = _Poller(device)
        progress.pollers.append(self._poller)
        _open_devices.add(self)
        reaper.ensure()
        for kind in device.queue_kinds:
            self.queue(kind)

    def __repr__(self) -> str:
        return f"<tidegate.Device {self.describe()} {self.health.value}>"

    def describe(self) -> str:
        """Return how texts name it."""
        return f"device {self._label!r}" if self._label else f"device {self._uri!r}"

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._process.forked or self._process.exiting:
            return
        reaper.leave(_close_dropped, self._driver, self._poller, self._uri)

    # What it is ----------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The name given to it."""
        return self._label

    @property
    def info(self) -> DeviceInfo:
        """What it is and what it allows."""
        return self._driver.info

    @property
    def health(self) -> Health:
        """Whether it works, is closed, or is lost."""
        if self._lost is not None:
            return Health.LOST
        return Health.CLOSED if self._closed or self._closing else Health.OK

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queues that have been asked for so far, and one of each kind."""
        return tuple(self._queues.values())

    def queue(self, kind: str = "compute", priority: int = 0) -> Queue:
        """Return the queue of a kind and priority; the same object each time.

        Raises:
            InvalidArgumentError: an unknown kind; the message lists the known ones.

        """
        self._refuse_closed()
        found = self._queues.get((kind, priority))
        if found is not None:
            return found
        kinds = self._driver.queue_kinds
        if kind not in kinds:
            raise InvalidArgumentError(f"{self.describe()} has no queue {kind!r}: it has {', '.join(kinds)}")
        if not isinstance(priority, int):
            raise TypeError(f"the priority must be an int, not {type(priority).__name__}")
        queue = Queue(self, self._driver.queue(kind, priority), kind, priority)
        return self._queues.setdefault((kind, priority), queue)

    def _host_queue(self) -> Queue:
        """The queue for transfers that host reads and writes need."""
        return self._queues[(self._driver.queue_kinds[-1], 0)]

    def lane(self, queue: Queue | None = None, label: str = "") -> Lane:
        """Return a new lane: the operations of a queue, in order."""
        self._refuse_closed()
        if queue is not None and queue.device is not self:
            raise InvalidArgumentError(f"{queue.describe()} does not belong to {self.describe()}")
        return Lane(self.queue() if queue is None else queue, label)

    def create_semaphore(self, initial_value: int = 0, label: str = "") -> Semaphore:
        """Return a semaphore with the device's name in its label. It belongs to no device all the same."""
        name = self._label or self._uri
        semaphore = Semaphore(initial_value, f"{name}/{label}" if label else "")
        caller = _getframe(1)
        semaphore._state.site = (caller.f_code, caller.f_lasti)
        return semaphore

    def semaphore_compatibility(self, semaphore: Semaphore) -> Compatibility:
        """Tell how this device waits for and signals a semaphore.

        Every semaphore works with every device. Work of this device that waits for other work of it is ordered
        natively where the driver can; everything else passes through the host.
        """
        if not isinstance(semaphore, Semaphore):
            raise TypeError(f"semaphore_compatibility takes a semaphore, not {type(semaphore).__name__}")
        everything = (
            Compatibility.HOST_WAIT
            | Compatibility.HOST_SIGNAL
            | Compatibility.DEVICE_WAIT
            | Compatibility.DEVICE_SIGNAL
        )
        return everything | Compatibility.THROUGH_HOST

    # Memory and programs -------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, *, memory: MemoryKind = "device", label: str = "") -> Buffer:
        """Return a buffer with storage, now. Fresh memory is undefined. Never waits for work.

        Raises:
            ResourceExhaustedError: there is no room.

        """
        self._refuse_closed()
        block = new_memory(self, nbytes, memory, label)
        block.commit(self._driver.allocate(block.nbytes, memory))
        return Buffer(block, 0, block.nbytes, root=True)

    def upload(self, array: Any, *, memory: MemoryKind = "device", label: str = "") -> Buffer:
        """Return a buffer that holds a copy of a host array, now."""
        source = host_bytes_of(array, "upload")
        buffer = self.allocate(source.nbytes, memory=memory, label=label)
        target = buffer._visible()
        if target is None:
            self._host_queue().upload(source, buffer).wait()
        else:
            np.copyto(target, source)
        return buffer

    def create_pool(self, budget: int | None = None, label: str = "") -> Pool:
        """Return a pool of memory with a budget of its own, for `queue.allocate(pool=...)`."""
        self._refuse_closed()
        return Pool(self, self._driver.create_pool(budget), label)

    def load(self, source: Any, *, format: str | None = None, options: Sequence[str] = ()) -> Executable:
        """Compile or load what the device can run. May block for a compiler, never for work.

        Args:
            source: a `Kernel`, or what the driver takes: on the CPU a Python function or C source.
            format: names the kind of source where it cannot be told.
            options: for the compiler.

        Raises:
            CompileError: it does not compile; has the `log`.
            UnsupportedError: not a source for this device.

        """
        self._refuse_closed()
        if isinstance(source, Kernel):
            implementation = source.source_for(self._driver_name)
            functions = self._driver.load(
                implementation, signature=source.signature, format=format, options=tuple(options)
            )
        else:
            functions = self._driver.load(source, signature=None, format=format, options=tuple(options))
        return Executable(self, functions)

    def record(self, *, one_shot: bool = False, label: str = "") -> CommandBuffer:
        """Return a command buffer to record: `with device.record() as commands: ...`."""
        self._refuse_closed()
        return CommandBuffer(self, one_shot, label)

    def statistics(self) -> Statistics:
        """Return a snapshot of the device's counts."""
        self._poller()
        memory = memory_counts(self._driver.default_pool)
        with core_lock:
            return Statistics(
                **memory,  # type: ignore[arg-type]
                held=len(self._held_locked()),
                issued=len(self._issued),
                submitted=self._submitted,
                retired=self._retired,
            )

    def trim(self) -> None:
        """Give memory back that is kept for reuse."""
        self._refuse_closed()
        self._driver.trim()

    # Its end -------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """End: refuse new work, drain what is issued and what follows from it alone, abort the rest (M35).

        Closing twice is fine.

        Raises:
            DeadlineExceededError: work still runs; the text names it. Call again to go on waiting.
            FailedPreconditionError: called from a host call of this device.

        """
        timeout = checked_timeout(timeout)
        process.refuse_forked(self._process, self.describe())
        if thread_state.host_call_device is self:
            raise FailedPreconditionError(
                f"{self.describe()} cannot be closed from its own host call: it would wait for itself"
            )
        if self._closed:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        with core_lock:
            self._closing = True
            if self._refusal is None:
                self._refusal = self._closed_error
            doomed = self._doomed_locked()
        for submission in doomed:
            abort(submission, AbortedError(f"{submission.describe()} was given up: {self.describe()} is closed"))
        self._drain(deadline)
        self._end()

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

    def _end(self) -> None:
        with core_lock:
            if self._closed:
                return
            self._closed = True
        self._forget()
        self._driver.close()

    def _forget(self) -> None:
        _open_devices.discard(self)
        if self._poller in progress.pollers:
            progress.pollers.remove(self._poller)

    def _closed_error(self, submission: Submission) -> Exception:
        return ClosedError(f"{submission._kind} on {submission._queue.describe()}: the device is closed")

    def _forked_error(self, submission: Submission) -> Exception:
        return FailedPreconditionError(
            f"{submission._kind} on {submission._queue.describe()}: the device was opened before this process"
            " was forked"
        )

    def _refuse_closed(self) -> None:
        process.refuse_forked(self._process, self.describe())
        if self._lost is not None:
            raise DeviceLostError(f"{self.describe()} is lost") from self._lost
        if self._closing or self._closed:
            raise ClosedError(f"{self.describe()} is closed")

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

    # What scheduling and retirement ask of it ------------------------------------------------------------------------

    def _run_on_host(self, submission: Submission, work: HostWork) -> None:
        host_pool.run(partial(_host_task, submission, work), submission)

    def _put_off(self, submission: Submission) -> None:
        """The driver said "not now": keep it, and try again when something has ended."""
        with core_lock:
            self._backlog.append(submission)
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
        while self._issue_next():
            pass
        self._starvation.retry()
        with core_lock:
            self._attention = bool(self._backlog or self._starvation)

    def _issue_next(self) -> bool:
        """Try the oldest that was put off. False: there is none, or still no room."""
        submission: Submission | None = None
        taken = False
        try:
            with core_lock:
                if not self._backlog:
                    return False
                submission = self._backlog[0]
                del self._backlog[0]
            taken = submission._stage == RETIRED or issue(submission, ())
        finally:
            # Also after an interrupt: what is neither taken nor over goes back to its place.
            if submission is not None and not taken and submission._stage != RETIRED and not submission.taken:
                with core_lock:
                    self._backlog.appendleft(submission)
                self._arm_for_room()
        return taken

    def _why_not_issued(self, submission: Submission) -> str:
        if submission in self._starvation.submissions():
            return "ready, but waiting for memory"
        return "ready, waiting for room on the device" if submission in self._backlog else "ready"

    def _count(self, submission: Submission, timeline: EpochTimeline) -> None:
        """A counting device took a submission."""
        self._poller.timelines.add(timeline)
        if submission.epoch % _HOUSEKEEPING == 0:
            arm_submission(submission)


_open_devices: weakref.WeakSet[Device] = weakref.WeakSet()


def open_devices() -> list[Device]:
    """Return the devices that are open in this process."""
    return list(_open_devices)


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


def _close_dropped(driver: DriverDevice, poller: _Poller, uri: str) -> None:
    if poller in progress.pollers:
        progress.pollers.remove(poller)
    driver.close()
    warnings.warn(f"device {uri!r} was dropped without close()", ResourceWarning, stacklevel=2)


def _forget_in_child() -> None:
    for device in open_devices():
        device._refusal = device._forked_error
    _open_devices.clear()


process.in_child(_forget_in_child)
