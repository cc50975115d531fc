"""How long it takes to open and to close a device, with the context of CUDA made anew each time and with it kept.

    python tools/card_opening.py cuda

The conformance suite opens a device for every test, and some of its tests of interrupts do so hundreds of times.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from time import perf_counter

import numpy as np

import tidegate as tg
from tidegate.testing import register_cuda_simulated

TIMES = 10


def once(uri: str) -> tuple[float, float, float]:
    """Return the milliseconds that opening, a little work and closing take."""
    marks = [perf_counter()]
    device = tg.open_device(uri)
    marks.append(perf_counter())
    device.queue().fill(device.upload(np.zeros(64, np.uint8)), 1).wait(30)
    marks.append(perf_counter())
    device.close(30)
    marks.append(perf_counter())
    first, second, third = ((end - begin) * 1e3 for begin, end in itertools.pairwise(marks))
    return first, second, third


def median(uri: str) -> dict[str, float]:
    rows = [once(uri) for _ in range(TIMES)]
    names = ("open", "work", "close")
    return {
        name: round(statistics.median(column), 2) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def main() -> None:
    register_cuda_simulated()
    uri = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    found = {"the first": [round(part, 2) for part in once(uri)], "anew": median(uri)}
    with tg.open_device(uri):
        found["beside another one"] = median(uri)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
