"""Semaphores alone: query, signal, a wait that is already satisfied, and two threads that play ping-pong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Any

from .contestants import Contestants
from .goals import Below, BusyAsIdle, Ratio
from .model import SIDES, STANDARD, Case, Sampler
from .own_code import own_code
from .standard import LockPair

BATCH = 1000
"""Operations per sample: one alone is shorter than the clock is sharp."""


def _query(semaphore: Any, _payload: int) -> float:
    query = semaphore.query
    start = perf_counter_ns()
    for _ in range(BATCH):
        query()
    return (perf_counter_ns() - start) / BATCH


def _signal(semaphore: Any, payload: int) -> float:
    signal = semaphore.signal
    start = perf_counter_ns()
    for value in range(payload + 1, payload + 1 + BATCH):
        signal(value)
    return (perf_counter_ns() - start) / BATCH


def _wait(semaphore: Any, payload: int) -> float:
    wait = semaphore.wait
    start = perf_counter_ns()
    for _ in range(BATCH):
        wait(payload)
    return (perf_counter_ns() - start) / BATCH


Batch = Callable[[Any, int], float]
"""Takes a semaphore and its payload, and returns nanoseconds per operation."""


@contextmanager
def _alone(batch: Batch, side: str, contestants: Contestants) -> Iterator[Sampler]:
    semaphore, take = contestants.semaphores(side)(), own_code(batch)
    semaphore.signal(1)
    payload = 1

    def once() -> float:
        nonlocal payload
        cost = take(semaphore, payload)
        payload += BATCH if batch is _signal else 0
        return cost

    # Ten short batches rather than a long one: beside a busy thread only the batches in which the GIL changes hands
    # suffer, and the median tells what a call costs that needs nobody's help.
    yield lambda: [once() for _ in range(10)]


@contextmanager
def _ping_pong(trips: int, side: str, contestants: Contestants) -> Iterator[Sampler]:
    make: Callable[[], Any] = LockPair if side == STANDARD else contestants.semaphores(side)
    yield partial(own_code(_play), make, trips)


def _play(make: Callable[[], Any], trips: int) -> Sequence[float]:
    ping, pong = make(), make()

    def partner() -> None:
        for value in range(1, trips + 1):
            ping.wait(value)
            pong.signal(value)

    thread = threading.Thread(target=partner, daemon=True)
    thread.start()
    samples = []
    for value in range(1, trips + 1):
        start = perf_counter_ns()
        ping.signal(value)
        pong.wait(value)
        samples.append(float(perf_counter_ns() - start))
    thread.join()
    return samples[trips // 10 :]  # the first trips find the partner not yet running


def _case(name: str, title: str, batch: Batch, limit: float) -> Case:
    sides = {"": {side: partial(_alone, batch, side) for side in SIDES}}
    return Case(name, title, sides, (Ratio(limit), BusyAsIdle()), rounds=60, conditions=("idle", "busy"))


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    trips = 20 if quick else 50
    return [
        _case("query", "semaphore: query", _query, 1.1),
        _case("signal", "semaphore: signal", _signal, 1.4),
        _case("wait", "semaphore: satisfied wait", _wait, 0.7),
        Case(
            "ping-pong",
            "two threads over two semaphores, round trip",
            {"": {side: partial(_ping_pong, trips, side) for side in SIDES}},
            (Ratio(0.5), Below(20e6, 0.99, "busy")),
            conditions=("idle", "busy"),
        ),
    ]
