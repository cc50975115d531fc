"""The conformance suite over the drivers that need no hardware, as `tidegate conformance` runs it.

Other drivers have runs of their own, beside their tests.
"""

from __future__ import annotations

import pytest

from ..conformance_runs import LIMIT, Run, Runs

#: An interrupt or a handler at every step takes long, and meets the same steps on these as on the others.
_WITHOUT_INTERRUPTS = "not test_interrupts and not test_signal_handlers and not test_storms"

_FAST = " or ".join(
    f"test_{name}"
    for name in (
        *("semaphores", "threads", "host_waits", "callbacks", "submission", "claims", "queue_order", "failure"),
        *("dispatch", "random_programs", "several_devices"),
    )
)

RUNS = (
    Run("cpu"),
    Run("streams"),
    Run("cpu-one-worker", _WITHOUT_INTERRUPTS),
    Run("null", _WITHOUT_INTERRUPTS),
    # Without the compiled fast paths: what goes by them.
    Run("cpu", _FAST, (("TIDEGATE_PURE", "1"),)),
)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 50)
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_the_subject_passes_the_suite(run: Run, runs: Runs) -> None:
    runs.check(run)
