"""Libraries, functions and pipelines. A function's work is done by the host function registered under its name."""

from __future__ import annotations

import ctypes
import inspect
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from . import msl
from .foundation import Error
from .objects import Labelled, Metal

if TYPE_CHECKING:
    from .device import Device
    from .simulation import HostFunction, Simulation

__all__ = [
    "MAGIC", "CompileOptions", "Function", "FunctionConstantValues", "Library", "Pipeline", "compile_source",
    "make_pipeline", "open_file", "open_library",
]  # fmt: skip

DOMAIN = "MTLLibraryErrorDomain"
UNSUPPORTED, INTERNAL, COMPILE_FAILURE, WARNING, NOT_FOUND, NO_FILE = range(1, 7)
MAGIC = b"MTLB"
"""How a metallib begins; the simulated ones go on with their source."""


class CompileOptions(Metal, registered="MTLCompileOptions"):
    """How source is compiled."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._macros: dict[str, str] = {}
        self._version = 0
        self._fast = True
        self._math = 2

    def setPreprocessorMacros_(self, macros: dict) -> None:  # type: ignore[type-arg]
        for name, value in macros.items():
            if not isinstance(name, str) or not isinstance(value, str | int):
                raise TypeError(f"the macro {name!r} is {value!r}: names are strings, values strings or numbers")
        self._macros = {name: str(value) for name, value in macros.items()}

    def preprocessorMacros(self) -> Any:
        return dict(self._macros)

    def setLanguageVersion_(self, version: int) -> None:
        self._version = version

    def languageVersion(self) -> int:
        return self._version

    def setFastMathEnabled_(self, enabled: bool) -> None:
        self._fast = enabled

    def fastMathEnabled(self) -> bool:
        return self._fast

    def setMathMode_(self, mode: int) -> None:
        self._math = mode

    def mathMode(self) -> int:
        return self._math


class Library(Labelled, registered="MTLLibrary"):
    """The functions of a source."""

    _autoreleased = frozenset({"functionNames"})

    def __init__(self, device: Device, kernels: dict[str, msl.Kernel]) -> None:
        super().__init__(device._simulation)
        self._device = device
        self._kernels = kernels

    def device(self) -> Any:
        return self._device

    def functionNames(self) -> Any:
        return tuple(self._kernels)

    def newFunctionWithName_(self, name: str) -> Function | None:
        kernel = self._kernels.get(name)
        return None if kernel is None else Function(self, kernel, {})

    def newFunctionWithName_constantValues_error_(
        self, name: str, values: FunctionConstantValues
    ) -> tuple[Function | None, Error | None]:
        kernel = self._kernels.get(name)
        if kernel is None:
            return None, Error(self._simulation, DOMAIN, NOT_FOUND, f"the function {name} is not in the library")
        given: dict[str, Any] = {}
        for constant in kernel.constants:
            value = values._find(constant)
            if value is None:
                text = f"the function constant {constant.name} of {name} has no value"
                return None, Error(self._simulation, DOMAIN, COMPILE_FAILURE, text)
            given[constant.name] = value
        return Function(self, kernel, given), None


class FunctionConstantValues(Metal, registered="MTLFunctionConstantValues"):
    """Values of function constants."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._values: dict[int | str, tuple[int, Any]] = {}

    def setConstantValue_type_atIndex_(self, address: int, type: int, index: int) -> None:
        self._values[index] = (type, self._read(address, type))

    def setConstantValue_type_withName_(self, address: int, type: int, name: str) -> None:
        self._values[name] = (type, self._read(address, type))

    def reset(self) -> None:
        self._values.clear()

    def _read(self, address: int, type: int) -> Any:
        self._simulation.demand(type in msl.DATA_TYPES, "function-constants", f"MTLDataType {type} is no number")
        kind = np.dtype(msl.DATA_TYPES[type])
        return np.frombuffer(ctypes.string_at(address, kind.itemsize), kind, 1)[0]

    def _find(self, constant: msl.FunctionConstant) -> Any:
        known = self._values.get(constant.name, self._values.get(constant.index))
        if known is None:
            return None
        wanted = msl.TYPES[constant.type]
        self._simulation.demand(
            np.dtype(msl.DATA_TYPES[known[0]]) == wanted,
            "function-constants",
            f"the constant {constant.name} is {constant.type}, its value has MTLDataType {known[0]}",
        )
        return known[1]


class FunctionConstant(Metal, registered="MTLFunctionConstant"):
    """What a function says of one of its constants."""

    def __init__(self, simulation: Simulation, constant: msl.FunctionConstant) -> None:
        super().__init__(simulation)
        self._constant = constant

    def name(self) -> str:
        return self._constant.name

    def index(self) -> int:
        return self._constant.index

    def type(self) -> int:
        code = msl.TYPES[self._constant.type]
        return next(number for number, known in msl.DATA_TYPES.items() if np.dtype(known) == code)

    def required(self) -> bool:
        return True


class Function(Labelled, registered="MTLFunction"):
    """One function of a library."""

    _autoreleased = frozenset({"functionConstantsDictionary"})

    def __init__(self, library: Library, kernel: msl.Kernel, constants: dict[str, Any]) -> None:
        super().__init__(library._simulation)
        self._library = library
        self._kernel = kernel
        self._constants = constants

    def device(self) -> Any:
        return self._library._device

    def name(self) -> str:
        return self._kernel.name

    def functionType(self) -> int:
        return 3

    def functionConstantsDictionary(self) -> Any:
        return {each.name: FunctionConstant(self._simulation, each) for each in self._kernel.constants}


class Pipeline(Metal, registered="MTLComputePipelineState"):
    """A function, ready to run."""

    def __init__(self, device: Device, function: Function, host: HostFunction | None) -> None:
        super().__init__(device._simulation, function._label)
        self._device = device
        self._kernel = function._kernel
        self._constants = function._constants
        self._host = host
        self._with_constants = host is not None and len(inspect.signature(host).parameters) > 3
        limit = self._simulation.settings.max_threads
        self._max_threads = min(limit, self._kernel.max_threads or limit)

    def device(self) -> Any:
        return self._device

    def label(self) -> str | None:
        return self._label

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self._max_threads

    def threadExecutionWidth(self) -> int:
        return 32

    def staticThreadgroupMemoryLength(self) -> int:
        return 0

    def _run(self, workgroups: tuple[int, int, int], bindings: list[Any], values: tuple[Any, ...]) -> None:
        if self._host is None:
            raise LookupError(f"no host function is registered for the kernel {self._kernel.name}")
        if self._with_constants:
            self._host(workgroups, bindings, values, self._constants)
        else:
            self._host(workgroups, bindings, values)


def compile_source(device: Device, source: str, options: CompileOptions | None) -> tuple[Library | None, Error | None]:
    """Return the library of a source, or the error with the log."""
    fault = device._simulation.take_fault("compile", source)
    if fault is not None:
        return None, Error(device._simulation, DOMAIN, COMPILE_FAILURE, fault.text)
    try:
        return Library(device, msl.parse(source, options._macros if options is not None else None)), None
    except msl.CompileFailure as failure:
        return None, Error(device._simulation, DOMAIN, COMPILE_FAILURE, str(failure))


def open_library(device: Device, data: bytes) -> tuple[Library | None, Error | None]:
    """Return the library in a metallib."""
    if not data.startswith(MAGIC):
        return None, Error(device._simulation, DOMAIN, UNSUPPORTED, "Invalid library file")
    return compile_source(device, data[len(MAGIC) :].decode(), None)


def open_file(device: Device, path: str) -> tuple[Library | None, Error | None]:
    """Return the library in a file."""
    if not os.path.exists(path):
        return None, Error(device._simulation, DOMAIN, NO_FILE, f"library not found: {path}")
    with open(path, "rb") as file:
        return open_library(device, file.read())


def make_pipeline(device: Device, function: Function) -> tuple[Pipeline | None, Error | None]:
    """Return the pipeline of a function."""
    simulation = device._simulation
    fault = simulation.take_fault("pipeline", function)
    if fault is not None:
        return None, Error(simulation, DOMAIN, COMPILE_FAILURE, fault.text)
    missing = [each.name for each in function._kernel.constants if each.name not in function._constants]
    if missing:
        text = f"function {function._kernel.name}: the constants {', '.join(missing)} have no value"
        return None, Error(simulation, DOMAIN, COMPILE_FAILURE, text)
    return Pipeline(device, function, simulation.functions.get(function._kernel.name)), None
