"""Drivers by their names: how they are found, loaded and listed, and which one is the best that is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import registry
from tidegate.driver import DeviceRequest
from tidegate.drivers.null import NullDriver
from tidegate.types import DeviceInfo, DriverInfo

from .hand_driver import HandDevice


class Fake(NullDriver):
    def __init__(self, name: str, available: bool = True) -> None:
        self.name = name
        self._available = available

    def describe(self) -> DriverInfo:
        devices = (DeviceInfo(f"{self.name}:0", self.name, self.name, memory_bytes=0),) if self._available else ()
        return DriverInfo(self.name, available=self._available, devices=devices)

    def open(self, request: DeviceRequest) -> Any:
        if not self._available:
            raise tg.DriverUnavailableError(f"no {self.name} here")
        device = HandDevice()
        device.request = request  # type: ignore[attr-defined]
        return device


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A registry of its own, with what the test puts there."""
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_OWN", {})
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    return registry._loaded  # type: ignore[return-value]


def test_a_driver_is_loaded_once_from_an_object_or_a_function(
    drivers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Fake("made")
    calls: list[int] = []
    module = SimpleNamespace(driver=made, factory=lambda: calls.append(1) or made)
    monkeypatch.setattr(registry, "import_module", {"some.module": module}.__getitem__)
    registry.register_driver("object", "some.module:driver")
    registry.register_driver("function", "some.module:factory")
    point = SimpleNamespace(name="entry", value="some.module:driver")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == "tidegate.drivers" else [])
    for name in ("object", "function", "entry"):
        assert registry.load_driver(name) is made
        assert registry.load_driver(name) is made
    assert calls == [1]
    assert set(drivers) == {"object", "function", "entry"}


def test_our_own_drivers_come_before_those_of_entry_points(
    drivers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register_driver("x", "ours:driver")
    points = [SimpleNamespace(name="x", value="theirs:driver"), SimpleNamespace(name="y", value="theirs:other")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert registry._known() == {"x": "ours:driver", "y": "theirs:other"}


def test_unknown_drivers_are_refused_in_these_words(drivers: dict[str, Any]) -> None:
    with pytest.raises(tg.UnsupportedError, match=r"^driver 'sim': the simulator is not part of this version$"):
        tg.open_device("sim")
    registry._OWN.update(two="-", one="-")
    with pytest.raises(tg.NotFoundError, match=r"^there is no driver 'tpu'; the known ones are: one, two$") as caught:
        tg.open_device("tpu")
    assert caught.value.name == "tpu"


def test_drivers_are_listed_with_the_reason_why_not(drivers: dict[str, Any]) -> None:
    drivers["good"] = Fake("good")
    registry._OWN.update(good="-", broken="no.such.module:driver")
    good, broken = tg.list_drivers()
    assert (good.name, good.available) == ("good", True)
    assert (broken.name, broken.available) == ("broken", False)
    assert "No module named" in broken.reason


def test_devices_are_listed_best_first_without_the_hidden(drivers: dict[str, Any]) -> None:
    for name in ("other", "cpu", "null", "metal", "cuda"):
        drivers[name] = Fake(name, available=name != "metal")
        registry._OWN[name] = "-"
    assert [info.uri for info in tg.list_devices()] == ["cuda:0", "cpu:0", "other:0"]


@pytest.mark.parametrize(
    ("present", "opened"), [(("cuda", "cpu"), "cuda"), (("cpu",), "cpu"), (("metal", "cpu"), "metal")]
)
def test_auto_opens_the_best_that_is_there_with_the_options_given(
    drivers: dict[str, Any], present: tuple[str, ...], opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cuda", "metal", "cpu"):
        drivers[name] = Fake(name, available=name in present)
    monkeypatch.setenv("TIDEGATE_DEVICE", "")
    for uri in ("auto?memory=1", None):
        with tg.open_device(uri, label="best") as device:
            request = device._driver.request  # type: ignore[attr-defined]
            assert (device._driver_name, device._uri, device.label) == (opened, opened, "best")
            assert (request.uri, request.driver, request.path) == (opened, opened, "")
            assert request.options == ({"memory": "1"} if uri else {})


def test_auto_with_nothing_there_says_what_the_last_one_says(drivers: dict[str, Any]) -> None:
    for name in ("cuda", "metal", "cpu"):
        drivers[name] = Fake(name, available=False)
    with pytest.raises(tg.DriverUnavailableError, match=r"^no cpu here$"):
        tg.open_device("auto")


def test_the_environment_names_the_device_where_the_call_does_not(
    drivers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers["one"], drivers["two"] = Fake("one"), Fake("two")
    monkeypatch.setenv("TIDEGATE_DEVICE", "one:3?a=b")
    with tg.open_device() as device:
        assert (device._driver_name, device._uri) == ("one", "one:3?a=b")
    with tg.open_device("two") as device:
        assert device._driver_name == "two"


def test_options_of_later_versions_are_refused() -> None:
    with pytest.raises(tg.UnsupportedError, match=r"^open_device: validate= is not part of this version$"):
        tg.open_device("null", validate=True)
    with pytest.raises(tg.UnsupportedError, match=r"^open_device: trace= is not part of this version$"):
        tg.open_device("null", trace=True)
    with tg.open_device("null", validate=False, trace=None):
        pass
