"""Kernels in Python, by name: for machines without a C++ compiler.

A function takes what a Python kernel of the CPU device takes: the workgroups, the bindings as arrays of bytes, and the
constants. Which parameters a kernel has is read from its CUDA source, as far as that is simple: pointers, numbers, and
structs of numbers.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ...drivers.cuda._nvrtc import CompilerError
from .codes import LAUNCH_FAILED
from .kernels import Arguments, Code, Parameter

PYTHON_MAGIC = b"tidegate simulated Python kernels\n"
_ENTRY = re.compile(r"__global__\s+void\s+(\w+)\s*\(([^)]*)\)")
_STRUCT = re.compile(r"struct\s+(\w+)\s*\{([^}]*)\}")
_NUMBERS = {
    "float": "f4", "double": "f8", "int": "i4", "unsigned": "u4", "unsigned int": "u4", "long long": "i8",
    "unsigned long long": "u8", "long": "i8", "unsigned long": "u8", "short": "i2", "char": "i1", "bool": "?",
}  # fmt: skip

PythonKernel = Callable[[Any, Any, tuple[Any, ...]], None]
_functions: dict[str, PythonKernel] = {}


def python_kernel(name: str, function: PythonKernel) -> None:
    """Let a function stand for every kernel of that name where nothing can be compiled."""
    _functions[name] = function


def make_python_image(source: str, architecture: str) -> bytes:
    """Return an image of the kernels of a source, all of which must be known.

    Raises:
        CompilerError: one is not, or is too intricate.

    """
    structs = {name: _fields(body) for name, body in _STRUCT.findall(source)}
    entries: dict[str, list[Any]] = {}
    for name, parameters in _ENTRY.findall(source):
        if name not in _functions:
            raise CompilerError(
                f"error: there is no C++ compiler, and kernel {name!r} has no form in Python:\n{source}"
            )
        entries[name] = [_type(text, structs) for text in parameters.split(",") if text.strip()]
    if not entries:
        raise CompilerError(f"error: no kernel in the source:\n{source}")
    return PYTHON_MAGIC + json.dumps({"architecture": architecture, "entries": entries}).encode()


def load_python_image(image: bytes, extent: Callable[[int], int]) -> dict[str, Code]:
    """Return the kernels of an image; `extent` tells how many bytes lie behind an address."""
    entries = json.loads(image[len(PYTHON_MAGIC) :])["entries"]
    return {name: _code(name, types, extent) for name, types in entries.items()}


def _code(name: str, types: list[Any], extent: Callable[[int], int]) -> Code:
    kinds = [None if one == "*" else _dtype(one) for one in types]
    parameters: list[Parameter] = []
    end = 0
    for kind in kinds:
        size, alignment = (8, 8) if kind is None else (kind.itemsize, kind.alignment)
        offset = -(-end // alignment) * alignment
        parameters.append(Parameter(offset, size, int(kind is None)))
        end = offset + size

    def run(arguments: Arguments, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int) -> int:
        bindings = [_bytes_at(address, extent(address)) for address in arguments.pointers]
        constants = tuple(
            _bytes_at(arguments.addresses[index] or 0, kind.itemsize).view(kind)[0]
            for index, kind in enumerate(kinds)
            if kind is not None
        )
        try:
            _functions[name](grid, bindings, constants)
        except Exception:
            return LAUNCH_FAILED
        return 0

    return Code(name, tuple(parameters), run)


def _bytes_at(address: int, nbytes: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _dtype(described: Any) -> np.dtype[Any]:
    fields = [tuple(field) for field in described] if isinstance(described, list) else described
    return np.dtype(fields, align=True)


def _fields(body: str) -> list[list[str]]:
    found: list[list[str]] = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        kind, _, name = declaration.rpartition(" ")
        found.append([name, _NUMBERS.get(kind.strip(), "")])
    return found


def _type(text: str, structs: dict[str, list[list[str]]]) -> Any:
    if "*" in text:
        return "*"
    words = [word for word in text.split() if word not in ("const", "struct")]
    kind = " ".join(words[:-1])
    found: Any = structs.get(kind) or _NUMBERS.get(kind)
    if not found:
        raise CompilerError(
            f"error: the type of parameter {text.strip()!r} is not in the simulation without a compiler"
        )
    return found
