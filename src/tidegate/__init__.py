"""Tidegate: timelines for asynchronous accelerator programs.

The everyday names; `tidegate.lowlevel` is for experts, `tidegate.testing` for tests, `tidegate.driver` for those who
write a driver. The layers, each importing only what stands before it:

    errors, types   what is raised, and plain values
    driver          the seam: what a driver provides
    _core           what every driver shares: timelines, submissions, memory, recording
    drivers         cpu, null; loaded when first named
    testing         faulty drivers, an in-order device, latches
    conformance     the suite that every driver passes
    cli             the command line
"""

from . import lowlevel
from ._core import wiring as _wiring  # noqa: F401 - joins the compiled core with what stands above it
from ._core.awaiting import when_all, when_any
from ._core.buffer import Buffer
from ._core.compiled import Semaphore, Submission, Subscription, Timepoint, wait_all, wait_any
from ._core.device import Device
from ._core.explain import explain
from ._core.kernel import Executable, Function, Kernel
from ._core.lane import Lane
from ._core.pool import Pool
from ._core.queue import Queue
from ._core.recording import CommandBuffer, Node
from ._core.registry import list_devices, list_drivers, open_device
from ._core.view import BufferView, from_dlpack, pinned_empty
from .errors import (
    AbortedError,
    ClosedError,
    CompileError,
    DeadlineExceededError,
    DeviceLostError,
    DriverUnavailableError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    ResourceExhaustedError,
    SemaphoreFailedError,
    TidegateError,
    UnsupportedError,
    ValidationError,
)
from .types import Compatibility, DeviceInfo, DriverInfo, Health, Limits, Outcome, Slot, Statistics, slot

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "Buffer",
    "BufferView",
    "ClosedError",
    "CommandBuffer",
    "Compatibility",
    "CompileError",
    "DeadlineExceededError",
    "Device",
    "DeviceInfo",
    "DeviceLostError",
    "DriverInfo",
    "DriverUnavailableError",
    "Executable",
    "FailedPreconditionError",
    "Function",
    "Health",
    "InternalError",
    "InvalidArgumentError",
    "Kernel",
    "Lane",
    "Limits",
    "Node",
    "NotFoundError",
    "OutOfRangeError",
    "Outcome",
    "Pool",
    "Queue",
    "ResourceExhaustedError",
    "Semaphore",
    "SemaphoreFailedError",
    "Slot",
    "Statistics",
    "Submission",
    "Subscription",
    "TidegateError",
    "Timepoint",
    "UnsupportedError",
    "ValidationError",
    "__version__",
    "explain",
    "from_dlpack",
    "list_devices",
    "list_drivers",
    "lowlevel",
    "open_device",
    "pinned_empty",
    "slot",
    "wait_all",
    "wait_any",
    "when_all",
    "when_any",
]
