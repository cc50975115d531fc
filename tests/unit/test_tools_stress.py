"""The stress tool: what it does to a run, and how it tells of a failure."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"

PROBE = """
import gc, os, sys, threading
import pytest

def test_probe():
    disturbed = os.environ["TIDEGATE_STRESS"].split(",")
    assert (sys.getswitchinterval() < 1e-5) == ("switch" in disturbed)
    assert any("stress" in one.__module__ for one in gc.callbacks) == ("collect" in disturbed)
    assert (sys.getprofile() is not None) == ("stall" in disturbed)
    assert ("stress collector" in {thread.name for thread in threading.enumerate()}) == ("collect" in disturbed)

@pytest.mark.slow
def test_slow():
    pass
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow']\n")
    (tmp_path / "test_probe.py").write_text(PROBE)
    return tmp_path


def stress(root, *arguments):
    command = [
        sys.executable,
        str(TOOLS / "stress.py"),
        "--root",
        str(root),
        "--driver",
        "",
        "--tests",
        "test_probe.py",
    ]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.long
def test_each_mode_disturbs_as_it_says(project):
    done = stress(project, "--runs", "6", "--seed", "40")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:6]] == [
        "plain, seed 40",
        "switch, seed 41",
        "busy, seed 42",
        "collect, seed 43",
        "stall, seed 44",
        "all, seed 45",
    ]
    assert all("2 passed" in line for line in lines[:6])
    assert lines[6].startswith("6 runs without a failure")


@pytest.mark.long
def test_the_short_form_runs_each_mode_once_without_slow_tests(project):
    done = stress(project, "--quick", "--modes", "plain", "switch")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("1 passed, 1 deselected") == 2


@pytest.mark.long
def test_the_first_failure_ends_it_and_tells_how_to_repeat_it(project):
    (project / "test_probe.py").write_text(
        "import os\ndef test_fails_later():\n    assert int(os.environ['TIDEGATE_STRESS_SEED']) < 8\n"
    )
    done = stress(project, "--modes", "plain", "--runs", "9", "--seed", "7", "--pytest=--timeout=60")
    assert done.returncode == 1
    assert "plain, seed 7:" in done.stdout
    assert "FAILED: mode plain, seed 8: exit status 1" in done.stdout
    assert "repeat with: python tools/stress.py --modes plain --runs 1 --seed 8" in done.stdout
    assert "assert 8 < 8" in done.stdout
    again = shlex.split(done.stdout.partition("repeat with: python tools/stress.py ")[2])
    repeated = stress(project, *again)
    assert repeated.returncode == 1, repeated.stderr
    assert "FAILED: mode plain, seed 8" in repeated.stdout


@pytest.mark.long
def test_a_run_that_hangs_is_ended_and_shows_where_it_was(project):
    (project / "test_probe.py").write_text(
        "import threading\ndef test_that_hangs_here():\n    threading.Event().wait(60)\n"
    )
    done = stress(project, "--modes", "plain", "--limit", "3")
    assert done.returncode == 1
    assert "did not end within 3 s" in done.stdout
    assert "test_that_hangs_here" in done.stdout


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--modes", "gently"]])
def test_wrong_use_is_told_with_status_2(project, arguments):
    assert stress(project, *arguments).returncode == 2
