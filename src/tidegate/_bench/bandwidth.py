"""A kernel that is bound by memory, on all cores, beside what NumPy's `copyto` moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns

import numpy as np

from .contestants import Contestants
from .goals import Bandwidth
from .model import STANDARD, TIDEGATE, Case, Sampler

SAXPY = (
    "tidegate_kernel void saxpy(const float *x, float *y, float a, uint32_t n) { tidegate_for(i, n) y[i] += a * x[i]; }"
)
WORKGROUP = 65536


@contextmanager
def _saxpy(count: int, contestants: Contestants) -> Iterator[Sampler]:
    device = contestants.device
    queue = device.queue()
    function = device.load(SAXPY, options=(f"workgroup={WORKGROUP}",))["saxpy"]
    x, y = device.upload(np.ones(count, np.float32)), device.upload(np.zeros(count, np.float32))
    groups, constants = function.workgroups_for(count), (np.float32(0.5), np.uint32(count))

    def sample() -> list[float]:
        start = perf_counter_ns()
        queue.dispatch(function, groups, bindings=[x, y], constants=constants).wait()
        return [(perf_counter_ns() - start) / (12 * count)]  # reads x and y, writes y

    try:
        yield sample
    finally:
        x.close()
        y.close()


@contextmanager
def _copyto(count: int, _contestants: Contestants) -> Iterator[Sampler]:
    source, target = np.ones(count, np.float32), np.zeros(count, np.float32)

    def sample() -> list[float]:
        start = perf_counter_ns()
        np.copyto(target, source)
        return [(perf_counter_ns() - start) / (8 * count)]  # reads one, writes one

    yield sample


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    count = 2**24 if quick else 2**26
    sides = {"": {TIDEGATE: partial(_saxpy, count), STANDARD: partial(_copyto, count)}}
    title = f"saxpy over {count >> 20} Mi elements in C, beside np.copyto"
    return [Case("saxpy", title, sides, (Bandwidth(0.9, STANDARD),), rounds=15, unit="bandwidth")]
