"""Local links lead somewhere: to a file that exists, and to a heading that is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .snippets import ROOT, pages

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_GENERATED = {"conformance-table.md"}

PAGES = pages()


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that headings get, by the rule that the renderers share."""
    headings = (
        re.sub(r"[`*_]|\[|\]\([^)]*\)", "", heading).strip().lower() for heading in _HEADING.findall(prose(page))
    )
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def local_links(page: Path) -> list[str]:
    return [link for link in _LINK.findall(prose(page)) if "://" not in link and not link.startswith("mailto:")]


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_the_local_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for link in local_links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target):
            broken.append(f"{link}: no such heading")
    assert not broken


def test_every_rule_of_the_model_is_stated_once_and_in_order() -> None:
    headings = [h for h in _HEADING.findall(prose(ROOT / "docs" / "model.md")) if re.fullmatch(r"M\d+", h)]
    assert headings == [f"M{number}" for number in range(1, 41)]


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_a_rule_that_is_cited_exists(page: Path) -> None:
    cited = {int(number) for number in re.findall(r"\bM(\d+)\b", prose(page))}
    assert cited <= set(range(1, 41))


def test_every_page_is_in_a_table_of_contents() -> None:
    docs = ROOT / "docs"
    listed: set[Path] = set()
    for index in (docs / "index.md", docs / "api" / "index.md"):
        for block in re.findall(r"```\{toctree\}(.*?)```", index.read_text(encoding="utf-8"), re.DOTALL):
            names = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
            listed |= {(index.parent / f"{name}.md").resolve() for name in names}
    written = {page.resolve() for page in docs.glob("**/*.md") if "_build" not in page.parts}
    assert written - listed == {(docs / "index.md").resolve()}
    assert not {page.name for page in listed - written} - _GENERATED


@pytest.mark.parametrize("place", ["docs/design.md", "src/tidegate/_core/__init__.py"])
def test_the_map_of_the_core_names_every_file_of_it(place: str) -> None:
    core = ROOT / "src" / "tidegate" / "_core"
    files = {path.stem if path.suffix == ".py" else path.name for path in core.glob("**/*.*") if path.is_file()}
    named = set(re.findall(r"`(?:\w+/)*([\w.]+)`", (ROOT / place).read_text(encoding="utf-8")))
    expected = {name for name in files if not name.endswith((".so", ".pyd", ".pyc", ".pyi", ".c"))} - {"__init__"}
    assert expected <= named
