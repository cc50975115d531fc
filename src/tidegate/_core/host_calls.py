"""The threads that run host calls and file work (M33).

A pool of daemon threads, shared by all devices. It keeps up to `SIZE` threads at work; a worker that blocks inside a
Tidegate wait does not count, so calls that wait for one another always find a thread. Surplus threads end when idle.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .background import reaper, report_unraisable
from .process import in_child
from .thread_state import thread_state

if TYPE_CHECKING:
    from _thread import LockType

    from ..driver import Ticket

Task = Callable[[], object]

SIZE = min(32, (os.cpu_count() or 1) + 4)
_IDLE_SECONDS = 5.0


class HostCallPool:
    """Runs tasks in the order given, on as many threads as it takes.

    The lock is the pool's own and guards plain counters only; nothing is called under it but thread creation.
    """

    def __init__(self) -> None:
        self._renew()
        in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()
        self._parked: deque[LockType] = deque()
        self._threads = 0
        self._blocked = 0

    def run(self, task: Task, ticket: Ticket) -> None:
        """Have a worker run the task of a submission. Returns at once."""
        try:
            with self._lock:
                ticket.taken = True  # no call between this and the step that hands over (see driver, Interrupts)
                self._tasks.append(task)
            self._staff()
        except BaseException:
            reaper.leave(self._staff)
            raise

    def worker_blocks(self) -> None:
        """The calling worker is about to sleep in a wait: another may take its place."""
        with self._lock:
            self._blocked += 1
        self._staff()

    def worker_resumes(self) -> None:
        """The calling worker has woken."""
        with self._lock:
            self._blocked -= 1

    def _staff(self) -> None:
        """Wake a parked worker, or start one, if there is a task for it and room."""
        with self._lock:
            if not self._tasks:
                return
            if self._parked:
                self._parked.popleft().release()
                return
            if self._threads - self._blocked >= SIZE:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="tidegate-host-call", daemon=True).start()
        except BaseException:
            with self._lock:
                self._threads -= 1
            if not self._threads:
                raise

    def _work(self) -> None:
        thread_state.pool = self
        gate = allocate_lock()
        gate.acquire()
        while True:
            with self._lock:
                task = self._tasks.popleft() if self._tasks else None
                if task is None:
                    self._parked.append(gate)
            if task is not None:
                self._run_one(task)
                del task
            elif not gate.acquire(timeout=_IDLE_SECONDS):
                if self._ends(gate):
                    return
                gate = allocate_lock()  # somebody took the old one to release it: it may be open at any time
                gate.acquire()

    def _ends(self, gate: LockType) -> bool:
        """Whether an idle worker ends: not if it was chosen to be woken in the same moment."""
        with self._lock:
            if gate not in self._parked:
                return False
            self._parked.remove(gate)
            self._threads -= 1
            return True

    @staticmethod
    def _run_one(task: Task) -> None:
        try:
            task()
        except BaseException as error:
            report_unraisable(error, task)


pool = HostCallPool()
