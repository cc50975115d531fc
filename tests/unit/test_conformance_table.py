"""The suite names the rules it proves, and the table in the documentation tells the truth about it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tidegate.conformance import table

DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance-table.md"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> table.Results:
    """The tests of the suite and their rules, collected and not run."""
    path = tmp_path_factory.mktemp("suite") / "collected.json"
    assert table.run_subject("null", path, ["--collect-only", "-qq"]) == 0
    return table.read(path)


def test_every_test_of_the_suite_names_known_rules(suite: table.Results) -> None:
    assert len(suite.rules) > 100
    assert {test: rules for test, rules in suite.rules.items() if not rules or set(rules) - set(table.RULES)} == {}


def test_every_rule_is_proved_by_a_test_or_has_a_reason_why_not(suite: table.Results) -> None:
    unproved = {rule for rule, tests in table.by_rule([suite]).items() if not tests}
    assert unproved == set(table.NOT_PROVED_HERE)


def test_the_names_of_the_tests_are_sentences(suite: table.Results) -> None:
    assert [test for test in suite.rules if len(test.partition("::")[2].split("_")) < 4] == []


def test_the_rules_are_those_of_the_model() -> None:
    assert list(table.RULES) == [f"M{number}" for number in range(1, 41)]


def test_the_table_in_the_documentation_names_the_tests_of_the_suite(suite: table.Results) -> None:
    if not DOCUMENT.exists():
        pytest.skip("the documentation is not here")
    written: dict[str, list[str]] = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## (M\d+)", line):
            tests = written.setdefault(heading[1], [])
        elif row := re.match(r"\| `([^`]+)`", line):
            tests.append(row[1])
    assert written == table.by_rule([suite]), "run: python -m tidegate.conformance.table --output " + DOCUMENT.name


def results(path: Path, subject: str, *records: tuple[str, str, list[str]]) -> Path:
    tests = [{"test": test, "outcome": outcome, "rules": rules, "why": ""} for test, outcome, rules in records]
    path.write_text(json.dumps({"subject": subject, "tests": tests}), encoding="utf-8")
    return path


def test_the_cases_of_a_parametrised_test_count_as_one_and_the_worst_tells(tmp_path: Path) -> None:
    run = table.read(
        results(
            tmp_path / "run.json",
            "some",
            ("test_a::test_one[1]", "passed", ["M1"]),
            ("test_a::test_one[2]", "skipped", ["M1"]),
            ("test_a::test_two[1]", "passed", ["M2"]),
            ("test_a::test_two[2]", "failed", ["M2"]),
            ("test_a::test_three[1]", "skipped", ["M2"]),
        )
    )
    assert run.outcomes == {
        "test_a::test_one": "passed",
        "test_a::test_two": "failed",
        "test_a::test_three": "skipped",
    }


def test_the_table_shows_each_rule_with_its_tests_and_each_subject(tmp_path: Path) -> None:
    one = results(tmp_path / "1.json", "one", ("test_a::test_x", "passed", ["M1", "M7"]))
    other = results(tmp_path / "2.json", "other", ("test_a::test_x", "failed", ["M1", "M7"]))
    output = tmp_path / "table.md"
    assert table.main(["--results", str(one), "--results", str(other), "--output", str(output)]) == 0
    text = output.read_text(encoding="utf-8")
    assert text.count("| `test_a::test_x` | pass | **FAIL** |") == 2
    assert re.search(r"\| \[M7\]\(#m7-[a-z-]+\) \| .* \| 1 pass \| 1 \*\*FAIL\*\* \|", text)
    assert "to be written" in text
