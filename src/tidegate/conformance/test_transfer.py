"""Fill, update, copy, upload and download: the bytes asked for move, and no others.

Fresh memory is undefined, so every buffer starts out full of a guard byte, and every sweep
compares the whole buffer afterwards: a transfer that strays shows up at its edges.
"""

import array
import asyncio
import gc
import itertools
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tidegate as tg

from .latches import LIMIT

GUARD = 0xCD

SHORT_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 28, 31, 32, 33, 63, 64, 100, 255, 256, 1000, 1023, 4096)
LONG_LENGTHS = (16384, 16388, 65532, 65535, 65536)

pytestmark = [pytest.mark.rules("M27"), pytest.mark.needs("work")]


def guarded(device: tg.Device, nbytes: int) -> tg.Buffer:
    return device.upload(np.full(nbytes, GUARD, np.uint8))


def numbered(nbytes: int, seed: int = 1) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def contents(queue: tg.Queue, buffer: tg.Buffer, wait: tg.Submission | None = None) -> npt.NDArray[np.uint8]:
    out = np.zeros(buffer.nbytes, np.uint8)
    queue.download(buffer, out, wait=wait).wait(LIMIT)
    return out


def assert_still_claimable(queue: tg.Queue, point: tg.Timepoint) -> None:
    """A refused call moved no signal and left its claim free for somebody else."""
    assert not point.reached
    assert point.semaphore.failure is None
    queue.barrier(signal=point).wait(LIMIT)
    assert point.reached


# Fill


@pytest.mark.parametrize("pattern", [b"\xa5", b"\xa5\x5a", b"\x01\x02\x03\x04"], ids=["1", "2", "4"])
def test_a_short_fill_writes_its_range_and_leaves_the_edges_alone(
    device: tg.Device, queue: tg.Queue, pattern: bytes
) -> None:
    size = len(pattern)
    buffer = guarded(device, 31 + max(SHORT_LENGTHS) + 32)
    for offset in range(0, 32, size):
        for length in (n for n in SHORT_LENGTHS if n % size == 0):
            reset = queue.fill(buffer, GUARD)
            filled = queue.fill(buffer, pattern, offset=offset, length=length, wait=reset)
            expected = np.full(buffer.nbytes, GUARD, np.uint8)
            expected[offset : offset + length] = np.frombuffer(pattern * (length // size), np.uint8)
            assert np.array_equal(contents(queue, buffer, filled), expected), (offset, length)


@pytest.mark.parametrize("pattern", [b"\xa5", b"\xa5\x5a", b"\x01\x02\x03\x04"], ids=["1", "2", "4"])
def test_a_long_fill_writes_its_range_and_leaves_the_edges_alone(
    device: tg.Device, queue: tg.Queue, pattern: bytes
) -> None:
    size = len(pattern)
    buffer = guarded(device, 31 + max(LONG_LENGTHS) + 32)
    for offset in (n for n in (0, 1, 2, 4, 7, 16, 28, 30, 31) if n % size == 0):
        for length in (n for n in LONG_LENGTHS if n % size == 0):
            reset = queue.fill(buffer, GUARD)
            filled = queue.fill(buffer, pattern, offset=offset, length=length, wait=reset)
            expected = np.full(buffer.nbytes, GUARD, np.uint8)
            expected[offset : offset + length] = np.frombuffer(pattern * (length // size), np.uint8)
            assert np.array_equal(contents(queue, buffer, filled), expected), (offset, length)


def test_a_fill_takes_an_integer_for_a_byte(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 64)
    for value in (0, 1, 127, 128, 255):
        assert contents(queue, buffer, queue.fill(buffer, value)).tolist() == [value] * 64


def test_a_fill_without_a_length_runs_to_the_end(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 40)
    found = contents(queue, buffer, queue.fill(buffer, b"\x01\x02", offset=6))
    assert found.tolist() == [GUARD] * 6 + [1, 2] * 17


def test_a_fill_of_a_subspan_counts_from_its_start_and_stays_inside(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 64)
    found = contents(queue, buffer, queue.fill(buffer.subspan(16, 32), 7, offset=4))
    assert found.tolist() == [GUARD] * 20 + [7] * 28 + [GUARD] * 16


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        (b"", {}),
        (b"abc", {}),
        (b"abcde", {}),
        (256, {}),
        (-1, {}),
        (b"ab", {"offset": 1, "length": 2}),
        (b"ab", {"length": 3}),
        (b"abcd", {"offset": 2, "length": 4}),
        (b"abcd", {"length": 6}),
    ],
)
def test_a_fill_with_a_wrong_pattern_or_alignment_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, pattern: bytes | int, options: dict[str, Any]
) -> None:
    buffer = guarded(device, 64)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError):
        queue.fill(buffer, pattern, signal=semaphore.at(1), **options)
    assert_still_claimable(queue, semaphore.at(1))
    assert contents(queue, buffer).tolist() == [GUARD] * 64


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(("offset", "length"), [(0, 65), (64, 1), (65, None), (65, 0), (60, 8), (2**63, 4)])
def test_a_fill_past_the_end_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, offset: int, length: int | None
) -> None:
    buffer = guarded(device, 64)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.OutOfRangeError):
        queue.fill(buffer, 1, offset=offset, length=length, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


# Update


def test_an_update_replaces_a_whole_buffer(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(1000)
    buffer = guarded(device, 1000)
    assert np.array_equal(contents(queue, buffer, queue.update(buffer, data)), data)


def test_an_update_of_any_length_and_offset_leaves_the_edges_alone(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 1100)
    for offset, length in itertools.product((0, 1, 2, 3, 5, 8, 13, 31), (0, 1, 2, 3, 5, 7, 11, 64, 127, 999, 1024)):
        data = numbered(length, seed=offset + length)
        reset = queue.fill(buffer, GUARD)
        expected = np.full(buffer.nbytes, GUARD, np.uint8)
        expected[offset : offset + length] = data
        found = contents(queue, buffer, queue.update(buffer, data, offset=offset, wait=reset))
        assert np.array_equal(found, expected), (offset, length)


@pytest.mark.parametrize("length", [65535, 65536, 65537, 2 * 65536 + 1, 3 * 65536 + 17])
def test_an_update_through_a_queue_may_be_larger_than_a_recorded_one(
    device: tg.Device, queue: tg.Queue, length: int
) -> None:
    data = numbered(length)
    buffer = guarded(device, length + 16)
    found = contents(queue, buffer, queue.update(buffer, data, offset=3))
    assert np.array_equal(found[3 : 3 + length], data)
    assert set(found[:3].tolist()) == set(found[3 + length :].tolist()) == {GUARD}


@pytest.mark.parametrize(
    "data",
    [
        b"abcdefgh",
        bytearray(b"abcdefgh"),
        memoryview(b"abcdefgh"),
        memoryview(b"-a-b-c-d-e-f-g-h")[1::2],
        array.array("H", [1, 2, 300, 4]),
        np.arange(2, dtype=np.float32),
        np.arange(4, dtype=np.int16).reshape(2, 2).T,
        np.arange(16, dtype=np.uint8)[::-2],
        np.array(1.5),
    ],
    ids=["bytes", "bytearray", "memoryview", "strided-memoryview", "array", "float32", "transposed", "reversed", "0-d"],
)
def test_an_update_takes_any_buffer_object_in_c_order(device: tg.Device, queue: tg.Queue, data: object) -> None:
    buffer = guarded(device, 8)
    expected = memoryview(data).tobytes()  # type: ignore[arg-type]
    assert contents(queue, buffer, queue.update(buffer, data)).tobytes() == expected


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(("offset", "length"), [(0, 65), (64, 1), (65, 0), (1, 64)])
def test_an_update_past_the_end_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, offset: int, length: int
) -> None:
    buffer = guarded(device, 64)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.OutOfRangeError):
        queue.update(buffer, bytes(length), offset=offset, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


def test_held_updates_of_one_scratch_array_each_carry_what_it_held_at_their_call(
    device: tg.Device, queue: tg.Queue
) -> None:
    gate = tg.Semaphore()
    buffer = guarded(device, 64 * 16)
    scratch = np.zeros(16, np.uint8)
    updates = []
    for i in range(64):
        scratch[:] = i
        updates.append(queue.update(buffer, scratch, offset=16 * i, wait=gate.at(1)))
    scratch[:] = 255
    gate.signal(1)
    tg.wait_all(updates, LIMIT)
    assert np.array_equal(contents(queue, buffer), np.repeat(np.arange(64, dtype=np.uint8), 16))


# Copy


def test_a_copy_moves_a_whole_buffer(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(4099)
    target = guarded(device, 4099)
    assert np.array_equal(contents(queue, target, queue.copy(device.upload(data), target)), data)


def test_a_copy_between_any_offsets_leaves_the_edges_alone(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(600)
    source = device.upload(data)
    target = guarded(device, 600)
    offsets = (0, 1, 2, 3, 4, 7, 16, 31)
    for start, stop, length in itertools.product(offsets, offsets, (0, 1, 3, 4, 8, 33, 256, 513)):
        reset = queue.fill(target, GUARD)
        copied = queue.copy(source, target, source_offset=start, target_offset=stop, length=length, wait=reset)
        expected = np.full(600, GUARD, np.uint8)
        expected[stop : stop + length] = data[start : start + length]
        assert np.array_equal(contents(queue, target, copied), expected), (start, stop, length)


def test_a_copy_without_a_length_takes_the_rest_of_the_source(device: tg.Device, queue: tg.Queue) -> None:
    source = device.upload(np.arange(10, dtype=np.uint8))
    target = guarded(device, 16)
    found = contents(queue, target, queue.copy(source, target, source_offset=4, target_offset=2))
    assert found.tolist() == [GUARD] * 2 + [4, 5, 6, 7, 8, 9] + [GUARD] * 8


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"source_offset": 4, "target_offset": 11},
        {"length": 11, "source_offset": 6},
        {"length": 11},
        {"source_offset": 17, "length": 0},
        {"target_offset": 11, "length": 0},
    ],
)
def test_a_copy_that_does_not_fit_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, options: dict[str, Any]
) -> None:
    source, target = guarded(device, 16), guarded(device, 10)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.OutOfRangeError):
        queue.copy(source, target, signal=semaphore.at(1), **options)
    assert_still_claimable(queue, semaphore.at(1))


def test_a_large_copy_is_exact(device: tg.Device, queue: tg.Queue) -> None:
    nbytes = 8 * 2**20 + 3
    data = numbered(nbytes)
    target = guarded(device, nbytes)
    assert np.array_equal(contents(queue, target, queue.copy(device.upload(data), target)), data)


def test_a_copy_inside_one_buffer_is_legal_when_the_ranges_do_not_overlap(device: tg.Device, queue: tg.Queue) -> None:
    for start, stop, length in ((0, 32, 32), (32, 0, 32), (0, 63, 1), (8, 20, 12), (20, 8, 12), (5, 5, 0)):
        expected = np.arange(64, dtype=np.uint8)
        buffer = device.upload(expected)
        copied = queue.copy(buffer, buffer, source_offset=start, target_offset=stop, length=length)
        expected[stop : stop + length] = expected[start : start + length].copy()
        assert np.array_equal(contents(queue, buffer, copied), expected), (start, stop, length)


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(("start", "stop", "length"), [(0, 0, 1), (0, 0, 64), (0, 31, 32), (31, 0, 32), (10, 12, 4)])
def test_an_overlapping_copy_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, start: int, stop: int, length: int
) -> None:
    data = np.arange(64, dtype=np.uint8)
    buffer = device.upload(data)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError):
        queue.copy(buffer, buffer, source_offset=start, target_offset=stop, length=length, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    assert np.array_equal(contents(queue, buffer), data)


@pytest.mark.rules("M16", "M27")
def test_an_overlap_is_seen_through_subspans(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(64, dtype=np.uint8)
    buffer = device.upload(data)
    with pytest.raises(tg.InvalidArgumentError):
        queue.copy(buffer.subspan(0, 32), buffer.subspan(31, 32))
    expected = data.copy()
    expected[32:] = data[:32]
    copied = queue.copy(buffer.subspan(0, 32), buffer.subspan(32, 32))
    assert np.array_equal(contents(queue, buffer, copied), expected)


@pytest.mark.rules("M15", "M20", "M27")
def test_a_burst_of_64_by_64_copies_lands_where_it_belongs(device: tg.Device, queue: tg.Queue) -> None:
    block, side = 4096, 64
    data = numbered(side * block).reshape(side, block)
    source = device.upload(data)
    target = guarded(device, side * side * block)
    copies = [
        queue.copy(
            source,
            target,
            source_offset=(row ^ column) * block,
            target_offset=(row * side + column) * block,
            length=block,
        )
        for row in range(side)
        for column in range(side)
    ]
    tg.wait_all(copies, LIMIT)
    found = contents(queue, target).reshape(side, side, block)
    picks = np.arange(side)[:, None] ^ np.arange(side)[None, :]
    assert np.array_equal(found, data[picks])


@pytest.mark.rules("M5", "M15", "M27")
def test_a_chain_of_fills_and_copies_submitted_backwards_runs_forwards(device: tg.Device, queue: tg.Queue) -> None:
    steps, block = 32, 512
    scratch = guarded(device, block)
    target = guarded(device, steps * block)
    timeline = tg.Semaphore()
    submissions = []
    for step in reversed(range(steps)):
        submissions.append(
            queue.copy(
                scratch,
                target,
                target_offset=step * block,
                wait=timeline.at(2 * step + 2),
                signal=timeline.at(2 * step + 3),
            )
        )
        submissions.append(queue.fill(scratch, step, wait=timeline.at(2 * step + 1), signal=timeline.at(2 * step + 2)))
    timeline.signal(1)
    tg.wait_all(submissions, LIMIT)
    assert np.array_equal(contents(queue, target), np.repeat(np.arange(steps, dtype=np.uint8), block))


@pytest.mark.rules("M15", "M27")
def test_fill_copy_fill_across_two_queues_keeps_the_order_the_waits_give(
    device: tg.Device, queue: tg.Queue, second_queue: tg.Queue
) -> None:
    first, second = guarded(device, 70_000), guarded(device, 70_000)
    a = queue.fill(first, 1)
    b = second_queue.copy(first, second, wait=a)
    c = queue.fill(first, 2, wait=b)
    d = second_queue.copy(first, second, source_offset=35_000, target_offset=35_000, wait=c)
    found = contents(queue, second, d)
    assert set(found[:35_000].tolist()) == {1}
    assert set(found[35_000:].tolist()) == {2}
    assert set(contents(queue, first).tolist()) == {2}


# Zero lengths


def test_zero_lengths_and_zero_size_buffers_are_legal_everywhere(device: tg.Device, queue: tg.Queue) -> None:
    empty = device.allocate(0)
    full = guarded(device, 8)
    nothing = np.zeros(0, np.uint8)
    for target in (empty, full.subspan(8, 0)):
        done = [tg.Semaphore() for _ in range(6)]
        points = [semaphore.at(1) for semaphore in done]
        queue.fill(target, 1, signal=points[0])
        queue.fill(target, b"abcd", signal=points[1])
        queue.update(target, b"", signal=points[2])
        queue.upload(nothing, target, signal=points[3])
        queue.copy(empty, target, signal=points[4])
        out = queue.download(target, signal=points[5]).result(LIMIT)
        assert np.asarray(out).nbytes == 0
        tg.wait_all(points, LIMIT)
        assert target.read(timeout=LIMIT) == b""
    queue.copy(full, full, length=0).wait(LIMIT)
    assert full.read(timeout=LIMIT) == bytes([GUARD]) * 8


# Upload


def test_an_upload_writes_an_array_at_its_offset(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(100, dtype=np.float32)
    buffer = guarded(device, 416)
    found = contents(queue, buffer, queue.upload(data, buffer, offset=12))
    assert found[12:412].tobytes() == data.tobytes()
    assert set(found[:12].tolist()) == set(found[412:].tolist()) == {GUARD}


def test_an_upload_takes_strided_data_in_c_order(device: tg.Device, queue: tg.Queue) -> None:
    grid = np.arange(24, dtype=np.int32).reshape(4, 6)
    for data in (grid.T, grid[::2], grid[:, ::3], grid[::-1, ::-1], grid[1:3, 2:4]):
        buffer = guarded(device, data.nbytes)
        found = contents(queue, buffer, queue.upload(data, buffer))
        assert found.tobytes() == data.tobytes()


def test_a_large_upload_is_exact(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(5 * 2**20 + 1)
    buffer = guarded(device, data.nbytes)
    assert np.array_equal(contents(queue, buffer, queue.upload(data, buffer)), data)


@pytest.mark.rules("M18", "M27")
def test_an_upload_borrows_its_array_and_holds_no_copy(device: tg.Device, queue: tg.Queue) -> None:
    data = np.zeros(100_000, np.uint8)
    buffer = guarded(device, data.nbytes)
    gate = tg.Semaphore()
    uploaded = queue.upload(data, buffer, wait=gate.at(1))
    data[:] = 9
    gate.signal(1)
    assert set(contents(queue, buffer, uploaded).tolist()) == {9}


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
    assert np.array_equal(contents(queue, buffer), expected)


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
    assert set(contents(queue, buffer).tolist()) == {GUARD}


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


def test_a_download_leaves_the_given_array_alone_until_its_wait_is_met(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.upload(np.full(64, 5, np.uint8))
    out = np.full(64, GUARD, np.uint8)
    gate = tg.Semaphore()
    held = queue.download(buffer, out, wait=gate.at(1))
    assert set(contents(queue, buffer).tolist()) == {5}
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


# Host reads follow the last submitted write. A read with a timeout of 0 is a poll, so it tells
# without any race whether the read would have waited.


@pytest.mark.rules("M26")
def test_a_host_read_waits_for_a_held_write(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    gate = tg.Semaphore()
    queue.fill(buffer, 1, wait=gate.at(1))
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    with pytest.raises(tg.DeadlineExceededError):
        buffer.to_numpy(np.uint8, timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == b"\x01" * 16
    assert buffer.to_numpy(np.uint8, timeout=LIMIT).tolist() == [1] * 16


@pytest.mark.rules("M26")
@pytest.mark.parametrize("operation", ["fill", "update", "upload", "copy", "execute"])
def test_every_writing_operation_orders_a_host_read(device: tg.Device, queue: tg.Queue, operation: str) -> None:
    buffer = guarded(device, 16)
    data = np.full(16, 4, np.uint8)
    other = device.upload(data)
    with device.record() as commands:
        commands.copy(other, tg.slot(0))
    gate = tg.Semaphore()
    wait = gate.at(1)
    submission = {
        "fill": lambda: queue.fill(buffer, 4, wait=wait),
        "update": lambda: queue.update(buffer, data, wait=wait),
        "upload": lambda: queue.upload(data, buffer, wait=wait),
        "copy": lambda: queue.copy(other, buffer, wait=wait),
        "execute": lambda: queue.execute(commands, bindings=[buffer], wait=wait),
    }[operation]()
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == data.tobytes()
    assert submission.done


@pytest.mark.rules("M26")
def test_a_host_read_follows_the_write_submitted_last_and_not_the_one_that_ended_last(
    device: tg.Device, queue: tg.Queue
) -> None:
    buffer = guarded(device, 16)
    early, late = tg.Semaphore(), tg.Semaphore()
    first = queue.fill(buffer, 1, wait=early.at(1))
    queue.fill(buffer, 2, wait=[late.at(1), first])
    early.signal(1)
    first.wait(LIMIT)
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    late.signal(1)
    assert buffer.read(timeout=LIMIT) == b"\x02" * 16


@pytest.mark.rules("M26")
def test_reading_operations_and_free_do_not_delay_a_host_read(device: tg.Device, queue: tg.Queue) -> None:
    buffer, other = guarded(device, 16), guarded(device, 16)
    gate = tg.Semaphore()
    out = np.zeros(16, np.uint8)
    held = [
        queue.copy(buffer, other, wait=gate.at(1)),
        queue.download(buffer, out, wait=gate.at(1)),
    ]
    free = queue.free(buffer, wait=[gate.at(1), *held])
    assert buffer.read(timeout=LIMIT) == bytes([GUARD]) * 16
    gate.signal(1)
    free.wait(LIMIT)


@pytest.mark.rules("M26")
def test_a_write_through_a_subspan_orders_a_read_of_the_whole_and_the_other_way_round(
    device: tg.Device, queue: tg.Queue
) -> None:
    buffer = guarded(device, 16)
    gate = tg.Semaphore()
    queue.fill(buffer.subspan(8, 4), 1, wait=gate.at(1))
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == bytes([GUARD] * 8 + [1] * 4 + [GUARD] * 4)
    queue.fill(buffer, 2, wait=gate.at(2))
    with pytest.raises(tg.DeadlineExceededError):
        buffer.subspan(0, 4).read(timeout=0)
    gate.signal(2)
    assert buffer.subspan(0, 4).read(timeout=LIMIT) == b"\x02" * 4


@pytest.mark.rules("M17", "M26")
def test_a_host_read_after_a_failed_write_raises_its_cause(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    gate = tg.Semaphore()
    queue.fill(buffer, 1, wait=gate.at(1))
    error = ValueError("the gate broke")
    gate.fail(error)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        buffer.read(timeout=LIMIT)
    assert caught.value.__cause__ is error


@pytest.mark.rules("M22", "M26")
def test_a_host_read_waits_for_the_first_write_to_a_buffer_that_has_no_storage_yet(
    device: tg.Device, queue: tg.Queue
) -> None:
    gate = tg.Semaphore()
    buffer = queue.allocate(16, wait=gate.at(1))
    with pytest.raises(tg.FailedPreconditionError):
        buffer.read(timeout=0)
    queue.fill(buffer, 3, wait=buffer.ready)
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == b"\x03" * 16


@pytest.mark.rules("M26")
def test_a_host_read_inside_a_host_call_waits_for_nothing_by_default(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    gate = tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    assert queue.host_call(lambda: buffer.read(timeout=LIMIT)).result(LIMIT) == bytes([GUARD]) * 16
    gate.signal(1)
    held.wait(LIMIT)


@pytest.mark.rules("M10", "M26")
def test_a_host_read_inside_a_callback_waits_for_nothing_by_default(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.upload(np.full(16, GUARD, np.uint8), memory="shared")
    gate, bell = tg.Semaphore(), tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    found: list[bytes] = []
    bell.at(1).add_callback(lambda *_: found.append(buffer.read(timeout=LIMIT)))
    bell.signal(1)
    assert found == [bytes([GUARD]) * 16]
    gate.signal(1)
    held.wait(LIMIT)


@pytest.mark.rules("M5", "M26")
def test_a_blocked_host_read_is_woken_by_the_write_it_waits_for(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 300_000)
    gate = tg.Semaphore()
    queue.fill(buffer, 6, wait=gate.at(1))
    found: list[bytes] = []
    arrived = threading.Event()

    def read() -> None:
        arrived.set()
        found.append(buffer.read(timeout=LIMIT))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert arrived.wait(LIMIT)
    gate.signal(1)
    reader.join(LIMIT)
    assert found == [b"\x06" * 300_000]


@pytest.mark.rules("M26", "M27")
def test_a_host_write_is_seen_by_the_work_submitted_after_it(device: tg.Device, queue: tg.Queue) -> None:
    source, target = guarded(device, 32), guarded(device, 32)
    source.write(b"0123456789", offset=5)
    found = contents(queue, target, queue.copy(source, target))
    assert found.tobytes() == bytes([GUARD] * 5) + b"0123456789" + bytes([GUARD] * 17)
