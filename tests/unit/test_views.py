"""Views, pinned arrays, and the device that arrays of others come in on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance.threads import all_at_once
from tidegate.testing import ManualDevice

LIMIT = 30.0


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
    with pytest.raises(ValueError, match=r"^a view of int32 cannot become float64 without a copy$"):
        seen.__array__(np.float64, copy=False)


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
    with pytest.raises(tg.UnsupportedError, match="is host memory: a stream to order by means nothing here"):
        seen.__dlpack__(stream=1)
    assert tg.from_dlpack(seen) is seen
    assert tg.from_dlpack(seen, device) is seen
    with tg.open_device("cpu?workers=1", label="other") as other:
        elsewhere = tg.from_dlpack(seen, other)
        assert elsewhere.buffer.device is other
        assert np.shares_memory(np.asarray(elsewhere), np.asarray(seen))


def test_memory_the_host_cannot_see_does_not_go_out(manual: ManualDevice) -> None:
    with pytest.raises(tg.UnsupportedError, match="cannot be seen by the host"):
        manual.buffer.view(np.uint8).__dlpack_device__()
    with pytest.raises(tg.UnsupportedError, match="which the host cannot map on device 'manual'"):
        manual.buffer.view(np.uint8).__array__()


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
    with pytest.raises(
        tg.UnsupportedError, match=r"^from_dlpack: no open device owns memory of DLPack device \(2, 3\)$"
    ):
        tg.from_dlpack(Exporter(array, (2, 3)))
    with pytest.raises(TypeError, match=r"^from_dlpack takes an object with __dlpack__, not int$"):
        tg.from_dlpack(3)

    class NoPlace(np.ndarray):
        __dlpack_device__ = property()  # type: ignore[assignment]

    assert not hasattr(array.view(NoPlace), "__dlpack_device__")
    assert np.asarray(tg.from_dlpack(array.view(NoPlace), device)).tolist() == list(range(6))


def test_the_shared_device_is_opened_once_and_anew_when_it_was_closed() -> None:
    def shared() -> tg.Device:
        return tg.from_dlpack(np.arange(3)).buffer.device

    first = shared()
    assert shared() is first
    assert first.label == "shared-cpu"
    first.close(LIMIT)
    second = shared()
    assert second is not first
    second.close(LIMIT)


def test_pinned_arrays_have_their_shape_and_are_ordinary_without_a_device(device: tg.Device) -> None:
    for where in (None, device):
        assert tg.pinned_empty(3, device=where).shape == (3,)
        assert tg.pinned_empty(3, device=where).dtype == np.float32
        array = tg.pinned_empty((2, 5), np.int64, where)
        array[:] = 1
        assert (array.shape, array.dtype, int(array.sum())) == ((2, 5), np.int64, 10)
        with pytest.raises(tg.InvalidArgumentError, match="holds Python objects"):
            tg.pinned_empty(3, object, where)


def test_threads_that_import_at_once_share_one_device() -> None:
    tg.from_dlpack(np.arange(3)).buffer.device.close(LIMIT)
    found = all_at_once(4, lambda _index: tg.from_dlpack(np.arange(3)).buffer.device)
    assert len(set(map(id, found))) == 1
    found[0].close(LIMIT)
