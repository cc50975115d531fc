"""Memory that other libraries were given: it outlives what they have on their streams, also on those that are gone.

The simulation takes a call with the handle of something destroyed for what it is on a card, the end of the process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.drivers.cuda.storage import ANY
from tidegate.drivers.cuda.stream import Stream

from .simulated_bench import LIMIT, SimulatedBench, bench, until

SIZE = 1 << 16
PER_THREAD = 2
LEGACY = 1


@pytest.fixture
def found() -> Iterator[SimulatedBench]:
    with bench() as made:
        yield made
    assert made.native.violations == []


class Foreign:
    """A stream of somebody else that waits until it is let go; it may be destroyed meanwhile."""

    def __init__(self, found: SimulatedBench) -> None:
        self._found = found
        self._word = found.shared(8)
        with found.driver.entered():
            self.handle = found.native.create_stream()
            found.native.wait_value(self.handle, self._word.locate()[0].address, 1)

    def use(self, address: int) -> None:
        with self._found.driver.entered():
            self._found.native.fill(address, 7, 1, SIZE, self.handle)

    def destroy(self) -> None:
        with self._found.driver.entered():
            self._found.native.destroy_stream(self.handle)

    def go_on(self) -> None:
        with self._word.map("rw", wait=()) as data:
            data.view(np.uint64)[0] = 1


def _buffer(device: tg.Device, pool: tg.Pool | None = None) -> tg.Buffer:
    if pool is None:
        return device.allocate(SIZE)
    buffer = device.queue().allocate(SIZE, pool=pool)
    buffer.ready.wait(LIMIT)
    return buffer


def _exported(found: SimulatedBench, stream: int, pool: Any = None) -> tuple[Any, int]:
    """Return what another library has of a buffer that nobody else keeps, and where it lies."""
    buffer = _buffer(found.device, pool)
    address = buffer.locate()[0].address  # type: ignore[attr-defined]
    return buffer.view(np.uint8).__dlpack__(stream=stream), address


def _allocated(found: SimulatedBench) -> int:
    gc.collect()
    return found.device.statistics().allocated_bytes


@contextmanager
def _at_rest(found: SimulatedBench) -> Iterator[None]:
    """Nothing more is allocated behind the block than before it."""
    before = _allocated(found)
    yield
    until(lambda: _allocated(found) <= before)


def test_memory_comes_back_although_the_stream_it_was_given_to_is_gone(found: SimulatedBench) -> None:
    with _at_rest(found):
        with found.foreign_stream() as stream:
            theirs, _ = _exported(found, stream)
        del theirs


def test_memory_outlives_what_is_left_of_a_stream_that_is_gone(found: SimulatedBench) -> None:
    foreign = Foreign(found)
    with _at_rest(found):
        theirs, address = _exported(found, foreign.handle)
        foreign.use(address)
        foreign.destroy()
        del theirs
        gc.collect()
        others = [found.device.allocate(SIZE) for _ in range(8)]
        assert address not in [other.locate()[0].address for other in others]  # type: ignore[attr-defined]
        foreign.go_on()
        del others


@pytest.mark.parametrize("handle", [PER_THREAD, -1], ids=["each thread's own", "nobody says which"])
def test_memory_outlives_work_on_a_stream_that_has_no_name_here(found: SimulatedBench, handle: int) -> None:
    foreign = Foreign(found)
    with _at_rest(found):
        theirs, address = _exported(found, handle)
        foreign.use(address)
        del theirs
        for _ in range(3):
            assert _allocated(found) >= SIZE
            with found.driver.entered():
                found.native.synchronize_stream(LEGACY)  # if that is what is waited for, it is over now
        foreign.go_on()
    foreign.destroy()


def test_memory_that_only_the_default_stream_has_does_not_wait_for_others(found: SimulatedBench) -> None:
    latch, blocked = found.latch()
    with _at_rest(found):
        theirs, _ = _exported(found, LEGACY)
        del theirs
    assert not blocked.done
    latch.open()


def test_memory_waits_for_the_end_of_a_capture_to_be_asked_for(found: SimulatedBench) -> None:
    (card,) = found.native.machine.cards
    with _at_rest(found), found.foreign_stream() as stream:
        theirs, _ = _exported(found, stream)
        card.capturing = True
        del theirs
        for _ in range(3):
            assert _allocated(found) >= SIZE
        card.capturing = False


def test_a_lost_device_lets_exported_memory_go(found: SimulatedBench) -> None:
    with found.foreign_stream() as stream:
        theirs, _ = _exported(found, stream)
        (card,) = found.native.machine.cards
        card.die(700)
        del theirs
        gc.collect()
        found.device.statistics()
        card.fault = 0  # for what the test has to destroy
    found.driver.doom(found.native.error("cuLaunchKernel", 700))


def test_a_driver_without_events_of_contexts_names_the_stream() -> None:
    with bench(without=["cuCtxRecordEvent"]) as found:
        foreign = Foreign(found)
        with _at_rest(found):
            theirs, address = _exported(found, foreign.handle)
            foreign.use(address)
            del theirs
            for _ in range(3):
                assert _allocated(found) >= SIZE
                with found.driver.entered():
                    found.native.synchronize_stream(LEGACY)
            foreign.go_on()
        with _at_rest(found):
            theirs, _ = _exported(found, -1)
            del theirs
        foreign.destroy()
    assert found.native.violations == []


@pytest.mark.parametrize("kept", ["the device's pool", "another pool"])
def test_a_device_that_is_closed_leaves_its_memory_to_who_still_uses_it(found: SimulatedBench, kept: str) -> None:
    native, other = found.native, found.open()
    pool = other.create_pool(4 * SIZE) if kept == "another pool" else None
    latch, _ = found.latch()  # page-locked memory stays: to give that back would wait for the foreign stream
    foreign = Foreign(found)
    before = native.counts.copy()
    buffer = _buffer(other, pool)
    theirs = buffer.view(np.uint8).__dlpack__(stream=foreign.handle)
    foreign.use(buffer.locate()[0].address)  # type: ignore[attr-defined]
    del buffer, theirs
    gc.collect()
    other.close(LIMIT)
    foreign.destroy()
    until(lambda: not {name for name in ("pools", "allocations", "events") if native.counts[name] > before[name]})
    foreign.go_on()
    latch.open()


def test_memory_let_go_of_behind_the_close_of_its_device_is_freed(found: SimulatedBench) -> None:
    native, other = found.native, found.open()
    before = native.counts.copy()
    pool = other.create_pool(4 * SIZE)
    buffers = [_buffer(other), _buffer(other, pool)]
    with found.foreign_stream() as stream:
        theirs = [buffer.view(np.uint8).__dlpack__(stream=stream) for buffer in buffers]
    other.close(LIMIT)
    assert pool.statistics().allocated_bytes == SIZE
    del buffers, theirs
    until(lambda: gc.collect() >= 0 and native.counts["pools"] <= before["pools"])
    until(lambda: native.counts["events"] <= before["events"] and native.counts["allocations"] <= before["allocations"])


def test_a_pool_that_is_dropped_leaves_its_memory_to_who_still_uses_it(found: SimulatedBench) -> None:
    native, foreign = found.native, Foreign(found)
    before = native.counts.copy()
    pool = found.device.create_pool(4 * SIZE)
    theirs, address = _exported(found, foreign.handle, pool)
    foreign.use(address)
    del theirs, pool
    until(lambda: gc.collect() >= 0 and native.counts["pools"] <= before["pools"])
    assert native.counts["allocations"] <= before["allocations"]
    foreign.go_on()
    foreign.destroy()


def test_a_pool_that_is_garbage_together_with_its_memory_is_destroyed_once(found: SimulatedBench) -> None:
    native = found.native
    before = native.counts["pools"]
    for closed in (False, True):
        other = found.open()
        for _ in range(4):
            pool = other.create_pool(SIZE)
            cycle: list[Any] = [_buffer(other, pool), pool]
            cycle.append(cycle)
        del pool, cycle
        if closed:
            other.close(LIMIT)
        until(lambda: gc.collect() >= 0 and native.counts["pools"] <= before)


def test_memory_of_a_stream_that_an_interrupt_left_without_an_epoch_comes_back(found: SimulatedBench) -> None:
    """Its stream may be gone by then, because the device was closed."""
    other = found.open()
    buffer = other.allocate(SIZE)
    other.queue().fill(buffer, 1).wait(LIMIT)
    driver: Any = other._driver
    block = buffer.locate()[0].block  # type: ignore[attr-defined]
    block.birth = next(stream for stream in driver.all_streams() if isinstance(stream, Stream))
    block.epoch = block.birth.issued + 1
    pools = found.native.counts["pools"]
    other.close(LIMIT)
    del buffer
    until(lambda: gc.collect() >= 0 and found.native.counts["pools"] < pools)


def test_no_handle_is_the_one_that_stands_for_any_stream(found: SimulatedBench) -> None:
    with found.foreign_stream() as stream:
        assert ANY < 0 < stream
    assert isinstance(found.device, tg.Device)
