"""Operations of a queue: what is checked at the call, and which way the bytes go."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest

import tidegate as tg
from tidegate.testing import ManualDevice, register_streams

LIMIT = 30.0

# Memory and pools --------------------------------------------------------------------------------------------------


def test_a_pool_belongs_to_its_device_and_counts_what_it_reserved(device: tg.Device) -> None:
    pool = device.create_pool(1 << 20, label="p")
    assert (pool.label, pool.device, repr(pool)) == ("p", device, "<tidegate.Pool 'p' on device 'dev'>")
    buffer = device.queue().allocate(4096, pool=pool)
    buffer.ready.wait(LIMIT)
    counts = pool.statistics()
    assert counts.reserved_bytes == (counts.allocated_bytes or 0) + (counts.pooled_bytes or 0) > 0
    assert counts.budget_bytes == 1 << 20
    whole = device.statistics()
    assert whole.reserved_bytes == (whole.allocated_bytes or 0) + (whole.pooled_bytes or 0)
    text = r"^pool 'p' belongs to device 'dev', not to device 'other'$"
    with tg.open_device("cpu?workers=1", label="other") as other, pytest.raises(tg.InvalidArgumentError, match=text):
        other.queue().allocate(1, pool=pool)


def test_an_allocation_is_on_its_lane_and_tells_its_line(either: ManualDevice) -> None:
    lane = either.device.lane()
    line = sys._getframe().f_lineno + 1
    buffer = lane.allocate(4)
    assert buffer.ready.line == f"{__file__}:{line}"
    assert lane.tail.value == 1
    assert not lane.tail.reached
    follower = lane.barrier()
    assert not follower.done
    either.automatic = True
    either.finish_all()
    assert lane.tail.reached


def test_only_whole_buffers_are_freed_and_a_refused_free_is_none(device: tg.Device) -> None:
    buffer, used = device.allocate(8, label="b"), tg.Semaphore(3)
    with pytest.raises(
        tg.InvalidArgumentError, match=r"^free takes a whole buffer, not a subspan of buffer 'b' of 8 bytes$"
    ):
        device.queue().free(buffer.subspan(0, 8))
    with pytest.raises(tg.InvalidArgumentError, match="cannot signal"):
        device.queue().free(buffer, signal=used.at(3))
    device.queue().free(buffer).wait(LIMIT)
    with pytest.raises(tg.FailedPreconditionError, match="is freed"):
        device.queue().fill(buffer, 0)


def test_sizes_and_kinds_of_memory_are_checked_at_the_call(device: tg.Device) -> None:
    with pytest.raises(
        tg.InvalidArgumentError, match=r"^allocate on device 'dev': the size is -1, and must be 0 or more$"
    ):
        device.queue().allocate(-1)
    with pytest.raises(tg.InvalidArgumentError, match=r"memory is 'slow', and must be one of device, host, shared$"):
        device.allocate(1, memory="slow")  # type: ignore[arg-type]
    assert device.allocate(0).nbytes == 0
    assert device.queue().allocate(0).ready.error is None


def test_a_trimmed_pool_keeps_nothing(device: tg.Device) -> None:
    pool = device.create_pool()
    buffer = device.queue().allocate(4096, pool=pool)
    buffer.ready.wait(LIMIT)
    device.queue().free(buffer).wait(LIMIT)
    del buffer
    assert (pool.statistics().pooled_bytes or 0) > 0
    pool.trim()
    assert pool.statistics().pooled_bytes == 0


# Uploads, downloads and fills --------------------------------------------------------------------------------------


def test_a_download_takes_arrays_of_the_right_kind_only(device: tg.Device) -> None:
    buffer, queue = device.upload(np.arange(8, dtype=np.int16), label="b"), device.queue()
    fixed = np.zeros(8, np.int16)
    fixed.flags.writeable = False
    out = np.zeros(8, np.int16)
    for given, options, error, text in [
        ([1], {}, TypeError, r"^download: out must be a NumPy array, not list$"),
        (fixed, {}, tg.InvalidArgumentError, r"^download: the array given as out is read-only$"),
        (np.empty(2, object), {}, TypeError, r"^download: the array given as out holds Python objects$"),
        (out, {"dtype": np.int32}, tg.InvalidArgumentError, r"^download: out is int16, and dtype says int32$"),
        (out, {"shape": 7}, tg.InvalidArgumentError, r"^download: out has shape \(8,\), and shape says 7$"),
        (out, {"shape": (2, 4)}, tg.InvalidArgumentError, r"^download: out has shape \(8,\), and shape says"),
        (np.zeros(9, np.int16), {}, tg.OutOfRangeError, r"^download: 18 bytes are asked of .* which has 16 here$"),
        (out, {"length": 8}, tg.OutOfRangeError, "download: 16 bytes are asked of"),
        (np.zeros(3, np.int16), {"length": 8}, tg.InvalidArgumentError, "has 6 bytes, and the length is 8$"),
    ]:
        with pytest.raises(error, match=text):
            queue.download(buffer, given, **options)  # type: ignore[arg-type]
    for options in ({}, {"dtype": np.int16}, {"shape": 8}, {"shape": [8]}, {"shape": (8,)}, {"length": 16}):
        out[:] = -1
        assert queue.download(buffer, out, **options).result(LIMIT) is out  # type: ignore[arg-type]
        assert out.tolist() == list(range(8))


def test_a_download_reads_as_much_as_its_array_takes_in_any_layout(device: tg.Device) -> None:
    buffer, queue = device.upload(np.arange(8, dtype=np.int16)), device.queue()
    small = np.zeros(3, np.int16)
    assert queue.download(buffer, small, offset=2).result(LIMIT).tolist() == [1, 2, 3]
    assert queue.download(buffer, dtype=np.int16, shape=2).result(LIMIT).tolist() == [0, 1]
    assert queue.download(buffer, dtype=np.int16, shape=(2, 2), offset=8).result(LIMIT).tolist() == [[4, 5], [6, 7]]
    assert queue.download(buffer).result(LIMIT).nbytes == 16
    whole = np.zeros((4, 4), np.int16)
    strided = whole[::2, ::2]
    assert queue.download(buffer, strided).result(LIMIT) is strided
    assert whole.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [2, 0, 3, 0], [0, 0, 0, 0]]
    square = np.zeros((2, 4), np.int16)
    assert queue.download(buffer, square).result(LIMIT).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_scattered_download_of_memory_the_host_cannot_see_goes_through_the_queue() -> None:
    register_streams()
    with tg.open_device("streams") as device:
        buffer = device.upload(np.arange(2, dtype=np.int16))
        before = device.statistics().submitted
        out = np.zeros((2, 2), np.int16)[:, ::2]
        assert device.queue().download(buffer, out).result(LIMIT) is out
        assert out.tolist() == [[0], [1]]
        assert device.statistics().submitted == before + 2


def test_an_array_uploaded_to_memory_the_host_cannot_see_goes_through_the_queue(either: ManualDevice) -> None:
    either.automatic = True
    buffer = either.device.upload(b"abcd", memory="host", label="b")
    assert (buffer.nbytes, buffer.memory, buffer.label) == (4, "host", "b")
    buffer.write(b"xy", 1)
    assert [(piece.work.kind, piece.work.cost, piece.queue) for piece in either.tries] == [
        ("upload", 4, "transfer"),
        ("upload", 2, "transfer"),
    ]


def test_the_bytes_of_a_pattern_are_not_made_of_other_things(device: tg.Device) -> None:
    buffer = device.allocate(8)
    for wrong, name in ((True, "bool"), (1.0, "float"), (np.float32(1), "float32"), (None, "NoneType"), ("x", "str")):
        with pytest.raises(TypeError, match=f"^fill: the pattern must be an int or bytes, not {name}$"):
            device.queue().fill(buffer, wrong)  # type: ignore[arg-type]
    device.queue().fill(buffer, np.uint8(9)).wait(LIMIT)  # type: ignore[arg-type]
    assert buffer.read() == b"\x09" * 8


# Host calls and lanes ----------------------------------------------------------------------------------------------


def test_a_host_call_takes_a_function(device: tg.Device) -> None:
    with pytest.raises(TypeError, match=r"^host_call takes a function, not int$"):
        device.queue().host_call(3)  # type: ignore[arg-type]
    assert device.queue().host_call(divmod, 7, 2).result(LIMIT) == (3, 1)


def test_a_lane_can_be_awaited_and_keeps_its_name(device: tg.Device) -> None:
    lane = device.lane(label="l")
    buffer = lane.allocate(4)
    lane.fill(buffer, 3)

    async def wait() -> None:
        await lane

    asyncio.run(wait())
    assert buffer.read() == b"\x03" * 4
    lane.reset()
    assert (lane.label, lane.tail.semaphore.label) == ("l", "l")
    unnamed = device.lane()
    unnamed.reset()
    assert unnamed.tail.semaphore.label == "lane"
