#!/usr/bin/env python3
"""Strikes programs with real signals at random moments, and stops at the first failure.

    python tools/storm.py                                     every kind of storm on the CPU, a minute in all
    python tools/storm.py --driver streams --seconds 600      longer, elsewhere
    python tools/storm.py --kinds interrupt finalizer         some kinds only

A process for each stretch of a storm: the kinds take turns until the time is over. Every stretch has a seed, counted up
from --seed; a failure prints the command that repeats it. A seed fixes the program, not the moments of the signals, so
repeat a stretch several times. Exit status: 1 for a failure, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import tidegate as tg
from tidegate.conformance import subjects
from tidegate.conformance.storms.kinds import KINDS
from tidegate.conformance.storms.run import LIMIT, run_apart

#: One process strikes for so long at most.
STRETCH_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        subjects.find(options.driver)
    except tg.InvalidArgumentError as error:
        print(error, file=sys.stderr)
        return 2
    console = Console(stderr=True)
    stretch = min(STRETCH_S, options.seconds / len(options.kinds))
    began = time.monotonic()
    number = 0
    with Progress(BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=options.seconds)
        while (gone := time.monotonic() - began) < options.seconds or number < len(options.kinds):
            kind = options.kinds[number % len(options.kinds)]
            seed = options.seed + number
            progress.update(task, description=f"{options.driver}, {kind}, seed {seed}", completed=gone)
            well, output = run_apart(options.driver, kind, stretch, seed, options.limit)
            if not well:
                progress.stop()
                _tell(kind, seed, stretch, output, options)
                return 1
            if not console.is_terminal:
                print(output.strip().splitlines()[-1], flush=True)
            number += 1
    print(f"{options.driver}: {number} storms without a failure in {time.monotonic() - began:.0f} s")
    return 0


def _tell(kind: str, seed: int, stretch: float, output: str, options: argparse.Namespace) -> None:
    again = ["python", "tools/storm.py", "--driver", options.driver, "--kinds", kind, "--seed", str(seed)]
    again += ["--seconds", f"{stretch:g}", "--limit", f"{options.limit:g}"]
    print(output[-options.tail :])
    print(f"FAILED: driver {options.driver}, kind {kind} ({KINDS[kind].text}), seed {seed}")
    print(f"repeat with: {shlex.join(again)}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    kinds = "\n".join(f"  {name:10} {kind.text}" for name, kind in KINDS.items())
    parser = argparse.ArgumentParser(
        prog="storm.py",
        description=__doc__,
        epilog=f"the kinds:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--driver", default="cpu", metavar="NAME", help="the subject (default cpu)")
    add("--seconds", type=_seconds, default=60.0, metavar="N", help="for how long (default 60)")
    add("--seed", type=int, default=0, metavar="N", help="of the first stretch (default 0)")
    add("--kinds", nargs="+", default=list(KINDS), choices=KINDS, metavar="KIND", help="(default: each in turn)")
    add(
        "--limit", type=_seconds, default=LIMIT, metavar="S", help=f"what must end may take so long (default {LIMIT:g})"
    )
    add("--tail", type=int, default=20000, metavar="CHARS", help="how much to show of a failed stretch")
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
