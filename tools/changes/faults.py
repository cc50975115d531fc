"""Proves the conformance suite by the faults of `tidegate.testing.faulty`: each must be caught by the test it names."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from changes.building import build
from changes.edits import change_of
from changes.schemata import Change
from changes.serving import Server, Suite
from tidegate.testing.faulty import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
CORE = Path("src/tidegate/_core")
SUITE = Path("src/tidegate/conformance")

#: A wait that a fault has made endless is found out after so many seconds.
LIMIT_S = 1.0
_HANG_S = 60.0
#: Many wrong drivers are found out by waiting, which costs no processor.
_JOBS = 6


def changes_of(faults: Sequence[Fault]) -> dict[str, dict[int, Change]]:
    """Return the changes of the faults of compiled code, by file and number.

    Raises:
        ValueError: the code of one is not there exactly once.

    """
    found: dict[str, dict[int, Change]] = defaultdict(dict)
    for fault in faults:
        if fault.edit is not None:
            file = (CORE / fault.edit.room).as_posix()
            source = (ROOT / file).read_text(encoding="utf-8")
            try:
                found[file][fault.number] = change_of(source, fault.edit.before, fault.edit.after)
            except ValueError as error:
                raise ValueError(f"{fault.name} no longer applies to {file}: {error}") from None
    return found


@contextmanager
def built() -> Iterator[Path]:
    """Build a copy of the tree with all faults of compiled code in it, switched off."""
    with tempfile.TemporaryDirectory(prefix="faulty-") as folder:
        tree = Path(folder, "tree")
        build(ROOT, tree, changes_of(list(FAULTS.values())))
        yield tree


def suite_of(base: str, tests: Sequence[str], limit: float = LIMIT_S) -> Suite:
    """Return the modules of some tests, given as `module::test`, on a sound driver."""
    modules = sorted({f"{SUITE}/{test.partition('::')[0]}.py" for test in tests})
    return Suite(base, [*modules, "--tidegate-driver", base], {"TIDEGATE_CONFORMANCE_LIMIT": str(limit)})


def run(tree: Path, faults: Sequence[Fault]) -> Mapping[str, dict[str, Any]]:
    """Have each fault meet its test; return by name what `warm` answered: `failed` is well, `passed` is not."""
    with ExitStack() as opened, ThreadPoolExecutor(_JOBS) as pool:
        by_base: dict[str, list[Fault]] = defaultdict(list)
        for fault in faults:
            by_base[fault.base].append(fault)

        def start(base: str) -> Server:
            return Server(tree, suite_of(base, [fault.killed_by for fault in by_base[base]]))

        servers = {server.suite.name: opened.enter_context(server) for server in pool.map(start, by_base)}

        def meet(fault: Fault) -> dict[str, Any]:
            server = servers[fault.base]
            tests = named(server.tests, fault.killed_by)
            if not tests:
                return {"ended": "lost", "why": f"there is no {fault.killed_by}", "log": ""}
            return server.ask(tests, fault=fault.name, hang=_HANG_S)

        return dict(zip((fault.name for fault in faults), pool.map(meet, faults), strict=True))


def run_sound(tree: Path, base: str, tests: Sequence[str]) -> dict[str, Any]:
    """Run tests on a sound driver, with all faults in it and none switched on."""
    with Server(tree, suite_of(base, tests, limit=30.0)) as server:
        return server.ask([found for test in tests for found in named(server.tests, test)], record=True)


def named(tests: Sequence[str], name: str) -> list[str]:
    """Return the ids of a test, given as `module::test` or `module::test[case]`; all its cases, if there are some."""
    path = f"{SUITE}/{name.replace('::', '.py::', 1)}"
    return [test for test in tests if test == path or test.startswith(f"{path}[")]
