"""The facts by name.

A fact is a small question to the CUDA driver whose answer does not depend on time or chance: `fact_NAME(rig)`, with the
question as its docstring, returns something JSON can hold. It is asked of the card, and of the simulation, which has to
give the card's answer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig import Rig, Session


@dataclass(frozen=True)
class Fact:
    """A question, and how it is asked.

    Attributes:
        name: what it is called in the record.
        sentence: the question in words.
        ask: takes a `Rig` (or native layer and compiler, if `raw`) and returns the answer.
        alone: needs a process of its own, because it leaves a broken context or wants a fresh one.
        environment: variables of that process; None removes one.
        raw: nothing is initialised for it.

    """

    name: str
    sentence: str
    ask: Callable[..., Any]
    alone: bool = False
    environment: Mapping[str, str | None] = field(default_factory=dict)
    raw: bool = False

    def __call__(self, native: Any, compiler: Any) -> Any:
        """Ask."""
        if self.raw:
            return self.ask(native, compiler)
        with Rig(Session.of(native, compiler), last=self.alone) as rig:
            return self.ask(rig)


FACTS: dict[str, Fact] = {}


def register(fact: Fact) -> None:
    """Add a fact; its name must be new."""
    if fact.name in FACTS:
        raise ValueError(f"two facts are called {fact.name}")
    FACTS[fact.name] = fact


def fact(
    *, alone: bool = False, environment: Mapping[str, str | None] | None = None, raw: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function `fact_NAME`."""

    def registered(ask: Callable[..., Any]) -> Callable[..., Any]:
        sentence = " ".join((ask.__doc__ or "").split())
        own = alone or raw or bool(environment)
        register(Fact(ask.__name__.removeprefix("fact_"), sentence, ask, own, environment or {}, raw))
        return ask

    return registered


def load() -> dict[str, Fact]:
    """Import all modules of facts and return what they registered."""
    for path in sorted(Path(__file__).parent.glob("facts_*.py")):
        importlib.import_module(path.stem)
    return FACTS
