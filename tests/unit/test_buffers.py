"""Buffers and their memory: committed, used, freed and given up, and what the host reads and writes there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidegate as tg

LIMIT = 30.0


def test_a_buffer_tells_what_it_is(device: tg.Device) -> None:
    buffer = device.allocate(16, memory="shared", label="b")
    assert repr(buffer) == "<tidegate.Buffer 'b' 16 bytes shared on device 'dev', live>"
    part = buffer.subspan(4, 8).subspan(1)
    assert repr(part) == "<tidegate.Buffer 'b' [5:12] 7 bytes shared on device 'dev', live>"
    assert (part.offset, part.nbytes, part.label, part.memory, part.device) == (5, 7, "b", "shared", device)
    part.close()  # a part is not closed by itself
    with buffer as entered:
        assert entered is buffer
    assert repr(buffer) == "<tidegate.Buffer 'b' 16 bytes shared on device 'dev', closed>"
    with pytest.raises(tg.FailedPreconditionError, match=r"^buffer 'b' of 16 bytes has no storage: it is live$"):
        buffer.locate()
    assert buffer.bind(()) is buffer
    assert repr(device.allocate(1)).startswith("<tidegate.Buffer 1 bytes device")


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
    text = rf"^allocate on device 'dev': the size is {2**62 + 1}, and no memory has more than 2\*\*62 bytes$"
    with pytest.raises(tg.InvalidArgumentError, match=text):
        device.allocate(2**62 + 1)


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


def test_numbers_that_cannot_be_written_out_are_refused_without_doing_so(device: tg.Device) -> None:
    buffer = device.allocate(4)
    for number in (2**512, -(2**512), 10**5000):
        with pytest.raises(
            tg.OutOfRangeError, match=r"^the offset is a number of \d+ bits, far more than there can be$"
        ):
            buffer.subspan(number)
    with pytest.raises(tg.OutOfRangeError, match=f"the range {2**512 - 1}"):
        buffer.subspan(2**512 - 1)
