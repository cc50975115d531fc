"""Real signals at random, for a second of each kind: see `storms`. `tools/storm.py` goes on for longer."""

from __future__ import annotations

import signal

import pytest

from .storms.kinds import KINDS
from .storms.run import run_apart
from .subjects import Subject

pytestmark = [
    pytest.mark.rules("M10", "M12", "M18", "M19", "M33", "M35", "M40"),
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timer signals"),
]

SECONDS = 0.7


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_in_a_storm(subject: Subject, pytestconfig: pytest.Config, kind: str) -> None:
    well, told = run_apart(pytestconfig.getoption("--tidegate-driver"), kind, SECONDS, seed=0)
    assert well, told
