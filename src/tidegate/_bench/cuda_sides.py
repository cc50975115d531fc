"""The sides of the CUDA cases, and how to find out that one is not there."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .contestants import Contestants
from .model import TIDEGATE, Missing

EVENTS = "tidegate epochs=events"
ONE_CALL = "one C call"
BINDINGS = "cuda-bindings"
CORE = "cuda.core"
CUPY = "cupy"
TORCH = "torch"
IREE = "iree cuda"
FORMS = {TIDEGATE: "", EVENTS: "epochs=events"}
"""Tidegate's own forms, as options of the device."""

CUDA_SIDES = (*FORMS, ONE_CALL, BINDINGS, CORE, CUPY, TORCH, IREE)

TIMEOUT = 20.0
"""Seconds that any wait of ours may take."""


def real_device(contestants: Contestants) -> Any:
    """Return the driver's device, if that is a real one: a simulated one is nothing that others could use."""
    from ..drivers.cuda._native import Native

    device = contestants.device._driver
    if not isinstance(getattr(device, "native", None), Native):
        raise Missing("not on a simulated device")
    return device


def imported(module: str, package: str) -> Any:
    """Return a module of somebody else."""
    try:
        return import_module(module)
    except ImportError as error:
        raise Missing(f"not installed: {package}") from error


def iree_device(contestants: Contestants) -> Any:
    """Return IREE's device on the same card."""
    real_device(contestants)
    try:
        return contestants.iree(IREE)
    except RuntimeError as error:
        raise Missing(f"cannot start: {str(error).splitlines()[0]}") from error


def cuda_core() -> Any:
    """Return cuda.core, wherever its version has its names."""
    core = imported("cuda.core", "cuda-core")
    return core if hasattr(core, "launch") else imported("cuda.core.experimental", "cuda-core")
