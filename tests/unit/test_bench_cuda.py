"""`tidegate bench` on a GPU, over the simulated one: that every case runs. No test here looks at how long it took."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate as tg
from tidegate._bench import markdown, runner
from tidegate._bench.contestants import Contestants
from tidegate._bench.cuda_sides import CUDA_SIDES, FORMS, imported, real_device
from tidegate._bench.goals import Moves
from tidegate._bench.model import TIDEGATE, Case, Key, Missing, Result, Samples
from tidegate.cli import main
from tidegate.testing import register_cuda_simulated
from tidegate.testing.cuda_simulated import find_compiler

TOOLS = Path(__file__).resolve().parents[2] / "tools"
CASES = [case.name for case in runner.all_cases(quick=True, driver="cuda")]


@pytest.fixture(autouse=True)
def simulated():
    register_cuda_simulated()


def test_the_names_of_the_gpu_cases_are_unique_and_quick_has_them_all():
    names = [case.name for case in runner.all_cases(quick=False, driver="cuda")]
    assert len(set(names)) == len(names)
    assert names == CASES


def test_every_case_has_tidegate_among_its_sides():
    for case in runner.all_cases(quick=True, driver="cuda"):
        assert all(TIDEGATE in sides for sides in case.sides.values()), case.name


def test_every_row_of_the_submit_path_is_measured_in_all_forms_beside_all_twins():
    submitting = {"barrier-wait", "kernel-wait", "kernel-submit", "kernel-chain"}
    cases = {case.name: case for case in runner.all_cases(quick=True, driver="cuda")}
    for name in submitting:
        assert set(cases[name].sides[""]) == set(CUDA_SIDES)
        assert cases[name].conditions == ("idle", "busy")


def test_others_are_missing_on_a_simulated_device():
    with Contestants("cuda-simulated") as contestants, pytest.raises(Missing, match="simulated"):
        real_device(contestants)


def test_a_package_that_is_not_installed_is_missing_by_its_name():
    with pytest.raises(Missing, match="not installed: some-package"):
        imported("tidegate_has_no_such_module", "some-package")


def test_a_form_of_the_device_is_opened_once_and_closed_with_the_run():
    with Contestants("cuda-simulated?memory=64MiB") as contestants:
        device = contestants.form("commands=graph")
        assert contestants.form("commands=graph") is device
        assert contestants.form("") is contestants.device
        assert device.info.uri == "cuda-simulated?memory=64MiB&commands=graph"
    assert device.health is tg.Health.CLOSED


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES)
def test_every_case_runs_on_the_simulated_gpu_and_writes_its_numbers(case, tmp_path, monkeypatch, capsys):
    if not find_compiler():
        pytest.skip("the simulation needs a C++ compiler for these kernels")
    monkeypatch.setattr("tidegate.cli._bench.QUICK_SECONDS", 0.01)
    file = tmp_path / "bench.json"
    arguments = ["bench", "--quick", "--device", "cuda-simulated", "--case", case, "--json", str(file)]
    status = main(arguments)
    printed = capsys.readouterr().out
    assert status == 0, printed
    facts = json.loads(file.read_text())
    assert {"machine", "gpu", "versions", "date", "sides"} <= set(facts)
    [one] = facts["cases"]
    assert one["name"] == case
    assert not one["failed"]
    measured = {(line["side"], line["condition"]) for line in one["results"]}
    conditions = {condition for _, condition in measured}
    ours = {side for side, _ in measured} & set(FORMS)
    assert {(side, condition) for side in ours for condition in conditions} <= measured
    assert TIDEGATE in ours
    assert "tidegate" in printed


FACTS = {
    "date": "2020-01-01",
    "machine": {"processor": "a processor", "cores": 2, "system": "Linux"},
    "gpu": {"name": "a card", "driver": "1.2", "cuda": "13.0"},
    "versions": {"tidegate": "0", "cupy": None},
    "sides": {"torch": "in its own way"},
    "cases": [
        {
            "name": "one",
            "title": "one case",
            "unit": "nanoseconds per operation",
            "disturbed": False,
            "results": [
                {"side": TIDEGATE, "variant": "", "condition": "idle", "p50": 1000.0, "p99": 3000.0},
                {"side": TIDEGATE, "variant": "", "condition": "busy", "p50": 2000.0, "p99": 3000.0},
                {"side": "torch", "variant": "", "condition": "idle", "p50": 2500.0, "p99": 9000.0},
            ],
            "missing": [{"side": "cupy", "variant": "", "reason": "not installed: cupy"}],
            "failed": [],
            "goals": [{"text": "p50 <= 2 us", "value": 1000.0, "limit": 2000.0, "met": True, "unit": "ns"}],
        },
        {
            "name": "two",
            "title": "another",
            "unit": "nanoseconds per byte",
            "disturbed": True,
            "results": [{"side": TIDEGATE, "variant": "large", "condition": "idle", "p50": 0.05, "p99": 0.1}],
            "missing": [],
            "failed": [{"side": "torch", "variant": "large", "reason": "it broke"}],
            "goals": [{"text": ">= 30 GB/s", "value": 20.0, "limit": 30.0, "met": False, "unit": "GB/s"}],
        },
    ],
}


def test_results_are_shown_as_tables_with_the_machine_and_the_verdicts():
    text = markdown.render(FACTS)
    assert "| GPU | a card, driver 1.2, CUDA 13.0 |" in text
    assert "| not installed | cupy |" in text
    assert "| one case | p50 <= 2 us | 1 us | met |" in text
    assert "| another | >= 30 GB/s | 20.0 GB/s | **missed**, disturbed |" in text
    assert "| torch | 2.5 us (9 us) | 2.50x | - |  |" in text
    assert "| tidegate | 20.00 GB/s |  |" in text
    assert "- cupy: not installed: cupy" in text
    assert "- torch (large): it broke" in text


def test_a_page_gets_the_numbers_of_a_file_and_can_be_checked(tmp_path):
    results, page = tmp_path / "results.json", tmp_path / "page.md"
    results.write_text(json.dumps(FACTS))
    page.write_text("before\n<!-- numbers begin -->\nold\n<!-- numbers end -->\nafter\n")
    tool = [sys.executable, str(TOOLS / "benchmark_docs.py"), str(results), str(page)]
    assert subprocess.run([*tool, "--check"], timeout=60, check=False).returncode == 1
    subprocess.run(tool, timeout=60, check=True)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- numbers end -->\nafter\n")
    assert "old" not in text
    assert markdown.render(FACTS) in text
    assert subprocess.run([*tool, "--check"], timeout=60, check=False).returncode == 0


@pytest.mark.slow
def test_the_submit_path_can_be_profiled_without_a_gpu():
    if not shutil.which("cc"):
        pytest.skip("a CUDA that does nothing is built with cc")
    tool = [sys.executable, str(TOOLS / "profile_submit.py"), "--count", "400", "--profile", "chain-kernel"]
    shown = subprocess.run(tool, timeout=100, check=True, capture_output=True, text=True).stdout
    assert "cumtime" in shown
    assert shown.splitlines()[-1].startswith("chain-kernel")


def test_a_bandwidth_is_a_goal_of_its_own():
    case = Case("case", "a case", {"": {}}, unit="bandwidth")
    result = Result(case, {Key(TIDEGATE, "", "idle"): Samples([[0.04]])})
    assert Moves(25.0).judge(result).met
    assert Moves(26.0).judge(result).met is False
    assert Moves(26.0).judge(Result(case)).met is None
