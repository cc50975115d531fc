"""Memory of a CUDA device: the accounts, what a pool frees and when, and page-locked memory; on the simulation."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate._core.background import deferred
from tidegate._core.device import Device
from tidegate.driver import DeviceRequest
from tidegate.drivers.cuda import CudaDriver
from tidegate.drivers.cuda._native import NativeError
from tidegate.drivers.cuda.memory_account import Account, Departure
from tidegate.drivers.cuda.memory_pools import CudaStorage
from tidegate.drivers.cuda.page_locked import SLAB, busy, size_class
from tidegate.testing import cuda_simulated

LIMIT = 30.0
MIB = 2**20


@pytest.fixture
def native() -> Iterator[Any]:
    made = cuda_simulated.native(seed=3)
    yield made
    assert not made.violations


@pytest.fixture
def open_device(native: Any) -> Iterator[Callable[..., Device]]:
    driver = CudaDriver(lambda release_gil: native, cuda_simulated.SimulatedNvrtc)
    opened: list[Device] = []

    def make(**options: str) -> Device:
        device = Device(driver, driver.open(DeviceRequest("cuda", "cuda", "", options)), "cuda", "")
        opened.append(device)
        return device

    yield make
    for device in opened:
        device.close(LIMIT)


@pytest.fixture
def device(open_device: Callable[..., Device]) -> Device:
    return open_device()


@pytest.fixture
def small(open_device: Callable[..., Device]) -> Device:
    return open_device(memory="4MiB")


class Gate:
    """Something on a stream that waits for the host."""

    def __init__(self, device: Device) -> None:
        self._driver: Any = device._driver
        with self._driver.entered():
            self._word = self._driver.native.allocate_host(8)
        self._value = ctypes.c_uint64.from_address(self._word)
        self._value.value = 0
        self.queue = device.queue()

    def close_behind(self) -> tg.Submission:
        """Have the device's next stream wait, and put a submission behind that."""
        driver = self._driver
        with driver.entered(), driver.lock:
            driver.native.wait_value(driver.spare_stream().handle, self._word, 1)
        scratch = self.queue.device.allocate(4)
        return self.queue.fill(scratch, 0)

    def open(self) -> None:
        self._value.value = 1


@pytest.fixture
def gate_of(open_device: Callable[..., Device]) -> Iterator[Callable[[Device], Gate]]:
    gates: list[Gate] = []

    def make(device: Device) -> Gate:
        gates.append(Gate(device))
        return gates[-1]

    yield make
    for gate in gates:
        gate.open()


@pytest.fixture
def gate(device: Device, gate_of: Callable[[Device], Gate]) -> Gate:
    return gate_of(device)


def settled() -> None:
    """Everything that finalizers have left to the reaper is done."""
    gc.collect()
    done = threading.Event()
    deferred.ensure()
    deferred.leave(done.set)
    assert done.wait(LIMIT)


def storage_of(buffer: tg.Buffer) -> Any:
    storage = buffer._memory.storage
    assert storage is not None
    return storage


# The accounts


def test_bytes_that_leave_on_a_stream_serve_what_comes_behind_on_it_and_nobody_else() -> None:
    account = Account(100)
    account.take(80, from_kept=False)
    freed = Departure(80)
    account.leave(freed, stream=7)
    assert account.leaving_on(8, 50) is None
    assert account.leaving_on(7, 81) is None
    assert account.leaving_on(7, 50) is freed
    account.take_over(freed, 50)
    assert account.allocated == 80
    assert account.leaving_on(7, 31) is None
    assert account.leaving_on(7, 30) is freed


def test_bytes_come_back_once_and_only_those_that_nobody_took_over() -> None:
    account = Account(None)
    account.take(80, from_kept=False)
    freed = Departure(80)
    account.leave(freed, stream=7)
    account.take_over(freed, 50)
    for _ in range(2):
        account.arrive(freed)
        assert (account.allocated, account.pooled) == (50, 30)
    assert account.leaving_on(7, 1) is None


def test_a_taken_over_departure_is_not_offered_again() -> None:
    account = Account(None)
    account.take(80, from_kept=False)
    freed = Departure(80)
    account.leave(freed, stream=7)
    account.take_over(freed, 80)
    assert account.leaving_on(7, 0) is None
    account.arrive(freed)
    assert (account.allocated, account.pooled) == (80, 0)


def test_what_is_kept_counts_against_the_budget() -> None:
    account = Account(100)
    account.take(60, from_kept=False)
    account.arrive(Departure(60))
    assert not account.allows(50)
    account.take(60, from_kept=True)
    assert account.allows(40)
    assert not account.allows(41)
    assert account.statistics()["reuses"] == 1
    assert account.statistics()["peak_bytes"] == 60


def test_a_negative_budget_is_refused(device: Device) -> None:
    with pytest.raises(tg.InvalidArgumentError):
        device.create_pool(-1)


# Order


def test_a_chain_of_cycles_runs_ahead_of_a_stream_that_stands_still_in_the_memory_of_one(
    small: Device, gate_of: Callable[[Device], Gate]
) -> None:
    gate = gate_of(small)
    before = gate.close_behind()
    queue = small.queue()
    previous = before
    for _ in range(50):
        scratch = queue.allocate(3 * MIB, wait=previous)
        filled = queue.fill(scratch, 1, length=16, wait=scratch.ready)
        previous = queue.free(scratch, wait=filled)
    assert not before.done
    assert small.statistics().held == 0
    gate.open()
    previous.wait(LIMIT)
    assert small.statistics().peak_bytes <= 4 * MIB


def test_bytes_freed_on_a_stream_come_back_to_others_when_that_is_over(
    small: Device, gate_of: Callable[[Device], Gate]
) -> None:
    gate = gate_of(small)
    buffer = small.allocate(3 * MIB)
    before = gate.close_behind()
    free = small.queue().free(buffer, wait=before)
    other = small.queue().allocate(3 * MIB)
    with pytest.raises(tg.ResourceExhaustedError):
        small.allocate(3 * MIB)
    small.queue("upload").barrier().wait(LIMIT)
    assert not free.done
    served = threading.Event()
    lowlevel.when_over(other.ready, served.set)
    assert not served.is_set()
    gate.open()
    assert served.wait(LIMIT), "nobody looked, and nobody was told"
    assert other.ready.done


def test_a_buffer_closed_before_its_allocation_is_come_to_is_freed_behind_it(
    device: Device, gate: Gate, native: Any
) -> None:
    before = gate.close_behind()
    start = native.counts["allocations"]
    buffer = gate.queue.allocate(MIB, wait=before)
    assert device.statistics().held == 0
    buffer.close()
    assert native.counts["allocations"] == start + 1
    device.allocate(MIB).close()
    assert native.counts["allocations"] == start + 2, "one is kept until its stream has come to it, one is noted"
    gate.open()
    buffer.ready.wait(LIMIT)
    # The violations of the simulation tell if it was freed before.
    del buffer, before
    gc.collect()
    device.statistics()
    assert native.counts["allocations"] <= start


def test_immediate_memory_is_usable_at_once_on_every_stream(device: Device) -> None:
    buffers = [device.allocate(1000) for _ in range(20)]
    spans = sorted((storage_of(buffer).address, storage_of(buffer).address + 1000) for buffer in buffers)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    done = [device.queue().fill(buffer, index) for index, buffer in enumerate(buffers)]
    tg.wait_all(done, LIMIT)
    assert [buffer.read(timeout=LIMIT)[0] for buffer in buffers] == list(range(20))


# Out of memory


class Failing:
    """A native call that fails so many times."""

    def __init__(self, real: Callable[..., Any], times: int, error: BaseException, after: bool = False) -> None:
        self._real = real
        self._after = after
        self._error = error
        self.left = times
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.left:
            self.left -= 1
            if self._after:
                self._real(*arguments)
            raise self._error
        return self._real(*arguments)


OUT_OF_MEMORY = NativeError("cuMemAllocFromPoolAsync", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")


def test_no_memory_is_tried_again_once_after_a_trim(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.allocate(MIB).close()
    allocate = Failing(native.allocate, 1, OUT_OF_MEMORY)
    trim = Failing(native.trim_pool, 0, OUT_OF_MEMORY)
    monkeypatch.setattr(native, "allocate", allocate)
    monkeypatch.setattr(native, "trim_pool", trim)
    device.allocate(2 * MIB)
    assert (allocate.calls, trim.calls) == (2, 1)
    assert device.statistics().pooled_bytes == 0


def test_no_memory_at_all_is_resource_exhausted_and_leaves_the_accounts_alone(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.allocate(MIB)
    before = device.statistics()
    monkeypatch.setattr(native, "allocate", Failing(native.allocate, 2, OUT_OF_MEMORY))
    with pytest.raises(tg.ResourceExhaustedError) as caught:
        device.allocate(2 * MIB)
    assert caught.value.native_code == 2
    assert device.statistics().allocated_bytes == before.allocated_bytes
    assert device.statistics().allocations == before.allocations
    device.allocate(2 * MIB)


def test_another_error_of_an_allocation_is_not_tried_again(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = Failing(native.allocate, 1, NativeError("cuMemAllocFromPoolAsync", 1, "CUDA_ERROR_INVALID_VALUE", ""))
    monkeypatch.setattr(native, "allocate", allocate)
    with pytest.raises(tg.InvalidArgumentError):
        device.allocate(MIB)
    assert allocate.calls == 1


# Freed exactly once


@pytest.mark.parametrize("after", [False, True], ids=["before it came through", "after it came through"])
def test_an_interrupted_free_frees_once(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    buffer = device.allocate(MIB)
    start = native.counts["allocations"]
    free = Failing(native.free, 1, KeyboardInterrupt(), after)
    monkeypatch.setattr(native, "free", free)
    done = tg.Semaphore()
    with pytest.raises(KeyboardInterrupt):
        device.queue().free(buffer, signal=done.at(1))
    with pytest.raises(tg.SemaphoreFailedError):
        done.wait(1, LIMIT)
    gc.collect()
    device.statistics()
    assert native.counts["allocations"] == start - 1
    assert device.statistics().allocated_bytes == 0


def test_memory_that_is_handed_out_again_is_not_freed_by_the_free_that_was_interrupted(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one stream, so that the next allocation gets the very same address before the first free is settled."""
    driver: Any = device._driver
    pool = driver.default_pool
    with driver.entered(), driver.lock:
        stream = driver.spare_stream()
        first = pool.allocate_in_order(MIB, "device", stream)
        monkeypatch.setattr(native, "free", Failing(native.free, 1, KeyboardInterrupt(), after=True))
        with pytest.raises(KeyboardInterrupt):
            pool.free_in_order(first, stream)
        again = pool.allocate_in_order(MIB, "device", stream)
    assert again.address == first.address
    pool.freed(first)
    del first
    gc.collect()
    pool.statistics()
    assert native.counts["allocations"] == 1
    del again
    limit = time.monotonic() + LIMIT
    while native.counts["allocations"] and time.monotonic() < limit:
        pool.statistics()  # there is no epoch that would tell when the stream has come to the allocation
    assert native.counts["allocations"] == 0


def test_a_free_that_cuda_refuses_fails_and_the_memory_comes_back_all_the_same(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = device.allocate(MIB)
    start = native.counts["allocations"]
    error = NativeError("cuMemFreeAsync", 1, "CUDA_ERROR_INVALID_VALUE", "no")
    monkeypatch.setattr(native, "free", Failing(native.free, 1, error))
    free = device.queue().free(buffer)
    with pytest.raises(tg.SemaphoreFailedError):
        free.wait(LIMIT)
    gc.collect()
    assert device.statistics().allocated_bytes == 0
    assert native.counts["allocations"] == start - 1


def test_the_finalizer_of_a_storage_only_leaves_a_note(device: Device, native: Any) -> None:
    buffer = device.allocate(MIB)
    start = native.counts["allocations"]
    buffer.close()
    assert native.counts["allocations"] == start
    assert device.statistics().allocated_bytes == 0
    assert native.counts["allocations"] == start - 1


# Ends


def test_what_outlives_its_device_is_freed_when_it_is_let_go(open_device: Callable[..., Device], native: Any) -> None:
    device = open_device()
    storage = storage_of(device.allocate(MIB))
    assert isinstance(storage, CudaStorage)
    kept = device.allocate(4096, memory="shared")
    kept.write(b"still here")
    with kept.map() as mapped:
        array = mapped
    del kept, mapped
    device.close(LIMIT)
    assert native.counts["pools"] == 1
    assert native.counts["allocations"] == 1
    assert bytes(array[:10]) == b"still here"
    del storage, array
    settled()
    assert native.counts["allocations"] == 0
    assert native.counts["pools"] == 0
    assert native.counts["pinned"] == 0


def test_a_closed_device_leaves_nothing_behind(open_device: Callable[..., Device], native: Any) -> None:
    device = open_device()
    queue = device.queue()
    data = np.arange(300_000, dtype=np.uint8)
    buffer = device.upload(data)
    queue.update(buffer, b"abc").wait(LIMIT)
    assert buffer.to_numpy(np.uint8, timeout=LIMIT)[4] == 4
    device.allocate(100_000, memory="host").close()
    buffer.close()
    device.close(LIMIT)
    settled()
    assert {name: count for name, count in native.counts.items() if count and name != "libraries"} == {}


def test_a_pool_that_is_dropped_gives_its_native_pool_back(device: Device, native: Any) -> None:
    pool = device.create_pool(MIB)
    buffer = device.queue().allocate(1000, pool=pool)
    buffer.ready.wait(LIMIT)
    before = native.counts["pools"]
    del buffer, pool
    settled()
    assert native.counts["pools"] == before - 1
    assert native.counts["allocations"] == 0


def test_another_kind_of_memory_is_unsupported(device: Device) -> None:
    pool: Any = device._driver.default_pool
    for memory in ("managed", "peer"):
        with pytest.raises(tg.UnsupportedError, match=memory):
            pool.allocate(64, memory)


# Page-locked memory


def test_small_requests_share_a_block_of_page_locked_memory(device: Device, native: Any) -> None:
    first = device.allocate(1000, memory="shared")
    before = native.counts["pinned"]
    buffers = [first, *(device.allocate(1000, memory="shared") for _ in range(99))]
    assert native.counts["pinned"] == before
    for index, buffer in enumerate(buffers):
        buffer.write(bytes([index]) * 1000)
    assert [set(buffer.read(timeout=LIMIT)) for buffer in buffers] == [{index} for index in range(100)]


def test_a_block_that_is_full_is_followed_by_another(device: Device, native: Any) -> None:
    first = device.allocate(64 * 1024, memory="host")
    before = native.counts["pinned"]
    kept = [first, *(device.allocate(64 * 1024, memory="host") for _ in range(SLAB // (64 * 1024)))]
    assert native.counts["pinned"] == before + 1
    assert len({storage_of(buffer).address for buffer in kept}) == len(kept)


def test_page_locked_memory_is_used_again_by_size(device: Device, native: Any) -> None:
    first = device.allocate(100_000, memory="shared")
    address = storage_of(first).address
    first.close()
    before = native.counts["pinned"]
    again = device.allocate(size_class(100_000), memory="host")
    assert storage_of(again).address == address
    assert native.counts["pinned"] == before


def test_host_memory_counts_into_the_budget(small: Device) -> None:
    kept = small.allocate(3 * MIB, memory="shared")
    with pytest.raises(tg.ResourceExhaustedError):
        small.allocate(2 * MIB)
    with pytest.raises(tg.ResourceExhaustedError):
        small.allocate(2 * MIB, memory="host")
    kept.close()
    other = small.allocate(2 * MIB)
    assert other.nbytes == 2 * MIB
    assert small.statistics().allocated_bytes == 2 * MIB


@pytest.mark.parametrize("nbytes", [1, 255, 256, 257, 65536, 65537, 100_000, MIB, 5 * MIB + 1, 2**31 + 5])
def test_a_size_class_wastes_at_most_an_eighth_or_a_page(nbytes: int) -> None:
    assert nbytes <= size_class(nbytes) <= nbytes + max(4096, nbytes // 8)
    assert size_class(size_class(nbytes)) == size_class(nbytes)


def test_page_locked_memory_goes_back_only_while_no_device_of_the_process_works(
    open_device: Callable[..., Device], native: Any, gate_of: Callable[[Device], Gate]
) -> None:
    """A call that gave it back beside running work would block until that ends: the simulation raises then."""
    working, other = open_device(), open_device()
    gate = gate_of(working)
    blocked = gate.close_behind()
    assert busy(working._driver)  # type: ignore[arg-type]
    other.allocate(MIB, memory="shared").close()
    before = native.counts["pinned"]
    other.trim()
    assert native.counts["pinned"] == before
    gate.open()
    blocked.wait(LIMIT)
    other.trim()
    assert native.counts["pinned"] == before - 1


def test_two_devices_of_one_gpu_share_the_reserve(open_device: Callable[..., Device]) -> None:
    first, second = open_device(), open_device()
    buffer = first.allocate(MIB, memory="shared")
    address = storage_of(buffer).address
    buffer.close()
    assert storage_of(second.allocate(MIB, memory="shared")).address == address


# Arrays of others


def test_a_wrapped_array_is_used_where_it_lies(device: Device, native: Any) -> None:
    array = np.arange(1000, dtype=np.uint8)
    view = tg.from_dlpack(array, device=device)  # type: ignore[arg-type]
    assert native.counts["registered"] == 1
    device.queue().fill(view.buffer, 7, length=10).wait(LIMIT)
    assert array[:10].tolist() == [7] * 10
    assert array[10] == 10


def test_a_wrapped_array_is_let_go_when_nothing_runs(device: Device, native: Any, gate: Gate) -> None:
    array = np.arange(100_000, dtype=np.uint8)
    view = tg.from_dlpack(array, device=device)  # type: ignore[arg-type]
    blocked = gate.close_behind()
    del view
    settled()
    assert native.counts["registered"] == 1
    gate.open()
    blocked.wait(LIMIT)
    device.trim()
    assert native.counts["registered"] == 0


def test_memory_stays_while_it_is_registered(device: Device, native: Any, gate: Gate) -> None:
    """Its pages would go to somebody else while CUDA still copies from them."""
    gone = threading.Event()

    class Watched(np.ndarray[Any, Any]):
        def __del__(self) -> None:
            gone.set()

    array = np.zeros(100_000, np.uint8).view(Watched)
    storage = device._driver.wrap(array)  # type: ignore[arg-type]
    blocked = gate.close_behind()
    del storage, array
    settled()
    assert not gone.is_set()
    gate.open()
    blocked.wait(LIMIT)
    device.trim()
    settled()
    assert gone.is_set()


def test_an_array_wrapped_twice_is_registered_once_until_both_are_gone(device: Device, native: Any) -> None:
    array = np.arange(100_000, dtype=np.uint8)
    whole = device._driver.wrap(array)
    part = device._driver.wrap(array[10:2000])
    assert native.counts["registered"] == 1
    del whole
    settled()
    assert native.counts["registered"] == 1
    assert part.host() is not None
    del part
    settled()
    device.trim()
    assert native.counts["registered"] == 0


def test_arrays_that_overlap_a_locked_one_are_unsupported(device: Device) -> None:
    array = np.arange(100_000, dtype=np.uint8)
    part = device._driver.wrap(array[1000:2000])
    with pytest.raises(tg.UnsupportedError):
        device._driver.wrap(array[1500:3000])
    del part


def test_page_locked_memory_is_wrapped_as_it_is(device: Device, native: Any) -> None:
    array = tg.pinned_empty(5000, np.uint8, device)  # type: ignore[arg-type]
    storage = device._driver.wrap(array[100:200])
    assert native.counts["registered"] == 0
    assert storage.address == array.ctypes.data + 100  # type: ignore[attr-defined]


def test_read_only_arrays_are_not_wrapped(device: Device) -> None:
    array = np.zeros(100, np.uint8)
    array.flags.writeable = False
    with pytest.raises(tg.UnsupportedError, match="read-only"):
        device._driver.wrap(array)


def test_an_empty_array_is_wrapped_without_cuda(device: Device, native: Any) -> None:
    storage = device._driver.wrap(np.zeros(0, np.uint8))
    assert native.counts["registered"] == 0
    host = storage.host()
    assert host is not None
    assert host.shape == (0,)
