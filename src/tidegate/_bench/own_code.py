"""Gives a measuring loop code of its own.

CPython specializes the instructions of a code object for what it sees there. Sides that take turns in one loop would
spoil each other's: a call that meets methods written in C and in Python by turns is specialized for neither, and no
program looks like that.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

Loop = TypeVar("Loop", bound=Callable[..., Any])


def own_code(loop: Loop) -> Loop:
    """Return the same function over a fresh copy of its code."""
    original = cast(FunctionType, loop)
    copy = FunctionType(
        original.__code__.replace(),
        original.__globals__,
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    copy.__kwdefaults__ = original.__kwdefaults__
    return cast(Loop, copy)
