"""Faults of those who wait: blocked threads, tasks, and what their errors explain."""

from __future__ import annotations

from typing import Any

from tidegate._core import awaiting, explain

from .fault import Patch, fault, planted

# Blocked threads ----------------------------------------------------------------------------------------------------

planted(
    "forgets-the-past",
    "A failed semaphore fails also those who wait for what it had reached before.",
    "M7",
    killed_by="test_semaphores::test_after_a_failure_the_past_stands",
    room="timelines/waiting.pxi",
    before="target.timeline.payload >= target.value",
    after="target.timeline.payload >= target.value and target.timeline.failure is None",
)

planted(
    "returns-when-it-should-raise",
    "A blocked wait that is woken by a failure returns as if the value were there.",
    "M7",
    killed_by="test_threads::test_a_blocked_waiter_is_woken_by_failure_with_its_cause",
    room="timelines/waiting.pxi",
    before="raise failed_error(failed.timeline, failed.value)",
    after="return 0",
)

planted(
    "fails-the-semaphore-after-a-timeout",
    "A wait that runs over its time fails what it waited for.",
    "M8",
    killed_by="test_host_waits::test_a_wait_that_runs_over_its_time_leaves_the_value_alone_and_succeeds_later",
    room="timelines/waiting.pxi",
    before="raise over_time(targets, timeout)",
    after="""
        semaphore_over((<Target>targets[0]).timeline).fail(AbortedError("a wait ran over its time"))
        raise over_time(targets, timeout)
    """,
)

planted(
    "waits-for-one-of-all",
    "`wait_all` is content with the first point that is reached.",
    "M9",
    killed_by="test_host_waits::test_wait_all_needs_every_point",
    room="timelines/waiting.pxi",
    before="""
        checked_timeout(timeout)
        if targets:
            wait_for(targets, False, timeout)
    """,
    after="if targets: wait_for(targets, True, timeout)",
)

planted(
    "returns-an-equal-copy",
    "`wait_any` makes the timepoint it returns, instead of returning the one it was given.",
    "M9",
    killed_by="test_host_waits::test_wait_any_returns_the_very_object_that_is_reached",
    room="timelines/waiting.pxi",
    before="return listed[wait_for(targets, True, timeout)] if targets else None",
    after="""
        found = listed[wait_for(targets, True, timeout)] if targets else None
        return Timepoint(found.semaphore, found.value) if isinstance(found, Timepoint) else found
    """,
)

planted(
    "lets-failure-win-over-what-is-reached",
    "`wait_any` raises for a failed point although another one is reached.",
    "M9",
    killed_by="test_host_waits::test_in_wait_any_what_is_reached_wins_over_what_has_failed",
    room="timelines/waiting.pxi",
    before="""
        if any_of_them:
            return index
        reached += 1
    """,
    after="""
        if any_of_them:
            for other in targets:
                decided_index([other], False)
            return index
        reached += 1
    """,
)

planted(
    "leaves-losers-in-the-line",
    "A wait that is over stays among the waiters of the points that did not decide it.",
    "M9",
    killed_by="test_host_waits::test_losers_of_a_wait_keep_no_residue",
    room="timelines/waiting.pxi",
    before="wait.timeline.leave(wait)",
    after="pass",
)

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


planted(
    "explains-without-the-line",
    "An explanation does not say where the work was submitted.",
    "M13",
    killed_by="test_explain::test_explain_names_the_missing_signal_and_the_line_of_each_link",
    room="work/submission.pxi",
    before='return f"{code.co_filename}:{line}"',
    after='return "unknown line"',
)


@fault("M13", killed_by="test_explain::test_a_wait_over_its_time_explains_itself")
def explains_the_first_link_only(patch: Patch) -> None:
    """An explanation names who is to signal, and not what that waits for."""
    real = explain._Walk.down_from
    patch.method(explain._Walk, "down_from", lambda self, target: real(self, target)[:1])


@fault("M13", killed_by="test_explain::test_explain_tells_a_cycle_that_can_never_resolve")
def takes_a_cycle_for_a_chain(patch: Patch) -> None:
    """An explanation of work that waits for itself does not say so."""
    patch.function(explain._circle, lambda link: "something")
