"""Work that waits for nothing, behind much work that does: it must not be held up (M15)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns

import numpy as np

from .contestants import Contestants
from .cuda_bindings import Arguments, Raw
from .cuda_kernels import SPIN, TOUCH, load_spin, load_touch
from .cuda_launchers import ONE
from .cuda_sides import TIMEOUT
from .goals import Below
from .model import TIDEGATE, Case, Sampler, Side

DEPENDENTS = 64
ALONE = "tidegate, nothing before it"
EIGHT, EACH = "cuda-bindings, 8 streams", "cuda-bindings, a stream each"


@contextmanager
def _tidegate(long_ns: int, contestants: Contestants) -> Iterator[Sampler]:
    import tidegate as tg

    device = contestants.device
    queue, spin, touch = device.queue(), load_spin(device), load_touch(device)
    counters = [device.upload(np.zeros(1, np.uint32)) for _ in range(DEPENDENTS + 1)]

    def sample() -> list[float]:
        others = []
        if long_ns:
            long = queue.dispatch(spin, ONE, constants=[np.uint64(long_ns)])
            others = [queue.dispatch(touch, ONE, bindings=[counter], wait=long) for counter in counters[1:]]
        start = perf_counter_ns()
        queue.dispatch(touch, ONE, bindings=[counters[0]]).wait(TIMEOUT)
        cost = perf_counter_ns() - start
        tg.wait_all(others, TIMEOUT)
        return [float(cost)]

    yield sample


@contextmanager
def _bindings(long_ns: int, count: int, contestants: Contestants) -> Iterator[Sampler]:
    with Raw(contestants) as raw:
        streams, event = [raw.stream() for _ in range(count)], raw.event()
        spin, touch = raw.function("spin", SPIN), raw.function("touch", TOUCH)
        length, counter = Arguments([ctypes.c_uint64(long_ns)]), Arguments([ctypes.c_void_p(raw.memory(256))])

        def sample() -> list[float]:
            raw.call("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 0, streams[0], length.address, 0)
            raw.call("cuEventRecord", event, streams[0])
            for number in range(DEPENDENTS):
                stream = streams[number % count]
                raw.call("cuStreamWaitEvent", stream, event, 0)
                raw.call("cuLaunchKernel", touch, 1, 1, 1, 1, 1, 1, 0, stream, counter.address, 0)
            last = streams[DEPENDENTS % count]
            start = perf_counter_ns()
            raw.call("cuLaunchKernel", touch, 1, 1, 1, 1, 1, 1, 0, last, counter.address, 0)
            raw.call("cuStreamSynchronize", last)
            cost = perf_counter_ns() - start
            raw.call("cuCtxSynchronize")
            return [float(cost)]

        yield sample


def cases(quick: bool) -> list[Case]:
    """Return the case."""
    long_ns = 5_000_000 if quick else 200_000_000
    sides: dict[str, Side] = {
        TIDEGATE: partial(_tidegate, long_ns),
        ALONE: partial(_tidegate, 0),
        EIGHT: partial(_bindings, long_ns, 8),
        EACH: partial(_bindings, long_ns, DEPENDENTS + 1),
    }
    title = f"independent kernel behind {DEPENDENTS} dependents of one of {long_ns / 1e6:g} ms"
    goals = (Below(5e6 if quick else 1e6),)
    return [Case("independent", title, {"": sides}, goals, rounds=5, conditions=("idle", "busy"))]
