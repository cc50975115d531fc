"""What all cases share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate as tg

from .world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with tg.open_device("cpu?workers=1", label="home") as device:
        made = World(tmp_path, device)
        yield made
        made.close()
