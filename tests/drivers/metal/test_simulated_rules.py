"""Every rule of the simulated Metal names its source, is enforced somewhere, and has a test; so has every choice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate.testing import metal_simulated
from tidegate.testing.metal_simulated import CHOICES, RULES, Violation, ViolationError, native

HERE = Path(__file__).parent
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_simulated_*.py"))
PACKAGE = Path(metal_simulated.__file__).parent
#: Guaranteed rather than demanded: there is nothing to refuse.
GUARANTEES = {
    "queue-order", "event-wait", "handlers-elsewhere", "status", "error", "signal-despite-error", "retained",
    "private-contents", "zeroed", "source",
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_a_sentence_and_a_page(name: str) -> None:
    rule = RULES[name]
    assert rule.name == name
    assert rule.says
    assert re.match(r"(MTL|NS|PyObjC|Metal Feature|Advanced Memory)", rule.source)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_a_test(name: str) -> None:
    assert re.search(rf"Rule {name}\b", TESTS)


@pytest.mark.parametrize("name", sorted(set(RULES) - GUARANTEES))
def test_a_rule_is_enforced(name: str) -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.py") if path.name != "rules.py")
    assert f'"{name}"' in code


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_has_a_test(name: str) -> None:
    assert f"Choice {name}" in TESTS


def test_a_violation_tells_the_rule_and_its_page() -> None:
    violation = Violation(RULES["commit-once"], "it was committed twice")
    assert str(violation).startswith("it was committed twice [commit-once: ")
    assert "MTLCommandBuffer — commit()" in str(ViolationError(violation))


def test_check_raises_what_was_recorded() -> None:
    metal = native()
    metal.check()
    metal.MTLCreateSystemDefaultDevice().newCommandQueue().commandBuffer()
    with pytest.raises(AssertionError, match="outside every pool"):
        metal.check()
    metal.close()


def test_the_same_seed_draws_the_same() -> None:
    one, two, other = native(seed=3), native(seed=3), native(seed=4)
    draws = [[metal.simulation.choose(1000) for _ in range(5)] for metal in (one, two, other)]
    assert draws[0] == draws[1] != draws[2]
