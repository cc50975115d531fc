"""Autorelease pools: what they keep until they are left, and who works without one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .rules import RULES

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["autorelease", "autorelease_pool"]


class _Pools(threading.local):
    def __init__(self) -> None:
        self.open: list[list[Any]] = []


_pools = _Pools()


class autorelease_pool:
    """What `objc.autorelease_pool()` is: objects autoreleased inside live until it is left."""

    def __enter__(self) -> None:
        _pools.open.append([])

    def __exit__(self, *exception: object) -> None:
        _pools.open.pop().clear()


def autorelease(simulation: Simulation, selector: str, value: Any) -> Any:
    """Hand `value` to the innermost pool of this thread.

    PyObjC opens a pool on the main thread when it is imported, which nobody ever leaves: objects in it leak as well.
    """
    if _pools.open:
        _pools.open[-1].append(value)
    elif value is not None:
        simulation.record(RULES["autorelease"], f"{selector} on {threading.current_thread().name}, outside every pool")
    return value
