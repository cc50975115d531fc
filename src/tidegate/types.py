"""The plain values of the public interface: enums, flags and frozen descriptors."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "Compatibility",
    "DeviceInfo",
    "DriverInfo",
    "Health",
    "Limits",
    "MemoryKind",
    "Outcome",
    "Slot",
    "Statistics",
    "slot",
]

MAX_VALUE = 2**64 - 2
"""The largest payload of a semaphore (M1)."""

MemoryKind = Literal["device", "host", "shared"]
MEMORY_KINDS: tuple[MemoryKind, ...] = ("device", "host", "shared")


class Outcome(enum.Enum):
    """How a timepoint ended."""

    REACHED = "reached"
    FAILED = "failed"


class Health(enum.Enum):
    """What a device can still do."""

    OK = "ok"
    CLOSED = "closed"
    LOST = "lost"


class Compatibility(enum.Flag):
    """What a device can do with a semaphore, and by which way."""

    NONE = 0
    HOST_WAIT = enum.auto()
    HOST_SIGNAL = enum.auto()
    DEVICE_WAIT = enum.auto()
    DEVICE_SIGNAL = enum.auto()
    THROUGH_HOST = enum.auto()
    """Device waits and signals of foreign work pass through the host."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a recorded binding that `execute` fills from its table."""

    index: int


def slot(index: int) -> Slot:
    """Return a binding that `queue.execute(commands, bindings=...)` fills with entry `index` of its table.

    Raises:
        InvalidArgumentError: the index is negative.

    """
    if not isinstance(index, int):
        raise TypeError(f"slot: the index must be an int, not {type(index).__name__}")
    if index < 0:
        from .errors import InvalidArgumentError

        raise InvalidArgumentError(f"slot: the index is {index}, and must be 0 or more")
    return Slot(index)


@dataclass(frozen=True)
class Limits:
    """What a device allows. None: no limit but memory."""

    max_workgroup: tuple[int, int, int] | None = None
    max_workgroups: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    max_local_memory: int | None = None
    max_bindings: int | None = None


@dataclass(frozen=True)
class DeviceInfo:
    """What is known of a device before it is opened.

    Attributes:
        uri: what `open_device` takes.
        name: the name people know it by.
        driver: the driver's name.
        memory_bytes: how much memory it has.
        limits: what it allows.
        details: more facts, as the driver names them.

    """

    uri: str
    name: str
    driver: str
    memory_bytes: int
    limits: Limits = field(default_factory=Limits)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DriverInfo:
    """What is known of a driver.

    Attributes:
        name: as it stands in a URI.
        available: whether a device can be opened now.
        reason: in words, why not; empty if available.
        devices: the devices it found.

    """

    name: str
    available: bool
    reason: str = ""
    devices: tuple[DeviceInfo, ...] = ()


@dataclass(frozen=True)
class Statistics:
    """Counts of one device, a snapshot.

    Attributes:
        allocated_bytes: handed out to buffers now.
        pooled_bytes: kept for reuse.
        reserved_bytes: both together.
        peak_bytes: the most that was ever handed out at once.
        budget_bytes: the most the pools may reserve, or None.
        allocations: allocations so far.
        reuses: how many of them took pooled memory.
        held: submissions waiting on the host now.
        issued: submissions on the device now.
        submitted: submissions so far.
        retired: submissions over so far.

    """

    allocated_bytes: int = 0
    pooled_bytes: int = 0
    reserved_bytes: int = 0
    peak_bytes: int = 0
    budget_bytes: int | None = None
    allocations: int = 0
    reuses: int = 0
    held: int = 0
    issued: int = 0
    submitted: int = 0
    retired: int = 0
