"""The staging buffer: small host data on its way to a device (M28).

One host-visible buffer, cut into aligned ranges. Ranges are handed out in a circle and come back in any order; the
free space is kept as a sorted list of gaps, merged as they meet, so space returns with each range and not only when
all is idle. A lock of its own, held for list arithmetic only.
"""

from __future__ import annotations

import threading
from bisect import insort
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ClosedError, InvalidArgumentError, OutOfRangeError, ResourceExhaustedError
from .background import deferred
from .buffer import Buffer
from .checks import Bytes, checked_int
from .compiled import when_over

if TYPE_CHECKING:
    from .device import Device

DEFAULT_CAPACITY = 128 * 1024


class StagingRange:
    """A reserved range: fill `array`, use `buffer` in queue operations, and give it back."""

    __slots__ = ("_staging", "array", "buffer", "nbytes", "offset")

    def __init__(self, staging: StagingBuffer, offset: int, nbytes: int) -> None:
        self._staging: StagingBuffer | None = staging
        self.offset = offset
        self.nbytes = nbytes
        assert staging._buffer is not None, "it is not closed"
        self.buffer: Buffer = staging._buffer.subspan(offset, nbytes)
        self.array: Bytes = staging._bytes[offset : offset + nbytes]

    def __repr__(self) -> str:
        return f"<tidegate.lowlevel.StagingRange {self.offset}..{self.offset + self.nbytes}>"

    def release(self) -> None:
        """Give the space back now. Twice is fine."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging._give_back(self.offset, self.nbytes)

    def release_after(self, point: Any) -> None:
        """Give the space back when a submission or timepoint is over, well or not."""
        when_over(point, self.release)


class StagingBuffer:
    """Host memory that a device reads, for small data. Any number of threads may reserve at once.

    Args:
        device: the device that shall read it.
        capacity: its size in bytes.

    """

    def __init__(self, device: Device, capacity: int = DEFAULT_CAPACITY) -> None:
        if checked_int(capacity, "capacity") <= 0:
            raise InvalidArgumentError(f"staging buffer: the capacity is {capacity}, and must be above 0")
        self.device = device
        self.capacity = capacity
        self._buffer: Buffer | None = device.allocate(capacity, memory="host", label="staging")
        self._bytes = self._buffer._host_bytes(writable=True)
        self._lock = threading.RLock()  # it is never taken twice, but it knows which thread holds it
        self._gaps: list[tuple[int, int]] = [(0, capacity)]  # (begin, end), sorted, never touching
        self._next = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<tidegate.lowlevel.StagingBuffer {self.free_bytes} of {self.capacity} bytes free>"

    @property
    def free_bytes(self) -> int:
        """How many bytes are free, perhaps in several pieces."""
        with self._lock:
            return sum(end - begin for begin, end in self._gaps)

    def reserve(self, nbytes: int, alignment: int = 16) -> StagingRange:
        """Reserve an aligned range.

        Raises:
            OutOfRangeError: more than the capacity: it could never fit.
            ResourceExhaustedError: no room now; it comes back as ranges are released.
            InvalidArgumentError: the alignment is not a power of two.

        """
        size = checked_int(nbytes, "size")
        step = checked_int(alignment, "alignment")
        if size < 0:
            raise InvalidArgumentError(f"staging buffer: the size is {size}, and must be 0 or more")
        if step <= 0 or step & (step - 1):
            raise InvalidArgumentError(f"staging buffer: the alignment is {step}, and must be a power of two")
        if size > self.capacity:
            raise OutOfRangeError(f"staging buffer: {size} bytes are more than its capacity of {self.capacity}")
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise ResourceExhaustedError(
                "staging buffer: a finalizer or signal handler cannot reserve in a reservation"
            )
        with self._lock:
            if self._closed:
                raise ClosedError("the staging buffer is closed")
            offset = self._take(size, step)
            found = None if offset is None else StagingRange(self, offset, size)
        if found is None:
            raise ResourceExhaustedError(
                f"staging buffer: no {size} bytes are free now; its capacity is {self.capacity}"
            )
        return found

    def _take(self, size: int, step: int) -> int | None:
        """Cut a range out of a gap: the first that fits behind the last one handed out, else from the start."""
        if size == 0:
            return 0  # nothing is cut, for nothing would close the cut again
        count = len(self._gaps)
        first = next((index for index, (_, end) in enumerate(self._gaps) if end > self._next), 0)
        for index in ((first + turn) % count for turn in range(count)):
            begin, end = self._gaps[index]
            offset = -(-begin // step) * step
            if offset + size <= end:
                pieces = [(begin, offset), (offset + size, end)]
                self._gaps[index : index + 1] = [piece for piece in pieces if piece[0] < piece[1]]
                self._next = offset + size
                return offset
        return None

    def _give_back(self, offset: int, nbytes: int) -> None:
        if nbytes == 0:
            return
        if self._lock._is_owned():  # type: ignore[attr-defined]
            deferred.leave(self._give_back, offset, nbytes)  # a finalizer or signal handler has interrupted us
            return
        with self._lock:
            insort(self._gaps, (offset, offset + nbytes))
            index = self._gaps.index((offset, offset + nbytes))
            if index + 1 < len(self._gaps) and self._gaps[index + 1][0] == offset + nbytes:
                self._gaps[index : index + 2] = [(offset, self._gaps[index + 1][1])]
            if index > 0 and self._gaps[index - 1][1] == offset:
                self._gaps[index - 1 : index + 1] = [(self._gaps[index - 1][0], self._gaps[index][1])]

    def close(self) -> None:
        """Refuse new reservations; the memory goes with the last range."""
        with self._lock:
            self._closed = True
            self._buffer = None  # the ranges that are out hold it, each for itself
            self._bytes = np.empty(0, np.uint8)
