"""Faults of submissions: waits, signals, claims, lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate._core import retirement, scheduling
from tidegate._core.lock import core_lock
from tidegate._core.submission import RETIRED, Submission
from tidegate._core.timepoint import Timepoint
from tidegate.drivers.cpu.queue import _Task
from tidegate.errors import InvalidArgumentError

from .fault import Patch, fault


def as_list(wait: Any) -> list[Any]:
    """Return what `wait=` was given as a list."""
    if wait is None:
        return []
    return [wait] if isinstance(wait, (Timepoint, Submission)) else list(wait)


def held_on(queue: Any) -> list[Submission]:
    """Return what is held on a queue."""
    with core_lock:
        return [held for held in queue._device._held_locked() if held._queue is queue]


def before_submitting(patch: Patch, act: Callable[[Sequence[Timepoint]], None]) -> None:
    """Let `act` have the signals of every submission before it is made."""
    real = scheduling.submit

    def submit(submission: Any, wait: Any, signal: Any) -> Any:
        signals = scheduling.signals_of(signal)
        act(signals)
        return real(submission, wait, signals)

    patch.function(real, submit)


# Waits and signals --------------------------------------------------------------------------------------------------


@fault("M3", "M14", killed_by="test_submission::test_the_signal_comes_after_the_work")
def signals_early(patch: Patch) -> None:
    """A worker reports the end of its work before it begins."""
    real = _Task.__call__

    def call(self: Any) -> None:
        self._finished(self._ticket)
        real(self)

    patch.method(_Task, "__call__", call)


@fault("M3", "M21", killed_by="test_submission::test_who_has_waited_for_a_submission_finds_it_done")
def is_done_after_its_signals(patch: Patch) -> None:
    """A submission says that it is over from the second look on, when its signals are long there."""
    looked: set[Submission] = set()

    def done(self: Submission) -> bool:
        late = self not in looked
        looked.add(self)
        return self._stage == RETIRED and not late

    patch.method(Submission, "done", property(done))


@fault("M14", killed_by="test_submission::test_several_waits_are_all_needed_and_several_signals_all_come")
def loses_a_wait(patch: Patch) -> None:
    """Of several waits only the first one counts."""
    real = scheduling.waits_of
    patch.function(real, lambda wait: real(wait)[:1])


@fault("M14", "M20", killed_by="test_submission::test_a_submission_takes_any_number_of_waits_and_signals")
def issues_before_all_waits_are_met(patch: Patch) -> None:
    """The first wait that is met sets the work free."""
    real = Submission.due

    def due(self: Any, state: Any, error: Any, out: Any) -> None:
        real(self, state, error, out)
        if not self._queued:
            self._queued = True
            out.append(self)

    patch.method(Submission, "due", due)


@fault("M3", killed_by="test_submission::test_several_waits_are_all_needed_and_several_signals_all_come")
def ignores_the_second_signal(patch: Patch) -> None:
    """Of several signals only the first one is made."""
    real = scheduling.signals_of
    patch.function(real, lambda signal: real(signal)[:1])


@fault("M3", killed_by="test_submission::test_of_two_points_of_one_semaphore_in_signal_the_higher_counts")
def takes_the_lower_of_two_signals(patch: Patch) -> None:
    """Of two points of one semaphore the last one given counts, not the higher."""
    real = scheduling.signals_of

    def signals_of(signal: Any) -> Any:
        points = {point._state: point for point in as_list(signal)}
        return real(points.values())

    patch.function(real, signals_of)


@fault("M15", killed_by="test_queue_order::test_held_work_never_delays_ready_work")
def blocks_behind_the_head_of_the_line(patch: Patch) -> None:
    """A queue is a line: what is ready waits for everything before it that is still held."""
    real = scheduling.submit

    def submit(submission: Any, wait: Any, signal: Any) -> Any:
        before = held_on(submission._queue)
        return real(submission, [*as_list(wait), *before], signal)

    patch.function(real, submit)


# Claims -------------------------------------------------------------------------------------------------------------


@fault("M6", killed_by="test_claims::test_a_point_that_is_claimed_already_is_refused_at_the_call")
def takes_a_claim_away(patch: Patch) -> None:
    """A point that is claimed already may be claimed again, and the first claim is forgotten."""

    def forget(signals: Sequence[Timepoint]) -> None:
        for point in signals:
            point._state.claims.pop(point.value, None)

    before_submitting(patch, forget)


@fault("M6", killed_by="test_claims::test_a_refusal_withdraws_the_claims_made_before_it")
def leaves_claims_of_what_it_refused(patch: Patch) -> None:
    """Signals are checked and claimed one by one, and a refusal leaves those claimed before it."""
    real = scheduling.submit

    def submit(submission: Any, wait: Any, signal: Any) -> Any:
        signals = scheduling.signals_of(signal)
        try:
            return real(submission, wait, signals)
        except InvalidArgumentError:
            state, value = signals[0]._state, signals[0].value
            state.calm, state.claims[value] = False, submission._weakly()
            raise

    patch.function(real, submit)


@fault("M6", killed_by="test_claims::test_a_lower_value_that_nobody_claimed_may_be_claimed_after_a_higher_one")
def refuses_lower_claims(patch: Patch) -> None:
    """Claims have to rise: a chain cannot be submitted backwards."""

    def refuse(signals: Sequence[Timepoint]) -> None:
        for point in signals:
            if point.value <= max(point._state.claims, default=0):
                raise InvalidArgumentError(f"{point} is below a claim")

    before_submitting(patch, refuse)


@fault("M6", killed_by="test_claims::test_a_signal_out_of_order_fails_the_semaphore_loudly")
def overlooks_a_signal_out_of_order(patch: Patch) -> None:
    """A signal that finds the payload above it is dropped, and whoever was released too early never learns of it."""
    real = retirement._signal_locked

    def signal(submission: Any, state: Any, value: int, error: Any, out: Any) -> None:
        if error is None and state.payload >= value:
            state.claims.pop(value, None)
        else:
            real(submission, state, value, error, out)

    patch.function(real, signal)


@fault(
    "M17",
    "M7",
    killed_by="test_failure::test_a_host_failure_after_issue_fails_the_dependents_at_retirement_and_transitively",
)
def signals_over_a_failure(patch: Patch) -> None:
    """Work that ends well raises its semaphore although that has failed meanwhile."""
    real = retirement._signal_locked

    def signal(submission: Any, state: Any, value: int, error: Any, out: Any) -> None:
        failure, state.failure = state.failure, None
        real(submission, state, value, error, out)
        state.failure = failure or state.failure

    patch.function(real, signal)


# Lanes --------------------------------------------------------------------------------------------------------------


@fault("M15", "M17", killed_by="test_lanes::test_a_failure_in_a_lane_fails_what_is_behind_it_until_the_lane_is_reset")
def has_lanes_without_an_order(patch: Patch) -> None:
    """A lane passes its operations on to the queue, in whatever order that takes them."""
    patch.function(scheduling._follow_locked, lambda line, waits, signals: signals)


@fault("M15", "M16", killed_by="test_lanes::test_a_refused_operation_takes_no_place_in_the_lane")
def gives_a_place_to_what_it_refused(patch: Patch) -> None:
    """An operation that is refused keeps its place in the lane, and what comes behind waits for it for ever."""
    real = scheduling._follow_locked

    def follow(line: Any, waits: Any, signals: Any) -> Any:
        followed = real(line, waits, signals)
        line._state.high += 1
        return followed

    patch.function(real, follow)
