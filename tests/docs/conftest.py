"""Runs programs the way a reader would: in a fresh interpreter, with nothing on standard error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TIME_LIMIT_S = 100
# What a kernel with a Python fallback rightly says on a machine without a C compiler.
_FALLBACK = "runs as a Python function on the CPU"


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[[Path], str]:
    """Runs a file in a folder of its own and gives what it printed; it must end well and complain of nothing."""

    def run(path: Path) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", str(path)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIME_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        complaints = [line for line in done.stderr.splitlines() if _FALLBACK not in line]
        assert not complaints
        return done.stdout

    return run
