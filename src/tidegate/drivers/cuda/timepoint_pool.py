"""Native timepoints: one submission's place on a stream, used again and again.

It is what a device wait, a sleeping thread and the accounts of a stream need to know of an issued submission: its
epoch, the event behind it, how many of the stream's places it takes, and what to keep until it is over.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from .event_pool import Event, EventPool

START = 32
"""So many are made at a time."""

NONE = Event(0, deque())


class NativeTimepoint:
    """The end of one submission on a stream."""

    __slots__ = ("epoch", "event", "keep", "places", "silent")

    def __init__(self) -> None:
        self.epoch = 0
        self.event: Event = NONE
        self.places = 0
        self.keep: Any = None
        self.silent = False
        """Whether only the event tells of its end."""


class TimepointPool:
    """The native timepoints of one device. Any thread may use it, with the device's context current."""

    def __init__(self, events: EventPool, lock: threading.RLock) -> None:
        self._events = events
        self._lock = lock
        self.free: list[NativeTimepoint] = []

    def take(self) -> NativeTimepoint:
        """Return one with an event of its own. The caller holds the lock."""
        if not self.free:
            self._grow()
        point = self.free.pop()
        if point.event is NONE:
            point.event = self._events.take()
        return point

    def _grow(self) -> None:
        for _ in range(START):
            point = NativeTimepoint()
            point.event = self._events.take()
            self.free.append(point)

    def give(self, point: NativeTimepoint) -> None:
        """Take one back. Its event stays with it, unless somebody still sleeps for that. The caller holds the lock."""
        event = point.event
        if event.uses > 1:
            self._events.give(event)
            point.event = NONE
        point.keep = None
        self.free.append(point)

    def trim(self) -> None:
        """Let go of what is free."""
        with self._lock:
            while self.free:
                event = self.free.pop().event
                if event is not NONE:
                    self._events.give(event)
