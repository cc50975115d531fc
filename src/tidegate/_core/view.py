"""A buffer seen as an array, and the exchange of arrays without a copy (DLPack)."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, UnsupportedError
from . import dlpack
from .buffer import Buffer
from .checks import checked_lengths, checked_shape, new_array
from .compiled import Memory
from .process import in_child

if TYPE_CHECKING:
    from ..driver import Interop
    from .compiled import Submission
    from .device import Device

_DLPACK_CPU = 1
_DLPACK_CUDA = 2
_DLPACK_HOST = (_DLPACK_CPU, 3)
"""Ordinary and page-locked memory."""


class BufferView:
    """A buffer with a dtype and a shape. NumPy and every DLPack consumer can take it.

    Reading it from the host is ordered after the last submitted write (M26).
    """

    __slots__ = ("__weakref__", "buffer", "dtype", "shape")

    def __init__(self, buffer: Buffer, dtype: npt.DTypeLike, shape: int | Sequence[int] | None = None) -> None:
        self.dtype, self.shape = checked_shape(buffer, dtype, shape)
        self.buffer = buffer

    def __repr__(self) -> str:
        return f"<tidegate.BufferView {self.dtype} {self.shape} of {self.buffer!r}>"

    @property
    def ready(self) -> Submission:
        """What the contents wait for: the last submitted write, else the allocation."""
        return self.buffer._memory.pending_write() or self.buffer.ready

    def _array(self, *, writable: bool = True) -> npt.NDArray[Any]:
        flat = self.buffer._host_bytes(writable=writable)
        count = math.prod(self.shape) * self.dtype.itemsize
        return flat[:count].view(self.dtype).reshape(self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self._array()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"a view of {self.dtype} cannot become {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        interop = self._interop()
        if interop is not None:
            return dlpack.export(self, interop, options)
        if options.get("stream") is not None:
            raise UnsupportedError(f"{self.buffer!r} is host memory: a stream to order by means nothing here")
        options.pop("stream", None)
        return self._array().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        interop = self._interop()
        if interop is not None:
            return interop.dlpack_device
        if self.buffer._visible() is None:
            raise UnsupportedError(f"{self.buffer!r} cannot be seen by the host")
        return (_DLPACK_CPU, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interop = self._interop()
        if interop is None or interop.dlpack_device[0] != _DLPACK_CUDA:
            raise AttributeError(f"{self.buffer!r} is not memory of a CUDA device")
        return dlpack.cuda_array_interface(self, interop)

    def _interop(self) -> Interop | None:
        """How other libraries take this memory where it lies; None for memory that the host sees."""
        return self.buffer.device._driver.interop if self.buffer.memory == "device" else None


class _SharedDevice:
    """The process-wide CPU device behind `from_dlpack` without a device."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._device: Device | None = None
        in_child(self._forget)

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._device = None

    def get(self) -> Device:
        from .registry import open_device

        with self._lock:
            if self._device is None or not self._device._takes_work:
                self._device = open_device("cpu", label="shared-cpu")
            return self._device


_shared = _SharedDevice()


def from_dlpack(x: Any, device: Device | None = None) -> BufferView:
    """Wrap an array of another library without a copy where that can be, ordered after its producer.

    Args:
        x: anything with `__dlpack__`.
        device: where it shall be usable; None is the open device that owns the memory, else a process-wide CPU device.

    Raises:
        UnsupportedError: the memory is not reachable from that device.

    """
    if isinstance(x, BufferView) and device in (None, x.buffer.device):
        return x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack takes an object with __dlpack__, not {type(x).__name__}")
    place = tuple(x.__dlpack_device__()) if hasattr(x, "__dlpack_device__") else (_DLPACK_CPU, 0)
    if place[0] not in _DLPACK_HOST:
        return dlpack.adopt(x, _owner(place, device))
    try:
        array = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError):
        array = np.asarray(x)  # a read-only array: NumPy exports it by its own protocol only
    # A copy of what lies scattered, and of what is read-only: any work that names a buffer may write to it.
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = np.array(array, order="C")
    owner = _shared.get() if device is None else device
    memory = Memory(owner, array.nbytes, "shared", "imported")
    memory.commit(owner._driver.wrap(array.reshape(-1).view(np.uint8)))
    return BufferView(Buffer(memory, 0, array.nbytes, root=True), array.dtype, array.shape)


def _owner(place: tuple[int, ...], device: Device | None) -> Device:
    """Return the open device that owns memory of a DLPack device."""
    from .device import open_devices

    for candidate in open_devices() if device is None else [device]:
        interop = candidate._driver.interop
        if interop is not None and interop.dlpack_device == place and candidate._takes_work:
            return candidate
    where = "no open device" if device is None else f"{device.describe()} is not the one that"
    raise UnsupportedError(f"from_dlpack: {where} owns memory of DLPack device {place}")


def pinned_empty(
    shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32, device: Device | None = None
) -> npt.NDArray[Any]:
    """Return an uninitialised array in page-locked memory where `device` has that, else an ordinary one.

    Transfers from and to it need no staging.

    Raises:
        ResourceExhaustedError: there is no room.
        InvalidArgumentError: no array has that shape.

    """
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise InvalidArgumentError(f"pinned_empty: dtype {kind} holds Python objects")
    dims = checked_lengths(shape, kind, "pinned_empty")
    nbytes = math.prod(dims) * kind.itemsize
    if device is not None and nbytes:
        device._refuse_closed()
        flat = device._allocate_now(nbytes, "host").host()
        if flat is not None:
            return flat[:nbytes].view(kind).reshape(dims)
    return new_array(dims, kind, "pinned_empty")
