"""The conformance suite in processes of their own.

The suite stays out of this run's settings, threads and open devices, and a driver that crashes takes nothing with it.
To look into a failure run the same by hand: `tidegate conformance --driver NAME -- ARGUMENTS`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field

LIMIT = 1150
"""Seconds that one run may take."""

#: The modules that try a signal, an interrupt or a finalizer at every step: most of the time of a full run.
HANDLERS = "test_signal_handlers"
INTERRUPTS = "test_interrupts or test_storms"
WITHOUT_BOTH = "not test_signal_handlers and not test_interrupts and not test_storms"

#: What a driver does itself. The rest of the suite asks mostly the core, the same for all. So the simulated GPUs,
#: on which everything takes longer, run this every day, and the whole suite among the long tests.
DRIVERS_PART = " or ".join(
    f"test_{name}"
    for name in (
        *("transfer", "upload_download", "mapping", "memory", "allocation", "budgets", "host_reads", "staging"),
        *("dispatch", "executables", "commands", "bindings", "random_programs", "joins_that_fail", "lanes"),
        *("submission", "claims", "queue_order", "failure", "ends", "closed_devices", "several_devices"),
    )
)

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
        quick: whether the slow ones among them are left out.

    """

    subject: str
    tests: str = ""
    variables: tuple[tuple[str, str], ...] = field(default=())
    quick: bool = False

    def __str__(self) -> str:
        parts = {"": "", WITHOUT_BOTH: "", HANDLERS: "handlers", INTERRUPTS: "interrupts", DRIVERS_PART: "drivers-part"}
        part = parts.get(self.tests, self.tests.replace("test_", "").replace(" ", "-"))
        names = [self.subject, *(f"{name}={value}" for name, value in self.variables), part]
        return "-".join(name for name in names if name)

    def result(self) -> subprocess.CompletedProcess[str]:
        """Run it, and return how it ended and what it printed."""
        # The suite does without hypothesis, whose plugin takes a good part of a second to load.
        chosen = [
            "-p",
            "no:hypothesispytest",
            *(["-k", self.tests] if self.tests else []),
            *(["-m", "not slow"] if self.quick else []),
        ]
        return subprocess.run(
            [sys.executable, "-c", _SUITE, self.subject, "-q", *chosen],
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
