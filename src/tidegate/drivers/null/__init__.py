"""The null driver: takes all work, does none of it, and tells at once that it is over.

It is the template to clone for a new driver (see the README beside this file), and a way to run the scheduling of a
program without its work. The memory it gives has a size and no bytes.
"""

from __future__ import annotations

from tidegate.driver import DeviceRequest, Driver
from tidegate.drivers.null.device import NullDevice
from tidegate.errors import InvalidArgumentError
from tidegate.types import DeviceInfo, DriverInfo


class NullDriver(Driver):
    """Finds and opens devices. Yours asks its library here, and says in words what is missing."""

    name = "null"

    def describe(self) -> DriverInfo:
        return DriverInfo(self.name, available=True, devices=(self._info("null"),))

    def open(self, request: DeviceRequest) -> NullDevice:
        if request.path or request.options:
            raise InvalidArgumentError(f"device {request.uri!r}: the null driver takes no number and no options")
        return NullDevice(self._info(request.uri))

    def _info(self, uri: str) -> DeviceInfo:
        return DeviceInfo(uri, "nothing", self.name, memory_bytes=0)


driver = NullDriver()
