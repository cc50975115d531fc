"""Buffers as the host sees them: mapping, subspans, views, DLPack."""

import gc
import importlib
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .buffers import GUARD, ready
from .latches import LIMIT

pytestmark = [pytest.mark.rules("M25"), pytest.mark.needs("work")]


def shared(device: tg.Device, data: Any) -> tg.Buffer:
    return device.upload(np.asarray(data), memory="shared")


def counted(device: tg.Device, nbytes: int = 64) -> tg.Buffer:
    return shared(device, np.arange(nbytes, dtype=np.uint8))


# Mapping


def test_a_map_for_reading_shows_the_bytes_and_cannot_be_written(device: tg.Device) -> None:
    with counted(device).map("r", timeout=LIMIT) as mapped:
        assert mapped.dtype == np.uint8
        assert mapped.tolist() == list(range(64))
        assert not mapped.flags.writeable


def test_the_default_is_to_map_for_reading(device: tg.Device) -> None:
    with counted(device).map(timeout=LIMIT) as mapped:
        assert not mapped.flags.writeable


def test_a_map_for_writing_reaches_the_buffer(device: tg.Device, queue: tg.Queue) -> None:
    buffer = counted(device)
    target = device.allocate(64)
    with buffer.map("w", timeout=LIMIT) as mapped:
        mapped[:] = 7
    queue.copy(buffer, target).wait(LIMIT)
    assert target.read(timeout=LIMIT) == b"\x07" * 64


def test_a_map_for_both_keeps_what_it_does_not_write(device: tg.Device) -> None:
    buffer = counted(device)
    with buffer.map("rw", timeout=LIMIT) as mapped:
        assert mapped[3] == 3
        mapped[3] = 99
    assert buffer.read(timeout=LIMIT) == bytes([0, 1, 2, 99, *range(4, 64)])


@pytest.mark.rules("M26")
@pytest.mark.parametrize(
    "several",
    [list, tuple, set, frozenset, dict.fromkeys, iter, lambda points: (point for point in points)],
    ids=["list", "tuple", "set", "frozenset", "dict", "iterator", "generator"],
)
def test_a_map_waits_for_any_collection_of_timepoints_and_submissions(
    device: tg.Device, queue: tg.Queue, several: Callable[[list[Any]], Any]
) -> None:
    buffer, gate = counted(device), tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    points = [tg.Semaphore(1).at(1), held, gate.at(1)]
    with pytest.raises(tg.DeadlineExceededError), buffer.map(wait=several(points), timeout=0):
        pass
    with buffer.map(wait=several([]), timeout=0) as mapped:
        assert mapped.tolist() == list(range(64))
    gate.signal(1)
    with buffer.map(wait=several(points), timeout=LIMIT) as mapped:
        assert set(mapped.tolist()) == {1}


@pytest.mark.rules("M26")
def test_a_map_waits_for_a_single_point_or_for_none(device: tg.Device, queue: tg.Queue) -> None:
    buffer, gate = counted(device), tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    for single in (held, gate.at(1)):
        with pytest.raises(tg.DeadlineExceededError), buffer.map(wait=single, timeout=0):
            pass
    with buffer.map(wait=None, timeout=0) as mapped:
        assert mapped.tolist() == list(range(64))
    nonsense: Any
    for nonsense in (3, "soon", [held, 3], buffer):
        with pytest.raises(TypeError, match="wait="), buffer.map(wait=nonsense, timeout=0):
            pass
    gate.signal(1)
    held.wait(LIMIT)


def test_a_map_of_a_subspan_is_that_range_and_no_more(device: tg.Device) -> None:
    buffer = counted(device)
    with buffer.subspan(10, 20).map("rw", timeout=LIMIT) as mapped:
        assert mapped.tolist() == list(range(10, 30))
        mapped[:] = 0
    assert buffer.read(timeout=LIMIT) == bytes([*range(10), *[0] * 20, *range(30, 64)])


def test_a_buffer_may_be_mapped_twice_at_once(device: tg.Device) -> None:
    buffer = counted(device)
    with buffer.map("rw", timeout=LIMIT) as first, buffer.subspan(8, 8).map("rw", timeout=LIMIT) as second:
        first[8] = 77
        assert second[0] == 77
        second[1] = 78
        assert first[9] == 78
    with buffer.map("r", timeout=LIMIT) as again:
        assert again[8:10].tolist() == [77, 78]


def test_buffers_of_no_bytes_map_to_empty_arrays(device: tg.Device) -> None:
    for buffer in (device.allocate(0, memory="shared"), counted(device).subspan(64, 0)):
        for mode in ("r", "w", "rw"):
            with buffer.map(mode, timeout=LIMIT) as mapped:
                assert mapped.shape == (0,)


@pytest.mark.rules("M16", "M25")
@pytest.mark.parametrize("mode", ["", "x", "wr", "read", "rb"])
def test_an_unknown_mode_is_refused(device: tg.Device, mode: str) -> None:
    with pytest.raises(tg.InvalidArgumentError), counted(device).map(mode):
        pass


@pytest.mark.rules("M22", "M25", "M26")
def test_a_map_of_a_buffer_without_storage_is_refused(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    buffer = queue.allocate(64, memory="shared", wait=gate.at(1))
    for arguments in ({}, {"wait": ()}):
        with pytest.raises(tg.FailedPreconditionError), buffer.map("r", timeout=LIMIT, **arguments):
            pass
    gate.signal(1)
    ready(buffer).wait(LIMIT)
    with buffer.map("w", timeout=LIMIT) as mapped:
        mapped[:] = 1
    assert buffer.read(timeout=LIMIT) == b"\x01" * 64


@pytest.mark.rules("M26")
def test_a_map_follows_the_last_write_unless_told_otherwise(device: tg.Device, queue: tg.Queue) -> None:
    buffer = shared(device, np.full(16, GUARD, np.uint8))
    gate = tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    with pytest.raises(tg.DeadlineExceededError), buffer.map("r", timeout=0):
        pass
    with buffer.map("r", wait=(), timeout=0) as mapped:
        assert set(mapped.tolist()) == {GUARD}
    gate.signal(1)
    with buffer.map("r", timeout=LIMIT) as mapped:
        assert held.done
        assert set(mapped.tolist()) == {1}


@pytest.mark.rules("M26")
def test_a_map_waits_for_the_points_it_is_given(device: tg.Device, queue: tg.Queue) -> None:
    buffer = shared(device, np.full(16, GUARD, np.uint8))
    gate, other = tg.Semaphore(), tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    for points in (other.at(1), [other.at(1)], (other.at(1), held)):
        with pytest.raises(tg.DeadlineExceededError), buffer.map("r", wait=points, timeout=0):
            pass
    other.signal(1)
    with buffer.map("r", wait=other.at(1), timeout=0) as mapped:
        assert set(mapped.tolist()) == {GUARD}
    gate.signal(1)
    with buffer.map("r", wait=[other.at(1), held], timeout=LIMIT) as mapped:
        assert set(mapped.tolist()) == {1}


@pytest.mark.rules("M25", "M26", "M35")
def test_a_closed_buffer_refuses_the_host(device: tg.Device, queue: tg.Queue) -> None:
    buffer = counted(device)
    span, view = buffer.subspan(0, 8), buffer.view(np.uint8)
    buffer.close()
    buffer.close()
    for use in (
        lambda: buffer.read(timeout=LIMIT),
        lambda: buffer.to_numpy(np.uint8, timeout=LIMIT),
        lambda: buffer.write(b"x"),
        lambda: buffer.map("r", timeout=LIMIT).__enter__(),
        lambda: span.read(timeout=LIMIT),
        lambda: np.asarray(view),
        lambda: np.from_dlpack(view),
        lambda: queue.fill(buffer, 1),
        lambda: queue.free(buffer),
    ):
        with pytest.raises(tg.ClosedError):
            use()
    assert buffer.nbytes == 64


@pytest.mark.rules("M18", "M25")
def test_a_buffer_closed_while_it_is_mapped_stays_readable_through_the_map(device: tg.Device, queue: tg.Queue) -> None:
    buffer = shared(device, np.full(65536, 5, np.uint8))
    with buffer.map("r", timeout=LIMIT) as mapped:
        buffer.close()
        for value in range(10):
            other = device.allocate(65536, memory="shared")
            queue.fill(other, 100 + value).wait(LIMIT)
            other.close()
        assert set(mapped.tolist()) == {5}


# Plain host access


def test_reading_and_writing_without_a_map(device: tg.Device) -> None:
    for memory in ("device", "host", "shared"):
        buffer = device.upload(np.full(32, GUARD, np.uint8), memory=memory)
        buffer.write(b"abc", offset=4)
        buffer.write(np.arange(2, dtype=np.uint32), offset=8)
        buffer.subspan(20, 4).write(b"span")
        expected = bytearray([GUARD] * 32)
        expected[4:7] = b"abc"
        expected[8:16] = np.arange(2, dtype=np.uint32).tobytes()
        expected[20:24] = b"span"
        assert buffer.read(timeout=LIMIT) == bytes(expected)
        assert buffer.subspan(4, 3).read(timeout=LIMIT) == b"abc"


@pytest.mark.rules("M16", "M25")
def test_a_host_write_past_the_end_is_refused(device: tg.Device) -> None:
    buffer = counted(device)
    for offset, data in ((64, b"x"), (0, bytes(65)), (62, b"abc"), (-1, b"x")):
        with pytest.raises((tg.OutOfRangeError, tg.InvalidArgumentError)):
            buffer.write(data, offset=offset)
    assert buffer.read(timeout=LIMIT) == bytes(range(64))


def test_to_numpy_gives_a_copy_of_the_asked_type_and_shape(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(12, dtype=np.int16).reshape(3, 4)
    buffer = shared(device, data)
    found = buffer.to_numpy(np.int16, (3, 4), timeout=LIMIT)
    assert np.array_equal(found, data)
    assert buffer.to_numpy(np.int16, timeout=LIMIT).shape == (12,)
    queue.fill(buffer, 0).wait(LIMIT)
    assert np.array_equal(found, data)


@pytest.mark.rules("M16", "M25")
def test_types_and_shapes_that_do_not_fit_are_refused(device: tg.Device) -> None:
    buffer = counted(device, 63)
    for make in (
        lambda: buffer.to_numpy(np.float64, timeout=LIMIT),
        lambda: buffer.to_numpy(np.uint8, (8, 9), timeout=LIMIT),
        lambda: buffer.view(np.float64),
        lambda: buffer.view(np.uint8, (8, 9)),
    ):
        with pytest.raises((tg.InvalidArgumentError, tg.OutOfRangeError)):
            make()


def test_subspans_of_subspans_count_from_their_own_start(device: tg.Device) -> None:
    buffer = counted(device)
    span = buffer.subspan(10, 30)
    inner = span.subspan(5, 10)
    assert inner.nbytes == 10
    assert inner.device is device
    assert inner.memory == buffer.memory
    assert inner.read(timeout=LIMIT) == bytes(range(15, 25))
    assert span.subspan(30, 0).read(timeout=LIMIT) == b""


@pytest.mark.rules("M16", "M25")
@pytest.mark.parametrize(("offset", "nbytes"), [(0, 65), (64, 1), (65, 0), (-1, 4), (4, -1), (2**64, 1)])
def test_a_subspan_out_of_range_is_refused(device: tg.Device, offset: int, nbytes: int) -> None:
    with pytest.raises((tg.OutOfRangeError, tg.InvalidArgumentError)):
        counted(device).subspan(offset, nbytes)


@pytest.mark.rules("M16", "M25")
def test_a_subspan_of_a_subspan_cannot_reach_beyond_it(device: tg.Device) -> None:
    with pytest.raises(tg.OutOfRangeError):
        counted(device).subspan(10, 20).subspan(15, 6)


# Views and DLPack


def test_a_view_has_a_type_and_a_shape_and_becomes_an_array(device: tg.Device) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffer = shared(device, data)
    view = buffer.view(np.float32, (3, 4))
    assert view.dtype == np.float32
    assert tuple(view.shape) == (3, 4)
    assert buffer.view(np.float32).shape == (12,)
    assert np.array_equal(np.asarray(view), data)
    assert np.array_equal(np.asarray(view, dtype=np.float64), data.astype(np.float64))


@pytest.mark.rules("M22", "M25")
def test_a_view_is_ready_when_its_buffer_is(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    buffer = queue.allocate(64, memory="shared", wait=gate.at(1))
    view = buffer.view(np.uint8)
    assert not ready(view).done
    gate.signal(1)
    ready(view).wait(LIMIT)


@pytest.mark.rules("M25", "M26")
def test_numpy_takes_a_view_by_dlpack_without_a_copy(device: tg.Device) -> None:
    data = np.arange(12, dtype=np.int32).reshape(4, 3)
    buffer = shared(device, data)
    view = buffer.view(np.int32, (4, 3))
    assert view.__dlpack_device__()[0] in (1, 3, 13)  # host memory: plain, or page-locked by a vendor
    array = np.from_dlpack(view)
    assert np.array_equal(array, data)
    buffer.write(np.array([77], np.int32))
    assert array[0, 0] == 77


@pytest.mark.rules("M18", "M25")
def test_an_exported_array_keeps_the_storage_alive(device: tg.Device, queue: tg.Queue) -> None:
    buffer = shared(device, np.full(65536, 5, np.uint8))
    array = np.from_dlpack(buffer.view(np.uint8))
    buffer.close()
    del buffer
    gc.collect()
    for value in range(10):
        other = device.allocate(65536, memory="shared")
        queue.fill(other, 100 + value).wait(LIMIT)
        other.close()
    device.trim()
    assert set(array.tolist()) == {5}


@pytest.mark.rules("M26")
def test_an_export_follows_the_last_write(device: tg.Device, queue: tg.Queue) -> None:
    """An export that did not wait would nearly always be there before the signal of the other thread."""
    for export in (np.from_dlpack, np.asarray):
        for _ in range(10):
            buffer = shared(device, np.full(65536, GUARD, np.uint8))
            gate = tg.Semaphore()
            queue.fill(buffer, 1, wait=gate.at(1))
            ready = threading.Event()

            def signal(gate: tg.Semaphore = gate, ready: threading.Event = ready) -> None:
                ready.wait(LIMIT)
                gate.signal(1)

            thread = threading.Thread(target=signal, daemon=True)
            thread.start()
            ready.set()
            array = export(buffer.view(np.uint8))
            assert set(np.unique(array).tolist()) == {1}
            thread.join(LIMIT)


@pytest.mark.rules("M10", "M26")
def test_an_export_inside_a_host_call_waits_for_nothing(device: tg.Device, queue: tg.Queue) -> None:
    buffer = shared(device, np.full(16, GUARD, np.uint8))
    gate = tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1))
    found = queue.host_call(lambda: np.from_dlpack(buffer.view(np.uint8)).tolist()).result(LIMIT)
    assert set(found) == {GUARD}
    gate.signal(1)
    held.wait(LIMIT)


def test_a_numpy_array_comes_in_by_dlpack_without_a_copy() -> None:
    """Host memory belongs to no open device here, so a process-wide CPU device takes it."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = tg.from_dlpack(array)
    assert view.dtype == np.float32
    assert tuple(view.shape) == (3, 4)
    assert np.array_equal(np.asarray(view), array)
    array[0, 0] = 55
    assert np.asarray(view)[0, 0] == 55


def test_an_imported_array_is_used_by_work_and_kept_by_it() -> None:
    array = np.arange(4096, dtype=np.uint8)
    view = tg.from_dlpack(array)
    device = view.buffer.device
    queue = device.queue()
    target = device.allocate(4096)
    gate = tg.Semaphore()
    expected = array.tobytes()
    copied = queue.copy(view.buffer, target, wait=gate.at(1))
    del array, view
    gc.collect()
    gate.signal(1)
    copied.wait(LIMIT)
    assert target.read(timeout=LIMIT) == expected


def test_work_on_an_imported_array_is_seen_in_the_array() -> None:
    array = np.zeros(4096, np.uint8)
    view = tg.from_dlpack(array)
    view.buffer.device.queue().fill(view.buffer, 9).wait(LIMIT)
    assert set(array.tolist()) == {9}


def test_the_device_to_import_to_can_be_given(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(100, dtype=np.float32)
    try:
        view = tg.from_dlpack(data, device=device)
    except tg.UnsupportedError:
        pytest.skip("this device cannot use host memory it did not allocate")
    assert view.buffer.device is device
    target = device.allocate(400)
    queue.copy(view.buffer, target, wait=view.ready).wait(LIMIT)
    assert np.array_equal(target.to_numpy(np.float32, timeout=LIMIT), data)


def test_strided_arrays_come_in_by_dlpack_in_c_order_or_are_refused() -> None:
    grid = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (grid.T, grid[::2], grid[:, 1:3]):
        try:
            view = tg.from_dlpack(array)
        except (tg.InvalidArgumentError, tg.UnsupportedError):
            continue
        assert np.array_equal(np.asarray(view), array)


def test_a_view_goes_round_through_dlpack_and_is_the_same_memory(device: tg.Device) -> None:
    buffer = shared(device, np.arange(16, dtype=np.uint8))
    again = tg.from_dlpack(buffer.view(np.uint8))
    buffer.write(b"\x63")
    assert np.asarray(again)[0] == 0x63


@pytest.mark.rules("M16", "M25")
@pytest.mark.parametrize("thing", [None, 5, "text", object(), [1, 2]], ids=["None", "int", "str", "object", "list"])
def test_what_does_not_speak_dlpack_is_a_type_error(thing: Any) -> None:
    with pytest.raises(TypeError):
        tg.from_dlpack(thing)


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_other_frameworks_exchange_memory_by_dlpack(device: tg.Device, queue: tg.Queue, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    module = importlib.import_module(framework)
    buffer = shared(device, np.arange(16, dtype=np.float32))
    kind, _ = buffer.view(np.float32).__dlpack_device__()
    if framework == "cupy" and kind not in (2, 3, 13):
        pytest.skip("cupy takes memory of a CUDA device only")
    tensor = module.from_dlpack(buffer.view(np.float32))
    assert float(tensor.sum()) == 120
    back = tg.from_dlpack(tensor)
    queue.fill(buffer, 0).wait(LIMIT)
    assert float(np.asarray(back).sum()) == 0


def test_page_locked_arrays_are_plain_arrays(device: tg.Device, queue: tg.Queue) -> None:
    array = tg.pinned_empty((3, 5), np.float32, device=device)
    assert array.shape == (3, 5)
    assert array.dtype == np.float32
    array[:] = np.arange(15).reshape(3, 5)
    target = device.allocate(60)
    queue.upload(array, target).wait(LIMIT)
    assert np.array_equal(target.to_numpy(np.float32, (3, 5), timeout=LIMIT), array)
    assert tg.pinned_empty(7, np.uint8).shape == (7,)


@pytest.mark.rules("M16")
@pytest.mark.parametrize(
    "shape", [-1, (2, -3), 2**62, 2**63, 2**64, (2**40, 2**40), (0, 2**63), (2**40, 0, 2**40), (1,) * 65], ids=str
)
def test_a_page_locked_array_of_an_impossible_shape_is_refused(device: tg.Device, shape: Any) -> None:
    for where in (None, device):
        with pytest.raises(tg.InvalidArgumentError, match="pinned_empty"):
            tg.pinned_empty(shape, np.float32, device=where)


@pytest.mark.rules("M16", "M22")
def test_a_page_locked_array_for_which_there_is_no_room_is_refused(device: tg.Device) -> None:
    for where in (None, device):
        with pytest.raises(tg.ResourceExhaustedError):
            tg.pinned_empty(2**56, np.uint8, device=where)


@pytest.mark.rules("M35")
def test_a_closed_device_gives_no_page_locked_array(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    device.close(timeout=LIMIT)
    with pytest.raises(tg.ClosedError):
        tg.pinned_empty(3, np.uint8, device=device)
