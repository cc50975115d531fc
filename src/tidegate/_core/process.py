"""Which process an object was made in, so that a forked child can refuse what belongs to its parent (M37).

Every object made in one process shares one `Process`; after a fork the child marks that object and takes a new one.
To look is an attribute read, and no list of objects has to be kept. Compiled objects have the number of forks instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ..errors import FailedPreconditionError


class Process:
    """One operating system process, as the objects made in it see it."""

    __slots__ = ("exiting", "forked")

    def __init__(self) -> None:
        self.forked = False
        self.exiting = False


here = Process()
_child_hooks: list[Callable[[], None]] = []


def in_child(hook: Callable[[], None]) -> None:
    """Have `hook` run in every forked child, after `here` has been renewed."""
    _child_hooks.append(hook)


def refuse_forked(process: Process, what: str) -> None:
    """Raise FailedPreconditionError if `what` was made before this process was forked."""
    if process.forked:
        raise FailedPreconditionError(f"{what} was made before this process was forked: make a new one in the child")


def _after_fork() -> None:
    global here  # noqa: PLW0603 - the one place where they change
    here.forked = True
    here = Process()
    for hook in _child_hooks:
        hook()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
