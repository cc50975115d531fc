"""Devices for tests that are about a real card: on the card where there is one, and on the simulation where that can.

A test that takes `driver`, or anything made of it, runs on both. One that takes `card` needs the real thing.
`python tools/card.py` runs them all on a machine with a card, each group with a time limit of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate.conformance.latches import Latch, block_by_watched_memory
from tidegate.testing import register_cuda_simulated

from .programs import LIMIT, REAL, SIMULATED, spin, touch


def why_no_card() -> str:
    """Why there is no card; nothing if there is one."""
    facts = {fact.name: fact for fact in tg.list_drivers()}[REAL]
    return "" if facts.available else f"there is no CUDA device: {facts.reason}"


@pytest.fixture(scope="session")
def card() -> str:
    """The driver of the real card."""
    reason = why_no_card()
    if reason:
        pytest.skip(reason)
    return REAL


@pytest.fixture(params=[REAL, SIMULATED])
def driver(request: pytest.FixtureRequest) -> str:
    """One driver after the other."""
    if request.param == SIMULATED:
        register_cuda_simulated()
    else:
        request.getfixturevalue("card")
    return str(request.param)


@pytest.fixture
def open_device(driver: str) -> Iterator[Callable[..., tg.Device]]:
    """Opens devices: `open_device(memory="64MiB")`; they are closed at the end, and nothing may be left on them."""
    opened: list[tg.Device] = []

    def opening(**options: str) -> tg.Device:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        opened.append(tg.open_device(f"{driver}?{query}" if query else driver))
        return opened[-1]

    yield opening
    for device in reversed(opened):
        device.close(LIMIT)
        assert (device.statistics().held, device.statistics().issued) == (0, 0)
    if driver == SIMULATED:
        from tidegate.testing.cuda_simulated import driver as simulated

        assert simulated.native.violations == []


@pytest.fixture
def device(open_device: Callable[..., tg.Device]) -> tg.Device:
    """A device with the common kernels on it: to load more while something runs would wait for that."""
    made = open_device()
    for kernel in (touch, spin):
        made.load(kernel)
    return made


@pytest.fixture
def latch(open_device: Callable[..., tg.Device]) -> Iterator[Latch]:
    """Holds work on the device until the host lets it go on; opened at the end, before the devices are closed."""
    made = Latch(block_by_watched_memory)
    yield made
    made.open_all()


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Keeps figures with the report of the test: `measured(longest_ms=3.2)`."""

    def keep(**figures: float) -> None:
        for name, figure in figures.items():
            record_property(name, round(figure, 4))
            print(f"{name}: {figure:.4g}")

    return keep


@pytest.fixture
def native(device: tg.Device) -> Any:
    """The way to CUDA."""
    return device._driver.native  # type: ignore[attr-defined]


@pytest.fixture
def theirs(device: tg.Device, native: Any) -> Iterator[SimpleNamespace]:
    """A stream of somebody else."""
    inner: Any = device._driver
    with inner.entered():
        stream = native.create_stream()
    yield SimpleNamespace(stream=stream, entered=inner.entered)
    with inner.entered():
        native.synchronize_stream(stream)
        native.destroy_stream(stream)
