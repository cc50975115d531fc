"""A storm of one kind as a process of its own.

A hang is made a failure: when nothing has moved for three times the limit, the process ends with the stacks of all
threads. Exit status: 1 for a failure, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import shlex
import subprocess
import sys
import time
import traceback

import tidegate as tg

from .. import subjects
from .kinds import KINDS
from .machine import Storm
from .strikes import Unraisable

LIMIT = 10.0
"""How many seconds anything may take that must end."""


def command(driver: str, kind: str, seconds: float, seed: int, limit: float = LIMIT) -> list[str]:
    """Return the command line of a storm."""
    options = ["--driver", driver, "--kind", kind, "--seconds", f"{seconds:g}", "--seed", str(seed)]
    return [sys.executable, "-m", __package__, *options, "--limit", f"{limit:g}"]


def run_apart(driver: str, kind: str, seconds: float, seed: int, limit: float = LIMIT) -> tuple[bool, str]:
    """Run a storm in a process of its own; return whether it went well, and what it printed."""
    line = command(driver, kind, seconds, seed, limit)
    try:
        done = subprocess.run(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=seconds + 12 * limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        output = error.output or b""
        return False, (output if isinstance(output, str) else output.decode(errors="replace")) + "\nit did not end"
    return done.returncode == 0, done.stdout


def main(arguments: list[str] | None = None) -> int:
    """Run a storm from the command line."""
    given = _parse(arguments)
    logging.getLogger("tidegate").addHandler(logging.NullHandler())
    logging.getLogger("tidegate").propagate = False
    try:
        subject = subjects.find(given.driver)
    except tg.InvalidArgumentError as error:
        print(error, file=sys.stderr)
        return 2
    storm = Storm(subject, KINDS[given.kind], given.seed, given.limit)
    try:
        with subject.around(), Unraisable(interrupts=KINDS[given.kind].interrupts) as unraisable:
            storm.run(time.monotonic() + given.seconds, lambda: _watch(given.limit))
            assert not unraisable.heard, "what could not be raised:\n" + "\n".join(unraisable.heard)
    except BaseException:
        _tell(given, storm)
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(
        f"{given.driver}, {given.kind}: {storm.rounds} rounds, {storm.operations} operations,"
        f" {storm.timer.strikes} signals, {storm.timer.inside} of them inside Tidegate"
    )
    return 0


def _watch(limit: float) -> None:
    """Give the next round its time."""
    faulthandler.dump_traceback_later(3 * limit + 10, exit=True)


def _tell(given: argparse.Namespace, storm: Storm) -> None:
    storm.timer.stop()
    faulthandler.dump_traceback(all_threads=True)
    traceback.print_exc()
    line = command(given.driver, given.kind, given.seconds, given.seed, given.limit)
    print(f"FAILED: {given.driver}, kind {given.kind}, seed {given.seed}, in round {storm.rounds}", file=sys.stderr)
    print(f"repeat with: python {shlex.join(line[1:])}", file=sys.stderr, flush=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tidegate.conformance.storms", description="A storm of one kind.")
    parser.add_argument("--driver", default="cpu", help="the subject's name, as for `tidegate conformance`")
    parser.add_argument("--kind", default="all", choices=KINDS, help="what strikes")
    parser.add_argument("--seconds", type=float, default=5.0, help="for how long; a round is always ended")
    parser.add_argument("--seed", type=int, default=0, help="of the program")
    parser.add_argument("--limit", type=float, default=LIMIT, help="how many seconds anything may take that must end")
    return parser.parse_args(arguments)
