"""Every example is a program that runs, ends with an assert, and stands in the documentation."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from .snippets import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[example.stem for example in EXAMPLES])
def test_an_example_runs_and_says_something(example: Path, run_program: Callable[[Path], str]) -> None:
    assert run_program(example).strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.stem for example in EXAMPLES])
def test_an_example_ends_with_an_assert(example: Path) -> None:
    module = ast.parse(example.read_text(encoding="utf-8"))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    last: ast.stmt = functions["main"].body[-1]
    while isinstance(last, ast.With | ast.AsyncWith):
        last = last.body[-1]
    assert isinstance(last, ast.Assert)


def test_every_example_stands_in_the_documentation() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert EXAMPLES
    missing = [example.name for example in EXAMPLES if f"../examples/{example.name}" not in page]
    assert not missing
