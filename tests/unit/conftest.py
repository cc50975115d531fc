"""What the tests of the internals work on: a device with one worker, and one that is moved by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate as tg

from .hand_driver import LIMIT, Bench, HandDevice, close_by_hand, open_by_hand


@pytest.fixture
def device() -> Iterator[tg.Device]:
    """A device that works by itself; a module about one moved by hand gives this name to that."""
    device = tg.open_device("cpu?workers=1", label="dev")
    yield device
    device.close(LIMIT)


@pytest.fixture
def opened() -> Iterator[tuple[tg.Device, HandDevice]]:
    """A device that is moved by hand, and what moves it."""
    device, hand = open_by_hand()
    yield device, hand
    close_by_hand(device, hand)


@pytest.fixture
def hand(opened: tuple[tg.Device, HandDevice]) -> HandDevice:
    return opened[1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    close_by_hand(bench.device, bench.hand)
    assert not any(ref() for ref in bench.device._held.values())


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was reported because nobody could be told, so far."""
    caught: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", caught.append)
    yield caught
    caught.clear()
