"""Where there is no Metal: what is said, and what is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tidegate as tg
from tidegate.driver import DeviceRequest
from tidegate.drivers.metal import MetalDriver, driver
from tidegate.testing import metal_simulated

from .driver_bench import DriverBench

not_a_mac = pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")


@not_a_mac
def test_the_list_of_drivers_says_that_metal_needs_macos_and_which_extra() -> None:
    (info,) = [info for info in tg.list_drivers() if info.name == "metal"]
    assert not info.available
    assert not info.devices
    assert "macOS" in info.reason
    assert "tidegate[metal]" in info.reason


@not_a_mac
def test_opening_metal_elsewhere_is_unavailable_with_the_same_words() -> None:
    with pytest.raises(tg.DriverUnavailableError, match=r"macOS.*tidegate\[metal\]"):
        tg.open_device("metal")


@not_a_mac
def test_nothing_of_pyobjc_is_imported() -> None:
    code = """
import sys, tidegate as tg
tg.list_drivers()
try:
    tg.open_device("metal")
except tg.DriverUnavailableError:
    pass
print(*sys.modules, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"objc", "Metal", "Foundation", "libdispatch", "PyObjCTools"}
    assert "tidegate.drivers.metal.device" not in done.stdout.split()


def test_a_missing_pyobjc_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in ("Metal", "objc", "libdispatch"):
        monkeypatch.setitem(sys.modules, name, None)
    fresh = MetalDriver()
    assert "pip install 'tidegate[metal]'" in fresh.describe().reason
    with pytest.raises(tg.DriverUnavailableError, match="PyObjC") as caught:
        fresh.open(DeviceRequest("metal", "metal"))
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_mac_without_a_gpu_has_no_devices() -> None:
    none = MetalDriver(metal_simulated.native(devices=0))
    assert not none.describe().available
    assert "GPU" in none.describe().reason


def test_devices_are_numbered_and_described() -> None:
    native = metal_simulated.native(devices=2)
    info = MetalDriver(native).describe()
    native.check()
    assert [device.uri for device in info.devices] == ["metal:0", "metal:1"]
    assert info.devices[0].memory_bytes > 0
    assert info.devices[0].limits.max_bindings == 31
    assert info.devices[0].limits.max_workgroup is not None
    assert set(info.devices[0].details) == {"registry_id", "unified_memory", "max_buffer_bytes"}


@pytest.mark.parametrize("path", ["1", "x", "-1", "9999"])
def test_a_device_that_is_not_there_is_not_found(path: str) -> None:
    one = MetalDriver(metal_simulated.native(devices=1))
    with pytest.raises(tg.NotFoundError, match="numbered from 0"):
        one.open(DeviceRequest(f"metal:{path}", "metal", path))


def test_an_unknown_option_is_refused_and_the_known_one_named(metal: DriverBench) -> None:
    with pytest.raises(tg.InvalidArgumentError, match=r"'workers'.*memory"):
        metal.open("metal-simulated?workers=3")
    with pytest.raises(tg.InvalidArgumentError, match="64MiB"):
        metal.open("metal-simulated?memory=plenty")


def test_the_registered_driver_is_called_metal() -> None:
    assert driver.name == "metal"
