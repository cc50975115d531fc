"""Finding drivers and opening devices. A driver is loaded when it is first named."""

from __future__ import annotations

import atexit
import os
import threading
from importlib import import_module
from typing import Any

from ..driver import DeviceRequest, Driver
from ..errors import DriverUnavailableError, InvalidArgumentError, NotFoundError, UnsupportedError
from ..types import DeviceInfo, DriverInfo
from . import compiled, process
from .device import Device, open_devices

_GROUP = "tidegate.drivers"
_OWN = {
    "cpu": "tidegate.drivers.cpu:driver",
    "cuda": "tidegate.drivers.cuda:driver",
    "metal": "tidegate.drivers.metal:driver",
    "null": "tidegate.drivers.null:driver",
}
_UNSUPPORTED = {"sim": "the simulator is not part of this version"}
_PREFERENCE = ("cuda", "metal", "cpu")
_HIDDEN = frozenset({"null"})

_lock = threading.RLock()
_loaded: dict[str, Driver] = {}
process.in_child(_lock._at_fork_reinit)  # type: ignore[attr-defined]


def _known() -> dict[str, str]:
    """Return the import path of every driver that is installed."""
    from importlib.metadata import entry_points

    found = {point.name: point.value for point in entry_points(group=_GROUP)}
    return {**found, **_OWN}


def register_driver(name: str, path: str) -> None:
    """Make a driver known in this process, as an entry point in group `tidegate.drivers` would.

    Args:
        name: as it stands in a URI.
        path: `package.module:attribute`; the attribute is a `Driver` or a function that returns one.

    """
    _OWN[name] = path


def load_driver(name: str) -> Driver:
    """Return a driver, loading it on first use.

    Raises:
        NotFoundError: there is none of that name; the message lists the known ones.
        UnsupportedError: the name is reserved for one that this version does not have.

    """
    with _lock:
        driver = _loaded.get(name)
        if driver is not None:
            return driver
        path = _OWN.get(name) or _known().get(name)
        if path is None:
            raise _unknown(name)
        module, _, attribute = path.partition(":")
        made: Any = getattr(import_module(module), attribute)
        driver = made if isinstance(made, Driver) else made()
        _loaded[name] = driver
        return driver


def _unknown(name: str) -> Exception:
    if name in _UNSUPPORTED:
        return UnsupportedError(f"driver {name!r}: {_UNSUPPORTED[name]}")
    known = ", ".join(sorted(_known()))
    return NotFoundError(f"there is no driver {name!r}; the known ones are: {known}", name=name)


def list_drivers() -> list[DriverInfo]:
    """Return every known driver: whether it can be used, if not why, and its devices. Opens nothing."""
    infos = []
    for name in _known():
        try:
            infos.append(load_driver(name).describe())
        except Exception as error:
            infos.append(DriverInfo(name, available=False, reason=str(error)))
    return infos


def list_devices() -> list[DeviceInfo]:
    """Return every device that could be opened, best first."""
    order = {name: index for index, name in enumerate(_PREFERENCE)}
    infos = [info for info in list_drivers() if info.available and info.name not in _HIDDEN]
    infos.sort(key=lambda info: order.get(info.name, len(order)))
    return [device for info in infos for device in info.devices]


def parse_uri(uri: str) -> DeviceRequest:
    """Take `driver[:path][?option=value&...]` apart."""
    if not isinstance(uri, str):
        raise TypeError(f"a device URI is a string, not {type(uri).__name__}")
    base, _, query = uri.partition("?")
    name, _, path = base.partition(":")
    if not name:
        raise InvalidArgumentError(f"the device URI {uri!r} names no driver: write 'cpu' or 'cpu?workers=4'")
    options: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        option, equals, value = pair.partition("=")
        if not option or not equals:
            raise InvalidArgumentError(f"the options of the device URI {uri!r} must be name=value pairs, not {pair!r}")
        if option in options:
            raise InvalidArgumentError(f"the device URI {uri!r} gives the option {option!r} twice")
        options[option] = value
    return DeviceRequest(uri, name, path, options)


def open_device(uri: str | None = None, *, label: str = "", validate: bool = False, trace: Any = None) -> Device:
    """Open a device.

    Args:
        uri: "cpu", "cpu?workers=4", "auto"; None takes `$TIDEGATE_DEVICE`, else "auto": the best one present.
        label: the name in errors and traces.
        validate: not in this version.
        trace: not in this version.

    Raises:
        NotFoundError: there is no such driver; the message lists the known ones.
        DriverUnavailableError: its hardware or library is absent; the message says what to install.
        InvalidArgumentError: an unknown option.
        UnsupportedError: `validate` and `trace`, which this version does not have.

    """
    if validate:
        raise UnsupportedError("open_device: validate= is not part of this version")
    if trace is not None:
        raise UnsupportedError("open_device: trace= is not part of this version")
    request = parse_uri(uri if uri is not None else os.environ.get("TIDEGATE_DEVICE") or "auto")
    if request.driver == "auto":
        return _open_best(request, label)
    driver = load_driver(request.driver)
    return Device(driver, driver.open(request), request.uri, label)


def _open_best(request: DeviceRequest, label: str) -> Device:
    for name in _PREFERENCE:
        try:
            driver = load_driver(name)
            return Device(driver, driver.open(DeviceRequest(name, name, "", request.options)), name, label)
        except DriverUnavailableError:
            if name == _PREFERENCE[-1]:
                raise
    raise AssertionError("the last preference is always there")


def _at_exit() -> None:
    """The interpreter exits: nothing is waited for, nothing may crash (M37)."""
    process.here.exiting = True
    compiled.exits()
    for device in open_devices():
        if not device._process.forked:
            device._driver.abandon()


atexit.register(_at_exit)
