"""A device: its names, queues, lanes, semaphores and counts."""

from __future__ import annotations

import sys

import pytest

import tidegate as tg
from tidegate.testing import ManualDevice


def test_a_device_tells_its_name_and_health(manual: ManualDevice) -> None:
    device = manual.device
    assert (device.label, device.describe(), device.info.uri) == ("manual", "device 'manual'", "manual")
    assert repr(device) == "<tidegate.Device device 'manual' ok>"
    with tg.open_device("null") as plain:
        assert plain.describe() == "device 'null'"
    assert plain.health is tg.Health.CLOSED


def test_queues_are_made_once_per_kind_and_priority(manual: ManualDevice) -> None:
    device = manual.device
    assert [queue.kind for queue in device.queues] == ["compute", "transfer"]
    urgent = device.queue("transfer", 2)
    assert urgent is device.queue("transfer", priority=2)
    assert (urgent.kind, urgent.priority, urgent.device) == ("transfer", 2, device)
    assert repr(urgent) == "<tidegate.Queue queue 'transfer' of device 'manual'>"
    assert device.queues[2:] == (urgent,)
    assert device.queue().priority == 0
    with pytest.raises(
        tg.InvalidArgumentError, match=r"^device 'manual' has no queue 'copy': it has compute, transfer$"
    ):
        device.queue("copy")
    with pytest.raises(TypeError, match=r"^the priority must be an int, not str$"):
        device.queue("compute", "high")  # type: ignore[arg-type]


def test_a_lane_belongs_to_its_device(manual: ManualDevice) -> None:
    device = manual.device
    assert device.lane().queue is device.queue()
    assert device.lane(manual.transfer).queue.kind == "transfer"
    text = "^queue 'compute' of device 'other' does not belong to device 'manual'$"
    with ManualDevice(label="other") as other, pytest.raises(tg.InvalidArgumentError, match=text):
        device.lane(other.queue)


def test_a_lane_follows_its_last_operation_whatever_was_passed_or_claimed(counting: ManualDevice) -> None:
    lane = counting.device.lane(label="l")
    assert (lane.tail.value, lane.tail.reached) == (0, True)
    lane.barrier()
    assert (lane.tail.value, lane.tail.reached) == (1, True)
    lane.fill(counting.buffer, 0)
    second = lane.fill(counting.buffer, 0)
    assert (lane.tail.value, lane.tail.reached) == (3, False)
    assert [epoch for _, epoch in counting.tries_of(second)[0].waits] == [1]
    counting.finish_all()
    lane.wait(0)
    lane.reset()
    assert lane.tail.value == 0
    assert repr(lane) == "<tidegate.Lane 'l' on queue 'compute' of device 'manual'>"
    assert (lane.label, lane.queue, lane.device) == ("l", counting.queue, counting.device)


def test_a_semaphore_of_a_device_has_its_name_and_the_line_of_the_caller(manual: ManualDevice) -> None:
    line = sys._getframe().f_lineno + 1
    semaphore = manual.device.create_semaphore(3, label="s")
    assert (semaphore.label, semaphore.value, manual.device.create_semaphore().label) == ("manual/s", 3, "")
    assert manual.device.create_semaphore().value == 0
    assert f"{__file__}:{line}" in semaphore.at(4).explain()
    with tg.open_device("null") as plain:
        assert plain.create_semaphore(label="s").label == "null/s"


def test_every_semaphore_works_with_every_device_through_the_host(manual: ManualDevice) -> None:
    kinds = tg.Compatibility
    found = manual.device.semaphore_compatibility(tg.Semaphore())
    for one in (kinds.HOST_WAIT, kinds.HOST_SIGNAL, kinds.DEVICE_WAIT, kinds.DEVICE_SIGNAL, kinds.THROUGH_HOST):
        assert one in found
    with pytest.raises(TypeError, match=r"^semaphore_compatibility takes a semaphore, not int$"):
        manual.device.semaphore_compatibility(3)  # type: ignore[arg-type]


def test_statistics_count_what_is_held_issued_put_off_and_over(either: ManualDevice) -> None:
    def counts() -> tuple[int, int, int, int]:
        now = either.device.statistics()
        return now.submitted, now.held, now.issued, now.retired

    gate = tg.Semaphore()
    held = either.queue.fill(either.buffer, 0, wait=gate.at(1))
    either.queue.fill(either.buffer, 0)
    assert counts() == (2, 1, 1, 0)
    either.full = True
    either.queue.fill(either.buffer, 0)
    assert counts() == (3, 1, 1, 0)
    either.full = False
    either.issued[0].finish()
    assert counts() == (3, 1, 1, 1)
    held.cancel()
    assert counts() == (3, 0, 1, 2)


@pytest.mark.parametrize("make", ["barrier", "execute"])
def test_what_has_nothing_to_do_and_nothing_to_wait_for_never_meets_the_device(either: ManualDevice, make: str) -> None:
    reached, done = tg.Semaphore(1), tg.Semaphore()
    with either.device.record() as empty:
        pass
    for value in (1, 2):
        options = {"wait": reached.at(1) if value == 1 else [reached.at(1)], "signal": done.at(value)}
        passed = either.queue.barrier(**options) if make == "barrier" else either.queue.execute(empty, **options)
        assert passed.done
        assert done.value == value
    assert either.tries == []


def test_a_submission_tells_what_it_is_and_how_far(counting: ManualDevice) -> None:
    gate = tg.Semaphore()
    line = sys._getframe().f_lineno + 1
    work = counting.queue.fill(counting.buffer, 0, wait=gate.at(1))
    where = f"fill on queue 'compute' of device 'manual' ({__file__}:{line})"
    assert (work.describe(), work.line, work.queue) == (where, f"{__file__}:{line}", counting.queue)
    assert repr(work) == f"<tidegate.Submission {where} held>"
    gate.signal(1)
    assert repr(work) == f"<tidegate.Submission {where} issued>"
    counting.issued[0].fail(ValueError("x"), tell=False)
    assert repr(work) == f"<tidegate.Submission {where} issued>"
    assert work.done
    assert repr(work) == f"<tidegate.Submission {where} retired error=ValueError('x')>"


def test_the_line_of_a_submission_is_that_of_the_call_also_over_several_lines(manual: ManualDevice) -> None:
    line = sys._getframe().f_lineno + 1
    work = manual.queue.barrier(
        wait=None,
        signal=None,
    )
    assert work.line == f"{__file__}:{line}"
