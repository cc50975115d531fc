"""Lose a device by a kernel that faults, and print what became of everything, as JSON. Runs in a process of its own.

    python losing.py URI KIND

The process cannot use the device again, so it must not be the one that runs the tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import tidegate as tg
from tidegate.conformance.latches import Latch, block_by_watched_memory
from tidegate.testing import register_cuda_simulated

LIMIT = 20.0

STORE = """
extern "C" __global__ void faulty(unsigned long long address) { *(volatile unsigned *)address = 1; }
"""
TRAP = """
extern "C" __global__ void faulty(unsigned long long) { __trap(); }
"""
ASSERTIONS = (
    'extern "C" __global__ void faulty(unsigned long long value) { assert(value); }',
    """
extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);
extern "C" __global__ void faulty(unsigned long long value) {
    if (!value) __assertfail("value", "losing.cu", 1, "faulty", 1);
}
""",
)
"""Not every compiler knows `assert` without a header."""

KINDS: dict[str, tuple[str, ...]] = {"address": (STORE,), "trap": (TRAP,), "assert": ASSERTIONS, "graph": (STORE,)}


LATE = ("assert",)
"""Of these CUDA tells when no other kernel runs any more."""


def load(device: tg.Device, sources: tuple[str, ...]) -> tg.Function:
    """Return the kernel in the first form that compiles."""
    for source in sources[:-1]:
        try:
            return device.load(tg.Kernel("faulty", cuda=source, bindings=0, constants=[np.uint64]))["faulty"]
        except tg.CompileError:
            continue
    return device.load(tg.Kernel("faulty", cuda=sources[-1], bindings=0, constants=[np.uint64]))["faulty"]


def describe(error: BaseException | None) -> dict[str, Any] | None:
    """Return what a test has to know of an error."""
    if error is None:
        return None
    return {"type": type(error).__name__, "code": getattr(error, "native_code", None), "text": str(error)}


def outcome(call: Callable[[], object]) -> dict[str, Any] | None:
    """Return what a call raises; of a failure that travelled, where it came from."""
    try:
        call()
    except tg.SemaphoreFailedError as error:
        return describe(error.__cause__)
    except Exception as error:
        return describe(error)
    return None


def fault(device: tg.Device, queue: tg.Queue, function: tg.Function, kind: str, **options: Any) -> tg.Submission:
    """Submit what faults."""
    if kind != "graph":
        return queue.dispatch(function, 1, constants=[0], **options)
    with device.record() as commands:
        commands.dispatch(function, 1, constants=[0])
    return queue.execute(commands, **options)


def lose(uri: str, kind: str) -> dict[str, Any]:
    """Lose a device in the midst of work."""
    found: dict[str, Any] = {}
    partner = tg.open_device("cpu")
    device = tg.open_device(uri)
    function = load(device, KINDS[kind])
    queue, gate, end, latch = device.queue(), tg.Semaphore(), tg.Semaphore(), Latch(block_by_watched_memory)
    buffer = device.upload(np.zeros(256, np.uint8))
    host = device.allocate(256, memory="host")
    before = queue.fill(host, 3)
    before.wait(LIMIT)
    running = latch.block(queue)
    latch.wait_until_running(LIMIT)
    held = queue.fill(buffer, 1, wait=gate.at(1))
    elsewhere = partner.queue().barrier(wait=end.at(1))
    broken = fault(device, queue, function, kind, signal=end.at(1))
    behind = queue.fill(buffer, 2, wait=broken)
    if kind in LATE:
        latch.open_all()
    for name, work in {"broken": broken, "behind": behind, "running": running, "held": held}.items():
        found[name] = outcome(lambda work=work: work.wait(LIMIT))
    found["elsewhere"] = outcome(lambda: elsewhere.wait(LIMIT))
    found["semaphore"] = describe(end.failure)
    found["gate"] = describe(gate.failure)
    found["before"] = describe(before.error)
    found["health"] = device.health.value
    found["fill"] = outcome(lambda: queue.fill(buffer, 1).wait(LIMIT))
    found["allocate"] = outcome(lambda: device.allocate(64))
    found["load"] = outcome(lambda: device.load(tg.Kernel("faulty", cuda=TRAP, bindings=0, constants=[np.uint64])))
    found["read"] = outcome(lambda: buffer.read(timeout=LIMIT))
    found["open again"] = outcome(lambda: tg.open_device(uri))
    found["partner"] = outcome(lambda: partner.queue().barrier().wait(LIMIT))
    latch.open_all()
    found["close"] = outcome(lambda: device.close(LIMIT))
    found["statistics"] = [device.statistics().held, device.statistics().issued]
    partner.close(LIMIT)
    return found


if __name__ == "__main__":
    register_cuda_simulated()
    print(json.dumps(lose(*sys.argv[1:3])))
