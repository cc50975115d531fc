"""Work that blocks on the device until the host lets it go on.

A test that needs something to be *still running* does not sleep and does not run a long kernel: it submits a latch,
and opens it when it has seen what it wanted to see.

    gate = latch()                       # the fixture; `latch` itself is a latch too, for tests that need only one
    blocked = gate.block(queue, signal=sem.at(1))
    gate.wait_until_running()            # the device is inside
    ...
    gate.open()

Every latch has a time limit of its own, so a test that forgets to open one fails instead of hanging; the fixture opens
what is left closed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import tidegate as tg

#: The limit of every blocking call in the suite, in seconds: far above what a loaded machine needs. Lowered for
#: drivers that are known to be wrong, so that a wait that never ends is found out soon.
LIMIT = float(os.environ.get("TIDEGATE_CONFORMANCE_LIMIT", "30"))

#: How long a latch stays closed at most: longer than that, so that a wait stuck behind one fails first, and explains.
LATCH_LIMIT = 2 * LIMIT

#: Submits work to a queue that runs until the latch is open; takes the latch, the queue, and wait= and signal=.
Blocker = Callable[["Latch", tg.Queue, Any, Any], tg.Submission]


#: How often a host thread looks into memory that a device writes, in seconds.
_LOOK = 0.001


class Door(Protocol):
    """A gate in memory that a kernel watches."""

    def open(self) -> None:
        """Let the kernel go on."""

    def arrived(self) -> bool:
        """Whether the kernel has come to it."""


class LatchTimeoutError(Exception):
    """The host did not open the latch in time: the test that made it is wrong or has failed."""


class Latch:
    """A gate that blocks work of a device; made closed, opened once by the host.

    Any number of submissions may be blocked by one latch. All methods may be called from any thread.
    """

    def __init__(self, blocker: Blocker) -> None:
        self._blocker = blocker
        self._opened = threading.Event()
        self._arrived = threading.Event()
        self._more: list[Latch] = []
        self._doors: list[Door] = []

    def __call__(self) -> Latch:
        """Make another latch, opened with this one at the end of the test at the latest."""
        another = Latch(self._blocker)
        self._more.append(another)
        return another

    def block(self, queue: tg.Queue, *, wait: Any = None, signal: Any = None) -> tg.Submission:
        """Submit work that runs until the latch is open. Returns at once."""
        return self._blocker(self, queue, wait, signal)

    @property
    def arrived(self) -> bool:
        """Whether some work is, or was, inside."""
        return self._arrived.is_set() or any(door.arrived() for door in self._doors)

    def wait_until_running(self, timeout: float = LIMIT) -> None:
        """Block the host until some work is inside.

        Raises:
            LatchTimeoutError: none came in time.
        """
        limit = time.monotonic() + timeout
        while not self._arrived.wait(_LOOK if self._doors else timeout):
            if any(door.arrived() for door in self._doors):
                self._arrived.set()
            elif time.monotonic() >= limit:
                raise LatchTimeoutError(f"no work came to the latch within {timeout:g} s")

    def open(self) -> None:
        """Let the work go on. Twice is fine."""
        self._opened.set()
        for door in tuple(self._doors):
            door.open()

    def add(self, door: Door) -> None:
        """Have a gate on a device follow this latch."""
        self._doors.append(door)
        if self._opened.is_set():
            door.open()

    def open_all(self) -> None:
        """Open this one and all that were made from it."""
        self.open()
        for another in self._more:
            another.open_all()

    def pass_through(self) -> None:
        """What the work does: say that it is there, then wait until the latch is open."""
        self._arrived.set()
        if not self._opened.wait(LATCH_LIMIT):
            raise LatchTimeoutError(f"the latch was not opened within {LATCH_LIMIT:g} s")


def block_by_python_kernel(latch: Latch, queue: tg.Queue, wait: Any, signal: Any) -> tg.Submission:
    """Block by a kernel written in Python: for every driver whose kernels are Python functions."""

    def blocked(workgroups: Any, bindings: Any, constants: Any) -> None:
        latch.pass_through()

    kernel = tg.Kernel("blocked", cpu=blocked, bindings=0, constants=[], workgroup=(1, 1, 1))
    function = queue.device.load(kernel)["blocked"]
    return queue.dispatch(function, (1, 1, 1), wait=wait, signal=signal)


def block_by_host_call(latch: Latch, queue: tg.Queue, wait: Any, signal: Any) -> tg.Submission:
    """Block by a host call: for devices that run no kernels."""
    return queue.host_call(latch.pass_through, wait=wait, signal=signal)


_CUDA = tg.Kernel(
    "blocked",
    cuda="""
extern "C" __global__ void blocked(volatile unsigned *words, unsigned long long limit) {
    long long begin = clock64();
    words[0] = 1;
    __threadfence_system();
    while (words[1] == 0 && (unsigned long long)(clock64() - begin) < limit) __nanosleep(1000);
}""",
    bindings=1,
    constants=[np.uint64],
)

_CYCLES_PER_SECOND = 2_000_000_000


class _Words:
    """A gate in page-locked memory: the kernel writes the first word and watches the second."""

    def __init__(self, buffer: tg.Buffer) -> None:
        self._mapping = buffer.map("rw")
        self._words = self._mapping.__enter__().view(np.uint32)
        self._words[:] = 0

    def open(self) -> None:
        self._words[1] = 1

    def arrived(self) -> bool:
        return bool(self._words[0])


def block_by_watched_memory(latch: Latch, queue: tg.Queue, wait: Any, signal: Any) -> tg.Submission:
    """Block by a kernel that watches memory of the host: for CUDA."""
    buffer = queue.device.allocate(16, memory="host", label="latch")
    latch.add(_Words(buffer))
    function = queue.device.load(_CUDA)["blocked"]
    limit = int(LATCH_LIMIT * _CYCLES_PER_SECOND)
    return queue.dispatch(function, (1, 1, 1), bindings=[buffer], constants=[limit], wait=wait, signal=signal)


class _SharedEventDoor:
    """A gate of two MTLSharedEvents: the command buffer signals the first and waits for the second."""

    def __init__(self, events: Any) -> None:
        self.inside = events.new_event()
        self.opened = events.new_event()
        self._lock = threading.Lock()

    def open(self) -> None:
        with self._lock:
            if self.opened.signaledValue() == 0:
                self.opened.setSignaledValue_(1)

    def arrived(self) -> bool:
        return bool(self.inside.signaledValue())


def block_by_shared_event(latch: Latch, queue: tg.Queue, wait: Any, signal: Any) -> tg.Submission:
    """Block by a command buffer that waits for an event of the host's: for Metal, whose kernels must be short."""
    from tidegate.lowlevel import event_barrier

    door = _SharedEventDoor(queue.device._driver.events)
    latch.add(door)
    return event_barrier(queue, signals=[(door.inside, 1)], waits=[(door.opened, 1)], wait=wait, signal=signal)
