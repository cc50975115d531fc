"""The suite proves itself: each wrong driver of `tidegate.testing.faulty` must be caught by the test it names.

`run_all` runs tests of the suite against drivers, each run in a process of its own, several at a time. Where the system
has a fork server, pytest and NumPy are imported once for all of them; Tidegate is not, because a child forked from a
process that uses Tidegate is not what is to be tested.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path

_SUITE = Path(__file__).parent
_WARM = ("pytest", "_pytest.python", "_pytest.skipping", "numpy", "asyncio", "trio", "trio.testing")

#: Worst first: what one test with several cases is taken for.
_OUTCOMES = ("failed", "skipped", "not yet", "passed")


@dataclass(frozen=True)
class Run:
    """Some tests against one driver.

    Attributes:
        driver: The subject's name.
        tests: The tests, as `module::test` or `module::test[case]`.
        limit: The limit of every blocking call in the tests, in seconds.
        patience: Seconds after which the process is ended.
    """

    driver: str
    tests: tuple[str, ...]
    limit: float = 30.0
    patience: float = 600.0


@dataclass(frozen=True)
class Result:
    """What came of a run: the outcome of each test by name, and what pytest wrote."""

    outcomes: Mapping[str, str]
    text: str

    def outcome(self, test: str) -> str:
        """Return how a test ended, all its cases taken together; `lost` if there is no result."""
        found = {outcome for name, outcome in self.outcomes.items() if name == test or name.startswith(f"{test}[")}
        return next((outcome for outcome in _OUTCOMES if outcome in found), "lost")


def run_all(runs: Sequence[Run], *, jobs: int = 4) -> list[Result]:
    """Run them, `jobs` at a time: many wrong drivers are found out by waiting, which costs no processor.

    A fault that no longer applies and a process that hangs or dies give no outcomes.
    """
    context = _context()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        places = [Path(folder, str(number)) for number in range(len(runs))]
        return list(pool.map(lambda run, place: _run(context, run, place), runs, places))


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in _WARM if importlib.util.find_spec(name.partition(".")[0])])
    return context


def _run(context: BaseContext, run: Run, place: Path) -> Result:
    place.mkdir()
    process = context.Process(target=_run_here, args=(run, str(place)), daemon=True)  # type: ignore[attr-defined]
    process.start()
    process.join(run.patience)
    ended = process.exitcode
    if ended is None:
        process.kill()
        process.join()
    text, report = place / "text", place / "report"
    written = text.read_text(encoding="utf-8", errors="replace") if text.exists() else ""
    # 255 is what multiprocessing says when two threads asked for the status at once and this one came second; the
    # report, written last, tells whether all went well.
    if ended not in (0, 255) or not report.exists():
        return Result({}, f"{written}\n{'it hung' if ended is None else f'it ended with {ended}'}")
    records = json.loads(report.read_text(encoding="utf-8"))["tests"]
    return Result({record["test"]: record["outcome"] for record in records}, written)


def _run_here(run: Run, place: str) -> None:
    os.environ["TIDEGATE_CONFORMANCE_LIMIT"] = str(run.limit)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with Path(place, "text").open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import pytest

    pytest.main(
        [
            *(f"{_SUITE}/{test.replace('::', '.py::', 1)}" for test in run.tests),
            f"--config-file={_SUITE / 'suite.ini'}",
            f"--rootdir={_SUITE}",
            *("-p", "tidegate.conformance.plugin", "-p", "no:cacheprovider", "-q"),
            *(["-x"] if len(run.tests) == 1 else []),  # the other cases would only hang as well
            f"--tidegate-driver={run.driver}",
            f"--tidegate-json={Path(place, 'report')}",
        ]
    )
    # Not the ordinary way out: a wrong driver may have left threads and locks that would block it.
    os._exit(0)
