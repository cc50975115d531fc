"""Faults of joins and of allocations that starve: what is over, or comes back, before anybody looks."""

from __future__ import annotations

from typing import Any

from tidegate._core import following, starvation
from tidegate._core.starvation import Starvation
from tidegate.driver import Free
from tidegate.drivers.cuda.queue import CudaQueue
from tidegate.drivers.metal.queue import MetalQueue

from .fault import Patch, fault, planted
from .native_streams import in_python

# A device knows of the end of one queue, and not yet of another that it was behind -----------------------------------


@fault(
    "M3",
    "M17",
    killed_by="test_joins::test_an_array_is_filled_before_a_join_behind_the_download_is_over[kernel-small]",
    base="metal-simulated",
)
def lands_before_what_it_was_behind(patch: Patch) -> None:
    """A command buffer that waited for others on the GPU is over although the host's part of theirs is not."""
    real = MetalQueue._encode

    def encode(self: Any, timeline: Any, flight: Any, work: Any, native_waits: Any) -> None:
        real(self, timeline, flight, work, native_waits)
        flight.behind.clear()

    patch.method(MetalQueue, "_encode", encode)


planted(
    "leaves-what-it-was-promised-open",
    "Work whose epoch is over is retired at once, and what it was issued behind some time later.",
    "M3",
    "M17",
    killed_by="test_joins_that_fail::test_a_join_that_nobody_looked_at_fails_with_the_kernel_that_failed_before"
    "[fill-large]",
    base="streams",
    room="work/native.pxi",
    before="wait.producer is not None and wait.producer.stage != RETIRED",
    after="False",
)


# Work is done in place behind what is over and not retired ----------------------------------------------------------


def _drops_reached_waits(patch: Patch, queue: Any) -> None:
    real = queue.issue

    def issue(self: Any, ticket: Any, work: Any, waits: Any) -> bool:
        taken: bool = real(self, ticket, work, [(other, epoch) for other, epoch in waits if other.reached < epoch])
        return taken

    patch.method(queue, "issue", issue)


@fault(
    "M3",
    "M6",
    killed_by="test_joins::test_work_that_follows_from_what_is_over_and_was_not_looked_at_signals_after_it",
    base="metal-simulated",
)
def overtakes_a_command_buffer_in_place(patch: Patch) -> None:
    """Small work behind a command buffer that is over is done in place, before the host has signalled for that one."""
    _drops_reached_waits(patch, MetalQueue)


@fault(
    "M3",
    "M27",
    killed_by="test_joins::test_an_upload_takes_what_a_download_some_steps_before_it_wrote_into_the_array",
    base="cuda-simulated",
)
def reads_what_is_still_to_arrive(patch: Patch) -> None:
    """An upload behind work that is over reads its array at once, though a download is still to be copied there."""
    _drops_reached_waits(patch, CudaQueue)
    in_python(patch)


# Allocations that starve ---------------------------------------------------------------------------------------------


planted(
    "does-not-listen-for-help-that-goes-down-later",
    "While allocations starve, the device is not asked to tell of work that is issued from then on.",
    "M22",
    "M40",
    killed_by="test_starving::test_whoever_waits_for_what_starves_learns_of_help_that_comes_later"
    "[close_under_a_held_kernel-by_a_callback]",
    base="streams",
    room="work/issue.pxi",
    before="listened_to or one.epoch_ % HOUSEKEEPING == 0 or one.workload._starving",
    after="listened_to or one.epoch_ % HOUSEKEEPING == 0",
)


@fault(
    "M22",
    "M40",
    killed_by="test_starving::test_help_is_noticed_though_work_behind_it_runs_on",
    base="metal-simulated",
)
def listens_for_the_last_work_only(patch: Patch) -> None:
    """When an allocation begins to starve, the device is asked to tell of its last work, not of what will help."""
    patch.method(Starvation, "listen", lambda self: None)


@fault(
    "M22",
    killed_by="test_starving::test_whoever_waits_for_what_starves_learns_of_help_that_comes_later"
    "[close_under_a_held_kernel-by_a_callback]",
)
def takes_a_free_for_the_only_help(patch: Patch) -> None:
    """An allocation fails at once although held work is the last use of a buffer that was closed."""
    patch.function(starvation._gives_back, lambda submission: isinstance(submission._work, Free))


@fault(
    "M22",
    "M40",
    killed_by="test_starving_in_vain::test_whoever_waits_for_what_starves_learns_that_no_help_is_left"
    "[what_ends_the_use_waits_for_it-by_a_callback]",
)
def hopes_for_help_that_waits_for_it(patch: Patch) -> None:
    """An allocation starves for ever, because held work that would give memory back waits for that allocation."""
    patch.function(following.dependents, lambda producers: set())
