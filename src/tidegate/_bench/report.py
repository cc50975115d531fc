"""Shows results: a table for people, a dictionary for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from .goals import Verdict
from .model import SIDES, Condition, Result, Samples


def make_table(results: Sequence[Result]) -> Table:
    """Return the table of all cases: one line for each size and each company."""
    table = Table(title="p50, and p99 where it says so", title_justify="left", pad_edge=False)
    table.add_column("case")
    for side in SIDES:
        table.add_column(side, justify="right")
    table.add_column("goal")
    for result in results:
        for row in _rows(result):
            table.add_row(*row)
        table.add_section()
    return table


def _rows(result: Result) -> Iterator[list[str]]:
    lines = [_show_verdict(goal.judge(result)) for goal in result.case.goals]
    if result.disturbed:
        lines.append(f"[yellow]disturbed: others used {result.others:.1f} cores[/]")
    verdicts = "\n".join(lines)
    title = result.case.title
    for condition in result.case.conditions:
        for variant in result.case.sides:
            company = "beside a busy thread" if condition == "busy" else ""
            label = ", ".join(part for part in (variant, company) if part)
            cells = [_cell(result, side, variant, condition) for side in SIDES]
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


def show_time(nanoseconds: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, scale in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if nanoseconds < 1000 * scale or unit == "ms":
            return f"{nanoseconds / scale:.3g} {unit}"
    raise AssertionError


def _show_verdict(verdict: Verdict) -> str:
    if verdict.value is None:
        return f"{verdict.text}: not measured"
    value = show_time(verdict.value) if verdict.limit >= 1000 else f"{verdict.value:.2f}x"
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
