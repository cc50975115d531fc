"""The command line as a whole: help, exit statuses, one line for whatever goes wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidegate.cli import main
from tidegate.errors import AbortedError

COMMANDS = ("devices", "demo", "conformance", "bench", "run", "explore")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert "Usage: tidegate " + command in capsys.readouterr().out


def test_the_help_of_the_program_lists_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["devices", "--no-such-option"],
        ["devices", "surplus"],
        ["demo", "--size", "0"],
        ["demo", "--size", "many"],
        ["demo", "--depth", "1"],
        ["demo", "--trace", "trace.json"],
        ["demo", "--device", "no-such-driver"],
        ["demo", "--device", "cpu?no_such_option=1"],
        ["bench", "--case", "no-such-case"],
        ["bench", "--device", "no-such-driver"],
        ["bench", "--json", "no/such/folder/out.json"],
        ["conformance"],
        ["conformance", "--driver", "cpu", "--json", "no/such/folder/out.json"],
        ["run", "script.py"],
        ["run", "script.py", "--trace", "trace.json", "--validate"],
        ["explore", "script.py", "--seeds", "3"],
        ["explore", "script.py", "--seeds", "0"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_one_line_and_exit_status_2(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("tidegate: ")


@pytest.mark.parametrize(
    "arguments",
    [["run", "script.py"], ["explore", "script.py", "--seeds", "3"], ["demo", "--trace", "trace.json"]],
    ids=" ".join,
)
def test_what_comes_later_says_so(arguments, capsys):
    main(arguments)
    assert "not in this version" in capsys.readouterr().err


def test_an_error_of_ours_is_one_line_without_a_traceback_and_exit_status_1(monkeypatch, capsys):
    def refuse():
        raise AbortedError("queue 'main' was stopped\nfor a reason")

    monkeypatch.setattr("tidegate.list_drivers", refuse)
    assert main(["devices"]) == 1
    assert capsys.readouterr().err == "tidegate: queue 'main' was stopped for a reason\n"


@pytest.mark.parametrize("error", [MemoryError("no room"), PermissionError("not yours")], ids=repr)
def test_what_the_system_refuses_is_one_line_and_exit_status_1(monkeypatch, capsys, error):
    def refuse():
        raise error

    monkeypatch.setattr("tidegate.list_drivers", refuse)
    assert main(["devices"]) == 1
    assert capsys.readouterr().err == f"tidegate: {error}\n"


def test_ctrl_c_ends_a_command_with_one_line(monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("tidegate.list_drivers", interrupt)
    assert main(["devices"]) == 1
    assert capsys.readouterr().err.strip() == "tidegate: interrupted"  # on a line after the ^C


def test_a_bug_shows_its_traceback(monkeypatch):
    def fail():
        raise ZeroDivisionError

    monkeypatch.setattr("tidegate.list_drivers", fail)
    with pytest.raises(ZeroDivisionError):
        main(["devices"])


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # the command of a test, by the interpreter that runs it
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_the_module_is_the_program():
    ended = python("-m", "tidegate", "--version")
    assert (ended.returncode, ended.stdout.split()[0]) == (0, "tidegate,")
    assert python("-m", "tidegate", "no-such-command").returncode == 2


@pytest.mark.slow
def test_importing_the_command_line_imports_neither_click_nor_rich():
    ended = python("-c", "import sys, tidegate.cli; print([m for m in ('click', 'rich') if m in sys.modules])")
    assert ended.stdout == "[]\n"
