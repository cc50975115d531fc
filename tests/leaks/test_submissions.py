"""Submissions leave memory, threads and objects where they were."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .conftest import LIMIT, Census, resident_bytes

SUBMISSIONS = int(os.environ.get("TIDEGATE_LEAK_SUBMISSIONS", "20000"))
"""1,000,000 in the long run that is made by hand before a release."""

MIB = 2**20


def add_one(workgroups: Any, bindings: Any, constants: Any) -> None:
    bindings[0] += 1


ADD_ONE = tg.Kernel("add_one", cpu=add_one, bindings=1, constants=[], workgroup=(1, 1, 1))


class Bench:
    """A device with things to work on, and one round of work of each kind."""

    def __init__(self, device: tg.Device, folder: Path) -> None:
        self.device = device
        self.queue = device.queue()
        self.buffer = device.upload(np.zeros(4096, np.uint8))
        self.target = device.upload(np.zeros(4096, np.uint8))
        self.function = device.load(ADD_ONE)["add_one"]
        self.array = np.zeros(4096, np.uint8)
        self.path = folder / "file.bin"
        self.path.write_bytes(bytes(4096))
        with device.record() as self.commands:
            self.commands.fill(tg.slot(0), 1, length=64)
            self.commands.barrier()
            self.commands.copy(tg.slot(0), tg.slot(1), length=64)

    def barrier(self) -> None:
        self.queue.barrier(signal=tg.Semaphore().at(1)).wait(LIMIT)

    def fill(self) -> None:
        self.queue.fill(self.buffer, 1).wait(LIMIT)

    def update(self) -> None:
        self.queue.update(self.buffer, b"data").wait(LIMIT)

    def copy(self) -> None:
        self.queue.copy(self.buffer, self.target).wait(LIMIT)

    def upload(self) -> None:
        self.queue.upload(self.array, self.buffer).wait(LIMIT)

    def download(self) -> None:
        self.queue.download(self.buffer).result(LIMIT)

    def read(self) -> None:
        self.buffer.subspan(0, 16).read(timeout=LIMIT)
        self.buffer.write(b"x")

    def dispatch(self) -> None:
        self.queue.dispatch(self.function, (1, 1, 1), bindings=[self.buffer]).wait(LIMIT)

    def execute(self) -> None:
        self.queue.execute(self.commands, bindings=[self.buffer, self.target]).wait(LIMIT)

    def record(self) -> None:
        with self.device.record(one_shot=True) as commands:
            commands.fill(self.buffer, 1)
        self.queue.execute(commands).wait(LIMIT)

    def host_call(self) -> None:
        self.queue.host_call(lambda: None).wait(LIMIT)

    def allocate(self) -> None:
        scratch = self.queue.allocate(4096)
        filled = self.queue.fill(scratch, 1, wait=scratch.ready)
        self.queue.free(scratch, wait=filled).wait(LIMIT)

    def drop_a_buffer(self) -> None:
        self.queue.fill(self.device.allocate(4096), 1).wait(LIMIT)

    def load(self) -> None:
        self.device.load(ADD_ONE)["add_one"]

    def file(self) -> None:
        read = self.queue.read_file(self.path, self.buffer)
        self.queue.write_file(self.buffer, self.path, wait=read).wait(LIMIT)

    def wait_before_signal(self) -> None:
        timeline = tg.Semaphore()
        last = self.queue.barrier(wait=timeline.at(2), signal=timeline.at(3))
        self.queue.barrier(wait=timeline.at(1), signal=timeline.at(2))
        timeline.signal(1)
        last.wait(LIMIT)

    def lane(self) -> None:
        lane = self.device.lane()
        lane.fill(self.buffer, 1)
        lane.copy(self.buffer, self.target).wait(LIMIT)

    def cancel(self) -> None:
        gate = tg.Semaphore()
        assert self.queue.fill(self.buffer, 1, wait=gate.at(1)).cancel()

    def fail(self) -> None:
        gate, done = tg.Semaphore(), tg.Semaphore()
        first = self.queue.fill(self.buffer, 1, wait=gate.at(1), signal=done.at(1))
        second = self.queue.fill(self.target, 1, wait=done.at(1))
        gate.fail(ValueError("on purpose"))
        assert first.error is not None
        assert second.error is not None
        self.queue.fill(self.buffer, 1).wait(LIMIT)
        self.queue.fill(self.target, 1).wait(LIMIT)

    def refuse(self) -> None:
        semaphore = tg.Semaphore()
        with pytest.raises(tg.OutOfRangeError):
            self.queue.fill(self.buffer, 1, length=9999, signal=semaphore.at(1))

    def abandon(self) -> None:
        """Submissions that can never run, on a semaphore that is dropped: alone, and in a cycle."""
        gate = tg.Semaphore()
        self.queue.upload(np.zeros(16, np.uint8), self.buffer.subspan(0, 16), wait=gate.at(1))
        first, second = tg.Semaphore(), tg.Semaphore()
        self.queue.barrier(wait=first.at(1), signal=second.at(1))
        self.queue.barrier(wait=second.at(1), signal=first.at(1))

    def callback(self) -> None:
        semaphore = tg.Semaphore()
        semaphore.at(1).add_callback(lambda *_: None)
        assert semaphore.at(2).add_callback(lambda *_: None).cancel()
        semaphore.signal(1)

    def losers(self) -> None:
        """The points that lose a `wait_any`, and those that time out, keep nothing."""
        gate, other = tg.Semaphore(), tg.Semaphore()
        gate.signal(1)
        tg.wait_any([other.at(1), gate.at(1)], LIMIT)
        with pytest.raises(tg.DeadlineExceededError):
            tg.wait_all([other.at(1), gate.at(2)], 0)

    def awaits(self) -> None:
        async def main() -> None:
            for _ in range(10):
                await asyncio.wait_for(asyncio.ensure_future(_await(self.queue.barrier())), LIMIT)

        asyncio.run(main())


async def _await(submission: tg.Submission) -> object:
    return await submission


KINDS = [name for name, value in vars(Bench).items() if not name.startswith("_") and callable(value)]


@pytest.fixture
def bench(census: Census, tmp_path: Path) -> Iterator[Bench]:
    with tg.open_device("cpu?workers=2") as device:
        yield Bench(device, tmp_path)


def repeat(work: Callable[[], object]) -> Callable[[int], None]:
    def run(rounds: int) -> None:
        for _ in range(rounds):
            work()

    return run


def test_the_census_sees_what_is_left_behind(bench: Bench, census: Census) -> None:
    kept: list[tg.Submission] = []
    with pytest.raises(AssertionError, match="Submission"):
        census.of(repeat(lambda: kept.append(bench.queue.barrier())), rounds=100, patience=3)


@pytest.mark.parametrize("kind", KINDS)
def test_work_of_every_kind_leaves_nothing_behind(bench: Bench, census: Census, kind: str) -> None:
    rounds = 30 if kind == "awaits" else 300
    census.of(repeat(getattr(bench, kind)), rounds=rounds)
    statistics = bench.device.statistics()
    assert statistics.issued == 0
    assert statistics.held == 0


@pytest.mark.slow
def test_ten_thousand_submissions_in_flight_at_once_leave_nothing_behind(bench: Bench, census: Census) -> None:
    def work(rounds: int) -> None:
        gate = tg.Semaphore()
        held = [
            bench.queue.copy(bench.buffer, bench.target, wait=gate.at(1), signal=tg.Semaphore().at(1))
            if i % 100 == 0
            else bench.queue.barrier(wait=gate.at(1))
            for i in range(rounds)
        ]
        gate.signal(1)
        tg.wait_all(held, LIMIT)

    census.of(work, rounds=10_000)
    statistics = bench.device.statistics()
    assert statistics.submitted == statistics.retired


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_submissions_leave_memory_threads_and_objects_where_they_were(bench: Bench, census: Census) -> None:
    """As many as TIDEGATE_LEAK_SUBMISSIONS says: a mix of what programs do all the time."""
    queue = bench.queue

    def work(rounds: int) -> None:
        timeline = tg.Semaphore()
        previous: tg.Submission | None = None
        for step in range(rounds // 8):
            scratch = queue.allocate(4096, wait=previous)
            filled = queue.fill(scratch, step & 255, wait=scratch.ready)
            copied = queue.copy(scratch, bench.target, wait=filled)
            ran = queue.execute(bench.commands, bindings=[bench.buffer, bench.target], wait=copied)
            updated = timeline.next()
            queue.update(bench.buffer, b"data", offset=128, wait=ran, signal=updated)
            freed = queue.free(scratch, wait=copied)
            ended = queue.barrier(wait=[updated, freed], signal=timeline.next())
            previous = queue.barrier(wait=ended)
            if step % 64 == 63:
                previous.wait(LIMIT)
        if previous is not None:
            previous.wait(LIMIT)

    work(4000)
    census.take()
    before, statistics = resident_bytes(), bench.device.statistics()
    work(SUBMISSIONS)
    census.check()
    after, now = resident_bytes(), bench.device.statistics()
    assert now.submitted - statistics.submitted >= SUBMISSIONS // 8 * 8
    assert now.submitted == now.retired
    assert now.allocated_bytes == statistics.allocated_bytes
    assert now.reserved_bytes <= statistics.reserved_bytes + MIB
    if before is not None and after is not None:
        # A leak of 16 bytes per submission shows in the long run; the allocator's own wavering does not.
        assert after - before < 16 * MIB


def test_opening_and_closing_devices_leaves_nothing_behind(census: Census) -> None:
    def work(rounds: int) -> None:
        for _ in range(rounds):
            with tg.open_device("cpu?workers=2") as device:
                queue = device.queue()
                buffer = device.upload(np.zeros(64, np.uint8))
                queue.fill(buffer, 1, wait=queue.host_call(lambda: None)).wait(LIMIT)

    census.of(work, rounds=40, warm_up=3)


def test_devices_that_are_dropped_without_being_closed_leave_nothing_behind(census: Census) -> None:
    def work(rounds: int) -> None:
        for _ in range(rounds):
            device = tg.open_device("cpu?workers=2")
            device.queue().fill(device.allocate(64), 1).wait(LIMIT)
            del device

    census.of(work, rounds=40, warm_up=3)


def test_held_work_aborted_by_close_leaves_nothing_behind(census: Census) -> None:
    def work(rounds: int) -> None:
        for _ in range(rounds):
            gate = tg.Semaphore()
            with tg.open_device("cpu?workers=1") as device:
                queue = device.queue()
                buffer = device.allocate(64)
                held = [queue.fill(buffer, 1, wait=gate.at(1)) for _ in range(20)]
            assert all(isinstance(submission.error, tg.AbortedError) for submission in held)

    census.of(work, rounds=40, warm_up=3)
