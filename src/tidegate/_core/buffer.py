"""Buffers: memory of a device, its ranges, and what the host may do with them (M18, M22 to M27).

`Memory` is the thing itself, shared by a buffer and its subspans; `Buffer` is a range of it. The storage behind it
comes and goes: committed at once or in queue order, given back by `free`, `close` or the collector. Submissions count
their uses, so that `close` takes effect at the end of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, SemaphoreFailedError, UnsupportedError
from ..types import MemoryKind
from . import process
from .checks import Bytes, checked_range, checked_shape, host_bytes_of, new_array
from .compiled import Semaphore, Span, checked_timeout, inside_callback, wait_points
from .failures import brief, mark_seen
from .thread_state import thread_state

if TYPE_CHECKING:
    from .compiled import Submission, Timepoint
    from .device import Device
    from .view import BufferView


class Buffer(Span):
    """A range of a device's memory.

    Made by `allocate`, `upload` and `subspan`. Usable from any thread. It lives as long as it, a subspan, a mapped
    array or an unretired submission that uses it does.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        memory = self._memory
        label = f" {memory.label!r}" if memory.label else ""
        part = "" if self._root else f" [{self.offset}:{self.offset + self.nbytes}]"
        phase = "closed" if memory.closed else memory.phase_name
        return (
            f"<tidegate.Buffer{label}{part} {self.nbytes} bytes {memory.kind} on {memory.device.describe()}, {phase}>"
        )

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
        return self._memory.ready or self.device._host_queue()._over()

    def subspan(self, offset: int, nbytes: int | None = None) -> Buffer:
        """Return a range of this range; without a length, the rest.

        Raises:
            OutOfRangeError: it does not lie within.

        """
        offset, nbytes = checked_range(self, offset, nbytes)
        return Buffer(self._memory, self.offset + offset, nbytes)

    def view(self, dtype: npt.DTypeLike, shape: int | Sequence[int] | None = None) -> BufferView:
        """Return the range as an array of `dtype`, without touching it; without a shape, one-dimensional."""
        from .view import BufferView

        return BufferView(self, dtype, shape)

    def close(self) -> None:
        """Give the memory back, at the end of its last use; closing a subspan only ends that object's claim.

        Twice is fine. Never blocks.
        """
        if self._root and self._memory.close():
            self.device._starvation.listen()

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

    def _order_host_access(self, wait: Any, timeout: float | None) -> None:
        memory = self._memory
        process.refuse_forked(memory.device._process, memory.describe())
        memory.device._refuse_closed()
        memory.refuse_unusable()
        if wait is ...:
            if inside_callback() or thread_state.host_call_device is not None:
                return
            last = memory.pending_write()
            if last is not None:
                last.wait(timeout)
            error = memory.failure_of_last_write()  # read once, because the next submitted write clears it
            if error is not None:
                mark_seen(error)
                text = f"{memory.describe()}: the last write to it failed: {brief(error)}"
                raise SemaphoreFailedError(text) from error
        else:
            wait_points(wait, timeout)

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
        for end in tuple(accesses):
            if end.is_over:
                with suppress(ValueError):  # another thread was faster
                    accesses.remove(end)
        end = Semaphore(label="host access").at(1)
        accesses.append(end)  # before the work is submitted, so that an interrupt cannot leave it out
        submit(end).wait(timeout)
