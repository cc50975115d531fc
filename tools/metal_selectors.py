"""Writes `selectors.json`: the part of PyObjC's Metal metadata that the driver and the simulated Metal need.

    python tools/metal_selectors.py METADATA.json

METADATA.json has `selectors` (by name: where it is registered, and the encodings of arguments and result), `enums` (by
name: the value) and `source`. Taken are the selectors that the simulation's classes define and those that the driver's
`_native.py` calls, and every enumerator. Run it again when either asks for a new one; with `--check` it only says
whether the file is as it would be written.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "tidegate"
SIMULATED = PACKAGE / "testing" / "metal_simulated"
NATIVE = PACKAGE / "drivers" / "metal" / "_native.py"
TARGET = SIMULATED / "selectors.json"


def names_in(path: Path) -> set[str]:
    """Every name in a file that could be a selector: what is defined, and what is reached by a dot."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    reached = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return defined | reached


def needed(selectors: dict[str, object]) -> dict[str, object]:
    """The selectors that anything of ours names."""
    names: set[str] = set()
    for path in [*sorted(SIMULATED.glob("*.py")), *([NATIVE] if NATIVE.exists() else [])]:
        names |= names_in(path)
    wanted = {name.replace("_", ":") for name in names}
    return {selector: selectors[selector] for selector in sorted(wanted & set(selectors))}


def text_of(metadata: dict[str, object]) -> str:
    """What the file shall hold: one selector a line, so that changes can be read."""
    selectors = needed(metadata["selectors"])  # type: ignore[arg-type]
    enums: dict[str, int] = metadata["enums"]  # type: ignore[assignment]
    lines = [f'{{"source": {json.dumps(metadata["source"])},', '"enums": {']
    lines.append(",\n".join(f"{json.dumps(name)}: {enums[name]}" for name in sorted(enums)) + "},")
    lines.append('"selectors": {')
    rows = (f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in selectors.items())
    lines.append(",\n".join(rows) + "}}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("metadata", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    text = text_of(json.loads(given.metadata.read_text(encoding="utf-8")))
    if given.check:
        return 0 if TARGET.read_text(encoding="utf-8") == text else 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
