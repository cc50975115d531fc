"""Faults of semaphores: values, failure, callbacks, dropping."""

from __future__ import annotations

from tidegate._core import failures

from .fault import Patch, fault, planted

# Values -------------------------------------------------------------------------------------------------------------

planted(
    "signals-backwards",
    "A signal stores its value without asking whether the payload rises.",
    "M6",
    killed_by="test_semaphores::test_a_signal_that_does_not_raise_the_payload_is_refused_and_changes_nothing",
    room="timelines/semaphore.pxi",
    before="timeline.failure is None and timeline.payload < value",
    after="timeline.failure is None",
)

planted(
    "passes-over-smaller-values",
    "A signal tells those who wait for its very value, and forgets those of the values it jumped over.",
    "M4",
    killed_by="test_callbacks::test_one_signal_fires_the_callbacks_of_all_values_up_to_it_and_no_others",
    room="timelines/timeline.pxi",
    before="""
        if wait.owner is not None:
            wait.owner.decided(wait, due)
    """,
    after="""
        if wait.owner is not None and (wait.node.value == self.payload or self.failure is not None):
            wait.owner.decided(wait, due)
    """,
)

planted(
    "wakes-everybody",
    "A signal wakes every waiter, whatever value it waits for, and takes the wake-up for the value.",
    "M4",
    killed_by="test_submission::test_one_signal_frees_waits_for_two_values",
    room="timelines/timeline.pxi",
    before="self.collect(value, due)",
    after="self.collect(<uint64_t>-1, due)",
)

planted(
    "gives-the-next-value-out-twice",
    "`next` counts from the payload and does not remember what it gave out.",
    "M4",
    killed_by="test_semaphores::test_next_gives_out_rising_values_above_the_payload_and_each_value_given_out_before",
    room="timelines/semaphore.pxi",
    before="timeline.high = value + 1",
    after="pass",
)

# Failure ------------------------------------------------------------------------------------------------------------

planted(
    "keeps-the-last-failure",
    "A second failure overwrites the first.",
    "M7",
    killed_by="test_semaphores::test_the_first_failure_wins",
    room="timelines/timeline.pxi",
    before="""
        if self.failure is None:
            self.failure = error
            self.unseen = record
    """,
    after="self.failure = error",
)

planted(
    "drops-the-cause",
    "The error of a wait tells that the semaphore failed, and not why.",
    "M7",
    killed_by="test_semaphores::test_a_failure_reaches_a_waiter_as_the_cause_the_same_object_with_its_text",
    room="timelines/semaphore.pxi",
    before="error.__cause__ = cause",
    after="pass",
)


@fault("M7", killed_by="test_semaphores::test_a_failure_pins_no_local_of_the_frames_it_passed_through")
def pins_what_the_error_saw(patch: Patch) -> None:
    """A kept failure keeps the frames it passed through, and with them their locals."""
    patch.function(failures.forget_frames, lambda error: None)


planted(
    "tells-a-failure-as-success",
    "A callback is told REACHED, whatever ended its wait.",
    "M10",
    killed_by="test_callbacks::test_a_callback_of_a_failure_gets_the_first_error_itself",
    room="timelines/semaphore.pxi",
    before="self.error = wait.timeline.failure",
    after="pass",
)

# Callbacks ----------------------------------------------------------------------------------------------------------

planted(
    "calls-back-twice",
    "A callback is called, and called again.",
    "M10",
    killed_by="test_callbacks::test_a_callback_is_called_before_the_signal_returns_with_its_point_and_outcome",
    room="timelines/semaphore.pxi",
    before="function(*given)",
    after="""
        function(*given)
        function(*given)
    """,
)

planted(
    "nests-callbacks",
    "Whoever decides runs what is due at once, also from inside a callback: there is no trampoline.",
    "M10",
    killed_by="test_callbacks::test_nested_callbacks_come_after_the_current_one",
    room="timelines/continuations.pxi",
    before="return 0 if turn.running else take_turn(turn)",
    after="return take_turn(turn)",
)

planted(
    "lets-a-callback-break-the-signal",
    "What a callback raises comes out of the signal, and those behind it are not called.",
    "M10",
    killed_by="test_callbacks::test_what_a_callback_raises_goes_to_the_unraisable_hook_and_harms_nobody",
    room="timelines/semaphore.pxi",
    before="report_unraisable(error, function)",
    after="raise",
)

planted(
    "registers-without-looking",
    "A waiter joins the line without looking whether its value was reached meanwhile: nobody will tell it.",
    "M10",
    killed_by="test_callbacks::test_a_callback_on_what_is_decided_already_is_called_before_add_callback_returns",
    room="timelines/semaphore.pxi",
    before="timeline.payload >= value or timeline.failure is not None",
    after="False",
)

planted(
    "loses-the-neighbours-of-a-cancelled-waiter",
    "Cancelling one waiter takes out everybody who waits there.",
    "M10",
    killed_by="test_callbacks::test_a_cancelled_callback_is_never_called_and_its_neighbours_are",
    room="timelines/semaphore.pxi",
    before="wait.timeline.leave(wait)",
    after="while wait.timeline.waits != NULL: wait.timeline.leave(<Wait>wait.timeline.waits.link)",
)

planted(
    "calls-what-was-cancelled",
    "`cancel` says that the callback will not be called, and leaves it in the line.",
    "M10",
    killed_by="test_callbacks::test_a_cancelled_callback_is_never_called_and_its_neighbours_are",
    room="timelines/semaphore.pxi",
    before="""
        if self.phase == WAITING:
            CORE_LOCK()
            self.phase = CANCELLED
            wait = self.wait
            if wait is not None and wait.at != NULL:
                wait.timeline.leave(wait)
            CORE_UNLOCK()
            self.wait = None
            self.function = None
        return self.phase == CANCELLED
    """,
    after="return True",
)

# Dropping -----------------------------------------------------------------------------------------------------------

planted(
    "forgets-waiters-of-a-dropped-semaphore",
    "A semaphore that nobody can signal any more leaves its waiters waiting.",
    "M12",
    killed_by="test_dropped_semaphores::"
    "test_when_a_semaphore_is_collected_a_held_submission_that_waits_for_it_is_aborted",
    room="timelines/semaphore.pxi",
    before="timeline.fail(error, None, &due)",
    after="pass",
)

planted(
    "pins-what-it-waits-for",
    "A held submission keeps the semaphores it waits for, so that one that was dropped is never collected.",
    "M12",
    "M18",
    killed_by="test_lifetimes::test_of_what_it_waits_for_a_submission_keeps_only_the_state",
    room="work/admission.pxi",
    before="add_waits(one, wait)",
    after="""
        add_waits(one, wait)
        one.result_ = wait
    """,
)

planted(
    "does-not-hold-what-it-will-signal",
    "A held submission keeps the bare state of what it will signal, and the semaphore is collected meanwhile.",
    "M12",
    killed_by="test_dropped_semaphores::test_a_submission_holds_the_semaphores_it_will_signal",
    room="work/admission.pxi",
    before="claim.semaphore = semaphore",
    after="pass",
)
