"""Every piece of Python on every page runs, and prints what the page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import snippets

PAGES = [page for page in snippets.pages() if any(snippets.blocks(page.read_text(encoding="utf-8"), "python"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(snippets.ROOT).as_posix() for page in PAGES])
def test_the_code_of_a_page_runs_and_prints_what_it_says(
    page: Path, tmp_path: Path, run_program: Callable[[Path], str]
) -> None:
    source = snippets.program(page.read_text(encoding="utf-8"))
    if "tidegate_kernel" in source and not snippets.has_compiler():
        pytest.skip("this page compiles C, and there is no compiler")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(source, encoding="utf-8")
    assert run_program(script).splitlines() == snippets.printed(source)


def test_the_pages_with_code_are_found() -> None:
    names = {page.name for page in PAGES}
    assert {"README.md", "tutorial.md", "timelines.md", "memory.md", "kernels.md", "command-buffers.md"} <= names
