"""File work: read and write in queue order, on the host-call threads (M14).

A path is opened when the work runs, so that held work costs no descriptor. The call checks that it can be opened, and
the path means later what it meant at the call, whatever the current folder is by then. Of a file object with a
descriptor the call takes a duplicate, because the caller may close it before its turn comes (M18).

Other file objects are anybody's Python code. It runs under no lock but one that belongs to the object, without which
two operations would mix their seeks and reads. Whoever stands in line for that counts as at work among the host threads
(M33), because that mostly takes microseconds.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from ..driver import Download, Upload
from ..errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError
from .checks import Bytes, checked_int, new_array
from .process import in_child

if TYPE_CHECKING:
    from _thread import LockType

    from .compiled import Span
    from .queue import Queue

FileLike: TypeAlias = "str | os.PathLike[str] | BinaryIO"
Path: TypeAlias = "str | bytes"
Place: TypeAlias = "tuple[int, int, bytes]"

_CHUNK = 8 << 20
_END = 2**63 - 1
"""The end of the longest file that there can be."""


class _Locks:
    """A lock for each file, as long as an operation keeps it.

    File objects are known by their identity, because they need be neither hashable nor weakly referable. No other
    object has the same identity meanwhile, because whoever keeps the lock keeps the object too.
    """

    def __init__(self) -> None:
        self._renew()
        in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()  # a finalizer may come here in the middle
        self._known: WeakValueDictionary[int | Place, LockType] = WeakValueDictionary()

    def of(self, key: int | Place) -> LockType:
        """Return the lock of a file."""
        with self._lock:
            return self._known.setdefault(key, threading.Lock())

    def __contains__(self, key: int | Place) -> bool:
        return key in self._known


_turns = _Locks()
_to_be_made = _Locks()
"""Kept by submitted work that will write to a path: `read_file` may be given it before there is a file."""


class _File:
    """A path or a file object, checked during the call, for the life of one operation; closed behind a `with`."""

    def __init__(self, file: Any, *, write: bool) -> None:
        self._descriptor: int | None = None
        self._path: Path | None = None
        self._object: Any = None
        self._lock: LockType | None = None
        self._write = write
        if isinstance(file, (str, bytes, os.PathLike)):
            self._path = _checked_path(file, write)
            if write:
                self._lock = _to_be_made.of(_place(self._path))
        else:
            descriptor = _checked_object(file, write)
            if descriptor is None:
                self._object = file
                self._lock = _turns.of(id(file))
            else:
                self._descriptor = os.dup(descriptor)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the file, if it was given as a path; before anything is read or written."""
        if self._path is not None:
            flags = os.O_WRONLY | os.O_CREAT if self._write else os.O_RDONLY
            self._descriptor = os.open(self._path, flags | getattr(os, "O_BINARY", 0), 0o666)

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
        assert self._lock is not None
        with self._lock:
            self._object.seek(at)
            data = self._object.read(len(view))
        view[: len(data)] = data
        return len(data)

    def write_from(self, source: Bytes, at: int) -> None:
        """Write all of the source at byte `at`."""
        done = 0
        view = source.data
        while done < len(view):
            done += self._write_some(view[done : done + _CHUNK], at + done)

    def _write_some(self, view: memoryview, at: int) -> int:
        if self._descriptor is not None:
            return os.pwrite(self._descriptor, view, at)
        assert self._lock is not None
        with self._lock:
            self._object.seek(at)
            count = self._object.write(view)
        if count == 0:
            raise ResourceExhaustedError(f"write_file: {_name(self._object)} takes no more than {at} bytes")
        return len(view) if count is None else int(count)

    def size(self) -> int:
        """Return the present size in bytes."""
        if self._descriptor is not None:
            return os.fstat(self._descriptor).st_size
        assert self._lock is not None
        with self._lock:
            return int(self._object.seek(0, os.SEEK_END))

    def close(self) -> None:
        """Close what was opened here."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def _name(file: Any) -> str:
    return f"the file {getattr(file, 'name', file)!r}"


def _checked_path(file: Any, write: bool) -> Path:
    """Return a path as it is to be opened later; raises what opening it now would."""
    path: Path = os.fspath(file)
    if not path:
        raise _os_error(errno.ENOENT, path)
    if not os.path.isabs(path):
        # Not normalised: behind a link, `..` is not what it looks like.
        path = os.path.join(os.getcwd(), path) if isinstance(path, str) else os.path.join(os.getcwdb(), path)
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:
        raise InvalidArgumentError(f"{path!r} cannot be the path of a file: {error}") from None
    except FileNotFoundError:
        if write:
            _check_folder(path)
        elif not os.path.isdir(os.path.dirname(path)) or _place(path) not in _to_be_made:
            raise
        return path
    if stat.S_ISDIR(mode):
        raise _os_error(errno.EISDIR, path)
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise InvalidArgumentError(f"the file {path!r} is a pipe or a socket, and must be one that has offsets")
    if not _may(path, os.W_OK if write else os.R_OK):
        raise _os_error(errno.EACCES, path)
    return path


def _check_folder(path: Path) -> None:
    """Refuse a file that cannot be made."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise _os_error(errno.ENOENT, path)
    if not _may(folder, os.W_OK | os.X_OK):
        raise _os_error(errno.EACCES, path)


def _place(path: Path) -> Place:
    """Return where a file is, or is to be made, however its path is written: its folder, and its name there."""
    folder = os.stat(os.path.dirname(path))
    return folder.st_dev, folder.st_ino, os.fsencode(os.path.basename(path))


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _os_error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), path)


def _checked_object(file: Any, write: bool) -> int | None:
    """Return the descriptor behind a file object; None where it has to be read and written by its methods."""
    able = getattr(file, "writable" if write else "readable", None)
    if able is None or not hasattr(file, "seek"):
        raise TypeError(f"a file is a path or a binary file object, not {type(file).__name__}")
    if getattr(file, "closed", False):
        raise InvalidArgumentError(f"{_name(file)} is closed")
    if not able():
        need = "writing" if write else "reading"
        raise InvalidArgumentError(f"{_name(file)} is not open for {need}")
    if hasattr(file, "encoding"):
        raise TypeError(f"{_name(file)} is open in text mode, and must be binary")
    # One that unpacks, as of `gzip.open`, has a descriptor too, but what is there is not what it reads.
    if not isinstance(getattr(file, "raw", file), io.FileIO):
        return None
    file.flush()  # what it still buffers stands before what is read or written here
    return int(file.fileno())


def transfer(queue: Queue, work: Upload | Download, buffer: Span) -> None:
    """Move bytes for host work that is under way, and wait for them.

    The transfer is a part of that work, which counts as the write that host reads follow (M26) and as the use of the
    buffer (M18). So it goes through even if the buffer was closed meanwhile.
    """
    queue._submit_part(work, (buffer._memory,)).wait()


class FileRead:
    """Reads a range of a file into a buffer."""

    def __init__(self, queue: Queue, file: Any, target: Span, file_offset: Any, length: int | None) -> None:
        self._at = _checked_offset("read_file", file_offset, 0 if length is None else target.nbytes)
        self._file = _File(file, write=False)
        self._queue = queue
        self._target = target
        self._rest = length is None

    def __call__(self) -> None:
        with self._file as file:
            file.open()
            target = self._found(file)
            visible = target._visible()
            into = new_array((target.nbytes,), np.uint8, "read_file") if visible is None else visible
            found = file.read_into(into, self._at)
        if found < target.nbytes:
            raise OutOfRangeError(
                f"read_file: the file ends {target.nbytes - found} bytes short of the {target.nbytes} asked for"
                f" at {self._at}"
            )
        if visible is None:
            transfer(self._queue, Upload(into, target), target)

    def _found(self, file: _File) -> Span:
        """Return the target, or as much of it as the rest of the file takes."""
        if not self._rest:
            return self._target
        target = self._target
        length = max(0, file.size() - self._at)
        if length > target.nbytes:
            raise OutOfRangeError(
                f"read_file: the rest of the file is {length} bytes, which do not fit"
                f" the {target.nbytes} of {target._memory.describe()} here"
            )
        return target.subspan(0, length)


class FileWrite:
    """Writes a range of a buffer into a file."""

    def __init__(self, queue: Queue, file: Any, source: Span, file_offset: Any) -> None:
        self._at = _checked_offset("write_file", file_offset, source.nbytes)
        self._file = _File(file, write=True)
        self._queue = queue
        self._source = source

    def __call__(self) -> None:
        with self._file as file:
            source = bytes_of(self._queue, self._source, "write_file")
            file.open()
            file.write_from(source, self._at)


def bytes_of(queue: Queue, source: Span, what: str) -> Bytes:
    """Return the bytes of a buffer to host work that is under way."""
    visible = source._visible()
    if visible is not None:
        return visible
    copied = new_array((source.nbytes,), np.uint8, what)
    transfer(queue, Download(source, copied), source)
    return copied


def _checked_offset(what: str, offset: Any, length: int) -> int:
    at = checked_int(offset, "file offset")
    if at < 0:
        raise OutOfRangeError(f"{what}: the file offset is {at}, and must be 0 or more")
    if at + length > _END:
        raise OutOfRangeError(f"{what}: no file reaches to {length} bytes behind the file offset {at}")
    return at
