"""The harness of the suite: subjects, their limits, what a run reports, and where interrupts strike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate as tg
from tidegate import conformance
from tidegate.conformance import subjects
from tidegate.conformance.interrupts import interrupted_at
from tidegate.conformance.latches import Latch, LatchTimeoutError, block_by_host_call

ONE = "test_host_waits::test_the_same_point_may_stand_twice_in_all_and_any"

#: Nothing is collected but the two modules that have the tests named here.
QUICKLY = ("-p", "no:hypothesispytest", "--ignore-glob=*/test_[!hs]*.py", "--ignore-glob=*/test_s[!e]*.py")


def run(tmp_path: Path, limits: str, *arguments: str) -> tuple[int, str, dict[str, dict[str, str]]]:
    """Run one test of the suite against a subject with the given limits."""
    (tmp_path / "joined.py").write_text(
        f"from tidegate.conformance.subjects import Subject\ndef subject():\n    return Subject('joined', {limits})\n",
        encoding="utf-8",
    )
    report = tmp_path / "report.json"
    code = (
        "import sys; from tidegate.conformance import run;"
        "sys.exit(run('joined:subject', json=sys.argv[1], require='--must' in sys.argv,"
        "arguments=[a for a in sys.argv[2:] if a != '--must']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(report), "-k", ONE.partition("::")[2], *QUICKLY, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    records = json.loads(report.read_text(encoding="utf-8"))["tests"] if report.exists() else []
    return done.returncode, done.stdout + done.stderr, {record["test"]: record for record in records}


def test_a_subject_joins_by_the_name_of_a_factory_and_the_report_names_the_rules(tmp_path: Path) -> None:
    status, output, records = run(tmp_path, "'null'")
    assert status == 0, output
    assert records == {ONE: {"test": ONE, "rules": ["M9"], "outcome": "passed", "why": ""}}


def test_what_a_subject_never_does_is_skipped_with_the_reason(tmp_path: Path) -> None:
    status, output, records = run(tmp_path, "'null', never={'test_host_waits::*': 'the moon is wrong'}")
    assert status == 0, output
    assert records[ONE]["outcome"] == "skipped"
    assert "the moon is wrong" in records[ONE]["why"]


def test_what_a_subject_does_not_do_yet_must_not_pass(tmp_path: Path) -> None:
    status, output, _ = run(tmp_path, "'null', not_yet={'*twice_in_all*': 'next month'}")
    assert status == 1
    assert "XPASS" in output


def test_a_driver_that_is_not_available_is_skipped_or_with_require_fails(tmp_path: Path) -> None:
    source = "import tidegate as tg\ndef absent(uri, **options):\n    raise tg.DriverUnavailableError('buy one')\n"
    (tmp_path / "absent.py").write_text(source, encoding="utf-8")
    limits = "'null', open=__import__('absent').absent"
    name = "test_a_device_tells_how_it_works_with_a_semaphore"
    assert run(tmp_path, limits, "-k", name)[0] == 0
    status, output, _ = run(tmp_path, limits, "-k", name, "--must")
    assert status == 1
    assert "buy one" in output


def test_an_unknown_subject_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(tg.InvalidArgumentError, match="cpu-one-worker"):
        conformance.run("no-such-subject")
    with pytest.raises(tg.InvalidArgumentError, match="no_such_module"):
        subjects.find("no_such_module:subject")


def test_a_subject_cannot_lack_what_is_no_capability() -> None:
    with pytest.raises(tg.InvalidArgumentError, match="wings"):
        subjects.Subject("some", "null", lacks={"wings": "too heavy"})


def test_options_of_a_device_join_the_uri() -> None:
    opened: list[tuple[str, dict[str, object]]] = []

    def note(uri: str, **keywords: object) -> None:
        opened.append((uri, keywords))

    for uri in ("cpu", "cpu?workers=1"):
        subjects.Subject("some", uri, open=note).open_device(memory="1MiB", label="x")  # type: ignore[arg-type]
    assert opened == [("cpu?memory=1MiB", {"label": "x"}), ("cpu?workers=1&memory=1MiB", {"label": "x"})]


def test_a_latch_that_nobody_enters_says_so() -> None:
    latch = Latch(block_by_host_call)
    with pytest.raises(LatchTimeoutError):
        latch.wait_until_running(timeout=0)


def test_interrupts_strike_inside_of_the_package_only_and_each_step_once() -> None:
    places = []
    with tg.open_device("null") as device:
        for step in range(1, 500):
            with interrupted_at(step) as interruption:
                device.allocate(sum(1 for _ in range(10)))
            if not interruption.fired:
                break
            assert interruption.raised
            places.append(interruption.where)
    assert len(places) > 3
    package = str(Path(tg.__file__).parent)
    assert all(where.startswith(package) and "conformance" not in where for where in places)


def test_an_interrupt_that_is_not_reached_changes_nothing() -> None:
    sem = tg.Semaphore()
    with interrupted_at(10**9) as interruption:
        sem.signal(1)
    assert not interruption.fired
