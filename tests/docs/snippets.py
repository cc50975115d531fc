"""Finds the Python in a Markdown page, and what the page says it prints."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\S*)\s*$")
_PRINTS = re.compile(r"^\s*# -> (.*)$")


def has_compiler() -> bool:
    """Whether C kernels can be compiled here; the rest of the documentation needs nothing but Python."""
    named = os.environ.get("CC", "").split()
    return any(shutil.which(command) for command in (named[:1] or ["cc", "gcc", "clang"]))


def pages() -> list[Path]:
    """Every page that people read: the README and its neighbours, and the documentation."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(text: str, language: str) -> Iterator[tuple[int, list[str]]]:
    """The fenced blocks in a language, each with the number of its first line."""
    inside: str | None = None
    start, lines = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is None and fence:
            inside, start, lines = fence.group(1), number + 1, []
        elif inside is not None and line.strip() == "```":
            if inside == language:
                yield start, lines
            inside = None
        else:
            lines.append(line)


def program(text: str) -> str:
    """The Python of a page as one program, each line at the number it has on the page, so that tracebacks fit."""
    lines = [""] * len(text.splitlines())
    for start, block in blocks(text, "python"):
        lines[start - 1 : start - 1 + len(block)] = block
    return "\n".join(lines) + "\n"


def printed(source: str) -> list[str]:
    """What the lines `# -> text` of a program say it prints."""
    return [match.group(1) for line in source.splitlines() if (match := _PRINTS.match(line))]
