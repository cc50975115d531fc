"""Random allocations, frees and transfers under a budget, against NumPy arrays.

Every operation on a buffer waits for the one before on that buffer, and some wait for a gate too, which the machine
opens or fails later in an order of its own. So the contents are those of the operations that succeed, in the order of
their submission, whenever they run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import tidegate as tg
from tidegate.testing import register_streams

from .drawing import PICK, SHARE, choose, part_of
from .fences import LIMIT, let_background_threads_catch_up, until

BUDGET = 8192
SIZES = st.sampled_from((256, 512, 1024, 4096))  # sizes that pools round to themselves
PATTERNS = st.binary(min_size=1, max_size=4).filter(lambda pattern: len(pattern) != 3)
MOST_BLOCKS, MOST_HELD = 6, 10


class Boom(Exception):
    """Why a gate fails."""


@dataclass(eq=False)
class Block:
    """A buffer, and what it must hold."""

    size: int
    buffer: tg.Buffer | None
    committed: bool = False
    freed: bool = False
    closed: bool = False
    last: Operation | None = None
    """The last operation on it that others must follow."""
    free: Operation | None = None
    """The free that is held."""
    uses: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bytes = np.zeros(self.size, np.uint8)
        self.known = np.zeros(self.size, bool)  # fresh memory is undefined

    @property
    def usable(self) -> bool:
        return self.buffer is not None and not (self.freed or self.closed or self.free)

    @property
    def used(self) -> int:
        """The bytes it takes of the budget: until its end, and the end of what uses it."""
        gone = self.freed or ((self.closed or self.buffer is None) and all(use.over for use in self.uses))
        return self.size if self.committed and not gone else 0


@dataclass(eq=False)
class Operation:
    kind: str
    submission: tg.Submission
    after: list[Operation]
    gate: int | None
    blocks: list[Block]
    effect: Any = None
    own_error: type[BaseException] | None = None
    """What it fails with by itself."""
    cancelled: bool = False
    over: bool = False
    error: BaseException | None = None


class MemoryMachine(RuleBasedStateMachine):
    uri = "cpu?workers=2"

    def __init__(self) -> None:
        super().__init__()
        register_streams()
        separator = "&" if "?" in self.uri else "?"
        self.device = tg.open_device(f"{self.uri}{separator}memory={BUDGET}")
        self.queues = (self.device.queue(), self.device.queue("transfer"))
        self.gates: list[tg.Semaphore] = []
        self.gate_errors: dict[int, Boom] = {}
        self.blocks: list[Block] = []
        self.operations: list[Operation] = []
        self.given_back_by_failure = False

    # Choosing --------------------------------------------------------------------------------------------------------

    def held(self) -> list[Operation]:
        return [operation for operation in self.operations if not operation.over]

    def usable(self) -> list[Block]:
        return [block for block in self.blocks if block.usable]

    def waits(self, gate: int, blocks: list[Block]) -> tuple[list[Operation], int | None, list[Any]]:
        """What an operation on some blocks waits for: what was done to them before, and perhaps a gate."""
        after = [block.last for block in blocks if block.last is not None]
        points: list[Any] = [operation.submission for operation in after]
        if gate < 30 or len(self.held()) >= MOST_HELD:
            return after, None, points
        shut = [number for number, semaphore in enumerate(self.gates) if semaphore.value == 0]
        number = choose([*shut, len(self.gates)], gate)
        if number == len(self.gates):
            self.gates.append(tg.Semaphore(label=f"gate{number}"))
        return after, number, [*points, self.gates[number].at(1)]

    def add(self, operation: Operation, *, follow: bool = True) -> Operation:
        self.operations.append(operation)
        for block in operation.blocks:
            block.uses.append(operation)
            if follow:
                block.last = operation
        return operation

    # What users do ---------------------------------------------------------------------------------------------------

    @rule(gate=PICK, queue=PICK, size=SIZES, memory=st.sampled_from(("device", "host", "shared")))
    def allocate(self, gate: int, queue: int, size: int, memory: Any) -> None:
        if len(self.usable()) >= MOST_BLOCKS:
            return
        after, number, wait = self.waits(gate, [])
        label = f"block{len(self.blocks)}"
        buffer = choose(self.queues, queue).allocate(size, memory=memory, wait=wait, label=label)
        assert (buffer.nbytes, buffer.memory, buffer.label) == (size, memory, label)
        assert buffer.ready is not None
        block = Block(size, buffer)
        self.blocks.append(block)
        self.add(Operation("allocate", buffer.ready, after, number, [block], own_error=tg.ResourceExhaustedError))

    @rule(size=SIZES)
    def allocate_now(self, size: int) -> None:
        if len(self.usable()) >= MOST_BLOCKS:
            return
        used = sum(block.used for block in self.blocks)
        try:
            buffer = self.device.allocate(size)
        except tg.ResourceExhaustedError:
            assert used + size > BUDGET
            return
        assert used + size <= BUDGET
        self.blocks.append(Block(size, buffer, committed=True))

    @rule(pick=PICK, gate=PICK, queue=PICK, begin=SHARE, share=SHARE, pattern=PATTERNS)
    def fill(self, pick: int, gate: int, queue: int, begin: int, share: int, pattern: bytes) -> None:
        if not self.usable():
            return
        block = choose(self.usable(), pick)
        unit = len(pattern)
        offset = part_of(block.size // unit, begin) * unit
        length = part_of((block.size - offset) // unit, share) * unit
        after, number, wait = self.waits(gate, [block])
        submission = choose(self.queues, queue).fill(block.buffer, pattern, offset=offset, length=length, wait=wait)
        content = np.frombuffer(pattern * (length // unit), np.uint8)
        self.add(Operation("fill", submission, after, number, [block], _write(block, offset, content)))

    @rule(pick=PICK, gate=PICK, queue=PICK, begin=SHARE, content=st.binary(max_size=64))
    def update(self, pick: int, gate: int, queue: int, begin: int, content: bytes) -> None:
        if not self.usable():
            return
        block = choose(self.usable(), pick)
        offset = part_of(block.size - len(content), begin)
        after, number, wait = self.waits(gate, [block])
        scratch = bytearray(content)
        submission = choose(self.queues, queue).update(block.buffer, scratch, offset=offset, wait=wait)
        scratch[:] = bytes(len(scratch))  # captured during the call
        effect = _write(block, offset, np.frombuffer(content, np.uint8))
        self.add(Operation("update", submission, after, number, [block], effect))

    @rule(blocks=st.tuples(PICK, PICK), gate=PICK, queue=PICK, ranges=st.tuples(SHARE, SHARE, SHARE))
    def copy(self, blocks: tuple[int, int], gate: int, queue: int, ranges: tuple[int, int, int]) -> None:
        if not self.usable():
            return
        source, target = (choose(self.usable(), pick) for pick in blocks)
        length = part_of(min(source.size, target.size), ranges[0])
        read = part_of(source.size - length, ranges[1])
        written = part_of(target.size - length, ranges[2])
        overlap = source is target and length > 0 and abs(read - written) < length
        touched = [source] if source is target else [source, target]
        after, number, wait = self.waits(gate, touched)
        options = {"source_offset": read, "target_offset": written, "length": length, "wait": wait}
        try:
            submission = choose(self.queues, queue).copy(source.buffer, target.buffer, **options)
        except tg.InvalidArgumentError:
            assert overlap
            return
        assert not overlap

        def effect() -> None:
            target.bytes[written : written + length] = source.bytes[read : read + length]
            target.known[written : written + length] = source.known[read : read + length]

        self.add(Operation("copy", submission, after, number, touched, effect))

    @rule(pick=PICK, gate=PICK, queue=PICK)
    def free(self, pick: int, gate: int, queue: int) -> None:
        if not self.usable():
            return
        block = choose(self.usable(), pick)
        after, number, wait = self.waits(gate, [block])
        submission = choose(self.queues, queue).free(block.buffer, wait=wait)

        def effect() -> None:
            block.freed = True

        block.free = self.add(Operation("free", submission, after, number, [block], effect), follow=False)

    @rule(pick=PICK, queue=PICK)
    def free_twice(self, pick: int, queue: int) -> None:
        blocks = [block for block in self.blocks if block.free and block.buffer]
        if not blocks:
            return
        block = choose(blocks, pick)
        submission = choose(self.queues, queue).free(block.buffer)
        again = Operation("free", submission, [], None, [block], own_error=tg.FailedPreconditionError)
        self.add(again, follow=False)

    @rule(pick=PICK)
    def use_after_free(self, pick: int) -> None:
        blocks = [block for block in self.blocks if block.freed and block.buffer]
        if not blocks:
            return
        buffer = choose(blocks, pick).buffer
        with pytest.raises(tg.FailedPreconditionError, match="freed"):
            self.queues[0].fill(buffer, 1)
        with pytest.raises(tg.FailedPreconditionError, match="freed"):
            buffer.read(timeout=0)

    @rule(pick=PICK, drop=st.booleans())
    def give_up(self, pick: int, drop: bool) -> None:
        """Close a buffer or drop it; what uses it goes on, and its memory comes back afterwards."""
        if not self.usable():
            return
        block = choose(self.usable(), pick)
        if drop:
            block.buffer = None
        else:
            block.buffer.close()
            block.closed = True

    @rule(pick=PICK, fails=st.sampled_from((False, False, True)))
    def decide_a_gate(self, pick: int, fails: bool) -> None:
        shut = [number for number, gate in enumerate(self.gates) if gate.value == 0 and gate.failure is None]
        if not shut:
            return
        number = choose(shut, pick)
        if fails:
            self.gate_errors[number] = Boom(number)
            self.gates[number].fail(self.gate_errors[number])
        else:
            self.gates[number].signal(1)

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        if not self.held():
            return
        operation = choose(self.held(), pick)
        ready = all(self.states(operation)[0])
        operation.cancelled = operation.submission.cancel()
        assert operation.cancelled != ready

    @rule()
    def trim(self) -> None:
        self.device.trim()
        assert self.device.statistics().pooled_bytes == 0

    # What must be so -------------------------------------------------------------------------------------------------

    def states(self, operation: Operation) -> tuple[list[bool], list[BaseException]]:
        """Which waits of an operation are met, and the errors of those that have failed."""
        met = [before.over and before.error is None for before in operation.after]
        errors = [before.error for before in operation.after if before.error is not None]
        if operation.gate is not None:
            met.append(self.gates[operation.gate].value == 1)
            if operation.gate in self.gate_errors:
                errors.append(self.gate_errors[operation.gate])
        return met, errors

    @invariant()
    def everything_is_as_numpy_says(self) -> None:
        deadline = time.monotonic() + LIMIT
        while self.follow_what_ended() or self.something_is_due():
            let_background_threads_catch_up()
            assert time.monotonic() < deadline, self.explain()
        self.check_memory()
        self.check_contents()
        self.given_back_by_failure = False

    def follow_what_ended(self) -> bool:
        """Take in what is over by now, each after what it waited for; returns whether anything was.

        A failed allocation comes after all else, which may have helped it.
        """
        ended = [operation for operation in self.held() if operation.submission.done]
        ended = [operation for operation in ended if self.is_explained(operation)]
        served = [operation for operation in ended if type(operation.submission.error) is not tg.ResourceExhaustedError]
        for operation in served or ended:
            self.take_in(operation)
        return bool(ended)

    def is_explained(self, operation: Operation) -> bool:
        """Whether what an operation waited for was taken in, as far as it was decisive."""
        errors = self.states(operation)[1]
        return operation.cancelled or bool(errors) or all(before.over for before in operation.after)

    def take_in(self, operation: Operation) -> None:
        met, errors = self.states(operation)
        error = operation.submission.error
        if operation.cancelled:
            assert type(error) is tg.AbortedError
        elif errors:
            assert any(error is known for known in errors)
        else:
            assert all(met), "it ran before its waits were met"
            assert error is None or type(error) is operation.own_error
        if (
            error is not None
            and operation.kind == "allocate"
            and type(error) is tg.ResourceExhaustedError
            and not errors
        ):
            self.check_refusal(operation)
        used = sum(block.used for block in self.blocks)
        operation.over, operation.error = True, error
        if operation.kind == "allocate":
            operation.blocks[0].committed = error is None
        elif error is None and operation.effect is not None:
            operation.effect()
        for block in operation.blocks:
            if block.free is operation:
                block.free = None
        if error is not None and sum(block.used for block in self.blocks) < used:
            self.given_back_by_failure = True

    def check_refusal(self, operation: Operation) -> None:
        """An allocation may fail only where nothing in flight can help."""
        helpers = [other.kind for other in self.held() if self.gives_back(other) and not self.is_stuck(other)]
        assert not helpers, f"no memory, although {helpers} were in flight"
        used = sum(block.used for block in self.blocks)
        assert used + operation.blocks[0].size > BUDGET or self.given_back_by_failure

    def gives_back(self, operation: Operation) -> bool:
        if operation.kind == "free":
            return operation.own_error is None
        return any(block.committed and (block.closed or block.buffer is None) for block in operation.blocks)

    def may_give_back(self, operation: Operation) -> bool:
        """Whether memory comes back with its end if the user drops the buffer meanwhile: an allocation may hope so."""
        return operation.kind != "allocate" and bool(operation.blocks)

    def is_stuck(self, operation: Operation) -> bool:
        """Whether an operation is, or waits for, one that finds no memory or has failed."""
        stack = [operation]
        while stack:
            current = stack.pop()
            met, errors = self.states(current)
            if errors or (current.kind == "allocate" and not current.over and all(met)):
                return True
            stack += [before for before in current.after if not before.over]
        return False

    def something_is_due(self) -> bool:
        """Whether something must still happen by itself."""
        used = sum(block.used for block in self.blocks)
        for operation in self.held():
            met, errors = self.states(operation)
            if errors or operation.cancelled or (all(met) and operation.kind != "allocate"):
                return True
            if all(met):
                fits = used + operation.blocks[0].size <= BUDGET
                if fits or not any(self.may_give_back(other) and not self.is_stuck(other) for other in self.held()):
                    return True
        return False

    def check_memory(self) -> None:
        used = sum(block.used for block in self.blocks)
        until(lambda: self.device.statistics().allocated_bytes == used)
        statistics = self.device.statistics()
        assert statistics.allocated_bytes == used
        assert statistics.reserved_bytes == statistics.allocated_bytes + statistics.pooled_bytes <= BUDGET
        assert statistics.allocated_bytes <= statistics.peak_bytes <= BUDGET == statistics.budget_bytes
        assert statistics.reuses <= statistics.allocations

    def check_contents(self) -> None:
        for block in self.blocks:
            if block.buffer is None or not block.committed or block.freed or block.closed:
                continue
            if any(not use.over for use in block.uses):
                continue
            found = self.queues[1].download(block.buffer).result(LIMIT)
            assert np.array_equal(found[block.known], block.bytes[block.known])

    def explain(self) -> str:
        return "\n".join(f"{operation.kind}: {operation.submission.explain()}" for operation in self.held())

    def teardown(self) -> None:
        self.device.close(LIMIT)
        assert all(operation.submission.done for operation in self.operations)
        for operation in self.operations:
            assert operation.submission.error is operation.error or operation.error is None
        self.blocks.clear()
        self.operations.clear()


def _write(block: Block, offset: int, content: Any) -> Any:
    def effect() -> None:
        block.bytes[offset : offset + len(content)] = content
        block.known[offset : offset + len(content)] = True

    return effect


class StreamsMemoryMachine(MemoryMachine):
    """On in-order streams, where work is issued behind work that has not ended, and the host sees little."""

    uri = "streams"


TestMemoryMachine = pytest.mark.slow(MemoryMachine.TestCase)
TestStreamsMemoryMachine = pytest.mark.slow(StreamsMemoryMachine.TestCase)
