"""Faults of the staging buffer."""

from __future__ import annotations

import weakref
from typing import Any

from tidegate._core.compiled import when_over
from tidegate._core.staging import StagingBuffer, StagingRange
from tidegate.errors import ResourceExhaustedError

from .fault import Patch, fault


@fault("M28", killed_by="test_staging::test_ranges_of_every_size_fit_together_without_overlap")
def overlaps_staging_ranges(patch: Patch) -> None:
    """A reserved range ends one byte into the next one."""
    real = StagingBuffer._take
    patch.method(StagingBuffer, "_take", lambda self, size, step: real(self, max(0, size - 1), step))


@fault("M28", killed_by="test_staging::test_reservations_are_aligned")
def ignores_the_alignment(patch: Patch) -> None:
    """A reserved range begins where the last one ended."""
    real = StagingBuffer._take
    patch.method(StagingBuffer, "_take", lambda self, size, step: real(self, size, 1))


@fault("M28", killed_by="test_staging::test_space_comes_back_while_others_are_still_in_flight")
def gives_space_back_only_when_idle(patch: Patch) -> None:
    """Ranges that are released are kept until the last one in flight is."""
    real = StagingBuffer._give_back
    released: weakref.WeakKeyDictionary[StagingBuffer, list[tuple[int, int]]] = weakref.WeakKeyDictionary()

    def give_back(self: Any, offset: int, nbytes: int) -> None:
        ranges = released.setdefault(self, [])
        ranges.append((offset, nbytes))
        if self.free_bytes + sum(size for _, size in ranges) == self.capacity:
            while ranges:
                real(self, *ranges.pop())

    patch.method(StagingBuffer, "_give_back", give_back)


@fault("M28", killed_by="test_staging::test_releasing_twice_gives_the_space_back_once")
def gives_space_back_twice(patch: Patch) -> None:
    """A range that is released a second time gives away what belongs to somebody else by now."""

    def release(self: Any) -> None:
        self._staging._give_back(self.offset, self.nbytes)

    patch.method(StagingRange, "release", release)


@fault("M28", killed_by="test_staging::test_a_failed_submission_gives_the_space_back_too")
def keeps_the_space_of_failed_work(patch: Patch) -> None:
    """Space comes back when its work ends well, and never if it fails."""

    def release_after(self: Any, point: Any) -> None:
        when_over(point, lambda: None if point.error else self.release())

    patch.method(StagingRange, "release_after", release_after)


@fault("M28", killed_by="test_staging::test_space_released_after_its_copy_is_not_reused_before_the_copy_has_run")
def gives_space_back_before_the_copy(patch: Patch) -> None:
    """Space to be released after a copy is released when the copy is submitted."""
    patch.method(StagingRange, "release_after", lambda self, point: self.release())


@fault("M28", killed_by="test_staging::test_more_than_the_capacity_is_out_of_range")
def has_no_room_for_what_can_never_fit(patch: Patch) -> None:
    """What is larger than the capacity is told to come again later."""
    real = StagingBuffer.reserve

    def reserve(self: Any, nbytes: int, alignment: int = 16) -> Any:
        if nbytes > self.capacity:
            raise ResourceExhaustedError("no room")
        return real(self, nbytes, alignment)

    patch.method(StagingBuffer, "reserve", reserve)
