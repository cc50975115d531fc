"""Faults of work that fails, is cancelled, or is interrupted while it is submitted."""

from __future__ import annotations

from tidegate._core import failures

from .fault import Patch, fault, planted

# Failure ------------------------------------------------------------------------------------------------------------

_LAUNCHED = """
    if not mine:
        return 0
    if one.pending_error is not None:
        return retire(one, None)
    return send(one)
"""

planted(
    "runs-after-a-failed-wait",
    "A wait that is over sets the work free, however it ended.",
    "M17",
    killed_by="test_failure::test_a_failed_wait_fails_exactly_the_dependents_and_nothing_else_on_that_queue",
    room="work/submission.pxi",
    before="self.pending_error is None and wait.timeline.payload < wait.node.value",
    after="False",
)

planted(
    "runs-and-then-fails",
    "After a failed wait the work is done all the same, and only its signals fail.",
    "M17",
    "M33",
    killed_by="test_host_calls::test_a_host_call_whose_wait_fails_is_never_made",
    room="work/issue.pxi",
    before=_LAUNCHED,
    after="return send(one) if mine else 0",
)

planted(
    "replaces-the-first-cause",
    "A submission whose wait failed fails with an error of its own, and the first cause is lost on the way.",
    "M17",
    "M21",
    killed_by="test_failure::test_a_failed_submission_in_wait_passes_its_own_error_on",
    room="work/issue.pxi",
    before=_LAUNCHED,
    after="""
        if not mine:
            return 0
        if one.pending_error is not None:
            one.pending_error = FailedPreconditionError("a wait has failed")
            return retire(one, None)
        return send(one)
    """,
)

planted(
    "refuses-to-wait-for-what-has-failed",
    "Submitting against a semaphore that has failed raises, or not, depending on who was faster.",
    "M7",
    killed_by="test_failure::test_submitting_against_a_failed_wait_never_raises_and_fails_with_the_first_cause",
    room="work/admission.pxi",
    before="wait.node.value = (<Timepoint>point).target",
    after="""
        wait.node.value = (<Timepoint>point).target
        if wait.timeline.failure is not None and wait.timeline.payload < wait.node.value:
            raise SemaphoreFailedError("a wait has failed already")
    """,
)

planted(
    "takes-unrelated-work-along",
    "A submission that fails takes what else is held on its queue with it.",
    "M17",
    killed_by="test_failure::test_a_failed_wait_fails_exactly_the_dependents_and_nothing_else_on_that_queue",
    room="work/issue.pxi",
    before=_LAUNCHED,
    after="""
        if not mine:
            return 0
        if one.pending_error is None:
            return send(one)
        retire(one, None)
        for held in one.workload._held_submissions():
            if held.queue is one.queue_:
                abort(held, AbortedError("something else failed"))
        return 0
    """,
)


@fault(
    "M21",
    killed_by="test_failure::test_a_failure_that_nobody_looked_at_is_reported_once_when_it_is_collected",
)
def says_nothing_of_a_failure_nobody_saw(patch: Patch) -> None:
    """A failed submission that is dropped is dropped in silence."""
    patch.method(failures.Unseen, "__del__", lambda self: None)


planted(
    "fails-a-lane-from-its-front",
    "An operation of a lane that fails before its turn takes those in front of it along.",
    "M17",
    killed_by="test_lanes::test_a_failure_does_not_reach_what_was_submitted_to_the_lane_before_it",
    room="work/retirement.pxi",
    before="timeline.payload + 1 < value",
    after="False",
)

# Cancelling ---------------------------------------------------------------------------------------------------------

_CANCEL = 'return abort(self, AbortedError(f"{self.describe()} was cancelled"))'

planted(
    "runs-what-was-cancelled",
    "`cancel` fails the signals, and leaves the work in the line.",
    "M21",
    killed_by="test_host_calls::test_a_cancelled_host_call_is_never_made",
    room="work/submission.pxi",
    before=_CANCEL,
    after="""
        for timeline, _ in self._claims():
            semaphore_over(<Timeline>timeline).fail(AbortedError("cancelled"))
        return True
    """,
)

planted(
    "says-it-cancelled-what-runs",
    "`cancel` says True of work that it came too late for.",
    "M21",
    killed_by="test_failure::test_what_runs_or_is_over_cannot_be_cancelled",
    room="work/submission.pxi",
    before=_CANCEL,
    after="""
        abort(self, AbortedError("cancelled"))
        return True
    """,
)

planted(
    "cancels-what-it-waits-for",
    "`cancel` fails the semaphores that the submission was waiting for.",
    "M21",
    killed_by="test_failure::test_cancelling_one_submission_leaves_the_semaphore_of_its_wait_alone",
    room="work/submission.pxi",
    before=_CANCEL,
    after="""
        for timeline, _ in self._pending():
            semaphore_over(<Timeline>timeline).fail(AbortedError("cancelled"))
        return True
    """,
)

# Interrupts ---------------------------------------------------------------------------------------------------------

planted(
    "loses-signals-by-an-interrupt",
    "A submission that is interrupted while it is given to the device is dropped, and its signals never come.",
    "M19",
    killed_by="test_interrupts::test_a_submit_is_all_or_nothing[ready-fill]",
    room="work/issue.pxi",
    before="return retire(one, error)",
    after="return retire(one, error) if isinstance(error, Exception) else 0",
)

planted(
    "loses-waiters-by-an-interrupt",
    "What an interrupted signal had set free and not run yet is thrown away.",
    "M19",
    "M10",
    killed_by="test_interrupts::test_a_signal_takes_effect_for_every_waiter_or_not_at_all",
    room="timelines/continuations.pxi",
    before="defer(&turn.chain)",
    after="turn.chain = Chain(NULL, NULL, NULL, NULL)",
)
