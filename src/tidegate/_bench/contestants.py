"""Who takes part: Tidegate's device, IREE's devices, and how to make a semaphore of each.

IREE's devices are made on first use. What is not installed is `Missing`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from .model import STANDARD, SYNC, TASK, TIDEGATE, Missing
from .standard import ConditionTimeline


class Contestants:
    """The devices of one run of the benchmarks.

    Args:
        uri: which Tidegate device.

    Attributes:
        device: that device.
        notes: what a reader should know of a side, by its name.

    """

    def __init__(self, uri: str | None = None) -> None:
        import tidegate as tg

        self.device = tg.open_device(uri)
        self.notes: dict[str, str] = {}
        self._devices: dict[str, Any] = {}
        self._forms: dict[str, Any] = {"": self.device}
        self._stack = ExitStack()
        self._stack.enter_context(self.device)

    def __enter__(self) -> Contestants:
        return self

    def __exit__(self, *_error: object) -> None:
        self._devices.clear()
        self._stack.close()

    def form(self, options: str) -> Any:
        """Return Tidegate's device with more options, made on first use."""
        if options not in self._forms:
            import tidegate as tg

            uri = self.device.info.uri
            device = tg.open_device(f"{uri}{'&' if '?' in uri else '?'}{options}")
            self._forms[options] = self._stack.enter_context(device)
        return self._forms[options]

    def iree(self, side: str) -> Any:
        """Return IREE's device for a side, one per driver."""
        if side not in self._devices:
            driver = side.removeprefix("iree ")
            self._devices[side] = iree_runtime().get_driver(driver).create_default_device()
        return self._devices[side]

    def semaphores(self, side: str) -> Callable[[], Any]:
        """Return what makes a semaphore with `query`, `signal` and `wait`."""
        if side == TIDEGATE:
            import tidegate as tg

            return tg.Semaphore
        if side == STANDARD:
            return ConditionTimeline
        create = self.iree(side).create_semaphore
        return lambda: create(0)


def iree_runtime() -> Any:
    """Return IREE's Python bindings."""
    try:
        import iree.runtime
    except ImportError as error:
        raise Missing("not installed: pip install 'tidegate[bench]'") from error
    return iree.runtime


IREE = (TASK, SYNC)
