"""Blocks kept by size for reuse, within a budget: what the pools of several drivers have in common (M22, M24).

The driver's pool makes the blocks and the storages over them; here they are counted, kept and handed out again.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, Protocol, TypeVar

from tidegate.driver import DriverPool, Sink
from tidegate.errors import InvalidArgumentError, ResourceExhaustedError
from tidegate.types import MemoryKind

_STEP = 64
"""The sizes of blocks are multiples of this."""
_SMALLEST = 256


class Sized(Protocol):
    """A block: it knows its bytes."""

    @property
    def size(self) -> int:
        """How many bytes it has, as `size_class` said."""


B = TypeVar("B", bound=Sized)


class BlockPool(DriverPool, Generic[B]):
    """Blocks by kind and size class. Thread safe; nothing but list arithmetic and `_make` under its lock.

    Finalizers of storages only append to `_returned`, which every other call empties first.

    Args:
        budget: the most bytes it may hold, handed out and kept together; None is no limit.
        keep: the most bytes it keeps for reuse; None is no limit.

    """

    def __init__(self, budget: int | None, keep: int | None = None) -> None:
        if budget is not None and budget < 0:
            raise InvalidArgumentError(f"pool: the budget is {budget}, and must be 0 or more bytes")
        self._budget = budget
        self._keep = keep
        self._lock = threading.RLock()  # a finalizer may allocate in the middle of an allocation; every step holds
        self._free: dict[Hashable, list[B]] = {}
        self._returned: deque[tuple[B | None, int, MemoryKind]] = deque()
        self._closed = False
        self._allocated = 0
        self._pooled = 0
        self._peak = 0
        self._allocations = 0
        self._reuses = 0
        self.sink: Sink | None = None

    @abstractmethod
    def _make(self, memory: MemoryKind, size: int, nbytes: int) -> B:
        """Return a new block of `size` bytes for the `nbytes` that were asked for. Under the lock.

        Raises:
            ResourceExhaustedError: there is no more.

        """

    def _key(self, memory: MemoryKind, size: int) -> Hashable:
        """Return what blocks have in common that can serve for one another."""
        return memory, size

    def take_back(self, block: B, memory: MemoryKind) -> None:
        """Note a block that nobody refers to any more. Called by finalizers."""
        # A closed pool has no use for it, and nobody may ever come to collect it.
        self._returned.append((None if self._closed else block, block.size, memory))
        if self.sink is not None:
            self.sink.room()

    def _take(self, memory: MemoryKind, nbytes: int) -> B:
        """Hand out a block, a kept one where one fits. Under the lock; to be stored at once where its storage keeps it.

        Raises:
            ResourceExhaustedError: the budget does not allow it, or there is no more.

        """
        size = size_class(nbytes)
        self._collect()
        block = self._reuse(memory, size)
        if block is None:
            self._make_room(size, nbytes)
            block = self._make(memory, size, nbytes)
        # From here to the caller's store there is no call: an interrupt finds the block counted and kept, or neither.
        self._allocated += size
        self._allocations += 1
        if self._allocated > self._peak:
            self._peak = self._allocated
        return block

    def _reuse(self, memory: MemoryKind, size: int) -> B | None:
        kept = self._free.get(self._key(memory, size))
        if not kept:
            return None
        self._pooled -= size
        self._reuses += 1
        return kept.pop()

    def _make_room(self, size: int, nbytes: int) -> None:
        budget = self._budget
        if budget is not None and self._allocated + self._pooled + size > budget:
            self._drop_kept()
            if self._allocated + size > budget:
                raise ResourceExhaustedError(
                    f"cannot allocate {nbytes} bytes: {self._allocated} of a budget of {budget} are in use",
                    nbytes=nbytes,
                    budget=budget,
                )

    def _collect(self) -> None:
        while self._returned:
            # Without a call: an interrupt comes before all of it or after.
            entry = self._returned[0]
            del self._returned[0]
            block, size, memory = entry
            self._allocated -= size
            if block is not None and (self._keep is None or self._pooled + size <= self._keep):
                self._pooled += size
                self._free.setdefault(self._key(memory, size), []).append(block)

    def _drop_kept(self) -> None:
        self._free.clear()
        self._pooled = 0

    def trim(self) -> None:
        with self._lock:
            self._collect()
            self._drop_kept()

    def close(self) -> None:
        """Give back what is kept. What is still in use goes when nobody refers to it any more."""
        self._closed = True
        self.trim()

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
    step = max(_STEP, 1 << (nbytes.bit_length() - 4))
    return -(-nbytes // step) * step
