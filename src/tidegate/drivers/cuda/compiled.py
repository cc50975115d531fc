"""The driver's C module, where it was built: see `_submit.c`. Without it Python does the same, more slowly."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tidegate._core import express
from tidegate._core.buffer import Buffer, Memory
from tidegate.driver import Barrier, Dispatch

_FORM = 5
"""What `_submit.c` must say of itself: a checkout may hold a module that was built from an older source."""


def _module() -> Any:
    if os.environ.get("TIDEGATE_PURE", "0") not in ("", "0"):
        return None
    try:
        from . import _submit  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _submit if getattr(_submit, "FORM", 0) == _FORM else None


module: Any = _module()
"""The module, or None."""

if TYPE_CHECKING or module is None:

    class StreamBase:
        """The members of a stream that the C module knows, where there is one."""

        __slots__ = ()
        handle: int
        word: int
        places: int
        parked_until: int
        lent: bool
        watchers = 0

else:
    StreamBase = module.StreamBase

_serving: list[bool] = []


def serve(stream: type, point: type, event: type) -> bool:
    """Let the express ports of this driver be used, once its classes are there. False: there is no express way."""
    if not _serving:
        if module is not None:
            module.install(stream, Buffer, Memory, Dispatch, Barrier, point, event)
        _serving.append(module is not None and express.serve(module.EXPRESS))
    return _serving[0]
