"""Runs random programs, and says which one failed, how, and what it looks like at its smallest.

    python -m tidegate.conformance.programs.run --driver streams --seeds 10000

goes on where the suite's quick run ends; `--print SEED` shows a program without running it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tidegate as tg
from tidegate.conformance import subjects
from tidegate.conformance.latches import LIMIT
from tidegate.conformance.programs.generate import generate
from tidegate.conformance.programs.program import Program
from tidegate.conformance.programs.shrink import shrink
from tidegate.conformance.programs.source import source

PER_DEVICE = 25
"""So many programs share a device, one after the other: what one leaves behind the next may trip over."""

_SHRINK_SECONDS = LIMIT
_TRIES = 40
"""A smaller program is taken not to fail after so many runs that went well."""

Opened = Callable[[], tg.Device]


@dataclass(frozen=True)
class Form:
    """How programs are drawn: by how many threads they are submitted, and whether something fails."""

    threads: int
    failures: bool

    def __str__(self) -> str:
        return f"{self.threads} thread{'s' if self.threads > 1 else ''}{', with failures' if self.failures else ''}"


FORMS = (Form(1, False), Form(8, False), Form(1, True), Form(8, True))


def run_seeds(subject: subjects.Subject, form: Form, seeds: Iterable[int]) -> None:
    """Run the programs of some seeds.

    Raises:
        AssertionError: one went wrong; the text has the smallest program found that does.

    """
    faults = "fault" not in subject.lacks
    remaining = iter(seeds)
    while group := list(itertools.islice(remaining, PER_DEVICE)):
        device = subject.open_device()
        try:
            for seed in group:
                program = generate(seed, threads=form.threads, failures=form.failures, faults=faults)
                try:
                    run_once(device, program)
                except Exception as error:
                    raise AssertionError(_account(subject, form, program, error)) from None
        finally:
            _close(device)


def run_once(device: tg.Device, program: Program) -> None:
    """Run a program, as its text says; raises what goes wrong."""
    namespace: dict[str, Any] = {"__name__": f"program_{program.seed}"}
    exec(compile(source(program), f"<program {program.seed}>", "exec"), namespace)
    namespace["program"](device)


def _fails(subject: subjects.Subject, program: Program) -> BaseException | None:
    """Return how a program fails on a fresh device, or None if many runs go well."""
    deadline = time.monotonic() + 2.0
    device = subject.open_device()
    try:
        for _ in range(_TRIES):
            try:
                run_once(device, program)
            except Exception as error:
                return error
            if time.monotonic() > deadline:
                return None
    finally:
        _close(device)
    return None


def _close(device: tg.Device) -> None:
    """Close; a program that went wrong may have left what never ends."""
    try:
        device.close(timeout=min(LIMIT, 5.0))
    except tg.DeadlineExceededError:
        pass


def _account(subject: subjects.Subject, form: Form, program: Program, error: Exception) -> str:
    small = shrink(program, lambda candidate: _fails(subject, candidate) is not None, _SHRINK_SECONDS)
    again = _fails(subject, small) or error
    told = "".join(traceback.format_exception_only(again)).strip()
    return (
        f"random program {program.seed} ({form}) went wrong on {subject.name}: {error}\n"
        f"At its smallest ({len(small.steps)} of {len(program.steps)} steps) it ends with\n{told}\n"
        f"The program; it can be run as it stands:\n\n{source(small, subject.name)}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run programs from the command line."""
    parser = argparse.ArgumentParser(description="Run random programs on a driver and compare them with NumPy.")
    parser.add_argument("--driver", default="cpu", help="the subject's name, as for `tidegate conformance`")
    parser.add_argument("--seeds", type=int, default=1000, help="how many programs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further programs after so long")
    parser.add_argument("--print", type=int, metavar="SEED", help="print the program of a seed in each form, and end")
    given = parser.parse_args(arguments)
    if given.print is not None:
        for form in FORMS:
            print(source(generate(given.print, threads=form.threads, failures=form.failures), given.driver))
        return 0
    return _run_many(given.driver, given.first, given.seeds, given.seconds)


def _run_many(driver: str, first: int, count: int, seconds: float) -> int:
    subject = subjects.find(driver)
    began = time.monotonic()
    done = 0
    failed = 0
    with subject.around():
        for start in range(first, first + count, PER_DEVICE):
            if time.monotonic() - began > seconds:
                break
            group = range(start, min(start + PER_DEVICE, first + count))
            form = FORMS[start // PER_DEVICE % len(FORMS)]
            try:
                run_seeds(subject, form, group)
            except AssertionError as error:
                failed += 1
                print(f"\n{error}", flush=True)
            done += len(group)
            if sys.stderr.isatty() or done % 500 == 0:
                print(f"\r{driver}: {done} of {count} programs, {failed} failed", end="", file=sys.stderr, flush=True)
    print(f"\n{driver}: {done} programs from seed {first} in {time.monotonic() - began:.0f} s, {failed} groups failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
