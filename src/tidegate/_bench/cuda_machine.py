"""Which GPU a run was made on, and with which versions of everything around it."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("cuda-bindings", "cuda-core", "torch", "iree-base-runtime", "nvidia-cuda-nvrtc")
_DRIVER = Path("/proc/driver/nvidia/version")


def describe_gpu(device: Any) -> dict[str, Any]:
    """Return the card, its memory, the driver and the CUDA it brings."""
    info = device.info
    return {
        "name": info.name,
        "memory_bytes": info.memory_bytes,
        "driver": _driver_version(),
        "uri": info.uri,
        **info.details,
    }


def describe_peers() -> dict[str, str | None]:
    """Return the versions of the twins and of what compiles; None for what is not installed."""
    versions: dict[str, str | None] = dict.fromkeys((*PACKAGES, "cupy"))
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name in PACKAGES:
            versions[name] = distribution.version
        elif name == "cupy" or name.startswith("cupy-cuda"):
            versions["cupy"] = distribution.version
    versions["nvrtc"] = _nvrtc_version()
    return versions


def _driver_version() -> str | None:
    try:
        found = re.search(r"Module\D*?(\d+\.\d[\d.]*)", _DRIVER.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else _asked_driver_version()


def _asked_driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip().splitlines()[0] if answer.stdout.strip() else None


def _nvrtc_version() -> str | None:
    from ..drivers.cuda._nvrtc import Nvrtc

    try:
        return ".".join(str(part) for part in Nvrtc().version())
    except OSError:
        return None
