"""Faults of ends: closing a device, losing one, forking."""

from __future__ import annotations

from typing import Any

from tidegate._core import device as core_device
from tidegate._core.device import Device
from tidegate._core.workload import Workload
from tidegate.drivers.cpu import device as cpu_device
from tidegate.types import Health

from .fault import Patch, fault, planted

# Closing ------------------------------------------------------------------------------------------------------------


@fault("M35", killed_by="test_ends::test_close_aborts_what_waits_for_something_else")
def aborts_nothing_at_close(patch: Patch) -> None:
    """`close` waits for held work, whoever that waits for."""
    patch.method(Workload, "_submissions_to_abort", lambda self: [])


@fault("M35", killed_by="test_ends::test_close_drains_issued_work_and_what_follows_from_it_alone")
def aborts_everything_held_at_close(patch: Patch) -> None:
    """`close` gives up held work that running work would have set free."""
    patch.method(Workload, "_submissions_to_abort", lambda self: self._held_submissions())


@fault("M35", killed_by="test_ends::test_close_over_its_time_names_what_still_runs_and_may_be_called_again")
def drains_nothing_at_close(patch: Patch) -> None:
    """`close` does not wait for running work."""
    patch.method(Workload, "_drain", lambda self, deadline: None)
    patch.method(cpu_device, "_CLOSE_PATIENCE", 0.0)


planted(
    "takes-work-after-close",
    "A closed device takes work that needs no worker.",
    "M35",
    killed_by="test_ends::test_leaving_the_with_block_closes",
    room="work/admission.pxi",
    before="workload.state != OPEN and not (workload.state == CLOSING and one._nested)",
    after="workload.state != OPEN and one.work_code == WORK_HOST",
)


@fault("M35", killed_by="test_ends::test_closing_one_device_leaves_the_others_alone")
def closes_its_neighbours(patch: Patch) -> None:
    """`close` gives up what is held on other devices too."""
    real = Workload._submissions_to_abort

    def doomed(self: Any) -> list[Any]:
        others = [device for device in core_device.open_devices() if device is not self]
        return real(self) + [held for device in others for held in device._held_submissions()]

    patch.method(Workload, "_submissions_to_abort", doomed)


# A lost device ------------------------------------------------------------------------------------------------------


@fault("M36", killed_by="test_ends::test_a_lost_device_wakes_every_waiter_and_fails_every_submission")
def leaves_held_work_on_a_lost_device(patch: Patch) -> None:
    """Losing a device fails what runs on it, and forgets what is held for it."""
    real = Workload._lose

    def lose(self: Any, cause: BaseException) -> None:
        owned, _ = self._unfinished()
        self._unfinished = lambda: (owned, [])
        try:
            real(self, cause)
        finally:
            del self._unfinished

    patch.method(Workload, "_lose", lose)


@fault("M36", killed_by="test_ends::test_other_devices_go_on_when_one_is_lost")
def takes_other_devices_along(patch: Patch) -> None:
    """Losing one device is taken for the loss of all."""
    real = Workload._lose

    def lose(self: Any, cause: BaseException) -> None:
        for device in {self, *core_device.open_devices()}:
            real(device, cause)

    patch.method(Workload, "_lose", lose)


@fault("M36", killed_by="test_ends::test_the_health_of_a_device_tells_that_it_is_lost")
def looks_healthy_when_lost(patch: Patch) -> None:
    """A lost device says that it works."""
    patch.method(Device, "health", property(lambda self: Health.OK))


# A forked child -----------------------------------------------------------------------------------------------------


planted(
    "takes-a-fork-for-a-thread",
    "A forked child may use what its parent made.",
    "M37",
    killed_by="test_process_ends::test_a_forked_child_is_refused_what_its_parent_made_and_takes_nothing_away",
    room="compiled.pyx",
    before="generation += 1",
    after="pass",
)
