"""Kernels as the simulation knows them, the images they travel in, and how they run.

An image ("cubin") is a header in JSON and a shared library of this machine. Libraries stay loaded for the life of the
process, once each: what a kernel of an unloaded library would do is undefined anyway, and nothing is to crash for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any

from .codes import INVALID_IMAGE, INVALID_VALUE, NO_BINARY_FOR_GPU, Refusal

MAGIC = b"tidegate simulated cubin\n"
ARCHITECTURE = "sm_90"

Runner = Callable[["Arguments", tuple[int, int, int], tuple[int, int, int], int], int]


@dataclass(frozen=True)
class Parameter:
    """Where a kernel's parameter lies, and what it must be a multiple of if it is an address, else 0."""

    offset: int
    size: int
    pointer: int


class Arguments:
    """A copy of a kernel's arguments, taken at the call."""

    def __init__(self, parameters: Sequence[Parameter], params: int) -> None:
        if parameters and not params:
            raise Refusal(INVALID_VALUE)
        size = max((parameter.offset + parameter.size for parameter in parameters), default=0)
        self._data = ctypes.create_string_buffer(size + 16)
        base = -(-ctypes.addressof(self._data) // 16) * 16
        self.addresses = (c_void_p * (len(parameters) + 1))()
        self.pointers: list[int] = []
        self.misaligned = False
        given = (c_void_p * len(parameters)).from_address(params) if parameters else ()
        for index, parameter in enumerate(parameters):
            place = base + parameter.offset
            ctypes.memmove(place, given[index] or 0, parameter.size)
            self.addresses[index] = place
            if parameter.pointer:
                address = c_void_p.from_address(place).value or 0
                self.pointers.append(address)
                self.misaligned = self.misaligned or bool(address % parameter.pointer)


@dataclass(frozen=True)
class Code:
    """One kernel: what it takes, and how it runs. Running returns 0 or the code of a fault."""

    name: str
    parameters: tuple[Parameter, ...]
    run: Runner
    max_threads: int = 1024
    shared: int = 0


known: dict[str, Code] = {}
"""Kernels that were compiled or loaded so far, by name: what PTX can be run as."""


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_void_p),
        ("params", c_void_p),
        ("own", c_void_p * 5),
    )


class _Parameter(ctypes.Structure):
    _fields_ = (("size", c_uint), ("alignment", c_uint), ("pointer", c_uint))


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("function", c_void_p),
        ("run", c_void_p),
        ("count", c_uint),
        ("parameters", ctypes.POINTER(_Parameter)),
    )


def make_image(architecture: str, limits: dict[str, tuple[int, int]], library: bytes) -> bytes:
    """Return an image that `load_image` takes; `limits`: threads and bytes of static shared memory by kernel."""
    head = json.dumps({"architecture": architecture, "limits": limits}).encode()
    return MAGIC + head + b"\n" + library


def load_image(image: bytes) -> dict[str, Code]:
    """Return the kernels of an image by name."""
    if not image.startswith(MAGIC):
        raise Refusal(INVALID_IMAGE)
    head, _, library = image[len(MAGIC) :].partition(b"\n")
    about = json.loads(head)
    if about["architecture"] != ARCHITECTURE:
        raise Refusal(NO_BINARY_FOR_GPU)
    found = _kernels(hashlib.sha256(library).hexdigest(), library)
    limits: dict[str, tuple[int, int]] = about["limits"]
    return {
        name: Code(name, parameters, _runner(run), *limits.get(name, (1024, 0)))
        for name, (parameters, run) in found.items()
    }


_loaded: dict[str, dict[str, tuple[tuple[Parameter, ...], int]]] = {}


def _kernels(digest: str, library: bytes) -> dict[str, tuple[tuple[Parameter, ...], int]]:
    if digest not in _loaded:
        loaded = _open(library)
        loaded.tidegate_name.restype = c_char_p
        count = c_uint.in_dll(loaded, "tidegate_kernel_count").value
        table = (_Kernel * count).in_dll(loaded, "tidegate_kernels")
        _guarded(loaded)
        _loaded[digest] = {
            loaded.tidegate_name(index).decode(): (_parameters(kernel), kernel.run)
            for index, kernel in enumerate(table)
        }
    return _loaded[digest]


def _parameters(kernel: _Kernel) -> tuple[Parameter, ...]:
    found: list[Parameter] = []
    end = 0
    for index in range(kernel.count):
        one = kernel.parameters[index]
        offset = -(-end // one.alignment) * one.alignment
        found.append(Parameter(offset, one.size, one.pointer))
        end = offset + one.size
    return tuple(found)


def _open(library: bytes) -> Any:
    """Load a library that is only in memory."""
    with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
        file.write(library)
    try:
        return ctypes.CDLL(file.name)
    finally:
        os.unlink(file.name)


_guard: Any = None


def _guarded(loaded: Any) -> None:
    """Take the first library's way of catching faults, for all."""
    global _guard  # noqa: PLW0603
    if _guard is None:
        loaded.tidegate_catch_signals()
        loaded.tidegate_guarded.argtypes = (c_void_p, c_void_p)
        loaded.tidegate_guarded.restype = c_int
        _guard = loaded.tidegate_guarded


def _runner(run: int) -> Runner:
    def run_it(arguments: Arguments, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int) -> int:
        scratch = ctypes.create_string_buffer(shared + 128)
        aligned = -(-ctypes.addressof(scratch) // 128) * 128
        launch = _Launch(grid, block, aligned, ctypes.addressof(arguments.addresses))
        return int(_guard(run, ctypes.addressof(launch)))

    return run_it
