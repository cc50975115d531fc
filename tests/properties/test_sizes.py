"""Sizes at which a design shows its cost, and what must hold there. Costs are counted in lines, never in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate as tg

from .fences import LIMIT

pytestmark = pytest.mark.slow


@pytest.fixture
def device() -> Iterator[tg.Device]:
    device = tg.open_device("cpu?workers=2")
    yield device
    device.close(LIMIT)


def lines_during(action: Callable[[], object]) -> int:
    """How many lines of Python this thread runs in an action: also the turns of a loop that calls nothing."""
    count = 0

    def step(_frame: object, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return step

    sys.settrace(step)
    try:
        action()
    finally:
        sys.settrace(None)
    return count


def is_flat(cost_of: Callable[[int], int], small: int) -> bool:
    """Whether twice as much costs at most about twice the steps."""
    return cost_of(2 * small) < 2.5 * cost_of(small)


def test_a_lane_of_10000_operations_behind_one_signal_completes_in_order(device: tg.Device) -> None:
    length, gate, lane = 10_000, tg.Semaphore(), device.lane()
    lane.barrier(wait=gate.at(1))
    for _ in range(length):
        lane.barrier()
    assert not lane.tail.reached
    gate.signal(1)
    lane.wait(LIMIT)
    assert lane.tail.value == length + 1


def test_100000_callbacks_on_one_timepoint_all_fire_before_the_signal_returns_in_their_order() -> None:
    count, fired, semaphore = 100_000, [], tg.Semaphore()
    point = semaphore.at(1)
    for number in range(count):
        point.add_callback(lambda *_told, number=number: fired.append(number))
    assert fired == []
    semaphore.signal(1)
    assert fired == list(range(count))


@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_callbacks_on_20000_values_passed_by_one_signal_fire_from_the_lowest_up(order: str) -> None:
    count, fired, semaphore = 20_000, [], tg.Semaphore()
    values = [1 + (number * 7919) % count for number in range(count)] if order == "mixed" else range(1, count + 1)
    for value in reversed(values) if order == "falling" else values:
        semaphore.at(value).add_callback(lambda point, *_rest: fired.append(point.value))
    semaphore.signal(count)
    assert fired == list(range(1, count + 1))


def test_20000_callbacks_can_be_cancelled_among_20000_others() -> None:
    count, fired, semaphore = 40_000, [], tg.Semaphore()
    subscriptions = [
        semaphore.at(1 + value % 1000).add_callback(lambda *_told: fired.append(1)) for value in range(count)
    ]
    assert all(subscription.cancel() for subscription in subscriptions[::2])
    semaphore.signal(1000)
    assert len(fired) == count // 2


def test_one_submission_may_wait_for_10000_timepoints_and_signal_10000(device: tg.Device) -> None:
    count = 10_000
    waits = [tg.Semaphore().at(1) for _ in range(count)]
    signals = [tg.Semaphore().at(1) for _ in range(count)]
    joined = device.queue().barrier(wait=waits, signal=signals)
    for point in waits[1:]:
        point.signal()
    assert not joined.done
    waits[0].signal()
    tg.wait_all(signals, LIMIT)


def test_two_devices_play_ping_pong_over_one_semaphore_submitted_backwards(device: tg.Device) -> None:
    rounds, ball, order = 200, tg.Semaphore(), []
    with tg.open_device("cpu?workers=1") as other:
        queues = (device.queue(), other.queue())
        for value in range(rounds, 0, -1):
            queues[value % 2].host_call(order.append, value, wait=ball.at(value), signal=ball.at(value + 1))
        ball.signal(1)
        ball.wait(rounds + 1, LIMIT)
    assert order == list(range(1, rounds + 1))


@pytest.mark.parametrize("line", ["one timeline", "many timelines"])
def test_closing_looks_at_each_held_submission_a_few_times(line: str) -> None:
    def cost(length: int) -> int:
        gate, end = tg.Semaphore(), tg.Semaphore()
        with tg.open_device("cpu?workers=1") as device:
            queue = device.queue()
            last = queue.host_call(gate.wait, 1, LIMIT, signal=end.at(1))
            for value in range(1, length):
                last = queue.barrier(wait=end.at(value) if line == "one timeline" else last, signal=end.at(value + 1))

            def close() -> None:
                with pytest.raises(tg.DeadlineExceededError, match=f"{length} submissions still run"):
                    device.close(0)

            found = lines_during(close)
            gate.signal(1)
        return found

    assert is_flat(cost, 1000)


def test_the_hope_for_memory_looks_at_each_held_submission_a_few_times() -> None:
    def cost(cycles: int) -> int:
        gate = tg.Semaphore()
        with tg.open_device("cpu?workers=1&memory=1KiB") as device:
            queue = device.queue()
            kept = device.allocate(1024)
            last: tg.Submission = queue.free(kept, wait=gate.at(1))
            for _ in range(cycles):
                scratch = queue.allocate(1024, wait=last)
                last = queue.free(scratch, wait=scratch.ready)
            starving = []
            found = lines_during(lambda: starving.append(queue.allocate(1024)))
            assert not starving[0].ready.done
            gate.fail(ValueError("enough"))
        return found

    assert is_flat(cost, 500)
