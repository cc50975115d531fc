"""The Metal driver: Apple's GPUs, through PyObjC.

Native queues in order with a shared event each, one command buffer per submission, and the completed status as the only
truth. Nothing of PyObjC is imported before a device is asked for on a Mac; everything reaches Metal through the
namespace that `_native.load` returns, so that a simulated Metal can be given instead. It has not been run on a Mac by
its authors yet: see the page on this driver for what has run where.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tidegate.driver import DeviceRequest, Driver, parse_size
from tidegate.errors import DriverUnavailableError, InvalidArgumentError, NotFoundError
from tidegate.types import DeviceInfo, DriverInfo, Limits

if TYPE_CHECKING:
    from tidegate.drivers.metal._native import Native, Object
    from tidegate.drivers.metal.device import MetalDevice

INSTALL = "pip install 'tidegate[metal]'"
MAX_BINDINGS = 31
"""Entries of Metal's buffer argument table, which bindings and constants share."""


class MetalDriver(Driver):
    """Finds and opens the GPUs that Metal knows.

    Args:
        native: what stands for Metal; None: Metal itself, loaded when first needed.
        scheme: what URIs of its devices begin with.

    """

    name = "metal"

    def __init__(self, native: Native | None = None, scheme: str = "metal") -> None:
        self._native = native
        self._scheme = scheme

    def describe(self) -> DriverInfo:
        try:
            native = self._load()
            with native.autorelease_pool():
                devices = tuple(
                    self._info(f"{self._scheme}:{index}", handle) for index, handle in enumerate(self._handles(native))
                )
        except DriverUnavailableError as error:
            return DriverInfo(self._scheme, available=False, reason=str(error))
        return DriverInfo(self._scheme, available=True, devices=devices)

    def open(self, request: DeviceRequest) -> MetalDevice:
        options = dict(request.options)
        budget = parse_size(request.uri, options.pop("memory", None))
        if options:
            raise InvalidArgumentError(
                f"device {request.uri!r}: unknown option {next(iter(options))!r}; the known one is memory"
            )
        native = self._load()
        from tidegate.drivers.metal.device import MetalDevice

        with native.autorelease_pool():
            handle = self._find(request, self._handles(native))
            return MetalDevice(native, handle, self._info(request.uri, handle), budget)

    def _load(self) -> Native:
        if self._native is None:
            if sys.platform != "darwin":
                raise DriverUnavailableError(
                    f"metal needs macOS and the extra tidegate[metal] there ({INSTALL}); this is {sys.platform}"
                )
            from tidegate.drivers.metal import _native

            try:
                self._native = _native.load()
            except ImportError as error:
                raise DriverUnavailableError(f"metal needs PyObjC: {INSTALL} ({error})") from error
        return self._native

    def _handles(self, native: Native) -> list[Object]:
        from tidegate.drivers.metal import _native

        handles = _native.all_devices(native)
        if not handles:
            raise DriverUnavailableError("metal: this Mac, or the machine it runs on, has no GPU that Metal knows")
        return handles

    def _find(self, request: DeviceRequest, handles: list[Object]) -> Object:
        path = request.path or "0"
        if not path.isascii() or not path.isdigit() or int(path) >= len(handles):
            raise NotFoundError(f"device {request.uri!r}: there are {len(handles)} GPUs, numbered from 0, not {path!r}")
        return handles[int(path)]

    def _info(self, uri: str, handle: Object) -> DeviceInfo:
        from tidegate.drivers.metal import _native

        return DeviceInfo(
            uri,
            _native.device_name(handle),
            self._scheme,
            _native.working_set_bytes(handle),
            Limits(
                max_workgroup=_native.max_threads(handle),
                max_local_memory=_native.max_threadgroup_bytes(handle),
                max_bindings=MAX_BINDINGS,
            ),
            details={
                "registry_id": _native.registry_id(handle),
                "unified_memory": _native.has_unified_memory(handle),
                "max_buffer_bytes": _native.max_buffer_bytes(handle),
            },
        )


driver = MetalDriver()
