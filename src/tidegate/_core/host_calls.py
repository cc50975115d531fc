"""The threads that run host calls and file work (M33).

A pool of daemon threads, shared by all devices. It keeps up to `SIZE` threads at work; a worker that blocks inside a
Tidegate wait does not count, so calls that wait for one another always find a thread. Calls may also wait for one
another by means that the pool knows nothing of: while tasks wait and no worker has come back for `_PATIENCE`, it starts
more threads, up to a limit: one, then two, then three at a time. Surplus threads end when idle.

Why no lock is taken in the user's threads. A signal handler or a finalizer may interrupt `run` and call it again,
because it may set held host calls free. So nothing that a thread of the user's does here takes a lock. Tasks, idle
workers and blocked workers are kept in deques, whose methods are atomic. Threads are started by the deferred worker and
by the watcher, because starting one takes locks, and a Ctrl-C inside of that would be lost. What an interrupt cuts
short goes to the deferred worker as well.

Why no task is overlooked. Each side first makes itself known and then looks at the other side. A thread that adds a
task then looks for an idle worker, for room and for the watcher. A worker that becomes idle, blocks or ends, and a
watcher that ends, then look for tasks.
"""

from __future__ import annotations

import os
import threading
import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import InvalidArgumentError, ResourceExhaustedError
from .background import deferred, report_unraisable
from .compiled import retire_submission as retire
from .process import in_child
from .thread_state import thread_state

if TYPE_CHECKING:
    from ..driver import Ticket

Task = Callable[[], object]

SIZE = min(32, (os.cpu_count() or 1) + 4)
"""How many threads are started without waiting for `_PATIENCE`."""
_PATIENCE = 0.05
_IDLE_SECONDS = 5.0
_VARIABLE = "TIDEGATE_HOST_THREADS"
_LIMIT = 1024


class HostCallPool:
    """Runs tasks in the order given, on as many threads as it takes.

    Its lock guards the number of threads, and only the pool's own threads and the deferred worker take it.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._renew()
        in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._tasks: deque[tuple[Task, Ticket]] = deque()
        self._idle: deque[LockType] = deque()
        # Takes the worker that became idle last and opens its gate. Both happen in C, because an interrupt between the
        # two would lose the worker.
        self._wakes = map(LockType.release, iter(self._idle.pop, None))
        self._blocked: deque[None] = deque()
        self._threads = 0
        self._watched = False
        self._came_back = False

    # For any thread, wherever it is ---------------------------------------------------------------------------------

    def run(self, task: Task, ticket: Ticket) -> None:
        """Have a worker run the task of a submission. Returns at once."""
        entry = (task, ticket)
        try:
            ticket.taken = True  # immediately before the work is handed over (see driver, Interrupts)
            self._tasks.append(entry)
            self._call_for_one()
        except BaseException:
            deferred.leave(self._staff)
            raise

    def worker_blocks(self) -> None:
        """The calling worker is about to sleep in a wait: another may take its place."""
        self._blocked.append(None)
        if self._tasks:
            self._call_for_one()

    def worker_resumes(self) -> None:
        """The calling worker has woken."""
        if self._blocked:  # in a forked child it is not
            self._blocked.pop()

    def set_limit(self, limit: int) -> int:
        """Set how many workers may be at work at once, those that block in a wait not counted; returns what it was."""
        before, self._limit = self._limit, limit
        for _ in range(len(self._idle)):
            self._wake()  # those beyond the limit end
        if self._tasks:
            self._call_for_one()
        return before

    def waiting(self) -> set[Ticket]:
        """Return the submissions whose tasks no worker has begun."""
        return {ticket for _, ticket in self._tasks.copy()}

    def why_waiting(self) -> str:
        """Say what those submissions wait for."""
        if self._busy() < self._limit:
            return "ready, waiting for a host thread"
        return f"ready, but waiting for a free host thread: {self._limit} of {self._limit} are busy"

    def _call_for_one(self) -> None:
        """Get a worker for a task: an idle one, or one that the deferred worker or the watcher starts."""
        if not self._wake():
            busy = self._busy()
            if busy < self._limit and (busy < SIZE or not self._watched):
                deferred.leave(self._staff)

    def _wake(self) -> bool:
        """Wake the worker that became idle last, so that the others may end. Return False if no worker is idle."""
        try:
            next(self._wakes)
        except IndexError:
            return False
        return True

    def _busy(self) -> int:
        return self._threads - len(self._blocked)

    # On the deferred worker and on threads of the pool's own --------------------------------------------------------

    def _staff(self) -> None:
        """Get one more worker for the tasks that wait, or a watcher that sees whether one is needed.

        Called by the deferred worker.
        """
        if not self._tasks or self._wake() or self._start(SIZE):
            return
        if not self._watched and self._busy() < self._limit:
            self._watched = True
            if _start_thread(self._watch, "tidegate-host-watch") is not None:
                self._watched = False

    def _start(self, most: int) -> bool:
        """Start a worker, if fewer than `most` are at work."""
        with self._lock:
            if self._busy() >= min(most, self._limit):
                return False
            self._threads += 1
        error = _start_thread(self._work, "tidegate-host-call")
        if error is None:
            return True
        with self._lock:
            self._threads -= 1
        if self._busy() <= 0:
            self._give_up(error)
        return False

    def _give_up(self, error: Exception) -> None:
        """No thread can be started, and none is at work: the tasks that wait fail."""
        while (entry := self._next()) is not None:
            lost = ResourceExhaustedError(f"no thread could be started for a host call: {error}")
            lost.__cause__ = error
            retire(entry[1], lost)  # type: ignore[arg-type]  # a ticket is a submission of ours

    def _watch(self) -> None:
        """Start more workers while tasks wait and no worker comes back for one."""
        more = 0
        try:
            while self._tasks and self._busy() < self._limit:
                self._came_back = False
                time.sleep(_PATIENCE)
                more = 0 if self._came_back else more + 1
                for _ in range(min(more, len(self._tasks))):
                    self._start(self._limit)
        finally:
            self._watched = False
            if self._tasks:
                deferred.leave(self._staff)

    def _work(self) -> None:
        thread_state.pool = self
        gate = allocate_lock()
        gate.acquire()
        try:
            while self._busy() <= self._limit and (self._run_next() or self._rest(gate)):
                pass
        finally:
            try:
                self._idle.remove(gate)
            except ValueError:
                pass  # it was woken in the same moment, so there is a task
            with self._lock:
                self._threads -= 1
            if self._tasks:
                self._call_for_one()

    def _run_next(self) -> bool:
        """Run the first task. Return False if there is none."""
        entry = self._next()
        if entry is None:
            return False
        try:
            entry[0]()
        except BaseException as error:
            report_unraisable(error, entry[0])
        self._came_back = True
        del entry  # an error that is kept keeps this frame
        return True

    def _next(self) -> tuple[Task, Ticket] | None:
        try:
            return self._tasks.popleft()
        except IndexError:
            return None

    def _rest(self, gate: LockType) -> bool:
        """Sleep until woken. Return False if nobody came for a long while."""
        self._idle.append(gate)
        if self._tasks or self._busy() > self._limit:
            self._wake()  # this one or another: before it was seen here, a task came or the limit was lowered
        return gate.acquire(timeout=_IDLE_SECONDS)


def _start_thread(function: Callable[[], None], name: str) -> Exception | None:
    """Start a daemon thread; returns why it could not be."""
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except Exception as error:
        return error
    return None


def set_host_threads(limit: int) -> int:
    """Set how many threads may be at work on host calls and files at once, and return the limit before.

    Host calls that are blocked in a wait of Tidegate's do not count. Callable from any thread, at any time: threads
    beyond a lower limit end as they become idle. The limit is 1024 at first, or `TIDEGATE_HOST_THREADS` of the
    environment in which Tidegate was imported.

    Args:
        limit: 1 or more.

    Raises:
        InvalidArgumentError: it is less than 1.

    """
    if isinstance(limit, bool) or not hasattr(limit, "__index__"):
        raise TypeError(f"a number of host threads is an int, not {type(limit).__name__}")
    number = limit.__index__()
    if number < 1:
        raise InvalidArgumentError(f"the number of host threads is {number}, and must be 1 or more", limit=number)
    return pool.set_limit(number)


def _limit_asked_for() -> int:
    asked = os.environ.get(_VARIABLE, "").strip() or str(_LIMIT)
    if not asked.isdecimal() or int(asked) < 1:
        raise InvalidArgumentError(f"{_VARIABLE} is {asked!r}, and must be a whole number, 1 or more")
    return int(asked)


pool = HostCallPool(_limit_asked_for())
