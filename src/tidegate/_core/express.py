"""The express way: the plain case of submitting to a device that counts, and of retiring there, in C if it was built.

It is for drivers whose queues have an express port (`DriverQueue.express`). What is not the plain case, and everything
where there is no such module, goes the way of `scheduling`, `issuing` and `retirement`: both do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import process
from .fast_path import COMPILED

if TYPE_CHECKING:
    from .submission import Submission

_FORM = 1
"""What `_express.c` must say of itself: a checkout may hold a module that was built from an older source."""


def _compiled() -> Any:
    if not COMPILED:
        return None
    try:
        from . import _express  # type: ignore[attr-defined]
    except ImportError:
        return None
    return _express if _express.FORM == _FORM else None


_express = _compiled()
_ports: Any = None


def dispatch(*_: Any) -> Submission | None:
    """Make the submission of a dispatch out of what `Operations.dispatch` was given.

    None: something is not plain, or wrong; then that goes on, and says what.
    """
    return None


def submit(port: Any, submission: Submission, wait: Any, signal: Any) -> bool | None:
    """Take a submission in and issue it, if that is plain. None: it is not, and nothing has happened.

    Else it is promised, too; True says that somebody may have to be told of that.
    """
    return None


def retire(submission: Submission) -> bool:
    """Retire a submission whose epoch is over. False: it is not the plain case, and nothing has happened."""
    return False


if not TYPE_CHECKING and _express is not None:
    dispatch = _express.dispatch
    submit = _express.submit
    retire = _express.retire


def install(*classes: Any) -> None:
    """Tell the C module, if there is one, what it works on: see there."""
    if _express is not None:
        _express.install(*classes)


def serve(ports: Any) -> bool:
    """Let the express ports of a driver be used: a capsule from its C module. False: there is no express way."""
    global _ports  # noqa: PLW0603 - one driver has such ports
    if _express is None:
        return False
    _ports = ports
    _express.serve(ports)
    return True


@contextmanager
def closed() -> Iterator[None]:
    """Have everything go the long way for a while: for those who change what is on it."""
    if _express is not None:
        _express.serve(None)
    try:
        yield
    finally:
        if _express is not None:
            _express.serve(_ports)


def _close_in_child() -> None:
    """What belongs to the parent must be refused, and only the long way looks."""
    global _ports  # noqa: PLW0603 - for good, in this process
    _ports = None
    if _express is not None:
        _express.serve(None)


process.in_child(_close_in_child)
