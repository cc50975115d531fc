"""Native events, used again and again.

An event is shared: the submission behind which it was recorded holds it, and so does each thread that sleeps for it.
It may be recorded anew when the last of them has let go. Streams that wait for it hold nothing, because a wait looks at
the event once, when it is given to the stream. One that is forgotten by all of them, because an interrupt came between
taking it and noting it, leaves its handle for whoever needs one next.

There are two kinds. Records of plain events are free, however many. A thread that shall *sleep* for an event needs one
made for that, and of those a stream takes 56 records behind running work before the next one blocks its caller: so they
are recorded only for somebody who sleeps.
"""

from __future__ import annotations

import threading
from collections import deque

from ._native import Native

START = 32
"""So many are made at a time."""


class Event:
    """A native event and how many use it; `left` takes the handle if nobody does."""

    __slots__ = ("handle", "left", "uses")

    def __init__(self, handle: int, left: deque[int]) -> None:
        self.handle = handle
        self.left = left
        self.uses = 0

    def __del__(self) -> None:
        try:
            handle, left = self.handle, self.left
        except AttributeError:
            return  # interrupted in the constructor
        if handle:
            left.append(handle)


class EventPool:
    """The events of one device. Any thread may use it, with the device's context current.

    Args:
        native: the way to CUDA.
        lock: the device's lock; re-entrant.
        blocking: whether threads shall sleep for its events.

    """

    def __init__(self, native: Native, lock: threading.RLock, blocking: bool = False) -> None:
        self._native = native
        self._blocking = blocking
        self._lock = lock
        self._free: list[Event] = []
        self._left: deque[int] = deque()

    def take(self) -> Event:
        """Return an event of one's own; there is no limit to how many."""
        with self._lock:
            if not self._free:
                self._grow()
            event = self._free.pop()
            event.uses = 1
            return event

    def _grow(self) -> None:
        left = self._left
        while left:
            self._free.append(Event(left.popleft(), left))
        for _ in range(0 if self._free else START):
            self._free.append(Event(self._native.create_event(self._blocking), left))

    def share(self, event: Event) -> Event:
        """Count one more use."""
        with self._lock:
            event.uses += 1
        return event

    def give(self, event: Event) -> None:
        """End one use."""
        with self._lock:
            event.uses -= 1
            if event.uses == 0:
                self._free.append(event)

    def trim(self) -> None:
        """Destroy what is free."""
        with self._lock:
            while self._free:
                event = self._free.pop()
                handle, event.handle = event.handle, 0  # before: it must not be left behind as one that is there
                self._native.destroy_event(handle)
            while self._left:
                self._native.destroy_event(self._left.popleft())
