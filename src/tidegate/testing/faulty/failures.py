"""Faults of work that fails, is cancelled, or is interrupted while it is submitted."""

from __future__ import annotations

from typing import Any

from tidegate._core import issuing, retirement, scheduling, thread_state, timeline, unseen
from tidegate._core.submission import HELD, READY, Submission
from tidegate.errors import AbortedError, FailedPreconditionError, SemaphoreFailedError

from .fault import Patch, fault
from .submissions import held_on

# Failure ------------------------------------------------------------------------------------------------------------


@fault(
    "M17",
    killed_by="test_failure::test_a_failed_wait_fails_exactly_the_dependents_and_nothing_else_on_that_queue",
)
def runs_after_a_failed_wait(patch: Patch) -> None:
    """A wait that is over sets the work free, however it ended."""
    real = Submission.due
    patch.method(Submission, "due", lambda self, state, error, out: real(self, state, None, out))


@fault("M17", "M33", killed_by="test_host_calls::test_a_host_call_whose_wait_fails_is_never_made")
def runs_and_then_fails(patch: Patch) -> None:
    """After a failed wait the work is done all the same, and only its signals fail."""
    real = issuing.launch

    def launch(submission: Any) -> None:
        if submission._doom is not None and submission._stage in (HELD, READY):
            issuing.issue(submission, ())
        else:
            real(submission)

    patch.function(real, launch)


@fault("M17", "M21", killed_by="test_failure::test_a_failed_submission_in_wait_passes_its_own_error_on")
def replaces_the_first_cause(patch: Patch) -> None:
    """A submission whose wait failed fails with an error of its own, and the first cause is lost on the way."""
    real = issuing.launch

    def launch(submission: Any) -> None:
        if submission._doom is not None:
            submission._doom = FailedPreconditionError("a wait has failed")
        real(submission)

    patch.function(real, launch)


@fault(
    "M7",
    killed_by="test_failure::test_submitting_against_a_failed_wait_never_raises_and_fails_with_the_first_cause",
)
def refuses_to_wait_for_what_has_failed(patch: Patch) -> None:
    """Submitting against a semaphore that has failed raises, or not, depending on who was faster."""
    real = scheduling.waits_of

    def waits_of(wait: Any) -> Any:
        waits = real(wait)
        for state, value in waits:
            if state.failure is not None and state.payload < value:
                raise SemaphoreFailedError("a wait has failed already")
        return waits

    patch.function(real, waits_of)


@fault(
    "M17",
    killed_by="test_failure::test_a_failed_wait_fails_exactly_the_dependents_and_nothing_else_on_that_queue",
)
def takes_unrelated_work_along(patch: Patch) -> None:
    """A submission that fails takes what else is held on its queue with it."""
    real = issuing.launch

    def launch(submission: Any) -> None:
        failed = submission._doom is not None
        real(submission)
        for held in held_on(submission._queue) if failed else ():
            issuing.abort(held, AbortedError("something else failed"))

    patch.function(real, launch)


@fault(
    "M21",
    killed_by="test_failure::test_a_failure_that_nobody_looked_at_is_reported_once_when_it_is_collected",
)
def says_nothing_of_a_failure_nobody_saw(patch: Patch) -> None:
    """A failed submission that is dropped is dropped in silence."""
    patch.method(unseen.Unseen, "__del__", lambda self: None)


# Cancelling ---------------------------------------------------------------------------------------------------------


@fault("M21", killed_by="test_host_calls::test_a_cancelled_host_call_is_never_made")
def runs_what_was_cancelled(patch: Patch) -> None:
    """`cancel` fails the signals, and leaves the work in the line."""

    def abort(submission: Any, error: Any) -> bool:
        for point in submission._signals:
            timeline.fail(point._state, error)
        return True

    patch.function(issuing.abort, abort)


@fault("M21", killed_by="test_failure::test_what_runs_or_is_over_cannot_be_cancelled")
def says_it_cancelled_what_runs(patch: Patch) -> None:
    """`cancel` says True of work that it came too late for."""
    real = issuing.abort
    patch.function(real, lambda submission, error: real(submission, error) or True)


@fault("M21", killed_by="test_failure::test_cancelling_one_submission_leaves_the_semaphore_of_its_wait_alone")
def cancels_what_it_waits_for(patch: Patch) -> None:
    """`cancel` fails the semaphores that the submission was waiting for."""
    real = issuing.abort

    def abort(submission: Any, error: Any) -> bool:
        waits = tuple(submission._pending or ())
        done = real(submission, error)
        for state in waits if done else ():
            timeline.fail(state, error)
        return done

    patch.function(real, abort)


# Interrupts ---------------------------------------------------------------------------------------------------------


@fault("M19", killed_by="test_interrupts::test_a_submit_is_all_or_nothing[ready-fill]")
def loses_signals_by_an_interrupt(patch: Patch) -> None:
    """A submission that is interrupted while it is given to the device is dropped, and its signals never come."""
    real = issuing.give_up

    def give_up(submission: Any, error: BaseException) -> None:
        if isinstance(error, Exception):
            real(submission, error)

    patch.function(real, give_up)


@fault("M19", "M10", killed_by="test_interrupts::test_a_signal_takes_effect_for_every_waiter_or_not_at_all")
def loses_waiters_by_an_interrupt(patch: Patch) -> None:
    """What an interrupted signal had set free and not run yet is thrown away."""
    patch.function(thread_state.hand_over, lambda queue: queue.clear())


@fault(
    "M17",
    killed_by="test_lanes::test_a_failure_does_not_reach_what_was_submitted_to_the_lane_before_it",
)
def fails_a_lane_from_its_front(patch: Patch) -> None:
    """An operation of a lane that fails before its turn takes those in front of it along."""
    patch.function(retirement._is_ahead_of_its_lane, lambda submission, state, value: False)
