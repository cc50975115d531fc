"""The wrong drivers of `tidegate.testing.faulty`: each is caught by the conformance test it names.

All runs are made at once, by the first test that asks for a result. To look into one:
`tidegate conformance --driver faulty-NAME -- -k TEST`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import tidegate as tg
from tidegate.conformance import subjects, table
from tidegate.conformance.proof import Result, Run, run_all
from tidegate.testing.faulty import FAULTS, Fault, Patch

# On which sound drivers the named tests must pass.
TESTS = sorted({(fault.base, fault.killed_by) for fault in FAULTS.values()})
BASES = sorted({base for base, _ in TESTS})

# A wait that a fault has made endless is found out after so many seconds; sound drivers get the usual limit.
FAULTY_LIMIT = 1.0


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """One run of its named tests on each sound driver, and one run of its test for each fault."""
    sound = [Run(base, tuple(test for on, test in TESTS if on == base)) for base in BASES]
    faulty = [Run(f"faulty-{name}", (fault.killed_by,), FAULTY_LIMIT, 60) for name, fault in FAULTS.items()]
    return dict(zip([*BASES, *FAULTS], run_all([*sound, *faulty]), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_the_named_test_catches_the_fault(results: dict[str, Result], name: str) -> None:
    fault, result = FAULTS[name], results[name]
    assert result.outcome(fault.killed_by) == "failed", f"{fault.description}\n{result.text[-4000:]}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("base", "test"), TESTS)
def test_the_named_test_passes_without_a_fault(results: dict[str, Result], base: str, test: str) -> None:
    assert results[base].outcome(test) == "passed", results[base].text[-4000:]


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


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_changes_something_and_puts_it_back(fault: Fault) -> None:
    before = dict(attributes())
    with fault.apply():
        changed = {name for name, value in attributes() if before.get(name) is not value}
        assert changed
    after = dict(attributes())
    assert {name for name in before if after[name] is not before[name]} == set()


def test_a_fault_that_no_longer_applies_is_an_error() -> None:
    def unknown() -> None:
        pass

    patch = Patch()
    with pytest.raises(tg.NotFoundError, match="no_such_method"):
        patch.method(tg.Semaphore, "no_such_method", unknown)
    with pytest.raises(tg.NotFoundError, match="unknown"):
        patch.function(unknown, unknown)


def test_a_run_whose_fault_does_not_apply_has_no_outcome() -> None:
    _, test = TESTS[0]
    (result,) = run_all([Run("faulty-no-such-fault", (test,), FAULTY_LIMIT, 60)])
    assert result.outcome(test) == "lost"
    assert "no-such-fault" in result.text


def test_an_unknown_fault_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(tg.InvalidArgumentError, match="signals-early"):
        subjects.find("faulty-no-such-fault")
