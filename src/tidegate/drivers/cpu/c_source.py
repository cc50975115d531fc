"""Kernels written in C: source in, callable entry points out.

The source is compiled as one unit between the kernel header and a generated shim per entry point. A shim takes a range
of flat workgroup indices, so that a whole share of a dispatch costs one foreign call, made without the GIL. Libraries
stay loaded until the process ends: unloading code that another thread may be inside of cannot be made safe.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tidegate.drivers.cpu.c_cache import Built, key_of, open_cache
from tidegate.drivers.cpu.c_compiler import FLAGS, NATIVE, Compiler, check_options, find_compiler
from tidegate.drivers.cpu.c_reflect import SUPPORT, Entry, find_entries, write_shim
from tidegate.errors import CompileError, InvalidArgumentError, OutOfRangeError, ResourceExhaustedError

HEADER = Path(__file__).with_name("tidegate_kernel.h")

_POINTER_KIND = 6
# NumPy's letter for each kind of constant that the shim's table names; a struct has none.
_LETTERS = {1: "b", 2: "i", 3: "u", 4: "f", 5: "c"}
# Variables that change what a compiler reads or adds, beside its command line.
_COMPILER_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "SDKROOT", "GCC_EXEC_PREFIX", "COMPILER_PATH")


@dataclass(frozen=True, eq=False)
class CFunction:
    """One entry point. Any number of threads may run it at once.

    Attributes:
        name: Its name in the source.
        bindings: How many pointers it takes.
        constants: The type of each constant, or None for a struct, of which only the size is known.
        constant_sizes: The size in bytes of each constant, by the compiler's word.

    """

    name: str
    bindings: int
    constants: tuple[np.dtype[Any] | None, ...]
    constant_sizes: tuple[int, ...]
    _call: Any  # the shim, as a ctypes function

    def prepare(
        self, addresses: Sequence[int], packed_constants: Sequence[np.ndarray[Any, Any] | np.generic | bytes]
    ) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_void_p]]:
        """Return what `run` takes for these addresses and constants, for as many calls as the caller likes.

        The constants are copied; the memory at the addresses is the caller's to keep.

        Raises:
            InvalidArgumentError: The number of either, or the size of a constant, is not what the source declares.

        """
        if len(addresses) != self.bindings:
            raise InvalidArgumentError(f"{self.name} takes {self.bindings} bindings, got {len(addresses)}")
        values = [value if isinstance(value, bytes) else value.tobytes() for value in packed_constants]
        sizes = tuple(map(len, values))
        if sizes != self.constant_sizes:
            raise InvalidArgumentError(
                f"{self.name} takes constants of {list(self.constant_sizes)} bytes, got {list(sizes)} bytes"
            )
        bindings = (ctypes.c_void_p * len(addresses))(*addresses)
        storage = ctypes.create_string_buffer(b"".join(values), sum(sizes))
        constants = (ctypes.c_void_p * len(values))()
        at = ctypes.addressof(storage)
        for index, size in enumerate(sizes):
            constants[index] = at
            at += size
        constants.storage = storage  # type: ignore[attr-defined]  # lives as long as what points into it
        return bindings, constants

    def run(
        self,
        bindings: ctypes.Array[ctypes.c_void_p],
        constants: ctypes.Array[ctypes.c_void_p],
        count: tuple[int, int, int],
        size: tuple[int, int, int],
        local_bytes: int,
        begin: int,
        end: int,
    ) -> None:
        """Run the workgroups `begin` to `end - 1`, counted with x fastest, on this thread and without the GIL.

        Args:
            bindings: From `prepare`.
            constants: From `prepare`.
            count: Workgroups of the whole dispatch along x, y, z.
            size: Items per workgroup along x, y, z, for the kernel to read.
            local_bytes: Scratch memory that the workgroups of this call use one after another.
            begin: The first workgroup.
            end: One behind the last workgroup, at most the product of `count`.

        Raises:
            ResourceExhaustedError: There is no room for the scratch memory; nothing has run.

        """
        if self._call(bindings, constants, _dispatch(count, size, local_bytes), begin, end):
            raise ResourceExhaustedError(f"{self.name}: no memory for {local_bytes} bytes of local memory")


@dataclass(frozen=True, eq=False)
class CLibrary:
    """A compiled source: its entry points by name, in the order of the source, and the file they were loaded from."""

    functions: dict[str, CFunction]
    path: Path


def compile_source(source: str, *, options: Sequence[str] = (), label: str = "") -> CLibrary:
    """Compile C, or find it in the cache, and load it.

    Blocks for as long as the compiler takes. Any thread may call it.

    Args:
        source: C with at least one entry point marked `tidegate_kernel`.
        options: For the compiler, such as `-DWIDTH=8` or `-ffast-math`. They come behind the standard ones.
        label: Names the source in errors.

    Raises:
        CompileError: The source does not compile or has no entry point; `.log` is the compiler's, with line numbers of
            the source as it was given.
        InvalidArgumentError: An option is unknown.
        DriverUnavailableError: There is no C compiler; the message says what to install.

    """
    options = check_options(options)
    compiler = find_compiler()
    header = HEADER.read_text(encoding="utf-8")
    variables = json.dumps([os.environ.get(name) for name in _COMPILER_VARIABLES])
    prelude = f'{header}{SUPPORT}\n#line 1 "kernel.c"\n'
    flags = json.dumps([*FLAGS, NATIVE, *options])
    key = key_of(source, prelude, _shim_form(), flags, compiler.identity, variables)
    try:
        path, notes = open_cache().get(key, lambda scratch: _build(compiler, prelude, source, options, scratch))
        return _load(path, [Entry(name, bindings, tuple(types)) for name, bindings, types in notes])
    except CompileError as error:
        if label:
            raise CompileError(f"{label}: {error}", log=error.log) from error.__cause__
        raise


def _build(compiler: Compiler, prelude: str, source: str, options: Sequence[str], scratch: Path) -> Built:
    unit, library, dependencies = scratch / "unit.c", scratch / "unit.so", scratch / "unit.d"
    options = [*options, f"-I{HEADER.parent}"]
    text = prelude + source
    unit.write_text(text, encoding="utf-8", errors="surrogateescape")
    entries = find_entries(compiler.preprocess(unit, options))
    shims = "".join(map(write_shim, entries))
    unit.write_text(f'{text}\n#line 1 "tidegate-shim.c"\n{shims}', encoding="utf-8", errors="surrogateescape")
    compiler.build(unit, library, dependencies, options)
    _load(library, entries)  # what cannot be loaded must not be kept
    notes = [[entry.name, entry.bindings, list(entry.constants)] for entry in entries]
    return Built(library, notes, _headers(dependencies, unit))


def _headers(dependencies: Path, unit: Path) -> list[str]:
    """Read the compiler's list of the headers that are not the system's, which is a rule of a makefile."""
    text = dependencies.read_text(encoding="utf-8").replace("\\\n", " ").replace("\\ ", "\0")
    words = [word.replace("\0", " ").replace("$$", "$") for word in text.split()]
    return [os.path.abspath(word) for word in words[1:] if word != str(unit)]


def _load(path: Path, entries: Sequence[Entry]) -> CLibrary:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(f"the compiled source cannot be loaded: {error}", log=str(error)) from error
    return CLibrary({entry.name: _function(library, entry) for entry in entries}, path)


def _function(library: ctypes.CDLL, entry: Entry) -> CFunction:
    table = (ctypes.c_uint32 * (2 * len(entry.constants) + 1)).in_dll(library, f"tidegate_types_{entry.name}")
    kinds, sizes = table[:-1:2], tuple(table[1::2])
    for kind, type_name in zip(kinds, entry.constants, strict=True):
        if kind == _POINTER_KIND:
            reason = f"{entry.name}: {type_name!r} hides a pointer: write the '*' in the parameter list"
            raise CompileError(f"the C source cannot be used: {reason}", log=reason)
    constants = tuple(map(_dtype, kinds, sizes))
    call = library[f"tidegate_run_{entry.name}"]
    call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
    call.restype = ctypes.c_int
    return CFunction(entry.name, entry.bindings, constants, sizes, call)


def _dtype(kind: int, size: int) -> np.dtype[Any] | None:
    letter = _LETTERS.get(kind)
    if letter is None:
        return None
    return np.dtype(np.bool_) if letter == "b" else np.dtype(f"{letter}{size}")


@lru_cache(maxsize=256)
def _dispatch(
    count: tuple[int, int, int], size: tuple[int, int, int], local_bytes: int
) -> ctypes.Array[ctypes.c_uint32]:
    """Pack what a shim reads of its dispatch. Kept, because a dispatch is often repeated and packing is slow."""
    if not all(0 <= value < 2**32 for value in (*count, *size, local_bytes)):
        raise OutOfRangeError(f"{count} workgroups of {size} with {local_bytes} bytes: each must fit in 32 bits")
    return (ctypes.c_uint32 * 7)(*count, *size, local_bytes)


def _shim_form() -> str:
    return write_shim(Entry("name", 1, ("int",)))
