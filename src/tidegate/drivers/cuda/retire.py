"""Threads that sleep until native events are over, so that no thread has to look again and again.

They sleep inside CUDA, without the GIL, in events made for blocking. A stream that somebody listens to has one of them
asleep on its oldest armed epoch; a second one comes only when an earlier epoch is armed afterwards. Nothing armed:
no thread is awake and none is in CUDA. No code of ours ever runs on a thread of CUDA's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tidegate._core.background import report_unraisable

from ._native import NativeError

if TYPE_CHECKING:
    from .device import CudaDevice
    from .event_pool import Event

_PATIENCE = 1.0

Task = Callable[[], None]


class Sleepers:
    """The sleeping threads of one device: made when needed, kept for the next time."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.RLock()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def run(self, task: Task) -> None:
        """Run a task on one of the threads, soon."""
        with self._lock:
            if self._stopped:
                return
            if self._idle > 0:
                self._idle -= 1
            else:
                self._start()
            self._tasks.put(task)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="tidegate-cuda-retire", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        native = self._device.native
        native.push_context(self._device.context)
        while True:
            task = self._tasks.get()
            if task is None:
                return
            try:
                task()
            except NativeError as error:
                self._device.lose(error)
            except BaseException as error:
                report_unraisable(error, self)
            del task
            with self._lock:
                self._idle += 1

    def after(self, event: Event, then: Task) -> None:
        """Run `then` on one of the threads when a recorded event is over. The caller's use of the event goes along."""

        def task() -> None:
            self._device.native.synchronize_event(event.handle)
            self._device.event_pool.give(event)
            then()

        self.run(task)

    def stop(self) -> None:
        """End the threads; those that still sleep end when they wake."""
        with self._lock:
            self._stopped = True
            threads, self._threads = self._threads, []
            for _ in threads:
                self._tasks.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_PATIENCE)
