#!/usr/bin/env python3
"""Puts measured numbers into a page of the documentation, between its two marks.

    tidegate bench --device cuda --json benchmarks/results/h200.json
    python tools/benchmark_docs.py benchmarks/results/h200.json docs/benchmarks-cuda.md
    python tools/benchmark_docs.py benchmarks/results/h200.json docs/benchmarks-cuda.md --check

With --check nothing is written, and the exit status is 1 if the page does not show what the file says.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tidegate._bench.markdown import render

BEGIN, END = "<!-- numbers begin -->", "<!-- numbers end -->"


def put(page: str, numbers: str) -> str:
    """Return the page with other numbers between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{numbers}\n{END}{after}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    old = given.page.read_text(encoding="utf-8")
    new = put(old, render(json.loads(given.results.read_text(encoding="utf-8"))))
    if given.check:
        print("as the file says" if old == new else f"{given.page} does not show {given.results}: run without --check")
        return int(old != new)
    given.page.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
