"""How memory and host data come into a submission: allocating, freeing, updates, uploads, downloads.

Page-locked arrays are copied by the stream itself. Of the others, small ones go through the staging ring and large ones
through the threads of the transfer engine; on a stream of another library these too by the stream, through memory of
their own, for they must come between that library's work. What reads host memory when it is issued must not be issued
before its waits are over: somebody may still be writing there. So it says "not now" to open waits, and the core holds
it for them.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import call
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidegate.driver import Allocate, Download, Free, Storage, Ticket, Update, Upload
from tidegate.errors import InvalidArgumentError

from .encoding import ENCODERS, NOTHING, REPORTED, Encoded, EncodedCopy, EncodedTransfer, NotNow, address_of
from .memory_pools import CudaPool, CudaStorage
from .staging import SHARE, AnyPiece
from .transfer_engine import transfer_of

if TYPE_CHECKING:
    from .device import CudaDevice
    from .stream import Stream

Bytes = npt.NDArray[np.uint8]

STAGED = SHARE
"""Up to so many bytes go through the ring, on the thread that issues."""
_TINY = 8 << 10
"""Up to so many bytes of an upload, asking whether they are page-locked costs more than to copy them."""


_LARGE = 1 << 20
"""From so many on, a copy must not keep others from running beside it."""


# Memory -------------------------------------------------------------------------------------------------------------


def _pool_of(device: CudaDevice, work: Allocate) -> CudaPool:
    pool = device.default_pool if work.pool is None else work.pool
    if not isinstance(pool, CudaPool):
        raise InvalidArgumentError(f"device {device.info.uri!r}: the pool is not one of this device")
    return pool


def _encode_allocate(device: CudaDevice, work: Allocate, stream: Stream) -> Encoded:
    work.commit(_pool_of(device, work).allocate_in_order(work.nbytes, work.memory, stream))
    return NOTHING


def _take_allocate(device: CudaDevice, ticket: Ticket, work: Allocate) -> bool | None:
    """Page-locked memory has no order, and may take a while to get: not under the device's lock."""
    if work.memory == "device":
        return None
    work.commit(device.allocate(work.nbytes, work.memory, work.pool))
    device.sink.finished(ticket)
    return True


class Departing:
    """A storage between its buffer and its pool.

    It is taken from the buffer as late as can be, when the epoch is taken: an interrupt before that leaves the buffer
    as it is, and one after it finds the storage here, where it stays until the epoch is over.
    """

    __slots__ = ("_release", "_storages")

    def __init__(self, release: Callable[[], Storage | None]) -> None:
        self._release = release
        self._storages: list[Storage | None] = []

    def leave(self, stream: Stream) -> None:
        """Free it in the order of a stream."""
        # All in C between the last line of `release` and the list: no interrupt can drop the storage on the way.
        self._storages.extend(map(call, (self._release,)))
        storage = self._storages[0]
        if isinstance(storage, CudaStorage):
            storage.pool.free_in_order(storage, stream)

    def over(self) -> None:
        """The stream has freed it."""
        if self._storages:
            storage = self._storages[0]
            if isinstance(storage, CudaStorage):
                storage.pool.freed(storage)
            del storage
            self._storages.clear()


class EncodedFree(Encoded):
    """A free in queue order."""

    __slots__ = ("_departing",)

    def __init__(self, release: Callable[[], Storage | None]) -> None:
        self._departing = Departing(release)
        super().__init__(1, self._departing.over)

    def run(self, stream: Stream) -> None:
        self._departing.leave(stream)


def _encode_free(device: CudaDevice, work: Free, stream: Stream) -> Encoded:
    return EncodedFree(work.release)


# Host data ----------------------------------------------------------------------------------------------------------


class Arriving:
    """Small data in the ring that shall go to an array."""

    __slots__ = ("_array", "_piece")

    def __init__(self, array: Bytes, piece: AnyPiece) -> None:
        self._array: Bytes | None = array
        self._piece = piece

    def over(self) -> None:
        """It is there."""
        array: Any = self._array
        if array is not None:
            memoryview(array)[:] = self._piece.bytes
            self._array = None  # once: the piece may be somebody else's soon
        self._piece.release()


def _staged(device: CudaDevice, target: int, data: Any) -> Encoded:
    piece = device.staging.stage(data)
    return EncodedCopy(target, piece.address, piece.bytes.nbytes, piece.release)


def _too_large(nbytes: int, stream: Stream) -> bool:
    """Whether data is not for a stream, but for the transfer engine."""
    return nbytes > STAGED and stream.priority is not None


def _is_locked(device: CudaDevice, array: Bytes) -> bool:
    return device.default_pool.page_locked.is_locked(array.ctypes.data, array.nbytes)


def _transfer(nbytes: int) -> type[EncodedCopy]:
    return EncodedTransfer if nbytes >= _LARGE else EncodedCopy


def _encode_update(device: CudaDevice, work: Update, stream: Stream) -> Encoded:
    if not work.data:
        return NOTHING
    if _too_large(len(work.data), stream):
        raise NotNow
    return _staged(device, address_of(work.target), work.data)


def _encode_upload(device: CudaDevice, work: Upload, stream: Stream) -> Encoded:
    array = work.array
    nbytes = array.nbytes
    if nbytes == 0:
        return NOTHING
    target = address_of(work.target)
    if (nbytes > _TINY or stream.open_waits) and _is_locked(device, array):
        return _transfer(nbytes)(target, array.ctypes.data, nbytes)
    if stream.open_waits or _too_large(nbytes, stream):
        raise NotNow
    return _staged(device, target, array)


def _encode_download(device: CudaDevice, work: Download, stream: Stream) -> Encoded:
    array = work.array
    nbytes = array.nbytes
    if nbytes == 0:
        return NOTHING
    source = address_of(work.source)
    # Also a tiny one: an upload from page-locked memory may follow on the stream, before the host copies anything.
    if _is_locked(device, array):
        return _transfer(nbytes)(array.ctypes.data, source, nbytes)
    if _too_large(nbytes, stream):
        raise NotNow
    # What waits on a stream may wait for long, and takes no more than the ring has.
    piece = device.staging.take(nbytes) if stream.open_waits else device.staging.reserve(nbytes)
    return EncodedCopy(piece.address, source, nbytes, Arriving(array, piece).over)


def _take_update(device: CudaDevice, ticket: Ticket, work: Update) -> bool | None:
    if len(work.data) <= STAGED:
        return None
    return _take(device, ticket, np.frombuffer(work.data, np.uint8), work.target, upload=True)


def _take_upload(device: CudaDevice, ticket: Ticket, work: Upload) -> bool | None:
    return None if _by_stream(device, work.array) else _take(device, ticket, work.array, work.target, upload=True)


def _take_download(device: CudaDevice, ticket: Ticket, work: Download) -> bool | None:
    return None if _by_stream(device, work.array) else _take(device, ticket, work.array, work.source, upload=False)


def _by_stream(device: CudaDevice, array: Bytes) -> bool:
    if array.nbytes <= STAGED:
        return True
    with device.entered():
        return _is_locked(device, array)


def _take(device: CudaDevice, ticket: Ticket, array: Bytes, span: Any, upload: bool) -> bool:
    storage, offset = span.locate()
    device.transfers.submit(transfer_of(ticket, array, storage, offset, array.nbytes, upload))
    return True


ENCODERS[Allocate] = _encode_allocate
ENCODERS[Free] = _encode_free
ENCODERS[Update] = _encode_update
ENCODERS[Upload] = _encode_upload
ENCODERS[Download] = _encode_download
REPORTED[Allocate] = _take_allocate
REPORTED[Update] = _take_update
REPORTED[Upload] = _take_upload
REPORTED[Download] = _take_download
