"""Allocations that found no memory (M22): tried again as memory comes back, failed when nothing in flight can help."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ..errors import ResourceExhaustedError
from .background import deferred
from .compiled import Free, Submission, ask_for_wake_up, inside_driver, retire_submission, try_again
from .following import dependents

if TYPE_CHECKING:
    from .workload import Workload


class Starvation:
    """The allocations of one device that wait for memory, oldest first."""

    def __init__(self, device: Workload) -> None:
        self._owner = weakref.ref(device)  # it holds this
        self._waiting: dict[Submission, ResourceExhaustedError] = {}
        self._trying: dict[Submission, ResourceExhaustedError] = {}

    @property
    def _device(self) -> Workload:
        device = self._owner()
        assert device is not None, "only the device itself comes here"
        return device

    def __bool__(self) -> bool:
        # One that is being tried starves still: memory that comes back meanwhile must not go unnoticed.
        return bool(self._waiting or self._trying)

    def submissions(self) -> tuple[Submission, ...]:
        """Return what starves, and what is being tried again: it must be in sight of those who close the device."""
        return (*self._waiting, *self._trying)

    def add(self, submission: Submission, error: ResourceExhaustedError) -> None:
        """Take in an allocation that failed for want of memory."""
        self._waiting[submission] = error
        device = self._device
        device._attention = device._starves = True
        if submission not in self._trying:
            self.listen()
            device._after_retirement()

    def listen(self) -> None:
        """Have the devices tell when work in flight is over that will give memory back, whatever runs on behind it."""
        if inside_driver():
            deferred.leave(self.listen)
            return
        for submission in self._device._owned_submissions():
            if _gives_back(submission):
                ask_for_wake_up(submission)

    def retry(self) -> None:
        """Memory may have come back: try all of them, and fail them when nothing can help. One thread at a time.

        Whether help may come is asked *before* trying. If none could, and the try fails all the same, it is certain;
        asked afterwards, memory that came back in between would be overlooked.
        """
        while self._waiting:
            hopeful = self._help_comes()
            waiting = self._trying = dict(self._waiting)
            try:
                served = self._try(waiting)
            finally:
                self._trying = {}
            if served:
                continue
            if hopeful:
                self._device._arm_for_room()  # nobody else may be listening for the end of what shall help
            elif not self._device._asked:  # who came meanwhile, because something ended, has brought hope
                self._give_up(waiting)
            return

    def _try(self, waiting: dict[Submission, ResourceExhaustedError]) -> bool:
        """Try each once. Returns whether any was served."""
        served = False
        for submission, error in waiting.items():
            try:
                self._waiting.pop(submission, None)
                if not submission._is_over and not try_again(submission):
                    self._device._put_off(submission)
            except BaseException:
                if not submission._is_over and not submission.taken:
                    self._waiting[submission] = error
                raise
            served = served or submission not in self._waiting
        return served

    def _give_up(self, hopeless: dict[Submission, ResourceExhaustedError]) -> None:
        for submission, error in hopeless.items():
            if self._waiting.pop(submission, None) is not None:
                retire_submission(submission, error)

    def _help_comes(self) -> bool:
        """Whether anything in flight may give memory back.

        Issued work may hold buffers that were closed or dropped, and others wait for it; so may what is over and being
        released. Of the held, a free helps, or the end of work on a buffer that was given up; but not if it waits,
        however indirectly, for one that starves.
        """
        device = self._device
        if any(submission not in self._waiting for submission in device._owned_submissions()):
            return True
        helpers = {held for held in device._held_submissions() if _gives_back(held)}
        return bool(helpers and helpers - dependents(self._waiting))


def _gives_back(submission: Submission) -> bool:
    return isinstance(submission._work, Free) or any(memory.given_up for memory in submission._touches)
