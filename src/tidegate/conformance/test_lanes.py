"""Lanes: the convenience that orders."""

from __future__ import annotations

import pytest

import tidegate as tg

from .latches import LIMIT
from .threads import all_at_once
from .witnesses import Log, failure_of

pytestmark = pytest.mark.rules("M15")


@pytest.mark.rules("M15")
def test_a_lane_runs_its_operations_in_order(device: tg.Device, log: Log) -> None:
    lane = device.lane(label="in order")
    gate = tg.Semaphore()
    lane.barrier(wait=gate.at(1))
    for index in range(20):
        log.call(lane, str(index))
    assert log.entries == []
    gate.signal(1)
    lane.barrier().wait(timeout=LIMIT)
    assert log.entries == [str(index) for index in range(20)]


@pytest.mark.rules("M15")
def test_lanes_have_no_order_between_them_but_what_waits_say(device: tg.Device, log: Log) -> None:
    one, other = device.lane(), device.lane()
    gate = tg.Semaphore()
    one.barrier(wait=gate.at(1))
    parked = log.call(one, "one")
    log.call(other, "other").wait(timeout=LIMIT)
    assert log.entries == ["other"]
    joined = log.call(other, "joined", wait=parked)
    gate.signal(1)
    joined.wait(timeout=LIMIT)
    assert log.entries == ["other", "one", "joined"]


@pytest.mark.rules("M15", "M17")
def test_a_failure_in_a_lane_fails_what_is_behind_it_until_the_lane_is_reset(device: tg.Device, log: Log) -> None:
    lane = device.lane()
    error = ValueError("in the lane")

    def broken() -> None:
        raise error

    first = log.call(lane, "before")
    lane.host_call(broken)
    behind = log.call(lane, "behind")
    assert failure_of(behind) is error
    first.wait(timeout=LIMIT)
    assert failure_of(log.call(lane, "still behind")) is error
    lane.reset()
    log.call(lane, "afresh").wait(timeout=LIMIT)
    assert log.entries == ["before", "afresh"]


@pytest.mark.rules("M15", "M16")
def test_a_refused_operation_takes_no_place_in_the_lane(device: tg.Device, log: Log) -> None:
    lane = device.lane()
    buffer = device.allocate(16)
    taken = tg.Semaphore(1)
    log.call(lane, "one")
    with pytest.raises(tg.InvalidArgumentError):
        lane.fill(buffer, b"abc")
    with pytest.raises(tg.InvalidArgumentError):
        lane.barrier(signal=taken.at(1))
    log.call(lane, "two").wait(timeout=LIMIT)
    assert log.entries == ["one", "two"]


@pytest.mark.rules("M15")
def test_a_lane_signals_and_joins(device: tg.Device, queue: tg.Queue, log: Log) -> None:
    lane = device.lane(queue)
    sem, gate = tg.Semaphore(), tg.Semaphore()
    log.call(lane, "one", signal=sem.at(1))
    log.call(queue, "beside", wait=sem.at(1), signal=sem.at(2))
    log.call(lane, "two", wait=[sem.at(2), gate.at(1)])
    sem.wait(2, timeout=LIMIT)
    assert log.entries == ["one", "beside"]
    gate.signal(1)
    lane.barrier().wait(timeout=LIMIT)
    assert log.entries == ["one", "beside", "two"]


@pytest.mark.rules("M15", "M22")
@pytest.mark.needs("work")
def test_a_lane_allocates_uses_and_frees(device: tg.Device) -> None:
    lane = device.lane()
    buffer = lane.allocate(1024)
    lane.fill(buffer, 7)
    data = lane.download(buffer).result(timeout=LIMIT)
    lane.free(buffer).wait(timeout=LIMIT)
    assert bytes(data) == b"\x07" * 1024


@pytest.mark.rules("M15", "M38")
def test_threads_may_share_a_lane(device: tg.Device, switch_often: None) -> None:
    lane = device.lane()
    running: list[int] = []
    most: list[int] = []

    def step() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    for works in all_at_once(4, lambda index: [lane.host_call(step) for _ in range(25)]):
        tg.wait_all(works, timeout=LIMIT)
    assert most == [1] * 100


@pytest.mark.rules("M17")
def test_a_failure_does_not_reach_what_was_submitted_to_the_lane_before_it(device: tg.Device, log: Log) -> None:
    lane = device.lane()
    gate, failed = tg.Semaphore(), tg.Semaphore()
    error = RuntimeError("a wait of the third")
    log.call(lane, "one", wait=gate.at(1))
    second = log.call(lane, "two")
    third = log.call(lane, "three", wait=failed.at(1))
    fourth = log.call(lane, "four")
    failed.fail(error)
    assert failure_of(third) is error
    gate.signal(1)
    second.wait(timeout=LIMIT)
    assert failure_of(fourth) is error
    assert log.entries == ["one", "two"]


@pytest.mark.rules("M17", "M21")
def test_cancelling_an_operation_leaves_those_before_it_in_the_lane_alone(device: tg.Device, log: Log) -> None:
    lane = device.lane()
    gate = tg.Semaphore()
    log.call(lane, "one", wait=gate.at(1))
    second = log.call(lane, "two")
    third = log.call(lane, "three")
    fourth = log.call(lane, "four")
    assert third.cancel()
    assert isinstance(failure_of(third), tg.AbortedError)
    gate.signal(1)
    second.wait(timeout=LIMIT)
    assert failure_of(fourth) is third.error
    assert log.entries == ["one", "two"]
