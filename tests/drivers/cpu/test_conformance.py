"""The conformance suite over the drivers that need no hardware, as `tidegate conformance` runs it.

Other drivers have runs of their own, beside their tests.
"""

from __future__ import annotations

import pytest

from ..conformance_runs import HANDLERS, INTERRUPTS, LIMIT, WITHOUT_BOTH, Run

RUNS = (
    Run("cpu", WITHOUT_BOTH),
    Run("streams", WITHOUT_BOTH),
    Run("cpu-one-worker", WITHOUT_BOTH),
    Run("null", WITHOUT_BOTH),
)
#: An interrupt or a handler at every step meets the same steps on these as on the others.
LONG_RUNS = tuple(Run(subject, tests) for subject in ("cpu", "streams") for tests in (HANDLERS, INTERRUPTS))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 50)
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_the_subject_passes_the_suite(run: Run) -> None:
    run.check()


@pytest.mark.long
@pytest.mark.timeout(LIMIT + 50)
@pytest.mark.parametrize("run", LONG_RUNS, ids=str)
def test_the_subject_passes_the_long_part_of_the_suite(run: Run) -> None:
    run.check()
