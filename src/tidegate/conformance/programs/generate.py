"""Draws a program from a seed: right by construction, for every pair of steps in conflict is ordered."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from .operations import WEIGHTS, Memory, Recording, execute, record
from .program import Gate, Operation, Program, Span, Step

_SIZES = (16, 256, 4096, 20_000, 65_540, 300_000)
_SIZE_WEIGHTS = (2, 3, 6, 4, 2, 1)
_QUEUES = ("device.queue()", "device.queue(priority=1)", "device.queues[-1]")
_TRIES = 20


def generate(seed: int, *, threads: int = 1, failures: bool = False, faults: bool = False) -> Program:
    """Return the program of a seed.

    Args:
        seed: decides everything else.
        threads: how many threads submit its steps.
        failures: whether something in it fails.
        faults: whether that may be a kernel.

    """
    random = Random(f"{seed}/{threads}/{failures}/{faults}")
    program = Program(seed, threads)
    memory = _make_memory(random, program)
    recordings = [record(random, memory) for _ in range(random.choice((0, 0, 1, 2)))]
    program.recordings = [recording.lines for recording in recordings]
    builder = _Builder(random, program)
    for index in program.allocated:
        builder.allocate(index)
    for index in program.allocated:
        builder.fill_whole(index)
    for _ in range(random.randint(3, 22)):
        builder.add(_operation(random, memory, recordings))
    if failures:
        builder.inject(faults)
    for index in list(program.allocated):
        if random.random() < 0.5:
            builder.free(index)
    builder.shuffle()
    if failures and not program.errors:
        builder.cancel()
    return program


def _make_memory(random: Random, program: Program) -> Memory:
    memory = Memory()
    program.queues = list(_QUEUES[: random.randint(1, len(_QUEUES))])
    program.lanes = [random.randrange(len(program.queues)) for _ in range(random.choice((0, 1, 1, 2)))]
    for index in range(random.randint(1, 4)):
        size = random.choices(_SIZES, _SIZE_WEIGHTS)[0]
        kind = random.choice(("device", "device", "host", "shared"))
        memory.sizes.append(size)
        if kind != "device":
            memory.visible.append(index)
        if random.random() < 0.25:
            program.allocated[index] = -1
            program.buffers.append(f"allocate({size}, memory={kind!r})")
        else:
            program.buffers.append(f"run.buffer({size}, {kind!r})")
    program.sizes = memory.sizes
    for _ in range(random.randint(1, 3)):
        memory.arrays.append(random.choices(_SIZES, _SIZE_WEIGHTS)[0])
    program.arrays = memory.arrays
    return memory


def _operation(random: Random, memory: Memory, recordings: list[Recording]) -> Operation:
    """Draw until one fits."""
    for _ in range(_TRIES):
        if recordings and random.random() < 0.15:
            index = random.randrange(len(recordings))
            operation = execute(random, memory, index, recordings[index])
        else:
            (draw,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
            operation = draw(random, memory)
        if operation is not None:
            return operation
    return Operation("barrier", "barrier()")


class _Builder:
    """Adds steps, and the order that they need."""

    def __init__(self, random: Random, program: Program) -> None:
        self._random = random
        self._program = program
        self._ancestors: dict[int, set[int]] = {}
        self._lane_last: dict[str, int] = {}
        self._lane_threads = [random.randrange(program.threads) for _ in program.lanes]
        self._gates = [0] * random.choice((0, 1, 1, 2))
        self._gate_threads = [random.randrange(program.threads) for _ in self._gates]
        self._busy = random.choice((0.1, 0.5))

    def add(self, operation: Operation) -> Step:
        """Add a step behind all that it is in conflict with."""
        random, program = self._random, self._program
        step = Step(len(program.steps), operation, self._place())
        if step.in_lane:
            step.thread = self._lane_threads[int(step.place[5:-1])]
        else:
            step.thread = random.randrange(program.threads)
        before: set[int] = set()
        if step.in_lane and step.place in self._lane_last:
            before = self._reach([self._lane_last[step.place]])
        for other in reversed(program.steps):
            needed = operation.conflicts(other.operation) and other.number not in before
            if needed or random.random() < self._busy / len(program.steps):
                step.after.add(other.number)
                before |= self._reach([other.number])
        if self._gates and random.random() < 0.2:
            self._wait_at_gate(step)
        self._ancestors[step.number] = before
        if step.in_lane:
            self._lane_last[step.place] = step.number
        program.steps.append(step)
        return step

    def _reach(self, numbers: Iterable[int]) -> set[int]:
        return {one for number in numbers for one in (number, *self._ancestors[number])}

    def _place(self) -> str:
        random, program = self._random, self._program
        if program.lanes and random.random() < 0.4:
            return f"lane[{random.randrange(len(program.lanes))}]"
        return f"q[{random.randrange(len(program.queues))}]"

    def _wait_at_gate(self, step: Step) -> None:
        gate = self._random.randrange(len(self._gates))
        self._gates[gate] = max(self._gates[gate], value := self._random.randint(1, 3))
        step.gates.add((gate, value))

    # Memory in queue order -----------------------------------------------------------------------------------------

    def allocate(self, index: int) -> None:
        """Allocate a buffer in queue order. All are asked for before the threads begin, which name them."""
        program = self._program
        whole = Span("b", index, 0, program.sizes[index])
        step = self.add(Operation("allocate", program.buffers[index], writes=(whole,)))
        step.fixed = True
        program.allocated[index] = step.number

    def fill_whole(self, index: int) -> None:
        """Fill a buffer that was allocated: fresh memory is undefined."""
        whole = Span("b", index, 0, self._program.sizes[index])
        model = f"{whole.twin} = {index + 1}"
        step = self.add(Operation("fill", f"fill(b[{index}], {index + 1})", (model,), writes=(whole,)))
        step.fixed = True

    def free(self, index: int) -> None:
        """Free a buffer behind all of its uses."""
        whole = Span("b", index, 0, self._program.sizes[index])
        recorded = any(f"b[{index}]" in line for lines in self._program.recordings for line in lines)
        if not recorded:
            step = self.add(Operation("free", f"free(b[{index}])", writes=(whole,)))
            self._program.freed[index] = step.number

    # Failures ------------------------------------------------------------------------------------------------------

    def inject(self, faults: bool) -> None:
        """Have some steps fail by themselves, or a gate; otherwise one is cancelled later."""
        random, program = self._random, self._program
        kind = random.choice(("raise", "raise", "gate", "cancel", *(("fault", "fault") if faults else ())))
        if kind == "gate" and any(self._gates):
            program.errors = 1
        elif kind in ("raise", "fault"):
            for _ in range(random.randint(1, 2)):
                self._fail_one(faulty=kind == "fault")

    def _fail_one(self, *, faulty: bool) -> None:
        """Put a failing step in the place of one that is not about memory in queue order."""
        random, program = self._random, self._program
        usual = [step for step in program.steps if not step.fixed and step.operation.fails is None]
        if not usual:
            return
        step = random.choice(usual)
        index, program.errors = program.errors, program.errors + 1
        call = "dispatch(fault, 1)" if faulty else f"host_call(run.fail, {index})"
        reads, writes = step.operation.reads, step.operation.writes  # it stands where the other stood
        step.operation = Operation("dispatch" if faulty else "host_call", call, (), reads, writes, fails=index)

    def cancel(self) -> None:
        """Cancel a step that is surely held: it waits for a gate that its own thread opens later."""
        program = self._program
        opened = {(gate.index, gate.value): gate for gate in program.gates}
        for step in program.steps:
            surely = any(opened[at].thread == step.thread and opened[at].turn > step.turn for at in step.gates)
            if surely and not step.in_lane and step.operation.kind not in ("allocate", "free"):
                step.cancelled = 0
                program.errors = 1
                return

    # Who submits when ----------------------------------------------------------------------------------------------

    def shuffle(self) -> None:
        """Decide the order of the calls: near to that of the steps, any, or backwards; lanes keep theirs."""
        random, program = self._random, self._program
        count = len(program.steps)
        spread = random.choice((0.5, 4.0, 4.0 * count))
        sign = -1 if random.random() < 0.2 else 1
        for step in program.steps:
            step.turn = sign * step.number + random.random() * spread
        for lane in {step.place for step in program.steps if step.in_lane}:
            mine = [step for step in program.steps if step.place == lane]
            for step, turn in zip(mine, sorted(step.turn for step in mine), strict=True):
                step.turn = turn
        least = min(step.turn for step in program.steps)
        most = max(step.turn for step in program.steps)
        for index, highest in enumerate(self._gates):
            turns = sorted(random.uniform(least - 1, most + 1) for _ in range(highest))
            failing = random.randint(1, highest) if highest and program.errors == 1 and not self._fails() else None
            for value, turn in enumerate(turns, 1):
                fails = 0 if value == failing else None
                program.gates.append(Gate(index, value, self._gate_threads[index], turn, fails))
                if fails is not None:
                    break

    def _fails(self) -> bool:
        return any(step.operation.fails is not None for step in self._program.steps) or any(
            gate.fails is not None for gate in self._program.gates
        )
