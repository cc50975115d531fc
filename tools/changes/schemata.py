"""Puts changes into a text so that each is there and none is on, until the program asks `change_at(number)`.

    a < b              ((a <= b) if change_at(7) else (a < b))

    self.claims -= 1   if not change_at(8): self.claims -= 1

A change inside of what another change replaces stays switchable in the original. Lines may move.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SWITCH = "change_at"
_HEAD = re.compile(r"(?:if|for|while|with|try)\b")


@dataclass(frozen=True)
class Change:
    """A replacement of a span of a text.

    Attributes:
        start: Where the span begins.
        end: Where it ends.
        text: What stands there instead.
        is_statement: Whether the span holds whole statements, and the text too; otherwise both are expressions.

    """

    start: int
    end: int
    text: str
    is_statement: bool


def put_in(source: str, changes: Mapping[int, Change]) -> str:
    """Return the source with these changes in it, by their numbers.

    Raises:
        ValueError: two of them overlap, and neither is inside of the other.

    """
    spans: dict[tuple[int, int, bool], list[int]] = {}
    for number, change in changes.items():
        spans.setdefault((change.start, -change.end, not change.is_statement), []).append(number)
    # Outer spans come before what is inside of them, and of two equal ones the statement.
    order = [(start, -end, numbers) for (start, end, _), numbers in sorted(spans.items())]
    return _Writer(source, changes, order).write(0, len(source))


class _Writer:
    def __init__(self, source: str, changes: Mapping[int, Change], spans: Sequence[tuple[int, int, list[int]]]) -> None:
        self._source = source
        self._changes = changes
        self._spans = spans
        self._next = 0

    def write(self, start: int, end: int) -> str:
        """Return what stands between two places, with all spans that begin there."""
        out: list[str] = []
        while self._next < len(self._spans) and self._spans[self._next][0] < end:
            first, last, numbers = self._spans[self._next]
            if last > end:
                raise ValueError(f"changes overlap at {self._source[first:last]!r}")
            self._next += 1
            out += self._source[start:first], self._choice(first, self.write(first, last), numbers)
            start = last
        return "".join([*out, self._source[start:end]])

    def _choice(self, start: int, original: str, numbers: list[int]) -> str:
        changes = [(number, self._changes[number]) for number in numbers]
        if not changes[0][1].is_statement:
            for number, change in changes:
                original = f"(({change.text}) if {SWITCH}({number}) else ({original}))"
            return original
        column = start - (self._source.rfind("\n", 0, start) + 1)
        if any(map(_is_compound, [original, *(change.text for _, change in changes)])):
            blocks = [(f"if {SWITCH}({number}):", textwrap.dedent(change.text)) for number, change in changes]
            blocks.append(("else:", textwrap.dedent(" " * column + original)))
            lines = [f"{head}\n{textwrap.indent(block, '    ')}" for head, block in blocks]
            return textwrap.indent("\nel".join(lines).replace("\nelelse", "\nelse"), " " * column).lstrip(" ")
        if len(changes) == 1 and changes[0][1].text == "pass":
            return f"if not {SWITCH}({numbers[0]}): {original}"
        lines = [f"if {SWITCH}({number}): {change.text}" for number, change in changes]
        return f"\n{' ' * column}el".join(lines) + f"\n{' ' * column}else: {original}"


def _is_compound(statements: str) -> bool:
    """Whether something stands below a colon, or several statements below one another."""
    lines = [line for line in statements.splitlines() if line.strip()]
    depth = 0
    for number, line in enumerate(lines):
        if depth == 0 and (number or _HEAD.match(line)):
            return True
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
    return False
