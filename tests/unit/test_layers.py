"""Imports go one way, a driver never imports another, and importing the package imports no driver.

The order, lowest first: errors and types, the compiled core with what it imports, driver (the seam), the rest of _core,
the drivers beside validation and trace, testing, conformance, cli. The doors `tidegate` and `tidegate.lowlevel` gather
names of `_core` and below; only what stands above the drivers may come in through them. Imports for type checkers
alone are free: they never run.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
PACKAGE = HERE.parent / "src" / "tidegate"

LAYERS = {
    "errors": 0,
    "types": 1,
    "compiled core": 2,
    "driver": 3,
    "_core": 4,
    "lowlevel": 5,
    "": 6,  # the package itself, the everyday door
    "drivers": 7,
    "validation": 7,
    "trace": 7,
    "testing": 8,
    "conformance": 9,
    "_bench": 9,
    "cli": 10,
    "__main__": 11,
}
COMPILED_CORE = {
    f"tidegate._core.{name}" for name in ("compiled", "background", "checks", "failures", "process", "slots")
}
MODULES = sorted([*PACKAGE.glob("**/*.py"), *PACKAGE.glob("**/*.pyx")])


def name_of(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_name(module: str) -> str:
    if module in COMPILED_CORE:
        return "compiled core"
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, but not those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and is_for_type_checkers(child):
            continue
        yield child
        yield from running_nodes(child)


def parsed(path: Path) -> ast.Module:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".pyx":  # no Python, but its imports are
        text = "\n".join(re.findall(r"^(?:import .*|from \S+ import (?:\([^)]*\)|.*))$", text, re.MULTILINE))
    return ast.parse(text)


def imported(path: Path) -> set[str]:
    """The modules of ours that a file imports, at its top or inside a function."""
    module = name_of(path) if path.is_relative_to(PACKAGE) else path.stem
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in running_nodes(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            found |= {inner_or_outer(base, alias.name) for alias in node.names}
    return {name for name in found if name == "tidegate" or name.startswith("tidegate.")}


def inner_or_outer(base: str, name: str) -> str:
    """`from base import name` imports `base.name` if that is a module, else `base`."""
    if base != "tidegate" and not base.startswith("tidegate."):
        return base
    inner = PACKAGE.parent / Path(*base.split("."), name)
    is_module = inner.is_dir() or any(inner.with_suffix(suffix).exists() for suffix in (".py", ".pyx"))
    return f"{base}.{name}" if is_module else base


#: The classes of work are made in C, and the seam shows them to drivers.
SHOWN_BY_THE_SEAM = {"tidegate._core.compiled", "tidegate._core.slots"}


@pytest.mark.parametrize("path", MODULES, ids=[name_of(path) for path in MODULES])
def test_a_module_imports_only_its_own_layer_and_those_below(path: Path) -> None:
    mine = layer_name(name_of(path))
    assert mine in LAYERS, f"{mine} is in no layer: give it one"
    upward = {
        other
        for other in imported(path)
        if layer_name(other) != mine and LAYERS.get(layer_name(other), 99) >= LAYERS[mine]
    }
    assert not upward - (SHOWN_BY_THE_SEAM if mine == "driver" else set())


def test_errors_import_nothing_of_ours() -> None:
    assert not imported(PACKAGE / "errors.py")


TESTS = [path for folder in ("unit", "properties", "leaks", "docs", "typing") for path in HERE.glob(f"{folder}/*.py")]


@pytest.mark.parametrize("path", TESTS, ids=[f"{path.parent.name}/{path.name}" for path in TESTS])
def test_tests_ask_for_what_programs_can_see(path: Path) -> None:
    assert not {module for module in imported(path) if layer_name(module) == "_core"}


DRIVER_NAMES = {path.parent.name for path in PACKAGE.glob("drivers/*/__init__.py")}
DRIVERS = [path for path in MODULES if layer_name(name_of(path)) == "drivers" and len(name_of(path).split(".")) > 2]


@pytest.mark.parametrize("path", DRIVERS, ids=[name_of(path) for path in DRIVERS])
def test_a_driver_imports_no_other_driver_and_no_door(path: Path) -> None:
    mine = name_of(path).split(".")[2]
    ours = imported(path)
    drivers = {name for name in ours if layer_name(name) == "drivers" and len(name.split(".")) > 2}
    others = {name for name in drivers if name.split(".")[2] in DRIVER_NAMES - {mine}}
    doors = {name for name in ours if layer_name(name) in ("", "lowlevel")}
    assert not others | doors


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_importing_tidegate_imports_no_driver_and_nothing_above() -> None:
    ours = {name for name in modules_after("import tidegate") if name.startswith("tidegate.")}
    above = {name for name in ours if LAYERS[layer_name(name)] > LAYERS[""]}
    assert not above


def test_importing_tidegate_brings_no_tool_of_the_command_line_or_of_the_tests() -> None:
    loaded = modules_after("import tidegate")
    assert not loaded & {"click", "rich", "pytest", "trio", "asyncio", "hypothesis", "subprocess"}


def test_opening_a_device_imports_only_its_own_driver() -> None:
    loaded = modules_after("import tidegate; tidegate.open_device('cpu').close(timeout=30)")
    drivers = {name.split(".")[2] for name in loaded if name.startswith("tidegate.drivers.")}
    assert drivers & DRIVER_NAMES == {"cpu"}
