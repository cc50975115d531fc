"""The CPU driver: the reference, and the default on every machine.

Worker threads run kernels, which are Python functions over NumPy views or C compiled by the system compiler; small
built-in work runs right where it becomes ready (M34). Several queues, all concurrent: the device has no order of its
own, so it reports each submission instead of counting epochs.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from tidegate.driver import DeviceRequest, Driver, parse_size
from tidegate.drivers.cpu.device import CpuDevice
from tidegate.errors import InvalidArgumentError, NotFoundError
from tidegate.types import DeviceInfo, DriverInfo


class CpuDriver(Driver):
    """Opens the one CPU there is, as often as wanted."""

    name = "cpu"

    def describe(self) -> DriverInfo:
        return DriverInfo(self.name, available=True, devices=(self.device_info("cpu", {}),))

    def device_info(self, uri: str, details: Mapping[str, object]) -> DeviceInfo:
        """Return what is known of this machine."""
        name = platform.processor() or platform.machine() or "CPU"
        return DeviceInfo(uri, f"{name}, {os.cpu_count()} cores", self.name, _memory_bytes(), details=details)

    def open(self, request: DeviceRequest) -> CpuDevice:
        if request.path not in ("", "0"):
            raise NotFoundError(f"device {request.uri!r}: there is one CPU, number 0, not {request.path!r}")
        options = dict(request.options)
        workers = _count(request.uri, options.pop("workers", None))
        budget = parse_size(request.uri, options.pop("memory", None))
        if options:
            raise InvalidArgumentError(
                f"device {request.uri!r}: unknown option {next(iter(options))!r}; the known ones are workers, memory"
            )
        return self.make_device(self.device_info(request.uri, {"workers": workers}), workers, budget)

    def make_device(self, info: DeviceInfo, workers: int, budget: int | None) -> CpuDevice:
        """Return the device; for drivers that differ in a detail."""
        return CpuDevice(info, workers, budget)


def _count(uri: str, text: str | None) -> int:
    if text is None:
        return max(1, os.cpu_count() or 1)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise InvalidArgumentError(f"device {uri!r}: workers is {text!r}, and must be a number in 1..1024")
    return int(text)


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


driver = CpuDriver()
