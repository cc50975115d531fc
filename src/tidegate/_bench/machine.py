"""Where and with what a run was made. Nothing here names the machine, only its kind."""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib import metadata
from typing import Any

PACKAGES = ("tidegate", "numpy", "iree-base-runtime")


def describe_machine() -> dict[str, Any]:
    """Return the kind of processor, its number of cores, and the system."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "switch_interval": sys.getswitchinterval(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def describe_versions() -> dict[str, str | None]:
    """Return the versions of everything that took part; None for what is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


class OtherWork:
    """How much of the machine others took for the time of a `with` block.

    A side that spins or hands over between threads changes its character when a core is taken away from it, by
    factors of a hundred and not for all sides alike. So a run must be able to tell that this has happened.
    """

    cores: float | None = None
    """Cores used by other processes, on average; None where the system does not tell."""

    def __enter__(self) -> OtherWork:
        self._start = _cpu_seconds()
        return self

    def __exit__(self, *_error: object) -> None:
        end = _cpu_seconds()
        if self._start is not None and end is not None:
            elapsed, others = (after - before for before, after in zip(self._start, end, strict=True))
            self.cores = max(0.0, others / elapsed) if elapsed else None


def _cpu_seconds() -> tuple[float, float] | None:
    """Return the time now, and the processor time that was not ours so far, stolen time included."""
    try:
        with open("/proc/stat", encoding="utf-8") as lines:
            ticks = [int(field) for field in lines.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # all but idle and waiting for disks
    return time.monotonic(), busy - time.process_time()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
