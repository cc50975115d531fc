"""From the GPU to a coroutine: how long it takes, and what the process does meanwhile.

A kernel watches a word of the host's. A thread stores there once the loop sleeps, and from then on the time counts: the
kernel sees it, ends, the epoch is written, the loop is woken, the coroutine goes on. So a figure has in it what the
store and the kernel's look take, a few microseconds across the bus, and it is the same for all sides.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

from .contestants import Contestants
from .cuda_bindings import Arguments, Raw
from .cuda_kernels import GATE, load_gate
from .cuda_launchers import ONE
from .cuda_sides import BINDINGS, CUPY, IREE, TIMEOUT, imported, real_device
from .goals import Below
from .model import TIDEGATE, Case, Missing, Sampler, Side
from .own_code import own_code

CROWD = 1000
LONG = 0.05
"""How long a coroutine waits while its process is looked at, in seconds."""


class Gate:
    """A kernel behind a word: `start` submits it, `open` lets it end, `arrive` gives what to await."""

    def __init__(
        self,
        start: Callable[[int], object],
        arrive: Callable[[int], Awaitable[Any]],
        open: Callable[[int], object],
    ) -> None:
        self.start = start
        self.arrive = arrive
        self.open = open


MakeGate = Callable[[Contestants], AbstractContextManager[Gate]]


@contextmanager
def _tidegate(contestants: Contestants) -> Iterator[Gate]:
    import tidegate as tg

    device = contestants.device
    queue, function, semaphore = device.queue(), load_gate(device), tg.Semaphore()
    buffer = device.allocate(64, memory="host")
    with buffer.map("rw") as mapped:
        words = mapped.view(np.uint32)
        words[:] = 0

        def start(value: int) -> None:
            queue.dispatch(function, ONE, bindings=[buffer], constants=[np.uint32(value)], signal=semaphore.at(value))

        yield Gate(start, semaphore.at, partial(words.__setitem__, 0))
    buffer.close()


class _RawGate:
    """The kernel and its word by cuda-bindings, for sides that only differ in how the loop is told."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.stream, self.function = raw.stream(), raw.function("gate", GATE)
        address = raw.host_memory(64)
        self.words = (ctypes.c_uint32 * 16).from_address(address)
        self.words[0] = 0
        self.value = ctypes.c_uint32()
        self.arguments = Arguments([ctypes.c_void_p(address), self.value])

    def launch(self, value: int) -> None:
        self.value.value = value
        self.raw.call("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, self.stream, self.arguments.address, 0)

    def open(self, value: int) -> None:
        self.words[0] = value


@contextmanager
def _bindings(contestants: Contestants) -> Iterator[Gate]:
    """Have a thread of the loop's executor sleep in the event: what asyncio offers for calls that block."""
    with Raw(contestants) as raw:
        gate, event = _RawGate(raw), raw.event(blocking=True)
        future: asyncio.Future[Any]

        def start(value: int) -> None:
            nonlocal future
            gate.launch(value)
            raw.call("cuEventRecord", event, gate.stream)
            future = asyncio.get_running_loop().run_in_executor(None, raw.driver.cuEventSynchronize, event)

        contestants.notes.setdefault(f"{BINDINGS}, awaits", "cuEventSynchronize, blocking, in the loop's executor")
        yield Gate(start, lambda _value: future, gate.open)


@contextmanager
def _cupy(contestants: Contestants) -> Iterator[Gate]:
    """The same with CuPy's event. Not by a host function of its stream, which runs Python on a thread of CUDA's.

    That thread wants the GIL, which Tidegate keeps in short calls into CUDA: see the option `gil=release`.
    """
    ordinal = real_device(contestants).ordinal
    cupy = imported("cupy", "cupy")
    with Raw(contestants) as raw, cupy.cuda.Device(ordinal):
        gate, stream = _RawGate(raw), cupy.cuda.Stream(non_blocking=True)
        gate.stream, event = stream.ptr, cupy.cuda.Event(block=True, disable_timing=True)
        future: asyncio.Future[Any]

        def start(value: int) -> None:
            nonlocal future
            gate.launch(value)
            event.record(stream)
            future = asyncio.get_running_loop().run_in_executor(None, event.synchronize)

        contestants.notes.setdefault(f"{CUPY}, awaits", "Event.synchronize, blocking, in the loop's executor")
        yield Gate(start, lambda _value: future, gate.open)
        stream.synchronize()


@contextmanager
def _iree(_contestants: Contestants) -> Iterator[Gate]:
    raise Missing("no dispatch in its Python bindings: no kernel that could watch a word")
    yield


class Opener:
    """A thread that opens the gate a while after it was told to, and notes when."""

    def __init__(self, gate: Gate, delay: float) -> None:
        self._gate, self._delay = gate, delay
        self._told: threading.Semaphore = threading.Semaphore(0)
        self._value: int | None = 0
        self._opened = 0
        self._sent = 0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def tell(self, value: int | None) -> None:
        self._value = value
        self._told.release()

    def _work(self) -> None:
        while self._told.acquire(timeout=TIMEOUT) and self._value is not None:
            time.sleep(self._delay)  # until the loop is back in its selector
            value, open_it = self._value, self._gate.open
            self._opened = value
            self._sent = perf_counter_ns()
            open_it(value)

    def since(self, value: int, at: int) -> float:
        """Return how long after the store for `value` something happened."""
        if self._opened != value or at < self._sent:
            raise RuntimeError("the kernel ended before its gate was opened")
        return float(at - self._sent)

    def stop(self) -> None:
        self.tell(None)
        self._thread.join(TIMEOUT)


async def _resumed(gate: Gate, value: int) -> int:
    await gate.arrive(value)
    return perf_counter_ns()


async def one_await(gate: Gate, first: int, count: int) -> list[float]:
    """Await `count` times, one after the other."""
    opener, samples = Opener(gate, 0.0003), []
    loop = asyncio.get_running_loop()
    for value in range(first, first + count):
        gate.start(value)
        loop.call_soon(opener.tell, value)
        at = await asyncio.wait_for(_resumed(gate, value), TIMEOUT)
        samples.append(opener.since(value, at))
    opener.stop()
    return samples


async def many_awaits(gate: Gate, first: int, count: int) -> list[float]:
    """Have a crowd of tasks await the same kernel; each has its own time."""
    opener, samples = Opener(gate, 0.002), []
    for value in range(first, first + count):
        gate.start(value)
        tasks = [asyncio.ensure_future(_resumed(gate, value)) for _ in range(CROWD)]
        await asyncio.sleep(0)
        opener.tell(value)
        done = await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT)
        samples += [opener.since(value, at) for at in done]
    opener.stop()
    return samples


async def processor_time(gate: Gate, first: int, count: int) -> list[float]:
    """Return the processor time of the whole process over one long await."""
    opener, samples = Opener(gate, LONG), []
    for value in range(first, first + count):
        gate.start(value)
        before = process_time_ns()
        opener.tell(value)
        await asyncio.wait_for(_resumed(gate, value), TIMEOUT)
        samples.append(float(process_time_ns() - before))
    opener.stop()
    return samples


Play = Callable[[Gate, int, int], Any]


@contextmanager
def _side(make: MakeGate, play: Play, count: int, contestants: Contestants) -> Iterator[Sampler]:
    mine, value = own_code(play), 1
    with make(contestants) as gate:

        def sample() -> list[float]:
            nonlocal value
            first, value = value, value + count
            return asyncio.run(mine(gate, first, count))

        try:
            yield sample
        finally:
            gate.open(2**31)  # whatever still watches


def _sides(play: Play, count: int) -> dict[str, dict[str, Side]]:
    makers: dict[str, MakeGate] = {TIDEGATE: _tidegate, BINDINGS: _bindings, CUPY: _cupy, IREE: _iree}
    return {"": {side: partial(_side, make, play, count) for side, make in makers.items()}}


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    count = 3 if quick else 20
    one = (Below(60e3), Below(11e6, condition="busy"))
    few = (Below(5e6),)
    title = f"processor time of the process over an await of {LONG * 1e3:g} ms"
    return [
        Case(
            "await", "kernel over -> coroutine goes on", _sides(one_await, count), one, 20, conditions=("idle", "busy")
        ),
        Case(
            "await-crowd",
            f"kernel over -> each of {CROWD} coroutines goes on",
            _sides(many_awaits, 1),
            (),
            rounds=12,
            conditions=("idle", "busy"),
        ),
        Case("await-processor", title, _sides(processor_time, 1 if quick else 3), few, rounds=5),
    ]
