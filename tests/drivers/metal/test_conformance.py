"""The conformance suite over the Metal driver on the simulated Metal, with several seeds.

One process per run; it fails also if the driver broke a rule of Metal's that no test of the suite looks at.
"""

from __future__ import annotations

import sys

import pytest

from ..conformance_runs import DRIVERS_PART, INTERRUPTS, LIMIT, WITHOUT_BOTH, Run


def seeded(seed: int, tests: str, *, quick: bool = False) -> Run:
    return Run("metal-simulated", tests, (("TIDEGATE_METAL_SEED", str(seed)),), quick)


#: What a handler interrupts is mostly the core, which the other drivers show as well; the driver's own part is in the
#: middle of an issue.
_SOME_HANDLERS = "test_a_handler_may_come_while_work_follows_what_is_running"
#: Where it matters what Metal leaves open.
_SEEDED = "random_programs or joins or starving or queue_order or transfer or lifetimes or commands or failure"


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 50)
@pytest.mark.parametrize("run", [seeded(0, DRIVERS_PART, quick=True)], ids=str)
def test_the_driver_passes_the_suite(run: Run) -> None:
    run.check()


@pytest.mark.long
@pytest.mark.timeout(LIMIT + 50)
@pytest.mark.parametrize(
    "run",
    [seeded(0, WITHOUT_BOTH), seeded(1, _SEEDED), seeded(0, _SOME_HANDLERS), seeded(0, INTERRUPTS)],
    ids=str,
)
def test_the_driver_passes_the_long_part_of_the_suite(run: Run) -> None:
    run.check()


@pytest.mark.skipif(sys.platform == "darwin", reason="this may be a Mac with a GPU")
def test_a_required_metal_that_is_not_there_fails_the_run_and_says_what_to_install() -> None:
    done = Run("metal", "test_transfer").result()
    assert done.returncode != 0
    assert "tidegate[metal]" in done.stdout
