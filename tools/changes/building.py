"""Builds a copy of the tree with changes in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from changes import switch
from changes.schemata import SWITCH, Change, put_in

#: Nothing is optimised, for a build is used for minutes. A step that drops a last reference ends the process.
FLAGS = "-O0 -DTIDEGATE_CHECK_STEPS"
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "venv", "__pycache__", "*.pyc", "*.so", ".*_cache", ".hypothesis", "build", "dist", "_build"
)
_ROOM = Path("src/tidegate/_core")
_IN_COMPILED_CODE = f'''
from .._switch import addresses as _addresses

cdef extern from *:
    """
    static const int *change_on;
    static unsigned char *changes_reached;
    static inline int {SWITCH}(int number) {{
        changes_reached[number] = 1;
        return *change_on == number;
    }}
    """
    bint {SWITCH}(int) noexcept nogil
    const int *change_on
    unsigned char *changes_reached

change_on = <const int *><size_t>_addresses[0]
changes_reached = <unsigned char *><size_t>_addresses[1]


'''


def build(root: Path, tree: Path, changes: Mapping[str, Mapping[int, Change]]) -> None:
    """Copy the tree at `root` to `tree`, with changes by file and number, and compile what has to be compiled.

    Raises:
        RuntimeError: it does not compile.

    """
    shutil.copytree(root, tree, ignore=_LEFT_OUT, symlinks=True)
    for file, here in changes.items():
        path = tree / file
        path.write_text(put_in(path.read_text(encoding="utf-8"), here), encoding="utf-8")
    count = max((number for here in changes.values() for number in here), default=0)
    package = tree / "src/tidegate"
    code = Path(switch.__file__).read_text(encoding="utf-8")
    (package / "_switch.py").write_text(code.replace("COUNT = 0", f"COUNT = {count}"), encoding="utf-8")
    _insert(package / "__init__.py", r"(?=^from \.)", "from . import _switch\n")
    _insert(tree / _ROOM / "compiled.pyx", r"^cimport cython\n", _IN_COMPILED_CODE)
    _compile(tree)


def _insert(path: Path, place: str, text: str) -> None:
    """Put a text behind what a pattern finds."""
    code = path.read_text(encoding="utf-8")
    found = re.search(place, code, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{path}: there is nothing like {place!r}")
    path.write_text(code[: found.end()] + text + code[found.end() :], encoding="utf-8")


def _compile(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tree,
        env={**os.environ, "CFLAGS": FLAGS},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the changes do not compile:\n{(done.stdout + done.stderr)[-4000:]}")
