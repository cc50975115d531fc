"""Many on one semaphore: callbacks, held submissions, awaiting tasks. What each costs must not grow with the crowd."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Any

from .contestants import Contestants
from .executions import iree_recorded, nothing, recorded
from .goals import Below, Flat
from .model import STANDARD, SYNC, TASK, TIDEGATE, Case, Missing, Sampler, Side

Measure = Callable[[Contestants, int], float]
"""Makes a crowd of that size, lets it go, and returns nanoseconds for each."""


def _sized(measure: Measure, count: int) -> Side:
    @contextmanager
    def side(contestants: Contestants) -> Iterator[Sampler]:
        yield lambda: [measure(contestants, count)]

    return side


def _callbacks(own_values: bool, contestants: Contestants, count: int) -> float:
    semaphore, fired = contestants.semaphores(TIDEGATE)(), [0]

    def callback(_timepoint: object, _outcome: object, _error: object) -> None:
        fired[0] += 1

    start = perf_counter_ns()
    for value in range(1, count + 1):
        semaphore.at(value if own_values else 1).add_callback(callback)
    semaphore.signal(count)
    cost = (perf_counter_ns() - start) / count
    assert fired[0] == count
    return cost


def _future_callbacks(_contestants: Contestants, count: int) -> float:
    future: Future[None] = Future()
    fired = [0]

    def callback(_future: Future[None]) -> None:
        fired[0] += 1

    start = perf_counter_ns()
    for _ in range(count):
        future.add_done_callback(callback)
    future.set_result(None)
    cost = (perf_counter_ns() - start) / count
    assert fired[0] == count
    return cost


def _fan(contestants: Contestants, count: int) -> float:
    queue, commands = contestants.device.queue(), recorded(contestants.device, False)
    make = contestants.semaphores(TIDEGATE)
    gate, ends = make(), [make() for _ in range(count)]
    start = perf_counter_ns()
    for end in ends:
        queue.execute(commands, wait=gate.at(1), signal=end.at(1))
    gate.signal(1)
    for end in ends:
        end.wait(1)
    return (perf_counter_ns() - start) / count


def _iree_fan(contestants: Contestants, count: int) -> float:
    device = contestants.iree(TASK)
    gate, ends = device.create_semaphore(0), [device.create_semaphore(0) for _ in range(count)]
    pairs = [(end, iree_recorded(device)) for end in ends]
    start = perf_counter_ns()
    for end, commands in pairs:
        device.queue_execute(commands, [(gate, 1)], [(end, 1)])
    gate.signal(1)
    for end in ends:
        end.wait(1)
    return (perf_counter_ns() - start) / count


def _pool_fan(_contestants: Contestants, count: int) -> float:
    gate: Future[None] = Future()
    ends: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool:
        start = perf_counter_ns()
        for _ in range(count):
            gate.add_done_callback(lambda _gate: ends.append(pool.submit(nothing)))
        gate.set_result(None)
        for end in ends:
            end.result()
        return (perf_counter_ns() - start) / count


def _backwards(contestants: Contestants, count: int) -> float:
    queue, commands = contestants.device.queue(), recorded(contestants.device, False)
    semaphore = contestants.semaphores(TIDEGATE)()
    start = perf_counter_ns()
    for value in range(count, 0, -1):
        queue.execute(commands, wait=semaphore.at(value), signal=semaphore.at(value + 1))
    semaphore.signal(1)
    semaphore.wait(count + 1)
    return (perf_counter_ns() - start) / count


def _iree_backwards(contestants: Contestants, count: int) -> float:
    device = contestants.iree(TASK)
    semaphore = device.create_semaphore(0)
    links = [(value, iree_recorded(device)) for value in range(count, 0, -1)]
    start = perf_counter_ns()
    for value, commands in links:
        device.queue_execute(commands, [(semaphore, value)], [(semaphore, value + 1)])
    semaphore.signal(1)
    semaphore.wait(count + 1)
    return (perf_counter_ns() - start) / count


def _pool_backwards(_contestants: Contestants, count: int) -> float:
    """Each link submits the next from a worker: callbacks that call one another would exhaust the stack."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        start = perf_counter_ns()
        follow: Callable[[], object] = over.set
        for _ in range(count):
            follow = partial(pool.submit, follow)
        follow()
        over.wait()
        return (perf_counter_ns() - start) / count


def _tasks(contestants: Contestants, count: int) -> float:
    return asyncio.run(_await_all(count, partial(_arrival, contestants.semaphores(TIDEGATE)())))


def _arrival(semaphore: Any) -> tuple[Callable[[], Any], Callable[[], object]]:
    async def arrive() -> None:
        await semaphore.at(1)

    return arrive, partial(semaphore.signal, 1)


def _event_tasks(_contestants: Contestants, count: int) -> float:
    def make() -> tuple[Callable[[], Any], Callable[[], object]]:
        event = asyncio.Event()
        return event.wait, event.set

    return asyncio.run(_await_all(count, make))


async def _await_all(count: int, make: Callable[[], tuple[Callable[[], Any], Callable[[], object]]]) -> float:
    arrive, signal = make()
    start = perf_counter_ns()
    tasks = [asyncio.ensure_future(arrive()) for _ in range(count)]
    await asyncio.sleep(0)  # all of them arrive
    signal()
    for task in tasks:
        await task
    return (perf_counter_ns() - start) / count


@contextmanager
def _blocks(_contestants: Contestants) -> Iterator[Sampler]:
    raise Missing("cannot: its execute blocks on a wait")
    yield


@contextmanager
def _unbound(_contestants: Contestants) -> Iterator[Sampler]:
    raise Missing("not in its Python bindings")
    yield


Sides = Mapping[str, Measure]


def _case(name: str, title: str, large: int, small: int, sides: Sides, below: float | None, missing: Side) -> Case:
    names = {f"{count:,}": count for count in (large, small)}
    variants: dict[str, dict[str, Side]] = {
        variant: {side: _sized(measure, count) for side, measure in sides.items()} for variant, count in names.items()
    }
    for variant in variants.values():
        variant.update({side: missing for side in (TASK, SYNC) if side not in variant})
    flat = Flat(f"{large:,}", f"{small:,}")
    goals = (flat,) if below is None else (flat, Below(below, variant=f"{large:,}"))
    return Case(name, title, variants, goals, rounds=15, crowded=True)


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    callbacks, tasks = (50_000, 20_000) if quick else (200_000, 100_000)
    fan: Sides = {TIDEGATE: _fan, TASK: _iree_fan, STANDARD: _pool_fan}
    backwards: Sides = {TIDEGATE: _backwards, TASK: _iree_backwards, STANDARD: _pool_backwards}
    same: Sides = {TIDEGATE: partial(_callbacks, False), STANDARD: _future_callbacks}
    own: Sides = {TIDEGATE: partial(_callbacks, True), STANDARD: _future_callbacks}
    waiters: Sides = {TIDEGATE: _tasks, STANDARD: _event_tasks}
    return [
        _case("callbacks", "callbacks on one timepoint, add and fire each", callbacks, 10_000, same, 6e3, _unbound),
        _case("callbacks-own", "callbacks at a value of their own, each", callbacks, 10_000, own, None, _unbound),
        _case("held", "held submissions freed by one signal, each", 10_000, 1_000, fan, None, _blocks),
        _case("held-reverse", "held chain given in reverse order, each", 10_000, 1_000, backwards, None, _blocks),
        _case("waiters", "tasks that await one semaphore, each", tasks, 10_000, waiters, None, _unbound),
    ]
