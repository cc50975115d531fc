"""The outcome of a mutation run, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutation.accepted import Accepted
from mutation.trials import Verdict


@dataclass
class Report:
    """Verdicts, and the reasons for which survivors were accepted."""

    accepted: Accepted
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The share of killed mutants in percent; an accepted survivor is still a survivor."""
        killed = sum(verdict.status == "killed" for verdict in self.verdicts)
        return 100.0 * killed / len(self.verdicts) if self.verdicts else 100.0

    def survivors(self) -> Iterator[tuple[Verdict, str | None]]:
        """Those not killed, each with the reason why that is accepted, if it is."""
        for verdict in sorted(self.verdicts, key=lambda each: (each.mutant.file, each.mutant.change.start)):
            if verdict.status != "killed":
                yield verdict, self.accepted.reason(verdict.mutant)

    def text(self) -> str:
        lines = ["", *self._table(), ""]
        survivors = list(self.survivors())
        open_ones = [verdict for verdict, reason in survivors if reason is None]
        if open_ones:
            lines.append("survivors without a reason:")
            for verdict in open_ones:
                note = "no test runs it" if verdict.status == "unreached" else f"{verdict.tried} tests passed"
                lines.append(f"  {verdict.mutant}  [{note}]")
        lines.append(
            f"{len(self.verdicts)} mutants, {self.score:.1f}% killed, {len(survivors)} survivors, "
            f"{len(survivors) - len(open_ones)} of them accepted with a reason"
        )
        return "\n".join(lines)

    def _table(self) -> list[str]:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for verdict in self.verdicts:
            counts[verdict.mutant.file][verdict.status] += 1
        width = max((len(file) for file in counts), default=4)
        rows = [f"{'file':{width}}  mutants  killed  survived  unreached       %"]
        for file, count in sorted(counts.items()):
            total = count.total()
            rows.append(
                f"{file:{width}}  {total:7}  {count['killed']:6}  {count['survived']:8}  {count['unreached']:9}  "
                f"{100 * count['killed'] / total:6.1f}"
            )
        return rows

    def write(self, path: Path) -> None:
        records = [_record(verdict, self.accepted.reason(verdict.mutant)) for verdict in self.verdicts]
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({"score": self.score, "mutants": records}, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)


def _record(verdict: Verdict, reason: str | None) -> dict[str, Any]:
    mutant = verdict.mutant
    record = {
        "file": mutant.file,
        "line": mutant.line,
        "function": mutant.function,
        "change": mutant.words,
        "status": verdict.status,
        "how": verdict.how,
        "test": verdict.test,
        "tried": verdict.tried,
    }
    if verdict.status != "killed":
        record["accepted"] = reason
    return record


def survivors_in(path: Path) -> set[tuple[str, str, str]]:
    """What identifies the survivors of a written report."""
    records: Sequence[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["mutants"]
    return {(each["file"], each["function"], each["change"]) for each in records if each["status"] != "killed"}
