"""Streams: in-order queues, each run by a thread, and the places where they hold somebody up.

Three things hold up more than their own stream, all measured. A stream takes so many entries and no more, and calls
behind the one that blocks block too. A stream that cannot go on, because it waits or because something is queued behind
what it is running, holds one of the card's connections to the host; with all of them held, work given to any other
stream does not start. Only work that was given before what holds them does: it is ahead of that in the connections.
"""

from __future__ import annotations

import _thread
import ctypes
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from .codes import ASSERT, Fault
from .machine import Card
from .op import Op

CAPACITY = 1021
"""Launches, copies, fills, graph launches, value writes and waits that a stream holds behind what it is running."""

RECORDS = 56
"""Records of events made for blocking that it holds. Of others it holds any number."""

_IDLE_S = 1.0
"""A stream's thread ends when it had nothing to do for that long; the next operation starts another."""

_POLL_S = 0.0005


class Stream:
    """An in-order queue.

    Attributes:
        last: the newest operation.
        behind: for each other stream, the newest of its operations that this one waits for.
        synchronised: the newest of its operations of which the host knows that it is over.
        callers: how many calls it blocks because it is full.
        running: whether it does something at the moment that is no wait.

    """

    def __init__(self, card: Card, number: int) -> None:
        self.card = card
        self.machine = card.machine
        self.last: Op | None = None
        self.behind: dict[Stream, int] = {}
        self.synchronised = 0
        self.callers = 0
        self.running = False
        self._queue: SimpleQueue[Op | None] = SimpleQueue()
        self._numbers: deque[int] = deque()
        self._entries = 0
        self._records = 0
        self._running = False
        self._busy = False
        self._chance = card.random(number)
        card.streams.add(self)

    @property
    def idle(self) -> bool:
        """Whether everything on it is over."""
        last = self.last
        return last is None or last.over

    def put(
        self,
        action: Callable[[], None] | None = None,
        entries: int = 0,
        records: int = 0,
        waits: bool = False,
    ) -> Op:
        """Add an operation, blocking while the stream is full."""
        op = Op(self, action, entries, records, waits)
        if self._is_full_for(op):
            self._block(op)
        with self.machine.lock:
            self._start()
            number = next(self.machine.sequence)
            holds = self._busy or (waits and self.idle)
            # From here on no interrupt can come before the operation is there: to its caller a call is one step.
            op.number = number
            self._entries += entries
            self._records += records
            if holds and self not in self.card.held:
                self.card.held[self] = number
            self._numbers += (number,)
            self.last = op
            self._queue.put(op)
        return op

    def wait(self, op: Op) -> None:
        """Add a wait for an operation of any stream. It takes no entry (measured)."""
        if op.over or op.stream is self:
            return
        self.behind[op.stream] = max(op.number, self.behind.get(op.stream, 0))

        def sleep() -> None:
            while not op.over and not op.stream.card.fault and not self.card.fault:
                op.sleep()

        self.put(sleep, waits=True)

    def wait_value(self, address: int, value: int) -> None:
        """Add a wait for a 64-bit word, compared cyclically. It takes an entry (measured)."""
        word = ctypes.c_int64.from_address(address)

        def sleep() -> None:
            while ((word.value - value) & (2**64 - 1)) >= 2**63 and not self.card.fault:
                time.sleep(_POLL_S)

        self.put(sleep, 1, waits=True)

    def destroy(self) -> None:
        """Let its thread end when everything on it is over."""
        with self.machine.lock:
            if self._running:
                self._queue.put(None)
            else:
                self.card.streams.discard(self)

    def _is_full_for(self, op: Op) -> bool:
        if self.card.fault:
            return False
        return bool((op.entries and self._entries >= CAPACITY) or (op.records and self._records >= RECORDS))

    def _block(self, op: Op) -> None:
        """Block the caller until the stream has room."""
        held = f"{RECORDS} records of blocking events" if op.records else f"{CAPACITY} entries"
        self.machine.violation(f"a stream was filled: a call on one that holds {held} blocks")
        self.callers += 1
        try:
            self.machine.poll(lambda: not self._is_full_for(op), "a call on a full stream")
        finally:
            self.callers -= 1

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
        self._begin(op)
        action, op.action = op.action, None  # an event may keep the operation; nobody needs what it did
        try:
            if action is not None and not self.card.fault:
                action()
        except Fault as fault:
            if fault.code == ASSERT:
                self._wait_for_others()
            self.card.die(fault.code)
        except Exception as error:  # the simulation's own mistake must not look like a device that hangs
            self.machine.violation(f"the simulation failed: {error!r}")
            self.card.die(999)
        self._end(op)

    def _wait_for_others(self) -> None:
        """Let nobody know of a failed assertion before no other stream runs anything (measured)."""
        self.running = False
        while not self.card.fault and any(stream.running for stream in list(self.card.streams)):
            time.sleep(_POLL_S)

    def _begin(self, op: Op) -> None:
        card = self.card
        with self.machine.lock:
            while len(card.held) >= card.connections and card.stalled(self, op.number) and not card.fault:
                card.stalling.add(self)
                card.moved.wait()
            card.stalling.discard(self)
            self._numbers.popleft()
            self._records -= op.records
            self._busy = op.action is not None
            self.running = self._busy and not op.waits
            if op.waits:
                card.held[self] = op.number
            else:
                self._entries -= op.entries
                if self._busy and self._numbers:
                    card.held[self] = self._numbers[0]

    def _end(self, op: Op) -> None:
        card = self.card
        with self.machine.lock:
            self._busy = self.running = False
            if op.waits:
                self._entries -= op.entries
            if self in card.held:
                del card.held[self]
                card.moved.notify_all()
            if not card.fault:
                op.over = True
                self.machine.wake(op.sleepers)
