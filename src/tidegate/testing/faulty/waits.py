"""Faults of those who wait: blocked threads, tasks, and what their errors explain."""

from __future__ import annotations

from typing import Any

from tidegate._core import awaiting, explain, host_wait, submission, timeline
from tidegate._core.host_wait import GroupWaiter
from tidegate._core.timepoint import Timepoint
from tidegate.errors import AbortedError, SemaphoreFailedError

from .fault import Patch, fault

# Blocked threads ----------------------------------------------------------------------------------------------------


@fault("M7", killed_by="test_semaphores::test_after_a_failure_the_past_stands")
def forgets_the_past(patch: Patch) -> None:
    """A failed semaphore fails also those who wait for what it had reached before."""
    real = host_wait.decided

    def decided(targets: Any, any_of_them: bool) -> int | None:
        for state, value in targets:
            if state.failure is not None:
                raise timeline.failed_error(state, value)
        return real(targets, any_of_them)

    patch.function(real, decided)


@fault("M7", killed_by="test_threads::test_a_blocked_waiter_is_woken_by_failure_with_its_cause")
def returns_when_it_should_raise(patch: Patch) -> None:
    """A blocked wait that is woken by a failure returns as if the value were there."""
    real = host_wait.decided

    def decided(targets: Any, any_of_them: bool) -> int | None:
        try:
            return real(targets, any_of_them)
        except SemaphoreFailedError:
            return 0

    patch.function(real, decided)


@fault("M8", killed_by="test_host_waits::test_a_wait_that_runs_over_its_time_leaves_the_value_alone_and_succeeds_later")
def fails_the_semaphore_after_a_timeout(patch: Patch) -> None:
    """A wait that runs over its time fails what it waited for."""
    real = host_wait._deadline

    def deadline(targets: Any, timeout: float | None) -> Any:
        for state, _ in targets:
            timeline.fail(state, AbortedError("a wait ran over its time"))
        return real(targets, timeout)

    patch.function(real, deadline)


@fault("M9", killed_by="test_host_waits::test_wait_all_needs_every_point")
def waits_for_one_of_all(patch: Patch) -> None:
    """`wait_all` is content with the first point that is reached."""
    wait_any = host_wait.wait_any
    patch.function(host_wait.wait_all, lambda points, timeout=None: wait_any(points, timeout) and None)


@fault("M9", killed_by="test_host_waits::test_wait_any_returns_the_very_object_that_is_reached")
def returns_an_equal_copy(patch: Patch) -> None:
    """`wait_any` makes the timepoint it returns, instead of returning the one it was given."""
    real = host_wait.wait_any

    def wait_any(points: Any, timeout: float | None = None) -> Any:
        found = real(points, timeout)
        return Timepoint(found.semaphore, found.value) if isinstance(found, Timepoint) else found

    patch.function(real, wait_any)


@fault("M9", killed_by="test_host_waits::test_in_wait_any_what_is_reached_wins_over_what_has_failed")
def lets_failure_win_over_what_is_reached(patch: Patch) -> None:
    """`wait_any` raises for a failed point although another one is reached."""
    real = host_wait.decided

    def decided(targets: Any, any_of_them: bool) -> int | None:
        real([target for target in targets if target[0].payload < target[1]], any_of_them)
        return real(targets, any_of_them)

    patch.function(real, decided)


@fault("M9", killed_by="test_host_waits::test_losers_of_a_wait_keep_no_residue")
def leaves_losers_in_the_line(patch: Patch) -> None:
    """A wait that is over stays among the waiters of the points that did not decide it."""
    patch.method(GroupWaiter, "unregister", lambda self: None)


# Tasks --------------------------------------------------------------------------------------------------------------


@fault("M11", killed_by="test_awaits::test_a_thousand_awaits_are_woken_by_one_signal[asyncio-1000]")
def wakes_a_task_from_the_wrong_thread(patch: Patch) -> None:
    """Whoever signals resolves the future himself, on his own thread, instead of asking its loop to."""

    def fire(self: Any) -> None:
        if not self.future.done():
            self.future.set_result(None)

    patch.method(awaiting._AsyncioWaiter, "fire", fire)


@fault("M11", killed_by="test_awaits::test_an_await_may_be_cancelled_just_when_it_is_signalled[trio]")
def wakes_a_task_that_was_cancelled(patch: Patch) -> None:
    """A cancelled await does not take its wake-up back, and the task is resumed in the middle of something else."""
    patch.method(awaiting._TrioWaiter, "_abort", lambda self, _raise: self._trio.lowlevel.Abort.SUCCEEDED)


@fault("M11", "M9", killed_by="test_awaits::test_when_all_waits_for_the_last")
def resumes_a_task_too_early(patch: Patch) -> None:
    """`when_all` goes on with the first point that is reached."""
    real = awaiting.wait_async
    patch.function(real, lambda points, any_of_them: real(points, any_of_them=True))


# Explaining ---------------------------------------------------------------------------------------------------------


@fault("M13", killed_by="test_explain::test_explain_names_the_missing_signal_and_the_line_of_each_link")
def explains_without_the_line(patch: Patch) -> None:
    """An explanation does not say where the work was submitted."""
    patch.function(submission.site_text, lambda site: "unknown line")


@fault("M13", killed_by="test_explain::test_a_wait_over_its_time_explains_itself")
def explains_the_first_link_only(patch: Patch) -> None:
    """An explanation names who is to signal, and not what that waits for."""
    real = explain.explain_targets
    patch.function(real, lambda targets: real(targets).partition("\n")[0])


@fault("M13", killed_by="test_explain::test_explain_tells_a_cycle_that_can_never_resolve")
def takes_a_cycle_for_a_chain(patch: Patch) -> None:
    """An explanation of work that waits for itself does not say so."""
    real = explain.explain_targets
    patch.function(real, lambda targets: real(targets).replace("a cycle that can never resolve", "and so on"))
