"""The whole simulated machine, and one card of it: what all streams share."""

from __future__ import annotations

import os
import threading
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from .arena import Arena
from .codes import INVALID_HANDLE, Refusal

if TYPE_CHECKING:
    from .stream import Stream

STREAM_CAPACITY = 1021
"""Launches, copies, fills, value writes and graph launches that a stream holds behind what it is running."""


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
        self._numbers = count(0x5000_0000_1000, 16)
        self.cards = [Card(self, index, memory) for index in range(devices)]

    def violation(self, text: str) -> None:
        """Note something that a driver must never do."""
        self.violations.append(text)

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
        return handle

    def is_a(self, kind: type, handle: int) -> bool:
        """Whether a handle stands for something of a kind."""
        return isinstance(self._handles.get(handle), kind)

    def find(self, kind: type, handle: int, code: int = INVALID_HANDLE) -> Any:
        """Return what a handle stands for; a handle of nothing or of something else is refused."""
        thing = self._handles.get(handle)
        if not isinstance(thing, kind):
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
        connections: how many streams may be parked before work given to others stalls.
        parked: which streams are parked, and the number of the wait each is parked at.

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
        self.parked: dict[Stream, int] = {}
        self.moved = threading.Condition(machine.lock)
        self.streams: set[Stream] = set()
        self.default: Stream | None = None

    def connect(self) -> None:
        """Fix the number of hardware connections, as the start of CUDA does.

        Measured: 8, and with CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment at that moment 31.
        """
        asked = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
        wanted = min(32, max(1, int(asked))) if asked.isdigit() else 8
        self.connections = wanted if wanted < 32 else 31

    def shrink_pools(self) -> None:
        """Have every pool give back what it holds beyond its threshold; one that is destroyed and empty goes."""
        for pool in self.pools:
            pool.shrink(pool.threshold)
        self.pools = [pool for pool in self.pools if pool.footprint or not pool.destroyed]

    def stalled(self, number: int) -> bool:
        """Whether work stalls because waits that were given before it hold every connection.

        Work given before those waits is ahead of them in the connections and goes on: else nothing that a parked
        stream waits for could ever end.
        """
        return sum(1 for earlier in self.parked.values() if earlier < number) >= self.connections

    def die(self, code: int) -> None:
        """Let the context be dead: nothing runs any more, and everybody who sleeps wakes to hear of it."""
        with self.machine.lock:
            self.fault = self.fault or code
            self.machine.wake(self.machine.sleepers)
            self.moved.notify_all()

    def random(self, number: int) -> Random:
        """Return a source of chance for one stream."""
        return Random(f"{self.machine.seed}/{self.index}/{number}")
