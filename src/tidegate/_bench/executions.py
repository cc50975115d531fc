"""Submissions: an empty execute and a small fill with a host wait, chains, host calls and one small kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from .contestants import Contestants, iree_runtime
from .goals import Below, BusyAsIdle, Goal, Ratio
from .model import STANDARD, SYNC, TASK, TIDEGATE, Case, Sampler, Side

FILL_BYTES = 64 * 1024
CHAIN = 500
SWITCHES_NS = 10e6
"""Two switch intervals of the interpreter, which is what a wake beside a busy thread may cost."""

SMALL_KERNEL = "tidegate_kernel void increment(uint32_t *counter) { counter[0] += 1; }"


def _each(count: int, once: Callable[[], object]) -> list[float]:
    """Time `once` that many times. It is a Python function for every side, so they can share this loop."""
    samples = []
    for _ in range(count):
        start = perf_counter_ns()
        once()
        samples.append(float(perf_counter_ns() - start))
    return samples


def recorded(device: Any, filled: bool) -> Any:
    """Return a command buffer of ours, empty or with one fill."""
    buffer = device.allocate(FILL_BYTES) if filled else None
    with device.record() as commands:
        if filled:
            commands.fill(buffer, 7)
    return commands


def iree_recorded(device: Any, buffer: Any = None) -> Any:
    """Return the same of IREE's, which serves once.

    The bindings only make one-shot command buffers. Executed again, local-task repeats the work and local-sync does
    nothing and signals, so each execution gets one of its own, recorded outside of the time that is measured.
    """
    commands = iree_runtime().HalCommandBuffer(device)
    if buffer is not None:
        commands.fill(buffer, np.uint8(7))
    commands.end()
    return commands


def _iree_buffer(device: Any) -> Any:
    runtime = iree_runtime()
    kind = runtime.MemoryType.DEVICE_LOCAL | runtime.MemoryType.HOST_VISIBLE
    return device.allocator.allocate_buffer(kind, runtime.BufferUsage.DEFAULT, FILL_BYTES)


@contextmanager
def _execute(filled: bool, count: int, contestants: Contestants) -> Iterator[Sampler]:
    queue, commands = contestants.device.queue(), recorded(contestants.device, filled)
    done, value = contestants.semaphores(TIDEGATE)(), 0

    def once() -> None:
        nonlocal value
        value += 1
        queue.execute(commands, signal=done.at(value))
        done.wait(value)

    yield lambda: _each(count, once)


@contextmanager
def _iree_execute(filled: bool, count: int, side: str, contestants: Contestants) -> Iterator[Sampler]:
    device = contestants.iree(side)
    buffer = _iree_buffer(device) if filled else None
    done, value = device.create_semaphore(0), 0
    ready: list[Any] = []

    def once() -> None:
        nonlocal value
        value += 1
        device.queue_execute(ready.pop(), [], [(done, value)])
        done.wait(value)

    def sample() -> list[float]:
        ready.extend(iree_recorded(device, buffer) for _ in range(count))
        return _each(count, once)

    yield sample


@contextmanager
def _pool_execute(filled: bool, count: int, _contestants: Contestants) -> Iterator[Sampler]:
    target = np.zeros(FILL_BYTES, np.uint8)
    work = partial(target.fill, 7) if filled else nothing
    with ThreadPoolExecutor(1) as pool:
        yield lambda: _each(count, lambda: pool.submit(work).result())


def nothing() -> None:
    """Stand for work."""


@contextmanager
def _chain(part: str, contestants: Contestants) -> Iterator[Sampler]:
    queue, commands = contestants.device.queue(), recorded(contestants.device, False)
    semaphore, last = contestants.semaphores(TIDEGATE)(), 0

    def sample() -> list[float]:
        nonlocal last
        first, last = last, last + CHAIN
        start = perf_counter_ns()
        for value in range(first, last):
            queue.execute(commands, wait=semaphore.at(value), signal=semaphore.at(value + 1))
        return _parts(part, start, partial(semaphore.wait, last))

    yield sample


@contextmanager
def _iree_chain(part: str, side: str, contestants: Contestants) -> Iterator[Sampler]:
    device = contestants.iree(side)
    semaphore, last = device.create_semaphore(0), 0

    def sample() -> list[float]:
        nonlocal last
        first, last = last, last + CHAIN
        links = [iree_recorded(device) for _ in range(CHAIN)]
        start = perf_counter_ns()
        for value, commands in enumerate(links, first):
            device.queue_execute(commands, [(semaphore, value)], [(semaphore, value + 1)])
        return _parts(part, start, partial(semaphore.wait, last))

    yield sample


@contextmanager
def _pool_chain(part: str, _contestants: Contestants) -> Iterator[Sampler]:
    with ThreadPoolExecutor(1) as pool:  # one worker keeps the order

        def sample() -> list[float]:
            link: Future[None] = Future()
            start = perf_counter_ns()
            for _ in range(CHAIN):
                link = pool.submit(nothing)
            return _parts(part, start, link.result)

        yield sample


def _parts(part: str, start: int, wait: Callable[[], object]) -> list[float]:
    submitted = perf_counter_ns()
    wait()
    end = submitted if part == "host" else perf_counter_ns()
    return [(end - start) / CHAIN]


@contextmanager
def _host_call(count: int, contestants: Contestants) -> Iterator[Sampler]:
    queue = contestants.device.queue()
    yield lambda: _each(count, lambda: queue.host_call(nothing).wait())


@contextmanager
def _dispatch(count: int, contestants: Contestants) -> Iterator[Sampler]:
    device = contestants.device
    queue, function = device.queue(), device.load(SMALL_KERNEL)["increment"]
    counter = device.upload(np.zeros(1, np.uint32))
    yield lambda: _each(count, lambda: queue.dispatch(function, (1, 1, 1), bindings=[counter]).wait())


def _chain_case(part: str, title: str, goals: tuple[Goal, ...]) -> Case:
    sides: dict[str, Side] = {
        TIDEGATE: partial(_chain, part),
        TASK: partial(_iree_chain, part, TASK),
        SYNC: partial(_iree_chain, part, SYNC),
        STANDARD: partial(_pool_chain, part),
    }
    return Case(f"chain-{part}", title, {"": sides}, goals)


def _execute_case(name: str, title: str, filled: bool, count: int, limit: float) -> Case:
    sides: dict[str, Side] = {
        TIDEGATE: partial(_execute, filled, count),
        TASK: partial(_iree_execute, filled, count, TASK),
        SYNC: partial(_iree_execute, filled, count, SYNC),
        STANDARD: partial(_pool_execute, filled, count),
    }
    return Case(name, title, {"": sides}, (Ratio(limit), BusyAsIdle()), rounds=40, conditions=("idle", "busy"))


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    count = 20 if quick else 100
    wakes = Below(SWITCHES_NS, 0.99, "busy")
    return [
        _execute_case("execute", "empty execute + host wait", False, count, 0.25),
        _execute_case("fill", "execute a 64 KiB fill + host wait", True, count, 0.5),
        _chain_case("host", "chained execute: host cost of each", ()),
        _chain_case("total", "chained execute: total of each", (Ratio(0.6),)),
        Case(
            "host-call",
            "host call + host wait (must wake)",
            {"": {TIDEGATE: partial(_host_call, count), STANDARD: partial(_pool_execute, False, count)}},
            (wakes,),
            conditions=("idle", "busy"),
        ),
        Case(
            "dispatch",
            "C kernel of one workgroup + host wait (must wake)",
            {"": {TIDEGATE: partial(_dispatch, count)}},
            (wakes,),
            conditions=("idle", "busy"),
        ),
    ]
