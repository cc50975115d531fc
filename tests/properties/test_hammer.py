"""Many threads on one object, changing places as often as the interpreter can. Only what must always hold is asked."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance.threads import all_at_once, background

from .fences import LIMIT

pytestmark = [pytest.mark.usefixtures("switch_often"), pytest.mark.slow]


def raise_to(semaphore: tg.Semaphore, top: int, rng: random.Random) -> int:
    """Signal in race with others until the payload is at `top`; returns how many signals counted."""
    counted = 0
    while True:
        value = semaphore.value
        if value >= top:
            return counted
        try:
            semaphore.signal(min(top, value + rng.randint(1, 3)))
            counted += 1
        except tg.InvalidArgumentError:
            pass  # another thread was there first


def watch(semaphore: tg.Semaphore, over: threading.Event) -> int:
    """Look at the payload until told to stop; it must never fall. Returns the highest seen."""
    last = 0
    while True:
        ends = over.is_set()
        seen = semaphore.value
        assert seen >= last
        last = seen
        if ends:
            return last


class Calls:
    """Callbacks, by number: how often each was called, with what."""

    def __init__(self) -> None:
        self.count: Counter[int] = Counter()
        self.told: dict[int, bool] = {}  # whether each was told what it should be
        self._lock = threading.Lock()

    def expect(self, point: tg.Timepoint, number: int) -> Any:
        def called(which: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
            with self._lock:
                self.count[number] += 1
                self.told[number] = which == point and (error is None) == (outcome is tg.Outcome.REACHED)

        return point.add_callback(called)


def test_racing_signals_wake_every_waiter_and_call_every_callback_once_whatever_is_cancelled_and_then_fails() -> None:
    semaphore, top, beyond = tg.Semaphore(label="hammered"), 3000, 4000
    over, calls = threading.Event(), Calls()
    problem = ValueError("the end")
    cancelled: dict[int, bool] = {}

    def signaller(seed: int) -> int:
        return raise_to(semaphore, top, random.Random(seed))

    def waiter(seed: int) -> int:
        rng = random.Random(seed)
        for _ in range(100):
            value = rng.randint(1, top)
            semaphore.wait(value, LIMIT)
            assert semaphore.value >= value
        return 100

    def caller(seed: int) -> int:
        rng = random.Random(seed)
        for number in range(seed * 1000, seed * 1000 + 500):
            subscription = calls.expect(semaphore.at(rng.randint(1, beyond)), number)
            if rng.random() < 0.4:
                cancelled[number] = subscription.cancel()
        return 500

    def doomed(_seed: int) -> int:
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            semaphore.wait(beyond, LIMIT)
        assert caught.value.__cause__ is problem
        return 1

    roles = [signaller, signaller, signaller, waiter, waiter, caller, caller]
    watcher = background(watch, semaphore, over)
    last = [background(doomed, 0) for _ in range(2)]
    all_at_once(len(roles), lambda index: roles[index](index))
    assert semaphore.value == top
    fails = all_at_once(3, lambda index: semaphore.fail(problem))
    over.set()
    assert fails == [None] * 3
    assert [thread.result() for thread in last] == [1, 1]
    assert watcher.result() == top == semaphore.value
    assert semaphore.failure is problem
    numbers = [seed * 1000 + n for seed in (5, 6) for n in range(500)]
    for number in numbers:
        assert calls.count[number] == (0 if cancelled.get(number) else 1)
    assert all(calls.told.values())
    assert True in cancelled.values()


def test_each_value_is_signalled_by_one_thread_only_however_many_try() -> None:
    semaphore = tg.Semaphore()
    wins: list[int] = []

    def contender(_index: int) -> None:
        for value in range(1, 1500):
            try:
                semaphore.signal(value)
                wins.append(value)
            except tg.InvalidArgumentError:
                pass

    all_at_once(4, contender)
    assert semaphore.value == 1499
    assert sorted(wins) == sorted(set(wins))


def test_threads_that_wait_for_one_another_by_value_never_miss_a_signal() -> None:
    semaphore, rounds, players = tg.Semaphore(), 600, 3

    def player(index: int) -> None:
        for turn in range(index, rounds, players):
            semaphore.wait(turn, LIMIT)
            semaphore.signal(turn + 1)

    all_at_once(players, player)
    assert semaphore.value == rounds


def test_a_queue_keeps_every_dependency_of_work_given_by_many_threads_in_any_order() -> None:
    count, threads = 600, 4
    points = [tg.Semaphore().at(1) for _ in range(count)]
    ended: dict[int, int] = {}
    ticks = iter(range(10 * count))
    lock = threading.Lock()
    rng = random.Random(7)
    needs = [rng.sample(range(index), min(index, rng.randint(0, 3))) for index in range(count)]
    order = list(range(count))
    rng.shuffle(order)
    runs: Counter[int] = Counter()

    def note(index: int) -> None:
        with lock:
            runs[index] += 1
            assert all(need in ended for need in needs[index])
            ended[index] = next(ticks)

    with tg.open_device("cpu?workers=2") as device:
        queue = device.queue()

        def giver(thread: int) -> list[tg.Submission]:
            made = []
            for index in order[thread::threads]:
                waits = [points[need] for need in needs[index]]
                if index % 3:
                    made.append(queue.host_call(note, index, wait=waits, signal=points[index]))
                else:
                    gate = queue.barrier(wait=waits)
                    made.append(queue.host_call(note, index, wait=[gate, *waits], signal=points[index]))
            return made

        made = [one for given in all_at_once(threads, giver) for one in given]
        tg.wait_all([*made, *points], LIMIT)
        assert len(made) == count
        assert runs == Counter(range(count))
        statistics = device.statistics()
        assert (statistics.held, statistics.issued) == (0, 0)
        assert statistics.submitted == statistics.retired
        device.close(LIMIT)


def test_small_and_large_transfers_by_many_threads_all_arrive() -> None:
    each, threads, nbytes = 100, 4, 40_000  # above what runs in place, so that workers and waiting threads compete
    with tg.open_device("cpu?workers=2") as device:
        queue = device.queue()

        def giver(thread: int) -> list[bool]:
            right = []
            for turn in range(each):
                length = nbytes if turn % 2 else 64
                buffer = queue.allocate(length)
                pattern = 1 + (thread * each + turn) % 255
                filled = queue.fill(buffer, pattern, wait=buffer.ready)
                found = queue.download(buffer, wait=filled).result(LIMIT)
                right.append(bool((found == pattern).all()) and len(found) == length)
                queue.free(buffer).wait(LIMIT)
            return right

        assert all(all(found) for found in all_at_once(threads, giver))
        assert device.statistics().allocated_bytes == 0
        device.close(LIMIT)


def test_a_lane_shared_by_threads_runs_each_call_once_alone_and_each_threads_calls_in_order() -> None:
    each, threads = 250, 4
    ran: list[tuple[int, int]] = []
    inside = threading.Lock()

    def note(thread: int, turn: int) -> None:
        assert inside.acquire(blocking=False), "two operations of a lane at once"
        ran.append((thread, turn))
        inside.release()

    with tg.open_device("cpu") as device:
        lane = device.lane()

        def giver(thread: int) -> None:
            for turn in range(each):
                lane.host_call(note, thread, turn)
                lane.barrier()

        all_at_once(threads, giver)
        lane.wait(LIMIT)
        assert len(ran) == each * threads
        for thread in range(threads):
            assert [turn for who, turn in ran if who == thread] == list(range(each))
        assert lane.tail.value == 2 * each * threads
        device.close(LIMIT)


def test_no_two_live_ranges_of_a_staging_buffer_overlap_and_all_space_comes_back() -> None:
    each, threads, capacity = 400, 4, 4096
    with tg.open_device("cpu") as device:
        staging = tg.lowlevel.StagingBuffer(device, capacity)
        queue = device.queue()
        owner = np.full(capacity, -1)
        refused: list[int] = []

        def taker(thread: int) -> None:
            rng = random.Random(thread)
            held: list[Any] = []
            for _ in range(each):
                nbytes, alignment = rng.randint(1, 700), 1 << rng.randint(0, 6)
                try:
                    taken = staging.reserve(nbytes, alignment)
                except tg.ResourceExhaustedError:
                    refused.append(nbytes)
                    while held:
                        give_back(held.pop(0), rng)
                    continue
                span = slice(taken.offset, taken.offset + nbytes)
                assert taken.offset % alignment == 0
                assert (owner[span] == -1).all(), "a live range was handed out again"
                owner[span] = thread
                taken.array[:] = thread
                held.append(taken)
                if len(held) > 2:
                    give_back(held.pop(rng.randrange(len(held))), rng)
            while held:
                give_back(held.pop(), rng)

        def give_back(taken: Any, rng: random.Random) -> None:
            span = slice(taken.offset, taken.offset + taken.nbytes)
            mine = owner[span][0]
            assert (owner[span] == mine).all()
            assert (taken.array == mine).all()
            owner[span] = -1
            if rng.random() < 0.5:
                taken.release()
                taken.release()
            else:
                done = queue.barrier()
                taken.release_after(done)
                done.wait(LIMIT)

        all_at_once(threads, taker)
        assert refused, "the buffer was never full: the test asks too little"
        assert staging.free_bytes == capacity
        whole = staging.reserve(capacity, 1)
        assert (whole.offset, staging.free_bytes) == (0, 0)
        whole.release()
        staging.close()
        device.close(LIMIT)


def test_a_pool_under_allocations_and_frees_of_many_threads_keeps_its_budget_and_its_counts() -> None:
    each, threads, nbytes, budget = 150, 4, 1024, 6 * 1024
    with tg.open_device("cpu") as device:
        queue, pool = device.queue(), device.create_pool(budget)

        def user(thread: int) -> int:
            served = 0
            for turn in range(each):
                done = tg.Semaphore()
                buffer = queue.allocate(nbytes, pool=pool, signal=done.at(1))
                pattern = (thread * each + turn) % 256
                filled = queue.fill(buffer, pattern, wait=done.at(1), signal=done.at(2))
                right = queue.host_call(lambda: bool((buffer.to_numpy() == pattern).all()), wait=filled)
                queue.free(buffer, wait=right, signal=done.at(3))
                assert right.result(LIMIT)
                done.wait(3, LIMIT)
                served += 1
                statistics = pool.statistics()
                assert statistics.reserved_bytes <= budget
            return served

        assert all_at_once(threads, user) == [each] * threads
        statistics = pool.statistics()
        assert statistics.allocations == each * threads
        assert statistics.allocated_bytes == 0
        assert statistics.peak_bytes <= threads * nbytes
        assert statistics.reuses >= each * threads - budget // nbytes
        device.close(LIMIT)
