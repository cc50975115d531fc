"""What is run where: how `-n` spreads the tests over processes, and what is left out without an NVIDIA card."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

#: Three, even where there are fewer cores: a good part of the tests is waiting.
_PROCESSES_AT_LEAST = 3
_IN_ONE_PIECE = "test_conformance.py"
#: Tests that need an NVIDIA card come one after the other: kernels that spin are in the way of other processes.
_ON_A_CARD = ("/cuda/card/", "_on_the_card")
_LEFT_OUT = pytest.StashKey[int]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Answer `-n auto`."""
    return max(_PROCESSES_AT_LEAST, os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep the tests of a file together, for they share what is costly; runs of the conformance suite share nothing."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if any(part in nodeid for part in _ON_A_CARD):
                return "card"
            path = nodeid.partition("::")[0]
            return nodeid if path.endswith(_IN_ONE_PIECE) else path

    config.option.loadscopereorder = False  # the order is that of the collection, see below
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a card where there is none, and begin with what takes long in one piece."""
    needy = [item for item in items if _needs_a_card(item)]
    if needy and _why_no_card():
        config.stash[_LEFT_OUT] = len(needy)
        config.hook.pytest_deselected(items=needy)
        items[:] = [item for item in items if not _needs_a_card(item)]
    items.sort(key=lambda item: item.path.name != _IN_ONE_PIECE)  # a stable sort: the rest stays as it is


def _needs_a_card(item: pytest.Item) -> bool:
    """Whether a test takes the fixture `card`, or stands for the real driver where others take the simulation."""
    driver = getattr(getattr(item, "callspec", None), "params", {}).get("driver", "") if _is_for_cards(item) else ""
    return (driver if isinstance(driver, str) else driver[0]) == "cuda" or "card" in getattr(item, "fixturenames", ())


def _is_for_cards(item: pytest.Item) -> bool:
    return "/cuda/card/" in item.nodeid


def _why_no_card() -> str:
    from tidegate.drivers.cuda import driver

    facts = driver.describe()
    return "" if facts.available else facts.reason


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_new() -> None:
    """Have collections pass over what is there before a module: thousands of tests collect, and some count objects."""
    gc.collect()
    gc.freeze()


# One line instead of hundreds of skips, also where other processes have collected the tests.


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash.get(_LEFT_OUT, 0)
    if left_out:
        why = _why_no_card().partition(":")[0]
        terminalreporter.write_line(f"{left_out} tests need an NVIDIA card, and were left out: {why}")
