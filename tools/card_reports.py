"""What became of the tests of a step: read from the journal that `card_journal` keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_journal(path: Path) -> dict[str, Any]:
    """Return what became of the tests of a journal."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    tests: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line.endswith("}"):
            _note(tests, json.loads(line))
    counts: dict[str, int] = {}
    for test in tests.values():
        counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
    of = {name: [t for t in tests.values() if t["outcome"] == name] for name in ("failed", "hung", "skipped")}
    slowest = sorted(tests.values(), key=lambda test: -test["seconds"])[:10]
    return {
        "counts": counts,
        "failures": [{"test": test["test"], "text": test["text"]} for test in of["failed"]],
        "hangs": [{"test": test["test"], "text": "it never ended"} for test in of["hung"]],
        "skips": sorted({test["why"] for test in of["skipped"]}),
        "slowest": [{"test": test["test"], "seconds": round(test["seconds"], 2)} for test in slowest],
        "figures": {test["test"]: test["figures"] for test in tests.values() if test["figures"]},
        "records": [
            {key: test[key] for key in ("test", "rules", "outcome", "why")} for test in tests.values() if test["rules"]
        ],
    }


def _note(tests: dict[str, dict[str, Any]], line: dict[str, Any]) -> None:
    name = f"{Path(line['test'].partition('::')[0]).stem}::{line['test'].partition('::')[2]}"
    new = {"test": name, "outcome": "hung", "seconds": 0.0, "text": "", "why": "", "rules": [], "figures": {}}
    test = tests.setdefault(name, new)
    test["seconds"] += line.get("seconds", 0.0)
    if "ended" in line and test["outcome"] == "hung":
        test["outcome"] = "passed"
    if line.get("outcome") in ("failed", "skipped") and test["outcome"] != "failed":
        test.update(outcome=line["outcome"], text=line.get("text", ""), why=line.get("why", ""))
    properties = dict(line.get("properties", {}))
    test["rules"] = properties.pop("rules", test["rules"])
    test["figures"] = {**test["figures"], **properties}


def _trace(text: str, name: str) -> str:
    """Return where the threads were when a test hung, or crashed; without pytest's own frames."""
    head = f"== {name.replace('::', '.py::', 1)}\n" if "::" in name else name
    section = text.rpartition(head)[2].partition("\n== ")[0] if head in text else ""
    lines = [line for line in section.splitlines() if "/_pytest/" not in line and "/pluggy/" not in line]
    return "\n".join(lines)[:6000] if any(line.startswith("  File") for line in lines) else ""


def judged(report: dict[str, Any], statuses: list[int | None], text: str, traces: str) -> dict[str, Any]:
    records = report.pop("records")
    counts = report["counts"]
    if report["hangs"] or None in statuses:
        status = "hung"
    elif report["failures"]:
        status = "failed"
    elif statuses and statuses[-1] == 0 and records is not None and counts:
        status = "passed" if set(counts) != {"skipped"} else "skipped"
    else:
        status = "failed"
    for hang in report["hangs"]:
        hang["text"] = _trace(traces, hang["test"]) or _trace(text, "Fatal Python error") or hang["text"]
    result = {"status": status, "statuses": statuses, **report}
    if status != "passed" and not report["failures"]:
        result["text"] = text[-4000:]
    return {key: value for key, value in result.items() if value not in ([], {})}


def gist(text: str) -> str:
    """Return the line of a report that tells most: where a thread hung, or else what was wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("E  ")] or [line for line in lines if line.startswith("File")]
    return ([*told, *reversed(lines), "?"])[0][:200]
