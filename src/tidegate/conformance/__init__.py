"""The conformance suite: what every driver must do, as tests that ship with the package.

`tidegate conformance --driver NAME` runs it; `run` does the same from Python. A driver joins with a `Subject`
(`subjects`), the fixtures are in `plugin`, the kernels in `kernels`, blocking work in `latches`, work of every kind in
`works`, and what tests look at things with in `witnesses` and `buffers`. The test modules, one per topic, use public
names only; each test is marked with the rules of the model it proves; `table` turns the results into the table of the
documentation.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run"]

#: More than any test of the suite takes on a loaded machine; a test that gets there hangs.
_TEST_LIMIT = 300


def run(
    driver: str,
    *,
    require: bool = False,
    programs: int = 100,
    arguments: Sequence[str] = (),
    json: str | None = None,
) -> int:
    """Run the suite against a driver, in this process.

    Args:
        driver: The subject's name: `cpu`, `null`, one from an entry point, or `package.module:attribute`.
        require: Whether a driver that is not available here fails the run instead of skipping it.
        programs: How many random programs to run.
        arguments: Passed to pytest, for example `["-k", "signal", "-x"]`.
        json: A file for the results, one record per test with the rules it proves.

    Returns:
        pytest's exit status: 0 if everything passed or was skipped with a reason.

    Raises:
        InvalidArgumentError: the subject is not known; the text lists those that are.
        FailedPreconditionError: pytest is not installed.
    """
    import tidegate as tg

    if importlib.util.find_spec("pytest") is None:
        raise tg.FailedPreconditionError("the conformance suite needs pytest: pip install 'tidegate[test]'")
    from . import subjects

    subjects.find(driver)
    import pytest

    return int(pytest.main([*_options(driver, require, programs, json), *arguments]))


def _options(driver: str, require: bool, programs: int, json: str | None) -> list[str]:
    here = Path(__file__).parent
    options = [
        str(here),
        # The suite brings its own settings: those of the project it is run in are about that project's tests.
        f"--config-file={here / 'suite.ini'}",
        f"--rootdir={here}",
        "-p",
        "tidegate.conformance.plugin",
        "-p",
        "no:cacheprovider",
        f"--tidegate-driver={driver}",
        f"--tidegate-programs={programs}",
    ]
    if importlib.util.find_spec("pytest_timeout") is not None:
        options.append(f"--timeout={_TEST_LIMIT}")
    if require:
        options.append("--tidegate-require")
    if json is not None:
        options.append(f"--tidegate-json={json}")
    return options
