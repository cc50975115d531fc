"""`tidegate bench`: every benchmark beside its twins."""

from __future__ import annotations

import faulthandler
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._wrong_use import json_option, wrong_use

if TYPE_CHECKING:
    from rich.console import Console

    from tidegate._bench.contestants import Contestants
    from tidegate._bench.model import Case, Result

QUICK_SECONDS, FULL_SECONDS, GPU_SECONDS = 0.6, 6.0, 3.0
"""How long one case may take in one company; a case of large crowds takes its three rounds anyway."""

CASE_LIMIT = 120.0
"""After so many seconds a case is taken for hung: the process says where, and ends. What is measured is written."""

_STDERR = 2


@click.command()
@click.option("--device", metavar="URI", help="Which device; default: the best one present.")
@json_option("Write all numbers.")
@click.option("--quick", is_flag=True, help="Fewer rounds and smaller crowds, in less than a minute.")
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only this case; may be given more than once.")
def bench(device: str | None, json_file: str | None, quick: bool, names: tuple[str, ...]) -> int:
    """Measure Tidegate beside its twins.

    On a CPU these are IREE's runtime and the standard library; on an NVIDIA GPU the raw calls by cuda-bindings,
    cuda.core, IREE, CuPy and PyTorch, as far as they are installed.
    """
    from rich.console import Console

    from tidegate._bench import report

    results = _run(device, names, quick, Path(json_file) if json_file else None)
    console = Console()
    many = len(report.sides_of(results)) > 4
    if not console.is_terminal:
        console.width = max(console.width, 140)  # a file has room for the table
    console.print(report.make_side_tables(results) if many else report.make_table(results))
    console.print(report.summarize(results))
    return _tell_failures(console, results)


def _choose(cases: list[Case], names: Sequence[str]) -> list[Case]:
    known = [case.name for case in cases]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"no case {name!r}; there are {', '.join(known)}", param_hint="--case")
    return [case for case in cases if not names or case.name in names]


def _run(uri: str | None, names: Sequence[str], quick: bool, file: Path | None) -> list[Result]:
    from tidegate._bench.contestants import Contestants
    from tidegate._bench.runner import all_cases

    with wrong_use("--device"):
        contestants = Contestants(uri)
    with contestants:
        cases = _choose(all_cases(quick, _driver_of(contestants)), names)
        return _run_cases(cases, contestants, quick, file)


def _run_cases(cases: Sequence[Case], contestants: Contestants, quick: bool, file: Path | None) -> list[Result]:
    from rich.console import Console
    from rich.progress import Progress

    from tidegate._bench.runner import run_case

    results: list[Result] = []
    driver = _driver_of(contestants)
    seconds = QUICK_SECONDS if quick else GPU_SECONDS if driver == "cuda" else FULL_SECONDS
    # The bar is drawn between rounds only: a thread that redraws it would be part of what is measured.
    with Progress(console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("", total=len(cases))
        for number, case in enumerate(cases):

            def advance(share: float, number: int = number, case: Case = case) -> None:
                progress.update(task, completed=number + share, description=case.name, refresh=True)

            advance(0)
            with _limited(driver == "cuda"):
                results.append(run_case(case, contestants, seconds=seconds, advance=advance))
            if file is not None:
                _write(file, results, quick, contestants)
    return results


def _driver_of(contestants: Contestants) -> str:
    """Return whose cases are run: those of a real driver, also on a simulated one."""
    return contestants.device.info.driver.removesuffix("-simulated")


@contextmanager
def _limited(native: bool) -> Iterator[None]:
    """End the process if a case hangs: a twin may sit in a native call that no timeout of ours reaches."""
    if not native:
        yield
        return
    faulthandler.dump_traceback_later(CASE_LIMIT, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _write(path: Path, results: Sequence[Result], quick: bool, contestants: Contestants) -> None:
    from tidegate._bench import cuda_machine, machine, report

    facts: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.describe_machine(),
        "versions": machine.describe_versions(),
        "quick": quick,
    }
    if _driver_of(contestants) == "cuda":
        facts["gpu"] = cuda_machine.describe_gpu(contestants.device)
        facts["versions"] |= cuda_machine.describe_peers()
        facts["sides"] = contestants.notes
    facts["cases"] = report.as_json(results)
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _tell_failures(console: Console, results: Sequence[Result]) -> int:
    from rich.text import Text

    failures = [(result.case.name, *turn, why) for result in results for turn, why in result.failed.items()]
    for name, side, variant, why in failures:
        where = f"{name}, {side}{variant and ', ' + variant}"
        console.print(Text.assemble(("failed ", "bold red"), f"{where}: {why}"))
    return 1 if failures else 0
