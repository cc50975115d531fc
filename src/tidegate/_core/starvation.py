"""Allocations that found no memory (M22): tried again as memory comes back, failed when nothing in flight can help."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ..errors import ResourceExhaustedError
from .compiled import Free, Submission, ask_for_wake_up, retire_submission, try_again
from .following import dependents

if TYPE_CHECKING:
    from .workload import Workload


class Starvation:
    """The allocations of one device that wait for memory: `Workload._starving`."""

    def __init__(self, device: Workload) -> None:
        self._owner = weakref.ref(device)  # it holds this

    @property
    def _device(self) -> Workload:
        device = self._owner()
        assert device is not None, "only the device itself comes here"
        return device

    def listen(self) -> None:
        """Request a wake-up for each piece of work in flight whose end gives memory back."""
        for submission in self._device._owned_submissions():
            if _gives_back(submission):
                ask_for_wake_up(submission)

    def retry(self) -> None:
        """Memory may have come back: try all of them, and fail them when nothing can help. One thread at a time.

        Whether anything may still give memory back is asked *before* the try. If nothing can, and the try fails as
        well, then no memory will come. Asked after the try, memory that came back in between would be overlooked.
        """
        device = self._device
        while device._starving:
            hopeful = self._help_comes()
            waiting = device._starving.copy()
            if self._try(waiting):
                continue
            if hopeful:
                device._request_room()  # perhaps nobody else has requested that wake-up
            elif not device._asked:  # if work has ended meanwhile, this is called once more
                self._give_up(waiting)
            return

    def _try(self, waiting: dict[Submission, ResourceExhaustedError]) -> bool:
        """Try each once. Returns whether any starves no longer."""
        starving = self._device._starving
        served = False
        for submission in waiting:
            taken = try_again(submission)
            if taken is None:
                continue  # there was no memory again
            if not taken:
                self._device._backlog.append(submission)
            starving.pop(submission, None)
            served = True
        return served

    def _give_up(self, hopeless: dict[Submission, ResourceExhaustedError]) -> None:
        for submission, error in hopeless.items():
            if self._device._starving.pop(submission, None) is not None:
                retire_submission(submission, error)

    def _help_comes(self) -> bool:
        """Whether anything in flight may give memory back.

        Any work that the device owns may: it may hold buffers that were closed or dropped, or others may wait for it. A
        held submission may if it is a free, or if it uses a buffer that was given up, unless it waits, however
        indirectly, for an allocation that starves.
        """
        device = self._device
        owned, held = device._unfinished()  # at once: what is held by now may be owned the next moment
        if any(submission not in device._starving for submission in owned):
            return True
        helpers = {one for one in held if _gives_back(one)}
        return bool(helpers and helpers - dependents(device._starving))


def _gives_back(submission: Submission) -> bool:
    return isinstance(submission._work, Free) or any(memory.given_up for memory in submission._touches)
