"""What has to hold on a card behind a kernel that does not end: no call waits for it, and nothing is held up by it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate.conformance.latches import Latch, block_by_watched_memory
from tidegate.conformance.threads import background

from .programs import LIMIT, REAL, SIMULATED, Bystander, counter, function, more, number, spin, touch, until

pytestmark = pytest.mark.slow

MANY = {REAL: 5000, SIMULATED: 1100}
"""A stream has 1,021 places."""

STALL = 0.1
"""Seconds that no thread may stand still because another one submits."""


class Bench:
    """A device with a kernel on it that runs until the latch is open."""

    def __init__(self, device: tg.Device, latch: Latch) -> None:
        self.device = device
        self.queue = device.queue()
        self.lane = device.lane()
        self.touch = function(device, touch)
        self.counter = counter(device)
        self.bytes = device.upload(np.zeros(256, np.uint8))
        with device.record() as self.commands:
            self.commands.dispatch(self.touch, 1, bindings=[self.counter])
            self.commands.barrier()
            self.commands.dispatch(self.touch, 1, bindings=[self.counter])
        self.queue.execute(self.commands).wait(LIMIT)  # its first instance is made before anything is in the way
        self.queue.fill(self.counter, 0).wait(LIMIT)
        self.latch = latch
        self.blocked = latch.block(self.queue)
        latch.wait_until_running(LIMIT)

    def chain(self, submit: Callable[..., tg.Submission], times: int) -> list[tg.Submission]:
        made = [submit(wait=self.blocked)]
        made.extend(submit() for _ in range(times - 1))
        return made


def kernels(bench: Bench, times: int) -> list[tg.Submission]:
    return bench.chain(lambda **wait: bench.lane.dispatch(bench.touch, 1, bindings=[bench.counter], **wait), times)


def updates(bench: Bench, times: int) -> list[tg.Submission]:
    numbers = count(1)
    return bench.chain(
        lambda **wait: bench.lane.update(bench.counter, next(numbers).to_bytes(4, "little"), **wait), times
    )


def fills_that_all_wait_for_the_kernel(bench: Bench, times: int) -> list[tg.Submission]:
    return [bench.queue.fill(bench.bytes, step % 256, wait=bench.blocked) for step in range(times)]


def downloads(bench: Bench, times: int) -> list[tg.Submission]:
    return bench.chain(lambda **wait: bench.lane.download(bench.bytes, **wait), times)


def graphs(bench: Bench, times: int) -> list[tg.Submission]:
    return bench.chain(lambda **wait: bench.lane.execute(bench.commands, **wait), times // 2)


def beside_it(bench: Bench, times: int) -> list[tg.Submission]:
    """Independent kernels that take a while, on as many streams as there are."""
    slow = function(bench.device, spin)
    return [bench.queue.dispatch(slow, 1, constants=[20_000]) for _ in range(times)]


COUNTED = {kernels, updates, graphs}


@pytest.mark.rules("M14", "M15")
@pytest.mark.parametrize(
    "work",
    [kernels, updates, fills_that_all_wait_for_the_kernel, downloads, graphs, beside_it],
    ids=lambda f: f.__name__,
)
def test_thousands_of_submissions_return_at_once_and_other_threads_run_on(
    device: tg.Device, latch: Latch, driver: str, measured: Callable[..., None], work: Any
) -> None:
    bench, many = Bench(device, latch), MANY[driver]
    with Bystander() as bystander:
        began = perf_counter()
        made = work(bench, many)
        took = perf_counter() - began
        turns = bystander.turns
    assert not bench.blocked.done, "somebody waited for the kernel"
    measured(submissions=len(made), each_us=took / len(made) * 1e6, longest_stall_ms=bystander.longest * 1e3)
    assert turns > 10
    if driver == REAL:
        assert bystander.longest < STALL
    latch.open()
    tg.wait_all(made, 2 * LIMIT)
    if work in COUNTED:
        assert number(bench.counter) == many


@pytest.mark.rules("M15")
def test_a_hundred_wait_for_one_submission(device: tg.Device, latch: Latch) -> None:
    bench = Bench(device, latch)
    queues = [device.queue(priority=level) for level in (0, 0, 1, 2)]
    counters = [counter(device) for _ in range(100)]
    behind = [
        queues[index % 4].dispatch(bench.touch, 1, bindings=[mine], wait=bench.blocked)
        for index, mine in enumerate(counters)
    ]
    waiting = [background(bench.blocked.wait, LIMIT) for _ in range(100)]
    assert not any(work.done for work in behind)
    latch.open()
    tg.wait_all(behind, LIMIT)
    for one in waiting:
        one.result()
    assert [number(mine) for mine in counters] == [1] * 100


@pytest.mark.rules("M15")
@pytest.mark.parametrize("by", ["a kernel", "a semaphore", "a stream of somebody else"])
def test_sixty_four_lanes_wait_and_the_next_one_runs(
    device: tg.Device, latch: Latch, theirs: Any, native: Any, by: str
) -> None:
    bench, gate = Bench(device, latch), tg.Semaphore()
    point: Any = {"a kernel": bench.blocked, "a semaphore": gate.at(1)}.get(by)
    if point is None:
        lowlevel.cuda_stream_wait(device, theirs.stream, _signalled_behind(bench))
        point = lowlevel.from_cuda_stream(device, theirs.stream)
    lanes = [device.lane() for _ in range(64)]
    ends = []
    for lane in lanes:
        lane.fill(bench.bytes, 1, wait=point)
        ends.append(lane.dispatch(bench.touch, 1, bindings=[bench.counter]))
    free, mine = device.lane(), counter(device)
    for _ in range(20):
        free.dispatch(bench.touch, 1, bindings=[mine])
    assert free.download(mine, dtype=np.uint32).result(LIMIT)[0] == 20
    assert not any(end.done for end in ends)
    assert not bench.blocked.done
    gate.signal(1)
    latch.open()
    tg.wait_all(ends, LIMIT)


def _signalled_behind(bench: Bench) -> tg.Timepoint:
    done = tg.Semaphore()
    bench.queue.fill(bench.bytes, 2, wait=bench.blocked, signal=done.at(1))
    return done.at(1)


@pytest.mark.rules("M15")
def test_an_independent_kernel_is_done_before_a_long_one_with_sixty_four_behind_it(
    device: tg.Device, driver: str, measured: Callable[..., None]
) -> None:
    queue, slow, quick = device.queue(), function(device, spin), function(device, touch)
    counters = [counter(device) for _ in range(65)]
    queue.dispatch(quick, 1, bindings=[counters[0]]).wait(LIMIT)
    long = queue.dispatch(slow, 1, constants=[10**9])
    behind = [queue.dispatch(quick, 1, bindings=[mine], wait=long) for mine in counters[1:]]
    began = perf_counter()
    queue.dispatch(quick, 1, bindings=[counters[0]]).wait(LIMIT)
    took = perf_counter() - began
    over = long.done
    measured(independent_ms=took * 1e3)
    tg.wait_all(behind, LIMIT)
    assert not over
    assert [number(mine) for mine in counters] == [2, *[1] * 64]


@contextlib.contextmanager
def _opened_at_the_end() -> Iterator[Latch]:
    """A latch of which nothing stays: those of the fixture are kept to the end of the test."""
    made = Latch(block_by_watched_memory)
    try:
        yield made
    finally:
        made.open_all()


@pytest.mark.rules("M14", "M24")
def test_memory_and_native_objects_do_not_grow_with_what_is_submitted(
    device: tg.Device, driver: str, native: Any
) -> None:
    def one_round() -> None:
        with _opened_at_the_end() as mine:
            bench = Bench(device, mine)
            for work in (kernels, updates, downloads, graphs):
                made = work(bench, MANY[driver] // 4)
        tg.wait_all(made, 2 * LIMIT)
        bench.lane.wait(LIMIT)

    def counts() -> dict[str, int]:
        gc.collect()
        device.trim()
        return {**native.counts, "bytes": device.statistics().reserved_bytes}

    one_round()
    one_round()
    until(lambda: not counts()["events"], counts)  # those who slept for one have to wake up
    before = counts()
    for _ in range(3):
        one_round()
    until(lambda: not more(before, counts()), lambda: more(before, counts()))


@pytest.mark.rules("M14")
def test_code_is_loaded_when_the_kernel_is_over_and_nobody_stands_still_until_then(
    device: tg.Device, latch: Latch, driver: str, measured: Callable[..., None]
) -> None:
    bench, inner = Bench(device, latch), device._driver
    late = tg.Kernel("late", cuda='extern "C" __global__ void late(unsigned *x) { x[0] += 41; }', bindings=1)
    loading = background(device.load, late)
    with Bystander() as bystander:
        # Until it has given up waiting for a moment of rest.
        until(lambda: inner.quiet or not loading.running, lambda: loading)  # type: ignore[attr-defined]
        made = [bench.lane.dispatch(bench.touch, 1, bindings=[bench.counter]) for _ in range(200)]
        assert not bench.blocked.done
        assert loading.running
        latch.open()
        loaded = loading.result(LIMIT)
    measured(longest_stall_ms=bystander.longest * 1e3)
    if driver == REAL:
        assert bystander.longest < 5 * STALL  # to bring code onto the GPU is one call, which others have to wait for
    tg.wait_all(made, LIMIT)
    bench.lane.dispatch(loaded["late"], 1, bindings=[bench.counter]).wait(LIMIT)
    assert number(bench.counter) == 241


@pytest.mark.rules("M35")
def test_a_device_closes_while_another_one_of_the_same_card_runs(
    device: tg.Device, open_device: Callable[..., tg.Device], latch: Latch
) -> None:
    other = open_device()
    function(other, touch)
    mine = counter(other)
    bench = Bench(device, latch)
    other.queue().fill(mine, 7).wait(LIMIT)
    background(other.close, LIMIT).result()
    assert not bench.blocked.done
    latch.open()
    bench.blocked.wait(LIMIT)


@pytest.mark.rules("M35")
def test_a_device_closes_under_threads_that_submit(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    quick = function(device, touch)
    begun = []

    def submits() -> str:
        lane, mine = device.lane(), counter(device)
        begun.append(lane)
        try:
            while True:
                lane.dispatch(quick, 1, bindings=[mine])
                lane.download(mine, dtype=np.uint32).result(LIMIT)
        except tg.TidegateError as error:
            return type(error if not error.__cause__ else error.__cause__).__name__

    threads = [background(submits) for _ in range(6)]
    until(lambda: len(begun) == 6)
    device.close(LIMIT)
    assert {thread.result() for thread in threads} <= {"ClosedError", "AbortedError"}


@pytest.mark.rules("M22")
def test_an_allocation_that_cannot_be_fails_alone(device: tg.Device) -> None:
    queue, mine = device.queue(), counter(device)
    too_much = 2 * device.info.memory_bytes
    with pytest.raises(tg.ResourceExhaustedError):
        device.allocate(too_much)
    wanted = queue.allocate(too_much)
    behind = queue.fill(wanted, 1, wait=wanted.ready)
    for failed in (wanted.ready, behind):
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            failed.wait(LIMIT)
        assert isinstance(caught.value.__cause__, tg.ResourceExhaustedError)
    assert device.health is tg.Health.OK
    queue.dispatch(function(device, touch), 1, bindings=[mine]).wait(LIMIT)
    assert number(mine) == 1


@pytest.mark.rules("M22")
def test_a_card_that_is_full_says_so_and_goes_on_when_memory_is_given_back(device: tg.Device) -> None:
    part, taken = device.info.memory_bytes // 4, []
    with pytest.raises(tg.ResourceExhaustedError):
        for _ in range(6):
            taken.append(device.allocate(part))
    assert taken
    taken.pop().close()
    again = device.allocate(part)
    device.queue().fill(again, 5, length=4096).wait(LIMIT)
    assert set(again.subspan(0, 4096).read(timeout=LIMIT)) == {5}
    for buffer in (again, *taken):
        buffer.close()
    device.trim()  # the tests behind need some, too
