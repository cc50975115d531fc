"""Operations on streams, and events, which are names for them.

An operation is also the mark that events and waits refer to: it is `over` or not. An event is only a name for the
operation that recorded it last, or for the last ones of all streams if it was recorded behind a whole context, which
gives all the rules at once: a wait holds the operations it found at its call, so recording the event again or
destroying it does not disturb it; an event never recorded is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .machine import Card

if TYPE_CHECKING:
    from .stream import Stream


class Op:
    """Something on a stream.

    Attributes:
        action: what it does there; None for a mark.
        entries: how many of the stream's places it takes: until it starts, or if it `waits` until it is over.
        records: how many of the stream's places for records of blocking events it takes until it starts.
        waits: whether it does nothing but wait.
        number: its place in the order in which the machine was given work.

    """

    __slots__ = ("action", "entries", "number", "over", "records", "sleepers", "stream", "waits")

    def __init__(
        self, stream: Stream, action: Callable[[], None] | None, entries: int, records: int, waits: bool
    ) -> None:
        self.stream = stream
        self.action = action
        self.entries = entries
        self.records = records
        self.waits = waits
        self.number = 0
        self.over = False
        self.sleepers: list[Any] = []

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
    """A name for the operations that were recorded last; `blocking`: who synchronises with it sleeps."""

    __slots__ = ("blocking", "card", "ops")

    def __init__(self, card: Card, blocking: bool) -> None:
        self.card = card
        self.blocking = blocking
        self.ops: tuple[Op, ...] = ()
