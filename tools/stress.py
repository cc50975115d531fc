#!/usr/bin/env python3
"""Runs the conformance suite again and again while disturbing it, and stops at the first failure.

    python tools/stress.py                          200 runs, the modes in turn
    python tools/stress.py --modes all --runs 200   200 runs with every disturbance at once
    python tools/stress.py --quick                  one run per mode without the slow tests, for CI

The modes: `plain` disturbs nothing; `switch` lets threads change at every opportunity; `busy` keeps every core busy
with other processes; `collect` has the collector run at random points; `stall` has threads stop for a moment inside
Tidegate while the others go on; `all` does all of this. Every run has a seed, counted up from --seed; a failure prints
the command that repeats that run. Exit status: 1 for a failure, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parent.parent
_DISTURBANCES = {
    "plain": "",
    "switch": "switch",
    "busy": "",
    "collect": "collect",
    "stall": "stall",
    "all": "switch,collect,stall",
}
MODES = tuple(_DISTURBANCES)
# Ends by itself when the process that started it is gone.
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1000000): pass\n"


@dataclass(frozen=True)
class Run:
    """One run of the suite."""

    mode: str
    seed: int
    arguments: tuple[str, ...]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "pytest", "-p", "stress_plugin", "-x", "-q", *self.arguments]

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(ROOT / "tools"), os.environ.get("PYTHONPATH")]))
        stress = {"TIDEGATE_STRESS": _DISTURBANCES[self.mode], "TIDEGATE_STRESS_SEED": str(self.seed)}
        return {**os.environ, **stress, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}

    def execute(self, limit: float, root: Path) -> tuple[str, str]:
        """Run it; return what went wrong, or nothing, and what it printed."""
        with tempfile.TemporaryFile("w+", errors="replace") as output, _busy_cores(self.mode in ("busy", "all")):
            process = subprocess.Popen(
                self.command(), cwd=root, env=self.environment(), stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit)
                wrong = "" if code == 0 else f"exit status {code}"
            except subprocess.TimeoutExpired:
                wrong = f"did not end within {limit:g} s"
                process.send_signal(signal.SIGABRT)  # has the fault handler print every thread's stack
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            finally:
                # Its own session, so that the processes its tests started end too.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return wrong, output.read()


@contextlib.contextmanager
def _busy_cores(wanted: bool) -> Iterator[None]:
    count = (os.cpu_count() or 1) if wanted else 0
    running = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    console = Console(stderr=True)
    runs = [
        Run(options.modes[number % len(options.modes)], options.seed + number, _pytest_arguments(options))
        for number in range(options.runs)
    ]
    columns = (
        BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    started = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(runs))
        for run in runs:
            progress.update(task, description=f"{run.mode}, seed {run.seed}")
            wrong, output = run.execute(options.limit, options.root)
            if wrong:
                progress.stop()
                _tell(run, wrong, output, options)
                return 1
            progress.update(task, advance=1)
            if not console.is_terminal:
                print(f"{run.mode}, seed {run.seed}: {_last_line(output)}", flush=True)
    print(f"{len(runs)} runs without a failure in {time.monotonic() - started:.0f} s: {', '.join(options.modes)}")
    return 0


def _tell(run: Run, wrong: str, output: str, options: argparse.Namespace) -> None:
    again = ["python", "tools/stress.py", "--modes", run.mode, "--runs", "1", "--seed", str(run.seed)]
    again += ["--driver", options.driver, *(["--quick"] if options.quick else [])]
    again += [f"--pytest={argument}" for argument in options.pytest]
    if options.tests:
        again += ["--tests", *options.tests]
    print(output[-options.tail :])
    print(f"FAILED: mode {run.mode}, seed {run.seed}: {wrong}")
    print(f"repeat with: {shlex.join(again)}")


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or [""])[-1]


def _pytest_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    tests = options.tests or [str(Path("src", "tidegate", "conformance"))]
    quick = ["-m", "not slow"] if options.quick else []
    plugin = ["-p", "tidegate.conformance.plugin", "--tidegate-driver", options.driver] if options.driver else []
    return (*plugin, "-p", "no:cacheprovider", *quick, *options.pytest, *tests)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stress.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--runs", type=_positive, metavar="N", help="how many runs (default 200; with --quick one per mode)")
    add(
        "--modes",
        nargs="+",
        default=MODES,
        choices=MODES,
        metavar="MODE",
        help=f"of {' '.join(MODES)} (default: each in turn)",
    )
    add("--seed", type=int, default=0, help="of the first run (default 0)")
    add("--quick", action="store_true", help="one run per mode, without the tests marked slow")
    add("--driver", default="cpu", metavar="NAME", help="the subject (default cpu)")
    add("--tests", nargs="+", metavar="PATH", help="other tests than the conformance suite")
    add("--limit", type=float, default=1800.0, metavar="S", help="seconds a run may take (default 1800)")
    add("--tail", type=_positive, default=20000, metavar="CHARS", help="how much to show of a failed run")
    add("--pytest", action="append", default=[], metavar="ARG", help="a further argument for pytest, repeatable")
    add("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.runs is None:
        options.runs = len(options.modes) if options.quick else 200
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
