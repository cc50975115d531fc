"""The survivors somebody has looked at, each with a reason why no test should notice it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from mutation.mutants import Mutant


class Accepted:
    """What a file of accepted survivors says.

    An entry is a table `[[mutant]]` with `file`, `function`, `change` and `reason`. `change` is the text the report
    shows, so that an entry holds when lines move and lapses when the code changes. A `*` in `function` or `change`
    stands for any text.
    """

    def __init__(self, path: Path) -> None:
        self._entries: list[dict[str, str]] = []
        if path.exists():
            self._entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
        for entry in self._entries:
            missing = {"file", "function", "change", "reason"} - set(entry)
            if missing or not entry["reason"].strip():
                raise ValueError(f"{path}: an entry lacks {', '.join(sorted(missing)) or 'a reason'}: {entry}")

    def reason(self, mutant: Mutant) -> str | None:
        return next((entry["reason"] for entry in self._entries if _matches(entry, mutant)), None)

    def stale(self, mutants: Iterable[Mutant]) -> list[dict[str, str]]:
        """The entries of these files that match none of these mutants any more."""
        mutants = list(mutants)
        files = {mutant.file for mutant in mutants}
        return [
            entry
            for entry in self._entries
            if entry["file"] in files and not any(_matches(entry, mutant) for mutant in mutants)
        ]


def _matches(entry: dict[str, str], mutant: Mutant) -> bool:
    return (
        entry["file"] == mutant.file
        and _fits(entry["function"], mutant.function)
        and _fits(entry["change"], mutant.words)
    )


def _fits(pattern: str, text: str) -> bool:
    return pattern == text or re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
