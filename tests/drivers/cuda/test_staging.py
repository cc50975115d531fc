"""The staging ring, the gaps it is made of, and the threads that move large data; on the simulation."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate._core.device import Device
from tidegate.driver import DeviceRequest
from tidegate.drivers.cuda import CudaDriver
from tidegate.drivers.cuda._native import NativeError
from tidegate.drivers.cuda.encoding import NotNow
from tidegate.drivers.cuda.native.compiled import Gaps, Piece
from tidegate.drivers.cuda.staging import StagingRing
from tidegate.drivers.cuda.transfer_engine import SLOT, TransferEngine
from tidegate.testing import cuda_simulated

LIMIT = 30.0
MIB = 2**20


@pytest.fixture
def native() -> Iterator[Any]:
    made = cuda_simulated.native(seed=5)
    yield made
    assert not made.violations


@pytest.fixture
def open_device(native: Any) -> Iterator[Callable[[], Device]]:
    driver = CudaDriver(lambda release_gil: native, cuda_simulated.SimulatedNvrtc)
    opened: list[Device] = []

    def make() -> Device:
        device = Device(driver, driver.open(DeviceRequest("cuda", "cuda")), "cuda", "")
        opened.append(device)
        return device

    yield make
    for device in opened:
        device.close(LIMIT)


@pytest.fixture
def device(open_device: Callable[[], Device]) -> Device:
    return open_device()


@pytest.fixture
def ring(device: Device) -> Iterator[StagingRing]:
    driver: Any = device._driver
    made = StagingRing(driver, 4096)
    with driver.entered():
        yield made
    made.close()


def numbered(nbytes: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


# Gaps


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1, 8, 16]), st.integers(0, 5)), max_size=60))
def test_ranges_that_are_out_never_overlap_and_all_space_comes_back(
    steps: list[tuple[int, int, int]],
) -> None:
    gaps = Gaps(256)
    out: list[Piece] = []
    for nbytes, alignment, given_back in steps:
        piece = gaps.take(nbytes, alignment)
        if piece is None:
            assert gaps.free < 256
        else:
            assert piece.begin % alignment == 0
            assert piece.end - piece.begin == nbytes
            assert all(piece.end <= other.begin or other.end <= piece.begin for other in out)
            out.append(piece)
        for _ in range(min(given_back, len(out))):
            gaps.give(out.pop(len(out) // 2))
        assert gaps.free == 256 - sum(piece.end - piece.begin for piece in out)
    for piece in out:
        gaps.give(piece)
    assert gaps.take(256, 1) is not None


def test_a_range_given_twice_is_free_once() -> None:
    gaps = Gaps(100)
    first = gaps.take(50, 1)
    assert first is not None
    gaps.give(first)
    again = gaps.take(50, 1)
    assert again is not None
    gaps.give(first)
    assert gaps.free == 50


def test_ranges_are_handed_out_in_a_circle() -> None:
    gaps = Gaps(100)
    first, second = gaps.take(40, 1), gaps.take(40, 1)
    assert first is not None
    assert second is not None
    gaps.give(first)
    third = gaps.take(20, 1)
    assert third is not None
    assert third.begin == 80, "what was just given back comes last"


# The ring


def test_the_ring_takes_no_page_locked_memory_before_its_first_use(device: Device, native: Any) -> None:
    driver: Any = device._driver
    before, ring = native.counts["pinned"], StagingRing(driver, MIB)
    assert ring.free == MIB
    assert native.counts["pinned"] == before
    with driver.entered():
        ring.take(10)
    assert native.counts["pinned"] == before + 1
    ring.close()


def test_what_is_staged_lies_at_the_address_of_its_piece(ring: StagingRing, device: Device) -> None:
    pieces = [ring.stage(bytes([value]) * 100) for value in range(10)]
    target = device.allocate(1000)
    storage: Any = target._memory.storage
    native: Any = device._driver.native  # type: ignore[attr-defined]
    stream = native.create_stream()
    for index, piece in enumerate(pieces):
        native.copy(storage.address + 100 * index, piece.address, 100, stream)
    native.synchronize_stream(stream)
    native.destroy_stream(stream)
    assert target.to_numpy(np.uint8, timeout=LIMIT).tolist() == [value for value in range(10) for _ in range(100)]


def test_a_full_ring_says_not_now_until_a_piece_is_released(ring: StagingRing) -> None:
    pieces = [ring.take(1024) for _ in range(4)]
    with pytest.raises(NotNow):
        ring.take(1)
    pieces[2].release()
    assert ring.take(1000).bytes.nbytes == 1000


def test_a_piece_released_twice_comes_back_once(ring: StagingRing) -> None:
    pieces = [ring.take(1024) for _ in range(4)]
    pieces[0].release()
    again = ring.take(1024)
    pieces[0].release()
    assert ring.free == 0
    again.release()
    assert ring.free == 1024


def test_a_piece_that_is_dropped_comes_back(ring: StagingRing) -> None:
    pieces = [ring.take(1024) for _ in range(4)]
    del pieces
    gc.collect()
    assert ring.free == 4096


def test_whoever_interrupts_a_reservation_gets_none_of_its_own(ring: StagingRing) -> None:
    with ring._lock, pytest.raises(NotNow):
        ring.take(10)
    ring.take(10)


def test_threads_that_reserve_at_once_never_share_a_byte(ring: StagingRing, device: Device) -> None:
    wrong: list[int] = []

    def use(value: int) -> None:
        with device._driver.entered():  # type: ignore[attr-defined]
            for _ in range(200):
                try:
                    piece = ring.take(500)
                except NotNow:
                    continue
                piece.bytes[:] = bytes([value]) * 500
                if set(piece.bytes) != {value}:
                    wrong.append(value)
                piece.release()

    threads = [threading.Thread(target=use, args=(value,), daemon=True) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not wrong
    assert ring.free == 4096


# Large data


@pytest.mark.parametrize("nbytes", [64 * 1024 + 1, MIB, SLOT - 1, SLOT, SLOT + 1, 3 * SLOT + 12345])
def test_large_data_goes_there_and_back_unchanged(device: Device, nbytes: int) -> None:
    data = numbered(nbytes)
    buffer = device.allocate(nbytes + 7)
    queue = device.queue()
    queue.upload(data, buffer, offset=7).wait(LIMIT)
    out = np.zeros(nbytes, np.uint8)
    queue.download(buffer, out, offset=7, length=nbytes).wait(LIMIT)
    assert np.array_equal(out, data)


def test_many_transfers_both_ways_share_the_threads(device: Device) -> None:
    sources = [numbered(200_000 * (1 + index), index) for index in range(8)]
    buffers = [device.allocate(source.nbytes) for source in sources]
    queue = device.queue()
    outs = [np.zeros_like(source) for source in sources]
    done = []
    for source, buffer, out in zip(sources, buffers, outs, strict=True):
        up = queue.upload(source, buffer)
        done.append(queue.download(buffer, out, wait=up))
    tg.wait_all(done, LIMIT)
    assert all(np.array_equal(out, source) for out, source in zip(outs, sources, strict=True))
    engine: TransferEngine = device._driver.transfers  # type: ignore[attr-defined]
    assert not engine.busy
    assert len(engine._threads) <= engine.workers


def test_memory_that_the_host_sees_is_copied_straight(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = numbered(3 * MIB)
    buffer = device.allocate(data.nbytes, memory="shared")
    monkeypatch.setattr(native, "copy", None)
    device.queue().upload(data, buffer).wait(LIMIT)
    out = np.zeros_like(data)
    device.queue().download(buffer, out).wait(LIMIT)
    assert np.array_equal(out, data)


def test_there_are_no_threads_before_the_first_large_transfer_and_none_after_the_end(
    open_device: Callable[[], Device],
) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("tidegate-cuda-transfer")]

    before = len(threads())
    device = open_device()
    buffer = device.upload(np.zeros(1000, np.uint8))
    assert len(threads()) == before
    device.queue().upload(np.zeros(100_000, np.uint8), device.allocate(100_000)).wait(LIMIT)
    assert len(threads()) == before + 1, "one piece wakes one thread"
    del buffer
    device.close(LIMIT)
    assert len(threads()) == before


@pytest.mark.parametrize("upload", [True, False], ids=["upload", "download"])
def test_a_piece_that_fails_fails_its_transfer_and_no_other(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch, upload: bool
) -> None:
    real = native.copy
    calls: list[int] = []

    def copy(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise NativeError("cuMemcpyAsync", 1, "CUDA_ERROR_INVALID_VALUE", "no")
        real(*arguments)

    data = numbered(4 * SLOT)
    buffer = device.allocate(data.nbytes)
    queue = device.queue()
    monkeypatch.setattr(native, "copy", copy)
    first = queue.upload(data, buffer) if upload else queue.download(buffer, data.copy())
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        first.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.InvalidArgumentError)
    queue.upload(data, buffer).wait(LIMIT)
    out = np.zeros_like(data)
    queue.download(buffer, out).wait(LIMIT)
    assert np.array_equal(out, data)


def test_slots_that_cannot_be_had_fail_the_transfer(
    device: Device, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> int:
        raise NativeError("cuMemHostAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")

    buffer = device.allocate(MIB)
    monkeypatch.setattr(native, "allocate_host", none)
    first = device.queue().upload(numbered(MIB), buffer)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        first.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.ResourceExhaustedError)
    monkeypatch.undo()
    device.queue().upload(numbered(MIB), buffer).wait(LIMIT)


def test_the_storage_is_let_go_before_the_end_is_told(open_device: Callable[[], Device]) -> None:
    """Whoever waits for the upload may need just that memory."""
    device = open_device()
    queue = device.queue()
    data = numbered(2 * MIB)
    buffer = device.allocate(data.nbytes)
    found: list[int] = []
    done = queue.upload(data, buffer)
    buffer.close()
    done.wait(LIMIT)
    found.append(device.statistics().allocated_bytes)
    assert found == [0]
