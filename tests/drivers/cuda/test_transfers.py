"""Updates, uploads, downloads and frees as they go onto streams, above all behind waits; on the simulation."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate._core.device import Device
from tidegate.driver import Allocate, DeviceRequest
from tidegate.drivers.cuda import CudaDriver
from tidegate.drivers.cuda.staging import CAPACITY
from tidegate.drivers.cuda.transfers import STAGED, Arriving, Departing
from tidegate.testing import cuda_simulated

LIMIT = 30.0
MIB = 2**20


@pytest.fixture
def native() -> Iterator[Any]:
    made = cuda_simulated.native(seed=7)
    yield made
    assert not made.violations


@pytest.fixture
def device(native: Any) -> Iterator[Device]:
    driver = CudaDriver(lambda release_gil: native, cuda_simulated.SimulatedNvrtc)
    made = Device(driver, driver.open(DeviceRequest("cuda", "cuda")), "cuda", "")
    yield made
    made.close(LIMIT)


@pytest.fixture
def queue(device: Device) -> tg.Queue:
    return device.queue()


class Gate:
    """Something on a stream that waits for the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        driver: Any = device._driver
        with driver.entered():
            self._word = driver.native.allocate_host(8)
        self._value = ctypes.c_uint64.from_address(self._word)
        self._value.value = 0

    def close_behind(self) -> tg.Submission:
        """Have the device's next stream wait, and put a submission behind that."""
        driver: Any = self._device._driver
        scratch = self._device.allocate(4)
        with driver.entered(), driver.lock:
            driver.native.wait_value(driver.spare_stream().handle, self._word, 1)
        return self._device.queue().fill(scratch, 0)

    def open(self) -> None:
        self._value.value = 1


@pytest.fixture
def gate(device: Device) -> Iterator[Gate]:
    made = Gate(device)
    yield made
    made.open()


def held(device: Device) -> int:
    return device.statistics().held


def contents(buffer: tg.Buffer) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return buffer.to_numpy(np.uint8, timeout=LIMIT)


def numbered(nbytes: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


# Behind waits


@pytest.mark.parametrize("nbytes", [100, STAGED, STAGED + 1])
def test_an_upload_of_ordinary_memory_is_not_read_before_its_waits_are_over(
    device: Device, queue: tg.Queue, gate: Gate, nbytes: int
) -> None:
    buffer = device.allocate(nbytes)
    array = np.zeros(nbytes, np.uint8)
    uploaded = queue.upload(array, buffer, wait=gate.close_behind())
    array[:] = 9
    assert held(device) == 1
    gate.open()
    uploaded.wait(LIMIT)
    assert set(contents(buffer).tolist()) == {9}


@pytest.mark.parametrize("nbytes", [100, STAGED + 1])
def test_page_locked_arrays_go_down_on_open_waits_and_are_read_behind_them(
    device: Device, queue: tg.Queue, gate: Gate, nbytes: int
) -> None:
    buffer = device.allocate(nbytes)
    array = tg.pinned_empty(nbytes, np.uint8, device)  # type: ignore[arg-type]
    array[:] = 0
    uploaded = queue.upload(array, buffer, wait=gate.close_behind())
    assert held(device) == 0
    array[:] = 9
    gate.open()
    uploaded.wait(LIMIT)
    assert set(contents(buffer).tolist()) == {9}


@pytest.mark.parametrize("nbytes", [100, STAGED])
def test_a_small_download_goes_down_on_open_waits_and_fills_its_array_when_it_is_over(
    device: Device, queue: tg.Queue, gate: Gate, nbytes: int
) -> None:
    buffer = device.upload(np.full(nbytes, 3, np.uint8))
    before = gate.close_behind()
    filled = queue.fill(buffer, 8, wait=before)
    out = np.zeros(nbytes, np.uint8)
    downloaded = queue.download(buffer, out, wait=filled)
    assert held(device) == 0
    assert not out.any()
    gate.open()
    downloaded.wait(LIMIT)
    assert set(out.tolist()) == {8}


def test_a_large_download_waits_on_the_host(device: Device, queue: tg.Queue, gate: Gate) -> None:
    buffer = device.allocate(STAGED + 1)
    filled = queue.fill(buffer, 8, wait=gate.close_behind())
    out = np.zeros(STAGED + 1, np.uint8)
    downloaded = queue.download(buffer, out, wait=filled)
    assert held(device) == 1
    gate.open()
    downloaded.wait(LIMIT)
    assert set(out.tolist()) == {8}


def test_an_update_is_captured_at_the_call_and_goes_down_on_open_waits(
    device: Device, queue: tg.Queue, gate: Gate
) -> None:
    buffer = device.allocate(100)
    data = bytearray(b"a" * 100)
    updated = queue.update(buffer, data, wait=gate.close_behind())
    data[:] = b"b" * 100
    assert held(device) == 0
    gate.open()
    updated.wait(LIMIT)
    assert contents(buffer).tobytes() == b"a" * 100


@pytest.mark.parametrize("open_wait", [False, True])
def test_an_update_too_large_for_the_ring_arrives(device: Device, queue: tg.Queue, gate: Gate, open_wait: bool) -> None:
    data = numbered(CAPACITY + 5).tobytes()
    buffer = device.allocate(len(data))
    updated = queue.update(buffer, data, wait=gate.close_behind() if open_wait else None)
    gate.open()
    updated.wait(LIMIT)
    assert contents(buffer).tobytes() == data


# The ring's space


def test_more_updates_than_the_ring_holds_all_arrive(device: Device, queue: tg.Queue, gate: Gate) -> None:
    count = 2 * CAPACITY // STAGED + 3
    buffer = device.allocate(count * STAGED)
    before = gate.close_behind()
    data = [numbered(STAGED, index).tobytes() for index in range(count)]
    done = [queue.update(buffer, part, offset=index * STAGED, wait=before) for index, part in enumerate(data)]
    assert not any(each.done for each in done)
    gate.open()
    tg.wait_all(done, LIMIT)
    assert contents(buffer).tobytes() == b"".join(data)
    assert device._driver.staging.free == CAPACITY  # type: ignore[attr-defined]


def test_the_ring_is_whole_again_when_all_is_over(device: Device, queue: tg.Queue) -> None:
    buffer = device.allocate(5000)
    for index in range(300):
        queue.update(buffer, bytes([index & 255]) * 5000)
        queue.download(buffer, np.zeros(5000, np.uint8))
    queue.barrier(wait=[queue.upload(np.zeros(5000, np.uint8), buffer)]).wait(LIMIT)
    device.close(LIMIT)
    assert device._driver.staging.free == CAPACITY  # type: ignore[attr-defined]


def test_what_came_out_of_the_ring_is_copied_once(device: Device) -> None:
    """Called again after an interrupt, it must not copy what somebody else has put there since."""
    driver: Any = device._driver
    with driver.entered():
        piece = driver.staging.stage(b"mine")
    array = np.zeros(4, np.uint8)
    arriving = Arriving(array, piece)
    arriving.over()
    piece.bytes[:] = b"else"
    arriving.over()
    assert array.tobytes() == b"mine"


def test_arrays_are_let_go_when_their_transfer_is_over(device: Device, queue: tg.Queue) -> None:
    class Watched(np.ndarray[Any, Any]):
        pass

    buffer = device.allocate(MIB)
    for nbytes in (100, MIB):
        array = np.zeros(nbytes, np.uint8).view(Watched)
        gone = weakref.ref(array)
        queue.upload(array, buffer).wait(LIMIT)
        queue.download(buffer, array, length=nbytes).wait(LIMIT)
        del array
        gc.collect()
        assert gone() is None


# Edges


@pytest.mark.parametrize("nbytes", [0, 1, 8 * 1024, 8 * 1024 + 1, STAGED, STAGED + 1])
@pytest.mark.parametrize("locked", [False, True], ids=["pageable", "page-locked"])
def test_every_size_goes_there_and_back(device: Device, queue: tg.Queue, nbytes: int, locked: bool) -> None:
    data = numbered(nbytes)
    buffer = device.allocate(nbytes)
    if locked:
        source: Any = tg.pinned_empty(nbytes, np.uint8, device)  # type: ignore[arg-type]
        source[:] = data
        out: Any = tg.pinned_empty(nbytes, np.uint8, device)  # type: ignore[arg-type]
        out[:] = 0
    else:
        source, out = data, np.zeros(nbytes, np.uint8)
    queue.download(buffer, out, wait=queue.upload(source, buffer)).wait(LIMIT)
    assert np.array_equal(out, data)


def test_an_array_of_which_only_a_part_is_locked_goes_through_the_threads(
    device: Device, queue: tg.Queue, native: Any
) -> None:
    data = numbered(2 * STAGED)
    part = device._driver.wrap(data[:STAGED])
    buffer = device.allocate(data.nbytes)
    queue.upload(data, buffer).wait(LIMIT)
    assert np.array_equal(contents(buffer), data)
    del part


def test_read_only_arrays_can_be_uploaded(device: Device, queue: tg.Queue) -> None:
    buffer = device.allocate(2 * STAGED)
    for nbytes in (100, 2 * STAGED):
        data = np.frombuffer(numbered(nbytes).tobytes(), np.uint8)
        queue.upload(data, buffer).wait(LIMIT)
        assert np.array_equal(contents(buffer)[:nbytes], data)


# Memory in queue order


@pytest.mark.parametrize("memory", ["host", "shared"])
def test_page_locked_memory_in_queue_order_maps_once_it_is_ready(device: Device, queue: tg.Queue, memory: Any) -> None:
    gate = tg.Semaphore()
    buffer = queue.allocate(3 * MIB, memory=memory, wait=gate.at(1))
    gate.signal(1)
    buffer.ready.wait(LIMIT)
    with buffer.map("w", timeout=LIMIT) as mapped:
        mapped[:] = 5
    del mapped
    queue.free(buffer).wait(LIMIT)
    assert device.statistics().allocated_bytes == 0


def test_page_locked_memory_that_must_be_fetched_is_not_fetched_under_the_lock(
    device: Device, queue: tg.Queue, gate: Gate
) -> None:
    before = gate.close_behind()
    fresh = queue.allocate(3 * MIB, memory="shared", wait=before)
    assert held(device) == 1
    gate.open()
    fresh.ready.wait(LIMIT)


def test_a_pool_of_another_device_is_refused(device: Device, queue: tg.Queue) -> None:
    driver: Any = device._driver
    work = Allocate(queue.allocate(64)._memory, object())
    ticket: Any = type("Ticket", (), {"taken": False})()
    with pytest.raises(tg.InvalidArgumentError):
        driver.queue("compute", 0).issue(ticket, work, ())
    assert not ticket.taken


def test_a_free_of_nothing_is_over_at_once() -> None:
    stream: Any = None
    departing = Departing(lambda: None)
    departing.leave(stream)
    departing.over()
    departing.over()


def test_a_free_that_never_came_to_its_turn_gives_nothing_back() -> None:
    calls: list[int] = []
    release: Callable[[], Any] = lambda: calls.append(1)  # noqa: E731 - a function would hide what is counted
    Departing(release).over()
    assert calls == []
