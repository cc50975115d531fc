"""Memory of the CPU device: blocks of host memory, kept by size for reuse, within a budget (M22, M24)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tidegate.driver import DriverPool, Sink, Storage
from tidegate.errors import InvalidArgumentError, ResourceExhaustedError
from tidegate.types import MemoryKind

ALIGNMENT = 64
_SMALLEST = 256

Block = npt.NDArray[np.uint8]


class CpuStorage(Storage):
    """A block of a pool, as long as anything refers to it."""

    __slots__ = ("__array_interface__", "_block", "_pool", "memory", "nbytes")

    def __init__(self, pool: CpuPool, block: Block, nbytes: int, memory: MemoryKind) -> None:
        self._pool = pool
        self._block = block
        self.nbytes = nbytes
        self.memory = memory
        # Made once: finding an array's address costs as much as a small transfer.
        address = block.__array_interface__["data"]
        self.__array_interface__ = {"data": address, "shape": (nbytes,), "typestr": "|u1", "version": 3}

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
            return  # interrupted in the constructor; the pool still counts the block as handed out
        pool.take_back(block)


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


class CpuPool(DriverPool):
    """Blocks by size class. Thread safe; nothing but list arithmetic and the system's allocator under its lock.

    Finalizers of storages only append to `_returned`, which every other call empties first.
    """

    storage = CpuStorage

    def __init__(self, budget: int | None) -> None:
        if budget is not None and budget < 0:
            raise InvalidArgumentError(f"pool: the budget is {budget}, and must be 0 or more bytes")
        self._budget = budget
        self._lock = threading.RLock()  # a finalizer may allocate in the middle of an allocation; every step holds
        self._free: dict[int, list[Block]] = {}
        self._returned: deque[Block] = deque()
        self._allocated = 0
        self._pooled = 0
        self._peak = 0
        self._allocations = 0
        self._reuses = 0
        self.sink: Sink | None = None

    def take_back(self, block: Block) -> None:
        """Note a block that nobody refers to any more. Called by finalizers."""
        self._returned.append(block)
        if self.sink is not None:
            self.sink.room()

    def allocate(self, nbytes: int, memory: MemoryKind) -> CpuStorage:
        """Return storage, of a kept block where one fits.

        Raises:
            ResourceExhaustedError: the budget does not allow it, or the system has no more.

        """
        size = size_class(nbytes)
        with self._lock:
            self._collect()
            block = self._reuse(size)
            if block is None:
                block = self._fresh(size, nbytes)
            self._allocated += size
            self._allocations += 1
            self._peak = max(self._peak, self._allocated)
        return self.storage(self, block, nbytes, memory)

    def _reuse(self, size: int) -> Block | None:
        kept = self._free.get(size)
        if not kept:
            return None
        self._pooled -= size
        self._reuses += 1
        return kept.pop()

    def _fresh(self, size: int, nbytes: int) -> Block:
        budget = self._budget
        if budget is not None and self._allocated + self._pooled + size > budget:
            self._drop_kept()
            if self._allocated + size > budget:
                raise ResourceExhaustedError(
                    f"cannot allocate {nbytes} bytes: {self._allocated} of a budget of {budget} are in use",
                    nbytes=nbytes,
                    budget=budget,
                )
        try:
            raw = np.empty(size + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise ResourceExhaustedError(f"cannot allocate {nbytes} bytes: the system has no more memory") from error
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + size]

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._allocated -= block.nbytes
            self._pooled += block.nbytes
            self._free.setdefault(block.nbytes, []).append(block)

    def _drop_kept(self) -> None:
        self._free.clear()
        self._pooled = 0

    def trim(self) -> None:
        with self._lock:
            self._collect()
            self._drop_kept()

    def statistics(self) -> Mapping[str, int | None]:
        with self._lock:
            self._collect()
            return {
                "allocated_bytes": self._allocated,
                "pooled_bytes": self._pooled,
                "peak_bytes": self._peak,
                "budget_bytes": self._budget,
                "allocations": self._allocations,
                "reuses": self._reuses,
            }


def size_class(nbytes: int) -> int:
    """Return the size of the block that serves `nbytes`: at most an eighth more, so that similar sizes share."""
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = max(ALIGNMENT, 1 << (nbytes.bit_length() - 4))
    return -(-nbytes // step) * step
