"""Faults of submissions: waits, signals, claims, lanes."""

from __future__ import annotations

from typing import Any

from tidegate.drivers.cpu.queue import _Task

from .fault import Patch, fault, planted

# Waits and signals --------------------------------------------------------------------------------------------------


@fault("M3", "M14", killed_by="test_submission::test_the_signal_comes_after_the_work")
def signals_early(patch: Patch) -> None:
    """A worker reports the end of its work before it begins."""
    real = _Task.__call__

    def call(self: Any) -> None:
        self._finished(self._ticket)
        real(self)

    patch.method(_Task, "__call__", call)


planted(
    "is-done-after-its-signals",
    "A submission says that it is over from the second look on, when its signals are long there.",
    "M3",
    "M21",
    killed_by="test_submission::test_who_has_waited_for_a_submission_finds_it_done",
    room="work/submission.pxi",
    before="""
        if self.stage != RETIRED and self.native is not None and self.workload.generation == generation:
            if not turn_here().in_driver:
                look_at_device(self.native)
        return self.stage == RETIRED
    """,
    after="""
        looked = globals().setdefault("looked", set())
        late = id(self) not in looked
        looked.add(id(self))
        return self.stage == RETIRED and not late
    """,
)

planted(
    "loses-a-wait",
    "Of several waits only the first one counts.",
    "M14",
    killed_by="test_submission::test_several_waits_are_all_needed_and_several_signals_all_come",
    room="work/admission.pxi",
    before="one.more_waits = tuple(waits[1:]) if len(waits) > 1 else None",
    after="one.more_waits = None",
)

planted(
    "issues-before-all-waits-are-met",
    "The first wait that is met sets the work free.",
    "M14",
    "M20",
    killed_by="test_submission::test_a_submission_takes_any_number_of_waits_and_signals",
    room="work/submission.pxi",
    before="""
        if self.stage == HELD and (self.open == 0 or self.pending_error is not None):
            self.push(due)
    """,
    after="""
        if self.stage == HELD:
            self.open = 0
            self.push(due)
    """,
)

planted(
    "ignores-the-second-signal",
    "Of several signals only the first one is made.",
    "M3",
    killed_by="test_submission::test_several_waits_are_all_needed_and_several_signals_all_come",
    room="work/admission.pxi",
    before="one.more_claims = tuple(claims[1:]) if len(claims) > 1 else None",
    after="one.more_claims = None",
)

planted(
    "takes-the-lower-of-two-signals",
    "Of two points of one semaphore the last one given counts, not the higher.",
    "M3",
    killed_by="test_submission::test_of_two_points_of_one_semaphore_in_signal_the_higher_counts",
    room="work/admission.pxi",
    before="known is None or known.target < point.target",
    after="True",
)

planted(
    "blocks-behind-the-head-of-the-line",
    "A queue is a line: what is ready waits for everything before it that is still held.",
    "M15",
    killed_by="test_queue_order::test_held_work_never_delays_ready_work",
    room="work/admission.pxi",
    before="add_waits(one, wait)",
    after="""
        held = [each for each in one.workload._held_submissions() if each.queue is one.queue_]
        points = [] if wait is None else [wait] if isinstance(wait, (Timepoint, Submission)) else list(wait)
        add_waits(one, points + held)
    """,
)

# Claims -------------------------------------------------------------------------------------------------------------

_IS_TAKEN = "claim.node.value <= timeline.payload or timeline.is_claimed(claim.node.value)"

planted(
    "takes-a-claim-away",
    "A point that is claimed already may be claimed again.",
    "M6",
    killed_by="test_claims::test_a_point_that_is_claimed_already_is_refused_at_the_call",
    room="work/admission.pxi",
    before=_IS_TAKEN,
    after="claim.node.value <= timeline.payload",
)

planted(
    "leaves-claims-of-what-it-refused",
    "Signals are checked and claimed one by one, and a refusal leaves those claimed before it.",
    "M6",
    killed_by="test_claims::test_a_refusal_withdraws_the_claims_made_before_it",
    room="work/admission.pxi",
    before="""
        refused[0] = index
        return REFUSED_CLAIM
    """,
    after="""
        refused[0] = index
        if index:
            (<Claim>claim_of(one, 0)).timeline.claim(<Claim>claim_of(one, 0), one)
            Py_INCREF(one)
        return REFUSED_CLAIM
    """,
)

planted(
    "refuses-lower-claims",
    "Claims have to rise: a chain cannot be submitted backwards.",
    "M6",
    killed_by="test_claims::test_a_lower_value_that_nobody_claimed_may_be_claimed_after_a_higher_one",
    room="work/admission.pxi",
    before=_IS_TAKEN,
    after="claim.node.value <= timeline.payload or (timeline.claims != NULL and claim.node.value <= timeline.high)",
)

planted(
    "overlooks-a-signal-out-of-order",
    "A signal that finds the payload above it is dropped, and whoever was released too early never learns of it.",
    "M6",
    killed_by="test_claims::test_a_signal_out_of_order_fails_the_semaphore_loudly",
    room="work/retirement.pxi",
    before="error is None and late is None",
    after="False",
)

planted(
    "signals-over-a-failure",
    "Work that ends well raises its semaphore although that has failed meanwhile.",
    "M17",
    "M7",
    killed_by="test_failure::test_a_host_failure_after_issue_fails_the_dependents_at_retirement_and_transitively",
    room="work/retirement.pxi",
    before="stood and timeline.failure is None",
    after="stood",
)

# Lanes --------------------------------------------------------------------------------------------------------------

planted(
    "has-lanes-without-an-order",
    "A lane passes its operations on to the queue, in whatever order that takes them.",
    "M15",
    "M17",
    killed_by="test_lanes::test_a_failure_in_a_lane_fails_what_is_behind_it_until_the_lane_is_reset",
    room="work/admission.pxi",
    before="(<Wait>wait_of(one, wait_count(one) - 1)).node.value = last",
    after="(<Wait>wait_of(one, wait_count(one) - 1)).node.value = 0",
)

planted(
    "gives-a-place-to-what-it-refused",
    "An operation that is refused keeps its place in the lane, and what comes behind waits for it for ever.",
    "M15",
    "M16",
    killed_by="test_lanes::test_a_refused_operation_takes_no_place_in_the_lane",
    room="work/admission.pxi",
    before="(<Claim>claim_of(one, claim_count(one) - 1)).node.value = last + 1",
    after="""
        (<Claim>claim_of(one, claim_count(one) - 1)).node.value = last + 1
        timeline.high = last + 1
    """,
)
