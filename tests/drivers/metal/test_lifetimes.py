"""What only a command buffer still needs, lives until it is over: it retains nothing itself (M18)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import tidegate as tg
from tidegate import lowlevel
from tidegate.conformance import kernels

from .driver_bench import LIMIT, DriverBench


def test_what_only_the_command_buffer_needs_lives_until_it_is_over(metal: DriverBench) -> None:
    """Behind a latch: events, functions, storages, staged and spilled data, all dropped by everybody else."""
    latch = metal.latch()
    point: Any = latch.block(metal.queue)
    event = metal.inner.events.new_event()
    point = lowlevel.event_barrier(metal.queue, signals=[(event, 1)], wait=point)
    del event
    target = metal.device.upload(np.zeros(50_000, np.uint8))
    for number in range(4):
        point = metal.queue.update(target, bytes([number + 1]) * 50_000, wait=point)
    increment = kernels.load(metal.device, kernels.increment)
    counters = metal.upload()
    point = metal.queue.dispatch(increment, 1, bindings=[counters], constants=[64], wait=point)
    array = np.zeros(50_000, np.uint8)
    point = metal.queue.download(target, array, wait=point)
    scratch = metal.queue.allocate(4096, wait=point)
    point = metal.queue.fill(scratch, 1, wait=scratch.ready)
    point = metal.queue.free(scratch, wait=point)
    del increment, scratch
    gc.collect()
    metal.device.trim()
    metal.inner.staging.trim()
    latch.open()
    point.wait(LIMIT)
    assert set(array.tolist()) == {4}
    assert not metal.native.violations
    assert not any(flight.kept for timeline in metal.timelines for flight in timeline.flights)


def test_nothing_is_left_of_a_thousand_submissions(metal: DriverBench) -> None:
    buffer = metal.device.allocate(256)
    lane = metal.device.lane()
    for number in range(1000):
        lane.update(buffer, bytes([number % 256]) * 256)
    lane.barrier().wait(LIMIT)
    gc.collect()
    metal.device.statistics()
    assert not any(timeline.flights or timeline._failures for timeline in metal.timelines)
    assert metal.inner.staging.ranges.free_bytes == metal.inner.staging.ranges.capacity
    assert metal.device.statistics().allocated_bytes == 256


def test_failures_are_kept_only_until_they_are_told(metal: DriverBench) -> None:
    metal.native.fault("command_buffer", count=20)
    sems = [tg.Semaphore() for _ in range(20)]
    for sem in sems:
        metal.queue.fill(metal.device.allocate(64), 1, signal=sem.at(1))
    for sem in sems:
        try:
            sem.wait(1, LIMIT)
        except tg.SemaphoreFailedError:
            continue
        raise AssertionError("the failure was lost")
    for timeline in metal.timelines:
        timeline.advance()
    assert not any(timeline._failures for timeline in metal.timelines)
