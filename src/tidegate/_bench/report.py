"""Shows results: a table for people, a dictionary for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .goals import Verdict
from .model import SIDES, TIDEGATE, Condition, Result, Samples


def make_table(results: Sequence[Result]) -> Table:
    """Return the table of all cases: one line for each size and each company."""
    table = Table(title="p50, and p99 where it says so", title_justify="left", pad_edge=False)
    table.add_column("case")
    sides = sides_of(results)
    for side in sides:
        table.add_column(side, justify="right")
    table.add_column("goal")
    for result in results:
        for row in _rows(result, sides):
            table.add_row(*row)
        table.add_section()
    return table


def sides_of(results: Sequence[Result]) -> list[str]:
    """Return everybody who could take part, those of every machine first."""
    named = [side for result in results for sides in result.case.sides.values() for side in sides]
    known = [side for side in SIDES if side in named]
    return list(dict.fromkeys([*known, *named]))


def make_side_tables(results: Sequence[Result]) -> Group:
    """Return a table for each case, for runs with many sides: a line for each, and ours as the measure of the others.

    The columns `x` say how much longer a side takes than Tidegate.
    """
    return Group(*(part for result in results for part in _side_parts(result)))


def _side_parts(result: Result) -> Iterator[RenderableType]:
    for variant in result.case.sides:
        yield _side_table(result, variant)
    for (side, variant), why in {**result.missing, **result.failed}.items():
        yield Text(f"  {side}{variant and ', ' + variant}: {why}", style="dim")
    for goal in result.case.goals:
        yield Text.from_markup("  goal: " + _show_verdict(goal.judge(result)))
    if result.disturbed:
        yield Text(f"  disturbed: others used {result.others:.1f} cores", style="yellow")
    yield Text()


def _side_table(result: Result, variant: str) -> Table:
    title = f"{result.case.title}{variant and ': ' + variant}"
    table = Table(title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("", min_width=26)
    for condition in result.case.conditions:
        table.add_column(f"{condition}: p50 (p99)", justify="right", min_width=20)
        table.add_column("x", justify="right", min_width=7)
    for side in result.case.sides[variant]:
        cells = _side_cells(result, side, variant)
        if any(cells):
            table.add_row(side, *cells)
    return table


def _side_cells(result: Result, side: str, variant: str) -> list[str]:
    cells: list[str] = []
    for condition in result.case.conditions:
        samples, ours = (result.get(name, variant, condition) for name in (side, TIDEGATE))
        if samples is None:
            cells += ["", ""]
            continue
        cells.append(show_figures(samples.p50, samples.p99, result.case.unit == "bandwidth"))
        cells.append(f"{samples.ratio_to(ours):.2f}" if ours and side != TIDEGATE else "")
    return cells


def show_figures(p50: float, p99: float, bandwidth: bool) -> str:
    """Return the median, and what one in a hundred exceeds."""
    return f"{1 / p50:.2f} GB/s" if bandwidth else f"{show_time(p50)} ({show_time(p99)})"


def _rows(result: Result, sides: Sequence[str]) -> Iterator[list[str]]:
    lines = [_show_verdict(goal.judge(result)) for goal in result.case.goals]
    if result.disturbed:
        lines.append(f"[yellow]disturbed: others used {result.others:.1f} cores[/]")
    verdicts = "\n".join(lines)
    title = result.case.title
    for condition in result.case.conditions:
        for variant in result.case.sides:
            company = "beside a busy thread" if condition == "busy" else ""
            label = ", ".join(part for part in (variant, company) if part)
            cells = [_cell(result, side, variant, condition) for side in sides]
            yield [f"{title}\n  {label}" if title and label else title or f"  {label}", *cells, verdicts]
            title = verdicts = ""


def _cell(result: Result, side: str, variant: str, condition: Condition) -> str:
    samples = result.get(side, variant, condition)
    if samples is None:
        why = result.failed.get((side, variant)) or result.missing.get((side, variant))
        return f"[dim]{why}[/]" if why else "-"
    if result.case.unit == "bandwidth":
        return f"{1 / samples.p50:.2f} GB/s"
    if len(result.case.conditions) > 1:
        return f"{show_time(samples.p50)}\n[dim]p99 {show_time(samples.p99)}[/]"
    return show_time(samples.p50)


def show_value(value: float, unit: str) -> str:
    """Return what a goal was held against."""
    return show_time(value) if unit == "ns" else f"{value:.2f}x" if unit == "x" else f"{value:.1f} {unit}"


def show_time(nanoseconds: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, scale in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if nanoseconds < 1000 * scale or unit == "ms":
            return f"{nanoseconds / scale:.3g} {unit}"
    raise AssertionError


def _show_verdict(verdict: Verdict) -> str:
    if verdict.value is None:
        return f"{verdict.text}: not measured"
    value = show_value(verdict.value, verdict.unit)
    word = "[green]met[/]" if verdict.met else "[bold red]missed[/]"
    return f"{verdict.text}: {value} {word}"


def summarize(results: Sequence[Result]) -> str:
    """Say how many goals were met, missed and not measured, and whether that can be trusted."""
    verdicts = [goal.judge(result).met for result in results for goal in result.case.goals]
    met, missed, unknown = (verdicts.count(outcome) for outcome in (True, False, None))
    disturbed = sum(result.disturbed for result in results)
    text = f"goals: {met} met, {missed} missed, {unknown} not measured"
    if disturbed:
        text += f"; {disturbed} of {len(results)} cases were disturbed by other processes: run again on an idle machine"
    return text


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return every number, in nanoseconds."""
    return [
        {
            "name": result.case.name,
            "title": result.case.title,
            "unit": "nanoseconds per " + ("byte" if result.case.unit == "bandwidth" else "operation"),
            "results": [{**key._asdict(), **_numbers(samples)} for key, samples in result.samples.items()],
            "cores_used_by_others": result.others,
            "disturbed": result.disturbed,
            "missing": _reasons(result.missing),
            "failed": _reasons(result.failed),
            "goals": [vars(goal.judge(result)) for goal in result.case.goals],
        }
        for result in results
    ]


def _numbers(samples: Samples) -> dict[str, float]:
    figures = {"p10": samples.quantile(0.1), "p50": samples.p50, "p90": samples.quantile(0.9), "p99": samples.p99}
    return {"rounds": len(samples.rounds), "samples": samples.count} | {n: round(v, 4) for n, v in figures.items()}


def _reasons(reasons: dict[tuple[str, str], str]) -> list[dict[str, str]]:
    return [{"side": side, "variant": variant, "reason": reason} for (side, variant), reason in reasons.items()]
