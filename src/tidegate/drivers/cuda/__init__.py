"""The CUDA driver: real timelines on NVIDIA GPUs.

A small set of streams, each with an epoch word in page-locked memory that the stream itself raises. Semaphores stay on
the host; streams only ever wait for work that is already on another stream. Short calls into CUDA keep the GIL, see
`_native`. Nothing of CUDA is loaded before somebody asks for it.

| option | means |
| --- | --- |
| `memory=SIZE` | budget of the device's pools, as `memory=8GiB` |
| `gil=release` | short calls give the GIL away: beside libraries that run Python on CUDA's threads |
| `epochs=events` | no memory operations: epochs are told by events alone |
| `commands=graph`, `commands=stream` | command buffers as graphs, or call by call; otherwise whichever fits |
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tidegate._core import process
from tidegate.driver import DeviceRequest, Driver, parse_size
from tidegate.errors import DriverUnavailableError, InvalidArgumentError, NotFoundError
from tidegate.types import DeviceInfo, DriverInfo

from ._errors import translate
from ._native import Native, NativeError
from ._nvrtc import Nvrtc
from ._prototypes import Attribute
from .device import CudaDevice
from .executable import Loader, device_limits

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_DEFAULT_CONNECTIONS = 8
_FORK_HINT = "start it with multiprocessing's 'spawn', or let CUDA be used in the child alone"
_FORK_CODES = frozenset({3, 999})
"""NOT_INITIALIZED and UNKNOWN: what a start says in a forked child where another library had started CUDA before."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "gil": ("keep", "release"),
    "epochs": ("auto", "memory", "events"),
    "commands": ("auto", "graph", "stream"),
}


class CudaDriver(Driver):
    """Opens NVIDIA GPUs.

    Args:
        open_native: returns the way to CUDA; takes whether short calls release the GIL.
        open_compiler: returns NVRTC.
        scheme: what URIs of its devices begin with.

    """

    name = "cuda"

    def __init__(
        self,
        open_native: Callable[[bool], Native] = Native,
        open_compiler: Callable[[], Nvrtc] = Nvrtc,
        scheme: str = "cuda",
    ) -> None:
        self._open_native = open_native
        self._scheme = scheme
        self._natives: dict[bool, Native] = {}
        self._loader = Loader(open_compiler)
        self._lock = threading.RLock()
        self._connections = _DEFAULT_CONNECTIONS
        self._process: process.Process | None = None
        """Where CUDA was started: in a child that is forked from there it works no more."""
        process.in_child(self._lock._at_fork_reinit)  # type: ignore[attr-defined]

    def describe(self) -> DriverInfo:
        try:
            native = self._native(False)
            count = native.device_count()
            uris = [f"{self._scheme}:{index}" if index else self._scheme for index in range(count)]
            devices = tuple(self._info(native, uri, index) for index, uri in enumerate(uris))
        except DriverUnavailableError as error:
            return DriverInfo(self._scheme, available=False, reason=str(error))
        except NativeError as error:
            return DriverInfo(self._scheme, available=False, reason=str(translate(error)))
        return DriverInfo(self._scheme, available=True, devices=devices)

    def open(self, request: DeviceRequest) -> CudaDevice:
        options = _checked(request)
        native = self._native(options["gil"] == "release")
        try:
            index = self._index(native, request)
            info = self._info(native, request.uri, index)
            if options["epochs"] == "auto":
                memory = native.device_attribute(Attribute.MEM_OPS_64, native.device(index))
                options["epochs"] = "memory" if memory else "events"
            return CudaDevice(native, self._loader, info, index, self._connections, options)
        except NativeError as error:
            raise translate(error, f"device {request.uri!r}") from error

    def _index(self, native: Native, request: DeviceRequest) -> int:
        count = native.device_count()
        path = request.path or "0"
        if not path.isascii() or not path.isdigit() or int(path) >= count:
            raise NotFoundError(
                f"device {request.uri!r}: there are {count} CUDA devices, numbered from 0, and no {path!r}"
            )
        return int(path)

    def _native(self, release_gil: bool) -> Native:
        if self._process is not None and self._process.forked:
            raise DriverUnavailableError(
                f"CUDA cannot be used in this process, which was forked after its parent had used CUDA: {_FORK_HINT}"
            )
        with self._lock:
            found = self._natives.get(release_gil)
            if found is None:
                found = self._natives[release_gil] = self._start(release_gil)
            return found

    def _start(self, release_gil: bool) -> Native:
        try:
            native = self._open_native(release_gil)
        except OSError as error:
            raise DriverUnavailableError(
                f"CUDA needs NVIDIA's driver, whose library libcuda.so.1 was not found: install the driver ({error})"
            ) from error
        except AttributeError as error:
            raise DriverUnavailableError(f"{error}; Tidegate needs CUDA 12.4 or later: update the driver") from error
        self._choose_connections(native)
        before, self._process = self._process, process.here  # before the start: a fork in the middle spoils it too
        try:
            _init(native)
        except BaseException:
            self._process = before
            raise
        return native

    def _choose_connections(self, native: Native) -> None:
        """Ask for 32 hardware queues instead of 8, if nobody has chosen and CUDA has not started yet."""
        if _CONNECTIONS not in os.environ and not _started(native):
            os.environ[_CONNECTIONS] = "32"
        try:
            self._connections = int(os.environ.get(_CONNECTIONS, _DEFAULT_CONNECTIONS))
        except ValueError:
            self._connections = _DEFAULT_CONNECTIONS

    def _info(self, native: Native, uri: str, index: int) -> DeviceInfo:
        device = native.device(index)
        major, minor = (native.device_attribute(what, device) for what in (Attribute.MAJOR, Attribute.MINOR))
        version = native.driver_version()
        details: Mapping[str, Any] = {
            "compute_capability": f"{major}.{minor}",
            "cuda": f"{version // 1000}.{version % 1000 // 10}",
            "multiprocessors": native.device_attribute(Attribute.MULTIPROCESSORS, device),
        }
        limits = device_limits(native, device)
        return DeviceInfo(
            uri, native.device_name(device), self._scheme, native.device_memory(device), limits=limits, details=details
        )


def _init(native: Native) -> None:
    try:
        native.init()
        count = native.device_count()
    except NativeError as error:
        hint = (
            f"; if this process was forked after CUDA had been used, {_FORK_HINT}" if error.code in _FORK_CODES else ""
        )
        raise DriverUnavailableError(
            f"CUDA cannot start: {error}{hint}", native_code=error.code, native_name=error.name
        ) from error
    if count == 0:
        raise DriverUnavailableError("CUDA's driver is installed, but there is no device that it can use")


def _started(native: Native) -> bool:
    """Whether somebody in the process has started CUDA already."""
    try:
        native.device_count()
    except NativeError:
        return False
    return True


def _checked(request: DeviceRequest) -> dict[str, Any]:
    """Return all options with their defaults."""
    options: dict[str, Any] = {name: choices[0] for name, choices in _CHOICES.items()}
    options["memory"] = None
    for name, value in request.options.items():
        if name == "memory":
            options[name] = parse_size(request.uri, value)
        elif name not in _CHOICES:
            known = ", ".join([*_CHOICES, "memory"])
            raise InvalidArgumentError(f"device {request.uri!r}: unknown option {name!r}; the known ones are {known}")
        elif value not in _CHOICES[name]:
            raise InvalidArgumentError(
                f"device {request.uri!r}: {name} is {value!r}, and must be {' or '.join(_CHOICES[name])}"
            )
        else:
            options[name] = value
    return options


driver = CudaDriver()
