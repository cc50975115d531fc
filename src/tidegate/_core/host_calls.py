"""The threads that run host calls and file work (M33).

A pool of daemon threads, shared by all devices. It keeps up to `SIZE` threads at work; a worker that blocks inside a
Tidegate wait does not count, so calls that wait for one another always find a thread. Calls may also wait for one
another by means that the pool knows nothing of: while tasks wait and no worker has come back for `_PATIENCE`, it starts
more threads, up to a limit: one, then two, then three at a time. Surplus threads end when idle.

Where it may be interrupted. A signal handler or a finalizer may strike inside `run`, and call it: it ends what held
work waits for. So nothing that a thread of the user's does here takes a lock. Tasks, parked workers and blocked ones
stand in deques, whose steps are atomic. Threads are started by the reaper and by the watcher: starting one takes locks,
and a Ctrl-C inside it would be lost. What is left to do after an interrupt is a note to the reaper as well.

Why nobody is overlooked. Each side looks again after it has shown itself: who adds a task then looks for a parked
worker, for room and for the watcher; a worker that parks, blocks or ends, and a watcher that ends, then look for tasks.
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
from .background import deferred as reaper
from .background import report_unraisable
from .compiled import retire_submission as retire
from .process import in_child
from .thread_state import thread_state

if TYPE_CHECKING:
    from ..driver import Ticket

Task = Callable[[], object]

SIZE = min(32, (os.cpu_count() or 1) + 4)
"""How many threads are started without hesitation."""
_PATIENCE = 0.05
_IDLE_SECONDS = 5.0
_VARIABLE = "TIDEGATE_HOST_THREADS"
_LIMIT = 1024


class HostCallPool:
    """Runs tasks in the order given, on as many threads as it takes.

    Its lock guards the number of threads, and only the pool's own threads and the reaper take it.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._renew()
        in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._tasks: deque[tuple[Task, Ticket]] = deque()
        self._parked: deque[LockType] = deque()
        # Takes the one that parked last and opens its gate, all in C: between the two an interrupt would lose a worker.
        self._wakes = map(LockType.release, iter(self._parked.pop, None))
        self._blocked: deque[None] = deque()
        self._threads = 0
        self._watched = False
        self._came_back = False

    # For any thread, wherever it is ---------------------------------------------------------------------------------

    def run(self, task: Task, ticket: Ticket) -> None:
        """Have a worker run the task of a submission. Returns at once."""
        entry = (task, ticket)
        try:
            ticket.taken = True  # no call between this and the step that hands over (see driver, Interrupts)
            self._tasks.append(entry)
            self._call_for_one()
        except BaseException:
            reaper.leave(self._staff)
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
        for _ in range(len(self._parked)):
            self._wake()  # those beyond the limit end
        if self._tasks:
            self._call_for_one()
        return before

    def waiting(self) -> set[Ticket]:
        """Return whose tasks no worker has come for yet."""
        return {ticket for _, ticket in self._tasks.copy()}

    def why_waiting(self) -> str:
        """Say what those wait for."""
        if self._busy() < self._limit:
            return "ready, waiting for a host thread"
        return f"ready, but waiting for a free host thread: {self._limit} of {self._limit} are busy"

    def _call_for_one(self) -> None:
        """Have somebody come for a task: a parked worker, or one that the reaper or the watcher starts."""
        if not self._wake():
            busy = self._busy()
            if busy < self._limit and (busy < SIZE or not self._watched):
                reaper.leave(self._staff)

    def _wake(self) -> bool:
        """Wake the worker that parked last, so that the others may end. False: nobody is parked."""
        try:
            next(self._wakes)
        except IndexError:
            return False
        return True

    def _busy(self) -> int:
        return self._threads - len(self._blocked)

    # On the reaper and on threads of the pool's own -----------------------------------------------------------------

    def _staff(self) -> None:
        """Get one more worker for what waits, or else somebody who sees whether one is needed. A note to the reaper."""
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
        """No thread can be had, and nobody is at work who might come: what waits fails."""
        while (entry := self._next()) is not None:
            lost = ResourceExhaustedError(f"no thread could be started for a host call: {error}")
            lost.__cause__ = error
            retire(entry[1], lost)  # type: ignore[arg-type]  # a ticket is a submission of ours

    def _watch(self) -> None:
        """Start more workers while tasks wait and nobody comes back for one."""
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
                reaper.leave(self._staff)

    def _work(self) -> None:
        thread_state.pool = self
        gate = allocate_lock()
        gate.acquire()
        try:
            while self._busy() <= self._limit and (self._run_next() or self._park(gate)):
                pass
        finally:
            try:
                self._parked.remove(gate)
            except ValueError:
                pass  # chosen to be woken in the same moment: then there is a task
            with self._lock:
                self._threads -= 1
            if self._tasks:
                self._call_for_one()

    def _run_next(self) -> bool:
        """Run the first task. False: there is none."""
        entry = self._next()
        if entry is None:
            return False
        try:
            entry[0]()
        except BaseException as error:
            report_unraisable(error, entry[0])
        self._came_back = True
        del entry  # the frames of an error that is kept know this one
        return True

    def _next(self) -> tuple[Task, Ticket] | None:
        try:
            return self._tasks.popleft()
        except IndexError:
            return None

    def _park(self, gate: LockType) -> bool:
        """Sleep until woken. False: nobody came for a long while."""
        self._parked.append(gate)
        if self._tasks or self._busy() > self._limit:
            self._wake()  # this one or another: a task came, or the limit fell, before anybody could be seen here
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
