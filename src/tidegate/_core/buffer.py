"""Buffers: memory of a device, its ranges, and what the host may do with them (M18, M22 to M27).

`Memory` is the thing itself, shared by a buffer and its subspans; `Buffer` is a range of it. The storage behind it
comes and goes: committed at once or in queue order, given back by `free`, `close` or the collector. Submissions count
their uses, so that `close` takes effect at the end of the last one.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..driver import Span, Storage
from ..errors import (
    ClosedError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
    SemaphoreFailedError,
    UnsupportedError,
)
from ..types import MemoryKind
from . import process
from .host_wait import checked_timeout, wait_targets
from .scheduling import waits_of
from .semaphore import Semaphore
from .submission import over
from .thread_state import thread_state
from .timeline import brief
from .unseen import look_at

if TYPE_CHECKING:
    from .device import Device
    from .submission import Submission
    from .timepoint import Timepoint
    from .view import BufferView

PENDING, LIVE, FREED, FAILED = "not committed yet", "live", "freed", "never committed: its allocation failed"

Bytes = npt.NDArray[np.uint8]

LARGEST = 2**62
"""More bytes than any memory has. What a size is rounded up to still is a number that C and NumPy know."""
_ABSURD = 2**512
"""Python refuses to write out numbers that are very much larger, so no text could name them."""
_MOST_AXES = getattr(np, "MAXDIMS", 64)


class Memory:
    """What a buffer and its subspans share."""

    __slots__ = (
        "closed",
        "device",
        "freed_by",
        "host_accesses",
        "kind",
        "label",
        "last_write",
        "nbytes",
        "phase",
        "ready",
        "root",
        "storage",
        "uses",
        "write_error",
    )

    def __init__(self, device: Device, nbytes: int, kind: MemoryKind, label: str) -> None:
        if nbytes > LARGEST:
            raise InvalidArgumentError(
                f"allocate on {device.describe()}: the size is {nbytes}, and no memory has more than 2**62 bytes"
            )
        self.device = device
        self.nbytes = nbytes
        self.kind = kind
        self.label = label
        self.storage: Storage | None = None
        self.phase = PENDING
        self.ready: Submission | None = None
        # Weakly, because a held submission is owned by what it waits for alone (M12).
        self.last_write: weakref.ref[Submission] | None = None
        self.write_error: BaseException | None = None
        self.freed_by: object = None
        self.host_accesses: list[Timepoint] = []
        self.uses = 0
        self.closed = False
        self.root: weakref.ref[Buffer] | None = None

    def describe(self) -> str:
        """Return how texts name it."""
        label = f" {self.label!r}" if self.label else ""
        return f"buffer{label} of {self.nbytes} bytes"

    def commit(self, storage: Storage) -> None:
        """The storage is there. A buffer that was closed meanwhile, and that nobody uses, lets it go at once."""
        self.phase = LIVE
        if not self.closed or self.uses:
            self.storage = storage

    def never_committed(self, _error: BaseException) -> None:
        """The allocation failed."""
        if self.phase == PENDING:
            self.phase = FAILED

    @property
    def given_up(self) -> bool:
        """Whether it was closed, or the buffer that stands for all of it dropped: the end of its uses frees it."""
        return self.closed or (self.root is not None and self.root() is None)

    def pending_write(self) -> Submission | None:
        """Return the last submitted write while it is not over."""
        last = self.last_write
        return None if last is None else last()

    def accessed(self) -> list[Timepoint]:
        """Return the ends of the transfers for host accesses that are under way.

        Whoever gave up such an access, because its time was over or by an interrupt, has nothing to wait for; so `free`
        waits for these by itself.
        """
        return [end for end in list(self.host_accesses) if end._state.claims]

    def end_use(self) -> None:
        """A submission that used it is over."""
        self.uses -= 1
        if self.closed and self.uses == 0:
            self.storage = None

    def close(self) -> None:
        """No further use; the storage goes with the last one."""
        self.closed = True
        if self.uses == 0:
            self.storage = None
        elif self.device._starvation:
            self.device._starvation.listen()

    def refuse_unusable(self) -> None:
        """Raise if no new work may name this memory."""
        if self.closed:
            raise ClosedError(f"{self.describe()} is closed")
        # Not where its allocation failed: whether that is known by now depends on timing, and the work will fail.
        if self.phase == FREED:
            raise FailedPreconditionError(f"{self.describe()} is freed")


class FreeRequest:
    """One `queue.free` of a memory. The first one that is held or issued wins (M23)."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        if memory.freed_by is None:
            memory.freed_by = self

    def release(self) -> Storage | None:
        """Take the storage from the buffer."""
        memory = self._memory
        if memory.freed_by is not self or memory.phase == FREED:
            raise FailedPreconditionError(f"{memory.describe()} is freed twice")
        if memory.phase != LIVE:
            raise FailedPreconditionError(f"{memory.describe()} cannot be freed: it is {memory.phase}")
        storage, memory.storage = memory.storage, None
        memory.phase = FREED
        return storage

    def undo(self, _error: BaseException) -> None:
        """It never came to it: the buffer is still there."""
        memory = self._memory
        if memory.freed_by is self and memory.phase != FREED:
            memory.freed_by = None


class Buffer:
    """A range of a device's memory.

    Made by `allocate`, `upload` and `subspan`. Usable from any thread. It lives as long as it, a subspan, a mapped
    array or an unretired submission that uses it does.
    """

    __slots__ = ("__weakref__", "_memory", "_nbytes", "_offset", "_root")

    def __init__(self, memory: Memory, offset: int, nbytes: int, root: bool) -> None:
        self._memory = memory
        self._offset = offset
        self._nbytes = nbytes
        self._root = root
        if root:
            memory.root = weakref.ref(self)

    def __repr__(self) -> str:
        memory = self._memory
        label = f" {memory.label!r}" if memory.label else ""
        part = "" if self._root else f" [{self._offset}:{self._offset + self._nbytes}]"
        phase = "closed" if memory.closed else memory.phase
        return (
            f"<tidegate.Buffer{label}{part} {self._nbytes} bytes {memory.kind} on {memory.device.describe()}, {phase}>"
        )

    # The span, as drivers see it -----------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self._nbytes

    def locate(self) -> tuple[Storage, int]:
        """Return the storage and the offset of this range in it: for drivers."""
        storage = self._memory.storage
        if storage is None:
            memory = self._memory
            raise FailedPreconditionError(f"{memory.describe()} has no storage: it is {memory.phase}")
        return storage, self._offset

    def bind(self, table: Sequence[Span]) -> Span:
        """Return itself: for drivers."""
        return self

    # What it is ----------------------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device it belongs to."""
        return self._memory.device

    @property
    def memory(self) -> MemoryKind:
        """Its kind: "device", "host" or "shared"."""
        return self._memory.kind

    @property
    def label(self) -> str:
        """The name given to it."""
        return self._memory.label

    @property
    def ready(self) -> Submission:
        """The submission that commits its storage; one that is over if it had storage from the start."""
        return self._memory.ready or over(self.device._host_queue())

    @property
    def offset(self) -> int:
        """Where this range begins in the memory it is part of."""
        return self._offset

    def subspan(self, offset: int, nbytes: int | None = None) -> Buffer:
        """Return a range of this range; without a length, the rest.

        Raises:
            OutOfRangeError: it does not lie within.

        """
        offset, nbytes = checked_range(self, offset, nbytes)
        return Buffer(self._memory, self._offset + offset, nbytes, root=False)

    def view(self, dtype: npt.DTypeLike, shape: int | Sequence[int] | None = None) -> BufferView:
        """Return the range as an array of `dtype`, without touching it; without a shape, one-dimensional."""
        from .view import BufferView

        return BufferView(self, dtype, shape)

    def close(self) -> None:
        """Give the memory back, at the end of its last use; closing a subspan only ends that object's claim.

        Twice is fine. Never blocks.
        """
        if self._root:
            self._memory.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # What the host may do ------------------------------------------------------------------------------------------

    @contextmanager
    def map(self, mode: str = "r", *, wait: Any = ..., timeout: float | None = None) -> Iterator[Bytes]:
        """Give the bytes as a NumPy array, after the last submitted write to this buffer (M26).

        Args:
            mode: "r", "w" or "rw".
            wait: what to wait for instead, as `wait=` of an operation; `()` for nothing.
            timeout: seconds for that wait.

        Raises:
            UnsupportedError: the host cannot see this kind of memory on this device.
            FailedPreconditionError: there is no storage yet, or no more.

        """
        if mode not in ("r", "w", "rw"):
            raise InvalidArgumentError(
                f"{self._memory.describe()}: the map mode is {mode!r}, and must be 'r', 'w' or 'rw'"
            )
        yield self._host_bytes(writable="w" in mode, wait=wait, timeout=checked_timeout(timeout))

    def _host_bytes(self, *, writable: bool, wait: Any = ..., timeout: float | None = None) -> Bytes:
        self._order_host_access(wait, timeout)
        view = self._visible()
        if view is None:
            raise UnsupportedError(
                f"{self._memory.describe()} is {self.memory!r} memory, which the host cannot map on"
                f" {self.device.describe()}: use read and write, or memory='shared'"
            )
        view.flags.writeable = writable
        return view

    def _visible(self) -> Bytes | None:
        """Return the bytes of this range if the host can see them, in an array of its own."""
        storage, offset = self.locate()
        whole = storage.host()
        return None if whole is None else whole[offset : offset + self._nbytes]

    def _order_host_access(self, wait: Any, timeout: float | None) -> None:
        memory = self._memory
        process.refuse_forked(memory.device._process, memory.describe())
        memory.device._refuse_closed()
        memory.refuse_unusable()
        if wait is ...:
            if thread_state.running or thread_state.host_call_device is not None:
                return
            last = memory.pending_write()
            if last is not None:
                last.wait(timeout)
            error = memory.write_error  # once: the next write that is submitted takes it away
            if error is not None:
                look_at(error)
                text = f"{memory.describe()}: the last write to it failed: {brief(error)}"
                raise SemaphoreFailedError(text) from error
        else:
            targets = waits_of(wait)
            if targets:
                wait_targets(targets, any_of_them=False, timeout=timeout)

    def read(self, *, timeout: float | None = None) -> bytes:
        """Return the bytes, after the last submitted write (M26). The timeout is for the whole call."""
        return self.to_numpy(np.uint8, timeout=timeout).tobytes()

    def to_numpy(
        self, dtype: npt.DTypeLike = np.uint8, shape: int | Sequence[int] | None = None, *, timeout: float | None = None
    ) -> npt.NDArray[Any]:
        """Return a copy as a NumPy array, after the last submitted write (M26). The timeout is for the whole call."""
        dtype, dims = checked_shape(self, dtype, shape)
        timeout = checked_timeout(timeout)
        deadline = None if timeout is None else monotonic() + timeout
        self._order_host_access(..., timeout)
        out = new_array(dims, dtype, self._memory.describe())
        source = self._visible()
        flat = out.reshape(-1).view(np.uint8)
        if source is None:
            span = self.subspan(0, flat.nbytes)
            left = None if deadline is None else max(0.0, deadline - monotonic())
            self._transfer(lambda end: self.device._host_queue().download(span, flat, signal=end), left)
        else:
            np.copyto(flat, source[: flat.nbytes])
        return out

    def write(self, data: Any, offset: int = 0) -> None:
        """Write host data now, after the last submitted write. The data is copied before the call returns."""
        source = host_bytes_of(data, "write")
        target = self.subspan(offset, source.nbytes)
        self._order_host_access(..., None)
        into = target._visible()
        if into is None:
            self._transfer(lambda end: self.device._host_queue().upload(source, target, signal=end), None)
        else:
            np.copyto(into, source)

    def _transfer(self, submit: Callable[[Timepoint], Submission], timeout: float | None) -> None:
        """Have the device do a host access, and wait for it."""
        accesses = self._memory.host_accesses
        for end in list(accesses):
            if end._state.payload or end._state.failure is not None:
                with suppress(ValueError):  # another thread was faster
                    accesses.remove(end)
        end = Semaphore(label="host access").at(1)
        accesses.append(end)  # before there is any work, so that no interrupt can come in between
        submit(end).wait(timeout)


def checked_range(buffer: Buffer, offset: Any, nbytes: Any) -> tuple[int, int]:
    """Return offset and length as ints; a length of None is the rest."""
    offset = checked_int(offset, "offset")
    length = buffer.nbytes - offset if nbytes is None else checked_int(nbytes, "length")
    if offset < 0 or length < 0 or offset + length > buffer.nbytes:
        raise OutOfRangeError(
            f"{buffer._memory.describe()}: the range {offset}..{offset + length} does not lie within its"
            f" {buffer.nbytes} bytes",
            offset=offset,
            length=length,
            nbytes=buffer.nbytes,
        )
    return offset, length


def checked_int(value: Any, what: str) -> int:
    """Return an integer argument as an int."""
    if type(value) is int and -_ABSURD < value < _ABSURD:
        return value
    if isinstance(value, (bool, float)) or not hasattr(value, "__index__"):
        raise TypeError(f"the {what} must be an int, not {type(value).__name__}")
    number = int(value.__index__())
    if not -_ABSURD < number < _ABSURD:
        raise OutOfRangeError(f"the {what} is a number of {number.bit_length()} bits, far more than there can be")
    return number


def checked_shape(
    buffer: Buffer, dtype: npt.DTypeLike, shape: int | Sequence[int] | None
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of an array over a buffer; without a shape, what fits."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise InvalidArgumentError(f"{buffer._memory.describe()}: dtype {kind} holds Python objects")
    if shape is None:
        if kind.itemsize == 0 or buffer.nbytes % kind.itemsize:
            raise InvalidArgumentError(
                f"{buffer._memory.describe()}: {buffer.nbytes} bytes are not a multiple of {kind},"
                f" which has {kind.itemsize}"
            )
        return kind, (buffer.nbytes // kind.itemsize,)
    dims = _lengths(shape, buffer._memory.describe())
    needed = math.prod(dims) * kind.itemsize
    if needed > buffer.nbytes:
        raise OutOfRangeError(
            f"{buffer._memory.describe()}: an array {dims} of {kind} needs {needed} bytes,"
            f" and there are {buffer.nbytes}"
        )
    _check_lengths(dims, kind, buffer._memory.describe())
    return kind, dims


def checked_lengths(shape: int | Sequence[int], kind: np.dtype[Any], what: str) -> tuple[int, ...]:
    """Return the lengths of an array that NumPy can have, memory apart; `what` names it in texts."""
    dims = _lengths(shape, what)
    _check_lengths(dims, kind, what)
    return dims


def _lengths(shape: int | Sequence[int], what: str) -> tuple[int, ...]:
    given = shape if isinstance(shape, Sequence) else (shape,)
    dims = tuple([checked_int(n, "shape") for n in given])
    if any(n < 0 for n in dims):
        raise InvalidArgumentError(f"{what}: the shape {dims} has a negative length")
    return dims


def _check_lengths(dims: tuple[int, ...], kind: np.dtype[Any], what: str) -> None:
    if len(dims) > _MOST_AXES:
        raise InvalidArgumentError(f"{what}: the shape has {len(dims)} lengths, and an array at most {_MOST_AXES}")
    # NumPy counts as if no length were 0, for an array without elements too.
    if math.prod([n or 1 for n in dims]) * (kind.itemsize or 1) > LARGEST:
        raise InvalidArgumentError(f"{what}: an array {dims} of {kind} is larger than any memory")


def new_array(dims: tuple[int, ...], kind: npt.DTypeLike, what: str) -> npt.NDArray[Any]:
    """Return a fresh array of the host, whose contents are undefined; `what` names the reason in texts.

    Raises:
        ResourceExhaustedError: there is no room.

    """
    try:
        return np.empty(dims, kind)
    except MemoryError as error:
        raise ResourceExhaustedError(f"{what}: the host has no room for an array {dims} of {kind}") from error


def host_bytes_of(data: Any, what: str) -> Bytes:
    """Return host data as contiguous bytes, in C order, without a copy where it is contiguous already."""
    if isinstance(data, np.ndarray):
        array = data
    elif any(hasattr(data, name) for name in ("__array__", "__array_interface__", "__array_struct__")):
        array = np.asarray(data)
    else:
        try:
            array = np.asarray(memoryview(data))
        except TypeError:
            raise TypeError(
                f"{what} takes an array or another object with a buffer, not {type(data).__name__}"
            ) from None
    if array.dtype.hasobject:
        raise TypeError(f"{what}: the array holds Python objects, not numbers")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
