#!/usr/bin/env python3
"""Changes the code in small ways, one at a time, and looks whether a test notices.

    python tools/mutate.py                                     the core and the CPU queue, every mutant
    python tools/mutate.py --sample 200 --seed 7               200 of them, the same ones for the same seed
    python tools/mutate.py --files 'src/tidegate/_core/time*.py' --tests tests/unit
    python tools/mutate.py --json report.json --resume         go on where an interrupted run stopped
    python tools/mutate.py --json report.json --again          try the survivors of that report once more

The tests are run twice as they are, once for their times and once traced, which tells the tests that run each line. A
mutant then meets only the tests that can reach it: first those that killed its neighbours, then the fastest, until one
fails or hangs. Everything happens in copies of the tree.

A survivor that no test should notice goes into tools/mutants-accepted.toml, with the reason. The exit status is 1 if
fewer mutants than --minimum percent were killed or if a survivor has no reason, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from mutation.accepted import Accepted
from mutation.mutants import Mutant, find_mutants
from mutation.report import Report, earlier
from mutation.trials import Reach, Settings, Suite, Trials, Verdict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parent.parent
FILES = ("src/tidegate/_core/*.py", "src/tidegate/drivers/cpu/queue*.py")
TESTS = ("tests/unit", "tests/properties", "tests/drivers/cpu", "src/tidegate/conformance")
CONFORMANCE = "src/tidegate/conformance"
DRIVERS = ("cpu", "streams")
# They test this tool and the suite; of the package they run what the suite runs.
_NOT_THESE = (
    "--ignore-glob=*/test_tools_*.py",
    "--ignore-glob=*/test_faulty.py",
    "--ignore-glob=*/drivers/*/test_conformance.py",
)
_SAVE_EVERY_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    console = Console(stderr=True)
    try:
        files = _expand(options.root, options.files)
        suites = _suites(options)
        report = Report(Accepted(options.accepted))
        every = [mutant for file in files for mutant in find_mutants(options.root, file)]
        chosen = _choose(every, options, report)
    except (ValueError, OSError) as error:
        console.print(f"mutate: {error}", style="red", highlight=False, markup=False)
        return 2
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    # The Python form, for that is what is changed; and a lost signal shall fail the suite as soon as it would hang it.
    environment = {"TIDEGATE_PURE": "1", "TIDEGATE_CONFORMANCE_LIMIT": f"{options.hang:g}"}
    settings = Settings(
        options.root, suites, options.jobs, options.hang, options.budget, options.memory << 20, environment
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _try_all(chosen, settings, report, options, console)
    except KeyboardInterrupt:
        console.print("interrupted: what is done so far follows")
        _finish(report, options)
        return 130
    except RuntimeError as error:
        console.print(f"mutate: {error}", style="red", highlight=False, markup=False)
        return 2
    _finish(report, options)
    for entry in report.accepted.stale(every):
        print(f"accepted, but no longer there: {entry['file']} {entry['function']}: {entry['change']}")
    without_reason = any(reason is None for _, reason in report.survivors())
    return 1 if report.score < options.minimum or (without_reason and not options.sample) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mutate.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--files", nargs="+", default=FILES, metavar="GLOB", help="what to change (default: core and CPU queue)")
    add("--tests", nargs="+", default=TESTS, metavar="PATH", help="files, folders or ids of the tests that may notice")
    add("--drivers", nargs="*", default=DRIVERS, metavar="NAME", help="the conformance suite, where it is among the"
        f" tests, runs for each (default: {' '.join(DRIVERS)})")  # fmt: skip
    add("--jobs", type=_positive, default=2, metavar="N", help="how many mutants at a time (default 2)")
    add("--sample", type=_positive, metavar="N", help="try only so many, chosen at random")
    add("--seed", type=int, default=0, help="for --sample (default 0)")
    add("--hang", type=float, default=5.0, metavar="S", help="a test that runs longer, and six times longer than usual,"
        " has noticed (default 5)")  # fmt: skip
    add("--budget", type=float, default=12.0, metavar="S", help="usual seconds of tests per mutant (default 12)")
    add("--memory", type=_positive, default=16384, metavar="MIB", help="address space of a test run (default 16384)")
    add("--minimum", type=float, default=90.0, metavar="PERCENT", help="of mutants that must be killed (default 90)")
    add("--json", type=Path, metavar="FILE", help="write a report for programs, also while running")
    add("--resume", action="store_true", help="take over what the --json file has already")
    add("--again", action="store_true", help="try only the survivors of the --json file")
    add("--map", type=Path, metavar="FILE", help="keep there which tests reach which lines, and take it from there"
        " next time; remove it when the files or the tests have changed")  # fmt: skip
    add("--accepted", type=Path, default=ROOT / "tools" / "mutants-accepted.toml", metavar="FILE")
    add("--list", action="store_true", help="print the mutants and try none")
    add("--pytest", action="append", default=[], metavar="ARG", help="a further argument for pytest, repeatable")
    add("--root", type=Path, default=ROOT, metavar="DIR", help="the tree (default: the one this file is in)")
    options = parser.parse_args(arguments)
    options.root = options.root.resolve()
    if (options.resume or options.again) and options.json is None:
        parser.error("--resume and --again need --json FILE")
    if options.again and not options.json.exists():
        parser.error(f"--again: there is no {options.json}")
    return options


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _expand(root: Path, patterns: Iterable[str]) -> list[Path]:
    files: dict[Path, None] = {}
    for pattern in patterns:
        found = sorted(root.glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
        files.update(dict.fromkeys(path for path in found if path.suffix == ".py"))
    if not files:
        raise ValueError(f"no file matches {', '.join(patterns)}")
    return list(files)


def _suites(options: argparse.Namespace) -> list[Suite]:
    """The tests for the first driver, and of those the conformance suite once more for each of the others."""
    tests = [path for path in options.tests if (options.root / path.partition("::")[0]).exists()]
    if not tests:
        raise ValueError(f"none of these tests is there: {', '.join(options.tests)}")
    conformance = [path for path in tests if path.startswith(CONFORMANCE)]
    common = [*_NOT_THESE, *options.pytest]
    if not conformance or not options.drivers:
        return [Suite("", tests, common)]
    first, *others = options.drivers
    suites = [Suite(first, tests, [*common, "--tidegate-driver", first])]
    return suites + [Suite(name, conformance, [*common, "--tidegate-driver", name]) for name in others]


def _choose(every: list[Mutant], options: argparse.Namespace, report: Report) -> list[Mutant]:
    """Which mutants to try; verdicts taken over from an earlier report go straight into this one."""
    chosen = every
    if options.sample and options.sample < len(every):
        picked = set(random.Random(options.seed).sample(range(len(every)), options.sample))
        chosen = [mutant for number, mutant in enumerate(every) if number in picked]
    if not (options.resume or options.again) or not options.json.exists():
        return chosen
    known = earlier(options.json)
    left: list[Mutant] = []
    for mutant in chosen:
        record = known.get(mutant.key)
        if record is None or (options.again and record["status"] != "killed"):
            left.append(mutant)
        else:
            report.verdicts.append(Verdict(mutant, *(record[name] for name in ("status", "how", "test", "tried"))))
    return left


def _try_all(
    mutants: list[Mutant], settings: Settings, report: Report, options: argparse.Namespace, console: Console
) -> None:
    if not mutants:
        return
    # Mixed, so that an interrupted run says something about all files, and the estimate of the time left holds.
    mutants = random.Random(options.seed).sample(mutants, len(mutants))
    with Trials(settings) as trials:
        console.print(f"{len(mutants)} mutants; which tests reach which lines? ...")
        reach = _reach(trials, options)
        console.print(f"{len(reach.seconds)} tests, {sum(reach.seconds.values()):.0f} s")
        for test in sorted(reach.broken):
            console.print(f"left out, it fails unchanged: {test}", style="yellow", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        saved = time.monotonic()
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=len(mutants))

            def note(verdict: Verdict) -> None:
                nonlocal saved
                report.verdicts.append(verdict)
                progress.update(task, advance=1, description=f"{report.score:.1f}% killed")
                if verdict.status != "killed" and report.accepted.reason(verdict.mutant) is None:
                    progress.console.print(f"{verdict.status}: {verdict.mutant}", markup=False, highlight=False)
                if options.json and time.monotonic() > saved + _SAVE_EVERY_S:
                    saved = time.monotonic()
                    report.write(options.json)

            trials.run(mutants, reach, note)


def _reach(trials: Trials, options: argparse.Namespace) -> Reach:
    if options.map and options.map.exists():
        return Reach.load(options.map)
    reach = trials.find_reach(
        path.relative_to(options.root).as_posix() for path in _expand(options.root, options.files)
    )
    if options.map:
        reach.save(options.map)
    return reach


def _finish(report: Report, options: argparse.Namespace) -> None:
    print(report.text())
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    sys.exit(main())
