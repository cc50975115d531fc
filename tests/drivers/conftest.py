"""What the tests of the drivers share."""

from __future__ import annotations

import pytest

import tidegate as tg


@pytest.fixture(scope="session", autouse=True)
def _background() -> None:
    """Have the core start its helper threads, as every opened device does: some tests have a driver and no device."""
    tg.open_device("null").close()
