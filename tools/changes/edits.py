"""Finds the place of an edit: a text that becomes another, as the faults of compiled code are written down."""

from __future__ import annotations

import ast
import re
import textwrap

from changes.schemata import Change
from changes.shadow import shadow_of


def change_of(source: str, before: str, after: str) -> Change:
    """Return the change of `before`, wherever it is indented to in this Cython, to `after`.

    Raises:
        ValueError: it is not there exactly once, or is neither statements nor an expression.

    """
    first, *rest = before.split("\n")
    lines = [re.escape(first), *(rf"(?P=indentation){re.escape(line)}" if line else "" for line in rest)]
    pattern = r"\n".join(lines)
    if rest:
        pattern = rf"(?<=\n)(?P<indentation> *){pattern}"
    found = list(re.finditer(pattern, source))
    if len(found) != 1:
        raise ValueError(f"found {len(found)} times instead of once:\n{before}")
    start, end = found[0].span()
    if rest:
        start += len(found[0]["indentation"])
    return Change(start, end, after, _is_statements(source, start, end))


def _is_statements(source: str, start: int, end: int) -> bool:
    """Whether a span holds statements; a call that has a line to itself is one."""
    line = source[source.rfind("\n", 0, start) + 1 : start]
    behind = source[end : source.find("\n", end)].strip()
    value = _parsed(f"({shadow_of(source[start:end])})", "eval")
    if value is not None and not isinstance(value.body, ast.Call):  # type: ignore[attr-defined]
        return False
    # What stands alone here may stand in a function or a loop there.
    statements = textwrap.indent(shadow_of(textwrap.dedent(line + source[start:end])), "  ")
    whole = not line.strip() and (not behind or behind.startswith("#"))
    if whole and _parsed(f"def function():\n while True:\n{statements}", "exec"):
        return True
    if value is None:
        raise ValueError(f"neither statements nor an expression:\n{source[start:end]}")
    return False


def _parsed(text: str, mode: str) -> ast.AST | None:
    try:
        return ast.parse(text, mode=mode)
    except SyntaxError:
        return None
