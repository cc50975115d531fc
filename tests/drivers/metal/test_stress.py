"""Eight threads record and submit at once, for a long time.

`TIDEGATE_METAL_SUBMISSIONS` says how many submissions; 100,000 is the figure that has to hold, CI takes fewer.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .driver_bench import LIMIT, DriverBench, in_threads

SUBMISSIONS = int(os.environ.get("TIDEGATE_METAL_SUBMISSIONS", "2000"))
THREADS = 8


@pytest.mark.slow
@pytest.mark.timeout(0 if SUBMISSIONS > 20_000 else 300)
def test_eight_threads_record_and_submit_at_once_and_everything_comes_back(metal: DriverBench) -> None:
    """Each thread's results are its own, so no staged range was ever shared; afterwards nothing is left over."""
    device = metal.device
    staging = metal.inner.staging

    def run(number: int) -> None:
        queue = device.queue(priority=number % 2)
        lane = device.lane(queue)
        buffer = device.allocate(2048)
        for turn in range(SUBMISSIONS // THREADS // 4):
            mark = bytes([(turn * THREADS + number) % 256])
            with device.record(one_shot=True) as commands:
                first = commands.update(buffer, mark * 512, offset=0)
                commands.update(tg.slot(0), mark * 512, offset=512)
                commands.copy(buffer, buffer, source_offset=0, target_offset=1024, length=512, after=[first])
            lane.execute(commands, bindings=[buffer])
            lane.update(buffer, mark * 511, offset=1537)
            lane.fill(buffer, mark, offset=1536, length=1)
            found = lane.download(buffer)
            assert set(found.result(LIMIT).tobytes()) == {mark[0]}, f"thread {number} found another's bytes"

    in_threads(THREADS, run)
    gc.collect()
    statistics = device.statistics()
    assert (statistics.held, statistics.issued) == (0, 0)
    assert statistics.submitted == statistics.retired >= SUBMISSIONS // THREADS // 4 * THREADS * 4
    assert staging.ranges.free_bytes == staging.ranges.capacity
    assert not any(timeline.flights for timeline in metal.timelines)
    assert metal.native.statistics.get("blocked", 0) == 0
    assert staged_again(metal)


def staged_again(metal: DriverBench) -> bool:
    """Whether the staging buffer still serves all of its capacity."""
    kept: list[Any] = []
    before = metal.inner.staging.spills
    for _ in range(metal.inner.staging.ranges.capacity // 4096):
        metal.inner.staging.put(np.zeros(4096, np.uint8).tobytes(), kept)
    return metal.inner.staging.spills == before
