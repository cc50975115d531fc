"""Every entry leaves the calling thread's CUDA context as it was, also where there was none."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate.conformance.threads import background

from .programs import LIMIT, REAL, counter, function, touch

pytestmark = pytest.mark.rules("M39")


class Bench:
    """What the entries use."""

    def __init__(self, device: tg.Device, driver: str, stream: int) -> None:
        self.device = device
        self.driver = driver
        self.stream = stream
        self.queue = device.queue()
        self.touch = function(device, touch)
        self.counter = counter(device)
        self.host = device.allocate(4096, memory="host")
        self.large = np.zeros(1 << 20, np.uint8)

    def signalled(self) -> tg.Timepoint:
        done = tg.Semaphore()
        self.queue.dispatch(self.touch, 1, bindings=[self.counter], signal=done.at(1))
        return done.at(1)

    def executed(self) -> None:
        for one_shot in (False, True):
            with self.device.record(one_shot=one_shot) as commands:
                commands.dispatch(self.touch, 1, bindings=[self.counter])
                commands.update(self.counter, b"1234")
            self.queue.execute(commands).wait(LIMIT)

    def allocated_in_order(self) -> None:
        scratch = self.queue.allocate(1 << 16)
        filled = self.queue.fill(scratch, 1, wait=scratch.ready)
        self.queue.free(scratch, wait=filled).wait(LIMIT)

    def opened(self) -> None:
        with tg.open_device(self.driver) as other:
            other.queue().fill(other.allocate(64), 1).wait(LIMIT)

    def refused(self) -> None:
        with pytest.raises(tg.ResourceExhaustedError):
            self.device.allocate(4 * self.device.info.memory_bytes)
        with pytest.raises(tg.CompileError):
            self.device.load("no such code")

    def lane_on_their_stream(self) -> None:
        self.device.lane(stream=self.stream).fill(self.counter, 1).wait(LIMIT)

    def mapped(self) -> None:
        with self.host.map("rw") as array:
            array[:] = 1


ENTRIES: dict[str, Callable[[Bench], object]] = {
    "allocate": lambda bench: bench.device.allocate(4096),
    "allocate host memory": lambda bench: bench.device.allocate(1 << 20, memory="host"),
    "upload": lambda bench: bench.device.upload(np.zeros(64, np.uint8)),
    "a large upload": lambda bench: bench.device.upload(bench.large),
    "load": lambda bench: bench.device.load(touch),
    "fill": lambda bench: bench.queue.fill(bench.counter, 1).wait(LIMIT),
    "update": lambda bench: bench.queue.update(bench.counter, b"abcd").wait(LIMIT),
    "copy": lambda bench: bench.queue.copy(bench.counter, bench.host, length=4).wait(LIMIT),
    "dispatch": lambda bench: bench.queue.dispatch(bench.touch, 1, bindings=[bench.counter]).wait(LIMIT),
    "download": lambda bench: bench.queue.download(bench.counter).result(LIMIT),
    "read": lambda bench: bench.counter.read(timeout=LIMIT),
    "execute": Bench.executed,
    "allocate in order": Bench.allocated_in_order,
    "map": Bench.mapped,
    "statistics": lambda bench: bench.device.statistics(),
    "trim": lambda bench: bench.device.trim(),
    "wait for a semaphore": lambda bench: bench.signalled().wait(LIMIT),
    "host call": lambda bench: bench.queue.host_call(lambda: None, wait=bench.signalled()).wait(LIMIT),
    "DLPack": lambda bench: bench.counter.view(np.uint32).__dlpack__(stream=bench.stream),
    "the array interface": lambda bench: bench.counter.view(np.uint32).__cuda_array_interface__,
    "an event": lambda bench: lowlevel.cuda_event(bench.device, bench.signalled()),
    "a stream that waits": lambda bench: lowlevel.cuda_stream_wait(bench.device, bench.stream, bench.signalled()),
    "a position of a stream": lambda bench: lowlevel.from_cuda_stream(bench.device, bench.stream).wait(LIMIT),
    "a lane on a stream": Bench.lane_on_their_stream,
    "what is refused": Bench.refused,
    "open and close": Bench.opened,
    "list_devices": lambda bench: tg.list_devices(),
}


@contextmanager
def _another_context(driver: str, native: Any) -> Iterator[int]:
    """Give a context that is not the one the driver uses, current on this thread."""
    if driver != REAL:
        context = native.primary_context(1)
        native.push_context(context)
        yield context
        native.pop_context()
        native.release_primary_context(1)
        return
    library, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert library.cuCtxCreate_v2(ctypes.byref(handle), 0, 0) == 0  # and it is current
    yield int(handle.value or 0)
    assert library.cuCtxDestroy_v2(handle) == 0


@contextmanager
def _ours(driver: str, native: Any) -> Iterator[int]:
    context = native.primary_context(0)
    native.push_context(context)
    yield context
    native.pop_context()
    native.release_primary_context(0)


@contextmanager
def _none(driver: str, native: Any) -> Iterator[int]:
    yield 0


@pytest.mark.parametrize("place", [_none, _ours, _another_context], ids=["none", "the shared one", "another one"])
def test_the_current_context_is_the_same_behind_every_entry(
    device: tg.Device, driver: str, theirs: Any, native: Any, place: Any
) -> None:
    bench = Bench(device, driver, theirs.stream)

    def changed() -> list[str]:
        with place(driver, native) as context:
            found = []
            for name, entry in ENTRIES.items():
                entry(bench)
                if native.current_context() != context:
                    found.append(name)
            return found

    assert background(changed).result(4 * LIMIT) == []


def test_threads_that_wait_have_no_context_left_behind_either(device: tg.Device, native: Any) -> None:
    bench = Bench(device, "", 0)

    def waits() -> int:
        bench.signalled().wait(LIMIT)
        return int(native.current_context())

    assert {background(waits).result() for _ in range(8)} == {0}
