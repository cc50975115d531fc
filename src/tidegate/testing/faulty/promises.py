"""Faults of devices that count epochs: promises, streams, looking and listening."""

from __future__ import annotations

from typing import Any

from tidegate._core import arming, issuing, retirement, timeline
from tidegate._core.semaphore import Semaphore
from tidegate.testing.streams import StreamQueue

from .fault import Patch, fault


@fault("M7", killed_by="test_failure::test_fail_first_retires_what_the_device_has_finished", base="streams")
def fails_before_it_looks(patch: Patch) -> None:
    """`fail` does not ask the device first, and undoes what was over and only not yet looked at."""
    patch.method(Semaphore, "fail", lambda self, error: timeline.fail(self._state, error))


@fault(
    "M17",
    killed_by="test_failure::test_a_host_failure_after_issue_fails_the_dependents_at_retirement_and_transitively",
    base="streams",
)
def trusts_a_broken_promise(patch: Patch) -> None:
    """Work issued on a promise succeeds if the device says so, although the promise has failed meanwhile."""
    real = retirement._outcome

    def outcome(submission: Any) -> BaseException | None:
        submission._promised = ()
        return real(submission)

    patch.function(real, outcome)


@fault(
    "M15",
    "M20",
    killed_by="test_queue_order::test_64_lanes_parked_behind_a_long_kernel_do_not_stop_a_65th",
    base="streams",
)
def has_one_stream_for_everything(patch: Patch) -> None:
    """Whatever waits on the device goes into the one stream there is, and what is ready queues up behind it."""
    patch.method(StreamQueue, "_choose", lambda self, waits: (self._device.streams[0], waits))


@fault(
    "M4",
    "M10",
    killed_by="test_callbacks::test_a_callback_is_called_by_a_running_device_that_nobody_looks_at",
    base="streams",
)
def never_listens(patch: Patch) -> None:
    """The device is not asked to tell when work is over, and nobody hears of it before somebody looks."""
    patch.function(arming.arm_submission, lambda submission: None)


@fault(
    "M3",
    "M5",
    killed_by=(
        "test_several_devices::test_held_work_of_another_device_is_freed_by_a_running_device_that_nobody_looks_at"
    ),
    base="streams",
)
def listens_for_those_who_wait_only(patch: Patch) -> None:
    """The device is not asked to tell when work is over that held work depends on."""
    real = issuing.hold

    def hold(submission: Any) -> None:
        if submission._device._driver.promises:
            real(submission)

    patch.function(real, hold)


@fault(
    "M7",
    "M40",
    killed_by=("test_failure::test_a_failure_of_running_work_is_told_to_those_who_wait_for_what_nobody_has_promised"),
    base="streams",
)
def listens_to_success_only(patch: Patch) -> None:
    """The device is asked to tell of the work that will take a semaphore to a value, and not of what may fail it."""

    def arm(state: Any, value: int) -> None:
        promise = arming.promise_for(state, value)
        if promise is not None:
            arming.arm_submission(promise)

    patch.function(arming.arm, arm)
