"""What a random program that goes wrong tells: the smallest one that does, as text that can be run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tidegate.conformance import subjects
from tidegate.conformance.programs import run
from tidegate.conformance.programs.generate import generate
from tidegate.conformance.programs.program import Program
from tidegate.conformance.programs.run import FORMS, Form, run_once, run_seeds
from tidegate.conformance.programs.shrink import shrink, without
from tidegate.conformance.programs.source import source
from tidegate.testing.faulty import FAULTS


def text_of(error: BaseException) -> str:
    """Return the program in an account of what went wrong."""
    return str(error).partition("as it stands:\n\n")[2]


@pytest.mark.slow
def test_a_failing_seed_prints_a_smaller_program_that_fails_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_SHRINK_SECONDS", 5.0)
    with FAULTS["loses-the-end-of-large-copies"].apply():
        with pytest.raises(AssertionError, match="bytes are wrong") as caught:
            run_seeds(subjects.find("cpu"), Form(1, failures=False), range(100))
        text = text_of(caught.value)
        namespace: dict[str, Any] = {"__name__": "printed"}
        exec(compile(text, "<printed>", "exec"), namespace)
        with tg.open_device("cpu") as device, pytest.raises(AssertionError, match="bytes are wrong"):
            namespace["program"](device)
    assert text.count("s[") < 12, "there is more in it than the copy that goes wrong and what it needs"


def test_a_printed_program_runs_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(source(generate(5, threads=8, failures=True), "cpu"))
    subprocess.run([sys.executable, str(path)], check=True, timeout=60)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_program_without_some_of_its_steps_is_right_too(form: Form) -> None:
    """Shrinking must not take the order away that the remaining steps need."""
    with tg.open_device("cpu") as device:
        for seed in range(10):
            program = generate(seed, threads=form.threads, failures=form.failures)
            numbers = [step.number for step in program.steps if not step.fixed]
            run_once(device, without(program, numbers[::2]))


def test_shrinking_finds_the_one_step_that_matters() -> None:
    program = generate(11, threads=8)
    culprit = [step.number for step in program.steps if not step.fixed][-1]

    def fails(candidate: Program) -> bool:
        return any(step.number == culprit for step in candidate.steps)

    small = shrink(program, fails, seconds=30)
    assert [step.number for step in small.steps if not step.fixed] == [culprit]
    assert small.threads == 1
