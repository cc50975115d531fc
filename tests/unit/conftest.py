"""What the tests here work on: a device with one worker, and one of each kind that is moved by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate.testing import ManualDevice

LIMIT = 30.0


@pytest.fixture
def device() -> Iterator[tg.Device]:
    """A device that works by itself."""
    device = tg.open_device("cpu?workers=1", label="dev")
    yield device
    device.close(LIMIT)


@pytest.fixture
def manual() -> Iterator[ManualDevice]:
    """A device moved by hand, where each piece of work ends by itself."""
    with ManualDevice() as manual:
        yield manual


@pytest.fixture
def counting() -> Iterator[ManualDevice]:
    """A device moved by hand that counts in epochs."""
    with ManualDevice(counting=True) as manual:
        yield manual


@pytest.fixture(params=["plain", "counting"])
def either(request: pytest.FixtureRequest) -> Iterator[ManualDevice]:
    """A device moved by hand, of each kind."""
    with ManualDevice(counting=request.param == "counting") as manual:
        yield manual


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was reported because nobody could be told, so far."""
    caught: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", caught.append)
    yield caught
    caught.clear()
