"""Random reservations in a staging buffer, released in any order, by hand and by submissions, against intervals."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import tidegate as tg
from tidegate.testing import register_streams

from .drawing import PICK, choose
from .fences import LIMIT, until

CAPACITY = 1024
SIZES = st.sampled_from((0, 1, 7, 16, 33, 64, 200, 256, 500, 1000, 1024, 1025, 5000))
ALIGNMENTS = st.sampled_from((1, 2, 16, 16, 64, 256))


@dataclass(eq=False)
class Taken:
    """A range that is reserved, and the mark its bytes must keep until it is released."""

    reserved: Any
    mark: int
    gate: tg.Semaphore | None = None
    copied: tg.Submission | None = None
    target: tg.Buffer | None = None

    @property
    def begin(self) -> int:
        return self.reserved.offset

    @property
    def end(self) -> int:
        return self.reserved.offset + self.reserved.nbytes


class StagingMachine(RuleBasedStateMachine):
    uri = "cpu?workers=2"

    def __init__(self) -> None:
        super().__init__()
        register_streams()
        self.device = tg.open_device(self.uri)
        self.queue = self.device.queue("transfer")
        self.staging = tg.lowlevel.StagingBuffer(self.device, CAPACITY)
        self.taken: list[Taken] = []
        self.marks = 0
        self.closed = False

    def room_for(self, nbytes: int, alignment: int) -> bool:
        """Whether some gap holds an aligned range."""
        edges = sorted((taken.begin, taken.end) for taken in self.taken if taken.begin < taken.end)
        begins = [0, *(end for _, end in edges)]
        ends = [*(begin for begin, _ in edges), CAPACITY]
        return any(
            -(-begin // alignment) * alignment + nbytes <= end for begin, end in zip(begins, ends, strict=True)
        ) or (nbytes == 0)

    @rule(nbytes=SIZES, alignment=ALIGNMENTS)
    def reserve(self, nbytes: int, alignment: int) -> None:
        try:
            reserved = self.staging.reserve(nbytes, alignment)
        except tg.OutOfRangeError:
            assert nbytes > CAPACITY
            return
        except tg.ResourceExhaustedError:
            assert nbytes <= CAPACITY
            assert not self.room_for(nbytes, alignment)
            return
        except tg.ClosedError:
            assert self.closed
            return
        assert not self.closed
        assert reserved.nbytes == nbytes == reserved.array.nbytes == reserved.buffer.nbytes
        assert reserved.offset % alignment == 0
        self.marks = self.marks % 255 + 1
        reserved.array[:] = self.marks
        self.taken.append(Taken(reserved, self.marks))

    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        if not self.taken:
            return
        taken = choose(self.taken, pick)
        if taken.copied is None:
            taken.reserved.release()
            taken.reserved.release()  # twice is fine
            self.taken.remove(taken)

    @rule(pick=PICK, by_submission=st.booleans())
    def release_after(self, pick: int, by_submission: bool) -> None:
        """Copy a range to the device and give it back with the end of that; a gate holds it for now."""
        idle = [taken for taken in self.taken if taken.copied is None]
        if not idle:
            return
        taken = choose(idle, pick)
        taken.gate, done = tg.Semaphore(), tg.Semaphore()
        taken.target = self.device.allocate(taken.reserved.nbytes, memory="shared")
        taken.copied = self.queue.copy(taken.reserved.buffer, taken.target, wait=taken.gate.at(1), signal=done.at(1))
        taken.reserved.release_after(taken.copied if by_submission else done.at(1))

    @rule(pick=PICK, how=st.sampled_from(("signal", "signal", "fail", "cancel")))
    def decide(self, pick: int, how: str) -> None:
        """Whatever becomes of the submission, the space comes back with its end, and not only when all is idle."""
        busy = [taken for taken in self.taken if taken.copied is not None]
        if not busy:
            return
        taken = choose(busy, pick)
        if how == "signal":
            taken.gate.signal(1)
            taken.copied.wait(LIMIT)
            assert np.all(taken.target.to_numpy(timeout=LIMIT) == taken.mark)
        elif how == "fail":
            taken.gate.fail(ValueError("a gate that failed"))
            assert isinstance(taken.copied.error, ValueError)
        else:
            assert taken.copied.cancel()
        self.taken.remove(taken)
        until(lambda: self.staging.free_bytes == self.free_bytes())

    @rule(wrong=st.sampled_from(((-1, 16), (8, 0), (8, 3), (8, -16))))
    def reserve_wrongly(self, wrong: tuple[int, int]) -> None:
        try:
            self.staging.reserve(*wrong)
        except tg.InvalidArgumentError:
            return
        raise AssertionError(f"reserve{wrong} was not refused")

    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        if pick == 0:
            self.staging.close()
            self.closed = True

    def free_bytes(self) -> int:
        return CAPACITY - sum(taken.reserved.nbytes for taken in self.taken)

    @invariant()
    def no_two_ranges_meet_and_each_keeps_its_bytes(self) -> None:
        edges = sorted((taken.begin, taken.end) for taken in self.taken if taken.begin < taken.end)
        assert all(begin >= 0 and end <= CAPACITY for begin, end in edges)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(edges))
        assert all(np.all(taken.reserved.array == taken.mark) for taken in self.taken)
        assert self.staging.free_bytes == self.free_bytes()

    def teardown(self) -> None:
        self.device.close(LIMIT)


class StreamsStagingMachine(StagingMachine):
    uri = "streams"


TestStagingMachine = pytest.mark.slow(StagingMachine.TestCase)
TestStreamsStagingMachine = pytest.mark.slow(StreamsStagingMachine.TestCase)
