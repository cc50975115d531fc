"""Fixtures of the tests of the Metal driver and of the simulated Metal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .driver_bench import DriverBench
from .workbench import Workbench


@pytest.fixture
def bench() -> Iterator[Workbench]:
    """A simulated Metal to work with; at the end only the rules a test meant to break may be broken."""
    made = Workbench()
    yield made
    made.close()


@pytest.fixture
def metal() -> Iterator[DriverBench]:
    """The driver over a simulated Metal; at the end no rule of Metal's may be broken."""
    made = DriverBench()
    yield made
    made.close()
