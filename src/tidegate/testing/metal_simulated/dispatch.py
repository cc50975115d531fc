"""Dispatch queues, and the workers that run handlers and blocks: threads that exist only while there is work."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .objects import Metal
from .pools import autorelease_pool
from .rules import RULES

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["DispatchData", "DispatchQueue", "Worker"]


def start(thread: threading.Thread) -> None:
    """Start a thread of the simulation, which stands for C code: no collection, and so no finalizer, comes on its way.

    The one who starts it may have any lock, and a finalizer may want that before the thread has begun.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        thread.start()
    finally:
        if collects:
            gc.enable()


class Worker:
    """Runs jobs one after the other on a thread that ends when none is left."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._name = name
        self._jobs: deque[Callable[[], object]] = deque()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        with simulation.lock:
            simulation.workers.add(self)

    def put(self, job: Callable[[], object]) -> None:
        """Run `job` on the worker's thread, behind those that came before."""
        with self._lock:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start(self._thread)

    def join(self, timeout: float) -> bool:
        """Wait until there is nothing left to do; False if that took too long."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            try:
                with autorelease_pool():
                    job()
            except BaseException as error:
                self._simulation.record(RULES["block"], f"{job!r} on {self._name} raised {error!r}")
            del job


class DispatchQueue(Metal, registered="OS_dispatch_queue"):
    """A serial dispatch queue."""

    def __init__(self, simulation: Simulation, label: bytes) -> None:
        super().__init__(simulation, label.decode())
        self._worker = Worker(simulation, f"simulated-dispatch-{label.decode()}")


class DispatchData(Metal, registered="OS_dispatch_data"):
    """Immutable bytes for functions of the system."""

    def __init__(self, simulation: Simulation, data: bytes) -> None:
        super().__init__(simulation)
        self._bytes = data


def make_queue(simulation: Simulation, label: Any, attributes: Any) -> DispatchQueue:
    """What `dispatch_queue_create` does; only serial queues are simulated."""
    if not isinstance(label, bytes):
        simulation.record(RULES["argument-type"], f"dispatch_queue_create: the label {label!r} is not bytes")
        raise TypeError(f"dispatch_queue_create: the label {label!r} must be bytes")
    if attributes is not None:
        raise NotImplementedError("dispatch_queue_create: only serial queues are simulated")
    return DispatchQueue(simulation, label)
