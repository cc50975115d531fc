"""The standard library's twins: what somebody would write who has neither Tidegate nor IREE."""

from __future__ import annotations

import threading


class ConditionTimeline:
    """A semaphore with a rising payload, from a condition variable."""

    def __init__(self) -> None:
        self._value = 0
        self._changed = threading.Condition(threading.Lock())

    def query(self) -> int:
        """Return the payload."""
        with self._changed:
            return self._value

    def signal(self, value: int) -> None:
        """Raise the payload and wake everybody."""
        with self._changed:
            if value <= self._value:
                raise ValueError(value)
            self._value = value
            self._changed.notify_all()

    def wait(self, value: int) -> None:
        """Block until the payload is there."""
        with self._changed:
            while self._value < value:
                self._changed.wait()


class LockPair:
    """One direction of a hand-over between two threads: a lock that the other side opens. The cheapest there is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._open, self._pass = self._lock.release, self._lock.acquire

    def signal(self, _value: int) -> None:
        """Let the other side go on."""
        self._open()

    def wait(self, _value: int) -> None:
        """Block until the other side let us."""
        self._pass()
