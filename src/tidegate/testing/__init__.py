"""For tests: of programs that use Tidegate, and of Tidegate and its drivers themselves."""

from __future__ import annotations

import threading

from .._core.device import Device
from .._core.registry import register_driver
from ..errors import DeadlineExceededError, DeviceLostError
from .manual import ManualDevice, ManualPiece

__all__ = [
    "Latch",
    "ManualDevice",
    "ManualPiece",
    "lose_device",
    "register_cuda_simulated",
    "register_metal_simulated",
    "register_streams",
]


def lose_device(device: Device, error: BaseException | None = None) -> None:
    """Have a device be lost, as if its driver had reported it (M36)."""
    device._lose(error or DeviceLostError(f"{device.describe()} is lost: a test asked for it"))


def register_streams() -> None:
    """Make the driver `streams` known: in-order streams, epochs and promises, on the CPU."""
    register_driver("streams", "tidegate.testing.streams:driver")


def register_cuda_simulated() -> None:
    """Make the driver `cuda-simulated` known: the CUDA driver over a native layer that needs no GPU."""
    register_driver("cuda-simulated", "tidegate.testing.cuda_simulated:driver")


def register_metal_simulated() -> None:
    """Make the driver `metal-simulated` known: the Metal driver over a simulated Metal that needs no Mac."""
    register_driver("metal-simulated", "tidegate.testing.metal_device:driver")


class Latch:
    """A gate for one thread or more: they arrive and wait, the test opens."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._open = threading.Event()
        self._count = 0

    @property
    def arrived(self) -> int:
        """How many have come so far."""
        return self._count

    def open(self) -> None:
        """Let everybody pass, those who come later too."""
        self._open.set()

    def wait(self, timeout: float = 30.0) -> None:
        """Arrive, and wait until it is open.

        Raises:
            DeadlineExceededError: it stayed shut.

        """
        self._count += 1
        self._arrived.release()
        if not self._open.wait(timeout):
            raise DeadlineExceededError(f"the latch was not opened within {timeout:g} s")

    def wait_for_arrival(self, timeout: float = 30.0) -> None:
        """Wait until somebody has arrived.

        Raises:
            DeadlineExceededError: nobody came.

        """
        if not self._arrived.acquire(timeout=timeout):
            raise DeadlineExceededError(f"nobody arrived at the latch within {timeout:g} s")
