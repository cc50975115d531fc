"""The conformance suite over the CUDA driver: on the simulation, and on a card where there is one.

The whole suite for the driver as it comes, among the long tests; every day what is about the driver. Its other forms
differ in a few places, and run what is about those:

- `graph` and `stream` execute all command buffers one way; as it comes the driver chooses.
- `events` learns from events instead of words in memory how far a stream is: what waits, wakes, retires and ends.
- `release` gives the GIL away in every call, which makes no difference to the simulation, so it has to be opened and to
  work there, and what many threads do at once is for the card.

A run on the simulation also fails if the driver did what no driver may do on a card, whatever the tests saw of it.
"""

from __future__ import annotations

import pytest

from tidegate.drivers.cuda import driver

from ..conformance_runs import DRIVERS_PART, INTERRUPTS, LIMIT, WITHOUT_BOTH, Run

_WAITING = "test_queue_order or test_host_waits or test_callbacks or test_failure or test_ends or test_several_devices"

#: A handler at every step takes a quarter of an hour here. What it interrupts is mostly the core, which others show as
#: well; the driver's own part is in the middle of an issue.
_SOME_HANDLERS = "test_a_handler_may_come_while_work_follows_what_is_running"

RUNS = (
    Run("cuda-simulated", DRIVERS_PART, quick=True),
    Run("cuda-simulated-graph", "test_commands or test_bindings"),
    Run("cuda-simulated-stream", "test_commands or test_bindings"),
)
LONG_RUNS = (
    *(Run("cuda-simulated", tests) for tests in (WITHOUT_BOTH, _SOME_HANDLERS, INTERRUPTS)),
    Run("cuda-simulated-events", f"{_WAITING} or test_submission or test_budgets"),
    Run("cuda-simulated-release", "test_dispatch"),
)

ON_A_CARD = {
    "": "",
    "-graph": "test_commands or test_bindings",
    "-stream": "test_commands or test_bindings",
    "-events": f"{_WAITING} or test_submission or test_budgets",
    "-release": f"{_WAITING} or test_threads or test_dispatch",
}


@pytest.fixture(scope="module")
def card() -> None:
    facts = driver.describe()
    if not facts.available:
        pytest.skip(f"there is no CUDA device: {facts.reason}")


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 50)
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_the_driver_passes_the_suite_on_the_simulation(run: Run) -> None:
    run.check()


@pytest.mark.long
@pytest.mark.timeout(LIMIT + 50)
@pytest.mark.parametrize("run", LONG_RUNS, ids=("all", "handlers", "interrupts", "events", "release"))
def test_the_driver_passes_the_long_part_of_the_suite_on_the_simulation(run: Run) -> None:
    run.check()


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 50)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("run", [Run(f"cuda{form}", tests) for form, tests in ON_A_CARD.items()], ids=str)
def test_the_driver_passes_the_suite_on_the_card(run: Run) -> None:
    run.check()
