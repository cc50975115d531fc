"""Faults of devices that count epochs: promises, streams, looking and listening."""

from __future__ import annotations

from tidegate.testing.streams import StreamQueue

from .fault import Patch, fault, planted

planted(
    "fails-before-it-looks",
    "`fail` does not ask the device first, and undoes what was over and only not yet looked at.",
    "M7",
    killed_by="test_failure::test_fail_first_retires_what_the_device_has_finished",
    base="streams",
    room="timelines/semaphore.pxi",
    before="""
        if timeline.promises:
            poll_promises(timeline)
        forget_frames(error)
    """,
    after="forget_frames(error)",
)

planted(
    "trusts-a-broken-promise",
    "Work issued on a promise succeeds if the device says so, although the promise has failed meanwhile.",
    "M17",
    killed_by="test_failure::test_a_host_failure_after_issue_fails_the_dependents_at_retirement_and_transitively",
    base="streams",
    room="work/retirement.pxi",
    before="take_over_failure(one)",
    after="pass",
)


@fault(
    "M15",
    "M20",
    killed_by="test_queue_order::test_64_lanes_parked_behind_a_long_kernel_do_not_stop_a_65th",
    base="streams",
)
def has_one_stream_for_everything(patch: Patch) -> None:
    """Whatever waits on the device goes into the one stream there is, and what is ready queues up behind it."""
    patch.method(StreamQueue, "_choose", lambda self, waits: (self._device.streams[0], waits))


planted(
    "never-listens",
    "The device is not asked to tell when work is over, and nobody hears of it before somebody looks.",
    "M4",
    "M10",
    killed_by="test_callbacks::test_a_callback_is_called_by_a_running_device_that_nobody_looks_at",
    base="streams",
    room="work/issue.pxi",
    before="one.native is None or one.armed or one.stage == RETIRED",
    after="True",
)

planted(
    "listens-for-those-who-wait-only",
    "The device is not asked to tell when work is over that held work depends on.",
    "M3",
    "M5",
    killed_by="test_several_devices::test_held_work_of_another_device_is_freed_by_a_running_device_that_nobody_looks_at",
    base="streams",
    room="work/issue.pxi",
    before="wait.at != NULL and wait.timeline.promises",
    after="False",
)

planted(
    "listens-to-success-only",
    "The device is asked to tell of the work that will take a semaphore to a value, and not of what may fail it.",
    "M7",
    "M40",
    killed_by="test_failure::test_a_failure_of_running_work_is_told_to_those_who_wait_for_what_nobody_has_promised",
    base="streams",
    room="work/issue.pxi",
    before="""
        for _, one in timeline.claimed():
            if (<Submission>one).native is not None:
                ask_for_wake_up(<Submission>one)
        return 0
    """,
    after="return 0",
)
