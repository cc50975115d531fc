"""Turns the order of a program into what it submits: lanes, submissions and timepoints.

Every choice is drawn from the seed and the numbers of the steps it concerns, so that a smaller program keeps those of
the larger one.

A semaphore with several signals goes up along a chain: whoever signals a value comes after whoever signalled the one
before. If one of them fails, perhaps before the one before it is over, all who wait at that semaphore may fail with it
(M7): for those no outcome is foreseen. Everything else is certain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from .program import Program, Step


@dataclass
class Wires:
    """What each step waits for and signals, as text, and what is known of the ends.

    Attributes:
        waits: by step.
        signals: by step.
        semaphores: the last value of each semaphore, and who signals it.
        must_fail: the injected errors that reach each step for certain.
        may_fail: those that may reach it.

    """

    waits: dict[int, list[str]] = field(default_factory=dict)
    signals: dict[int, list[str]] = field(default_factory=dict)
    semaphores: list[list[tuple[int, int]]] = field(default_factory=list)
    watched: dict[int, list[str]] = field(default_factory=dict)
    must_fail: dict[int, set[int]] = field(default_factory=dict)
    may_fail: dict[int, set[int]] = field(default_factory=dict)


def wire(program: Program) -> Wires:
    """Choose how each step is ordered behind those before it."""
    wires = Wires({step.number: [] for step in program.steps}, {step.number: [] for step in program.steps})
    ancestors = program.ancestors()
    points: dict[int, list[tuple[int, int, int]]] = {}
    waiters: dict[int, set[int]] = {}
    lane_last: dict[str, int] = {}
    for step in program.steps:
        for number in sorted(step.after):
            random = Random(f"{program.seed}/{number}/{step.number}")
            producer = program.step(number)
            if lane_last.get(step.place) == number and random.random() < 0.7:
                continue  # the lane says so already
            if _known_before(producer, step) and random.random() < 0.4:
                wires.waits[step.number].append(_submission(producer))
                continue
            if number not in points:
                points[number] = _points(program, wires, ancestors, number)
            semaphore, low, high = random.choice(points[number])
            wires.waits[step.number].append(f"t[{semaphore}].at({random.randint(low, high)})")
            waiters.setdefault(semaphore, set()).add(step.number)
        wires.waits[step.number] += [f"g[{gate}].at({value})" for gate, value in sorted(step.gates)]
        if step.in_lane:
            lane_last[step.place] = step.number
    _watch(program, wires)
    _foresee(program, wires, waiters)
    return wires


def _known_before(producer: Step, step: Step) -> bool:
    """Whether the producer's submission is at hand when the step is submitted."""
    if producer.operation.kind == "allocate":
        return True
    if step.operation.kind == "allocate":
        return False
    return producer.thread == step.thread and producer.turn < step.turn


def _submission(step: Step) -> str:
    return f"s[{step.number}]"


def _points(program: Program, wires: Wires, ancestors: dict[int, set[int]], number: int) -> list[tuple[int, int, int]]:
    """Give a step timepoints to signal: of new semaphores, or further up on such whose last signal is before it."""
    random = Random(f"{program.seed}/{number}")
    found = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        chains = [index for index, signals in enumerate(wires.semaphores) if signals[-1][1] in ancestors[number]]
        if chains and random.random() < 0.5:
            index = random.choice(chains)
            low = wires.semaphores[index][-1][0] + 1
        else:
            index, low = len(wires.semaphores), 1
            wires.semaphores.append([])
        high = low + random.choice((0, 0, 1, 5))
        wires.semaphores[index].append((high, number))
        wires.signals[number].append(f"t[{index}].at({high})")
        found.append((index, low, high))
    return found


def _watch(program: Program, wires: Wires) -> None:
    """Have some timepoints call back, registered by some thread before or after they are decided."""
    random = Random(f"{program.seed}/watch")
    for index, signals in enumerate(wires.semaphores):
        if random.random() < 0.3:
            after = random.choice(program.steps).number
            wires.watched.setdefault(after, []).append(f"t[{index}].at({random.randint(1, signals[-1][0])})")


def _foresee(program: Program, wires: Wires, waiters: dict[int, set[int]]) -> None:
    """Find which injected errors reach which steps."""
    producers = program.producers()
    failing_gates = {gate.index: gate for gate in program.gates if gate.fails is not None}
    for step in program.steps:
        own = {error for error in (step.operation.fails, step.cancelled) if error is not None}
        for gate, value in step.gates:
            failing = failing_gates.get(gate)
            if failing is not None and failing.fails is not None and value >= failing.value:
                own.add(failing.fails)
        reached = {error for before in producers[step.number] for error in wires.must_fail[before]}
        wires.must_fail[step.number] = reached | own
        wires.may_fail[step.number] = set(wires.must_fail[step.number])
    changed = True
    while changed:
        changed = False
        for step in program.steps:
            mine = wires.may_fail[step.number]
            before = len(mine)
            for producer in producers[step.number]:
                mine |= wires.may_fail[producer]
            for semaphore, numbers in waiters.items():
                if step.number in numbers:
                    for _, signaller in wires.semaphores[semaphore]:
                        mine |= wires.may_fail[signaller]
            changed = changed or len(mine) > before
