"""A great many submissions leave memory, native objects and threads where they were.

`TIDEGATE_CARD_SUBMISSIONS` says how many; 1,000,000 in the run that counts.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.drivers.cuda._prototypes import PoolAttribute
from tidegate.drivers.cuda.device import STREAMS
from tidegate.drivers.cuda.graph_command_buffer import INSTANCES
from tidegate.drivers.cuda.retire import SIDES

from .programs import LIMIT, counter, function, more, number, touch, until

SUBMISSIONS = int(os.environ.get("TIDEGATE_CARD_SUBMISSIONS", "2000"))
ROUND = 200
"""Submissions in one round, see `Bench.one_round`."""

pytestmark = [pytest.mark.slow, pytest.mark.rules("M24", "M34"), pytest.mark.timeout(1200)]


class Bench:
    """Two lanes with chains of everything."""

    def __init__(self, device: tg.Device) -> None:
        self.device = device
        self.queue = device.queue()
        self.lanes = [device.lane(), device.lane()]
        self.touch = function(device, touch)
        self.counter = counter(device)
        self.bytes = [device.upload(np.zeros(4096, np.uint8)) for _ in range(3)]
        self.touched = 0
        with device.record() as self.commands:
            self.commands.fill(tg.slot(0), 1, length=256)
            self.commands.barrier()
            self.commands.copy(tg.slot(0), tg.slot(1), length=256)

    def one_round(self) -> None:
        """Make 200 submissions, most of them kernels in a chain, without a wait between."""
        first, second = self.lanes
        target, source, other = self.bytes
        for _ in range(10):
            for _ in range(12):
                first.dispatch(self.touch, 1, bindings=[self.counter])
            second.fill(target, 3)
            second.update(target, b"abcd")
            second.copy(target, source)
            second.fill(source, 4, length=1024)
            second.download(target, length=64)
            second.execute(self.commands, bindings=[target, other])
        self.touched += 120
        for _ in range(5):
            self.queue.barrier(wait=first.fill(other, 1), signal=tg.Semaphore().at(1))
            first.execute(self._one_shot())
            scratch = first.allocate(1 << 16)
            first.fill(scratch, 1)
            first.free(scratch)

    def _one_shot(self) -> tg.CommandBuffer:
        with self.device.record(one_shot=True) as commands:
            commands.fill(self.bytes[0], 9, length=64)
        return commands

    def work(self, submissions: int) -> None:
        for step in range(max(1, submissions // ROUND)):
            self.one_round()
            if step % 4 == 3:
                tg.wait_all([lane.barrier() for lane in self.lanes], LIMIT)
        tg.wait_all([lane.barrier() for lane in self.lanes], LIMIT)


def native_state(device: tg.Device) -> dict[str, int]:
    """How many native objects there are, and how much memory the pool has."""
    gc.collect()
    device.trim()
    inner: Any = device._driver
    pool = inner.default_pool._pool
    with inner.entered():
        bytes_of = {name: inner.native.pool_attribute(pool, which) for name, which in BYTES.items()}
    statistics = device.statistics()
    return {
        **{name: count for name, count in inner.native.counts.items() if name not in BOUNDS},
        **bytes_of,
        "allocated": statistics.allocated_bytes,
        "reserved": statistics.reserved_bytes,
    }


BYTES = {"pool reserves": PoolAttribute.RESERVED, "pool uses": PoolAttribute.USED}

BOUNDS = {
    "events": 0,
    "graphs": INSTANCES,
    "graph instances": INSTANCES,
    "streams": STREAMS + SIDES + 4,
    "threads": 2 * STREAMS + 16,
}
"""How much there may be of what is kept: as much as was once needed, however much was submitted.

Instances of the one recording there is; streams for memory, imports and large copies; threads that sleep.
"""


def bounded_state(device: tg.Device) -> dict[str, int]:
    """How much there is of that."""
    device.trim()
    counts: Any = device._driver.native.counts  # type: ignore[attr-defined]
    return {"threads": threading.active_count(), **{name: counts[name] for name in BOUNDS if name != "threads"}}


def beyond(device: tg.Device) -> dict[str, int]:
    """What there is too much of."""
    return {name: count for name, count in bounded_state(device).items() if count > BOUNDS[name]}


def objects() -> Counter[str]:
    """How many living objects of Tidegate's there are, by type."""
    gc.collect()
    return Counter(
        f"{type(thing).__module__}.{type(thing).__qualname__}"
        for thing in gc.get_objects()
        if str(type(thing).__module__).startswith(("tidegate._core", "tidegate.drivers.cuda"))
    )


def grown(known: Counter[str]) -> dict[str, int]:
    """What there is more of than chance explains."""
    return {name: count - known[name] for name, count in objects().items() if count - known[name] > 20}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def test_a_great_many_submissions_leave_nothing_behind(device: tg.Device, measured: Callable[..., None]) -> None:
    bench = Bench(device)
    bench.work(min(SUBMISSIONS, 8000))
    before, known, resident = native_state(device), objects(), resident_mib()
    submitted = device.statistics().submitted
    began = perf_counter()
    bench.work(SUBMISSIONS)
    took = perf_counter() - began
    made = device.statistics().submitted - submitted
    measured(submissions=made, each_us=took / made * 1e6, seconds=took, grown_mib=resident_mib() - resident)
    assert made >= SUBMISSIONS // ROUND * ROUND
    until(lambda: not more(before, native_state(device)), lambda: more(before, native_state(device)))
    until(lambda: not beyond(device), lambda: beyond(device))
    measured(**bounded_state(device))
    assert device.statistics().submitted == device.statistics().retired
    until(lambda: not grown(known), lambda: grown(known))
    assert number(bench.counter) == bench.touched
    assert resident_mib() - resident < 32  # a leak of 32 bytes each shows in the long run


def test_a_device_that_is_closed_leaves_no_native_object(open_device: Callable[..., tg.Device]) -> None:
    native: Any = open_device()._driver.native  # type: ignore[attr-defined]  # one stays open, with little on it

    def counts() -> Counter[str]:
        gc.collect()
        return Counter({name: count for name, count in native.counts.items() if name not in KEPT})

    before, threads = counts(), threading.active_count()
    for _ in range(5):
        device = open_device()
        Bench(device).work(ROUND)
        device.close(LIMIT)
        del device
    until(lambda: counts() <= before)
    until(lambda: threading.active_count() <= threads + 2)  # the core has a few of its own, made when first needed


KEPT = ("libraries", "pinned")
"""Until the last device is closed: to give them back CUDA waits for everything."""
