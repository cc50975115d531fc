"""Buffers, views, staging, pools, files and executables: edges, texts, and what is refused before it is submitted."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate._core import buffer as buffers
from tidegate._core import files, operations, view
from tidegate._core.buffer import FAILED, FREED, LIVE, PENDING, FreeRequest, Memory
from tidegate._core.files import _checked_object, _File
from tidegate._core.kernel import _plain, checked_workgroups, is_plain
from tidegate._core.submission import Submission
from tidegate._core.view import _SharedDevice
from tidegate.driver import SlotSpan
from tidegate.drivers.cpu import queue as cpu_queue
from tidegate.lowlevel import StagingBuffer

from .hand_driver import LIMIT, HandDevice, catch_up, close_by_hand, open_by_hand


@pytest.fixture
def device() -> Iterator[tg.Device]:
    device = tg.open_device("cpu?workers=1", label="dev")
    yield device
    device.close(LIMIT)


@pytest.fixture
def opened() -> Iterator[tuple[tg.Device, HandDevice]]:
    device, hand = open_by_hand()
    yield device, hand
    close_by_hand(device, hand)


def refused(error: type[BaseException], text: str) -> Any:
    return pytest.raises(error, match=text)


def noop(workgroups: Any, bindings: Any, constants: Any) -> None:
    pass


# Memory ------------------------------------------------------------------------------------------------------------


def storage(nbytes: int = 4) -> Any:
    return SimpleNamespace(nbytes=nbytes)


def memory(device: tg.Device, label: str = "m") -> Memory:
    return Memory(device, 4, "device", label)


def test_memory_is_pending_until_it_is_committed_or_its_allocation_fails(device: tg.Device) -> None:
    good, bad = memory(device), memory(device)
    assert (good.phase, good.storage, good.uses, good.closed, good.given_up) == (PENDING, None, 0, False, False)
    block = storage()
    good.commit(block)
    assert (good.phase, good.storage) == (LIVE, block)
    good.never_committed(ValueError())
    assert good.phase == LIVE
    bad.never_committed(ValueError())
    assert bad.phase == FAILED
    bad.refuse_unusable()  # its work will fail by itself


def test_a_buffer_closed_before_it_is_committed_takes_its_storage_only_for_those_who_use_it(device: tg.Device) -> None:
    unused, used = memory(device), memory(device)
    used.uses = 1
    for one in (unused, used):
        one.close()
        one.commit(storage())
    assert unused.storage is None
    assert used.storage is not None
    used.end_use()
    assert used.storage is None


def test_storage_goes_with_the_last_use_of_a_closed_buffer(device: tg.Device) -> None:
    one = memory(device)
    one.commit(storage())
    one.uses = 2
    one.end_use()
    assert one.storage is not None
    one.close()
    assert one.storage is not None
    one.end_use()
    assert (one.storage, one.uses) == (None, 0)
    with refused(tg.ClosedError, r"^buffer 'm' of 4 bytes is closed$"):
        one.refuse_unusable()
    open_one = memory(device, "")
    open_one.commit(storage())
    open_one.uses = 1
    open_one.end_use()
    assert open_one.storage is not None
    assert open_one.describe() == "buffer of 4 bytes"


def test_of_two_frees_the_first_wins_and_one_undone_gives_way(device: tg.Device) -> None:
    one = memory(device)
    first, second = FreeRequest(one), FreeRequest(one)
    with refused(tg.FailedPreconditionError, r"^buffer 'm' of 4 bytes is freed twice$"):
        second.release()
    with refused(tg.FailedPreconditionError, r"^buffer 'm' of 4 bytes cannot be freed: it is not committed yet$"):
        first.release()
    second.undo(ValueError())
    assert one.freed_by is first
    first.undo(ValueError())
    assert one.freed_by is None
    block = storage()
    one.commit(block)
    third = FreeRequest(one)
    assert third.release() is block
    assert (one.phase, one.storage) == (FREED, None)
    third.undo(ValueError())
    assert one.freed_by is third
    with refused(tg.FailedPreconditionError, "is freed twice"):
        third.release()
    with refused(tg.FailedPreconditionError, r"^buffer 'm' of 4 bytes is freed$"):
        one.refuse_unusable()


def test_a_buffer_tells_what_it_is(device: tg.Device) -> None:
    buffer = device.allocate(16, memory="shared", label="b")
    assert repr(buffer) == "<tidegate.Buffer 'b' 16 bytes shared on device 'dev', live>"
    part = buffer.subspan(4, 8).subspan(1)
    assert repr(part) == "<tidegate.Buffer 'b' [5:12] 7 bytes shared on device 'dev', live>"
    assert (part.offset, part.nbytes, part.label, part.memory, part.device) == (5, 7, "b", "shared", device)
    assert part._memory.given_up is False
    part.close()
    assert not buffer._memory.closed
    with buffer as entered:
        assert entered is buffer
    assert repr(buffer) == "<tidegate.Buffer 'b' 16 bytes shared on device 'dev', closed>"
    with refused(tg.FailedPreconditionError, r"^buffer 'b' of 16 bytes has no storage: it is live$"):
        buffer.locate()
    assert buffer.bind(()) is buffer
    assert repr(device.allocate(1)).startswith("<tidegate.Buffer 1 bytes device")


def test_memory_is_given_up_when_its_buffer_is_dropped_and_not_by_its_subspans(device: tg.Device) -> None:
    buffer = device.allocate(16)
    part, block = buffer.subspan(0, 4), buffer._memory
    fill = device.queue().fill(part, 0)
    fill.wait(LIMIT)
    assert not block.given_up
    del part
    assert not block.given_up
    del buffer
    assert block.given_up


def test_maps_are_writable_where_they_say_so(device: tg.Device) -> None:
    buffer = device.upload(bytes(range(8)))
    for mode, writable in (("r", False), ("w", True), ("rw", True)):
        with buffer.subspan(2, 3).map(mode) as array:
            assert array.flags.writeable is writable
            assert array.tolist() == [2, 3, 4]
    with buffer.map() as array:
        assert not array.flags.writeable
    with refused(tg.InvalidArgumentError, "the map mode is 'x', and must be 'r', 'w' or 'rw'"), buffer.map("x"):
        pass


def test_host_access_waits_for_what_it_is_told_or_for_nothing(device: tg.Device) -> None:
    buffer, gate = device.upload(b"abcd"), tg.Semaphore()
    held = device.queue().fill(buffer, 0, wait=gate.at(1))
    for wait in (None, (), []):
        with buffer.map(wait=wait) as array:
            assert array.tobytes() == b"abcd"
    for wait in (..., held, [held], (gate.at(1),), gate.at(1)):
        with pytest.raises(tg.DeadlineExceededError), buffer.map(wait=wait, timeout=0):
            pass
    for wait, name in ((3, "int"), ([3], "int")):
        text = f"^wait= takes timepoints and submissions, not {name}$"
        with refused(TypeError, text), buffer.map(wait=wait):
            pass
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == bytes(4)


def test_a_host_read_after_a_failed_write_says_why(device: tg.Device) -> None:
    buffer, gate = device.upload(b"abcd", label="b"), tg.Semaphore()
    device.queue().fill(buffer, 0, wait=gate.at(1))
    gate.fail(ValueError("never"))
    with refused(tg.SemaphoreFailedError, r"^buffer 'b' of 4 bytes: the last write to it failed: ValueError: never$"):
        buffer.read()
    with buffer.map(wait=()) as array:
        assert array.tobytes() == b"abcd"


def test_a_callback_and_a_host_call_read_without_waiting_for_the_last_write(device: tg.Device) -> None:
    buffer, gate, seen = device.upload(b"abcd"), tg.Semaphore(), []
    held = device.queue().fill(buffer, 0, wait=gate.at(1))
    tg.Semaphore(1).at(1).add_callback(lambda *_told: seen.append(buffer.read()))
    assert device.queue().host_call(buffer.read).result(LIMIT) == b"abcd"
    assert seen == [b"abcd"]
    held.cancel()


def test_arrays_of_every_shape_are_copied_out(device: tg.Device) -> None:
    buffer = device.upload(np.arange(12, dtype=np.int16))
    assert buffer.to_numpy(np.int16).tolist() == list(range(12))
    assert buffer.to_numpy(np.int16, (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert buffer.to_numpy(np.int16, 2).tolist() == [0, 1]
    assert buffer.to_numpy().nbytes == 24
    buffer.write(b"\xff\xff", 2)
    assert buffer.to_numpy(np.int16, 3).tolist() == [0, -1, 2]
    buffer.write(b"")


# Views -------------------------------------------------------------------------------------------------------------


def test_a_view_is_an_array_of_its_type_without_a_copy_unless_asked_for_one(device: tg.Device) -> None:
    buffer = device.upload(np.arange(6, dtype=np.int32), label="b")
    seen = buffer.view(np.int32, (2, 3))
    assert repr(seen) == f"<tidegate.BufferView int32 (2, 3) of {buffer!r}>"
    array = np.asarray(seen)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array.flags.writeable
    array[0, 0] = 7
    assert seen.__array__().tolist()[0][0] == 7
    assert np.shares_memory(seen.__array__(np.int32), array)
    assert not np.shares_memory(seen.__array__(copy=True), array)
    assert np.shares_memory(seen.__array__(copy=False), array)
    wide = seen.__array__(np.float64)
    assert (wide.dtype, wide.tolist()[0][0]) == (np.float64, 7.0)
    assert seen.__array__(np.int32, copy=False).dtype == np.int32
    with refused(ValueError, r"^a view of int32 cannot become float64 without a copy$"):
        seen.__array__(np.float64, copy=False)
    assert not seen._array(writable=False).flags.writeable


def test_a_view_waits_for_the_last_write_or_else_for_the_allocation(device: tg.Device) -> None:
    gate, buffer = tg.Semaphore(), device.queue().allocate(8)
    assert buffer.view(np.uint8).ready is buffer.ready
    held = device.queue().fill(buffer, 0, wait=gate.at(1))
    assert buffer.view(np.uint8).ready is held
    held.cancel()


def test_a_view_goes_out_and_comes_in_by_dlpack_on_the_host(device: tg.Device) -> None:
    buffer = device.upload(np.arange(4, dtype=np.float32))
    seen = buffer.view(np.float32)
    assert seen.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(seen).tolist() == [0, 1, 2, 3]
    assert seen.__dlpack__(stream=None) is not None
    with refused(tg.UnsupportedError, "is host memory: a stream to order by means nothing here"):
        seen.__dlpack__(stream=1)
    assert tg.from_dlpack(seen) is seen
    assert tg.from_dlpack(seen, device) is seen
    with tg.open_device("cpu?workers=1", label="other") as other:
        elsewhere = tg.from_dlpack(seen, other)
        assert elsewhere.buffer.device is other
        assert np.shares_memory(np.asarray(elsewhere), np.asarray(seen))


def test_memory_the_host_cannot_see_does_not_go_out(opened: tuple[tg.Device, HandDevice]) -> None:
    device, _ = opened
    with refused(tg.UnsupportedError, "cannot be seen by the host"):
        device.allocate(4).view(np.uint8).__dlpack_device__()
    with refused(tg.UnsupportedError, "which the host cannot map on device 'hand'"):
        device.allocate(4).view(np.uint8).__array__()


class Exporter:
    """An array of another library."""

    def __init__(self, array: Any, place: Any = (1, 0)) -> None:
        self._array = array
        self._place = place

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._place


def test_arrays_of_others_come_in_without_a_copy_where_that_can_be(device: tg.Device) -> None:
    array = np.arange(6, dtype=np.int16)
    seen = tg.from_dlpack(Exporter(array), device)
    assert (seen.dtype, seen.shape, seen.buffer.memory, seen.buffer.label) == (np.int16, (6,), "shared", "imported")
    assert np.shares_memory(np.asarray(seen), array)
    assert seen.buffer._root
    assert seen.buffer._memory.phase == LIVE
    assert seen.buffer.ready.done
    strided = tg.from_dlpack(array[::2], device)
    assert np.asarray(strided).tolist() == [0, 2, 4]
    assert not np.shares_memory(np.asarray(strided), array)
    fixed = array.copy()
    fixed.flags.writeable = False
    copied = np.asarray(tg.from_dlpack(fixed, device))
    assert copied.tolist() == list(range(6))
    assert copied.flags.writeable
    assert not np.shares_memory(copied, fixed)
    with refused(tg.UnsupportedError, r"^from_dlpack: no open device owns memory of DLPack device \(2, 3\)$"):
        tg.from_dlpack(Exporter(array, (2, 3)))
    with refused(TypeError, r"^from_dlpack takes an object with __dlpack__, not int$"):
        tg.from_dlpack(3)

    class NoPlace(np.ndarray):
        __dlpack_device__ = property()  # type: ignore[assignment]

    assert not hasattr(array.view(NoPlace), "__dlpack_device__")
    assert np.asarray(tg.from_dlpack(array.view(NoPlace), device)).tolist() == list(range(6))


def test_the_shared_device_is_opened_once_and_anew_when_it_was_closed() -> None:
    shared = _SharedDevice()
    first = shared.get()
    try:
        assert shared.get() is first
        assert first.label == "shared-cpu"
        first.close(LIMIT)
        second = shared.get()
        assert second is not first
        lock = shared._lock
        shared._forget()
        assert (shared._device, shared._lock is lock) == (None, False)
        second.close(LIMIT)
    finally:
        first.close(LIMIT)
    assert isinstance(view._shared, _SharedDevice)


def test_pinned_arrays_have_their_shape_and_are_ordinary_without_a_device(device: tg.Device) -> None:
    for where in (None, device):
        assert tg.pinned_empty(3, device=where).shape == (3,)
        assert tg.pinned_empty(3, device=where).dtype == np.float32
        array = tg.pinned_empty((2, 5), np.int64, where)
        array[:] = 1
        assert (array.shape, array.dtype, int(array.sum())) == ((2, 5), np.int64, 10)
        with refused(tg.InvalidArgumentError, "holds Python objects"):
            tg.pinned_empty(3, object, where)


# Staging -----------------------------------------------------------------------------------------------------------


def test_a_staging_buffer_has_its_device_and_a_size_above_nothing(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    assert (staging.device, staging.capacity, staging.free_bytes) == (device, 64, 64)
    assert repr(staging) == "<tidegate.lowlevel.StagingBuffer 64 of 64 bytes free>"
    assert StagingBuffer(device).capacity == 128 * 1024
    assert StagingBuffer(device, 1).free_bytes == 1
    for capacity in (0, -1):
        with refused(tg.InvalidArgumentError, f"^staging buffer: the capacity is {capacity}, and must be above 0$"):
            StagingBuffer(device, capacity)


def test_staging_ranges_are_handed_out_in_a_circle(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    ranges = [staging.reserve(16) for _ in range(4)]
    assert [one.offset for one in ranges] == [0, 16, 32, 48]
    assert repr(ranges[1]) == "<tidegate.lowlevel.StagingRange 16..32>"
    assert staging._gaps == []
    for index in (0, 2):
        ranges[index].release()
        ranges[index].release()
    assert staging._gaps == [(0, 16), (32, 48)]
    assert staging._next == 64
    assert staging.reserve(8).offset == 0
    assert staging.reserve(16).offset == 32
    assert staging.reserve(8, 8).offset == 8
    with refused(tg.ResourceExhaustedError, r"^staging buffer: no 1 bytes are free now; its capacity is 64$"):
        staging.reserve(1)
    assert staging.reserve(0).nbytes == 0


def test_the_search_goes_on_behind_the_last_range_and_then_from_the_start(device: tg.Device) -> None:
    staging = StagingBuffer(device, 80)
    ranges = [staging.reserve(16) for _ in range(5)]
    for index in (0, 1, 3):
        ranges[index].release()
    assert staging._gaps == [(0, 32), (48, 64)]
    staging._next = 40
    assert staging.reserve(8).offset == 48
    assert (staging._next, staging._gaps) == (56, [(0, 32), (56, 64)])
    assert staging.reserve(16).offset == 0  # the piece behind is too small
    assert (staging._next, staging._gaps) == (16, [(16, 32), (56, 64)])
    assert staging.reserve(8, 1).offset == 16
    assert staging.reserve(8, 1).offset == 24
    assert staging.reserve(8, 1).offset == 56
    staging._gaps, staging._next = [(0, 8), (16, 24), (32, 40)], 20
    assert staging.reserve(8, 8).offset == 16
    assert staging.reserve(8, 8).offset == 32
    assert staging.reserve(8, 8).offset == 0


def test_gaps_merge_with_both_neighbours_and_only_where_they_touch(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    ranges = [staging.reserve(8, 8) for _ in range(8)]
    for index, gaps in (
        (3, [(24, 32)]),
        (5, [(24, 32), (40, 48)]),
        (4, [(24, 48)]),
        (0, [(0, 8), (24, 48)]),
        (6, [(0, 8), (24, 56)]),
        (2, [(0, 8), (16, 56)]),
        (7, [(0, 8), (16, 64)]),
        (1, [(0, 64)]),
    ):
        ranges[index].release()
        assert staging._gaps == gaps


def test_alignment_cuts_a_gap_in_two(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    staging.reserve(4, 1)
    assert staging.reserve(8, 16).offset == 16
    assert staging._gaps == [(4, 16), (24, 64)]
    for alignment in (0, -2, 3, 12):
        with refused(tg.InvalidArgumentError, "must be a power of two"):
            staging.reserve(1, alignment)
    with refused(tg.InvalidArgumentError, "must be 0 or more"):
        staging.reserve(-1)
    with refused(tg.OutOfRangeError, r"^staging buffer: 65 bytes are more than its capacity of 64$"):
        staging.reserve(65)


def test_inside_a_reservation_a_finalizer_may_give_back_later_but_not_reserve(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    one = staging.reserve(16)
    with staging._lock:
        with refused(tg.ResourceExhaustedError, "a finalizer or signal handler cannot reserve in a reservation"):
            staging.reserve(1)
        one.release()
        assert staging.free_bytes == 48
    catch_up()
    assert staging.free_bytes == 64


def test_a_staging_range_comes_back_when_its_submission_is_over(device: tg.Device) -> None:
    staging, gate = StagingBuffer(device, 64), tg.Semaphore()
    one = staging.reserve(4)
    one.array[:] = 7
    assert (one.buffer.nbytes, one.buffer.offset) == (4, 0)
    target = device.allocate(4)
    copy = device.queue().copy(one.buffer, target, wait=gate.at(1))
    one.release_after(copy)
    assert staging.free_bytes == 60
    gate.signal(1)
    copy.wait(LIMIT)
    assert staging.free_bytes == 64
    assert target.read() == b"\x07" * 4
    staging.close()
    with refused(tg.ClosedError, r"^the staging buffer is closed$"):
        staging.reserve(1)


# Operations --------------------------------------------------------------------------------------------------------


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
    with tg.open_device("cpu?workers=1", label="other") as other, refused(tg.InvalidArgumentError, text):
        other.queue().allocate(1, pool=pool)


def test_an_allocation_is_on_its_lane_and_tells_its_line(opened: tuple[tg.Device, HandDevice]) -> None:
    import sys

    device, hand = opened
    lane = device.lane()
    line = sys._getframe().f_lineno + 1
    buffer = lane.allocate(4)
    assert buffer.ready.line == f"{__file__}:{line}"
    assert lane.tail.value == 1
    assert not lane.tail.reached
    follower = lane.barrier()
    assert not follower.done
    hand.one.over(hand.one.issued)
    device._poller()
    assert lane.tail.reached
    assert buffer._root


def test_only_whole_buffers_are_freed_and_a_refused_free_is_none(device: tg.Device) -> None:
    buffer, used = device.allocate(8, label="b"), tg.Semaphore(3)
    with refused(tg.InvalidArgumentError, r"^free takes a whole buffer, not a subspan of buffer 'b' of 8 bytes$"):
        device.queue().free(buffer.subspan(0, 8))
    with refused(tg.InvalidArgumentError, "cannot signal"):
        device.queue().free(buffer, signal=used.at(3))
    assert buffer._memory.freed_by is None
    device.queue().free(buffer).wait(LIMIT)
    with refused(tg.FailedPreconditionError, "is freed"):
        device.queue().fill(buffer, 0)


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
        with refused(error, text):
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
    out = np.zeros((2, 2), np.int16)[:, ::2]
    flat = np.arange(2, dtype=np.int16).view(np.uint8)
    asked: list[Any] = []
    span = SimpleNamespace(_visible=lambda: None)
    queue = SimpleNamespace(download=lambda given: asked.append(given) or SimpleNamespace(result=lambda: flat))
    assert operations._scatter(queue, span, out)() is out  # type: ignore[arg-type]
    assert out.tolist() == [[0], [1]]
    assert asked == [span]


def test_functions_belong_to_their_device_and_take_no_negative_local_memory(device: tg.Device) -> None:
    function = device.load(tg.Kernel("noop", bindings=0, cpu=noop))["noop"]
    device.queue().dispatch(function, 1).wait(LIMIT)
    text = r"^function 'noop' belongs to device 'dev', not to device 'other'$"
    with tg.open_device("cpu?workers=1", label="other") as other, refused(tg.InvalidArgumentError, text):
        other.queue().dispatch(function, 1)
    with refused(TypeError, r"^dispatch takes a function of an executable, not int$"):
        device.queue().dispatch(3, 1)  # type: ignore[arg-type]
    with refused(tg.InvalidArgumentError, r"^function 'noop': the local memory is -1, and must be 0 or more$"):
        device.queue().dispatch(function, 1, local_memory=-1)
    device.queue().dispatch(function, 1, local_memory=0).wait(LIMIT)


def test_a_dispatch_has_no_local_memory_unless_asked_for_and_writes_its_bindings(
    opened: tuple[tg.Device, HandDevice],
) -> None:
    device, hand = opened
    works: list[Any] = []
    hand.before_issue = lambda ticket: works.append(ticket._work)  # type: ignore[attr-defined]
    function = device.load(noop)["noop"]
    buffer = device.allocate(4)
    device.queue().dispatch(function, 2, bindings=[buffer])
    device.queue().dispatch(function, 2, bindings=[buffer], local_memory=16)
    assert [work.local_memory for work in works] == [0, 16]
    assert works[0].workgroups == (2, 1, 1)
    assert buffer._memory.pending_write() is not None


def test_sizes_and_kinds_of_memory_are_checked_at_the_call(device: tg.Device) -> None:
    with refused(tg.InvalidArgumentError, r"^allocate on device 'dev': the size is -1, and must be 0 or more$"):
        device.queue().allocate(-1)
    with refused(tg.InvalidArgumentError, r"memory is 'slow', and must be one of device, host, shared$"):
        device.allocate(1, memory="slow")  # type: ignore[arg-type]
    assert device.allocate(0).nbytes == 0
    assert device.queue().allocate(0).ready.error is None


def test_a_host_call_takes_a_function(device: tg.Device) -> None:
    with refused(TypeError, r"^host_call takes a function, not int$"):
        device.queue().host_call(3)  # type: ignore[arg-type]
    assert device.queue().host_call(divmod, 7, 2).result(LIMIT) == (3, 1)


def test_an_array_uploaded_to_memory_the_host_cannot_see_goes_through_the_queue(
    opened: tuple[tg.Device, HandDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, _ = opened
    waited: list[Any] = []
    monkeypatch.setattr(Submission, "wait", lambda self, timeout=None: waited.append(self._kind))
    buffer = device.upload(b"abcd", memory="host", label="b")
    assert (buffer.nbytes, buffer.memory, buffer.label) == (4, "host", "b")
    buffer.write(b"xy", 1)
    assert waited == ["upload"] * 3  # the write waits for the one before, and for its own


# Executables -------------------------------------------------------------------------------------------------------


def test_an_executable_is_a_mapping_of_its_functions(device: tg.Device) -> None:
    executable = device.load(tg.Kernel("noop", bindings=1, constants=["u4"], workgroup=(4, 2), cpu=noop))
    assert list(executable) == ["noop"]
    assert (len(executable), "noop" in executable, "other" in executable) == (1, True, False)
    assert list(executable.functions) == ["noop"]
    assert repr(executable) == "<tidegate.Executable noop on device 'dev'>"
    with refused(tg.NotFoundError, r"^the executable has no function 'other'; it has: noop$") as caught:
        executable["other"]
    assert caught.value.name == "other"
    function = executable["noop"]
    assert (function.name, function.bindings, function.constants) == ("noop", 1, (np.dtype("u4"),))
    assert function.workgroup == (4, 2, 1)
    assert repr(function) == "<tidegate.Function 'noop' bindings=1 constants=(dtype('uint32'),)>"
    assert tg.Kernel("k", bindings=0, cpu=noop).signature.workgroup == (1, 1, 1)
    with refused(tg.UnsupportedError, r"^kernel 'k' has no implementation for 'cuda': it has cpu$"):
        tg.Kernel("k", bindings=0, cpu=noop).source_for("cuda")
    assert repr(tg.Kernel("k", bindings=0, cpu=noop, metal="x")) == "<tidegate.Kernel 'k' for cpu, metal>"


def test_workgroups_are_one_to_three_counts_and_no_more() -> None:
    assert checked_workgroups((1, 2, 3), "x") == (1, 2, 3)
    assert checked_workgroups(np.array([4]), "x") == (4, 1, 1)
    assert checked_workgroups([0, 2**32 - 1], "x") == (0, 2**32 - 1, 1)
    assert len(checked_workgroups((5, 6), "x")) == 3
    for wrong in ((), (1, 1, 1, 1), (2**32,), (-1,)):
        with refused(tg.InvalidArgumentError, r"^x: "):
            checked_workgroups(wrong, "x")


# The CPU queue -----------------------------------------------------------------------------------------------------


class Crew:
    def __init__(self) -> None:
        self.put_here: list[tuple[Any, bool]] = []

    def put(self, task: Any, small: bool) -> None:
        self.put_here.append((task, small))


@pytest.mark.parametrize(
    ("cost", "where"),
    [
        (0, "in place"),
        (16 * 1024, "in place"),
        (16 * 1024 + 1, "small"),
        (256 * 1024, "small"),
        (256 * 1024 + 1, "large"),
        (None, "large"),
    ],
)
def test_small_work_runs_in_place_larger_by_waiters_and_the_rest_by_workers(
    cost: int | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    crew, ended = Crew(), []
    device = SimpleNamespace(workers=crew, sink=SimpleNamespace(finished=lambda *given: ended.append(given)))
    work = SimpleNamespace(cost=cost)
    monkeypatch.setattr(cpu_queue, "PLANS", {SimpleNamespace: lambda *_given: lambda: steps.append("step")})
    ticket = SimpleNamespace(taken=False)
    assert cpu_queue.CpuQueue(device).issue(ticket, work, ())  # type: ignore[arg-type]
    if where == "in place":
        assert (steps, ended, crew.put_here, ticket.taken) == (["step"], [(ticket,)], [], False)
        return
    ((task, small),) = crew.put_here
    assert (steps, ended, small, ticket.taken) == ([], [], where == "small", True)
    task()
    task()
    assert (steps, ended) == (["step"], [(ticket, None), (ticket, None)])


def test_an_error_of_a_step_is_told_and_only_an_interrupt_goes_on_to_the_worker() -> None:
    for error in (ValueError("x"), KeyboardInterrupt()):
        ended: list[Any] = []

        def step(error: BaseException = error) -> None:
            raise error

        task = cpu_queue._Task("ticket", step, lambda *given, ended=ended: ended.append(given))  # type: ignore[arg-type]
        if isinstance(error, Exception):
            task()
        else:
            with pytest.raises(KeyboardInterrupt):
                task()
        assert ended == [("ticket", error)]


# Files -------------------------------------------------------------------------------------------------------------


def test_a_file_is_a_path_or_a_binary_object_open_for_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    for wrong in (3, None, object(), SimpleNamespace(readable=lambda: True), SimpleNamespace(seek=print)):
        text = f"^a file is a path or a binary file object, not {type(wrong).__name__}$"
        with refused(TypeError, text):
            _checked_object(wrong, False)
    with path.open("rb") as reading, path.open("ab") as writing, path.open() as words:
        assert _checked_object(reading, False) == reading.fileno()
        assert _checked_object(writing, True) == writing.fileno()
        with refused(tg.InvalidArgumentError, f"the file '{path}' is not open for writing$"):
            _checked_object(reading, True)
        with refused(tg.InvalidArgumentError, f"the file '{path}' is not open for reading$"):
            _checked_object(writing, False)
        with refused(TypeError, "is open in text mode, and must be binary$"):
            _checked_object(words, False)
    with refused(tg.InvalidArgumentError, "is closed$"):
        _checked_object(reading, False)
    with refused(tg.InvalidArgumentError, "is closed$"):
        _checked_object(writing, True)
    assert _checked_object(io.BytesIO(), False) is None
    assert _checked_object(io.BytesIO(), True) is None


def test_what_an_object_still_buffers_is_written_before_our_own(tmp_path: Path, device: tg.Device) -> None:
    path = tmp_path / "f"
    buffer = device.upload(b"XY")
    with path.open("w+b") as file:
        file.write(b"abcd")
        write = device.queue().write_file(buffer, file, file_offset=1)
        write.wait(LIMIT)
        assert path.read_bytes() == b"aXYd"
        read = device.queue().read_file(file, device.allocate(4))
        read.wait(LIMIT)
    flushed: list[int] = []
    duck = SimpleNamespace(
        readable=lambda: True, writable=lambda: True, seek=print, fileno=lambda: 7, flush=lambda: flushed.append(1)
    )
    assert _checked_object(duck, False) == 7
    assert flushed == []
    assert _checked_object(duck, True) == 7
    assert flushed == [1]


def test_an_object_without_a_descriptor_is_read_and_written_by_its_methods(device: tg.Device) -> None:
    memory_file = io.BytesIO(b"0123456789")
    target = device.allocate(4)
    device.queue().read_file(memory_file, target, file_offset=3, length=4).wait(LIMIT)
    assert target.read() == b"3456"
    rest = device.allocate(8)
    device.queue().read_file(memory_file, rest, file_offset=8).wait(LIMIT)
    assert rest.read()[:2] == b"89"
    device.queue().write_file(target, memory_file, file_offset=8).wait(LIMIT)
    assert memory_file.getvalue() == b"012345673456"
    late = device.queue().read_file(memory_file, target, file_offset=9, length=4)
    with refused(tg.SemaphoreFailedError, "the file ends 1 bytes short of the 4 asked for at 9"):
        late.wait(LIMIT)


def test_the_rest_of_a_file_must_fit(tmp_path: Path, device: tg.Device) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    target = device.allocate(4, label="t")
    for file in (path, io.BytesIO(b"0123456789")):
        late = device.queue().read_file(file, target, file_offset=5)
        text = "read_file: the rest of the file is 5 bytes, which do not fit the 4 of buffer 't' of 4 bytes here"
        with refused(tg.SemaphoreFailedError, text):
            late.wait(LIMIT)
        device.queue().read_file(file, target, file_offset=6).wait(LIMIT)
        assert target.read() == b"6789"
        device.queue().read_file(file, target, file_offset=20).wait(LIMIT)
    with refused(tg.OutOfRangeError, r"^the file offset is -1, and must be 0 or more$"):
        device.queue().read_file(path, target, file_offset=-1)


def test_files_longer_than_a_chunk_are_read_and_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK", 3)
    path = tmp_path / "f"
    data = np.arange(10, dtype=np.uint8)
    out = _File(path, write=True)
    out.write_from(data, 2)
    out.close()
    assert path.read_bytes() == b"\0\0" + data.tobytes()
    assert path.stat().st_mode & 0o111 == 0
    for source in (path, io.BytesIO(path.read_bytes())):
        opened = _File(source, write=False)
        assert opened.size() == 12
        into = np.zeros(20, np.uint8)
        assert opened.read_into(into, 2) == 10
        assert into[:10].tolist() == data.tolist()
        opened.close()
        opened.close()


def test_a_file_is_closed_when_its_work_is_over_or_refused(
    tmp_path: Path, device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    close = os.close
    path = tmp_path / "f"
    path.write_bytes(b"abcd")
    monkeypatch.setattr(files.os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor)))
    work = files.FileRead(device.queue(), path, device.allocate(4), 0, 4)
    work()
    assert len(closed) == 1
    assert work._file._descriptor is None
    short = files.FileRead(device.queue(), path, device.allocate(8), 0, 8)
    with refused(tg.OutOfRangeError, "4 bytes short"):
        short()
    assert len(closed) == 2
    write = files.FileWrite(device.queue(), path, device.upload(b"x"), 0)
    write()
    assert len(closed) == 3
    monkeypatch.undo()


# Recordings --------------------------------------------------------------------------------------------------------


def test_a_recording_tells_what_it_is_and_forgets_what_was_discarded(device: tg.Device) -> None:
    buffer = device.allocate(8)
    commands = device.record(label="c")
    with refused(ValueError, "stop"), commands:
        commands.fill(buffer, 0)
        assert repr(commands) == "<tidegate.CommandBuffer command buffer 'c', 1 commands, recording>"
        raise ValueError("stop")
    assert repr(commands) == "<tidegate.CommandBuffer command buffer 'c', 0 commands, discarded>"
    assert commands._touched == {}
    text = "^command buffer 'c' is discarded: nothing more can be recorded$"
    function = device.load(tg.Kernel("noop", bindings=0, cpu=noop))["noop"]
    for call in (
        commands.__enter__,
        commands.end,
        commands.barrier,
        commands.end_group,
        lambda: commands.begin_group("g"),
        lambda: commands.fill(buffer, 0),
        lambda: commands.dispatch(function, 1),
    ):
        with refused(tg.FailedPreconditionError, text):
            call()


def test_what_the_driver_prepared_and_what_it_costs_go_with_every_execution(
    opened: tuple[tg.Device, HandDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, hand = opened
    prepared: list[Any] = []
    monkeypatch.setattr(hand, "prepare", lambda recording: prepared.append(recording) or "native", raising=False)
    works: list[Any] = []
    hand.before_issue = lambda ticket: works.append(ticket._work)  # type: ignore[attr-defined]
    buffer = device.allocate(8)
    with device.record(label="plain") as plain:
        plain.fill(buffer, 0)
    with device.record() as slotted:
        slotted.fill(tg.Slot(0), 0, length=4)
    assert [recording.slots for recording in prepared] == [0, 1]
    assert prepared[0].label == "plain"
    device.queue().execute(plain)
    device.queue().execute(slotted, bindings=[buffer])
    device.queue().execute(plain, bindings=[buffer])
    assert [work.prepared for work in works] == ["native"] * 3
    assert [work.recording for work in works] == [prepared[0], prepared[1], prepared[0]]
    assert [work.cost for work in works] == [8, None, 8]
    assert [len(work.table) for work in works] == [0, 1, 1]


def test_an_execution_touches_and_writes_what_its_commands_do(opened: tuple[tg.Device, HandDevice]) -> None:
    device, _ = opened
    source, target, table = device.allocate(8), device.allocate(8), device.allocate(8)
    with device.record() as plain:
        plain.copy(source, target)
    with device.record() as slotted:
        slotted.copy(source, tg.Slot(0))
    _, touched, written = plain._execute(device, ())
    assert (touched, written) == ([source._memory, target._memory], [target._memory])
    _, touched, written = plain._execute(device, [table])
    assert (touched, written) == ([source._memory, target._memory, table._memory], [target._memory])
    _, touched, written = slotted._execute(device, [table])
    assert (touched, written) == ([source._memory, table._memory], [table._memory])
    target.close()
    with refused(tg.ClosedError, "is closed"):
        plain._execute(device, ())
    with device.record() as empty:
        pass
    assert empty._is_empty_for(device)
    other, _ = open_by_hand("other")
    assert not empty._is_empty_for(other)
    assert not plain._is_empty_for(device)
    assert not slotted._is_empty_for(device)
    with refused(tg.InvalidArgumentError, "belongs to device 'hand', not to device 'other'"):
        other.queue().execute(empty)
    other.close()
    with device.record(one_shot=True) as once:
        pass
    assert not once._is_empty_for(device)


def test_an_empty_recording_passes_without_the_device(opened: tuple[tg.Device, HandDevice]) -> None:
    device, hand = opened
    with device.record() as empty:
        pass
    done = tg.Semaphore()
    submission = device.queue().execute(empty, signal=done.at(1))
    assert submission.done
    assert (hand.asked, done.value) == ([], 1)


def test_ranges_of_slots_begin_at_zero_and_may_be_empty(device: tg.Device) -> None:
    commands = device.record()
    assert commands._range(tg.Slot(2), 0, 0, "fill") == SlotSpan(2, 0, 0)
    assert commands._range(tg.Slot(2), 4, None, "fill") == SlotSpan(2, 4, None)
    for offset, length in ((-1, None), (0, -1)):
        with refused(tg.OutOfRangeError, f"fill of slot 2 at {offset}, length {length}$"):
            commands._range(tg.Slot(2), offset, length, "fill")
    commands.end()


@pytest.mark.parametrize("slotted", ["source", "target", "both"])
def test_a_copy_with_slots_is_checked_when_they_are_filled(device: tg.Device, slotted: str) -> None:
    large, small = device.allocate(16), device.allocate(8)
    slots = {"source": (tg.Slot(0), small), "target": (large, tg.Slot(0)), "both": (tg.Slot(0), tg.Slot(1))}[slotted]
    table = {"source": [large], "target": [small], "both": [large, small]}[slotted]
    commands = device.record()
    commands.copy(*slots, length=None)
    commands.end()
    with pytest.raises(tg.OutOfRangeError):
        device.queue().execute(commands, bindings=table)
    same = {"source": [small], "target": [large], "both": [small, small]}[slotted]
    with refused(tg.InvalidArgumentError, "overlap"):
        device.queue().execute(commands, bindings=same)


def test_a_recorded_copy_of_slots_takes_the_length_given(device: tg.Device) -> None:
    source, target = device.upload(b"abcdefgh"), device.upload(b"12345678")
    with device.record() as commands:
        commands.copy(source, tg.Slot(0), source_offset=2, target_offset=1, length=3)
    device.queue().execute(commands, bindings=[target]).wait(LIMIT)
    assert target.read() == b"1cde5678"
    with device.record() as whole:
        whole.copy(source, tg.Slot(0))
    device.queue().execute(whole, bindings=[target]).wait(LIMIT)
    assert target.read() == b"abcdefgh"


def test_a_lane_can_be_awaited_and_keeps_its_name(device: tg.Device) -> None:
    import asyncio

    lane = device.lane(label="l")
    buffer = lane.allocate(4)
    lane.fill(buffer, 3)

    async def wait() -> None:
        await lane

    asyncio.run(wait())
    assert buffer.read() == b"\x03" * 4
    lane.reset()
    assert (lane._line.label, lane.label, repr(lane)) == (
        "l",
        "l",
        "<tidegate.Lane 'l' on queue 'compute' of device 'dev'>",
    )
    unnamed = device.lane()
    unnamed.reset()
    assert unnamed._line.label == "lane"


def test_the_bytes_of_a_pattern_are_not_made_of_other_things(device: tg.Device) -> None:
    buffer = device.allocate(8)
    for wrong, name in ((True, "bool"), (1.0, "float"), (np.float32(1), "float32"), (None, "NoneType"), ("x", "str")):
        with refused(TypeError, f"^fill: the pattern must be an int or bytes, not {name}$"):
            device.queue().fill(buffer, wrong)  # type: ignore[arg-type]
    device.queue().fill(buffer, np.uint8(9)).wait(LIMIT)  # type: ignore[arg-type]
    assert buffer.read() == b"\x09" * 8


def test_threads_that_import_at_once_share_one_device() -> None:
    shared, found = _SharedDevice(), []
    threads = [threading.Thread(target=lambda: found.append(shared.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    found[0].close(LIMIT)
    assert buffers.PENDING == "not committed yet"


def test_a_file_that_cannot_be_opened_is_finalized_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with pytest.raises(FileNotFoundError):
        _File(tmp_path / "none", write=False)
    with pytest.raises(TypeError):
        _File(3, write=False)
    assert unraisable == []


def test_a_download_of_a_part_does_not_stand_for_the_whole_buffer(device: tg.Device) -> None:
    buffer = device.upload(bytes(16))
    device.queue().download(buffer, shape=4).wait(LIMIT)
    device.queue().fill(buffer, 0, offset=4, length=4).wait(LIMIT)
    assert not buffer._memory.given_up


def test_an_empty_recording_still_checks_its_table(device: tg.Device) -> None:
    with device.record() as empty:
        pass
    with pytest.raises(TypeError, match="takes a buffer, not str"):
        device.queue().execute(empty, bindings=["x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^execute takes a command buffer, not int$"):
        device.queue().execute(3)  # type: ignore[arg-type]
    device.queue().execute(empty, bindings=[device.allocate(4)]).wait(LIMIT)


def test_the_search_for_staging_begins_behind_the_last_range_and_goes_forward(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    staging._gaps, staging._next = [(0, 16), (32, 48)], 16
    assert staging._take(8, 8) == 32
    staging._gaps, staging._next = [(0, 8), (16, 20), (32, 40)], 18
    assert staging._take(8, 8) == 32
    staging._gaps, staging._next = [(0, 8)], 8
    staging.reserve(0).release()
    assert staging._gaps == [(0, 8)]
    assert staging._take(0, 16) == 0
    staging._gaps = [(0, 8), (16, 24)]
    staging._give_back(12, 0)
    assert staging._gaps == [(0, 8), (16, 24)]
    staging._gaps = []
    assert staging._take(0, 16) == 0
    assert staging._take(1, 1) is None


def test_a_recorded_copy_writes_as_much_as_it_reads(device: tg.Device) -> None:
    small, large = device.upload(b"abcd"), device.upload(b"12345678")
    with device.record() as commands:
        commands.copy(small, large)
    work = commands._commands[0].work
    assert (work.source.nbytes, work.target.nbytes) == (4, 4)
    device.queue().execute(commands).wait(LIMIT)
    assert large.read() == b"abcd5678"


def test_recorded_calls_are_checked_like_submitted_ones(device: tg.Device) -> None:
    function = device.load(tg.Kernel("noop", bindings=0, cpu=noop))["noop"]
    counts = device.allocate(12)
    commands = device.record()
    with pytest.raises(TypeError, match=r"^dispatch takes a function of an executable, not int$"):
        commands.dispatch(3, 1)  # type: ignore[arg-type]
    with pytest.raises(
        tg.InvalidArgumentError, match=r"^function 'noop': the local memory is -1, and must be 0 or more$"
    ):
        commands.dispatch(function, 1, local_memory=-1)
    commands.dispatch(function, 1)
    commands.dispatch_indirect(function, counts=counts)
    commands.dispatch_indirect(function, counts=counts, local_memory=8)
    commands.end()
    assert [command.work.local_memory for command in commands._commands] == [0, 0, 8]
    assert device.load(noop).label == ""


def test_ranges_of_slots_that_several_commands_name_are_looked_at_once(device: tg.Device) -> None:
    with device.record() as commands:
        for _ in range(3):
            commands.fill(tg.Slot(0), 0, length=4)
        commands.fill(tg.Slot(0), 0, offset=4, length=4)
    assert commands._slot_spans == [SlotSpan(0, 0, 4), SlotSpan(0, 4, 4)]


def test_counts_that_need_no_check_are_three_ints_within_bounds() -> None:
    top = 2**32 - 1
    for good in ((1, 1, 1), (0, 0, 0), (top, top, top)):
        assert is_plain(good)
    for wrong in (
        1,
        [1, 1, 1],
        (1, 1),
        (1, 1, 1, 1),
        *[(1,) * place + (bad,) + (1,) * (2 - place) for place in range(3) for bad in (-1, top + 1, True, 1.0)],
    ):
        assert not is_plain(wrong)


@pytest.mark.parametrize("code", "bBhHiIlLqQ")
def test_ints_that_fit_and_numbers_of_the_type_itself_need_no_look(code: str) -> None:
    kind = np.dtype(code)
    low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    for value in {low, 1, high} - {0}:
        found = _plain(value, kind)
        assert (found, found.dtype) == (value, kind)
    for value in (low - 1, high + 1, True, 1.0, np.float32(1)):
        assert _plain(value, kind) is None
    itself = kind.type(3)
    assert _plain(itself, kind) is itself
    assert _plain(1, np.dtype(np.float32)) is None
    pair = np.dtype([("a", "i4")])
    assert _plain(np.zeros((), pair)[()], pair) is None


def test_no_constants_are_no_constants_and_zero_is_one(device: tg.Device) -> None:
    none = device.load(tg.Kernel("none", bindings=0, cpu=noop))["none"]
    assert none.convert_constants(()) == ()
    assert none.convert_constants([]) == ()
    with pytest.raises(tg.InvalidArgumentError, match=r"^function 'none' takes 0 constants, and 1 were given$"):
        none.convert_constants((1,))
    one = device.load(tg.Kernel("one", bindings=0, constants=["i4"], cpu=noop))["one"]
    assert one.convert_constants((0,)) == (0,)
    with pytest.raises(tg.InvalidArgumentError, match=r"^function 'one' takes 1 constants, and 0 were given$"):
        one.convert_constants(())
    for local in (True, 1.5):
        with pytest.raises(TypeError, match="the local memory must be an int"):
            device.queue().dispatch(none, 1, local_memory=local)  # type: ignore[arg-type]


def test_a_trimmed_pool_keeps_nothing(device: tg.Device) -> None:
    pool = device.create_pool()
    buffer = device.queue().allocate(4096, pool=pool)
    buffer.ready.wait(LIMIT)
    device.queue().free(buffer).wait(LIMIT)
    del buffer
    assert (pool.statistics().pooled_bytes or 0) > 0
    pool.trim()
    assert pool.statistics().pooled_bytes == 0


def test_a_step_is_dropped_before_its_end_is_told() -> None:
    import weakref

    class Step:
        def __call__(self) -> None:
            pass

    step, gone = Step(), []
    ref = weakref.ref(step)
    task = cpu_queue._Task("ticket", step, lambda *_given: gone.append(ref() is None))  # type: ignore[arg-type]
    del step
    task()
    assert gone == [True]


@pytest.mark.parametrize("value", [2, -1, 255])
def test_a_boolean_constant_is_at_most_one(device: tg.Device, value: int) -> None:
    function = device.load(tg.Kernel("flag", bindings=0, constants=["?"], cpu=noop))["flag"]
    with pytest.raises(tg.InvalidArgumentError, match=r"which does not fit bool: 0\.\.1$"):
        function.convert_constants((value,))
