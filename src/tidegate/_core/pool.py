"""Pools of device memory: kept for reuse, with a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidArgumentError
from ..types import Statistics
from .compiled import call_driver

if TYPE_CHECKING:
    from ..driver import DriverPool
    from .device import Device


class Pool:
    """Memory with a budget of its own, for `queue.allocate(pool=...)`. Made by `device.create_pool`."""

    def __init__(self, device: Device, pool: DriverPool, label: str) -> None:
        self.device = device
        self.label = label
        self._pool = pool

    def __repr__(self) -> str:
        return f"<tidegate.Pool {self.label!r} on {self.device.describe()}>"

    def statistics(self) -> Statistics:
        """Return a snapshot of its counts."""
        self.device._poller()
        return Statistics(**memory_counts(self._pool))  # type: ignore[arg-type]

    def trim(self) -> None:
        """Give back what is kept for reuse."""
        self.device._poller()
        call_driver(self._pool.trim)

    def _checked(self, device: Device) -> DriverPool:
        if self.device is not device:
            raise InvalidArgumentError(
                f"pool {self.label!r} belongs to {self.device.describe()}, not to {device.describe()}"
            )
        return self._pool


def memory_counts(pool: DriverPool) -> dict[str, int | None]:
    """Return the memory part of `Statistics`."""
    counts = dict(call_driver(pool.statistics))
    counts["reserved_bytes"] = (counts["allocated_bytes"] or 0) + (counts["pooled_bytes"] or 0)
    return counts
