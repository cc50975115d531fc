"""Executables: Metal Shading Language compiled at load, and metallibs.

Options of `load`: `workgroup=X[,Y[,Z]]`, `-DNAME[=VALUE]` for the preprocessor, and `constant:NAME=VALUE` for function
constants. How many buffers and which constants a function takes is read from the source; a metallib does not tell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.driver import DriverFunction, Signature, refuse_source
from tidegate.drivers.metal import _native
from tidegate.drivers.metal._errors import compile_error
from tidegate.drivers.metal._native import Object
from tidegate.drivers.metal.load_options import LoadOptions, parse_options
from tidegate.drivers.metal.msl_reflect import Arguments, reflect
from tidegate.errors import CompileError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from tidegate.drivers.metal.device import MetalDevice

_WIDTH = 256
"""The threads of a threadgroup where nobody says, if the pipeline allows them."""
_LOCAL_STEP = 16
"""Local memory is given to Metal in multiples of so many bytes."""
_TAKES = "Metal Shading Language source (str), a metallib (bytes) or the path of either"
_DATA_TYPES = {
    3: "float32",
    16: "float16",
    29: "int32",
    33: "uint32",
    37: "int16",
    41: "uint16",
    45: "int8",
    49: "uint8",
    53: "bool",
    81: "int64",
    85: "uint64",
}
"""Scalar MTLDataTypes: what a function constant may be."""


class MetalFunction(DriverFunction):
    """A compute pipeline.

    Attributes:
        pipeline: Metal's own object.
        threads: the most threads that a threadgroup of it may have.

    """

    def __init__(self, device: MetalDevice, name: str, pipeline: Object) -> None:
        self.name = name
        self.pipeline = pipeline
        self.threads = _native.pipeline_threads(pipeline)
        self.workgroup = (min(_WIDTH, self.threads), 1, 1)
        left = (device.info.limits.max_local_memory or 0) - _native.pipeline_local_bytes(pipeline)
        self._local = max(0, left // _LOCAL_STEP * _LOCAL_STEP)
        self.limits = replace(device.info.limits, max_local_memory=self._local)

    def set_workgroup(self, workgroup: tuple[int, int, int]) -> None:
        """Take a declared size, if the pipeline does."""
        size = workgroup[0] * workgroup[1] * workgroup[2]
        if size > self.threads:
            raise InvalidArgumentError(
                f"function {self.name!r}: a workgroup of {workgroup} has {size} threads, and its pipeline takes at most"
                f" {self.threads} on this device",
                workgroup=workgroup,
                threads=self.threads,
            )
        self.workgroup = workgroup

    def check_local(self, local: int) -> None:
        """Refuse more local memory than there is."""
        if local > self._local:
            raise InvalidArgumentError(
                f"function {self.name!r}: {local} bytes of local memory are more than the {self._local} that are left"
            )


def load(
    device: MetalDevice, source: Any, *, signature: Signature | None, format: str | None, options: Sequence[str]
) -> dict[str, MetalFunction]:
    """Compile or load functions by name."""
    chosen = parse_options(options)
    with device.native.autorelease_pool():
        library, arguments = _library(device, source, format, chosen)
        if signature is not None:
            return {signature.name: _declared(device, library, signature, chosen)}
        return _all_functions(device, library, arguments, chosen)


def _library(
    device: MetalDevice, source: Any, format: str | None, options: LoadOptions
) -> tuple[Object, Mapping[str, Arguments]]:
    if format not in (None, "msl", "metallib"):
        raise InvalidArgumentError(f"driver 'metal': the format is {format!r}, and must be 'msl' or 'metallib'")
    if isinstance(source, os.PathLike):
        path = Path(source)
        source = path.read_bytes() if path.suffix == ".metallib" else path.read_text(encoding="utf-8")
    if isinstance(source, str) and format != "metallib":
        return compile_library(device, source, options.macros), reflect(source)
    if isinstance(source, (bytes, bytearray, memoryview)) and format != "msl":
        return _load_library(device, bytes(source)), {}
    raise refuse_source("metal", source, _TAKES)


def compile_library(device: MetalDevice, source: str, macros: dict[str, str]) -> Object:
    """Compile source.

    Raises:
        CompileError: it does not; has the log.

    """
    options = _native.compile_options(device.native, macros)
    library, error = _native.compile_source(device.handle, source, options)
    if library is None:
        raise compile_error(error, "compiling the source")
    return library


def _load_library(device: MetalDevice, data: bytes) -> Object:
    library, error = _native.load_library(device.native, device.handle, data)
    if library is None:
        raise compile_error(error, "loading the metallib")
    return library


def _declared(device: MetalDevice, library: Object, signature: Signature, options: LoadOptions) -> MetalFunction:
    function = make_function(device, library, signature.name, options.constants)
    function.bindings, function.constants = signature.bindings, signature.constants
    function.set_workgroup(options.workgroup or signature.workgroup)
    return function


def _all_functions(
    device: MetalDevice, library: Object, arguments: Mapping[str, Arguments], options: LoadOptions
) -> dict[str, MetalFunction]:
    functions: dict[str, MetalFunction] = {}
    refused: CompileError | None = None
    for name in _native.function_names(library):
        try:
            function = make_function(device, library, name, options.constants)
        except CompileError as error:  # functions of other kinds may stand beside the kernels
            refused = error
            continue
        function.bindings, function.constants = arguments.get(name, (None, None))
        if options.workgroup is not None:
            function.set_workgroup(options.workgroup)
        functions[name] = function
    if not functions and refused is not None:
        raise refused
    return functions


def make_function(device: MetalDevice, library: Object, name: str, constants: Mapping[str, str]) -> MetalFunction:
    """Return a function of a library, with its function constants set.

    Raises:
        NotFoundError: it has no such function; lists those it has.
        CompileError: it makes no compute pipeline.

    """
    names = _native.function_names(library)
    if name not in names:
        raise NotFoundError(f"the source has no function {name!r}; it has: {', '.join(names) or 'none'}", name=name)
    function, error = _found(device, library, name, constants)
    if function is None:
        raise compile_error(error, f"function {name!r}")
    if not _native.is_kernel(function):
        raise CompileError(f"metal: function {name!r} is no kernel", log="")
    pipeline, error = _native.new_pipeline(device.handle, function)
    if pipeline is None:
        raise compile_error(error, f"the pipeline of function {name!r}")
    return MetalFunction(device, name, pipeline)


def _found(
    device: MetalDevice, library: Object, name: str, constants: Mapping[str, str]
) -> tuple[Object | None, Object | None]:
    function = _native.find_function(library, name)
    if function is None or not constants:
        return function, None
    values = _native.constant_values(device.native)
    for constant, kind in _native.function_constants(function).items():
        if constant in constants:
            _native.set_constant(values, _constant(constant, kind, constants[constant]), kind, constant)
    return _native.specialise(library, name, values)


def _constant(name: str, kind: int, text: str) -> bytes:
    dtype = _DATA_TYPES.get(kind)
    if dtype is None:
        raise InvalidArgumentError(f"function constant {name!r} has MTLDataType {kind}, which is no plain number")
    try:
        value = {"true": 1, "false": 0}.get(text) if dtype == "bool" else None
        number = float(text) if dtype.startswith("float") else int(text, 0) if value is None else value
        return np.array(number, dtype).tobytes()
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"function constant {name!r} is {text!r}, and must be a {dtype}") from error


def constant_bytes(value: Any) -> bytes:
    """Return a constant as its bytes."""
    if not isinstance(value, np.generic):
        raise InvalidArgumentError(
            f"the constant {value!r} has no type: a metallib does not tell it, so give a NumPy number as np.float32(1)"
        )
    return value.tobytes()
