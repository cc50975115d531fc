"""`tidegate conformance` hands everything to the suite."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import tidegate
from tidegate.cli import main
from tidegate.errors import NotFoundError


@pytest.fixture
def suite(monkeypatch):
    """A suite that notes how it was called."""
    module = ModuleType("tidegate.conformance")
    module.calls = []

    def run(driver, *, require, programs, arguments, json):
        module.calls.append((driver, require, programs, arguments, json))
        if driver == "unknown":
            raise NotFoundError("no driver 'unknown'; known: cpu")
        return {"broken": 1, "empty": 5, "misused": 4}.get(driver, 0)

    module.run = run
    monkeypatch.setitem(sys.modules, "tidegate.conformance", module)
    monkeypatch.setattr(tidegate, "conformance", module, raising=False)
    return module


def test_the_options_reach_the_suite(suite):
    assert main(["conformance", "--driver", "cpu"]) == 0
    options = ["--require", "--programs", "7", "--json", "out.json", "--", "-k", "waits"]
    assert main(["conformance", "--driver", "cpu", *options]) == 0
    assert suite.calls == [("cpu", False, 100, [], None), ("cpu", True, 7, ["-k", "waits"], "out.json")]


@pytest.mark.parametrize(("driver", "status"), [("cpu", 0), ("broken", 1), ("empty", 1), ("misused", 2)])
def test_the_exit_status_tells_failure_from_wrong_use(suite, driver, status):
    assert main(["conformance", "--driver", driver]) == status


def test_an_unknown_driver_is_wrong_use(suite, capsys):
    assert main(["conformance", "--driver", "unknown"]) == 2
    assert capsys.readouterr().err == "tidegate: --driver: no driver 'unknown'; known: cpu\n"


def test_without_pytest_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert main(["conformance", "--driver", "cpu"]) == 1
    assert "tidegate[test]" in capsys.readouterr().err
