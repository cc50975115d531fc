"""The wrong drivers of `tidegate.testing.faulty`: each is caught by the conformance test it names.

All runs are made at once, by the first test that asks for a result. To look into one: `python tools/faulty.py NAME`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tidegate as tg
from tidegate.conformance import subjects, table
from tidegate.testing.faulty import FAULTS, Fault, Patch

TOOLS = Path(__file__).resolve().parents[2] / "tools"

# On which sound drivers the named tests must pass.
TESTS = sorted({(fault.base, fault.killed_by) for fault in FAULTS.values()})
BASES = sorted({base for base, _ in TESTS})
PLANTED = [fault for fault in FAULTS.values() if fault.edit is not None]
PATCHES = [fault for fault in FAULTS.values() if fault.edit is None]

#: How a test ends if a fault broke what it should have made wrong.
BROKEN = ("AttributeError", "ImportError", "NameError", "TypeError", "UnboundLocalError", "same locals & position)")


@pytest.fixture(scope="module")
def faults() -> Iterator[ModuleType]:
    """The tool that builds the faults in and runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        from changes import faults

        yield faults


@pytest.fixture(scope="module")
def results(faults: ModuleType) -> dict[str, dict[str, Any]]:
    """One run of its test for each fault, and one run of the named tests on each sound driver."""
    by_base = [[test for on, test in TESTS if on == base] for base in BASES]
    with faults.built() as tree, ThreadPoolExecutor() as pool:
        sound = pool.map(partial(faults.run_sound, tree), BASES, by_base)
        return {**faults.run(tree, list(FAULTS.values())), **dict(zip(BASES, sound, strict=True))}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_the_named_test_catches_the_fault(results: dict[str, dict[str, Any]], name: str) -> None:
    result = results[name]
    assert result["ended"] == "failed", f"{FAULTS[name].description}\n{result['why']}\n{result['log']}"
    assert not result["why"].endswith(BROKEN), f"it breaks instead of being wrong: {result['why']}"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("base", "test"), TESTS)
def test_the_named_test_passes_without_a_fault(
    faults: ModuleType, results: dict[str, dict[str, Any]], base: str, test: str
) -> None:
    found = results[base]["tests"]
    cases = faults.named(list(found), test)
    assert cases, results[base]["log"]
    assert {found[case]["outcome"] for case in cases} == {"passed"}, [found[case] for case in cases]


def test_there_are_at_least_forty_faults() -> None:
    assert len(FAULTS) >= 40


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_tells_what_it_does_wrong_and_which_rules_it_breaks(fault: Fault) -> None:
    assert fault.description.endswith(".")
    assert fault.rules
    assert set(fault.rules) <= set(table.RULES)


def attributes() -> Iterator[tuple[str, object]]:
    """Every global of every module of ours, and every attribute of their classes."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] != "tidegate":
            continue
        for name, value in list(vars(module).items()):
            yield f"{module_name}.{name}", value
            if isinstance(value, type):
                yield from ((f"{module_name}.{name}.{key}", entry) for key, entry in list(vars(value).items()))
            elif isinstance(value, dict) and name.isupper():
                yield from ((f"{module_name}.{name}[{key}]", entry) for key, entry in list(value.items()))


@pytest.mark.parametrize("fault", PATCHES, ids=lambda fault: fault.name)
def test_a_fault_of_python_code_changes_something_and_puts_it_back(fault: Fault) -> None:
    before = dict(attributes())
    with fault.apply():
        changed = {name for name, value in attributes() if before.get(name) is not value}
        assert changed
    after = dict(attributes())
    assert {name for name in before if after[name] is not before[name]} == set()


def test_a_fault_of_python_code_that_no_longer_applies_is_an_error() -> None:
    def unknown() -> None:
        pass

    patch = Patch()
    with pytest.raises(tg.NotFoundError, match="no_such_method"):
        patch.method(tg.Device, "no_such_method", unknown)
    with pytest.raises(tg.NotFoundError, match="unknown"):
        patch.function(unknown, unknown)


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
def test_what_a_fault_of_compiled_code_changes_is_there_exactly_once(faults: ModuleType, fault: Fault) -> None:
    assert [list(changes) for changes in faults.changes_of([fault]).values()] == [[fault.number]]


def test_a_fault_of_compiled_code_needs_a_build_of_its_own() -> None:
    with (
        pytest.raises(tg.FailedPreconditionError, match=r"tools/faulty\.py signals-backwards"),
        FAULTS["signals-backwards"].apply(),
    ):
        pass


def test_an_unknown_fault_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(tg.InvalidArgumentError, match="signals-early"):
        subjects.find("faulty-no-such-fault")
