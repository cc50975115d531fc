"""Drivers by their names: how they are found, loaded and listed, and which one is the best that is there."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest

import tidegate as tg
from tidegate.driver import DeviceRequest
from tidegate.drivers import cpu, cuda, metal
from tidegate.drivers.null import NullDriver
from tidegate.types import DeviceInfo, DriverInfo

from .raising import refused


class Fake(NullDriver):
    """A driver with one device or none, which notes what it is asked to open."""

    def __init__(self, name: str, available: bool = True) -> None:
        self.name = name
        self.available = available
        self.requests: list[DeviceRequest] = []

    def describe(self) -> DriverInfo:
        devices = (DeviceInfo(f"{self.name}:0", self.name, self.name, memory_bytes=0),) if self.available else ()
        return DriverInfo(self.name, available=self.available, devices=devices)

    def open(self, request: DeviceRequest) -> Any:
        if not self.available:
            raise tg.DriverUnavailableError(f"no {self.name} here")
        self.requests.append(request)
        return super().open(DeviceRequest("null", "null"))


_NUMBERS = itertools.count()

Install = Callable[..., str]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a driver as a package of its own does, under a name that no other test has; returns the name."""
    points = list(metadata.entry_points(group="tidegate.drivers"))
    module = ModuleType("installed_drivers")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [p for p in points if p.group == group])

    def install(made: object, name: str = "") -> str:
        name = name or f"fake{next(_NUMBERS)}"
        setattr(module, f"at_{len(points)}", made)
        points.append(metadata.EntryPoint(name, f"{module.__name__}:at_{len(points)}", "tidegate.drivers"))
        return name

    return install


@pytest.fixture
def fake(install: Install) -> tuple[str, Fake]:
    driver = Fake("fake")
    return install(driver), driver


@pytest.mark.parametrize(
    ("rest", "path", "options"),
    [
        ("", "", {}),
        (":0", "0", {}),
        (":a:b", "a:b", {}),
        ("?", "", {}),
        (":1?workers=4&memory=64MiB", "1", {"workers": "4", "memory": "64MiB"}),
        ("?empty=", "", {"empty": ""}),
        ("?a=b=c", "", {"a": "b=c"}),
        ("?a=b?c", "", {"a": "b?c"}),
    ],
)
def test_a_uri_is_taken_apart(fake: tuple[str, Fake], rest: str, path: str, options: dict[str, str]) -> None:
    name, driver = fake
    with tg.open_device(name + rest, label="x") as device:
        (request,) = driver.requests
        assert (request.uri, request.driver, request.path, request.options) == (name + rest, name, path, options)
        assert device.label == "x"


@pytest.mark.parametrize(
    ("uri", "error", "text"),
    [
        (7, TypeError, "a device URI is a string, not int"),
        (":0", tg.InvalidArgumentError, "the device URI ':0' names no driver: write 'cpu' or 'cpu?workers=4'"),
        ("?a=1", tg.InvalidArgumentError, "the device URI '?a=1' names no driver: write 'cpu' or 'cpu?workers=4'"),
        (
            "cpu?a",
            tg.InvalidArgumentError,
            "the options of the device URI 'cpu?a' must be name=value pairs, not 'a'",
        ),
        (
            "cpu?=1",
            tg.InvalidArgumentError,
            "the options of the device URI 'cpu?=1' must be name=value pairs, not '=1'",
        ),
        (
            "cpu?a=1&",
            tg.InvalidArgumentError,
            "the options of the device URI 'cpu?a=1&' must be name=value pairs, not ''",
        ),
        ("cpu?a=1&b=2&a=3", tg.InvalidArgumentError, "the device URI 'cpu?a=1&b=2&a=3' gives the option 'a' twice"),
    ],
)
def test_a_bad_uri_is_refused_in_these_words(uri: Any, error: type[BaseException], text: str) -> None:
    with refused(error, text):
        tg.open_device(uri)


def test_a_driver_is_loaded_once_from_an_object_or_a_function(install: Install) -> None:
    calls: list[int] = []
    made = Fake("made")
    names = [install(made), install(lambda: calls.append(1) or made)]
    for name in names * 2:
        tg.open_device(name).close()
    assert calls == [1]
    assert [request.driver for request in made.requests] == names * 2


def test_our_own_drivers_come_before_those_of_others(install: Install) -> None:
    install(Fake("theirs"), "null")
    with tg.open_device("null") as device:
        assert device.info.driver == "null"
    assert [driver.name for driver in tg.list_drivers()].count("null") == 1


def test_unknown_drivers_are_refused_in_these_words(fake: tuple[str, Fake]) -> None:
    with pytest.raises(tg.UnsupportedError, match=r"^driver 'sim': the simulator is not part of this version$"):
        tg.open_device("sim")
    with pytest.raises(
        tg.NotFoundError, match=rf"^there is no driver 'tpu'; the known ones are: cpu, .*{fake[0]}, .*metal"
    ) as caught:
        tg.open_device("tpu")
    assert caught.value.name == "tpu"  # type: ignore[attr-defined]


def test_drivers_are_listed_with_the_reason_why_not(install: Install) -> None:
    def broken() -> None:
        raise ImportError("No module named 'vendor'")

    names = [install(Fake("good")), install(broken)]
    found = {driver.name: driver for driver in tg.list_drivers()}
    assert found["good"].available
    assert not found[names[1]].available
    assert found[names[1]].reason == "No module named 'vendor'"


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[DeviceRequest]]:
    """Say which of our own drivers have a device; returns what they are asked to open."""

    def present(*names: str) -> list[DeviceRequest]:
        requests: list[DeviceRequest] = []
        for module in (cpu, cuda, metal):
            driver = module.driver
            stand_in = Fake(driver.name, driver.name in names)
            stand_in.requests = requests
            monkeypatch.setattr(driver, "open", stand_in.open)
            monkeypatch.setattr(driver, "describe", stand_in.describe)
        return requests

    return present


def test_devices_are_listed_best_first_without_the_hidden(
    install: Install, present: Callable[..., list[DeviceRequest]]
) -> None:
    install(Fake("other"))
    present("cpu", "cuda")
    listed = [info.uri for info in tg.list_devices()]
    assert listed[:2] == ["cuda:0", "cpu:0"]
    assert "other:0" in listed[2:]
    assert not any(uri.startswith(("null", "metal")) for uri in listed)


@pytest.mark.parametrize(
    ("names", "opened"), [(("cuda", "cpu"), "cuda"), (("cpu",), "cpu"), (("metal", "cpu"), "metal")]
)
def test_auto_opens_the_best_that_is_there_with_the_options_given(
    present: Callable[..., list[DeviceRequest]], names: tuple[str, ...], opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = present(*names)
    monkeypatch.setenv("TIDEGATE_DEVICE", "")
    for uri, options in (("auto?memory=1", {"memory": "1"}), (None, {})):
        with tg.open_device(uri) as device:
            request = requests.pop()
            assert device.describe() == f"device '{opened}'"
            assert (request.uri, request.driver, request.path, request.options) == (opened, opened, "", options)


def test_auto_with_nothing_there_says_what_the_last_one_says(present: Callable[..., list[DeviceRequest]]) -> None:
    present()
    with pytest.raises(tg.DriverUnavailableError, match=r"^no cpu here$"):
        tg.open_device("auto")


def test_the_environment_names_the_device_where_the_call_does_not(
    fake: tuple[str, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, driver = fake
    monkeypatch.setenv("TIDEGATE_DEVICE", f"{name}:3?a=b")
    tg.open_device().close()
    tg.open_device(name).close()
    assert [request.uri for request in driver.requests] == [f"{name}:3?a=b", name]


def test_options_of_later_versions_are_refused() -> None:
    with pytest.raises(tg.UnsupportedError, match=r"^open_device: validate= is not part of this version$"):
        tg.open_device("null", validate=True)
    with pytest.raises(tg.UnsupportedError, match=r"^open_device: trace= is not part of this version$"):
        tg.open_device("null", trace=True)
    with tg.open_device("null", validate=False, trace=None):
        pass
