"""Threads that sleep until native events are over, so that no thread has to look again and again.

They sleep inside CUDA, without the GIL, in events made for blocking. A stream that somebody listens to has one of them
asleep on its oldest armed epoch; a second one comes only when an earlier epoch is armed afterwards. Nothing armed:
no thread is awake and none is in CUDA. No code of ours ever runs on a thread of CUDA's own.

An event to sleep for can only be recorded behind the last submission of a stream. For an earlier one there are a few
streams of their own, which wait for its plain event and then record one to sleep for. They stand parked meanwhile, so
they are few; when all are taken, a thread looks again and again, with pauses that grow: there may be many such threads,
and each look takes the GIL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tidegate._core.background import deferred as reaper
from tidegate._core.background import report_unraisable, start_thread

from ._native import NativeError

if TYPE_CHECKING:
    from .device import CudaDevice
    from .native.compiled import Event
    from .stream import Stream

_PATIENCE = 1.0
_PAUSE = 0.0002
_LONGEST_PAUSE = 0.01

SIDES = 4
"""Streams for those who sleep for an epoch that is not the last one."""

Task = Callable[[], None]


class Sleepers:
    """The sleeping threads of one device: made when needed, kept for the next time."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.RLock()
        self._idle = 0
        self._coming: set[Task] = set()
        self._threads: list[threading.Thread] = []
        self._left: list[threading.Thread] = []
        self._stopped = False
        self._sides: list[int] = []
        self._made = 0

    def run(self, task: Task) -> None:
        """Run a task on one of the threads, soon."""
        with self._lock:
            if self._stopped:
                return
            if task in self._coming:
                return  # it has not begun, and looks at all there is when it does
            if self._idle > 0:
                self._idle -= 1
            else:
                reaper.leave(self._start)
            self._tasks.put(task)
            self._coming.add(task)  # not before: what an interrupt keeps from being put must not count as coming

    def _start(self) -> None:
        """A note to the reaper."""
        thread = None if self._stopped else start_thread(self._work, "tidegate-cuda-retire")
        if thread is None:
            return
        with self._lock:
            if self._stopped:
                self._tasks.put(None)
                self._left.append(thread)
            else:
                self._threads.append(thread)

    def _work(self) -> None:
        entered = False
        while True:
            task = self._tasks.get()
            if task is None:
                return
            with self._lock:
                self._coming.discard(task)
            try:
                if not entered:
                    self._device.native.push_context(self._device.context)
                    entered = True
                task()
            except NativeError as error:
                if not self._stopped:  # CUDA ends with the process, and events with their device
                    self._device.lose(error)
            except BaseException as error:
                report_unraisable(error, self)
            del task
            with self._lock:
                self._idle += 1

    def sleep_beside(self, stream: Stream, epoch: int) -> None:
        """Sleep until an epoch is over that is not the last one of its stream. On one of the threads."""
        with self._device.lock:
            if stream.reached >= epoch:
                return
            event = self._device.event_pool.share(stream.event_at(epoch))
        try:
            self.sleep_for(event.handle)
        finally:
            self._device.event_pool.give(event)

    def sleep_for(self, event: int) -> None:
        """Sleep until any event is over, also one that was not made for that. On one of the threads."""
        device = self._device
        with device.lock:
            side = self._side_stream()
            if side is not None:
                device.native.wait_event(side, event)
                alarm = device.sleep_events.take()
                device.native.record_event(alarm.handle, side)
        if side is None:
            self._look_for(event)
            return
        try:
            device.native.synchronize_event(alarm.handle)
        finally:
            with device.lock:
                device.sleep_events.give(alarm)
                self._sides.append(side)

    def _look_for(self, event: int) -> None:
        pause = _PAUSE
        while not self._device.native.event_over(event):
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _side_stream(self) -> int | None:
        if self._sides:
            return self._sides.pop()
        if self._made == SIDES:
            return None
        self._made += 1
        return self._device.native.create_stream()

    def after(self, event: Event, then: Task) -> None:
        """Run `then` on one of the threads when a recorded event is over. The caller's use of the event goes along."""

        def task() -> None:
            self._device.native.synchronize_event(event.handle)
            self._device.sleep_events.give(event)
            then()

        self.run(task)

    def close(self) -> None:
        """Destroy the streams. The threads have ended, the context is current."""
        while self._sides:
            self._device.native.destroy_stream(self._sides.pop())

    def stop(self) -> None:
        """End the threads; those that still sleep end when they wake."""
        with self._lock:
            self._stopped = True
            threads, self._threads = self._threads, []
            for _ in threads:
                self._tasks.put(None)
            self._left += threads
        limit = time.monotonic() + _PATIENCE
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))

    def awake(self) -> bool:
        """Whether all threads have ended that were stopped."""
        me = threading.current_thread()
        return not any(thread.is_alive() for thread in self._left if thread is not me)

    def abandon(self) -> None:
        """Begin nothing any more."""
        self._stopped = True
