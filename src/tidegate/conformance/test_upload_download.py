"""Upload and download: arrays that are borrowed, filled and given back."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import tidegate as tg

from .buffers import GUARD, downloaded, guarded, numbered
from .latches import LIMIT
from .witnesses import assert_still_claimable

pytestmark = [pytest.mark.rules("M27"), pytest.mark.needs("work")]


# Upload


def test_an_upload_writes_an_array_at_its_offset(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(100, dtype=np.float32)
    buffer = guarded(device, 416)
    found = downloaded(queue, buffer, queue.upload(data, buffer, offset=12))
    assert found[12:412].tobytes() == data.tobytes()
    assert set(found[:12].tolist()) == set(found[412:].tolist()) == {GUARD}


def test_an_upload_takes_strided_data_in_c_order(device: tg.Device, queue: tg.Queue) -> None:
    grid = np.arange(24, dtype=np.int32).reshape(4, 6)
    for data in (grid.T, grid[::2], grid[:, ::3], grid[::-1, ::-1], grid[1:3, 2:4]):
        buffer = guarded(device, data.nbytes)
        found = downloaded(queue, buffer, queue.upload(data, buffer))
        assert found.tobytes() == data.tobytes()


def test_a_large_upload_is_exact(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(5 * 2**20 + 1)
    buffer = guarded(device, data.nbytes)
    assert np.array_equal(downloaded(queue, buffer, queue.upload(data, buffer)), data)


@pytest.mark.rules("M18", "M27")
def test_an_upload_borrows_its_array_and_holds_no_copy(device: tg.Device, queue: tg.Queue) -> None:
    data = np.zeros(100_000, np.uint8)
    buffer = guarded(device, data.nbytes)
    gate = tg.Semaphore()
    uploaded = queue.upload(data, buffer, wait=gate.at(1))
    data[:] = 9
    gate.signal(1)
    assert set(downloaded(queue, buffer, uploaded).tolist()) == {9}


@pytest.mark.rules("M18", "M27")
def test_an_upload_keeps_its_array_until_it_retires_and_no_longer(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(100_000)
    expected = data.copy()
    buffer = guarded(device, data.nbytes)
    gate = tg.Semaphore()
    released = threading.Event()
    weakref.finalize(data, released.set)
    uploaded = queue.upload(data, buffer, wait=gate.at(1))
    del data
    gc.collect()
    assert not released.is_set()
    gate.signal(1)
    uploaded.wait(LIMIT)
    gc.collect()
    assert released.wait(LIMIT)
    assert np.array_equal(downloaded(queue, buffer), expected)


@pytest.mark.rules("M18", "M21", "M27")
def test_a_cancelled_upload_gives_its_array_back(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(4096)
    buffer = guarded(device, data.nbytes)
    gate = tg.Semaphore()
    released = threading.Event()
    weakref.finalize(data, released.set)
    uploaded = queue.upload(data, buffer, wait=gate.at(1))
    assert uploaded.cancel()
    assert isinstance(uploaded.error, tg.AbortedError)
    del data
    gc.collect()
    assert released.wait(LIMIT)
    gate.signal(1)
    assert set(downloaded(queue, buffer).tolist()) == {GUARD}


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(("offset", "length"), [(0, 65), (64, 1), (65, 0), (1, 64)])
def test_an_upload_past_the_end_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, offset: int, length: int
) -> None:
    buffer = guarded(device, 64)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.OutOfRangeError):
        queue.upload(np.zeros(length, np.uint8), buffer, offset=offset, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


# Download


def test_a_download_makes_an_array_of_the_asked_type_and_shape(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    buffer = device.upload(data)
    found = queue.download(buffer, dtype=np.float32, shape=(4, 6)).result(LIMIT)
    assert found.dtype == np.float32
    assert np.array_equal(found, data)
    flat = queue.download(buffer, dtype=np.float32).result(LIMIT)
    assert flat.shape == (24,)
    plain = queue.download(buffer).result(LIMIT)
    assert plain.dtype == np.uint8
    assert plain.tobytes() == data.tobytes()


def test_a_download_of_a_range_takes_just_that_range(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(200, dtype=np.uint8)
    buffer = device.upload(data)
    for offset, length in ((0, 200), (0, 0), (200, 0), (3, 1), (7, 90), (100, None)):
        found = queue.download(buffer, offset=offset, length=length).result(LIMIT)
        stop = 200 if length is None else offset + length
        assert np.array_equal(found, data[offset:stop]), (offset, length)


def test_a_download_fills_the_given_array_and_returns_it(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(12, dtype=np.int64)
    buffer = device.upload(data)
    out = np.zeros((3, 4), np.int64)
    assert queue.download(buffer, out).result(LIMIT) is out
    assert np.array_equal(out, data.reshape(3, 4))


def test_a_download_fills_a_strided_array_in_c_order(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(12, dtype=np.int16)
    buffer = device.upload(data)
    frame = np.full((8, 4), -1, np.int16)
    out = frame[1:7:2]
    queue.download(buffer, out).wait(LIMIT)
    assert np.array_equal(out, data.reshape(3, 4))
    assert set(frame[::2].ravel().tolist()) == {-1}


@pytest.mark.rules("M18", "M27")
def test_a_buffer_closed_while_a_download_into_a_strided_array_is_held_still_serves(
    device: tg.Device, queue: tg.Queue
) -> None:
    buffer, gate = device.upload(np.full(8, 5, np.uint8)), tg.Semaphore()
    frame = np.zeros(16, np.uint8)
    held = queue.download(buffer, frame[::2], wait=gate.at(1))
    buffer.close()
    gate.signal(1)
    held.wait(LIMIT)
    assert frame.tolist() == [5, 0] * 8


@pytest.mark.rules("M27", "M35")
def test_closing_drains_a_download_into_a_strided_array(open_device: Callable[..., tg.Device]) -> None:
    """A host call still runs when the close begins, and the download follows from it alone."""
    device = open_device()
    queue = device.queue()
    inside, let_go = threading.Event(), threading.Event()
    refused: list[BaseException] = []
    buffer, frame = device.upload(np.full(8, 5, np.uint8)), np.zeros(16, np.uint8)

    def call() -> None:
        inside.set()
        assert let_go.wait(LIMIT)
        try:
            queue.download(buffer)
        except tg.ClosedError as error:
            refused.append(error)

    called = queue.host_call(call)
    out = frame[::2]
    read = queue.download(buffer, out, wait=called)
    assert inside.wait(LIMIT)
    with pytest.raises(tg.DeadlineExceededError):
        device.close(timeout=0)
    let_go.set()
    device.close(timeout=LIMIT)
    assert read.result(LIMIT) is out
    assert frame.tolist() == [5, 0] * 8
    assert len(refused) == 1, "what a host call submits meanwhile is refused"


def test_a_download_leaves_the_given_array_alone_until_its_wait_is_met(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.upload(np.full(64, 5, np.uint8))
    out = np.full(64, GUARD, np.uint8)
    gate = tg.Semaphore()
    held = queue.download(buffer, out, wait=gate.at(1))
    assert set(downloaded(queue, buffer).tolist()) == {5}
    assert set(out.tolist()) == {GUARD}
    assert not held.done
    gate.signal(1)
    held.wait(LIMIT)
    assert set(out.tolist()) == {5}


@pytest.mark.rules("M18", "M27")
def test_a_dropped_download_still_fills_the_given_array(device: tg.Device, queue: tg.Queue) -> None:
    out = np.zeros(5000, np.uint8)
    gate, done = tg.Semaphore(), tg.Semaphore()
    queue.download(device.upload(np.full(5000, 3, np.uint8)), out, wait=gate.at(1), signal=done.at(1))
    gc.collect()
    gate.signal(1)
    done.wait(1, LIMIT)
    assert set(out.tolist()) == {3}


@pytest.mark.rules("M11", "M21", "M27")
def test_a_download_can_be_awaited_for_its_array(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(100, dtype=np.float64)
    buffer = device.upload(data)

    async def fetch() -> object:
        return await asyncio.wait_for(_await(queue.download(buffer, dtype=np.float64)), LIMIT)

    assert np.array_equal(np.asarray(asyncio.run(fetch())), data)


async def _await(submission: tg.Submission) -> object:
    return await submission


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(("offset", "length"), [(0, 65), (64, 1), (65, None), (60, 8)])
def test_a_download_past_the_end_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, offset: int, length: int | None
) -> None:
    buffer = guarded(device, 64)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.OutOfRangeError):
        queue.download(buffer, offset=offset, length=length, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
