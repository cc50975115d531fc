"""Calls into which no signal handler can come, as none can run in the middle of a function written in C.

On the main thread signals are blocked while the call runs. Unblocking them from Python would run the handlers inside
this frame, and what they raise would take the place of the result; but a result of C code is there before anybody looks
for signals. So the last step leaves the unblocking to a pending call of the interpreter's, `sigrelse` itself: it runs
in the check behind that step, handlers run in the next check, and that is in the caller's frame.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["uninterrupted"]

_MAIN = threading.main_thread().ident


class _State:
    """Whether the main thread is inside a foreign call."""

    inside = False


def _find() -> tuple[Any, Any]:
    """Return the interpreter's function that takes pending calls, and the address of `sigrelse`."""
    add = ctypes.pythonapi.Py_AddPendingCall
    add.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return add, ctypes.cast(ctypes.CDLL(None).sigrelse, ctypes.c_void_p).value


_SIGNALS: tuple[int, ...] = tuple(
    int(getattr(signal, name)) for name in ("SIGUSR1", "SIGINT") if hasattr(signal, "pthread_sigmask")
)
_block: Any = getattr(signal, "pthread_sigmask", None)
_add_pending: Any
_add_pending, _sigrelse = _find() if _SIGNALS else (None, None)
_RELEASES = (_sigrelse,) * len(_SIGNALS)


def uninterrupted(function: Callable[..., Any], target: object, values: tuple[Any, ...]) -> Any:
    """Call a function as if it were written in C.

    Whoever calls this returns the result at once, and calls it without a star: `f(*values)` looks for signals.
    """
    if threading.get_ident() != _MAIN or _State.inside or not _SIGNALS:
        return function(target, *values)
    try:
        _State.inside = True
        _block(signal.SIG_BLOCK, _SIGNALS)
        return function(target, *values)
    finally:
        _State.inside = False
        # One call of C's, and the last: see the head. If there is no room for pending calls it has to be done here.
        if any(map(_add_pending, _RELEASES, _SIGNALS)):
            _block(signal.SIG_UNBLOCK, _SIGNALS)
