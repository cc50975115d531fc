"""`tidegate devices`."""

from __future__ import annotations

import json

import pytest

from tidegate.cli import main
from tidegate.types import DeviceInfo, DriverInfo

ABSENT = DriverInfo("warp", available=False, reason="no warp core: install [warp]")
PRESENT = DriverInfo("cpu", True, devices=(DeviceInfo("cpu", "Eight cores", "cpu", 3 * 2**30, details={"cores": 8}),))


@pytest.fixture
def two_drivers(monkeypatch):
    monkeypatch.setattr("tidegate.list_drivers", lambda: [PRESENT, ABSENT])


@pytest.mark.usefixtures("two_drivers")
def test_the_table_shows_devices_and_why_a_driver_has_none(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert "Eight cores" in text
    assert "3.0 GiB" in text
    assert "no warp core: install [warp]" in text


@pytest.mark.usefixtures("two_drivers")
def test_json_carries_every_fact(capsys):
    assert main(["devices", "--json"]) == 0
    present, absent = json.loads(capsys.readouterr().out)["drivers"]
    assert present["devices"][0]["uri"] == "cpu"
    assert present["devices"][0]["details"] == {"cores": 8}
    assert (absent["available"], absent["reason"]) == (False, ABSENT.reason)


def test_the_cpu_is_always_there(capsys):
    assert main(["devices", "--json"]) == 0
    drivers = json.loads(capsys.readouterr().out)["drivers"]
    assert any(device["uri"] == "cpu" for driver in drivers for device in driver["devices"])
