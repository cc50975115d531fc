"""`tools/card.py` comes to its end whatever a test does, and tells what that was."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[4] / "tools"

pytestmark = pytest.mark.slow

TESTS = """
import ctypes

def test_before(record_property): record_property("each_us", 3)
def test_hangs_with_the_gil(): ctypes.PyDLL(None).sleep(60)
def test_crashes(): ctypes.string_at(0)
def test_fails(): assert 1 == 2
def test_behind(): pass
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOLS))
    import card

    (tmp_path / "logs").mkdir()
    return card.Run(tmp_path, tmp_path / "logs", 100, 0, card.environment(None, tmp_path))


def step(run: Any, name: str, *command: str, **options: Any) -> Any:
    return sys.modules["card"].Step(name, command, **options)


def summary(run: Any, tmp_path: Path) -> dict[str, Any]:
    run.finish()
    steps = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["steps"]
    return {result["step"]: result for result in steps}


def test_a_test_that_hangs_or_crashes_does_not_keep_the_others_from_running(run: Any, tmp_path: Path) -> None:
    (tmp_path / "test_these.py").write_text(TESTS, encoding="utf-8")
    own = (str(tmp_path / "test_these.py"), "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", "/dev/null")
    run.run([step(run, "tests", sys.executable, "-m", "pytest", tests=own, test_limit=3.0, limit=90)], 1)
    found = summary(run, tmp_path)["tests"]
    assert found["status"] == "hung"
    assert found["counts"] == {"passed": 2, "hung": 2, "failed": 1}
    traces = {hang["test"].partition("::")[2]: hang["text"] for hang in found["hangs"]}
    assert "in test_hangs_with_the_gil" in traces["test_hangs_with_the_gil"]
    assert "in test_crashes" in traces["test_crashes"]
    assert found["figures"] == {"test_these::test_before": {"each_us": 3}}
    assert (tmp_path / "logs.tar.gz").exists()


def test_every_step_has_an_outcome(run: Any, tmp_path: Path) -> None:
    endless = step(run, "endless", sys.executable, "-c", "import time; time.sleep(60)", limit=6)
    steps = [
        endless,
        step(run, "fails", sys.executable, "-c", "1/0"),
        step(run, "passes", sys.executable, "-c", "pass", alone=True),
        step(run, "missing", "no-such-program"),
    ]
    run.run(steps, 3)
    found = summary(run, tmp_path)
    assert {name: result["status"] for name, result in found.items()} == {
        "endless": "hung", "fails": "failed", "passes": "passed", "missing": "missing"
    }  # fmt: skip
    assert "Current thread" in found["endless"]["text"]
    assert "ZeroDivisionError" in found["fails"]["text"]
