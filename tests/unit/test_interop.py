"""Memory of a device to and from other libraries, on a device that only pretends to have some (M26).

What goes out to CUDA is for the tests of that driver; here is what is the same for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance.threads import background
from tidegate.driver import DriverQueue, EpochTimeline, Interop, Storage
from tidegate.testing import ManualDevice

CUDA = (2, 1)
LIMIT = 30.0


class Adopted(Storage):
    memory = "device"

    def __init__(self, address: int, nbytes: int, keep: object) -> None:
        self.address, self.nbytes, self.keep = address, nbytes, keep


class Pretended(Interop):
    """Every storage lies at 4096; streams are numbers."""

    dlpack_device = CUDA

    def __init__(self, manual: ManualDevice) -> None:
        self.manual = manual
        self.followed: list[tuple[object, EpochTimeline, int]] = []
        self.shown: list[object] = []

    def address(self, storage: Storage) -> int:
        return storage.address or 4096

    def exported(self, storage: Storage, stream: object) -> None:
        self.shown.append(stream)

    def follow(self, stream: object, timeline: EpochTimeline, epoch: int) -> None:
        self.followed.append((stream, timeline, epoch))

    def adopt(self, address: int, nbytes: int, keep: object) -> Storage:
        return Adopted(address, nbytes, keep)

    def stream_queue(self, stream: object = None) -> DriverQueue:
        queue = self.manual.driver.queue("compute", 0)
        queue.stream = 77 if stream is None else stream  # type: ignore[attr-defined]
        return queue


@pytest.fixture
def interop(counting: ManualDevice) -> Pretended:
    made = counting.driver.interop = Pretended(counting)
    return made


class Foreign:
    """An array of another library on the pretended device."""

    def __init__(self, array: Any, place: tuple[int, int] = CUDA) -> None:
        self.array = array
        self.place = place
        self.streams: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, stream: object = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__()


def test_the_consumers_stream_follows_the_last_write(counting: ManualDevice, interop: Pretended) -> None:
    seen = counting.buffer.view(np.uint8)
    assert seen.__dlpack_device__() == CUDA
    seen.__dlpack__()
    assert interop.followed == []
    work = counting.queue.fill(counting.buffer, 0)
    for stream, followed in ((5, [(5, work.timeline, 1)]), (-1, []), (None, [(None, work.timeline, 1)])):
        interop.followed.clear()
        seen.__dlpack__(stream=stream)
        assert interop.followed == followed
    assert interop.shown == [None, 5, None, None]
    counting.finish_all()
    interop.followed.clear()
    seen.__dlpack__(stream=5)
    assert interop.followed == []


def test_a_write_that_is_held_is_waited_for_on_the_host(counting: ManualDevice, interop: Pretended) -> None:
    gate = tg.Semaphore()
    held = counting.queue.fill(counting.buffer, 0, wait=gate.at(1))
    counting.automatic = True
    exporting = background(counting.buffer.view(np.uint8).__dlpack__, stream=5)
    gate.signal(1)
    exporting.result()
    assert held.done
    assert interop.followed == []


@pytest.mark.usefixtures("interop")
def test_copies_and_other_devices_are_refused(counting: ManualDevice) -> None:
    seen = counting.buffer.view(np.uint8)
    for options in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match=r"can be exported where it lies only, without a copy$"):
            seen.__dlpack__(**options)
    assert seen.__dlpack__(copy=False, dl_device=CUDA) is not None


def test_an_array_on_a_device_comes_in_where_it_lies_and_when_its_producer_comes_to_it(
    counting: ManualDevice, interop: Pretended
) -> None:
    foreign = Foreign(np.zeros((2, 3), np.int16))
    seen = tg.from_dlpack(foreign)
    assert foreign.streams == [77]
    assert (seen.dtype, seen.shape, seen.buffer.nbytes) == (np.int16, (2, 3), 12)
    assert (seen.buffer.device, seen.buffer.memory, seen.buffer.label) == (counting.device, "device", "imported")
    storage, offset = seen.buffer.locate()
    assert isinstance(storage, Adopted)
    assert (storage.address + offset, storage.nbytes) == (foreign.array.ctypes.data, 12)
    assert storage.keep is not None
    ready = seen.ready
    assert not ready.done
    follower = counting.transfer.fill(seen.buffer, 0, wait=ready)
    assert counting.tries_of(follower)[0].waits == [(ready.timeline, 1)]
    counting.finish_all()
    assert ready.done


@pytest.mark.usefixtures("interop")
@pytest.mark.parametrize("code", ["i1", "i2", "i4", "i8", "u1", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
def test_types_come_in_as_they_went_out(code: str) -> None:
    assert tg.from_dlpack(Foreign(np.zeros(3, code))).dtype == np.dtype(code)


@pytest.mark.usefixtures("interop")
def test_only_arrays_in_c_order_without_gaps_come_in() -> None:
    whole = np.zeros((4, 6, 3), np.int16)
    for array in (whole, whole[1:3], whole[:1, :1, :1], whole[:, :1][:1], np.zeros(()), whole.reshape(4, 1, 18)):
        assert tg.from_dlpack(Foreign(array)).shape == array.shape
    for array in (whole.T, whole[:, ::2], whole[:, :5], whole[..., 0], whole[::2]):
        with pytest.raises(tg.UnsupportedError, match="is not contiguous in C order"):
            tg.from_dlpack(Foreign(array))


def test_the_owner_of_foreign_memory_is_the_open_device_of_its_place(
    counting: ManualDevice, interop: Pretended
) -> None:
    array = np.zeros(1)
    with pytest.raises(
        tg.UnsupportedError, match=r"^from_dlpack: no open device owns memory of DLPack device \(9, 9\)$"
    ):
        tg.from_dlpack(Foreign(array, (9, 9)))
    assert tg.from_dlpack(Foreign(array), counting.device).buffer.device is counting.device
    text = r"^from_dlpack: device 'other' is not the one that owns memory of"
    with ManualDevice(label="other") as other, pytest.raises(tg.UnsupportedError, match=text):
        tg.from_dlpack(Foreign(array), other.device)
    counting.close()
    with pytest.raises(tg.UnsupportedError, match="no open device"):
        tg.from_dlpack(Foreign(array))


class Reluctant:
    """Memory of the host that speaks DLPack in its own way."""

    def __init__(self, place: tuple[int, int], speaks: bool) -> None:
        self.array = np.arange(3)
        self.place = place
        self.speaks = speaks

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, **_options: object) -> Any:
        if not self.speaks:
            raise BufferError("read-only")
        return self.array.__dlpack__()

    def __array__(self, *_given: object, **_named: object) -> Any:
        return self.array


@pytest.mark.parametrize("place", [(1, 0), (3, 0)], ids=["host", "page-locked"])
@pytest.mark.parametrize("speaks", [True, False])
def test_memory_of_the_host_comes_in_by_dlpack_or_by_numpys_own_protocol(
    device: tg.Device, place: tuple[int, int], speaks: bool
) -> None:
    assert np.asarray(tg.from_dlpack(Reluctant(place, speaks), device)).tolist() == [0, 1, 2]


def test_a_lane_on_a_foreign_stream_gives_its_work_to_that(counting: ManualDevice, interop: Pretended) -> None:
    lane = counting.device.lane(stream=5, label="theirs")
    assert (lane.label, lane.queue.kind, lane.queue.priority) == ("theirs", "stream", 0)
    assert lane.queue not in counting.device.queues
    lane.fill(counting.buffer, 0)
    assert len(counting.issued) == 1
    with pytest.raises(tg.InvalidArgumentError, match=r"^lane: it goes to a queue or onto a stream, not both$"):
        counting.device.lane(counting.queue, stream=5)
    text = "^device 'other' has no streams that other libraries share$"
    with ManualDevice(label="other") as other, pytest.raises(tg.UnsupportedError, match=text):
        other.device.lane(stream=5)
