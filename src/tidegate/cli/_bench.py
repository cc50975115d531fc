"""`tidegate bench`: every benchmark beside its twins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._wrong_use import json_option, wrong_use

if TYPE_CHECKING:
    from rich.console import Console

    from tidegate._bench.model import Case, Result

QUICK_SECONDS, FULL_SECONDS = 0.6, 6.0
"""How long one case may take in one company; a case of large crowds takes its three rounds anyway."""


@click.command()
@click.option("--device", metavar="URI", help="Which device; default: the best one present.")
@json_option("Write all numbers.")
@click.option("--quick", is_flag=True, help="Fewer rounds and smaller crowds, in less than a minute.")
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only this case; may be given more than once.")
def bench(device: str | None, json_file: str | None, quick: bool, names: tuple[str, ...]) -> int:
    """Measure Tidegate beside IREE's runtime and the standard library."""
    from rich.console import Console

    from tidegate._bench import report, runner

    cases = _choose(runner.all_cases(quick), names)
    results = _run(cases, device, FULL_SECONDS if not quick else QUICK_SECONDS)
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)  # a file has room for the table
    console.print(report.make_table(results))
    console.print(report.summarize(results))
    if json_file:
        _write(Path(json_file), results, quick)
    return _tell_failures(console, results)


def _choose(cases: list[Case], names: Sequence[str]) -> list[Case]:
    known = [case.name for case in cases]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"no case {name!r}; there are {', '.join(known)}", param_hint="--case")
    return [case for case in cases if not names or case.name in names]


def _run(cases: Sequence[Case], uri: str | None, seconds: float) -> list[Result]:
    from rich.console import Console
    from rich.progress import Progress

    from tidegate._bench.contestants import Contestants
    from tidegate._bench.runner import run_case

    results = []
    with wrong_use("--device"):
        contestants = Contestants(uri)
    # The bar is drawn between rounds only: a thread that redraws it would be part of what is measured.
    with contestants, Progress(console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("", total=len(cases))
        for number, case in enumerate(cases):

            def advance(share: float, number: int = number, case: Case = case) -> None:
                progress.update(task, completed=number + share, description=case.name, refresh=True)

            advance(0)
            results.append(run_case(case, contestants, seconds=seconds, advance=advance))
    return results


def _write(path: Path, results: Sequence[Result], quick: bool) -> None:
    from tidegate._bench import machine, report

    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.describe_machine(),
        "versions": machine.describe_versions(),
        "quick": quick,
        "cases": report.as_json(results),
    }
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _tell_failures(console: Console, results: Sequence[Result]) -> int:
    from rich.text import Text

    failures = [(result.case.name, *turn, why) for result in results for turn, why in result.failed.items()]
    for name, side, variant, why in failures:
        where = f"{name}, {side}{variant and ', ' + variant}"
        console.print(Text.assemble(("failed ", "bold red"), f"{where}: {why}"))
    return 1 if failures else 0
