"""What the driver makes is released: objects that belong to it, pools that interrupts left, and what Metal refuses."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance import kernels
from tidegate.drivers.metal import _native
from tidegate.testing import metal_simulated

from .driver_bench import LIMIT, DriverBench
from .test_memory import storage_of

MIB = 2**20


@pytest.fixture(params=[False, True], ids=["held-twice", "held-once"])
def metal(request: Any) -> Any:
    """The driver over a PyObjC that holds new objects once too often, and over one that does not."""
    made = DriverBench(owns_new=request.param)
    yield made
    made.close()


def used(metal: DriverBench) -> int:
    gc.collect()
    metal.device.trim()
    with metal.native.autorelease_pool():
        return int(metal.inner.handle.currentAllocatedSize())


@pytest.mark.parametrize("memory", ["device", "host", "shared"])
def test_memory_goes_back_to_metal_when_it_is_trimmed(metal: DriverBench, memory: Any) -> None:
    before = used(metal)
    buffers = [metal.device.allocate(8 * MIB, memory=memory), metal.device.allocate(4096, memory=memory)]
    assert used(metal) >= before + 8 * MIB
    buffers.clear()
    assert used(metal) == before


def test_nothing_that_the_driver_made_is_held_twice(metal: DriverBench) -> None:
    increment = kernels.load(metal.device, kernels.increment)
    counters = metal.upload()
    metal.queue.dispatch(increment, 1, bindings=[counters], constants=[64]).wait(LIMIT)
    metal.queue.fill(counters, 1, offset=1, length=3).wait(LIMIT)
    assert metal.inner.events.new_event() is not None
    assert not metal.native.simulation.held_twice


def test_a_program_that_is_dropped_leaves_no_pipeline(metal: DriverBench) -> None:
    function = metal.host_kernel(lambda *_arguments: None)
    pipeline = weakref.ref(function._function.pipeline)  # type: ignore[attr-defined]
    del function
    gc.collect()
    assert pipeline() is None


def test_the_heaps_of_a_closed_device_are_gone(metal: DriverBench) -> None:
    device = metal.open()
    heap = weakref.ref(storage_of(device.allocate(4096)).buffer.heap())
    assert heap() is not None
    device.close(LIMIT)
    metal._devices.remove(device)
    del device
    gc.collect()
    assert heap() is None


# Pools


class Runtime:
    """The pools of one thread, as the Objective-C runtime has them: popping one pops those inside it."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.made = 0

    def push(self) -> int:
        self.made += 1
        self.open.append(self.made)
        return self.made

    def pop(self, token: int) -> None:
        assert token in self.open, "the runtime ends the process"
        del self.open[self.open.index(token) :]


def test_a_pool_that_an_interrupt_left_open_ends_with_the_one_around_it() -> None:
    runtime = Runtime()
    kept = _native.AutoreleasePool(runtime.push, runtime.pop)
    with _native.AutoreleasePool(runtime.push, runtime.pop):
        kept.__enter__()  # and never left: the interrupt came when it was about to be
        with _native.AutoreleasePool(runtime.push, runtime.pop):
            assert runtime.open == [1, 2, 3]
        assert runtime.open == [1, 2]
    assert not runtime.open
    del kept
    assert runtime.made == 3


def test_the_frameworks_are_loaded_with_pools_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()

    def push() -> int:
        return runtime.push()

    def pop(token: int) -> None:
        runtime.pop(token)

    process = SimpleNamespace(objc_autoreleasePoolPush=push, objc_autoreleasePoolPop=pop)
    monkeypatch.setattr(_native.ctypes, "CDLL", lambda name: {None: process}[name])
    metal = metal_simulated.native()
    for name in ("Metal", "libdispatch"):
        monkeypatch.setitem(sys.modules, name, metal)
    loaded = _native.load()
    with loaded.autorelease_pool(), loaded.autorelease_pool():
        assert len(runtime.open) == 2
    assert not runtime.open
    assert (push.restype, pop.argtypes) == (ctypes.c_void_p, [ctypes.c_void_p])  # type: ignore[attr-defined]
    assert set(vars(loaded)) == set(_native.Native.__annotations__)
    metal.close()


# What Metal refuses


def test_a_device_whose_queues_metal_does_not_make_is_not_opened(metal: DriverBench) -> None:
    for kind in ("queue", "event"):
        metal.native.fault(kind)
        with pytest.raises(tg.ResourceExhaustedError, match="metal makes no"):
            metal.open()


def test_an_event_that_metal_does_not_make_is_an_error(metal: DriverBench) -> None:
    metal.native.fault("event")
    with pytest.raises(tg.ResourceExhaustedError, match="shared event"):
        metal.inner.events.new_event()


@pytest.mark.parametrize("what", ["new_commands", "blit_encoder", "compute_encoder"])
def test_work_for_which_metal_makes_no_object_fails_and_leaves_nothing(
    metal: DriverBench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    buffer = metal.upload()

    def refused(_owner: Any, rest: Any) -> None:
        if isinstance(rest, list):
            rest.append(None)

    done = tg.Semaphore()
    with monkeypatch.context() as patch:
        patch.setattr(_native, what, refused)
        start = 1 if what == "compute_encoder" else 0
        metal.queue.fill(buffer, 1, offset=start, length=4, signal=done.at(1))
        with pytest.raises(tg.SemaphoreFailedError, match="metal makes no"):
            done.wait(1, LIMIT)
    assert not any(timeline.flights for timeline in metal.timelines)
    metal.queue.fill(buffer, 1).wait(LIMIT)
    assert set(buffer.to_numpy(np.uint8, timeout=LIMIT).tolist()) == {1}
