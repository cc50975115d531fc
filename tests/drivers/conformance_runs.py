"""The conformance suite in processes of their own, a few at a time.

The suite stays out of this run's settings, threads and open devices, and a driver that crashes takes nothing with it.
To look into a failure run the same by hand: `tidegate conformance --driver NAME -- ARGUMENTS`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

LIMIT = 1150
"""Seconds that one run may take."""

_JOBS = 3
"""More than there may be cores: a good part of the suite is waiting."""
_SUITE = (
    "import sys; from tidegate.conformance import run; sys.exit(run(sys.argv[1], require=True, arguments=sys.argv[2:]))"
)


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        subject: what it runs against.
        tests: which tests, as pytest's `-k` takes them; all if empty.
        variables: additions to the environment.

    """

    subject: str
    tests: str = ""
    variables: tuple[tuple[str, str], ...] = field(default=())

    def __str__(self) -> str:
        return "-".join([self.subject, *(f"{name}={value}" for name, value in self.variables)])

    def result(self) -> subprocess.CompletedProcess[str]:
        """Run it, and return how it ended and what it printed."""
        return subprocess.run(
            [sys.executable, "-c", _SUITE, self.subject, "-q", *(["-k", self.tests] if self.tests else [])],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env={**os.environ, **dict(self.variables)},
        )

    def check(self) -> None:
        """Run it, and fail if it fails."""
        done = self.result()
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


class Runs:
    """Runs that are under way."""

    def __init__(self, runs: list[Run]) -> None:
        self._pool = ThreadPoolExecutor(_JOBS)
        self._under_way: dict[Run, Future[None]] = {run: self._pool.submit(run.check) for run in runs}

    def check(self, run: Run) -> None:
        """Wait for a run and fail if it failed."""
        self._under_way[run].result()

    def close(self) -> None:
        """Begin no more."""
        self._pool.shutdown(cancel_futures=True)
