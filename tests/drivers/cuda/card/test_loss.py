"""A kernel that faults loses the device: the right errors for everything that was not over, and nothing hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .losing import LATE
from .programs import SIMULATED

pytestmark = [pytest.mark.slow, pytest.mark.rules("M36")]

CODES = {"address": {700}, "graph": {700}, "trap": {719, 715}, "assert": {710}}
"""Which of two codes a trap has depends on the card."""

FAILED = ("broken", "behind", "running", "held", "elsewhere", "semaphore")


@pytest.mark.parametrize("kind", CODES)
def test_a_kernel_that_faults_loses_the_device(driver: str, kind: str) -> None:
    found = lost(driver, kind)
    for name in FAILED:
        if name == "running" and kind in LATE:
            continue  # it is over before the fault is told
        assert found[name]["type"] == "DeviceLostError", (name, found[name])
    assert found["broken"]["code"] in CODES[kind]
    assert "restart" in found["broken"]["text"]
    assert found["health"] == "lost"
    assert found["before"] is None
    assert found["gate"] is None
    for name in ("fill", "allocate", "load", "read"):
        assert found[name]["type"] == "DeviceLostError", (name, found[name])
    assert found["open again"] is not None
    assert found["open again"]["type"] in ("DeviceLostError", "DriverUnavailableError"), found["open again"]
    assert found["partner"] is None
    assert found["close"] is None
    assert found["statistics"] == [0, 0]


def lost(driver: str, kind: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(Path(__file__).with_name("losing.py")), driver, kind],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "TIDEGATE_CONFORMANCE_LIMIT": "20"},
    )
    # A device that is lost is none that anybody forgot to close, and nothing is to be told at the end.
    assert (done.returncode, done.stderr) == (0, "") or driver != SIMULATED, done.stderr
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
