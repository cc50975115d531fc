#!/usr/bin/env python3
"""What a submission costs in the CUDA driver on the host, without a GPU: over a CUDA that does nothing in no time.

    python tools/profile_submit.py                          every case, as nanoseconds for each submission
    python tools/profile_submit.py --profile chain-kernel   the same one with a table of the functions it went through
    python tools/profile_submit.py --gil release --lag 0

`null_cuda.c` stands in for libcuda; it is built with the C compiler of the machine. `--lag` is by how many submissions
the device is behind the host: 0 finds every wait reached, 1 is a device that just keeps up, and with more each
submission goes down on the promise of the one before. The profiler's own cost falls on small functions: read it for
shares, and the plain figures for times.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import ctypes
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

import numpy as np

import tidegate as tg
from tidegate._core.registry import register_driver
from tidegate.drivers.cuda import CudaDriver, _native

HERE = Path(__file__).resolve().parent
TIMEOUT = 30.0
BATCH = 200
"""Submissions between two looks at the clock."""
CLOCKS = (perf_counter_ns, thread_time_ns, process_time_ns)

Once = Callable[[int], object]
"""Makes submission number n; those before it were made already."""

Sample = tuple[float, float, float]
"""Nanoseconds for each submission: by the clock, of the submitting thread, and of the process with what retires."""


def build(folder: Path) -> Path:
    library = folder / "libnull_cuda.so"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O2", "-fPIC", "-shared", "-w", str(HERE / "null_cuda.c"), "-o", str(library)]
    subprocess.run(command, check=True, timeout=120)
    return library


@contextlib.contextmanager
def null_cuda() -> Iterator[Any]:
    """Make the driver `cuda-null` known, and give its library."""
    with tempfile.TemporaryDirectory(prefix="null-cuda-") as folder:
        path = str(build(Path(folder)))
        _native._library = lambda kind: kind(path)
        globals()["driver"] = CudaDriver(open_compiler=_no_compiler)
        register_driver("cuda-null", f"{__name__}:driver")
        yield ctypes.CDLL(path)


def _no_compiler() -> Any:
    raise OSError("a CUDA that does nothing compiles nothing")


class Bench:
    """What the cases share."""

    def __init__(self, device: tg.Device) -> None:
        self.device = device
        self.queue = device.queue()
        self.semaphore = tg.Semaphore()
        self.function = device.load(tg.Kernel("touch", cuda=b"\x7fELF", bindings=1))["touch"]
        self.undeclared = device.load(b"\x7fELF")["touch"]
        scaled = tg.Kernel("scale", cuda=b"\x7fELF", bindings=2, constants=[np.float32, np.uint32])
        self.scaled = device.load(scaled)["scale"]
        self.buffer = device.allocate(4096)
        self.lane = device.lane()
        self.array = tg.pinned_empty(4096, np.uint8, device)
        self.paged = np.zeros(4096, np.uint8)
        with device.record() as commands:
            commands.dispatch(self.function, (1, 1, 1), bindings=[tg.slot(0)])
        self.commands = commands


def cases(bench: Bench) -> dict[str, Once]:
    """Return what is measured; each value `n` of the semaphore is signalled by submission `n - 1`."""
    queue, at, function, lane = bench.queue, bench.semaphore.at, bench.function, bench.lane
    dispatch, barrier, execute = queue.dispatch, queue.barrier, queue.execute
    buffers, constants = [bench.buffer], (np.float32(2), np.uint32(1))
    other = bench.device.allocate(4096)
    groups = (1, 1, 1)
    second = tg.Semaphore().at
    return {
        "chain-kernel": lambda n: dispatch(function, groups, bindings=buffers, wait=at(n), signal=at(n + 1)),
        "chain-constants": lambda n: dispatch(
            bench.scaled, groups, bindings=[bench.buffer, other], constants=constants, wait=at(n), signal=at(n + 1)
        ),
        "chain-barrier": lambda n: barrier(wait=at(n), signal=at(n + 1)),
        "kernel": lambda n: dispatch(function, groups, bindings=buffers),
        "kernel-wait": lambda n: dispatch(function, groups, bindings=buffers).wait(TIMEOUT),
        "lane-kernel": lambda n: lane.dispatch(function, groups, bindings=buffers),
        "chain-undeclared": lambda n: dispatch(
            bench.undeclared, groups, bindings=buffers, wait=at(n), signal=at(n + 1)
        ),
        "chain-fill": lambda n: queue.fill(other, 7, wait=at(n), signal=at(n + 1)),
        "chain-copy": lambda n: queue.copy(bench.buffer, other, wait=at(n), signal=at(n + 1)),
        "chain-update": lambda n: queue.update(other, b"0123456789abcdef", wait=at(n), signal=at(n + 1)),
        "upload-4k": lambda n: queue.upload(bench.array, other, wait=at(n), signal=at(n + 1)),
        "download-4k": lambda n: queue.download(other, bench.array, wait=at(n), signal=at(n + 1)),
        "upload-4k-paged": lambda n: queue.upload(bench.paged, other),
        "two-waits-two-signals": lambda n: dispatch(
            function, groups, bindings=buffers, wait=(at(n), second(n)), signal=(at(n + 1), second(n + 1))
        ),
        "chain-execute": lambda n: execute(bench.commands, bindings=buffers, wait=at(n), signal=at(n + 1)),
        "timepoints": lambda n: (at(n), at(n + 1)),
    }


def run(once: Once, count: int, library: Any, semaphore: tg.Semaphore) -> list[Sample]:
    """Make `count` submissions; return their cost, batch by batch."""
    first, samples = semaphore.value, []
    for number in range(first, first + count, BATCH):
        start = [clock() for clock in CLOCKS]
        for value in range(number, number + BATCH):
            once(value)
        wall, thread, process = ((clock() - before) / BATCH for clock, before in zip(CLOCKS, start, strict=True))
        samples.append((wall, thread, process))
    library.null_settle()
    return samples


def finish(bench: Bench, library: Any, count: int) -> None:
    """Wait until all is over, and start the next case at a reached value."""
    library.null_settle()
    semaphore = bench.semaphore
    bench.queue.barrier().wait(TIMEOUT)
    library.null_settle()
    if semaphore.query() % count:
        raise RuntimeError(f"the semaphore stands at {semaphore.value}")


def measure(name: str, arguments: argparse.Namespace, library: Any, profile: bool = False) -> list[Sample]:
    """Measure one case on a device of its own."""
    library.null_set_lag(ctypes.c_uint64(0))
    with tg.open_device(f"cuda-null?gil={arguments.gil}&epochs={arguments.epochs}") as device:
        bench = Bench(device)
        once = cases(bench)[name]
        library.null_set_lag(ctypes.c_uint64(0 if name.endswith("-wait") else arguments.lag))
        run(once, 10 * BATCH, library, bench.semaphore)
        finish(bench, library, BATCH)
        if profile:
            return _profiled(once, arguments, library, bench)
        samples = run(once, arguments.count, library, bench.semaphore)
        finish(bench, library, BATCH)
        return samples


def _profiled(once: Once, arguments: argparse.Namespace, library: Any, bench: Bench) -> list[Sample]:
    profiler = cProfile.Profile()
    profiler.enable()
    samples = run(once, arguments.count, library, bench.semaphore)
    profiler.disable()
    finish(bench, library, BATCH)
    pstats.Stats(profiler).sort_stats(arguments.sort).print_stats(arguments.rows)
    return samples


def show(name: str, samples: list[Sample]) -> None:
    clock, thread, process = (sorted(column) for column in zip(*samples, strict=True))
    figures = (clock[0], clock[len(clock) // 10], statistics.median(clock), thread[0], statistics.median(thread))
    print(f"{name:20}" + "".join(f"{figure:>13.0f}" for figure in (*figures, statistics.median(process))))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="only these")
    parser.add_argument("--count", type=int, default=20_000, help="submissions of each case")
    parser.add_argument("--lag", type=int, default=1, help="by how many submissions the device is behind")
    parser.add_argument("--gil", choices=("keep", "release"), default="keep", help="release: the way in Python")
    parser.add_argument("--epochs", choices=("auto", "events"), default="auto")
    parser.add_argument("--profile", action="store_true", help="show the functions")
    parser.add_argument("--sort", default="tottime")
    parser.add_argument("--rows", type=int, default=35)
    return parser.parse_args(arguments)


def main() -> int:
    arguments = parse()
    with null_cuda() as library:
        columns = ("least", "p10", "p50", "thread least", "thread p50", "process p50")
        print(f"{'ns each':20}" + "".join(f"{column:>13}" for column in columns))
        with tg.open_device("cuda-null") as device:
            known = list(cases(Bench(device)))
        for name in arguments.cases or known:
            show(name, measure(name, arguments, library, arguments.profile))
    return 0


if __name__ == "__main__":
    sys.modules["profile_submit"] = sys.modules["__main__"]
    sys.exit(main())
