"""The end of command buffers: what is in flight, and the thread that sleeps for it.

Truth is the completed status of a command buffer. The shared event that GPU work waits for rises before the command
buffer is over, and even when it failed, so it tells the host nothing. Whoever looks asks the oldest command buffer for
its status, which is cheap; who has to be told arms an epoch, and a thread of ours, one per native queue and started
with the first such wish, sleeps in `waitUntilCompleted` on the oldest, in order. There is no block of ours on a thread
of Metal's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from tidegate._core.background import deferred as reaper
from tidegate._core.background import report_unraisable, start_thread
from tidegate.driver import call_driver
from tidegate.drivers.metal import _native
from tidegate.drivers.metal._native import Object

if TYPE_CHECKING:
    from tidegate.drivers.metal.queue import MetalTimeline


class Flight:
    """A command buffer on its way, and everything it must not outlive.

    Attributes:
        commands: the command buffer, which retains nothing itself.
        committed: whether it is known to have been committed.
        behind: the epochs of other queues that it waits for on the GPU. Their events rise before their command buffers
            are over and before downloads have copied, so it is over only when those epochs are.
        kept: storages, staging ranges, functions: dropped when the command buffer is over, before that is told.
        finish: the host's part of the work, done when the GPU's is over: a download's copy.
        heavy: whether that part is too long for a thread that merely looks.

    """

    __slots__ = ("behind", "commands", "committed", "epoch", "finish", "heavy", "kept", "label")
    commands: Object
    epoch: int

    def __init__(self, label: str) -> None:
        self.behind: list[tuple[MetalTimeline, int]] = []
        self.kept: list[Any] = []
        self.finish: Callable[[], object] | None = None
        self.heavy = False
        self.committed = False
        self.label = label


class Retirement:
    """Sleeps for the armed epochs of one native queue, and wakes the core."""

    def __init__(self, timeline: MetalTimeline, name: str) -> None:
        self._timeline = timeline
        self._name = name
        # Entered by the lock: the condition's own way in is Python code, and an interrupt in it would leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._armed: list[int] = []
        self._room = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def arm(self, epoch: int) -> None:
        """Wake the core when `epoch` is over."""
        with self._lock:
            heappush(self._armed, epoch)
            self._stir()

    def want_room(self) -> None:
        """Tell the core when the next command buffer is over: it was refused one more."""
        with self._lock:
            self._room = True
            self._stir()

    def stop(self) -> None:
        """End the thread, once nothing is in flight any more: what flies must be kept until it has landed."""
        with self._lock:
            self._stopped = True
            if self._timeline.flights:
                self._stir()
            else:
                self._changed.notify_all()  # a thread may be there that `_start` has not noted yet

    def _stir(self) -> None:
        if self._thread is None:
            reaper.leave(self._start)
        self._changed.notify_all()

    def _start(self) -> None:
        """A note to the reaper."""
        if self._thread is None:
            self._thread = start_thread(partial(call_driver, self._run), self._name)

    def _run(self) -> None:
        while not self._is_over():
            try:
                with self._timeline.native.autorelease_pool():
                    self._await_oldest()
                self._tell()
            except BaseException as error:
                report_unraisable(error, self)

    def _is_over(self) -> bool:
        """Sleep until there is something to do; whether that is to end."""
        with self._lock:
            self._changed.wait_for(self._is_wanted)
            return self._stopped and not self._timeline.flights

    def _is_wanted(self) -> bool:
        return self._stopped or bool(self._armed) or self._room

    def _await_oldest(self) -> None:
        """Sleep until the oldest command buffer is over, unless what is armed is over already."""
        timeline = self._timeline
        flight = timeline.next_over()
        if flight is None or (self._armed and self._armed[0] <= timeline.reached):
            return
        _native.wait_until_completed(flight.commands)
        timeline.finish_heavy(flight)
        for other, epoch in tuple(flight.behind):
            other.retirement.await_over(epoch)
        timeline.settle()

    def await_over(self, epoch: int) -> None:
        """Sleep until `epoch` is over; for the retirement threads of other queues, whose work waited for it."""
        with self._lock:
            if self._timeline.reached < epoch:
                heappush(self._armed, epoch)
                self._stir()
                self._changed.wait_for(lambda: self._timeline.reached >= epoch)

    def _tell(self) -> None:
        timeline = self._timeline
        with self._lock:
            reached = timeline.reached
            due = bool(self._armed) and self._armed[0] <= reached
            while self._armed and self._armed[0] <= reached:
                heappop(self._armed)
            room, self._room = self._room, False
            self._changed.notify_all()
        timeline.report_loss()
        if due:
            timeline.sink.wake(timeline)
            timeline.forget_failures()
        if room:
            timeline.sink.room()
