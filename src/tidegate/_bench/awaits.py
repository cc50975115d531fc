"""From a signal to the coroutine that goes on: signalled by another thread, and by the loop's own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import perf_counter_ns
from typing import Any

from .contestants import Contestants, iree_runtime
from .executions import SWITCHES_NS
from .goals import Below, BusyAsIdle
from .model import STANDARD, TASK, TIDEGATE, Case, Sampler, Side
from .own_code import own_code


class Gate:
    """What a coroutine awaits, one value after the other, and what opens it."""

    def __init__(self, arrive: Callable[[int], Awaitable[Any]], signal: Callable[[int], object]) -> None:
        self.arrive = arrive
        self.signal = signal


MakeGate = Callable[[], AbstractContextManager[Gate]]
"""Called on the running loop."""


def _tidegate_gate() -> AbstractContextManager[Gate]:
    import tidegate as tg

    semaphore = tg.Semaphore()
    return nullcontext(Gate(semaphore.at, semaphore.signal))


@contextmanager
def _iree_gate(device: Any) -> Iterator[Gate]:
    bridge = iree_runtime().HalDeviceLoopBridge(device, asyncio.get_running_loop())
    semaphore = device.create_semaphore(0)
    try:
        yield Gate(lambda value: bridge.on_semaphore(semaphore, value, True), semaphore.signal)
    finally:
        bridge.stop()


def _standard_gate() -> AbstractContextManager[Gate]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None]

    def arrive(_value: int) -> Awaitable[None]:
        nonlocal future
        future = loop.create_future()
        return future

    return nullcontext(Gate(arrive, lambda _value: loop.call_soon_threadsafe(future.set_result, None)))


async def _from_a_thread(make: MakeGate, count: int) -> list[float]:
    """Have another thread signal once the loop sleeps."""
    armed, sent, samples = threading.Semaphore(0), 0, []

    def signaller(signal: Callable[[int], object]) -> None:
        nonlocal sent
        for value in range(1, count + 1):
            armed.acquire()
            time.sleep(0.0003)  # until the loop is back in its selector
            sent = perf_counter_ns()
            signal(value)

    with make() as gate:
        thread = threading.Thread(target=signaller, args=(gate.signal,), daemon=True)
        thread.start()
        for value in range(1, count + 1):
            arrival = gate.arrive(value)
            asyncio.get_running_loop().call_soon(armed.release)
            await arrival
            samples.append(float(perf_counter_ns() - sent))
        thread.join()
    return samples[1:]


async def _from_the_loop(make: MakeGate, count: int) -> list[float]:
    """Have a callback of the same loop signal."""
    sent, samples = 0, []

    def send(value: int) -> None:
        nonlocal sent
        sent = perf_counter_ns()
        gate.signal(value)

    with make() as gate:
        for value in range(1, count + 1):
            arrival = gate.arrive(value)
            asyncio.get_running_loop().call_soon(send, value)
            await arrival
            samples.append(float(perf_counter_ns() - sent))
    return samples[1:]


Play = Callable[[MakeGate, int], Any]


@contextmanager
def _side(play: Play, count: int, side: str, contestants: Contestants) -> Iterator[Sampler]:
    make: MakeGate = _standard_gate if side == STANDARD else _tidegate_gate
    if side == TASK:
        make = partial(_iree_gate, contestants.iree(side))
    mine = own_code(play)
    yield lambda: asyncio.run(mine(make, count))


def _sides(play: Play, count: int) -> dict[str, dict[str, Side]]:
    return {"": {side: partial(_side, play, count, side) for side in (TIDEGATE, TASK, STANDARD)}}


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    count = 20 if quick else 40
    return [
        Case(
            "signal-await",
            "signal by a thread -> await goes on (must wake)",
            _sides(_from_a_thread, count),
            (Below(SWITCHES_NS, 0.5, "busy"), Below(SWITCHES_NS, 0.99, "busy")),
            conditions=("idle", "busy"),
        ),
        Case(
            "signal-await-same",
            "signal on the loop's own thread -> await goes on",
            _sides(_from_the_loop, count),
            (BusyAsIdle(),),
            conditions=("idle", "busy"),
        ),
    ]
