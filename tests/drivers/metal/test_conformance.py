"""The conformance suite over the Metal driver on the simulated Metal, with several seeds.

One process per run; it fails also if the driver broke a rule of Metal's that no test of the suite looks at.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

RUN = (
    "import sys; from tidegate.conformance import run; sys.exit(run(sys.argv[1], require=True, arguments=sys.argv[2:]))"
)


def run(subject: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, subject, "-q", *arguments],
        capture_output=True,
        text=True,
        timeout=1150,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("seed", "arguments"), [(0, []), (1, ["-k", "not test_interrupts"])])
def test_the_driver_passes_the_suite(seed: int, arguments: list[str]) -> None:
    done = run("metal-simulated", *arguments, TIDEGATE_METAL_SEED=str(seed))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


@pytest.mark.skipif(sys.platform == "darwin", reason="this may be a Mac with a GPU")
def test_a_required_metal_that_is_not_there_fails_the_run_and_says_what_to_install() -> None:
    done = run("metal", "-k", "test_transfer", "-x")
    assert done.returncode != 0
    assert "tidegate[metal]" in done.stdout
