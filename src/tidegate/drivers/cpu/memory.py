"""Memory of the CPU device: blocks of host memory, kept by size for reuse, within a budget (M22, M24)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidegate.driver import Storage
from tidegate.drivers.block_pool import BlockPool
from tidegate.errors import ResourceExhaustedError
from tidegate.types import MemoryKind

ALIGNMENT = 64

Block = npt.NDArray[np.uint8]


class CpuStorage(Storage):
    """A block of a pool, as long as anything refers to it."""

    __slots__ = ("__array_interface__", "_block", "_pool", "memory", "nbytes")

    _block: Block

    def __init__(self, pool: CpuPool, nbytes: int, memory: MemoryKind) -> None:
        self.nbytes = nbytes
        self.memory = memory
        self._pool = pool

    def locate(self) -> None:
        """Find the block's address: once, for it costs as much as a small transfer."""
        address = self._block.__array_interface__["data"]
        self.__array_interface__ = {"data": address, "shape": (self.nbytes,), "typestr": "|u1", "version": 3}

    def bytes(self) -> Block:
        """Return the block as the device sees it."""
        # Through __array_interface__ the array's base is this object, so that any view keeps the block from reuse.
        return np.asarray(self)

    def host(self) -> Block | None:
        return self.bytes()

    def __del__(self) -> None:
        try:
            pool, block = self._pool, self._block
        except AttributeError:
            return  # it never got a block
        pool.take_back(block, self.memory)


class WrappedStorage(Storage):
    """Host memory of somebody else."""

    __slots__ = ("_array", "memory", "nbytes")

    def __init__(self, array: Block) -> None:
        self._array = array
        self.nbytes = array.nbytes
        self.memory: MemoryKind = "shared"

    def bytes(self) -> Block:
        """Return the block as the device sees it."""
        return self._array[:]

    def host(self) -> Block:
        return self._array[:]


class CpuPool(BlockPool[Block]):
    """Blocks of host memory, with nothing but the system's allocator under the lock."""

    storage = CpuStorage

    def allocate(self, nbytes: int, memory: MemoryKind) -> CpuStorage:
        """Return storage, of a kept block where one fits.

        Raises:
            ResourceExhaustedError: the budget does not allow it, or the system has no more.

        """
        storage = self.storage(self, nbytes, memory)
        with self._lock:
            storage._block = self._take(memory, nbytes)
        storage.locate()
        return storage

    def _key(self, memory: MemoryKind, size: int) -> int:
        return size  # every kind is host memory here

    def _make(self, memory: MemoryKind, size: int, nbytes: int) -> Block:
        try:
            raw = np.empty(size + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise ResourceExhaustedError(f"cannot allocate {nbytes} bytes: the system has no more memory") from error
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + size]
