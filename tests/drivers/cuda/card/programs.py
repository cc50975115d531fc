"""The kernels of these tests, and what they share."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType

import numpy as np

import tidegate as tg

REAL, SIMULATED = "cuda", "cuda-simulated"

LIMIT = float(os.environ.get("TIDEGATE_CARD_LIMIT", "30"))
"""Seconds that any wait may take."""

TIMER = """
static __device__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}
"""

touch = tg.Kernel(
    "touch",
    cuda='extern "C" __global__ void touch(unsigned *counter) { counter[0] += 1; }',
    bindings=1,
    constants=[],
)

spin = tg.Kernel(
    "spin",
    cuda=f"""{TIMER}
extern "C" __global__ void spin(unsigned long long nanoseconds) {{
    unsigned long long begin = now();
    while (now() - begin < nanoseconds) __nanosleep(1000);
}}""",
    bindings=0,
    constants=[np.uint64],
)


def function(device: tg.Device, kernel: tg.Kernel) -> tg.Function:
    """Return a kernel on a device."""
    return device.load(kernel)[kernel.name]


def counter(device: tg.Device) -> tg.Buffer:
    """Return a 32-bit zero."""
    return device.upload(np.zeros(1, np.uint32))


def number(buffer: tg.Buffer) -> int:
    """Return what is in it."""
    return int(buffer.to_numpy(np.uint32, timeout=LIMIT)[0])


def until(condition: Callable[[], object], what: Callable[[], object] = str) -> None:
    """Give other threads their turn until something holds that has to come; else tell `what` and where they all are."""
    turn, end = threading.Event(), time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"it never came: {what()}\n{_stacks()}"
        turn.wait(0.001)


def more(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """What there is more of than before. Less is no wonder: what an earlier test left may have gone."""
    return {name: (before.get(name, 0), count) for name, count in now.items() if count > before.get(name, 0)}


def _stacks() -> str:
    return "\n".join("".join(traceback.format_stack(frame, 8)) for frame in sys._current_frames().values())


class Bystander:
    """A Python thread that has nothing to do with the device: counts its turns, and knows its longest pause."""

    def __init__(self) -> None:
        self.turns = 0
        self.longest = 0.0
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._stop:
            here = time.perf_counter()
            if here - last > self.longest:
                self.longest = here - last
            last = here
            self.turns += 1

    def __enter__(self) -> Bystander:
        gc.collect()
        gc.freeze()  # going through what is there already would be a pause of its own
        self._thread.start()
        until(lambda: self.turns)
        self.longest = 0.0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop = True
        self._thread.join(LIMIT)
        gc.unfreeze()
