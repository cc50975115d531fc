"""Buffers and their memory: committed, used, freed and given up, and what the host reads and writes there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate._core import buffer as buffers
from tidegate._core.buffer import FAILED, FREED, LIVE, PENDING, FreeRequest, Memory
from tidegate._core.submission import Submission
from tidegate.testing import register_streams

from .hand_driver import LIMIT


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
    with pytest.raises(tg.ClosedError, match=r"^buffer 'm' of 4 bytes is closed$"):
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
    with pytest.raises(tg.FailedPreconditionError, match=r"^buffer 'm' of 4 bytes is freed twice$"):
        second.release()
    with pytest.raises(
        tg.FailedPreconditionError, match=r"^buffer 'm' of 4 bytes cannot be freed: it is not committed yet$"
    ):
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
    with pytest.raises(tg.FailedPreconditionError, match="is freed twice"):
        third.release()
    with pytest.raises(tg.FailedPreconditionError, match=r"^buffer 'm' of 4 bytes is freed$"):
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
    with pytest.raises(tg.FailedPreconditionError, match=r"^buffer 'b' of 16 bytes has no storage: it is live$"):
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
    with (
        pytest.raises(tg.InvalidArgumentError, match="the map mode is 'x', and must be 'r', 'w' or 'rw'"),
        buffer.map("x"),
    ):
        pass


def test_host_access_waits_for_what_it_is_told_or_for_nothing(device: tg.Device) -> None:
    buffer, gate = device.upload(b"abcd"), tg.Semaphore()
    held = device.queue().fill(buffer, 0, wait=gate.at(1))
    for wait in (None, (), [], set(), {}, iter(())):
        with buffer.map(wait=wait) as array:
            assert array.tobytes() == b"abcd"
    for wait in (..., held, [held], (gate.at(1),), gate.at(1), {held}, {gate.at(1): 1}, (one for one in [held])):
        with pytest.raises(tg.DeadlineExceededError), buffer.map(wait=wait, timeout=0):
            pass
    for wait, name in ((3, "int"), ([3], "int")):
        text = f"^wait= takes timepoints and submissions, not {name}$"
        with pytest.raises(TypeError, match=text), buffer.map(wait=wait):
            pass
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == bytes(4)


@pytest.fixture
def opaque() -> Iterator[tg.Device]:
    """A device whose memory the host cannot see."""
    register_streams()
    with tg.open_device("streams") as device:
        yield device


@pytest.mark.parametrize(
    ("timeout", "times", "given"),
    [(10, [100.0, 107.5], [10, 2.5]), (10, [100.0, 111.0], [10, 0.0]), (None, [], [None, None])],
    ids=["some left", "none left", "for ever"],
)
def test_the_second_wait_of_a_host_read_has_what_the_first_has_left(
    opaque: tg.Device,
    monkeypatch: pytest.MonkeyPatch,
    timeout: float | None,
    times: list[float],
    given: list[float | None],
) -> None:
    buffer, gate, found = opaque.upload(b"abcd"), tg.Semaphore(), []
    held = opaque.queue().fill(buffer, 0, wait=gate.at(1))
    monkeypatch.setattr(buffers, "monotonic", lambda: times.pop(0))
    monkeypatch.setattr(Submission, "wait", lambda _self, seconds=None: found.append(seconds))
    buffer.read(timeout=timeout)
    assert (found, times) == (given, [])
    monkeypatch.undo()
    gate.signal(1)
    held.wait(LIMIT)


def test_a_host_read_after_a_failed_write_says_why(device: tg.Device) -> None:
    buffer, gate = device.upload(b"abcd", label="b"), tg.Semaphore()
    device.queue().fill(buffer, 0, wait=gate.at(1))
    gate.fail(ValueError("never"))
    with pytest.raises(
        tg.SemaphoreFailedError, match=r"^buffer 'b' of 4 bytes: the last write to it failed: ValueError: never$"
    ):
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


def test_no_memory_is_larger_than_numbers_that_c_knows(device: tg.Device) -> None:
    assert Memory(device, 2**62, "device", "m").nbytes == 2**62
    text = rf"^allocate on device 'dev': the size is {2**62 + 1}, and no memory has more than 2\*\*62 bytes$"
    with pytest.raises(tg.InvalidArgumentError, match=text):
        Memory(device, 2**62 + 1, "device", "m")


def test_arrays_that_numpy_cannot_make_are_refused_by_the_buffer(device: tg.Device) -> None:
    buffer = device.upload(np.zeros(4, np.uint8), label="b")
    for shape, text in (
        ((1,) * 65, r"the shape has 65 lengths, and an array at most \d+$"),
        ((0, 2**63), r"an array \(0, 9223372036854775808\) of float32 is larger than any memory$"),
        ((2**40, 0, 2**40), r"an array \(1099511627776, 0, 1099511627776\) of float32 is larger than any memory$"),
    ):
        for call in (buffer.to_numpy, buffer.view):
            with pytest.raises(tg.InvalidArgumentError, match=rf"^buffer 'b' of 4 bytes: {text}"):
                call(np.float32, shape)
    assert buffer.to_numpy(np.float32, (2**20, 0, 2**20)).shape == (2**20, 0, 2**20)
    assert buffer.to_numpy("V0", (3,)).shape == (3,)


def test_a_host_without_room_for_an_array_says_so(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_asked: Any) -> None:
        raise MemoryError

    buffer = device.upload(b"abcd")
    monkeypatch.setattr(np, "empty", no_room)
    for call in (buffer.to_numpy, lambda: device.queue().download(buffer), lambda: tg.pinned_empty(4)):
        with pytest.raises(tg.ResourceExhaustedError, match=r"the host has no room for an array \(4,\) of"):
            call()


def test_numbers_that_cannot_be_written_out_are_refused_without_doing_so() -> None:
    for number in (2**512, -(2**512), 10**5000):
        with pytest.raises(
            tg.OutOfRangeError, match=r"^the offset is a number of \d+ bits, far more than there can be$"
        ):
            buffers.checked_int(number, "offset")
    assert buffers.checked_int(2**512 - 1, "offset") == 2**512 - 1
