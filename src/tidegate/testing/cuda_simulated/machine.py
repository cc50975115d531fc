"""The whole simulated machine, and one card of it: what all streams share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from .arena import Arena
from .codes import INVALID_HANDLE, Refusal, SimulatedCrashError, SimulatedDeadlockError

if TYPE_CHECKING:
    from .stream import Stream


_FIRST_HANDLE, _HANDLE_STEP = 0x5000_0000_1000, 16


class Machine:
    """The cards of a machine, its page-locked memory, and the handles of everything.

    Attributes:
        lock: guards all state; held for moments only.
        violations: what no driver may do, in words, in the order it was done.
        limit: how many seconds a call may block its caller before it is called a deadlock.
        shake: how often, of 1, a stream hesitates before it goes on.

    """

    def __init__(self, seed: int, devices: int, memory: int, limit: float, shake: float) -> None:
        self.lock = threading.Lock()
        self.sequence = count(1)
        self.violations: list[str] = []
        self.seed = seed
        self.limit = limit
        self.shake = shake
        self.host = Arena(memory)
        self.registered: dict[int, int] = {}
        self.sleepers: list[Any] = []
        self.process = os.getpid()
        self._handles: dict[int, Any] = {}
        self._numbers = count(_FIRST_HANDLE, _HANDLE_STEP)
        self._newest = 0
        self.cards = [Card(self, index, memory) for index in range(devices)]

    def violation(self, text: str) -> None:
        """Note something that a driver must never do."""
        self.violations.append(text)

    def poll(self, condition: Callable[[], bool], what: str) -> None:
        """Block a call until a condition holds; one that waits too long is a deadlock."""
        end = time.monotonic() + self.limit
        while not condition():
            if time.monotonic() > end:
                self.violation(f"deadlock: {what} never returned")
                raise SimulatedDeadlockError(f"{what} blocked for {self.limit:g} s")
            time.sleep(0.0005)

    def wake(self, sleepers: list[Any]) -> None:
        """Release the locks that threads sleep on, and forget them. Under the lock: each is released once."""
        for sleeper in sleepers:
            if sleeper.locked():
                sleeper.release()
        sleepers.clear()
        self.sleepers = [sleeper for sleeper in self.sleepers if sleeper.locked()]

    def add(self, thing: object) -> int:
        """Give a thing a handle."""
        handle = next(self._numbers)
        self._handles[handle] = thing
        self._newest = max(handle, self._newest)
        return handle

    def is_a(self, kind: type, handle: int) -> bool:
        """Whether a handle stands for something of a kind."""
        return isinstance(self._handles.get(handle), kind)

    def find(self, kind: type, handle: int, code: int = INVALID_HANDLE) -> Any:
        """Return what a handle stands for; a handle of nothing or of something else is refused.

        One of something that was destroyed is not: CUDA does not look, and the process would die. Handles are not used
        twice here, so that this is seen.
        """
        thing = self._handles.get(handle)
        if not isinstance(thing, kind):
            if thing is None and handle in range(_FIRST_HANDLE, self._newest + 1, _HANDLE_STEP):
                self.violation(f"crash: a call with the handle of a {kind.__name__} that was destroyed")
                raise SimulatedCrashError(f"a call with the handle {handle:#x} of a {kind.__name__} that was destroyed")
            raise Refusal(code)
        return thing

    def remove(self, kind: type, handle: int, code: int = INVALID_HANDLE) -> Any:
        """Take a handle back."""
        thing = self.find(kind, handle, code)
        self._handles.pop(handle, None)
        return thing


class Card:
    """One device with its primary context.

    Attributes:
        fault: CUDA's code for what killed the context, or 0.
        connections: how many streams can be held up before work given to others stalls.
        held: which streams are held up, and the number of the operation that each is held up at.
        stalling: which streams could go on if there were a connection for them.
        draining: marks of the calls that wait for all work at this moment.
        capturing: whether somebody captures a stream, which refuses some calls; set by tests.

    """

    def __init__(self, machine: Machine, index: int, memory: int) -> None:
        self.machine = machine
        self.index = index
        self.memory = memory
        self.arena = Arena(memory)
        self.reserved = 0
        self.blocks: dict[int, Any] = {}
        self.allocated: set[int] = set()
        self.pools: list[Any] = []
        self.fault = 0
        self.next_fault = 0
        self.retained = 0
        self.connections = 8
        self.held: dict[Stream, int] = {}
        self.stalling: set[Stream] = set()
        self.draining: set[object] = set()
        self.capturing = False
        self.moved = threading.Condition(machine.lock)
        self.streams: set[Stream] = set()
        self.default: Stream | None = None

    def connect(self) -> None:
        """Fix the number of hardware connections, as the start of CUDA does.

        Measured: 8, or what CUDA_DEVICE_MAX_CONNECTIONS says at that moment, up to 32.
        """
        asked = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
        self.connections = min(32, max(1, int(asked))) if asked.isdigit() else 8

    def shrink_pools(self) -> None:
        """Have every pool give back what it holds beyond its threshold; one that is destroyed and empty goes."""
        for pool in self.pools:
            pool.shrink(pool.threshold)
        self.pools = [pool for pool in self.pools if pool.footprint or not pool.destroyed]

    def stalled(self, stream: Stream, number: int) -> bool:
        """Whether an operation of a stream stalls because others, given before it, hold every connection.

        What was given before those goes on: else nothing that a stream waits for could ever end.
        """
        return sum(1 for other, earlier in self.held.items() if earlier < number and other is not stream) >= (
            self.connections
        )

    def check_room(self) -> None:
        """Block while a call on a full stream is blocked: it holds what calls that make things need (measured)."""
        if any(stream.callers for stream in list(self.streams)):
            self.machine.poll(lambda: not any(stream.callers for stream in list(self.streams)), "a call behind it")

    def die(self, code: int) -> None:
        """Let the context be dead: nothing runs any more, and everybody who sleeps wakes to hear of it."""
        with self.machine.lock:
            self.fault = self.fault or code
            self.machine.wake(self.machine.sleepers)
            self.moved.notify_all()

    def random(self, number: int) -> Random:
        """Return a source of chance for one stream."""
        return Random(f"{self.machine.seed}/{self.index}/{number}")
