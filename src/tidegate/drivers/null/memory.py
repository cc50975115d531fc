"""Memory: a storage per allocation, and the pool it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.driver import DriverPool, Storage
from tidegate.types import MemoryKind


class NullStorage(Storage):
    """Memory with a size and no bytes. Yours holds an address, and notes itself to its pool when it is collected."""

    __slots__ = ("memory", "nbytes")

    def __init__(self, pool: DriverPool | None, nbytes: int, memory: MemoryKind) -> None:
        self.nbytes = nbytes
        self.memory = memory


class NullPool(DriverPool):
    """Keeps nothing for reuse, so there is nothing to count."""

    def __init__(self, budget: int | None) -> None:
        self._budget = budget

    def statistics(self) -> Mapping[str, int | None]:
        return {
            "allocated_bytes": 0,
            "pooled_bytes": 0,
            "peak_bytes": 0,
            "budget_bytes": self._budget,
            "allocations": 0,
            "reuses": 0,
        }

    def trim(self) -> None:
        """Nothing is kept."""
