"""Arrays of devices, to and from other libraries, without a copy and in order.

Going out, the consumer names a stream, and that stream is made to wait for the last submitted write. Coming in, the
producer is given a stream of ours to wait on, and a submission on it stands for the moment at which the contents are
there: `view.ready`.

A capsule for memory the host cannot see is made by NumPy, over an array that is never looked into, and is then told
which device the memory is on: so NumPy's own code keeps and releases the memory.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver import Interop, Storage
from ..errors import UnsupportedError
from .buffer import Buffer
from .compiled import Memory, wait_all

if TYPE_CHECKING:
    from .device import Device
    from .view import BufferView

_NAME = b"dltensor"
_NO_ORDER = -1


class _Tensor(ctypes.Structure):
    """DLTensor: what a capsule points to begins with it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_pointer.restype = ctypes.c_void_p

_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}


def _tensor(capsule: object) -> _Tensor:
    return _Tensor.from_address(_get_pointer(capsule, _NAME))


class _Memory:
    """Memory of a device as NumPy's array interface tells of it; keeps the storage."""

    def __init__(self, storage: Storage, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._storage = storage
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": dtype.str, "version": 3}


def _place(view: BufferView, interop: Interop) -> tuple[Storage, int]:
    storage, offset = view.buffer.locate()
    return storage, interop.address(storage) + offset


def _order(view: BufferView, interop: Interop, stream: object) -> None:
    """Have a stream follow the last submitted write, or the allocation; on the host where no stream can wait for it."""
    pending = view.ready
    if pending.done:
        return
    timeline = pending.timeline
    if timeline is None:
        wait_all([pending])
    else:
        interop.follow(stream, timeline, pending.epoch)


def export(view: BufferView, interop: Interop, options: dict[str, Any]) -> Any:
    """Return a capsule of a view, ordered by the consumer's stream."""
    wanted = options.get("dl_device")
    if options.get("copy") or wanted not in (None, interop.dlpack_device):
        raise BufferError(f"{view!r} can be exported where it lies only, without a copy")
    stream = options.get("stream")
    if stream != _NO_ORDER:
        _order(view, interop, stream)
    storage, address = _place(view, interop)
    interop.exported(storage, None if stream == _NO_ORDER else stream)
    array = np.asarray(_Memory(storage, address, view.shape, view.dtype))
    capsule = array.__dlpack__()
    tensor = _tensor(capsule)
    tensor.device_type, tensor.device_id = interop.dlpack_device
    return capsule


def cuda_array_interface(view: BufferView, interop: Interop) -> dict[str, Any]:
    """Return the dictionary of that protocol. Its consumers may not order, so this waits for the last write."""
    if not view.ready.done:
        wait_all([view.ready])
    storage, address = _place(view, interop)
    interop.exported(storage, None)
    return {
        "shape": view.shape,
        "typestr": view.dtype.str,
        "data": (address, False),
        "strides": None,
        "version": 3,
        "stream": None,
    }


def adopt(x: Any, device: Device) -> BufferView:
    """Return a view of an array of another library that lies on `device`, ordered after its producer."""
    from .queue import Queue
    from .view import BufferView

    interop = device._driver.interop
    assert interop is not None
    port = interop.stream_queue()
    capsule = x.__dlpack__(stream=port.stream)  # type: ignore[attr-defined]
    tensor = _tensor(capsule)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    dtype = _dtype(tensor)
    _refuse_gaps(tensor, shape)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = Memory(device, nbytes, "device", "imported")
    memory.commit(interop.adopt((tensor.data or 0) + tensor.byte_offset, nbytes, capsule))
    buffer = Buffer(memory, 0, nbytes, root=True)
    # A write of nothing, on that stream: who reads comes after it, and so after the producer. A barrier would
    # pass at once, without going there.
    Queue(device, port, "imported", 0).fill(buffer.subspan(0, 0), 0)
    return BufferView(buffer, dtype, shape)


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    kind = _KINDS.get(tensor.code)
    if kind is None or tensor.lanes != 1:
        raise UnsupportedError(
            f"from_dlpack: the type with DLPack code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes has no"
            " NumPy dtype: view it as integers of that size first"
        )
    return np.dtype(f"{kind}{tensor.bits // 8}") if kind != "b" else np.dtype(bool)


def _refuse_gaps(tensor: _Tensor, shape: tuple[int, ...]) -> None:
    if not tensor.strides:
        return
    expected = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] != 1 and tensor.strides[axis] != expected:
            raise UnsupportedError("from_dlpack: the array is not contiguous in C order: make it so first")
        expected *= shape[axis]
