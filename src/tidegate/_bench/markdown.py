"""Shows what `tidegate bench --json` wrote as Markdown, for pages that quote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .model import TIDEGATE
from .report import show_figures, show_value

Facts = Mapping[str, Any]


def render(facts: Facts) -> str:
    """Return the machine, an overview of the goals, and a table for each case."""
    lines = [*_machine(facts), "", *_overview(facts["cases"]), ""]
    for case in facts["cases"]:
        lines += [f"### {case['title'][0].upper()}{case['title'][1:]}", "", *_case(case), ""]
    return "\n".join(lines).rstrip() + "\n"


def _machine(facts: Facts) -> Iterator[str]:
    gpu, machine = facts.get("gpu", {}), facts["machine"]
    yield "| | |"
    yield "| --- | --- |"
    yield f"| date | {facts['date']} |"
    if gpu:
        yield f"| GPU | {gpu['name']}, driver {gpu['driver'] or 'unknown'}, CUDA {gpu['cuda']} |"
    yield f"| machine | {machine['processor']}, {machine['cores']} cores, {machine['system']} |"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    yield f"| versions | {versions} |"
    absent = ", ".join(name for name, version in facts["versions"].items() if not version)
    if absent:
        yield f"| not installed | {absent} |"
    for side, note in facts.get("sides", {}).items():
        yield f"| {side} | {note} |"


def _overview(cases: list[Facts]) -> Iterator[str]:
    yield "| case | goal | measured | |"
    yield "| --- | --- | --- | --- |"
    words = {True: "met", False: "**missed**", None: "not measured"}
    for case in cases:
        for goal in case["goals"]:
            value = "-" if goal["value"] is None else show_value(goal["value"], goal["unit"])
            disturbed = ", disturbed" if case["disturbed"] else ""
            yield f"| {case['title']} | {goal['text']} | {value} | {words[goal['met']]}{disturbed} |"


def _case(case: Facts) -> Iterator[str]:
    for variant in dict.fromkeys(line["variant"] for line in case["results"]):
        if variant:
            yield f"{variant[0].upper()}{variant[1:]}:"
            yield ""
        yield from _table(case, variant)
        yield ""
    for reason in (*case["missing"], *case["failed"]):
        where = f" ({reason['variant']})" if reason["variant"] else ""
        yield f"- {reason['side']}{where}: {reason['reason']}"


def _table(case: Facts, variant: str) -> Iterator[str]:
    lines = [line for line in case["results"] if line["variant"] == variant]
    found = {(line["side"], line["condition"]): line for line in lines}
    conditions = [one for one in ("idle", "busy") if any(line["condition"] == one for line in lines)]
    headings = [text for one in conditions for text in (f"{one}: p50 (p99)", "to ours")]
    yield f"| | {' | '.join(headings)} |"
    yield f"| --- |{' ---: |' * len(headings)}"
    for side in dict.fromkeys(line["side"] for line in lines):
        cells = [cell for one in conditions for cell in _cells(case, found, side, one)]
        yield f"| {side} | {' | '.join(cells)} |"


def _cells(case: Facts, found: Mapping[tuple[str, str], Facts], side: str, condition: str) -> tuple[str, str]:
    line, ours = found.get((side, condition)), found.get((TIDEGATE, condition))
    if line is None:
        return "-", ""
    ratio = f"{line['p50'] / ours['p50']:.2f}x" if ours and side != TIDEGATE and ours["p50"] else ""
    return show_figures(line["p50"], line["p99"], "byte" in case["unit"]), ratio
