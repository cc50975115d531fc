"""How `-n` spreads the tests over processes."""

from __future__ import annotations

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long in one piece, so that nobody waits for it at the end."""
    items.sort(key=lambda item: item.path.name != _IN_ONE_PIECE)  # a stable sort: the rest stays as it is
