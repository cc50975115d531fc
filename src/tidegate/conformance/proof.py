"""The suite proves itself: each wrong driver of `tidegate.testing.faulty` must be caught by the test it names.

`prove` runs that one test against that one driver, in a process of its own, several at a time. Where the system has a
fork server, pytest and NumPy are imported once; Tidegate is not, because a forked child of a process that has imported
it is not what users run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_SUITE = Path(__file__).parent
_WARM = ["pytest", "_pytest.python", "_pytest.skipping", "numpy", "asyncio", "trio", "trio.testing"]


@dataclass(frozen=True)
class Verdict:
    """How one test ended: `passed`, `failed`, `skipped`, or `lost` if there is no result; and the text of the run."""

    outcome: str
    text: str


def prove(driver_tests: Iterable[tuple[str, str]], *, limit: float, patience: float, jobs: int = 4) -> list[Verdict]:
    """Run one test each against one driver each.

    Args:
        driver_tests: pairs of a subject's name and a test of the suite, as `module::test`.
        limit: the limit of every blocking call in the test, in seconds.
        patience: seconds after which a process is ended, and its result is lost.
        jobs: how many run at a time; many of the tests only wait.

    Returns:
        the verdicts, in the order of the pairs.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as runners:
        places = (Path(folder, str(number)) for number in range(1_000_000))
        runs = [
            runners.submit(_run, driver, test, limit, patience, place)
            for (driver, test), place in zip(driver_tests, places, strict=False)
        ]
        return [run.result() for run in runs]


def _processes() -> multiprocessing.context.BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in _WARM if importlib.util.find_spec(name.partition(".")[0])])
    return context


_CONTEXT = _processes()


def _run(driver: str, test: str, limit: float, patience: float, place: Path) -> Verdict:
    place.mkdir()
    process = _CONTEXT.Process(target=_run_here, args=(driver, test, limit, str(place)), daemon=True)
    process.start()
    process.join(patience)
    hung = process.is_alive()
    if hung:
        process.kill()
        process.join()
    text = (place / "text").read_text(encoding="utf-8", errors="replace")
    if hung or not (place / "report").exists():
        return Verdict("lost", f"{text}\n{'it hung' if hung else f'exit code {process.exitcode}'}")
    records = json.loads((place / "report").read_text(encoding="utf-8"))["tests"]
    outcomes = {record["outcome"] for record in records}
    for outcome in ("failed", "passed", "skipped"):
        if outcome in outcomes:
            return Verdict(outcome, text)
    return Verdict("lost", f"{text}\nno such test: {test}")


def _run_here(driver: str, test: str, limit: float, place: str) -> None:
    os.environ["TIDEGATE_CONFORMANCE_LIMIT"] = str(limit)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    module, _, name = test.partition("::")
    with _output_to(Path(place, "text")):
        import pytest

        options = [
            f"{_SUITE / module}.py::{name}",
            f"--config-file={_SUITE / 'suite.ini'}",
            f"--rootdir={_SUITE}",
            *("-p", "tidegate.conformance.plugin", "-p", "no:cacheprovider", "-x", "-q"),
            f"--tidegate-driver={driver}",
            f"--tidegate-json={Path(place, 'report')}",
        ]
        pytest.main(options)
    # Not the ordinary way out: a wrong driver may have left threads or locks that would keep it.
    os._exit(0)


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    with path.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        yield
