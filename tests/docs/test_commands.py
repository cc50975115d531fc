"""The commands of the README are two, and the one that tests is the one that CI runs."""

from __future__ import annotations

import importlib.util
import os
import subprocess

import pytest

from .snippets import ROOT, blocks


def readme_commands() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return ["\n".join(lines) for _, lines in blocks(text, "sh")]


def test_the_readme_has_exactly_two_commands_each_on_one_line() -> None:
    commands = readme_commands()
    assert len(commands) == 2
    assert all("\n" not in command and command.startswith("python3 -m venv .venv && ") for command in commands)
    assert commands[0].endswith("tidegate demo")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert script.count(readme_commands()[1]) == 1


def test_ci_stops_at_the_first_failure_and_can_be_run() -> None:
    path = ROOT / ".ci" / "run"
    assert "set -euo pipefail" in path.read_text(encoding="utf-8").splitlines()
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)


@pytest.mark.parametrize("name", ["submission", "timeline"])
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    script = ROOT / "docs" / "pictures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_picture", script)
    assert spec is not None
    assert spec.loader is not None
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    assert script.with_suffix(".svg").read_text(encoding="utf-8") == picture.draw()


@pytest.mark.parametrize("page", ["threads.md", "errors.md"])
def test_the_pages_that_promise_one_screen_keep_it(page: str) -> None:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
