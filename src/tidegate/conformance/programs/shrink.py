"""Makes a failing program small: takes steps, gates and threads away as long as it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy

from .program import Program

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, seconds: float) -> Program:
    """Return a program that fails as well, with as few steps as could be found in the time."""
    deadline = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(program):
            if time.monotonic() > deadline:
                return program
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _candidates(program: Program) -> Iterator[Program]:
    if program.threads > 1:
        yield _on_one_thread(program)
    numbers = [step.number for step in program.steps if not step.fixed]
    size = len(numbers) // 2
    while size:
        for start in range(0, len(numbers), size):
            yield without(program, numbers[start : start + size])
        size //= 2
    for step in program.steps:
        if step.gates and step.cancelled is None:
            yield _without_gates(program, step.number)


def without(program: Program, numbers: list[int]) -> Program:
    """Return a program without some steps; who came after them comes after those before them."""
    made = deepcopy(program)
    for number in numbers:
        producers = made.producers()
        for step in made.steps:
            if number in producers[step.number]:  # by a wait, or because it was the one before in its lane
                step.after = (step.after - {number}) | producers[number]
        made.steps = [step for step in made.steps if step.number != number]
        made.freed = {index: freed for index, freed in made.freed.items() if freed != number}
    return made


def _without_gates(program: Program, number: int) -> Program:
    made = deepcopy(program)
    made.step(number).gates.clear()
    if not any(step.gates for step in made.steps):
        made.gates = []
    return made


def _on_one_thread(program: Program) -> Program:
    made = deepcopy(program)
    made.threads = 1
    for step in made.steps:
        step.thread = 0
    made.gates = [gate.__class__(gate.index, gate.value, 0, gate.turn, gate.fails) for gate in made.gates]
    return made
