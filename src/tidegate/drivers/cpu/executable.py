"""Kernels of the CPU device: Python functions over NumPy views, and C with its workgroups spread over the workers."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.driver import DriverFunction, Signature, refuse_source
from tidegate.drivers.cpu.c_source import CFunction, compile_source
from tidegate.drivers.cpu.workers import Task, Workers
from tidegate.errors import CompileError, DriverUnavailableError, InvalidArgumentError, UnsupportedError
from tidegate.types import Limits

Bytes = npt.NDArray[np.uint8]
Groups = tuple[int, int, int]

_FORMATS = ("python", "c")
_SHARES = 4
"""Ranges per worker: enough that an uneven kernel still ends at about the same time everywhere."""

_log = logging.getLogger("tidegate")
_told: set[str] = set()


class CpuFunction(DriverFunction):
    """A kernel that runs here."""

    # A C kernel is told how much local memory it has in 32 bits. Python takes none, and stands in for C.
    limits = Limits(max_local_memory=2**32 - 1)

    @abstractmethod
    def run(
        self, workers: Workers, groups: Groups, bindings: list[Bytes], constants: tuple[Any, ...], local: int
    ) -> None:
        """Run all workgroups and return when they are over."""


class PythonFunction(CpuFunction):
    """`fn(workgroups, bindings, constants)`, called once for all workgroups."""

    def __init__(self, function: Callable[..., Any], signature: Signature | None) -> None:
        self._function = function
        self.name = signature.name if signature else getattr(function, "__name__", "kernel")
        if signature:
            self.bindings, self.constants, self.workgroup = signature.bindings, signature.constants, signature.workgroup

    def run(
        self, workers: Workers, groups: Groups, bindings: list[Bytes], constants: tuple[Any, ...], local: int
    ) -> None:
        self._function(groups, bindings, constants)


class CompiledFunction(CpuFunction):
    """A C kernel, called once per workgroup without the GIL."""

    def __init__(self, function: CFunction, workgroup: Groups, constants: tuple[np.dtype[Any], ...] | None) -> None:
        self._function = function
        self.name = function.name
        self.bindings = function.bindings
        self.constants = constants
        self.workgroup = workgroup

    def run(
        self, workers: Workers, groups: Groups, bindings: list[Bytes], constants: tuple[Any, ...], local: int
    ) -> None:
        function = self._function
        addresses = [binding.ctypes.data for binding in bindings]
        pointers, values = function.prepare(addresses, constants)
        workgroup = self.workgroup

        def run_range(begin: int, end: int) -> None:
            function.run(pointers, values, groups, workgroup, local, begin, end)

        spread(workers, groups[0] * groups[1] * groups[2], run_range)


class _Spread:
    """One job cut into ranges that several threads take in turn."""

    def __init__(self, total: int, ranges: int, run: Callable[[int, int], None]) -> None:
        self._run = run
        bounds = [total * index // ranges for index in range(ranges + 1)]
        self._ranges = [(bounds[index], bounds[index + 1]) for index in reversed(range(ranges))]
        self._open = ranges
        self._lock = threading.Lock()
        self._over = threading.Lock()
        self._over.acquire()
        self.error: BaseException | None = None

    def help(self) -> None:
        """Run ranges until none is left."""
        while True:
            try:
                begin, end = self._ranges.pop()
            except IndexError:
                return
            try:
                self._run(begin, end)
            except BaseException as error:
                self.error = error
            finally:
                with self._lock:
                    self._open -= 1
                    last = self._open == 0
                if last:
                    self._over.release()

    def wait(self) -> None:
        """Wait for the ranges that others are still inside of."""
        self._over.acquire()


def spread(workers: Workers, total: int, run: Callable[[int, int], None]) -> None:
    """Run `run(begin, end)` over 0..total, on this worker and whichever others are free."""
    helpers = min(workers.count, total) - 1
    if helpers <= 0:
        run(0, total)
        return
    job = _Spread(total, min(total, workers.count * _SHARES), run)
    for _ in range(helpers):
        workers.put(Task(job.help))
    job.help()
    job.wait()
    if job.error is not None:
        raise job.error


def load(
    source: Any, *, signature: Signature | None, format: str | None, options: Sequence[str]
) -> dict[str, CpuFunction]:
    """Return the functions of a source.

    Raises:
        UnsupportedError: not something the CPU runs.
        CompileError: C that does not compile.
        DriverUnavailableError: C without a compiler.

    """
    if format is not None and format not in _FORMATS:
        raise UnsupportedError(f"driver 'cpu' does not know the format {format!r}: it takes {', '.join(_FORMATS)}")
    if isinstance(source, (list, tuple)):
        return _load_first(source, signature, format, options)
    if isinstance(source, str) and format != "python":
        return _load_c(source, signature, options)
    if callable(source) and format != "c":
        if options:
            raise InvalidArgumentError(f"driver 'cpu': a Python kernel takes no options, got {list(options)}")
        function = PythonFunction(source, signature)
        return {function.name: function}
    raise refuse_source("cpu", source, "a Python function, C source, or a tg.Kernel with one of them")


def _load_first(
    sources: Sequence[Any], signature: Signature | None, format: str | None, options: Sequence[str]
) -> dict[str, CpuFunction]:
    """C with a fallback: take the first that this machine can run, and say once which, if it is not the first."""
    reason: Exception | None = None
    for source in sources:
        try:
            loaded = load(
                source, signature=signature, format=format, options=options if isinstance(source, str) else ()
            )
        except DriverUnavailableError as error:
            reason = error
            continue
        name = signature.name if signature else ", ".join(loaded)
        if reason is not None and name not in _told:
            _told.add(name)
            _log.warning("kernel %r runs as a Python function on the CPU, because: %s", name, reason)
        return loaded
    raise reason or InvalidArgumentError("a kernel needs at least one implementation for the CPU")


def _load_c(source: str, signature: Signature | None, options: Sequence[str]) -> dict[str, CpuFunction]:
    workgroup, flags = _workgroup(options)
    library = compile_source(source, options=flags, label=signature.name if signature else "")
    if signature is None:
        return {name: CompiledFunction(found, workgroup, _known(found)) for name, found in library.functions.items()}
    found = library.functions.get(signature.name)
    if found is None:
        known = ", ".join(library.functions)
        raise CompileError(f"kernel {signature.name!r}: the C source has no such entry point; it has {known}", log="")
    _check_declared(found, signature)
    return {signature.name: CompiledFunction(found, signature.workgroup, signature.constants)}


def _workgroup(options: Sequence[str]) -> tuple[Groups, list[str]]:
    """Take `workgroup=X[,Y[,Z]]` out of the options."""
    flags = [option for option in options if not option.startswith("workgroup=")]
    sizes = [option.partition("=")[2] for option in options if option.startswith("workgroup=")]
    if not sizes:
        return (1, 1, 1), flags
    parts = sizes[-1].split(",")
    if len(parts) > 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidArgumentError(
            f"driver 'cpu': the option workgroup={sizes[-1]} must be one to three counts above 0"
        )
    numbers = [int(part) for part in parts] + [1, 1]
    return (numbers[0], numbers[1], numbers[2]), flags


def _known(function: CFunction) -> tuple[np.dtype[Any], ...]:
    """The constants by reflection; a struct of which only the size is known is taken as that many raw bytes."""
    pairs = zip(function.constants, function.constant_sizes, strict=True)
    return tuple(np.dtype([("bytes", f"V{size}")]) if kind is None else kind for kind, size in pairs)


def _check_declared(function: CFunction, signature: Signature) -> None:
    """A declaration and the C source must agree, or the call would read wild memory."""
    if function.bindings != signature.bindings:
        raise CompileError(
            f"kernel {signature.name!r} declares {signature.bindings} bindings,"
            f" and its C source takes {function.bindings}",
            log="",
        )
    declared = [kind.itemsize for kind in signature.constants]
    if declared != list(function.constant_sizes):
        raise CompileError(
            f"kernel {signature.name!r} declares constants of {declared} bytes, and its C source takes"
            f" {list(function.constant_sizes)}",
            log="",
        )
    for index, (kind, found) in enumerate(zip(signature.constants, function.constants, strict=True)):
        if found is not None and (kind.kind, kind.itemsize) != (found.kind, found.itemsize):
            raise CompileError(
                f"kernel {signature.name!r}: constant {index} is declared {kind}, and is {found} in C", log=""
            )
