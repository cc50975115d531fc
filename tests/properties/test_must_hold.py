"""Sizes at which a design shows its cost, and what must hold there. Costs are counted in steps, never in time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import timeline
from tidegate._core.lock import core_lock

from .fences import LIMIT, let_background_threads_catch_up

pytestmark = pytest.mark.slow


@pytest.fixture
def device() -> Iterator[tg.Device]:
    device = tg.open_device("cpu?workers=2")
    yield device
    device.close(LIMIT)


def nothing(*_told: object) -> None:
    """A callback."""


def calls_during(action: Callable[[], object]) -> int:
    """How many calls, of Python and of C functions, this thread makes in an action."""
    count = 0

    def step(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    gc.disable()  # finalizers of other tests' objects would count
    sys.setprofile(step)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


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


# Chains ------------------------------------------------------------------------------------------------------------


def test_a_chain_of_10000_submissions_given_in_reverse_order_completes(device: tg.Device) -> None:
    length = 10_000
    queue, semaphore = device.queue(), tg.Semaphore(label="chain")
    links = [queue.barrier(wait=semaphore.at(value), signal=semaphore.at(value + 1)) for value in range(length, 0, -1)]
    assert device.statistics().held == length
    semaphore.signal(1)
    semaphore.wait(length + 1, LIMIT)
    tg.wait_all(links, LIMIT)
    assert device.statistics().held == 0
    assert not semaphore._state.waiters
    assert not semaphore._state.claims


def test_a_chain_of_10000_submissions_each_with_its_own_semaphore_completes(device: tg.Device) -> None:
    length = 10_000
    queue = device.queue()
    points = [tg.Semaphore().at(1) for _ in range(length + 1)]
    for index in reversed(range(length)):
        queue.barrier(wait=points[index], signal=points[index + 1])
    points[0].signal()
    points[-1].wait(LIMIT)
    assert all(point.reached for point in points)


def test_a_failure_runs_down_a_chain_of_10000_submissions_with_the_first_cause(device: tg.Device) -> None:
    length, problem = 10_000, ValueError("the first link")
    queue, semaphore = device.queue(), tg.Semaphore()
    first = tg.Semaphore()
    last = queue.barrier(wait=first.at(1), signal=semaphore.at(1))
    for _ in range(length):
        last = queue.barrier(wait=last)
    first.fail(problem)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        last.wait(LIMIT)
    assert caught.value.__cause__ is problem
    assert last.error is problem


def test_a_chain_of_10000_callbacks_that_each_signal_the_next_needs_no_stack() -> None:
    length, called = 10_000, []
    semaphore = tg.Semaphore()

    def link(point: tg.Timepoint, _outcome: tg.Outcome, _error: BaseException | None) -> None:
        called.append(point.value)
        if point.value < length:
            point.semaphore.signal(point.value + 1)

    for value in range(1, length + 1):
        semaphore.at(value).add_callback(link)
    semaphore.signal(1)
    assert called == list(range(1, length + 1))


def test_a_lane_of_10000_operations_behind_one_signal_completes_in_order(device: tg.Device) -> None:
    length, gate, lane = 10_000, tg.Semaphore(), device.lane()
    lane.barrier(wait=gate.at(1))
    for _ in range(length):
        lane.barrier()
    assert not lane.tail.reached
    gate.signal(1)
    lane.wait(LIMIT)
    assert lane.tail.value == length + 1


@pytest.mark.parametrize("line", ["one timeline", "many timelines"])
def test_closing_looks_at_each_held_submission_once(line: str) -> None:
    def cost(length: int) -> int:
        gate, end = tg.Semaphore(), tg.Semaphore()
        with tg.open_device("cpu?workers=1") as device:
            queue = device.queue()
            last = queue.host_call(gate.wait, 1, LIMIT, signal=end.at(1))
            for value in range(1, length):
                last = queue.barrier(wait=end.at(value) if line == "one timeline" else last, signal=end.at(value + 1))
            with core_lock:
                steps = lines_during(device._doomed_locked)
                assert device._doomed_locked() == []
            gate.signal(1)
        return steps

    assert is_flat(cost, 1000)


def test_hope_for_memory_costs_each_held_submission_once() -> None:
    def cost(cycles: int) -> int:
        gate = tg.Semaphore()
        with tg.open_device("cpu?workers=1&memory=1KiB") as device:
            queue = device.queue()
            taken = queue.allocate(1024, wait=gate.at(1))
            last: tg.Submission = queue.fill(taken, 1, wait=taken.ready)
            for _ in range(cycles):
                scratch = queue.allocate(1024, wait=last)
                last = queue.free(scratch, wait=scratch.ready)
            with core_lock:
                device._starvation._waiting[taken.ready] = tg.ResourceExhaustedError("as if")
                steps = lines_during(device._starvation._help_comes_locked)
                assert not device._starvation._help_comes_locked()
                device._starvation._waiting.clear()
            gate.fail(ValueError("enough"))
        return steps

    assert is_flat(cost, 500)


# Crowds ------------------------------------------------------------------------------------------------------------


def test_100000_callbacks_on_one_timepoint_all_fire_before_the_signal_returns_in_their_order() -> None:
    count, fired, semaphore = 100_000, [], tg.Semaphore()
    point = semaphore.at(1)
    for number in range(count):
        point.add_callback(lambda *_told, number=number: fired.append(number))
    assert fired == []
    semaphore.signal(1)
    assert fired == list(range(count))
    assert not semaphore._state.waiters
    assert not semaphore._state.values


def test_callbacks_on_10000_values_passed_by_one_signal_fire_from_the_lowest_up() -> None:
    count, fired, semaphore = 10_000, [], tg.Semaphore()
    for value in range(count, 0, -1):
        semaphore.at(value).add_callback(lambda point, *_rest: fired.append(point.value))
    semaphore.signal(count)
    assert fired == list(range(1, count + 1))


def test_10000_held_submissions_are_freed_by_one_signal_and_each_does_its_work_once(device: tg.Device) -> None:
    count, gate, done = 10_000, tg.Semaphore(), tg.Semaphore()
    buffer = device.allocate(count)
    buffer.write(bytes(count))
    queue = device.queue()
    held = [queue.fill(buffer, 1 + i % 255, offset=i, length=1, wait=gate.at(1)) for i in range(count)]
    queue.barrier(wait=held, signal=done.at(1))
    before = device.statistics()
    assert before.held == count + 1
    gate.signal(1)
    done.wait(1, LIMIT)
    assert buffer.read(timeout=LIMIT) == bytes(1 + i % 255 for i in range(count))
    after = device.statistics()
    assert after.retired - before.retired == count + 1
    assert (after.held, after.issued) == (0, 0)


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


# What it costs -----------------------------------------------------------------------------------------------------


def pushes_and_notes(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> tuple[int, int]:
    """How often an action pushes on a heap of values, and pops one."""
    counts = [0, 0]
    push, pop = timeline.heappush, timeline.heappop

    def counted_push(*arguments: Any) -> None:
        counts[0] += 1
        push(*arguments)

    def counted_pop(*arguments: Any) -> Any:
        counts[1] += 1
        return pop(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(timeline, "heappush", counted_push)
        patched.setattr(timeline, "heappop", counted_pop)
        action()
    return counts[0], counts[1]


def test_waiters_at_one_value_share_one_place_in_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore = tg.Semaphore()

    def crowd() -> None:
        for _ in range(1000):
            semaphore.at(7).add_callback(nothing)
        semaphore.signal(7)

    assert pushes_and_notes(monkeypatch, crowd) == (1, 1)


def test_one_signal_among_many_waiters_touches_only_those_it_frees() -> None:
    def cost(count: int) -> int:
        semaphore = tg.Semaphore()
        for value in range(2, count + 2):
            semaphore.at(value).add_callback(nothing)
        found = calls_during(lambda: semaphore.signal(1))
        semaphore.signal(count + 1)
        return found

    assert cost(4000) == cost(1000)


def test_a_search_for_those_who_wait_up_to_a_value_passes_over_all_above_it() -> None:
    def cost(count: int) -> int:
        semaphore = tg.Semaphore()
        for value in range(1, count + 1):
            semaphore.at(value).add_callback(nothing)
        found = lines_during(lambda: timeline.waiting_up_to_locked(semaphore._state, 3))
        semaphore.signal(count)
        return found

    assert cost(4000) == cost(1000)


def test_those_who_wait_up_to_a_value_are_found_once_each() -> None:
    semaphore = tg.Semaphore()
    for value in (5, 1, 9, 3, 7):
        subscription = semaphore.at(value).add_callback(nothing)
        if value == 3:
            subscription.cancel()
            semaphore.at(value).add_callback(nothing)  # in the heap for the second time
    found = timeline.waiting_up_to_locked(semaphore._state, 5)
    assert sorted(subscription._value for subscription in found) == [1, 3, 5]
    assert timeline.waiting_up_to_locked(semaphore._state, 0) == []
    assert len(timeline.waiting_up_to_locked(semaphore._state, 9)) == 5
    semaphore.signal(9)


def test_the_steps_of_registering_callbacks_grow_as_their_number() -> None:
    def cost(count: int) -> int:
        point = tg.Semaphore().at(1)
        return calls_during(lambda: [point.add_callback(nothing) for _ in range(count)])

    assert is_flat(cost, 1000)


def test_the_steps_of_a_signal_grow_as_the_number_of_callbacks_it_fires() -> None:
    def cost(count: int) -> int:
        semaphore = tg.Semaphore()
        for value in range(1, count + 1):
            semaphore.at(value).add_callback(nothing)
        return calls_during(lambda: semaphore.signal(count))

    assert is_flat(cost, 1000)


def test_the_steps_of_cancelling_callbacks_grow_as_their_number() -> None:
    def cost(count: int) -> int:
        semaphore = tg.Semaphore()
        subscriptions = [semaphore.at(value).add_callback(nothing) for value in range(1, count + 1)]
        return calls_during(lambda: [subscription.cancel() for subscription in subscriptions])

    assert is_flat(cost, 1000)


def test_the_steps_of_submitting_held_work_grow_as_its_number(device: tg.Device) -> None:
    queue, gates = device.queue(), []

    def cost(count: int) -> int:
        gate = tg.Semaphore()
        gates.append(gate)
        return calls_during(lambda: [queue.barrier(wait=gate.at(1)) for _ in range(count)])

    assert is_flat(cost, 1000)
    for gate in gates:
        gate.signal(1)


def test_the_steps_of_submitting_a_chain_backwards_grow_as_its_length(device: tg.Device) -> None:
    queue, chains = device.queue(), []

    def cost(count: int) -> int:
        chain = tg.Semaphore()
        chains.append(chain)
        return calls_during(
            lambda: [queue.barrier(wait=chain.at(value), signal=chain.at(value + 1)) for value in range(count, 0, -1)]
        )

    assert is_flat(cost, 1000)
    for chain in chains:
        chain.signal(1)
        let_background_threads_catch_up()


def test_the_steps_of_running_a_chain_grow_as_its_length(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate._core.thread_state.SHARE_SECONDS", 3600.0)
    monkeypatch.setattr("tidegate._core.thread_state.SHARE", 1 << 40)  # all of it on this thread, where it is counted
    queue = device.queue()

    def cost(count: int) -> int:
        chain = tg.Semaphore()
        for value in range(count, 0, -1):
            queue.barrier(wait=chain.at(value), signal=chain.at(value + 1))
        found = calls_during(lambda: chain.signal(1))
        assert chain.value == count + 1
        return found

    assert is_flat(cost, 1000)


def test_the_steps_of_freeing_held_work_grow_as_its_number(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate._core.thread_state.SHARE_SECONDS", 3600.0)
    monkeypatch.setattr("tidegate._core.thread_state.SHARE", 1 << 40)
    queue = device.queue()

    def cost(count: int) -> int:
        gate = tg.Semaphore()
        held = [queue.barrier(wait=gate.at(1)) for _ in range(count)]
        found = calls_during(lambda: gate.signal(1))
        assert all(one.done for one in held)
        return found

    assert is_flat(cost, 1000)


def test_the_steps_of_waiting_for_all_grow_as_their_number() -> None:
    def cost(count: int) -> int:
        semaphore = tg.Semaphore()
        semaphore.signal(count)
        points = [semaphore.at(value) for value in range(1, count + 1)]
        return calls_during(lambda: tg.wait_all(points, LIMIT))

    assert is_flat(cost, 1000)


def test_a_signal_without_waiters_costs_the_same_after_100000_of_them() -> None:
    semaphore = tg.Semaphore()
    early = calls_during(lambda: semaphore.signal(1))
    for value in range(2, 100_000):
        semaphore.signal(value)
    assert calls_during(lambda: semaphore.signal(100_000)) == early


# Devices together --------------------------------------------------------------------------------------------------


def test_two_devices_play_ping_pong_over_one_semaphore_submitted_backwards(device: tg.Device) -> None:
    rounds, ball, order = 200, tg.Semaphore(), []
    with tg.open_device("cpu?workers=1") as other:
        queues = (device.queue(), other.queue())
        for value in range(rounds, 0, -1):
            queues[value % 2].host_call(order.append, value, wait=ball.at(value), signal=ball.at(value + 1))
        ball.signal(1)
        ball.wait(rounds + 1, LIMIT)
        other.close(LIMIT)
    assert order == list(range(1, rounds + 1))


def test_two_devices_wait_for_each_others_submissions_both_ways(device: tg.Device) -> None:
    with tg.open_device("cpu") as other:
        gate = tg.Semaphore()
        here = device.queue().host_call(lambda: "here", wait=gate.at(1))
        there = other.queue().host_call(lambda: "there", wait=here)
        back = device.queue().host_call(lambda: "back", wait=[here, there])
        assert not back.done
        gate.signal(1)
        assert [one.result(LIMIT) for one in (back, there, here)] == ["back", "there", "here"]
        other.close(LIMIT)


def test_closing_one_device_fails_only_its_own_held_work_and_what_follows_it(device: tg.Device) -> None:
    other = tg.open_device("cpu")
    gate = tg.Semaphore()
    mine = device.queue().barrier(wait=gate.at(1))
    theirs = other.queue().barrier(wait=gate.at(1))
    follower = device.queue().barrier(wait=theirs)
    other.close(LIMIT)
    assert isinstance(theirs.error, tg.AbortedError)
    assert follower.error is theirs.error
    assert not mine.done
    gate.signal(1)
    mine.wait(LIMIT)


# Failures ----------------------------------------------------------------------------------------------------------


def test_unrelated_failures_never_meet(device: tg.Device) -> None:
    count, queue = 300, device.queue()
    gates = [tg.Semaphore() for _ in range(count)]
    problems = [ValueError(number) for number in range(count)]
    ends = []
    for gate in gates:
        middle = tg.Semaphore()
        queue.barrier(wait=gate.at(1), signal=middle.at(1))
        ends.append(queue.barrier(wait=middle.at(1)))
    for number, gate in enumerate(gates):
        if number % 3:
            gate.fail(problems[number])
        else:
            gate.signal(1)
    for number, end in enumerate(ends):
        if number % 3:
            with pytest.raises(tg.SemaphoreFailedError) as caught:
                end.wait(LIMIT)
            assert caught.value.__cause__ is problems[number]
        else:
            end.wait(LIMIT)
            assert end.error is None
    queue.host_call(lambda: None).wait(LIMIT)


def test_a_join_of_two_failures_takes_the_first_and_leaves_each_side_its_own(device: tg.Device) -> None:
    queue, left, right = device.queue(), tg.Semaphore(), tg.Semaphore()
    first, second = ValueError("left"), ValueError("right")
    only_left, only_right = queue.barrier(wait=left.at(1)), queue.barrier(wait=right.at(1))
    both = queue.barrier(wait=[left.at(1), right.at(1)])
    left.fail(first)
    right.fail(second)
    assert [one.error for one in (only_left, only_right, both)] == [first, second, first]


def test_a_failing_kernel_fails_its_dependents_alone_on_one_queue(device: tg.Device) -> None:
    queue, problem = device.queue(), ZeroDivisionError("work")

    def fails() -> None:
        raise problem

    good = [queue.host_call(lambda number=number: number) for number in range(20)]
    bad = queue.host_call(fails)
    after_bad = queue.host_call(lambda: "never", wait=bad)
    after_good = queue.host_call(lambda: "yes", wait=good)
    assert after_good.result(LIMIT) == "yes"
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        after_bad.wait(LIMIT)
    assert caught.value.__cause__ is problem is bad.error
    assert [one.result(LIMIT) for one in good] == list(range(20))
