"""Allocations that found no memory (M22): tried again as memory comes back, failed when nothing in flight can help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..driver import Free
from ..errors import ResourceExhaustedError
from .lock import core_lock
from .retirement import retire
from .submission import RETIRED, Submission

if TYPE_CHECKING:
    from .device import Device


class Starvation:
    """The allocations of one device that wait for memory, oldest first."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._waiting: dict[Submission, ResourceExhaustedError] = {}
        self._retrying = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def submissions(self) -> tuple[Submission, ...]:
        """Return what starves."""
        return tuple(self._waiting)

    def add(self, submission: Submission, error: ResourceExhaustedError) -> None:
        """Take in an allocation that failed for want of memory."""
        with core_lock:
            self._waiting[submission] = error
            self._device._attention = True
            judge = not self._retrying
        if judge:
            self._judge()

    def retry(self) -> None:
        """Memory may have come back: try all of them once, then give up those that nothing can help."""
        from .scheduling import _issue

        with core_lock:
            if self._retrying or not self._waiting:
                return
            self._retrying = True
            waiting, self._waiting = self._waiting, {}
        try:
            for submission in waiting:
                if submission._stage != RETIRED:
                    _issue(submission, ())
        finally:
            with core_lock:
                self._retrying = False
                for submission, error in waiting.items():
                    # Only after an interrupt: those that were not tried are still there.
                    if submission._stage not in (RETIRED,) and not submission.taken:
                        self._waiting.setdefault(submission, error)
        self._judge()

    def _judge(self) -> None:
        """Fail what nothing can help."""
        with core_lock:
            if not self._waiting or self._help_comes_locked():
                return
            hopeless, self._waiting = self._waiting, {}
        for submission, error in hopeless.items():
            retire(submission, error)

    def _help_comes_locked(self) -> bool:
        """Whether anything in flight may give memory back.

        Issued work may hold closed buffers, and others wait for it. Of the held, a free helps, or the end of work on a
        closed buffer; but not if it waits, however indirectly, for an allocation that itself starves.
        """
        device = self._device
        if any(submission not in self._waiting for submission in device._issued) or device._backlog:
            return True
        return any(_gives_back(held) and not self._depends_locked(held) for held in device._held)

    def _depends_locked(self, submission: Submission) -> bool:
        seen: set[int] = set()
        stack = [submission]
        while stack:
            current = stack.pop()
            if current in self._waiting:
                return True
            if id(current) in seen:
                continue
            seen.add(id(current))
            for state, value in (current._pending or {}).items():
                stack += [producer for claim, producer in state.claims.items() if claim >= value]
        return False


def _gives_back(submission: Submission) -> bool:
    return isinstance(submission._work, Free) or any(memory.closed for memory in submission._touches)
