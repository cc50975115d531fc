"""What Metal Shading Language source tells of its kernels: how many buffers, and the types of the constants.

The calling convention is positional: pointers at `[[buffer(0)]]` and up, then `constant T &` at the indices that
follow. A kernel that does it otherwise, or with types that are not plain numbers, is loaded all the same; its calls are
then not checked.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

Arguments = tuple[int | None, tuple[np.dtype[Any], ...] | None]
"""How many bindings, and the types of the constants; None for what the source does not tell."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HEAD = re.compile(r"\bkernel\s+void\s+(\w+)\s*\(|\[\[\s*kernel\s*\]\]\s*void\s+(\w+)\s*\(")
_INDEX = re.compile(r"\[\[\s*buffer\s*\(\s*(\d+)\s*\)\s*\]\]")
_ATTRIBUTE = re.compile(r"\[\[.*?\]\]")
_SCALARS = {
    "bool": np.bool_,
    "char": np.int8,
    "uchar": np.uint8,
    "short": np.int16,
    "ushort": np.uint16,
    "int": np.int32,
    "uint": np.uint32,
    "long": np.int64,
    "ulong": np.uint64,
    "half": np.float16,
    "float": np.float32,
    "int8_t": np.int8,
    "uint8_t": np.uint8,
    "int16_t": np.int16,
    "uint16_t": np.uint16,
    "int32_t": np.int32,
    "uint32_t": np.uint32,
    "int64_t": np.int64,
    "uint64_t": np.uint64,
}


def reflect(source: str) -> dict[str, Arguments]:
    """Return what can be told of each kernel, by name."""
    text = _COMMENT.sub(" ", source)
    found: dict[str, Arguments] = {}
    for head in _HEAD.finditer(text):
        end = _closing(text, head.end())
        if end is not None:
            found[head.group(1) or head.group(2)] = _arguments(_split(text[head.end() : end]))
    return found


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None


def _split(parameters: str) -> list[str]:
    """Cut a parameter list at the commas that stand inside no bracket."""
    parts, depth = [""], 0
    for letter in parameters:
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _arguments(parameters: list[str]) -> Arguments:
    pointers: list[int] = []
    values: dict[int, np.dtype[Any] | None] = {}
    for parameter in parameters:
        index = _INDEX.search(parameter)
        words = _ATTRIBUTE.sub(" ", parameter)
        if index is None:
            if re.match(r"\s*(const\s+)?(device|constant)\b", words):
                return None, None  # numbered by the compiler
            continue
        if "*" in words:
            pointers.append(int(index.group(1)))
        else:
            values[int(index.group(1))] = _scalar(words)
    order = list(range(len(pointers) + len(values)))
    if sorted(pointers) + sorted(values) != order:
        return None, None
    kinds = [values[position] for position in sorted(values)]
    if any(kind is None for kind in kinds):
        return len(pointers), None
    return len(pointers), tuple(kind for kind in kinds if kind is not None)


def _scalar(words: str) -> np.dtype[Any] | None:
    names = [word for word in re.findall(r"\w+", words) if word not in ("constant", "const", "device")]
    kind = _SCALARS.get(names[0]) if len(names) == 2 and "&" in words else None
    return None if kind is None else np.dtype(kind)
