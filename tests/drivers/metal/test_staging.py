"""The staging buffer: ranges that never overlap while the GPU reads them, room that comes back, and spilling."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.driver import Upload
from tidegate.drivers.metal.staging import ALIGNMENT, CAPACITY, Held

from .driver_bench import LIMIT, DriverBench, in_threads


def staged(metal: DriverBench) -> int:
    """How many bytes are reserved."""
    ranges = metal.inner.staging.ranges
    return ranges.capacity - ranges.free_bytes


def test_it_is_shared_write_combined_memory_of_128_kib(metal: DriverBench) -> None:
    staging = metal.inner.staging
    assert staging.ranges.capacity == CAPACITY == 128 * 1024
    buffer = staging._memory.storage.buffer
    assert (buffer.storageMode(), buffer.cpuCacheMode()) == (0, 1)


def test_ranges_are_aligned_for_arguments(metal: DriverBench) -> None:
    kept: list[Any] = []
    offsets = [metal.inner.staging.put(bytes(size), kept)[1] for size in (1, 100, 4096, 3)]
    assert ALIGNMENT == 256
    assert all(offset % 256 == 0 for offset in offsets)
    assert len(set(offsets)) == 4


def test_updates_in_flight_keep_their_ranges_and_their_data(metal: DriverBench) -> None:
    """Many updates wait in a native queue at once; each must still read its own bytes when its turn comes."""
    latch = metal.latch()
    point: Any = latch.block(metal.queue)
    buffers = [metal.device.allocate(1024) for _ in range(20)]
    for number, buffer in enumerate(buffers):
        point = metal.queue.update(buffer, bytes([number + 1]) * 1024, wait=point)
    assert staged(metal) == 20 * 1024
    latch.open()
    point.wait(LIMIT)
    assert [set(buffer.read(timeout=LIMIT)) for buffer in buffers] == [{number + 1} for number in range(20)]
    assert staged(metal) == 0


def test_room_comes_back_with_each_command_buffer_while_others_are_in_flight(metal: DriverBench) -> None:
    latch = metal.latch()
    blocked = metal.queue.update(metal.device.allocate(4096), bytes(4096), wait=latch.block(metal.queue))
    for _ in range(100):
        metal.queue.update(metal.device.allocate(8192), bytes(8192)).wait(LIMIT)
    assert staged(metal) == 4096
    assert metal.inner.staging.spills == 0
    latch.open()
    blocked.wait(LIMIT)
    assert staged(metal) == 0


def test_what_finds_no_room_or_never_could_spills_to_a_buffer_of_its_own(metal: DriverBench) -> None:
    latch = metal.latch()
    point: Any = latch.block(metal.queue)
    large = np.random.default_rng(2).integers(0, 256, CAPACITY + 4096, np.uint8).tobytes()
    buffers = [metal.device.allocate(40_000) for _ in range(8)]
    for number, buffer in enumerate(buffers):
        point = metal.queue.update(buffer, bytes([number + 1]) * 40_000, wait=point)
    most = metal.device.allocate(len(large))
    point = metal.queue.update(most, large, wait=point)
    assert metal.inner.staging.spills == 6
    latch.open()
    point.wait(LIMIT)
    assert [set(buffer.read(timeout=LIMIT)) for buffer in buffers] == [{number + 1} for number in range(8)]
    assert most.read(timeout=LIMIT) == large
    assert staged(metal) == 0


def test_failed_work_gives_its_room_back_too(metal: DriverBench) -> None:
    metal.native.fault("command_buffer")
    failed = metal.queue.update(metal.device.allocate(4096), bytes(4096))
    with pytest.raises(tg.SemaphoreFailedError):
        failed.wait(LIMIT)
    assert staged(metal) == 0


def test_refused_work_gives_its_room_back_at_once(metal: DriverBench) -> None:
    """The second binding is gone by the time the first is staged: nothing of the command buffer may stay taken."""
    buffer = metal.device.allocate(64)
    with metal.device.record() as commands:
        commands.update(metal.device.allocate(64), bytes(64))
        commands.fill(buffer, 1)
    gate = tg.Semaphore()
    late = metal.queue.execute(commands, wait=gate.at(1))
    metal.queue.free(buffer).wait(LIMIT)
    gate.signal(1)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        late.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.FailedPreconditionError)
    assert staged(metal) == 0


def test_a_reservation_inside_a_reservation_spills(metal: DriverBench) -> None:
    """As a finalizer or signal handler would make it, on the thread that holds the lock."""
    ranges = metal.inner.staging.ranges
    with ranges._lock:
        assert not Held(ranges, 16).take()
    held = Held(ranges, 16)
    assert held.take()


def test_eight_threads_reserve_at_once_and_no_two_ranges_overlap(metal: DriverBench, switch_often: None) -> None:
    reserve_in_eight_threads(metal)


class Reserved:
    """Who holds which range; finds out at once when two hold the same bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, tuple[int, int]] = {}

    def add(self, held: Held, nbytes: int) -> None:
        assert held.offset is not None
        begin, end = held.offset, held.offset + nbytes
        with self._lock:
            overlapping = [each for each in self._held.values() if each[0] < end and begin < each[1]]
            assert not overlapping, f"{begin}..{end} overlaps {overlapping}"
            self._held[id(held)] = (begin, end)

    def remove(self, held: Held) -> None:
        with self._lock:
            del self._held[id(held)]


def reserve_in_eight_threads(metal: DriverBench, rounds: int = 300) -> None:
    """Ranges of all sizes are reserved and given back all the time, until two overlap."""
    ranges = metal.inner.staging.ranges
    reserved = Reserved()
    spoilt = threading.Event()

    def run(number: int) -> None:
        random = np.random.default_rng(number)
        for _ in range(rounds):
            if spoilt.is_set():
                return
            try:
                reserve(random)
            except BaseException:
                spoilt.set()
                raise

    def reserve(random: np.random.Generator) -> None:
        mine = []
        for nbytes in random.integers(1, 2000, 4).tolist():
            held = Held(ranges, nbytes)
            if held.take():
                reserved.add(held, nbytes)
                mine.append(held)
        for held in mine:
            reserved.remove(held)

    in_threads(8, run)
    assert ranges.free_bytes == ranges.capacity, "room was lost"


def test_trimming_gives_back_what_spilling_has_left(metal: DriverBench) -> None:
    data = bytes(CAPACITY + 4096)
    metal.queue.update(metal.device.allocate(len(data)), data).wait(LIMIT)
    pool = metal.inner.staging._pool
    assert pool.statistics()["pooled_bytes"] >= len(data)
    metal.device.trim()
    assert pool.statistics()["pooled_bytes"] == 0


def test_closing_the_device_ends_the_copying_thread(metal: DriverBench) -> None:
    array = np.zeros(2**20, np.uint8)
    other = metal.open()
    other.queue().upload(array, other.allocate(array.nbytes)).wait(LIMIT)
    thread = other._driver.copier._thread  # type: ignore[attr-defined]
    other.close(LIMIT)
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_all_of_the_capacity_can_be_one_range(metal: DriverBench) -> None:
    held = Held(metal.inner.staging.ranges, CAPACITY)
    assert held.take()
    assert not Held(metal.inner.staging.ranges, 1).take()
    del held
    assert not Held(metal.inner.staging.ranges, CAPACITY + 1).take()
    assert staged(metal) == 0


def test_of_spilled_data_only_so_much_memory_is_kept(metal: DriverBench) -> None:
    pool = metal.inner.staging._pool
    blocks = [pool.allocate(2**20, "host") for _ in range(6)]
    del blocks
    assert pool.statistics()["pooled_bytes"] == 4 * 2**20


def test_the_copying_thread_holds_no_array_and_no_interpreter_back(metal: DriverBench) -> None:
    array = np.zeros(2**20, np.uint8)
    metal.queue.upload(array, metal.device.allocate(array.nbytes)).wait(LIMIT)
    thread = metal.inner.copier._thread
    assert thread is not None
    assert thread.daemon
    gone = threading.Event()
    weakref.finalize(array, gone.set)
    metal.device.statistics()
    del array
    gc.collect()
    assert gone.wait(LIMIT)


def test_the_gpu_waits_for_the_thread_that_copies(metal: DriverBench) -> None:
    """Two large uploads, both held up in the host's copy: neither is over, and both bring the right bytes then."""
    go_on, inside = threading.Event(), threading.Event()

    class Slow(np.ndarray[Any, Any]):
        """An array whose copying waits: `np.copyto` asks an array of a subclass first."""

        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            inside.set()
            assert go_on.wait(LIMIT)
            return function(*(np.asarray(each) for each in args), **kwargs)

    targets = [metal.device.allocate(2**20) for _ in range(2)]
    arrays = [np.full(2**20, number + 1, np.uint8) for number in range(2)]
    uploads = [
        metal.queue._submit(Upload(array.view(Slow), target), None, None)
        for array, target in zip(arrays, targets, strict=True)
    ]
    assert inside.wait(LIMIT)
    busy = [timeline for timeline in metal.timelines if timeline.flights]
    assert len(busy) == 2
    for timeline in busy:
        timeline.settle()
        assert not timeline.idle
    go_on.set()
    tg.wait_all(uploads, LIMIT)
    assert [set(target.read(timeout=LIMIT)) for target in targets] == [{1}, {2}]
