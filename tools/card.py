#!/usr/bin/env python3
"""Everything that needs a real NVIDIA card, in one run of a few minutes.

    python tools/card.py --output FOLDER                    all steps
    python tools/card.py --output FOLDER --only torch leaks  some of them, by a part of their names
    python tools/card.py --list

Each step is a process of its own with a time limit. A test that hangs ends its process, with the place of every thread
in the log, and the rest of its step goes on in a new one; so does the rest of the run. Steps that measure, or that need
the card for themselves, come last and one at a time; the others run `--jobs` at a time.

In FOLDER: `summary.json` (written anew after every step), `failures.log`, `conformance.json` (as `--tidegate-json`
writes it), `bench.json`, and `logs.tar.gz` with everything else. Exit status: 1 if a step failed.

Needs Python and a C compiler: `--packages FOLDER` unpacks wheels where nothing can be installed, that of Cython among
them, and the compiled modules are built in place.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from card_reports import gist, judged, read_journal
from card_steps import ROOT, Step, steps

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
CORE = ROOT / "src" / "tidegate" / "_core"
FLAGS = ("-O2", "-shared", "-fPIC", "-fwrapv", "-fno-strict-aliasing", "-DNDEBUG")
_TRIES = 4
"""A step with tests is begun so often: after each hang the rest of it."""
_GRACE = 4.0
"""Seconds between asking a process where it is and ending it."""


# Running --------------------------------------------------------------------------------------------------------------


class Run:
    """A run of steps that writes down what became of them.

    Args:
        output: where the results go.
        logs: where the logs go meanwhile.
        budget: seconds for everything.
        reserve: how many of them are kept for the steps that run alone.
        environment: of every process.

    """

    def __init__(self, output: Path, logs: Path, budget: float, reserve: float, environment: dict[str, str]) -> None:
        self._output = output
        self._logs = logs
        self._began = time.monotonic()
        self._end = self._began + budget
        self._reserve = reserve
        self._environment = environment
        self._lock = threading.Lock()
        self.results: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.timeouts = False

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def run(self, chosen: Sequence[Step], jobs: int) -> None:
        with ThreadPoolExecutor(jobs) as together:
            list(together.map(self._guarded, [step for step in chosen if not step.alone]))
        for step in chosen:
            if step.alone:
                self._guarded(step)

    def _guarded(self, step: Step) -> None:
        began = time.monotonic()
        try:
            result = self._step(step)
        except Exception as error:  # of ours: the other steps go on
            result = {"status": "broken", "text": f"{type(error).__name__}: {error}"}
        result = {"step": step.name, "seconds": round(time.monotonic() - began, 1), **result}
        with self._lock:
            self.results.append(result)
            self._write()
        self._tell(result)

    def _tell(self, result: dict[str, Any]) -> None:
        counts = " ".join(f"{count} {name}" for name, count in result.get("counts", {}).items())
        self.say(f"{result['status']:8} {result['step']}: {result['seconds']} s {counts}")
        for test in [*result.get("failures", ()), *result.get("hangs", ())][:12]:
            self.say(f"         {test['test']}: {gist(test['text'])}")

    def _step(self, step: Step) -> dict[str, Any]:
        left = self._end - time.monotonic() - (0 if step.alone else self._reserve)
        if left < 10:
            return {"status": "no time"}
        if step.command and shutil.which(step.command[0]) is None:
            return {"status": "missing", "text": f"there is no {step.command[0]}"}
        limit = min(step.limit, left)
        return self._pytest(step, limit) if step.tests is not None else self._plain(step, limit)

    def _plain(self, step: Step, limit: float) -> dict[str, Any]:
        status, text = self._process(step, step.command, limit, "")
        result: dict[str, Any] = {"status": "passed" if status == 0 else "hung" if status is None else "failed"}
        if status != 0 or step.name in ("devices", "opening"):
            result["text"] = text[-4000:]
        return result

    def _pytest(self, step: Step, limit: float) -> dict[str, Any]:
        """Run tests; after a hang or a crash the rest of them."""
        end, stem = time.monotonic() + limit, _file_name(step.name)
        journal, hang = self._logs / f"{stem}.jsonl", self._logs / f"{stem}.hang"
        statuses: list[int | None] = []
        command, output = step.command, ""
        while len(statuses) < _TRIES and time.monotonic() < end - 5:
            unit = self._logs / f"{stem}-{len(statuses)}.xml"
            own = (
                *(step.tests or ()), "-p", "card_journal", f"--card-journal={journal}", f"--card-hang={hang}",
                f"--card-test-limit={step.test_limit}", f"--junitxml={unit}", "-q", "--durations=5",
                *(("--timeout=1000",) if self.timeouts else ()),  # the journal has a better one
            )  # fmt: skip
            status, text = self._process(step, (*command, *own), end - time.monotonic(), f"-{len(statuses)}")
            statuses.append(status)
            output += text
            report = read_journal(journal)
            if not report["counts"] and command != step.otherwise and step.otherwise:
                command = step.otherwise
            elif not report["hangs"] or len(report["hangs"]) < len(statuses):
                break
        traces = hang.read_text(encoding="utf-8", errors="replace") if hang.exists() else ""
        result = judged(report, statuses, output, traces)
        if step.also is not None and step.also.exists():
            result["also"] = step.also.read_text(encoding="utf-8", errors="replace")[-4000:]
        return result

    def _process(self, step: Step, command: Sequence[str], limit: float, mark: str) -> tuple[int | None, str]:
        """Run a process; its status, None if it had to be ended, and what it wrote."""
        path = self._logs / f"{_file_name(step.name)}{mark}.log"
        with path.open("w", encoding="utf-8") as log:
            log.write(" ".join(command) + "\n\n")
            log.flush()
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                cwd=self._output if step.name == "bench" else ROOT, env={**self._environment, **dict(step.variables)},
            )  # fmt: skip
            status = _wait(process, limit)
        return status, path.read_text(encoding="utf-8", errors="replace")

    def _write(self) -> None:
        summary = {
            **self.facts,
            "seconds": round(time.monotonic() - self._began, 1),
            "not passed": {r["step"]: r["status"] for r in self.results if r["status"] != "passed"},
            "steps": self.results,
        }
        (self._output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        with (self._output / "failures.log").open("w", encoding="utf-8") as file:
            for result in self.results:
                for test in [*result.get("failures", ()), *result.get("hangs", ())]:
                    file.write(f"\n{'=' * 100}\n{result['step']}: {test['test']}\n{test['text']}\n")
                if result["status"] != "passed" and result.get("text"):
                    file.write(f"\n{'=' * 100}\n{result['step']}: {result['status']}\n{result['text']}\n")

    def finish(self) -> None:
        """Put the logs and the records of the suite into the output."""
        records = {step: read_journal(self._logs / f"{_file_name(step)}.jsonl") for step in self._conformance_steps()}
        tests = [record for report in records.values() for record in report["records"]]
        document = json.dumps({"subject": self.facts.get("driver", ""), "tests": tests}, indent=1)
        (self._output / "conformance.json").write_text(document + "\n", encoding="utf-8")
        with tarfile.open(self._output / "logs.tar.gz", "w:gz") as archive:
            archive.add(self._logs, "logs")

    def _conformance_steps(self) -> list[str]:
        head = f"conformance {self.facts.get('driver')} "
        return [result["step"] for result in self.results if result["step"].startswith(head)]


def _wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """Wait for a process. One that takes too long first says where its threads are, and then ends."""
    try:
        return process.wait(max(1.0, limit - _GRACE))
    except subprocess.TimeoutExpired:
        pass
    for number in (signal.SIGABRT, signal.SIGKILL):  # faulthandler answers the first
        try:
            os.killpg(process.pid, number)
            process.wait(_GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue  # whatever does not even end now is left behind
    return None


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)[:80]


# Getting ready --------------------------------------------------------------------------------------------------------


def environment(packages: Path | None, scratch: Path) -> dict[str, str]:
    """Return the environment of all processes: this tree, and wheels unpacked where nothing can be installed."""
    paths = [str(ROOT / "src"), str(ROOT / "tools")]
    if packages is not None:
        target = scratch / "packages"
        for wheel in sorted(packages.glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(target)
        paths.append(str(target))
    paths += filter(None, [os.environ.get("PYTHONPATH", "")])
    more = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    return {**os.environ, **more}


def build(anew: bool, scratch: Path, variables: dict[str, str]) -> dict[str, str]:
    """Build the compiled modules, where they are missing, old or wanted anew; returns what went wrong."""
    problems: dict[str, str] = {}
    compiler = shlex.split(os.environ.get("CC", "")) or [shutil.which("gcc") or "cc"]
    parts = [*CORE.glob("**/*.pxi"), *CORE.glob("*.h")]
    for source in sorted((ROOT / "src").glob("**/*.pyx")):
        target = source.with_name(f"{source.stem}{SUFFIX}")
        changed = max(part.stat().st_mtime for part in (source, *source.parent.glob("**/*.pxi"), *parts))
        if not anew and target.exists() and target.stat().st_mtime > changed:
            continue
        made = scratch / f"{source.stem}.c"
        includes = [f"-I{CORE}", f"-I{sysconfig.get_paths()['include']}"]
        for command in (
            [sys.executable, "-m", "cython", f"-I{CORE}", str(source), "-o", str(made)],
            [*compiler, *FLAGS, *includes, str(made), "-o", f"{target}.new"],
        ):
            if said := _failure(command, variables):
                problems[source.name] = said
                break
        else:
            os.replace(f"{target}.new", target)  # another process may have the old one open
    return problems


def _failure(command: Sequence[str], variables: dict[str, str]) -> str:
    """Run a command; return what it said if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=variables)
    except OSError as error:
        return str(error)
    return done.stderr[-1000:] if done.returncode else ""


def answer(command: Sequence[str], variables: dict[str, str]) -> str:
    """Return the output of a short command, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90, env=variables)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return (done.stdout or done.stderr).strip()[-2000:]


_PLUGINS = "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"

_VERSIONS = """
import importlib.metadata as m, sys, json
names = ("numpy", "pytest", "pytest-timeout", "torch", "triton", "cupy-cuda13x", "cupy-cuda12x", "trio")
found = {name: None for name in names}
for name in names:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
import tidegate
print(json.dumps({"python": sys.version.split()[0], **found, "tidegate": tidegate.__file__}))
"""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run everything that needs a card.")
    parser.add_argument("--output", type=Path, help="the folder for the results")
    parser.add_argument("--packages", type=Path, help="a folder with wheels to unpack and use")
    parser.add_argument("--budget", type=float, default=570.0, help="seconds for everything (570)")
    parser.add_argument("--reserve", type=float, default=260.0, help="of these for the steps that run alone (260)")
    parser.add_argument("--jobs", type=int, default=5, help="steps at a time, of those that can (5)")
    parser.add_argument("--submissions", type=int, default=1_000_000, help="in the step that looks for leaks")
    parser.add_argument("--only", nargs="*", default=[], metavar="PART", help="steps with one of these in their names")
    parser.add_argument("--skip", nargs="*", default=[], metavar="PART", help="no steps with one of these")
    parser.add_argument("--driver", default="cuda", help="another one, to try the run itself: cuda-simulated")
    parser.add_argument("--list", action="store_true", help="print the steps and end")
    return parser.parse_args()


def main() -> int:
    """Run the command."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="card-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        logs = scratch / "logs"
        logs.mkdir()
        chosen = [
            step
            for step in steps(options.submissions, options.driver, logs)
            if (not options.only or any(part in step.name for part in options.only))
            and not any(part in step.name for part in options.skip)
        ]
        if options.list or options.output is None:
            print("\n".join(f"{step.name}{' (alone)' if step.alone else ''}, {step.limit:g} s" for step in chosen))
            return 0 if options.list else 2
        options.output.mkdir(parents=True, exist_ok=True)
        return _run(options, chosen, scratch, logs)


def _run(options: argparse.Namespace, chosen: list[Step], scratch: Path, logs: Path) -> int:
    variables = environment(options.packages, scratch)
    reserve = min(options.reserve, options.budget / 2) if any(step.alone for step in chosen) else 0
    run = Run(options.output.resolve(), logs, options.budget, reserve, variables)
    run.timeouts = "pytest-timeout" in answer([sys.executable, "-c", _PLUGINS], variables)
    run.facts = {
        "driver": options.driver,
        "build": build(options.packages is not None, scratch, variables),
        "versions": answer([sys.executable, "-c", _VERSIONS], variables),
        "card": answer(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], variables
        ),
    }
    run.say(f"{len(chosen)} steps; {run.facts}")
    _on_end(run.finish)
    run.run(chosen, options.jobs)
    run.finish()
    bad = [result for result in run.results if result["status"] not in ("passed", "skipped")]
    run.say(f"{len(run.results) - len(bad)} steps in order, {len(bad)} not")
    for result in bad:
        run.say(f"  {result['status']} {result['step']}: {result.get('counts', result.get('text', ''))}"[:300])
    return 1 if bad else 0


def _on_end(finish: Callable[[], None]) -> None:
    """Keep the logs also if somebody ends the run."""

    def end(number: int, _frame: object) -> None:
        finish()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)


if __name__ == "__main__":
    sys.exit(main())
