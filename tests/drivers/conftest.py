"""Runs of the conformance suite for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conformance_runs import Run, Runs


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """Start the runs of all tests of the module that were selected and ask for this; each waits for its own."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    given = [item.callspec.params.get("run") for item in tests if "runs" in item.fixturenames]
    started = Runs([run for run in given if isinstance(run, Run)])
    yield started
    started.close()
