"""Files as sources and targets: what is taken for one, and in which words the rest is refused."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import tidegate as tg

LIMIT = 30.0


def test_a_file_is_a_path_or_a_binary_object_open_for_what_is_asked(tmp_path: Path, device: tg.Device) -> None:
    path, queue, buffer = tmp_path / "f", device.queue(), device.upload(b"abc")
    path.write_bytes(b"abc")
    for wrong in (3, None, object(), SimpleNamespace(readable=lambda: True), SimpleNamespace(seek=print)):
        text = f"^a file is a path or a binary file object, not {type(wrong).__name__}$"
        with pytest.raises(TypeError, match=text):
            queue.read_file(wrong, buffer)  # type: ignore[arg-type]
    with path.open("rb") as reading, path.open("ab") as writing, path.open() as words:
        queue.read_file(reading, buffer).wait(LIMIT)
        with pytest.raises(tg.InvalidArgumentError, match=f"the file '{path}' is not open for writing$"):
            queue.write_file(buffer, reading)
        with pytest.raises(tg.InvalidArgumentError, match=f"the file '{path}' is not open for reading$"):
            queue.read_file(writing, buffer)
        with pytest.raises(TypeError, match=r"is open in text mode, and must be binary$"):
            queue.read_file(words, buffer)  # type: ignore[arg-type]
    with pytest.raises(tg.InvalidArgumentError, match=r"is closed$"):
        queue.read_file(reading, buffer)
    with pytest.raises(tg.InvalidArgumentError, match=r"is closed$"):
        queue.write_file(buffer, writing)


def test_what_an_object_still_buffers_is_written_before_our_own(tmp_path: Path, device: tg.Device) -> None:
    path = tmp_path / "f"
    buffer = device.upload(b"XY")
    with path.open("w+b") as file:
        file.write(b"abcd")
        device.queue().write_file(buffer, file, file_offset=1).wait(LIMIT)
        assert path.read_bytes() == b"aXYd"
        device.queue().read_file(file, device.allocate(4)).wait(LIMIT)
    with path.open("w+b") as file:
        file.write(b"efgh")  # also before it is read
        target = device.allocate(4)
        device.queue().read_file(file, target).wait(LIMIT)
        assert target.read() == b"efgh"


def test_an_object_that_only_stands_for_a_file_is_not_gone_behind(tmp_path: Path, device: tg.Device) -> None:
    """It has a descriptor, but what that gives is not what the object gives."""
    path = tmp_path / "f"
    with gzip.open(path, "wb") as packing:
        packing.write(b"abc")
    target = device.allocate(3)
    with gzip.open(path, "rb") as unpacking:
        device.queue().read_file(unpacking, target).wait(LIMIT)  # type: ignore[arg-type]
    assert target.read() == b"abc"


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
    with pytest.raises(tg.SemaphoreFailedError, match="the file ends 1 bytes short of the 4 asked for at 9"):
        late.wait(LIMIT)


def test_the_rest_of_a_file_must_fit(tmp_path: Path, device: tg.Device) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    target = device.allocate(4, label="t")
    for file in (path, io.BytesIO(b"0123456789")):
        late = device.queue().read_file(file, target, file_offset=5)
        text = "read_file: the rest of the file is 5 bytes, which do not fit the 4 of buffer 't' of 4 bytes here"
        with pytest.raises(tg.SemaphoreFailedError, match=text):
            late.wait(LIMIT)
        device.queue().read_file(file, target, file_offset=6).wait(LIMIT)
        assert target.read() == b"6789"
        device.queue().read_file(file, target, file_offset=20).wait(LIMIT)
    with pytest.raises(tg.OutOfRangeError, match=r"^read_file: the file offset is -1, and must be 0 or more$"):
        device.queue().read_file(path, target, file_offset=-1)
    text = rf"^write_file: no file reaches to 4 bytes behind the file offset {2**63 - 4}$"
    with pytest.raises(tg.OutOfRangeError, match=text):
        device.queue().write_file(target, path, file_offset=2**63 - 4)


def test_a_file_that_is_made_can_be_run_by_nobody(tmp_path: Path, device: tg.Device) -> None:
    path = tmp_path / "f"
    device.queue().write_file(device.upload(b"abc"), path, file_offset=2).wait(LIMIT)
    assert path.read_bytes() == b"\0\0abc"
    assert path.stat().st_mode & 0o111 == 0


def test_objects_that_cannot_be_hashed_are_files_too(device: tg.Device) -> None:
    class Unhashable(io.BytesIO):
        __hash__ = None  # type: ignore[assignment]

    file, target = Unhashable(b"abc"), device.allocate(3)
    tg.wait_all([device.queue().read_file(file, target) for _ in range(3)], LIMIT)
    assert target.read() == b"abc"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_may_use_a_file_object_that_a_thread_of_its_parent_was_using(tmp_path: Path) -> None:
    """`fork` copies a lock as it is, and nobody is there who would open it."""
    from tidegate.testing import Latch

    latch = Latch()

    class Slow(io.BytesIO):
        def read(self, *_arguments: object) -> bytes:
            latch.wait(LIMIT)
            return b"abc"

    file = Slow(b"abc")
    with tg.open_device("cpu?workers=1") as device:
        reading = device.queue().read_file(file, device.allocate(3))  # type: ignore[arg-type]
        latch.wait_for_arrival(LIMIT)
        child = os.fork()
        if child == 0:
            latch.open()
            try:
                with tg.open_device("cpu?workers=1") as own:
                    own.queue().read_file(file, own.allocate(3), length=3).wait(LIMIT)  # type: ignore[arg-type]
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        latch.open()
        assert reading.done or reading.error is None
