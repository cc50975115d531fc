"""The conformance suite over the drivers that need no hardware, as `tidegate conformance` runs it.

One process per subject: the suite stays out of this run's settings, threads and open devices, and a driver that crashes
takes nothing with it. To look into a failure run the same by hand: `tidegate conformance --driver NAME -x`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidegate.conformance import subjects

RUN = "import sys; from tidegate.conformance import run; sys.exit(run(sys.argv[1], require=True, arguments=sys.argv[2:]))"

#: An interrupt at every step takes minutes and meets the same steps here as on the others.
WITHOUT_INTERRUPTS = ("cpu-one-worker", "null")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("subject", subjects.BUILT_IN)
def test_the_subject_passes_the_suite(subject: str) -> None:
    chosen = ["-k", "not test_interrupts"] if subject in WITHOUT_INTERRUPTS else []
    done = subprocess.run(
        [sys.executable, "-c", RUN, subject, "-q", *chosen], capture_output=True, text=True, timeout=1150, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
