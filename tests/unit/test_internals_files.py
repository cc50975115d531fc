"""Files as sources and targets: what is taken for one, what is buffered, and when it is closed."""

from __future__ import annotations

import gc
import gzip
import io
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate._core import files
from tidegate._core.files import _checked_object, _File

from .hand_driver import LIMIT


def test_a_file_is_a_path_or_a_binary_object_open_for_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    for wrong in (3, None, object(), SimpleNamespace(readable=lambda: True), SimpleNamespace(seek=print)):
        text = f"^a file is a path or a binary file object, not {type(wrong).__name__}$"
        with pytest.raises(TypeError, match=text):
            _checked_object(wrong, False)
    with path.open("rb") as reading, path.open("ab") as writing, path.open() as words:
        assert _checked_object(reading, False) == reading.fileno()
        assert _checked_object(writing, True) == writing.fileno()
        with pytest.raises(tg.InvalidArgumentError, match=f"the file '{path}' is not open for writing$"):
            _checked_object(reading, True)
        with pytest.raises(tg.InvalidArgumentError, match=f"the file '{path}' is not open for reading$"):
            _checked_object(writing, False)
        with pytest.raises(TypeError, match=r"is open in text mode, and must be binary$"):
            _checked_object(words, False)
    with pytest.raises(tg.InvalidArgumentError, match=r"is closed$"):
        _checked_object(reading, False)
    with pytest.raises(tg.InvalidArgumentError, match=r"is closed$"):
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
    with path.open("w+b") as file:
        file.write(b"efgh")  # also before it is read
        target = device.allocate(4)
        device.queue().read_file(file, target).wait(LIMIT)
        assert target.read() == b"efgh"


def test_only_a_file_of_the_system_is_used_by_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "f"
    duck = SimpleNamespace(readable=lambda: True, writable=lambda: True, seek=print, fileno=lambda: 7)
    assert _checked_object(duck, False) is None
    assert _checked_object(duck, True) is None
    with gzip.open(path, "wb") as packing:
        packing.write(b"abc")
        assert _checked_object(packing, True) is None
    with gzip.open(path, "rb") as unpacking:
        assert _checked_object(unpacking, False) is None
    with path.open("rb", buffering=0) as raw, tempfile.NamedTemporaryFile() as wrapped:
        assert _checked_object(raw, False) == raw.fileno()
        assert _checked_object(wrapped, True) == wrapped.fileno()


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


def test_files_longer_than_a_chunk_are_read_and_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CHUNK", 3)
    path = tmp_path / "f"
    data = np.arange(10, dtype=np.uint8)
    with _File(path, write=True) as out:
        out.open()
        out.write_from(data, 2)
    assert path.read_bytes() == b"\0\0" + data.tobytes()
    assert path.stat().st_mode & 0o111 == 0
    for source in (path, io.BytesIO(path.read_bytes())):
        with _File(source, write=False) as opened:
            opened.open()
            assert opened.size() == 12
            into = np.zeros(20, np.uint8)
            assert opened.read_into(into, 2) == 10
            assert into[:10].tolist() == data.tolist()
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
    with pytest.raises(tg.OutOfRangeError, match="4 bytes short"):
        short()
    assert len(closed) == 2
    write = files.FileWrite(device.queue(), path, device.upload(b"x"), 0)
    write()
    assert len(closed) == 3
    monkeypatch.undo()


def test_a_file_that_cannot_be_opened_is_finalized_in_silence(tmp_path: Path, unraisable: list[Any]) -> None:
    with pytest.raises(FileNotFoundError):
        _File(tmp_path / "none", write=False)
    with pytest.raises(TypeError):
        _File(3, write=False)
    assert unraisable == []


def test_operations_on_one_file_object_share_a_lock_that_goes_with_the_last_of_them() -> None:
    class Unhashable(io.BytesIO):
        __hash__ = None  # type: ignore[assignment]

    one, another = Unhashable(b"a"), Unhashable(b"b")
    works = [_File(one, write=False), _File(one, write=True)]
    assert works[0]._lock is works[1]._lock is not None
    assert _File(another, write=False)._lock is not works[0]._lock
    works.pop(0)
    gc.collect()
    assert id(one) in files._turns
    works.pop()
    gc.collect()
    assert id(one) not in files._turns


def test_a_path_that_work_will_write_to_may_be_read_as_long_as_some_of_that_work_is_left(tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    works = [_File(path, write=True), _File(path, write=True)]
    while works:
        assert _File(path, write=False)._path == path
        works.pop()
        gc.collect()
    with pytest.raises(FileNotFoundError):
        _File(path, write=False)


def test_a_child_finds_free_what_a_thread_of_its_parent_had_when_it_was_forked() -> None:
    locks = files._Locks()
    in_parent = locks.of(1)
    in_parent.acquire()
    locks._renew()
    assert locks.of(1).acquire(blocking=False)
