"""Faults of semaphores: values, failure, callbacks, dropping."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tidegate._core import scheduling, subscription, thread_state, timeline, unseen
from tidegate._core.lock import core_lock
from tidegate._core.semaphore import Semaphore
from tidegate._core.subscription import Subscription
from tidegate._core.timepoint import Timepoint
from tidegate.types import MAX_VALUE

from .fault import Patch, fault

# Values -------------------------------------------------------------------------------------------------------------


@fault("M6", killed_by="test_semaphores::test_a_signal_that_does_not_raise_the_payload_is_refused_and_changes_nothing")
def signals_backwards(patch: Patch) -> None:
    """A signal stores its value without asking whether the payload rises."""
    real = timeline.advance

    def advance(semaphore: Any, value: Any) -> None:
        state = semaphore._state
        if type(value) is int and 0 <= value <= state.payload:
            state.payload = value
        else:
            real(semaphore, value)

    patch.function(real, advance)


@fault("M4", killed_by="test_callbacks::test_one_signal_fires_the_callbacks_of_all_values_up_to_it_and_no_others")
def passes_over_smaller_values(patch: Patch) -> None:
    """A signal tells those who wait for its very value, and forgets those of the values it jumped over."""
    real = Subscription.due

    def due(self: Any, state: Any, error: Any, out: Any) -> None:
        if error is not None or state.payload == self._value:
            real(self, state, error, out)

    patch.method(Subscription, "due", due)


@fault("M4", killed_by="test_submission::test_one_signal_frees_waits_for_two_values")
def wakes_everybody(patch: Patch) -> None:
    """A signal wakes every waiter, whatever value it waits for, and takes the wake-up for the value."""
    real = timeline.raise_locked

    def raise_locked(state: Any, value: int, out: Any) -> None:
        high = state.high
        real(state, MAX_VALUE, out)
        state.payload, state.high = value, max(high, value)

    patch.function(real, raise_locked)


@fault(
    "M4",
    killed_by="test_semaphores::test_next_gives_out_rising_values_above_the_payload_and_each_value_given_out_before",
)
def gives_the_next_value_out_twice(patch: Patch) -> None:
    """`next` counts from the payload and does not remember what it gave out."""
    patch.method(Semaphore, "next", lambda self: self.at(self.value + 1))


# Failure ------------------------------------------------------------------------------------------------------------


@fault("M7", killed_by="test_semaphores::test_the_first_failure_wins")
def keeps_the_last_failure(patch: Patch) -> None:
    """A second failure overwrites the first."""
    real = timeline.fail_locked

    def fail_locked(state: Any, error: BaseException, out: Any) -> None:
        state.failure = error
        real(state, error, out)

    patch.function(real, fail_locked)


@fault("M7", killed_by="test_semaphores::test_a_failure_reaches_a_waiter_as_the_cause_the_same_object_with_its_text")
def drops_the_cause(patch: Patch) -> None:
    """The error of a wait tells that the semaphore failed, and not why."""
    real = timeline.failed_error

    def failed_error(*arguments: Any) -> Any:
        error = real(*arguments)
        error.__cause__ = None
        return error

    patch.function(real, failed_error)


@fault("M7", killed_by="test_semaphores::test_a_failure_pins_no_local_of_the_frames_it_passed_through")
def pins_what_the_error_saw(patch: Patch) -> None:
    """A kept failure keeps the frames it passed through, and with them their locals."""
    patch.function(unseen.forget_frames, lambda error: None)


@fault("M10", killed_by="test_callbacks::test_a_callback_of_a_failure_gets_the_first_error_itself")
def tells_a_failure_as_success(patch: Patch) -> None:
    """A callback is told REACHED, whatever ended its wait."""
    real = Subscription.due
    patch.method(Subscription, "due", lambda self, state, error, out: real(self, state, None, out))


# Callbacks ----------------------------------------------------------------------------------------------------------


@fault(
    "M10", killed_by="test_callbacks::test_a_callback_is_called_before_the_signal_returns_with_its_point_and_outcome"
)
def calls_back_twice(patch: Patch) -> None:
    """A subscription that is due is run without being marked as over, and run again."""
    real = Subscription.fire

    def fire(self: Any) -> None:
        function = self._function
        real(self)
        if function is not None:
            function(*self._arguments())

    patch.method(Subscription, "fire", fire)


@fault("M10", killed_by="test_threads::test_while_a_callback_runs_other_threads_signal_and_wait_freely")
def calls_back_under_the_lock(patch: Patch) -> None:
    """Callbacks run while the core lock is held."""
    real = Subscription.fire

    def fire(self: Any) -> None:
        with core_lock:
            real(self)

    patch.method(Subscription, "fire", fire)


@fault("M10", killed_by="test_callbacks::test_nested_callbacks_come_after_the_current_one")
def nests_callbacks(patch: Patch) -> None:
    """Whoever decides runs what is due at once, also from inside a callback: there is no trampoline."""

    def drain() -> None:
        queue = thread_state.thread_state.queue
        while queue:
            queue.popleft().fire()

    patch.function(thread_state.drain, drain)


@fault("M10", killed_by="test_callbacks::test_what_a_callback_raises_goes_to_the_unraisable_hook_and_harms_nobody")
def lets_a_callback_break_the_signal(patch: Patch) -> None:
    """What a callback raises comes out of the signal, and those behind it are not called."""

    def report(error: BaseException, source: object) -> None:
        raise error

    patch.method(subscription, "report_unraisable", report)


@fault(
    "M10", killed_by="test_callbacks::test_a_callback_on_what_is_decided_already_is_called_before_add_callback_returns"
)
def registers_without_looking(patch: Patch) -> None:
    """A waiter joins the line without looking whether its value was reached meanwhile: nobody will tell it."""
    real = timeline.add_waiter_locked

    def add_waiter_locked(*arguments: Any) -> bool:
        real(*arguments)
        return True

    patch.function(real, add_waiter_locked)


@fault("M10", killed_by="test_callbacks::test_a_cancelled_callback_is_never_called_and_its_neighbours_are")
def loses_the_neighbours_of_a_cancelled_waiter(patch: Patch) -> None:
    """Cancelling one waiter takes out everybody who waits for the same value."""
    real = timeline.remove_waiter_locked

    def remove_waiter_locked(state: Any, value: int, waiter: Any) -> None:
        for other in tuple(state.waiters.get(value, ())):
            real(state, value, other)

    patch.function(real, remove_waiter_locked)


@fault("M10", killed_by="test_callbacks::test_a_cancelled_callback_is_never_called_and_its_neighbours_are")
def calls_what_was_cancelled(patch: Patch) -> None:
    """`cancel` says that the callback will not be called, and leaves it in the line."""
    patch.method(Subscription, "cancel", lambda self: True)


# Dropping -----------------------------------------------------------------------------------------------------------


@fault(
    "M12",
    killed_by="test_dropped_semaphores::test_when_a_semaphore_is_collected_a_held_submission_that_waits_for_it_is_aborted",
)
def forgets_waiters_of_a_dropped_semaphore(patch: Patch) -> None:
    """A semaphore that nobody can signal any more leaves its waiters waiting."""
    patch.function(timeline.abandon, lambda state: None)


@fault("M12", "M18", killed_by="test_lifetimes::test_of_what_it_waits_for_a_submission_keeps_only_the_state")
def pins_what_it_waits_for(patch: Patch) -> None:
    """A held submission keeps the semaphores it waits for, so that one that was dropped is never collected."""
    real: Callable[..., Any] = scheduling.submit
    kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def submit(submission: Any, wait: Any, signal: Any) -> Any:
        kept[submission] = wait
        return real(submission, wait, signal)

    patch.function(real, submit)


@fault("M12", killed_by="test_dropped_semaphores::test_a_submission_holds_the_semaphores_it_will_signal")
def does_not_hold_what_it_will_signal(patch: Patch) -> None:
    """A held submission keeps the bare state of what it will signal, and the semaphore is collected meanwhile."""
    real = scheduling.signals_of

    class Bare(Timepoint):
        __slots__ = ()

        def __init__(self, point: Timepoint) -> None:
            self._state = point._state
            self.value = point.value

    patch.function(real, lambda signal: tuple(Bare(point) for point in real(signal)))
