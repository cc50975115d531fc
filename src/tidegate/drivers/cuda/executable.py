"""Executables: CUDA C++ through NVRTC, PTX, cubins and fatbins; and how arguments become bytes.

Functions are brought onto the GPU when the executable is loaded, because a first launch that had to do so would wait
for whatever runs (`code`). Dynamic shared memory past 48 KiB is allowed from the start, as far as the device has it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from copy import copy
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.driver import DriverFunction, Signature, refuse_source
from tidegate.errors import (
    CompileError,
    DriverUnavailableError,
    InvalidArgumentError,
    TidegateError,
    UnsupportedError,
)
from tidegate.types import Limits

from ._errors import is_not_found, translate, translated
from ._native import Launch, NativeError
from ._nvrtc import CompilerError, Nvrtc
from ._prototypes import Attribute, FunctionAttribute
from .code import Library, Loaded
from .cubin_cache import cached
from .native.compiled import MOST_PARAMETERS, Kernel

if TYPE_CHECKING:
    from .device import CudaDevice

FORMATS = ("cuda", "ptx", "cubin", "fatbin")
_ELF = b"\x7fELF"
_FATBIN = b"\x50\xed\x55\xba"

Groups = tuple[int, int, int]


class Arguments:
    """Memory for the arguments of a launch, in the layout of a function."""

    __slots__ = ("block", "pointers", "pointers_address")

    def __init__(self, offsets: Sequence[int], size: int) -> None:
        self.block = ctypes.create_string_buffer(max(size, 8))
        begin = ctypes.addressof(self.block)
        self.pointers = (ctypes.c_void_p * max(len(offsets), 1))(*(begin + offset for offset in offsets))
        self.pointers_address = ctypes.addressof(self.pointers)


class Layout:
    """Where each parameter of a function lies, and which argument goes there.

    Args:
        name: the function, for texts.
        parameters: offset and size of each.
        kinds: the types of the constants, or None where nobody said.
        order: for each parameter the argument it takes, bindings counted first; None: in that order already.
        bindings: how many arguments are buffers.

    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[tuple[int, int]],
        bindings: int,
        kinds: tuple[np.dtype[Any], ...] | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        self._name = name
        self.parameters = tuple(parameters)
        self.offsets = [offset for offset, _ in parameters]
        self.size = sum(parameters[-1]) if parameters else 0
        self.order = order
        arguments = range(len(parameters)) if order is None else order
        codes = []
        self._raw: list[tuple[int, int]] = []  # constants that go in as bytes, and their sizes
        for argument, (_, size) in zip(arguments, parameters, strict=True):
            constant = argument - bindings
            code = "Q" if constant < 0 else _CODES.get((kinds[constant].kind, size)) if kinds is not None else None
            if code is None:
                self._raw.append((constant, size))
            codes.append(code or f"{size}s")
        self._pack = struct.Struct(_format(codes, parameters)).pack_into

    def pack(self, arguments: Arguments, addresses: Sequence[int], constants: tuple[Any, ...]) -> None:
        """Write the arguments."""
        if not self._raw:
            self._pack(arguments.block, 0, *addresses, *constants)
            return
        values = list(constants)
        for index, size in self._raw:
            values[index] = _bytes_of(values[index], size, self._name)
        given = [*addresses, *values]
        if self.order is not None:
            given = [given[index] for index in self.order]
        self._pack(arguments.block, 0, *given)


_CODES = {
    ("f", 4): "f",
    ("f", 8): "d",
    ("f", 2): "e",
    ("i", 1): "b",
    ("i", 2): "h",
    ("i", 4): "i",
    ("i", 8): "q",
    ("u", 1): "B",
    ("u", 2): "H",
    ("u", 4): "I",
    ("u", 8): "Q",
    ("b", 1): "?",
}


def _format(codes: Sequence[str], parameters: Sequence[tuple[int, int]]) -> str:
    parts = ["<"]
    end = 0
    for code, (offset, size) in zip(codes, parameters, strict=True):
        parts.append(f"{offset - end}x{code}" if offset > end else code)
        end = offset + size
    return "".join(parts)


def _bytes_of(value: Any, size: int, name: str) -> bytes:
    """Return a constant as so many bytes."""
    if isinstance(value, (np.generic, np.ndarray)):
        data = value.tobytes()
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
    elif isinstance(value, bool) or hasattr(value, "__index__"):
        number = int(value)
        try:
            data = number.to_bytes(size, "little", signed=number < 0)
        except OverflowError:
            raise InvalidArgumentError(f"function {name!r}: the constant {number} does not fit {size} bytes") from None
    elif isinstance(value, float) and size in (4, 8):
        data = struct.pack("<f" if size == 4 else "<d", value)
    else:
        raise TypeError(f"function {name!r}: a constant of {size} bytes cannot be made of {type(value).__name__}")
    if len(data) != size:
        raise InvalidArgumentError(f"function {name!r}: a constant has {len(data)} bytes, and {size} are needed")
    return data


def natural_layout(sizes: Sequence[int], alignments: Sequence[int]) -> list[int]:
    """Return the offsets that C gives to parameters."""
    offsets, end = [], 0
    for size, alignment in zip(sizes, alignments, strict=True):
        end = -(-end // alignment) * alignment
        offsets.append(end)
        end += size
    return offsets


def alignment_of(kind: np.dtype[Any]) -> int:
    """Return the alignment that C gives to a type."""
    if kind.fields is None:
        return max(1, kind.itemsize)
    return max((alignment_of(field[0]) for field in kind.fields.values()), default=1)


class CudaFunction(DriverFunction):
    """A kernel on one device.

    Args:
        device: the device.
        library: the code.
        name: as the source has it.
        loaded: what it is on the GPU.
        signature: what was declared, or None.
        workgroup: threads per block.
        launching: how it is launched: `cooperative` and `cluster`.

    """

    def __init__(
        self,
        device: CudaDevice,
        library: Library,
        name: str,
        loaded: Loaded,
        signature: Signature | None,
        workgroup: Groups,
        launching: dict[str, Any],
    ) -> None:
        self._library = library
        self.name = name
        self.workgroup = workgroup
        self._launching = launching
        self.handle, self._parameters = loaded
        self._layouts: dict[int, Layout] = {}
        if signature is not None:
            self.bindings, self.constants = signature.bindings, signature.constants
            self._declared(signature)
        self.limits = self._find_limits(device)
        self._shared_arguments: Arguments | None = None
        self._make_native(self._layouts.get(self.bindings) if self.bindings is not None else None)

    def _declared(self, signature: Signature) -> None:
        sizes = [8] * signature.bindings + [kind.itemsize for kind in signature.constants]
        found = self._parameters
        if found is not None and [size for _, size in found] != sizes:
            raise CompileError(
                f"kernel {self.name!r} declares {signature.bindings} bindings and constants of"
                f" {sizes[signature.bindings :]} bytes, and its code takes parameters of {[size for _, size in found]}"
                " bytes",
                log="",
            )
        alignments = [8] * signature.bindings + [alignment_of(kind) for kind in signature.constants]
        parameters = found or list(zip(natural_layout(sizes, alignments), sizes, strict=True))
        layout = Layout(self.name, parameters, signature.bindings, signature.constants)
        self._layouts[signature.bindings] = layout

    def _make_native(self, layout: Layout | None) -> None:
        """Be known to the compiled way, if that can launch it; without a layout, with any bindings that fit."""
        self._kernel: Kernel | None = None
        self.native = 0
        parameters = self._parameters if layout is None else layout.parameters
        if parameters is None or len(parameters) > MOST_PARAMETERS or any(self._launching.values()):
            return
        sizes = [size for _, size in parameters]
        order = range(len(sizes)) if layout is None or layout.order is None else layout.order
        bindings = -1 if self.bindings is None else self.bindings
        self._kernel = Kernel(self.handle, self.workgroup, sizes, order, bindings)
        self.native = self._kernel.native

    def in_order(self, order: str) -> CudaFunction:
        """Return the same function with the parameters in another order than ours."""
        found = self._parameters or []
        wrong = [letter for letter in order if letter not in "bc"]
        if wrong or len(order) != len(found):
            raise InvalidArgumentError(
                f"function {self.name!r} has {len(found)} parameters, and the order {order!r} must have a 'b' or 'c'"
                " for each"
            )
        bindings = order.count("b")
        next_one = {"b": count(), "c": count(bindings)}
        arguments = [next(next_one[letter]) for letter in order]
        if any(size != 8 for (_, size), letter in zip(found, order, strict=True) if letter == "b"):
            raise InvalidArgumentError(f"function {self.name!r}: the order {order!r} has a binding that is no pointer")
        other = copy(self)
        other.bindings, other._shared_arguments = bindings, None
        layout = Layout(self.name, found, bindings, order=arguments)
        other._layouts = {bindings: layout}
        other._make_native(layout)
        return other

    def _find_limits(self, device: CudaDevice) -> Limits:
        native = device.native
        threads = native.function_attribute(self.handle, FunctionAttribute.MAX_THREADS)
        static = native.function_attribute(self.handle, FunctionAttribute.SHARED_BYTES)
        dynamic = device.max_shared - static
        if self.workgroup[0] * self.workgroup[1] * self.workgroup[2] > threads:
            raise InvalidArgumentError(
                f"function {self.name!r}: a workgroup of {self.workgroup} is more than the {threads} threads that it"
                " can have on this device"
            )
        native.set_function_attribute(self.handle, FunctionAttribute.MAX_DYNAMIC_SHARED, dynamic)
        limits = device.info.limits
        return Limits(limits.max_workgroup, limits.max_workgroups, dynamic, limits.max_bindings)

    def _layout(self, bindings: int, constants: int) -> Layout:
        layout = self._layouts.get(bindings)
        if layout is not None:
            return layout
        found = self._parameters
        if found is None:
            raise UnsupportedError(
                f"function {self.name!r}: this CUDA driver does not tell its parameters; load it as a tg.Kernel"
            )
        if bindings + constants != len(found):
            raise InvalidArgumentError(
                f"function {self.name!r} takes {len(found)} parameters, and {bindings} bindings and"
                f" {constants} constants were given"
            )
        if any(size != 8 for _, size in found[:bindings]):
            raise InvalidArgumentError(
                f"function {self.name!r}: not all of its first {bindings} parameters are pointers"
            )
        layout = self._layouts[bindings] = Layout(self.name, found, bindings)
        return layout

    def launch(
        self, workgroups: Groups, addresses: Sequence[int], constants: tuple[Any, ...], local_memory: int
    ) -> Launch:
        """Return a launch with arguments of its own."""
        layout = self._layout(len(addresses), len(constants))
        arguments = Arguments(layout.offsets, layout.size)
        layout.pack(arguments, addresses, constants)
        return Launch(
            self.handle,
            workgroups,
            self.workgroup,
            local_memory,
            arguments.pointers_address,
            arguments,
            **self._launching,
        )

    def launch_now(
        self, workgroups: Groups, addresses: Sequence[int], constants: tuple[Any, ...], local_memory: int
    ) -> Launch:
        """Return a launch that must be used before the next call of this; under the device's lock.

        CUDA copies arguments when it launches, so one block of memory serves all launches of a function.
        """
        layout = self._layout(len(addresses), len(constants))
        arguments = self._shared_arguments
        if arguments is None or len(self._layouts) > 1:
            arguments = self._shared_arguments = Arguments(layout.offsets, layout.size)
        layout.pack(arguments, addresses, constants)
        return Launch(
            self.handle, workgroups, self.workgroup, local_memory, arguments.pointers_address, None, **self._launching
        )


class Loader:
    """Makes functions of sources. One for all devices of the process.

    Args:
        compiler: returns NVRTC; raises OSError where there is none.

    """

    def __init__(self, compiler: Callable[[], Nvrtc]) -> None:
        self._open = compiler
        self._compiler: Nvrtc | None = None

    def load(
        self,
        device: CudaDevice,
        source: object,
        signature: Signature | None,
        format: str | None,
        options: Sequence[str],
    ) -> dict[str, CudaFunction]:
        """Return the functions of a source by name."""
        workgroup, launching, flags = _split_options(options)
        if signature is not None:
            workgroup = signature.workgroup
        image = self._image(device, source, format or _guess(source), flags, signature)
        label = f"kernel {signature.name!r}" if signature else "source"
        library: Library | None = None
        try:
            library = device.code.library(image)
            loaded = library.functions(signature.name if signature else None)
            if not loaded:
                raise _nothing_in(device)
            return {
                name: CudaFunction(device, library, name, found, signature, workgroup, launching)
                for name, found in loaded.items()
            }
        except NativeError as error:
            raise _refused(device, label, library, image, error) from error

    def _image(
        self, device: CudaDevice, source: object, format: str, flags: list[str], signature: Signature | None
    ) -> bytes:
        if format not in FORMATS:
            raise UnsupportedError(f"driver 'cuda' does not know the format {format!r}: it takes {', '.join(FORMATS)}")
        if format == "cuda":
            if not isinstance(source, str):
                raise refuse_source("cuda", source, "CUDA C++ source as text")
            return self._compile(device, source, flags, signature.name if signature else "source")
        if flags:
            raise InvalidArgumentError(f"driver 'cuda': {format} takes no compiler options, got {flags}")
        data = source.encode() if isinstance(source, str) else bytes(source)  # type: ignore[call-overload]
        return data + b"\0" if format == "ptx" else data

    def _compile(self, device: CudaDevice, source: str, flags: list[str], label: str) -> bytes:
        compiler = self.compiler()
        if not any(flag.startswith(("-arch", "--gpu-architecture")) for flag in flags):
            flags = [f"--gpu-architecture=sm_{device.architecture}", *flags]
        version = ".".join(str(part) for part in compiler.version())

        def build() -> bytes:
            try:
                return compiler.compile(source, f"{label}.cu", flags)
            except CompilerError as error:
                raise CompileError(f"kernel {label!r} does not compile:\n{error.log}", log=error.log) from error

        return cached((source, version, *flags), build)

    def compiler(self) -> Nvrtc:
        """Return NVRTC.

        Raises:
            DriverUnavailableError: there is none; says what to install.

        """
        if self._compiler is None:
            try:
                self._compiler = self._open()
            except OSError as error:
                raise DriverUnavailableError(
                    "CUDA C++ needs NVRTC, which was not found: install tidegate[cuda] or the CUDA toolkit;"
                    f" PTX and cubins load without it ({error})"
                ) from error
        return self._compiler


def _nothing_in(device: CudaDevice) -> TidegateError:
    """Return the error for code in which no kernel is found."""
    if not device.native.has("cuLibraryEnumerateKernels") or not device.native.has("cuKernelGetName"):
        return UnsupportedError("this CUDA driver does not tell which kernels code has: load each as a tg.Kernel")
    return CompileError('the code has no kernels. In CUDA C++ they are extern "C" __global__ functions', log="")


def _refused(
    device: CudaDevice, label: str, library: Library | None, image: bytes, error: NativeError
) -> TidegateError:
    """Return the error for code that CUDA does not take, with what it has to say about that."""
    if library is not None and is_not_found(error):
        names = ", ".join(library.names()) or "none that can be told"
        return CompileError(
            f'{label}: the code has no such entry point; it has {names}. In CUDA C++ it must be extern "C"', log=""
        )
    found = translate(error, label)
    if isinstance(found, CompileError) and not image.startswith((_ELF, _FATBIN)):
        found.log = _log(device, image)
    return found


def _log(device: CudaDevice, image: bytes) -> str:
    """Return the words of CUDA's own compiler about PTX that it has refused, which waits for nothing."""
    try:
        return device.native.load_log(image)
    except NativeError:
        return ""


def _guess(source: object) -> str:
    if isinstance(source, str):
        return "ptx" if source.lstrip().startswith((".version", "//")) and ".version" in source else "cuda"
    if isinstance(source, (bytes, bytearray, memoryview)):
        head = bytes(source[:4])
        if head == _ELF:
            return "cubin"
        return "fatbin" if head == _FATBIN else "ptx"
    raise refuse_source("cuda", source, "CUDA C++ source, PTX, a cubin, or a tg.Kernel with one of them")


def _split_options(options: Sequence[str]) -> tuple[Groups, dict[str, Any], list[str]]:
    """Take what is ours out of the options: `workgroup=X,Y,Z`, `cluster=X,Y,Z` and `cooperative`."""
    workgroup: Groups = (1, 1, 1)
    launching: dict[str, Any] = {}
    flags: list[str] = []
    for option in options:
        name, equals, value = option.partition("=")
        if name == "workgroup" and equals:
            workgroup = _counts(option, value)
        elif name == "cluster" and equals:
            launching["cluster"] = _counts(option, value)
        elif option == "cooperative":
            launching["cooperative"] = True
        elif option.startswith("-"):
            flags.append(option)
        else:
            raise InvalidArgumentError(
                f"driver 'cuda': unknown option {option!r}; known are workgroup=X[,Y[,Z]], cluster=X[,Y[,Z]],"
                " cooperative, and options of NVRTC, which begin with '-'"
            )
    return workgroup, launching, flags


def _counts(option: str, value: str) -> Groups:
    parts = value.split(",")
    if len(parts) > 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidArgumentError(f"driver 'cuda': the option {option} must be one to three counts above 0")
    numbers = [int(part) for part in parts] + [1, 1]
    return (numbers[0], numbers[1], numbers[2])


def device_limits(native: Any, device: int) -> Limits:
    """Return what a device allows."""
    x, y, z = (native.device_attribute(Attribute.MAX_BLOCK_X + axis, device) for axis in range(3))
    grid = tuple(native.device_attribute(Attribute.MAX_GRID_X + axis, device) for axis in range(3))
    shared = native.device_attribute(Attribute.MAX_SHARED_OPTIN, device)
    with translated():
        return Limits((x, y, z), (grid[0], grid[1], grid[2]), shared, None)
