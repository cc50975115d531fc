"""Memory and events of a device to and from other libraries, by a device that only pretends to have them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate._core import dlpack, foreign_streams, native_events, view, workload
from tidegate._core.dlpack import _dtype, _refuse_gaps, _Tensor, _tensor
from tidegate.driver import Barrier, DriverQueue, EpochTimeline, Interop, Storage, Work

from .hand_driver import HandDevice, HandQueue, HandTimeline, close_by_hand, open_by_hand

CUDA = (2, 1)


class Adopted(Storage):
    memory = "device"

    def __init__(self, address: int, nbytes: int, keep: object) -> None:
        self.address, self.nbytes, self.keep = address, nbytes, keep

    def host(self) -> None:
        return None


class Pretended(Interop):
    """Every storage lies at 4096; streams are numbers."""

    dlpack_device = CUDA

    def __init__(self, hand: HandDevice) -> None:
        self.hand = hand
        self.followed: list[tuple[object, EpochTimeline, int]] = []
        self.shown: list[tuple[Storage, object]] = []
        self.imported = HandTimeline()
        self.imported.sink = hand.sink

    def address(self, storage: Storage) -> int:
        return getattr(storage, "address", 4096)

    def exported(self, storage: Storage, stream: object) -> None:
        self.shown.append((storage, stream))

    def follow(self, stream: object, timeline: EpochTimeline, epoch: int) -> None:
        self.followed.append((stream, timeline, epoch))

    def adopt(self, address: int, nbytes: int, keep: object) -> Storage:
        return Adopted(address, nbytes, keep)

    def stream_queue(self, stream: object = None) -> DriverQueue:
        queue = HandQueue(self.hand, self.imported)
        queue.stream = 77 if stream is None else stream  # type: ignore[attr-defined]
        return queue


@pytest.fixture
def opened() -> Iterator[tuple[tg.Device, HandDevice, Pretended]]:
    device, hand = open_by_hand()
    interop = hand.interop = Pretended(hand)  # type: ignore[assignment]
    yield device, hand, interop
    interop.imported.over(interop.imported.issued, wake=True)
    close_by_hand(device, hand)


# Going out ---------------------------------------------------------------------------------------------------------


def test_a_view_goes_out_where_it_lies_with_its_shape_and_type(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    device, _, interop = opened
    seen = device.allocate(64).subspan(8).view(np.int16, (3, 4))
    assert seen.__dlpack_device__() == CUDA
    capsule = seen.__dlpack__()
    tensor = _tensor(capsule)
    assert (tensor.data + tensor.byte_offset, tensor.device_type, tensor.device_id) == (4096 + 8, *CUDA)
    assert (tensor.ndim, [tensor.shape[axis] for axis in range(2)]) == (2, [3, 4])
    assert (tensor.code, tensor.bits, tensor.lanes) == (0, 16, 1)
    assert interop.followed == []


def test_the_consumers_stream_follows_the_last_write(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    device, hand, interop = opened
    buffer = device.allocate(8)
    seen = buffer.view(np.uint8)
    device.queue().fill(buffer, 0)
    seen.__dlpack__(stream=5)
    assert interop.followed == [(5, hand.one, 1)]
    seen.__dlpack__(stream=-1)
    assert len(interop.followed) == 1
    storage = buffer._memory.storage
    assert interop.shown == [(storage, 5), (storage, None)]
    seen.__dlpack__()
    assert interop.followed[1:] == [(None, hand.one, 1)]
    hand.one.over(1)
    seen.__dlpack__(stream=5)
    assert len(interop.followed) == 2


def test_a_write_that_no_device_counts_is_waited_for_on_the_host(
    opened: tuple[tg.Device, HandDevice, Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, hand, interop = opened
    buffer, gate, waited = device.allocate(8), tg.Semaphore(), []
    held = device.queue().fill(buffer, 0, wait=gate.at(1))
    monkeypatch.setattr(dlpack, "wait_all", waited.extend)
    buffer.view(np.uint8).__dlpack__(stream=5)
    assert (waited, interop.followed) == ([held], [])
    assert buffer.view(np.uint8).__cuda_array_interface__["data"] == (4096, False)
    assert waited == [held, held]
    gate.signal(1)
    hand.one.over(1)
    assert held.done
    _ = buffer.view(np.uint8).__cuda_array_interface__
    assert waited == [held, held]


def test_copies_and_other_devices_are_refused(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    device, _, _ = opened
    seen = device.allocate(8).view(np.uint8)
    for options in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match=r"can be exported where it lies only, without a copy$"):
            seen.__dlpack__(**options)
    assert seen.__dlpack__(copy=False, dl_device=CUDA) is not None


def test_the_array_interface_of_cuda_is_there_for_memory_of_cuda_only(
    opened: tuple[tg.Device, HandDevice, Pretended],
) -> None:
    device, _, interop = opened
    seen = device.allocate(24).view(np.float32, (2, 3))
    assert interop.shown == []
    assert seen.__cuda_array_interface__ == {
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (4096, False),
        "strides": None,
        "version": 3,
        "stream": None,
    }
    assert interop.shown == [(seen.buffer._memory.storage, None)]
    interop.dlpack_device = (8, 0)
    with pytest.raises(AttributeError, match="is not memory of a CUDA device"):
        _ = seen.__cuda_array_interface__
    with tg.open_device("cpu?workers=1") as cpu:
        assert not hasattr(cpu.allocate(4).view(np.uint8), "__cuda_array_interface__")


# Coming in ---------------------------------------------------------------------------------------------------------


class Foreign:
    """An array of another library on the pretended device."""

    def __init__(self, shape: tuple[int, ...], place: tuple[int, int] = CUDA, dtype: str = "i2") -> None:
        self.array = np.zeros(shape, dtype)
        self.place = place
        self.streams: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, stream: object = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__()


def test_an_array_on_a_device_is_ready_when_the_stream_its_producer_was_given_comes_to_it(
    opened: tuple[tg.Device, HandDevice, Pretended],
) -> None:
    device, _, interop = opened
    seen = tg.from_dlpack(Foreign((2, 3)))
    ready = seen.ready
    assert (ready.timeline, ready.done) == (interop.imported, False)
    follower = device.queue().fill(seen.buffer, 0, wait=ready)
    assert follower._promised[0][2] is ready
    interop.imported.over(1)
    assert ready.done
    assert seen.buffer._memory.uses == 1


def test_an_array_on_a_device_comes_in_where_it_lies(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    device, _, _ = opened
    foreign = Foreign((2, 3))
    seen = tg.from_dlpack(foreign)
    assert (seen.dtype, seen.shape, seen.buffer.nbytes) == (np.int16, (2, 3), 12)
    assert (seen.buffer.device, seen.buffer.memory, seen.buffer.label) == (device, "device", "imported")
    storage, offset = seen.buffer.locate()
    assert isinstance(storage, Adopted)
    assert (storage.address + offset, storage.nbytes) == (foreign.array.ctypes.data, 12)
    assert storage.keep is not None
    assert foreign.streams == [77]
    assert seen.buffer._root


def test_the_owner_of_foreign_memory_is_the_open_device_of_its_place(
    opened: tuple[tg.Device, HandDevice, Pretended],
) -> None:
    device, _, _ = opened
    other, _ = open_by_hand("other")
    assert view._owner(CUDA, None) is device
    assert view._owner(CUDA, device) is device
    with pytest.raises(
        tg.UnsupportedError, match=r"^from_dlpack: no open device owns memory of DLPack device \(9, 9\)$"
    ):
        tg.from_dlpack(Foreign((1,), (9, 9)))
    with pytest.raises(tg.UnsupportedError, match=r"^from_dlpack: device 'other' is not the one that owns memory of"):
        tg.from_dlpack(Foreign((1,)), other)
    device._refusal, kept = workload.closed_error, device._refusal
    with pytest.raises(tg.UnsupportedError, match="no open device"):
        view._owner(CUDA, None)
    device._refusal = kept
    other.close()


@pytest.mark.parametrize("code", ["i1", "i2", "i4", "i8", "u1", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
def test_types_come_in_as_they_went_out(code: str) -> None:
    array = np.zeros(3, code)
    capsule = array.__dlpack__()
    assert _dtype(_tensor(capsule)) == array.dtype


def test_types_that_numpy_lacks_are_refused() -> None:
    for code, lanes in ((4, 1), (0, 2)):
        tensor = _Tensor(code=code, bits=16, lanes=lanes)
        with pytest.raises(
            tg.UnsupportedError, match=f"DLPack code {code}, 16 bits and {lanes} lanes has no NumPy dtype"
        ):
            _dtype(tensor)


def strided(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    tensor = _Tensor()
    if strides is not None:
        tensor.strides = (ctypes.c_int64 * len(strides))(*strides)
    _refuse_gaps(tensor, shape)


def test_only_arrays_in_c_order_without_gaps_come_in() -> None:
    for shape, strides in [
        ((2, 3), None),
        ((2, 3), (3, 1)),
        ((2, 1, 3), (3, 99, 1)),
        ((1,), (5,)),
        ((), ()),
        ((4, 2, 3), (6, 3, 1)),
    ]:
        strided(shape, strides)
    for shape, strides in [((2, 3), (1, 2)), ((2, 3), (4, 1)), ((3,), (2,)), ((4, 2, 3), (5, 3, 1))]:
        with pytest.raises(tg.UnsupportedError, match="is not contiguous in C order"):
            strided(shape, strides)


def test_page_locked_memory_comes_in_as_host_memory() -> None:
    array = np.arange(3)

    class Pinned:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (3, 0)

        def __dlpack__(self, **options: Any) -> Any:
            return array.__dlpack__()

        def __array__(self, *_given: object, **_named: object) -> Any:
            return array

    with tg.open_device("cpu?workers=1") as device:
        assert np.asarray(tg.from_dlpack(Pinned(), device)).tolist() == [0, 1, 2]


# Lanes on foreign streams ------------------------------------------------------------------------------------------


def test_a_lane_on_a_foreign_stream_gives_its_work_to_that(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    device, _, interop = opened
    lane = device.lane(stream=5, label="theirs")
    assert (lane.label, lane.queue.kind, lane.queue.priority, lane.queue._port.stream) == ("theirs", "stream", 0, 5)
    work = lane.fill(device.allocate(4), 0)
    assert work.timeline is interop.imported
    assert lane.queue not in device.queues
    with pytest.raises(tg.InvalidArgumentError, match=r"^lane: it goes to a queue or onto a stream, not both$"):
        device.lane(device.queue(), stream=5)
    other, _ = open_by_hand("other")
    with pytest.raises(tg.UnsupportedError, match=r"^device 'other' has no streams that other libraries share$"):
        other.lane(stream=5)
    other.close()


# Events ------------------------------------------------------------------------------------------------------------


class Events:
    def __init__(self) -> None:
        self.exported: list[Any] = []

    def export(self, timepoint: Any) -> str:
        self.exported.append(timepoint)
        return "event"

    def follow(self, event: Any, label: str) -> tuple[Any, str]:
        return event, label

    def barrier(self, signals: Any, waits: Any) -> Work:
        work = Pair()
        work.pair = list(signals), list(waits)
        return work


class Pair(Barrier):
    pair: Any
    empty = False


def test_events_are_those_of_the_device_given_or_of_the_only_one_that_has_some(
    opened: tuple[tg.Device, HandDevice, Pretended],
) -> None:
    device, hand, _ = opened
    point = tg.Semaphore().at(1)
    text = r"^export_event: no open device has events to share: open one, for example 'metal'$"
    with pytest.raises(tg.FailedPreconditionError, match=text):
        native_events.export_event(point)
    with pytest.raises(tg.UnsupportedError, match=r"^import_event: device 'hand' has no events to share$"):
        native_events.import_event("e", device)
    events = hand.events = Events()
    assert native_events.export_event(point) == native_events.export_event(point, device) == "event"
    assert events.exported == [point, point]
    assert native_events.import_event("e") == ("e", "")  # type: ignore[comparison-overlap]
    assert native_events.import_event("e", device, "l") == ("e", "l")  # type: ignore[comparison-overlap]
    with pytest.raises(TypeError, match=r"^export_event takes a timepoint, not int$"):
        native_events.export_event(3)  # type: ignore[arg-type]
    other, other_hand = open_by_hand("other")
    other_hand.events = Events()
    with pytest.raises(tg.InvalidArgumentError, match=r"several open devices have events: .*; say which with device=$"):
        native_events.export_event(point)
    other.close()
    with pytest.raises(tg.ClosedError):
        native_events.export_event(point, other)


def test_an_event_barrier_is_work_like_any_other(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    device, hand, _ = opened
    hand.events = Events()
    works: list[Any] = []
    hand.before_issue = lambda ticket: works.append(ticket._work)  # type: ignore[attr-defined]
    done = tg.Semaphore()
    submission = native_events.event_barrier(
        device.queue(), signals=[("a", 1)], waits=[("b", 2)], wait=tg.Semaphore(1).at(1), signal=done.at(1)
    )
    assert works[0].pair == ([("a", 1)], [("b", 2)])
    hand.one.over(1)
    assert submission.done
    assert done.value == 1
    native_events.event_barrier(device.queue())
    assert works[1].pair == ([], [])


# Foreign streams ---------------------------------------------------------------------------------------------------


def test_streams_and_events_of_cuda_are_those_of_a_cuda_device(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    device, _, interop = opened
    point = tg.Semaphore().at(1)
    for name in ("event_of", "follow_point", "timepoint_of", "position_of"):
        setattr(interop, name, lambda *given, name=name: (name, *given))
    assert foreign_streams.cuda_event(device, point) == ("event_of", point)
    assert foreign_streams.from_cuda_event(device, 3) == ("timepoint_of", device, 3)  # type: ignore[comparison-overlap]
    assert foreign_streams.from_cuda_stream(device, 4) == ("position_of", device, 4)  # type: ignore[comparison-overlap]
    followed: list[Any] = []
    interop.follow_point = lambda *given: followed.append(given)  # type: ignore[attr-defined]
    foreign_streams.cuda_stream_wait(device, 5, point)
    assert followed == [(5, point)]
    interop.dlpack_device = (8, 2)
    with pytest.raises(tg.UnsupportedError, match=r"^device 'hand' has no CUDA streams and events$"):
        foreign_streams.cuda_event(device, point)
    other, _ = open_by_hand("other")
    with pytest.raises(tg.UnsupportedError, match=r"^device 'other' has no CUDA streams and events$"):
        foreign_streams.from_cuda_event(other, 3)
    other.close()


def test_parameters_are_put_in_order_where_the_function_can(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    device, _, _ = opened

    def kernel(workgroups: Any, bindings: Any, constants: Any) -> None:
        pass

    function = device.load(kernel)["kernel"]
    with pytest.raises(
        tg.UnsupportedError, match=r"^function 'kernel' is not one of CUDA: its parameters are in order"
    ):
        foreign_streams.with_parameters(function, "bc")
    function._function.in_order = lambda order: ("ordered", order)  # type: ignore[attr-defined]
    made = foreign_streams.with_parameters(function, "bc")
    assert (made.device, made._function) == (device, ("ordered", "bc"))


def test_the_address_of_foreign_memory_is_its_data_and_its_offset(
    opened: tuple[tg.Device, HandDevice, Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, hand, _ = opened
    shape = (ctypes.c_int64 * 1)(4)
    works: list[Any] = []
    hand.before_issue = lambda ticket: works.append(ticket._work)  # type: ignore[attr-defined]
    for data, offset in ((4096, 16), (None, 0)):
        tensor = _Tensor(data=data, byte_offset=offset, ndim=1, shape=shape, code=1, bits=8, lanes=1)
        monkeypatch.setattr(dlpack, "_tensor", lambda _capsule, tensor=tensor: tensor)
        storage, _ = tg.from_dlpack(Foreign((1,))).buffer.locate()
        assert isinstance(storage, Adopted)
        assert storage.address == (data or 0) + offset
    assert [(work.target.offset, work.target.nbytes) for work in works] == [(0, 0), (0, 0)]
    hand.before_issue = None


def test_what_went_out_keeps_its_memory(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    import gc
    import weakref

    _, _, interop = opened
    seen = tg.from_dlpack(Foreign((2,)))
    interop.imported.over(1, wake=True)
    storage = weakref.ref(seen.buffer.locate()[0])
    capsule = seen.__dlpack__()
    interop.shown.clear()
    del seen
    gc.collect()
    assert storage() is not None
    del capsule
    gc.collect()
    assert storage() is None


def test_an_array_with_gaps_on_a_device_is_refused(opened: tuple[tg.Device, HandDevice, Pretended]) -> None:
    foreign = Foreign((6,))
    foreign.array = foreign.array[::2]
    with pytest.raises(tg.UnsupportedError, match="is not contiguous in C order"):
        tg.from_dlpack(foreign)


def test_an_array_that_does_not_go_out_by_dlpack_comes_in_by_numpys_own_protocol() -> None:
    array = np.arange(3)

    class Reluctant:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_options: object) -> Any:
            raise BufferError("read-only")

        def __array__(self, *_given: object, **_named: object) -> Any:
            return array

    with tg.open_device("cpu?workers=1") as device:
        assert np.asarray(tg.from_dlpack(Reluctant(), device)).tolist() == [0, 1, 2]
