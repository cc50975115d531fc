"""Streams and events: in-order queues, each run by a thread, and places in them.

An operation on a stream is also the mark that events and waits refer to: it is `over` or not. An event is only a name
for the operation that recorded it last, which gives all the rules at once: a wait holds the operation it found at its
call, so recording the event again or destroying it does not disturb it; an event never recorded is over.
"""

from __future__ import annotations

import _thread
import ctypes
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from .codes import Fault, SimulatedDeadlockError
from .machine import STREAM_CAPACITY, Card

_IDLE_S = 1.0
"""A stream's thread ends when it had nothing to do for that long; the next operation starts another."""

_POLL_S = 0.0005


class Op:
    """Something on a stream.

    Attributes:
        action: what it does there; None for a mark.
        entries: how many of the stream's places it takes until it starts.
        number: its place in the order in which the machine was given work.

    """

    __slots__ = ("action", "entries", "number", "over", "sleepers", "stream")

    def __init__(self, stream: Stream, action: Callable[[], None] | None = None, entries: int = 0) -> None:
        self.stream = stream
        self.action = action
        self.entries = entries
        self.number = 0
        self.over = False
        self.sleepers: list[Any] = []

    def finish(self) -> None:
        """Be over, and wake who sleeps for it."""
        machine = self.stream.machine
        with machine.lock:
            self.over = True
            machine.wake(self.sleepers)

    def sleep(self) -> None:
        """Block until it is over or can never be. Ctrl-C is answered afterwards, as by any foreign call."""
        machine = self.stream.machine
        sleeper = threading.Lock()
        sleeper.acquire()
        with machine.lock:
            if self.over or self.stream.card.fault:
                return
            self.sleepers.append(sleeper)
            machine.sleepers.append(sleeper)
        _sleep(sleeper)


def _sleep(sleeper: Any) -> None:
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            sleeper.acquire()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class Event:
    """A name for the operation that was recorded last."""

    __slots__ = ("card", "op")

    def __init__(self, card: Card) -> None:
        self.card = card
        self.op: Op | None = None


class Stream:
    """An in-order queue.

    Attributes:
        last: the newest operation.
        behind: for each other stream, the newest of its operations that this one waits for.

    """

    def __init__(self, card: Card, number: int) -> None:
        self.card = card
        self.machine = card.machine
        self.last: Op | None = None
        self.behind: dict[Stream, int] = {}
        self._queue: SimpleQueue[Op | None] = SimpleQueue()
        self._queued = 0
        self._running = False
        self._place = 0
        self._chance = card.random(number)
        card.streams.add(self)

    @property
    def idle(self) -> bool:
        """Whether everything on it is over."""
        last = self.last
        return last is None or last.over

    def put(self, action: Callable[[], None] | None = None, entries: int = 0, parks: bool = False) -> Op:
        """Add an operation, blocking while the stream is full; one that `parks` does so at once on an idle stream."""
        op = Op(self, action, entries)
        if entries and self._queued >= STREAM_CAPACITY:
            self._block()
        with self.machine.lock:
            self._start()
            number = next(self.machine.sequence)
            parks = parks and self.idle
            # From here on no interrupt can come before the operation is there: to its caller a call is one step.
            op.number = number
            self._queued += entries
            if parks:
                self.card.parked[self] = number
            self.last = op
            self._queue.put(op)
        return op

    def wait(self, op: Op) -> None:
        """Add a wait for an operation of any stream."""
        if op.over or op.stream is self:
            return
        self.behind[op.stream] = max(op.number, self.behind.get(op.stream, 0))

        def sleep() -> None:
            while not met() and not self.card.fault:
                op.sleep()

        def met() -> bool:
            return op.over or bool(op.stream.card.fault)

        self.put(lambda: self._park(met, sleep), parks=not met())

    def wait_value(self, address: int, value: int) -> None:
        """Add a wait for a 64-bit word, compared cyclically."""
        word = ctypes.c_int64.from_address(address)

        def met() -> bool:
            return ((word.value - value) & (2**64 - 1)) < 2**63

        def sleep() -> None:
            while not met() and not self.card.fault:
                time.sleep(_POLL_S)

        self.put(lambda: self._park(met, sleep), parks=not met())

    def synchronize(self) -> None:
        """Block until everything on it is over."""
        if self.last is not None:
            self.last.sleep()

    def destroy(self) -> None:
        """Let its thread end when everything on it is over."""
        with self.machine.lock:
            if self._running:
                self._queue.put(None)
            else:
                self.card.streams.discard(self)

    def _block(self) -> None:
        """Block the caller of a call on a full stream, until one of its operations is done."""
        self.machine.violation(f"a stream was filled: a call on one that holds {STREAM_CAPACITY} entries blocks")
        end = time.monotonic() + self.machine.limit
        while self._queued >= STREAM_CAPACITY and not self.card.fault:
            if time.monotonic() > end:
                self.machine.violation("deadlock: a call on a full stream never returned")
                raise SimulatedDeadlockError(f"a call on a full stream blocked for {self.machine.limit:g} s")
            time.sleep(_POLL_S)

    def _start(self) -> None:
        if not self._running:
            self._running = True  # and no interrupt can come between this and the start
            _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while (op := self._next()) is not None:
            if not self.card.fault:
                self._hesitate()
                self._perform(op)

    def _next(self) -> Op | None:
        while True:
            try:
                op = self._queue.get(timeout=_IDLE_S)
            except Empty:
                with self.machine.lock:
                    if not self._queue.empty():
                        continue
                    self._running = False
                    return None
            if op is None:  # destroyed, and everything on it is over
                self.card.streams.discard(self)
            return op

    def _hesitate(self) -> None:
        """Let others go first, by chance: what is ordered only by luck shows."""
        chance = self._chance.random()
        if chance < self.machine.shake:
            time.sleep(0 if chance < self.machine.shake * 0.8 else chance * 0.002)

    def _perform(self, op: Op) -> None:
        self._place = op.number
        if len(self.card.parked) >= self.card.connections:
            self._stall()
        if op.entries:
            with self.machine.lock:
                self._queued -= op.entries
        try:
            if op.action is not None and not self.card.fault:
                op.action()
        except Fault as fault:
            self.card.die(fault.code)
        except Exception as error:  # the simulation's own mistake must not look like a device that hangs
            self.machine.violation(f"the simulation failed: {error!r}")
            self.card.die(999)
        if not self.card.fault:
            op.finish()

    def _stall(self) -> None:
        """Wait while parked streams hold all connections."""
        with self.machine.lock:
            while self.card.stalled(self._place) and not self.card.fault:
                self.card.moved.wait()

    def _park(self, met: Callable[[], bool], sleep: Callable[[], None]) -> None:
        """Hold a connection until a condition is met."""
        with self.machine.lock:
            self.card.parked[self] = self._place
        try:
            if not met():
                sleep()
        finally:
            with self.machine.lock:
                del self.card.parked[self]
                self.card.moved.notify_all()
