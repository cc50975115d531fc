"""What the tests of the drivers share."""

from __future__ import annotations

import pytest

from tidegate._core.background import deferred


@pytest.fixture(scope="session", autouse=True)
def _background() -> None:
    """Start the core's helper thread, as every opened device does: some tests have a driver and no device."""
    deferred.ensure()
