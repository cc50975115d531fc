"""Writes a program as Python text: what runs, and what a person reads when it fails."""

from __future__ import annotations

from random import Random

from .program import Gate, Program, Step
from .wiring import Wires, wire

_HEAD = '''"""Random program {seed}: {steps} steps, {threads} thread{s}. Every pair in conflict is ordered."""

import numpy as np

import tidegate as tg
from tidegate.conformance import kernels, subjects
from tidegate.conformance.programs.harness import Run, data, flip, read_mapped, repeat, write_mapped


def program(device):
'''
_TAIL = """

if __name__ == "__main__":
    with subjects.find({driver!r}).open_device() as device:
        program(device)
"""


def source(program: Program, driver: str = "cpu") -> str:
    """Return a program as text that can be run."""
    wires = wire(program)
    lines = [*_opening(program, wires), *_threads(program, wires), *_ends(program, wires)]
    threads = program.threads
    head = _HEAD.format(seed=program.seed, steps=len(program.steps), threads=threads, s="s" if threads > 1 else "")
    return head + "\n".join(f"    {line}" if line else "" for line in lines) + "\n" + _TAIL.format(driver=driver)


def _opening(program: Program, wires: Wires) -> list[str]:
    must = {number: errors for number, errors in wires.must_fail.items() if errors}
    gates = 1 + max((gate.index for gate in program.gates), default=-1)
    may = {number: errors for number, errors in wires.may_fail.items() if errors}
    lines = [
        f"run = Run(device, must_fail={must}, may_fail={may}, errors={program.errors}, faults={_faults(program)})",
        f"q = [{', '.join(program.queues)}]",
        f"lane = [{', '.join(f'device.lane(q[{queue}])' for queue in program.lanes)}]",
        f"t = [tg.Semaphore(label=f't{{n}}') for n in range({len(wires.semaphores)})]",
        f"g = [tg.Semaphore(label=f'g{{n}}') for n in range({gates})]",
        *_kernels(program),
        "s = {}",
        f"b = [None] * {len(program.buffers)}",
        f"h = run.arrays({program.arrays})",
        f"mb, ub = run.twins({program.sizes})  # what NumPy has in the place of b, and what of it is undefined",
        f"mh, uh = run.twins({program.arrays})",
    ]
    for index, text in enumerate(program.buffers):
        if index not in program.allocated:
            lines.append(f"b[{index}] = {text}")
    by_number = {number: index for index, number in program.allocated.items()}
    for step in program.steps:
        if step.operation.kind == "allocate":
            index = by_number[step.number]
            lines += [f"b[{index}] = {_call(step, wires)}", f"s[{step.number}] = b[{index}].ready"]
    if program.recordings:
        lines.append("c = []")
    for recording in program.recordings:
        lines += ["with device.record() as commands:", *(f"    {line}" for line in recording), "c.append(commands)"]
    return lines


def _faults(program: Program) -> dict[int, int]:
    """Return the steps whose kernel faults, and the numbers of their errors."""
    return {
        step.number: step.operation.fails
        for step in program.steps
        if step.operation.fails is not None and step.operation.kind == "dispatch"
    }


def _kernels(program: Program) -> list[str]:
    text = "\n".join([step.operation.call for step in program.steps] + [line for r in program.recordings for line in r])
    names = [name for name in ("increment", "mix", "fault") if f"dispatch({name}," in text]
    return [f"{name} = kernels.load(device, kernels.{name})" for name in names]


def _call(step: Step, wires: Wires) -> str:
    waits, signals = wires.waits[step.number], wires.signals[step.number]
    call = step.operation.call[:-1]
    comma = "" if call.endswith("(") else ", "
    if waits:
        call += f"{comma}wait={_listed(waits)}"
        comma = ", "
    if signals:
        call += f"{comma}signal={_listed(signals)}"
    return f"{step.place}.{call})"


def _listed(points: list[str]) -> str:
    return points[0] if len(points) == 1 else f"[{', '.join(points)}]"


def _threads(program: Program, wires: Wires) -> list[str]:
    lines: list[str] = []
    for thread in range(program.threads):
        body = _body(program, wires, thread)
        lines += ["", f"def thread_{thread}():", *(f"    {line}" for line in body or ["pass"])]
    return [*lines, "", f"run.threads({', '.join(f'thread_{thread}' for thread in range(program.threads))})"]


def _body(program: Program, wires: Wires, thread: int) -> list[str]:
    """Return what one thread calls: its submissions and its gates, each in its turn, and looks in between."""
    mine: list[tuple[float, Step | Gate]] = [
        (step.turn, step) for step in program.steps if step.thread == thread and step.operation.kind != "allocate"
    ]
    mine += [(gate.turn, gate) for gate in program.gates if gate.thread == thread]
    called = {step.number for step in program.steps if step.operation.kind == "allocate"}
    opened: set[tuple[int, int]] = set()
    lines: list[str] = []
    for _, one in sorted(mine, key=lambda pair: pair[0]):
        if isinstance(one, Gate):
            opened |= {(one.index, value) for value in range(one.value, 99 if one.fails is not None else one.value + 1)}
            told = f"signal({one.value})" if one.fails is None else f"fail(run.errors[{one.fails}])"
            lines.append(f"g[{one.index}].{told}")
            continue
        called.add(one.number)
        lines.append(f"s[{one.number}] = {_call(one, wires)}")
        if one.cancelled is not None:
            lines.append(f"run.cancel({one.cancelled}, s[{one.number}])")
        lines += [f"run.watch({point})" for point in wires.watched.get(one.number, [])]
        lines += _looks(program, one, called, opened)
    return lines


def _looks(program: Program, step: Step, called: set[int], opened: set[tuple[int, int]]) -> list[str]:
    """Look at what was submitted, or wait for it where nothing that is still to come is needed for it."""
    random = Random(f"{program.seed}/look/{step.number}")
    if random.random() < 0.8 or program.threads > 1:
        return []
    other = random.choice(sorted(called))
    needed = {other, *program.ancestors()[other]}
    gates = {gate for number in needed for gate in program.step(number).gates}
    if needed <= called and gates <= opened and random.random() < 0.5:
        return [f"run.wait(s[{other}])"]
    return [f"s[{other}].done"]


def _ends(program: Program, wires: Wires) -> list[str]:
    order = [step.number for step in program.steps]
    Random(f"{program.seed}/order").shuffle(order)
    lines = [f"run.end(s, order={order})", "", "# What NumPy makes of it."]
    for step in program.steps:
        marks = "".join(f", {span.undefined}" for span in dict.fromkeys(step.operation.writes))
        model = step.operation.model
        if model or marks:
            lines.append(f"if run.ended_well({step.number}{marks}):")
            lines += [f"    {text}" for text in model or ["pass"]]
    for index in range(len(program.buffers)):
        lines += _check_buffer(program, index)
    lines += [f"run.check_bytes('h[{n}]', h[{n}], mh[{n}], uh[{n}])" for n in range(len(program.arrays))]
    for index, signals in enumerate(wires.semaphores):
        numbers = {number for _, number in signals}
        lines.append(f"run.check_semaphore('t[{index}]', t[{index}], {signals[-1][0]}, {numbers})")
    return [*lines, "run.check_device()"]


def _check_buffer(program: Program, index: int) -> list[str]:
    check = f"run.check_bytes('b[{index}]', run.bytes_of(b[{index}]), mb[{index}], ub[{index}])"
    if index in program.freed:
        return []
    if index in program.allocated:
        return [f"if run.ended_well({program.allocated[index]}):", f"    {check}"]
    return [check]
