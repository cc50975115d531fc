"""`tidegate bench`: the machinery of sides, rounds, goals and reports. No test here looks at how long anything took."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager

import pytest

from tidegate._bench import crowds, report, runner
from tidegate._bench.contestants import iree_runtime
from tidegate._bench.goals import Bandwidth, Below, BusyAsIdle, Flat, Ratio
from tidegate._bench.model import STANDARD, TASK, TIDEGATE, Case, Key, Missing, Result, Samples
from tidegate._bench.own_code import own_code
from tidegate.cli import main


def side(*rounds, log=None, name=""):
    """A side that gives these rounds, one after the other, the first of them as warm-up."""

    @contextmanager
    def prepare(_contestants):
        turns = iter(rounds)

        def sample():
            if log is not None:
                log.append(name)
            return next(turns)

        yield sample

    return prepare


@contextmanager
def absent(_contestants):
    raise Missing("not installed")
    yield


def measure(case):
    return runner.run_case(case, None, seconds=1e9, advance=lambda _share: None)


def result_of(samples, goals=(), **options):
    case = Case("case", "a case", {"": {}}, goals, **options)
    return Result(case, {key: Samples(rounds) for key, rounds in samples.items()})


def test_every_side_has_its_turn_in_every_round_and_the_order_rotates():
    log = []
    sides = {name: side([0], [1], [2], log=log, name=name) for name in "abc"}
    result = measure(Case("case", "a case", {"": sides}, rounds=2))
    assert "".join(log) == "abc" + "abc" + "bca"
    assert result.get("b").rounds == [[1], [2]]


def test_a_side_that_is_not_there_leaves_the_others_alone():
    result = measure(Case("case", "a case", {"": {TIDEGATE: side([0], [1]), TASK: absent}}, (Ratio(1),), rounds=1))
    assert result.missing == {(TASK, ""): "not installed"}
    assert result.get(TIDEGATE).p50 == 1
    assert result.case.goals[0].judge(result).met is None


def test_a_side_that_fails_in_the_middle_is_named_and_leaves_the_others_alone():
    sides = {TIDEGATE: side([0], [1]), TASK: side([0], [1], [2], [3])}
    result = measure(Case("case", "a case", {"": sides}, rounds=3))
    assert list(result.failed) == [(TIDEGATE, "")]
    assert result.get(TASK).rounds == [[1], [2], [3]]


def test_both_companies_are_measured_where_asked():
    sides = {TIDEGATE: side([0], [1], [0], [2])}
    result = measure(Case("case", "a case", {"": sides}, rounds=1, conditions=("idle", "busy")))
    assert (result.get(TIDEGATE).p50, result.get(TIDEGATE, condition="busy").p50) == (1, 2)


def test_a_ratio_is_taken_round_by_round():
    mine, theirs = Samples([[1, 1, 9], [10], [100]]), Samples([[2], [20], [50]])
    assert mine.ratio_to(theirs) == 0.5


def test_quantiles_count_the_samples_of_all_rounds():
    samples = Samples([list(range(50)), list(range(50, 100))])
    assert (samples.count, samples.p50, samples.p99) == (100, 49.5, 99)


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Ratio(0.5), True),
        (Ratio(0.49), False),
        (Ratio(1.0, twin=STANDARD), None),
        (Below(50), True),
        (Below(49), False),
        (Below(80, 0.99, "busy"), True),
        (BusyAsIdle(1.6), True),
        (BusyAsIdle(1.5), False),
        (Bandwidth(2.0, TASK), True),
        (Bandwidth(2.1, TASK), False),
    ],
    ids=repr,
)
def test_a_goal_is_met_missed_or_cannot_be_told(goal, met):
    samples = {Key(TIDEGATE, "", "idle"): [[50]], Key(TIDEGATE, "", "busy"): [[80]], Key(TASK, "", "idle"): [[100]]}
    assert goal.judge(result_of(samples)).met is met


def test_flat_compares_the_two_sizes():
    samples = {Key(TIDEGATE, "10", "idle"): [[13]], Key(TIDEGATE, "1", "idle"): [[10]]}
    assert Flat("10", "1").judge(result_of(samples)).met
    assert not Flat("10", "1", 1.2).judge(result_of(samples)).met


@pytest.mark.parametrize(("others", "told"), [(None, False), (0.0, False), (0.9, True)])
def test_a_case_that_other_processes_disturbed_says_so(others, told):
    result = result_of({Key(TIDEGATE, "", "idle"): [[50]]}, (Below(60),))
    result.others = others
    assert report.summarize([result]).startswith("goals: 1 met, 0 missed, 0 not measured")
    assert ("disturbed" in report.summarize([result])) is told
    assert report.as_json([result])[0]["disturbed"] is told


def test_times_are_shown_with_their_unit():
    assert [report.show_time(value) for value in (5, 5_000, 5_100_000, 5e9)] == ["5 ns", "5 us", "5.1 ms", "5e+03 ms"]


def test_own_code_is_the_same_function_over_code_of_its_own():
    outer = 2

    def loop(value, *, factor=3):
        return value * factor * outer

    copy = own_code(loop)
    assert copy(5) == loop(5)
    assert copy.__code__ is not loop.__code__


def test_the_names_of_the_cases_are_unique_and_quick_has_them_all():
    names = [case.name for case in runner.all_cases(quick=False)]
    assert len(set(names)) == len(names)
    assert names == [case.name for case in runner.all_cases(quick=True)]


def test_without_iree_its_column_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "iree", None)
    monkeypatch.setitem(sys.modules, "iree.runtime", None)
    with pytest.raises(Missing, match="not installed"):
        iree_runtime()


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.name for case in runner.all_cases(quick=True)])
def test_every_case_runs_and_writes_its_numbers(case, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tidegate.cli._bench.QUICK_SECONDS", 0.01)
    sized = crowds._sized
    monkeypatch.setattr(crowds, "_sized", lambda measure, count: sized(measure, count // 50))
    file = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--device", "cpu", "--case", case, "--json", str(file)]) == 0
    facts = json.loads(file.read_text())
    assert {"machine", "versions", "date"} <= set(facts)
    [one] = facts["cases"]
    assert one["name"] == case
    for lacking in one["missing"]:
        if lacking["side"] == TIDEGATE and "C compiler" in lacking["reason"]:
            pytest.skip(lacking["reason"])
    assert any(line["side"] == TIDEGATE and line["p50"] > 0 for line in one["results"])
    assert one["title"].split()[0] in capsys.readouterr().out
