"""Checks of arguments against Objective-C type encodings, as PyObjC converts them, but with less patience.

PyObjC takes truth for BOOL and numbers of many types for integers; here a bool is no integer and a NumPy number is no
number, because that is where mistakes hide.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Check", "check_of", "fields_of"]

Check = Callable[[Any], None]
"""Raises TypeError or ValueError for a value that does not fit."""

_RANGES = {
    "z": (-(2**7), 2**7 - 1),  # PyObjC: a plain char given as a number. 128..255 do not fit!
    "c": (-(2**7), 2**7 - 1),
    "C": (0, 2**8 - 1),
    "i": (-(2**31), 2**31 - 1),
    "I": (0, 2**32 - 1),
    "q": (-(2**63), 2**63 - 1),
    "Q": (0, 2**64 - 1),
    "P": (1, 2**64 - 1),  # a pointer without metadata: PyObjC takes the address, and no object
}


def check_of(encoding: str, metadata: Mapping[str, Any]) -> Check:
    """Return the check for one argument."""
    if encoding == "@?":
        return _block_check(metadata)
    if encoding[0] == "^":
        return _array_check(encoding[1:], metadata)
    return _value_check(encoding)


def _value_check(encoding: str) -> Check:
    if encoding in _RANGES:
        return _integer_check(encoding)
    if encoding[0] == "{":
        return _struct_check(encoding)
    return {"@": _any_object, "Z": _boolean, "f": _float, "d": _float, "#": _any_object}[encoding]


def _integer_check(encoding: str) -> Check:
    low, high = _RANGES[encoding]

    def check(value: Any) -> None:
        if type(value) is not int and not _is_enum(value):
            raise TypeError(f"{value!r} is a {type(value).__name__}, and must be an int")
        if not low <= value <= high:
            raise ValueError(f"{value!r} is outside {low}..{high}")

    return check


def _is_enum(value: Any) -> bool:
    # Enumerators of PyObjC are ints of a subclass; a bool is no number here.
    return isinstance(value, int) and not isinstance(value, bool)


def _boolean(value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is a {type(value).__name__}, and must be a bool")


def _float(value: Any) -> None:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is a {type(value).__name__}, and must be a float")


def _any_object(value: Any) -> None:
    """Which class an object must have is checked by the selector's implementation."""


def fields_of(encoding: str) -> list[str]:
    """Return the encodings of a struct's members."""
    inside = encoding[encoding.index("=") + 1 : -1]
    fields, start, depth = [], 0, 0
    for index, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            fields.append(inside[start : index + 1])
            start = index + 1
    return fields


def _struct_check(encoding: str) -> Check:
    checks = [_value_check(field) for field in fields_of(encoding)]
    name = encoding[1 : encoding.index("=")]

    def check(value: Any) -> None:
        if not isinstance(value, tuple):
            raise TypeError(f"{value!r} is a {type(value).__name__}, and must be a tuple for {name}")
        if len(value) != len(checks):
            raise ValueError(f"{value!r} has {len(value)} members, and {name} has {len(checks)}")
        for each, member in zip(checks, value, strict=True):
            each(member)

    return check


def _array_check(element: str, metadata: Mapping[str, Any]) -> Check:
    if metadata.get("type_modifier") == "o":
        return _out
    if element == "v":
        return _bytes
    each = _value_check(element)

    def check(value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{value!r} is a {type(value).__name__}, and must be a list")
        for member in value:
            each(member)

    return check


def _out(value: Any) -> None:
    if value is not None:
        raise TypeError(f"{value!r} stands for a result, and must be None")


def _bytes(value: Any) -> None:
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{value!r} is a {type(value).__name__}, and must have bytes") from None
    if not view.c_contiguous:
        raise ValueError("the bytes must be contiguous")


def length_of(value: Any) -> int:
    """Return how many elements an array argument has: bytes of memory, members of a list."""
    return len(value) if isinstance(value, list | tuple) else memoryview(value).nbytes


def _block_check(metadata: Mapping[str, Any]) -> Check:
    # The first argument of a block is the block itself, which Python does not see.
    count = len(metadata["callable"]["arguments"]) - 1

    def check(value: Any) -> None:
        if value is None:
            return
        if not callable(value):
            raise TypeError(f"{value!r} is a {type(value).__name__}, and must be callable")
        if not _takes(value, count):
            raise TypeError(f"{value!r} must take {count} arguments")

    return check


def _takes(value: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(value).bind(*([None] * count))
    except ValueError:  # a callable of C that does not tell
        return True
    except TypeError:
        return False
    return True


def array_lengths(arguments: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return (array, count) for each argument that is as long as another argument says."""
    return [
        (index, each["c_array_length_in_arg"] - 2)
        for index, each in enumerate(arguments)
        if "c_array_length_in_arg" in each and each.get("type_modifier") == "n"
    ]
