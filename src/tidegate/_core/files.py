"""File work: read and write in queue order, on the host-call threads (M14)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np

from ..errors import InvalidArgumentError, OutOfRangeError
from .buffer import Buffer, Bytes, checked_int

if TYPE_CHECKING:
    from .queue import Queue

FileLike: TypeAlias = "str | os.PathLike[str] | BinaryIO"

_CHUNK = 8 << 20
_seek_lock = threading.Lock()


class _File:
    """A path or a file object, open for the life of one operation."""

    def __init__(self, file: Any, *, write: bool) -> None:
        self._descriptor: int | None = None
        self._object: Any = file
        if isinstance(file, (str, bytes, os.PathLike)):
            flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
            self._descriptor = os.open(file, flags | getattr(os, "O_BINARY", 0), 0o666)
        else:
            # A descriptor of our own: the caller may close the object before its turn comes (M18).
            descriptor = _checked_object(file, write)
            self._descriptor = None if descriptor is None else os.dup(descriptor)

    def read_into(self, target: Bytes, at: int) -> int:
        """Fill the target from byte `at`; returns how much there was."""
        done = 0
        view = target.data
        while done < len(view):
            part = self._read_some(view[done : done + _CHUNK], at + done)
            if part == 0:
                break
            done += part
        return done

    def _read_some(self, view: memoryview, at: int) -> int:
        if self._descriptor is not None:
            return os.preadv(self._descriptor, [view], at)
        with _seek_lock:
            self._object.seek(at)
            data = self._object.read(len(view))
        view[: len(data)] = data
        return len(data)

    def write_from(self, source: Bytes, at: int) -> None:
        """Write all of the source at byte `at`."""
        view = source.data
        if self._descriptor is None:
            with _seek_lock:
                self._object.seek(at)
                self._object.write(view)
            return
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done : done + _CHUNK], at + done)

    def size(self) -> int:
        """Return the present size in bytes."""
        if self._descriptor is not None:
            return os.fstat(self._descriptor).st_size
        with _seek_lock:
            return int(self._object.seek(0, os.SEEK_END))

    def close(self) -> None:
        """Close what was opened here."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def _checked_object(file: Any, write: bool) -> int | None:
    able = getattr(file, "writable" if write else "readable", None)
    if able is None or not hasattr(file, "seek"):
        raise TypeError(f"a file is a path or a binary file object, not {type(file).__name__}")
    if getattr(file, "closed", False):
        raise InvalidArgumentError(f"the file {getattr(file, 'name', file)!r} is closed")
    if not able():
        need = "writing" if write else "reading"
        raise InvalidArgumentError(f"the file {getattr(file, 'name', file)!r} is not open for {need}")
    if hasattr(file, "encoding"):
        raise TypeError(f"the file {getattr(file, 'name', file)!r} is open in text mode, and must be binary")
    try:
        descriptor = file.fileno()
    except (AttributeError, OSError):
        return None
    if write:
        file.flush()
    return int(descriptor)


class FileRead:
    """Reads a range of a file into a buffer."""

    def __init__(self, queue: Queue, file: Any, target: Buffer, file_offset: Any, length: int | None) -> None:
        self._at = _checked_offset(file_offset)
        self._file = _File(file, write=False)
        self._queue = queue
        self._target = target
        self._rest = length is None

    def __call__(self) -> None:
        try:
            target = self._target
            if self._rest:
                length = max(0, self._file.size() - self._at)
                if length > target.nbytes:
                    raise OutOfRangeError(
                        f"read_file: the rest of the file is {length} bytes, which do not fit"
                        f" the {target.nbytes} of {target._memory.describe()} here"
                    )
                target = target.subspan(0, length)
            self._read(target)
        finally:
            self._file.close()

    def _read(self, target: Buffer) -> None:
        visible = target._visible()
        into = np.empty(target.nbytes, np.uint8) if visible is None else visible
        found = self._file.read_into(into, self._at)
        if found < target.nbytes:
            raise OutOfRangeError(
                f"read_file: the file ends {target.nbytes - found} bytes short of the {target.nbytes} asked for"
                f" at {self._at}"
            )
        if visible is None:
            self._queue.upload(into, target).wait()


class FileWrite:
    """Writes a range of a buffer into a file."""

    def __init__(self, queue: Queue, file: Any, source: Buffer, file_offset: Any) -> None:
        self._at = _checked_offset(file_offset)
        self._file = _File(file, write=True)
        self._queue = queue
        self._source = source

    def __call__(self) -> None:
        try:
            visible = self._source._visible()
            if visible is None:
                visible = self._queue.download(self._source).result()
            self._file.write_from(visible, self._at)
        finally:
            self._file.close()


def _checked_offset(offset: Any) -> int:
    at = checked_int(offset, "file offset")
    if at < 0:
        raise OutOfRangeError(f"the file offset is {at}, and must be 0 or more")
    return at
