"""The worker threads of a CPU device.

Tasks go through a `SimpleQueue`, whose `put` is one step that no interrupt can cut in two. Small built-in tasks are
offered to waiting threads as well (`steal`): a second, bounded list that only hints, for whoever comes first claims the
task, and the queue's copy is then passed over.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from tidegate._core.background import report_unraisable
from tidegate._core.compiled import work_without_limit

_HINTS = 64
_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
_claims = threading.Lock()


class Task:
    """Something to run once, by whoever claims it first."""

    __slots__ = ("_claimed", "_run")

    def __init__(self, run: Callable[[], object]) -> None:
        self._run: Callable[[], object] | None = run
        self._claimed = False

    def run(self) -> bool:
        """Run it unless somebody else does; returns whether this call did. Interrupted, it can be run again."""
        if _GIL:
            # No call between test and store (M38), so an interrupt finds the task either unclaimed or below.
            if self._claimed:
                return False
            self._claimed = True
        else:
            with _claims:
                if self._claimed:
                    return False
                self._claimed = True
        try:
            run = self._run
            if run is None:
                return False  # the interrupt came when it was over already
            run()
            self._run = None
        except BaseException:
            self._claimed = False
            raise
        return True


class Workers:
    """Daemon threads that run tasks."""

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._hints: deque[Task] = deque(maxlen=_HINTS)
        self.put = self._tasks.put
        """Have a worker run a task."""
        self.hint = self._hints.append
        """A task that was put is small: a waiting thread may run it instead."""
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks,), name=f"{name}-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def steal(self) -> bool:
        """Run one small task on the calling thread, if there is one."""
        while self._hints:
            try:
                task = self._hints.popleft()
            except IndexError:
                return False
            try:
                if task.run():
                    return True
            except BaseException:
                self._tasks.put(task)  # the workers passed it over while it was claimed here
                raise
        return False

    def stop(self, patience: float) -> None:
        """Have the workers end after what they are at; waits for them at most `patience` seconds."""
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _work(tasks: SimpleQueue[Task | None]) -> None:
    work_without_limit()
    while True:
        task = tasks.get()
        if task is None:
            return
        try:
            task.run()
        except BaseException as error:
            report_unraisable(error, task)
        del task
