"""The conformance suite over the drivers that need no hardware, as `tidegate conformance` runs it.

One process per subject: the suite stays out of this run's settings, threads and open devices, and a driver that crashes
takes nothing with it. To look into a failure run the same by hand: `tidegate conformance --driver NAME -x`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RUN = (
    "import sys; from tidegate.conformance import run; sys.exit(run(sys.argv[1], require=True, arguments=sys.argv[2:]))"
)

#: Other drivers have runs of their own, beside their tests.
SUBJECTS = ("cpu", "cpu-one-worker", "streams", "null")

#: An interrupt at every step takes minutes and meets the same steps here as on the others.
WITHOUT_INTERRUPTS = ("cpu-one-worker", "null")


def run(subject: str, *arguments: str, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, subject, "-q", *arguments],
        capture_output=True,
        text=True,
        timeout=1150,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_subject_passes_the_suite(subject: str) -> None:
    run(subject, *(["-k", "not test_interrupts"] if subject in WITHOUT_INTERRUPTS else []))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_suite_passes_without_the_compiled_fast_paths() -> None:
    run("cpu", "-k", "not test_interrupts", TIDEGATE_PURE="1")
