"""Memory of a Metal device: buffers in three storage modes, kept by size for reuse, within a budget (M22 to M25).

"device" is private storage, "host" shared and write-combined, "shared" shared and cached. A storage lives by Python's
reference count: whatever was given to the GPU holds it until its command buffer is over, so a block that comes back is
a block that no GPU work uses. Everything is hazard-tracked, so that Metal orders what follows in one queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tidegate.driver import Storage
from tidegate.drivers.block_pool import BlockPool
from tidegate.drivers.metal import _native
from tidegate.drivers.metal._native import Object
from tidegate.drivers.metal.heaps import Heaps
from tidegate.errors import ResourceExhaustedError, UnsupportedError
from tidegate.types import MemoryKind

if TYPE_CHECKING:
    from tidegate.drivers.metal.device import MetalDevice

Bytes = npt.NDArray[np.uint8]

OPTIONS: Mapping[MemoryKind, int] = {
    "device": _native.MTLResourceStorageModePrivate | _native.MTLResourceHazardTrackingModeTracked,
    "host": _native.MTLResourceStorageModeShared | _native.MTLResourceCPUCacheModeWriteCombined,
    "shared": _native.MTLResourceStorageModeShared,
}
PAGE = 16 * 1024
"""A page of Apple's processors; Intel's are smaller, and divide it."""


class Block:
    """A buffer of Metal's, and where the host sees it."""

    __slots__ = ("address", "buffer", "memory", "size")

    def __init__(self, buffer: Object, size: int, memory: MemoryKind) -> None:
        self.buffer = buffer
        self.size = size
        self.memory: MemoryKind = memory
        self.address: int | None = None
        if memory != "device":
            self.address = np.frombuffer(_native.contents(buffer, size), np.uint8).ctypes.data


class MetalStorage(Storage):
    """Memory that the GPU can use: `buffer`, from its first byte on."""

    __slots__ = ("__array_interface__", "buffer", "memory", "nbytes")

    def __init__(self, buffer: Object, nbytes: int, memory: MemoryKind, address: int | None) -> None:
        self.buffer = buffer
        self.nbytes = nbytes
        self.memory = memory
        if address is not None:
            self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def host(self) -> Bytes | None:
        # Through __array_interface__ the array's base is this object, so that any view keeps the block from reuse.
        return None if self.memory == "device" else np.asarray(self)


class PooledStorage(MetalStorage):
    """A block of a pool, as long as anything refers to it."""

    __slots__ = ("_block", "_pool")

    _block: Block

    def __init__(self, pool: MetalPool) -> None:
        self._pool = pool  # the rest follows with the block

    def locate(self, nbytes: int) -> None:
        """Take over what the block is."""
        block = self._block
        super().__init__(block.buffer, nbytes, block.memory, block.address)

    def __del__(self) -> None:
        try:
            pool, block = self._pool, self._block
        except AttributeError:
            return  # it never got a block
        pool.take_back(block, block.memory)


class ImportedStorage(MetalStorage):
    """Whole pages of somebody else's host memory; keeps the array."""

    __slots__ = ("_array",)

    def __init__(self, buffer: Object, array: Bytes) -> None:
        super().__init__(buffer, array.nbytes, "shared", array.ctypes.data)
        self._array = array


def import_array(device: MetalDevice, array: Bytes) -> ImportedStorage:
    """Return storage over an array without a copy.

    Raises:
        UnsupportedError: the array is not whole pages, or Metal does not take it.

    """
    address = array.ctypes.data
    if address % PAGE or array.nbytes % PAGE or array.nbytes == 0 or not array.flags.writeable:
        raise UnsupportedError(
            f"device {device.info.uri!r} uses host memory without a copy only where it is writable whole pages of"
            f" {PAGE} bytes: this array has {array.nbytes} bytes at {address:#x}"
        )
    with device.native.autorelease_pool():
        buffer = _native.import_memory(device.handle, array, array.nbytes)
        # PyObjC might have passed a copy on: then the buffer would not be this memory.
        if buffer is None or Block(buffer, array.nbytes, "shared").address != address:
            raise UnsupportedError(f"device {device.info.uri!r}: Metal does not take the memory at {address:#x}")
    return ImportedStorage(buffer, array)


class MetalPool(BlockPool[Block]):
    """Buffers of Metal's by kind and size class.

    Args:
        device: whose memory it is.
        budget: the most bytes it may hold, handed out and kept together; None is no limit.
        keep: the most bytes it keeps for reuse; None is no limit.

    """

    def __init__(self, device: MetalDevice, budget: int | None, keep: int | None = None) -> None:
        super().__init__(budget, keep)
        self._native = device.native
        self._handle = device.handle
        self._largest = device.max_buffer_bytes
        self._heaps = Heaps(device.native, device.handle, OPTIONS["device"], budget)

    def allocate(self, nbytes: int, memory: MemoryKind) -> PooledStorage:
        """Return storage, of a kept block where one fits.

        Raises:
            ResourceExhaustedError: the budget does not allow it, or Metal has no more.

        """
        storage = PooledStorage(self)
        with self._lock, self._native.autorelease_pool():
            storage._block = self._take(memory, nbytes)
        storage.locate(nbytes)
        return storage

    def _make(self, memory: MemoryKind, size: int, nbytes: int) -> Block:
        if size > self._largest:
            raise ResourceExhaustedError(
                f"cannot allocate {nbytes} bytes: Metal's buffers have at most {self._largest} here", nbytes=nbytes
            )
        buffer = self._new_buffer(memory, size)
        if buffer is None:
            self._drop_kept()
            buffer = self._new_buffer(memory, size)
        if buffer is None:
            raise ResourceExhaustedError(f"cannot allocate {nbytes} bytes: Metal has no more memory", nbytes=nbytes)
        return Block(buffer, size, memory)

    def _new_buffer(self, memory: MemoryKind, size: int) -> Object | None:
        if memory == "device":
            return self._heaps.new_buffer(size)
        return _native.new_buffer(self._handle, size, OPTIONS[memory])

    def _drop_kept(self) -> None:
        super()._drop_kept()
        self._heaps.trim()

    def trim(self) -> None:
        with self._lock, self._native.autorelease_pool():
            super().trim()

    def close(self) -> None:
        with self._lock, self._native.autorelease_pool():
            super().close()
            self._heaps.close()

    def statistics(self) -> Mapping[str, int | None]:
        with self._lock, self._native.autorelease_pool():
            return super().statistics()
