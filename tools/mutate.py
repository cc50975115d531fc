#!/usr/bin/env python3
"""Changes the code in small ways, one at a time, and looks whether a test notices.

    python tools/mutate.py                                     the core, compiled and Python, every mutant
    python tools/mutate.py --sample 200 --seed 7               200 of them, the same ones for the same seed
    python tools/mutate.py --files 'src/tidegate/_core/timelines/*.pxi' --drivers cpu
    python tools/mutate.py --json report.json --again          try the survivors of that report once more

All mutants are built into one copy of the tree and switched on one at a time. The tests are run once with none, which
tells the tests that reach each. A mutant then meets only these: first those that killed its neighbours, then the
fastest, until one fails, hangs or dies.

A survivor that no test should notice goes into tools/mutants-accepted.toml, with the reason. The exit status is 1 if
fewer mutants than --minimum percent were killed or if a survivor has no reason, which in a sample is let pass; 2 for
wrong use.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from changes.building import build
from changes.schemata import Change
from changes.serving import Suite
from mutation.accepted import Accepted
from mutation.mutants import Mutant, find_mutants
from mutation.report import Report, survivors_in
from mutation.trials import Settings, Trials
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parent.parent
FILES = ("src/tidegate/_core/**/*.pxi", "src/tidegate/_core/*.py")
TESTS = ("tests/unit", "tests/properties", "tests/drivers/cpu")
DRIVERS = ("cpu", "streams")
CONFORMANCE = "src/tidegate/conformance"
# These test the tools; of the package they run what the suite runs. Or they take minutes.
_NOT_THESE = [
    f"--ignore-glob=*/{module}.py"
    for module in (
        *("test_tools_*", "test_faulty", "drivers/*/test_conformance"),
        *("test_interrupts", "test_signal_handlers", "test_storms"),
    )
]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    console = Console(stderr=True)
    try:
        every = [mutant for file in _expand(options.files) for mutant in find_mutants(ROOT, file)]
        report = Report(Accepted(options.accepted))
        chosen = _choose(every, options)
    except (ValueError, OSError) as error:
        console.print(f"mutate: {error}", style="red", highlight=False, markup=False)
        return 2
    if options.list:
        print("\n".join(str(mutant) for _, mutant in chosen))
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # also in the background
    try:
        _try_all(every, chosen, report, options, console)
    except KeyboardInterrupt:
        console.print("interrupted: what is done so far follows")
    print(report.text())
    if options.json:
        report.write(options.json)
    for entry in report.accepted.stale(every):
        print(f"accepted, but no longer there: {entry['file']} {entry['function']}: {entry['change']}")
    without_reason = any(reason is None for _, reason in report.survivors())
    unfinished = len(report.verdicts) < len(chosen)
    return 1 if unfinished or report.score < options.minimum or (without_reason and not options.sample) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mutate.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--files", nargs="+", default=FILES, metavar="GLOB", help="what to change (default: the core)")
    add("--drivers", nargs="*", default=DRIVERS, metavar="NAME", help="for which the conformance suite runs"
        f" (default: {' '.join(DRIVERS)})")  # fmt: skip
    add("--conformance", nargs="+", default=(CONFORMANCE,), metavar="PATH", help="a part of the suite")
    add("--tests", nargs="*", default=TESTS, metavar="PATH", help="what else may notice"
        f" (default: {' '.join(TESTS)})")  # fmt: skip
    add("--jobs", type=_positive, default=4, metavar="N", help="how many mutants at a time (default 4)")
    add("--sample", type=_positive, metavar="N", help="try only so many, chosen at random")
    add("--seed", type=int, default=0, help="for --sample (default 0)")
    add("--hang", type=float, default=5.0, metavar="S", help="a test that runs longer, and six times longer than usual,"
        " has noticed (default 5)")  # fmt: skip
    add("--budget", type=float, default=12.0, metavar="S", help="usual seconds of tests per mutant (default 12)")
    add("--minimum", type=float, default=90.0, metavar="PERCENT", help="of mutants that must be killed (default 90)")
    add("--json", type=Path, metavar="FILE", help="write a report for programs")
    add("--again", action="store_true", help="try only the survivors of the --json file")
    add("--accepted", type=Path, default=ROOT / "tools" / "mutants-accepted.toml", metavar="FILE")
    add("--list", action="store_true", help="print the mutants and try none")
    options = parser.parse_args(arguments)
    if options.again and (options.json is None or not options.json.exists()):
        parser.error("--again needs --json FILE, the report of an earlier run")
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _expand(patterns: Iterable[str]) -> list[Path]:
    files = dict.fromkeys(path for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    if not files:
        raise ValueError(f"no file matches {', '.join(patterns)}")
    return list(files)


def _choose(every: list[Mutant], options: argparse.Namespace) -> list[tuple[int, Mutant]]:
    """Which mutants to try, each with its number in the build."""
    chosen = list(enumerate(every, start=1))
    if options.again:
        survivors = survivors_in(options.json)
        chosen = [(number, mutant) for number, mutant in chosen if mutant.key in survivors]
    chance = random.Random(options.seed)
    # Mixed, so that an interrupted run says something about all files, and the estimate of the time left holds.
    return chance.sample(chosen, min(options.sample or len(chosen), len(chosen)))


def _suites(options: argparse.Namespace) -> Iterable[Suite]:
    # A lost signal shall fail a test as soon as it would count as hanging.
    environment = {"TIDEGATE_CONFORMANCE_LIMIT": f"{options.hang:g}"}
    common = [*_NOT_THESE, "-m", "not long", "--continue-on-collection-errors"]
    for driver in options.drivers:
        yield Suite(driver, [*options.conformance, "--tidegate-driver", driver, *common], environment)
    if options.tests:
        yield Suite("tests", [*options.tests, *common], environment)


def _try_all(
    every: list[Mutant],
    chosen: list[tuple[int, Mutant]],
    report: Report,
    options: argparse.Namespace,
    console: Console,
) -> None:
    changes: dict[str, dict[int, Change]] = defaultdict(dict)
    for number, mutant in enumerate(every, start=1):
        changes[mutant.file][number] = mutant.change
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Path(folder, "tree")
        console.print(f"{len(every)} mutants are built in ...")
        build(ROOT, tree, changes)
        settings = Settings(options.jobs, options.hang, options.budget)
        with Trials(tree, _suites(options), settings) as trials:
            console.print("which tests reach which? ...")
            reach = trials.find_reach()
            console.print(f"{len(reach.seconds)} tests, {sum(reach.seconds.values()):.0f} s")
            for name, test in sorted(reach.broken):
                console.print(f"left out, it fails unchanged: {name} {test}", style="yellow", markup=False)
            columns = (
                BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
                TimeElapsedColumn(), TimeRemainingColumn(),
            )  # fmt: skip
            with Progress(*columns, console=console) as progress:
                task = progress.add_task("", total=len(chosen))
                for verdict in trials.run(chosen, reach):
                    report.verdicts.append(verdict)
                    progress.update(task, advance=1, description=f"{report.score:.1f}% killed")
                    if not console.is_terminal and len(report.verdicts) % 100 == 0:
                        console.print(f"{len(report.verdicts)} of {len(chosen)}, {report.score:.1f}% killed")
                    if verdict.status != "killed" and report.accepted.reason(verdict.mutant) is None:
                        progress.console.print(f"{verdict.status}: {verdict.mutant}", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
