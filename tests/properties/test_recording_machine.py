"""Random command buffers, executed in any order their edges allow, against NumPy arrays.

A driver of its own, the CPU driver otherwise, runs the commands of a recording in a random order that satisfies the
edges it is given. The machine names in `after=` just what a command must follow, or puts a barrier between; if an edge
is lost on the way, some order shows it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import tidegate as tg
from tidegate.driver import Command, Execute, Recording
from tidegate.drivers.cpu import CpuDriver
from tidegate.drivers.cpu.device import CpuDevice
from tidegate.drivers.cpu.queue import CpuQueue

from .drawing import PICK, SHARE, choose, part_of
from .fences import LIMIT

SIZE = 64
BUFFERS, SLOTS = 3, 2


class ShuffledQueue(CpuQueue):
    """Runs the commands of a recording in a random order that satisfies every edge."""

    def issue(self, ticket: Any, work: Any, waits: Any) -> bool:
        if isinstance(work, Execute):
            commands = tuple(_shuffled(work.recording.commands, random.Random(len(work.recording.commands))))
            work = Execute(Recording(commands, work.recording.slots, work.recording.label), None, work.table, work.cost)
        return super().issue(ticket, work, waits)


def _shuffled(commands: tuple[Command, ...], chance: random.Random) -> Iterator[Command]:
    left = set(range(len(commands)))
    while left:
        ready = sorted(index for index in left if not left & set(commands[index].after))
        # The last of what is ready first, mostly: the order least like the one recorded.
        index = ready[-1] if chance.random() < 0.7 else chance.choice(ready)
        left.discard(index)
        yield commands[index]


class ShuffledDevice(CpuDevice):
    def queue(self, kind: str, priority: int) -> CpuQueue:
        return ShuffledQueue(self)


class ShuffledDriver(CpuDriver):
    def make_device(self, info: Any, workers: int, budget: int | None) -> CpuDevice:
        return ShuffledDevice(info, workers, budget)


shuffled = ShuffledDriver()


def add_one(workgroups: Any, bindings: Any, constants: Any) -> None:
    bindings[0][:] += np.uint8(1 + constants[0])
    bindings[1][: bindings[0].nbytes] ^= bindings[0]


KERNEL = tg.Kernel("add_one", cpu=add_one, bindings=2, constants=[np.uint8])


@dataclass(frozen=True)
class Place:
    """A range of one of the buffers, which a recording may name directly or by a slot."""

    buffer: int
    begin: int
    end: int

    def meets(self, other: Place) -> bool:
        return self.buffer == other.buffer and self.begin < other.end and other.begin < self.end


@dataclass(frozen=True)
class Recorded:
    node: Any
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    effect: Any

    def conflicts(self, reads: tuple[Place, ...], writes: tuple[Place, ...]) -> bool:
        mine, others = (*self.reads, *self.writes), (*reads, *writes)
        return any(a.meets(b) for a in self.writes for b in others) or any(a.meets(b) for a in mine for b in writes)


class RecordingMachine(RuleBasedStateMachine):
    """Buffers 0..2 are named directly; what stands in slots 0 and 1 is buffers 3 and 4 in the model."""

    uri = "shuffled?workers=2"

    @initialize(contents=st.binary(min_size=1, max_size=16), groups=st.booleans())
    def begin(self, contents: bytes, groups: bool) -> None:
        self.device = tg.open_device(self.uri)
        self.queues = (self.device.queue(), self.device.queue("transfer"))
        first = np.resize(np.frombuffer(contents, np.uint8), (BUFFERS + SLOTS, SIZE)).copy()
        self.model = [first[number].copy() for number in range(BUFFERS)]
        self.slots = first[BUFFERS:].copy()
        self.buffers = [self.device.upload(array) for array in self.model]
        self.function = self.device.load(KERNEL)["add_one"]
        self.commands = self.device.record(label="random")
        self.recorded: list[Recorded] = []
        self.since_barrier = 0
        self.groups = 0
        self.ended = False

    def bound(self, place: Place) -> Any:
        """What stands in a recording for a place, and the offset in it."""
        return self.buffers[place.buffer] if place.buffer < BUFFERS else tg.slot(place.buffer - BUFFERS)

    def place(self, pick: int, begin: int, length: int) -> Place:
        start = part_of(SIZE, begin)
        return Place(pick % (BUFFERS + SLOTS), start, start + part_of(SIZE - start, length))

    def add(self, record: Any, reads: tuple[Place, ...], writes: tuple[Place, ...], effect: Any) -> None:
        earlier = [each for each in self.recorded[self.since_barrier :] if each.conflicts(reads, writes)]
        node = record(after=[each.node for each in earlier])
        self.recorded.append(Recorded(node, reads, writes, effect))

    @rule(pick=PICK, begin=SHARE, length=SHARE, pattern=st.integers(0, 255))
    def fill(self, pick: int, begin: int, length: int, pattern: int) -> None:
        if self.ended:
            return
        place = self.place(pick, begin, length)

        def effect(model: list[Any]) -> None:
            model[place.buffer][place.begin : place.end] = pattern

        self.add(
            lambda after: self.commands.fill(
                self.bound(place), pattern, offset=place.begin, length=place.end - place.begin, after=after
            ),
            (), (place,), effect,
        )  # fmt: skip

    @rule(pick=PICK, begin=SHARE, content=st.binary(max_size=24))
    def update(self, pick: int, begin: int, content: bytes) -> None:
        if self.ended:
            return
        start = part_of(SIZE - len(content), begin)
        place = Place(pick % (BUFFERS + SLOTS), start, start + len(content))

        def effect(model: list[Any]) -> None:
            model[place.buffer][place.begin : place.end] = np.frombuffer(content, np.uint8)

        self.add(
            lambda after: self.commands.update(self.bound(place), content, offset=place.begin, after=after),
            (), (place,), effect,
        )  # fmt: skip

    @rule(picks=st.tuples(PICK, PICK), ranges=st.tuples(SHARE, SHARE, SHARE))
    def copy(self, picks: tuple[int, int], ranges: tuple[int, int, int]) -> None:
        if self.ended:
            return
        source = self.place(picks[0], ranges[0], ranges[1])
        length = source.end - source.begin
        start = part_of(SIZE - length, ranges[2])
        target = Place(picks[1] % (BUFFERS + SLOTS), start, start + length)
        if source.meets(target):
            return

        def effect(model: list[Any]) -> None:
            model[target.buffer][target.begin : target.end] = model[source.buffer][source.begin : source.end]

        self.add(
            lambda after: self.commands.copy(
                self.bound(source),
                self.bound(target),
                source_offset=source.begin,
                target_offset=target.begin,
                length=length,
                after=after,
            ),
            (source,), (target,), effect,
        )  # fmt: skip

    @rule(picks=st.tuples(PICK, PICK), constant=st.integers(0, 5), indirect=st.booleans())
    def dispatch(self, picks: tuple[int, int], constant: int, indirect: bool) -> None:
        """Over whole buffers, or whatever stands in the slots."""
        if self.ended:
            return
        first, second = (Place(pick % (BUFFERS + SLOTS), 0, SIZE) for pick in picks)
        if first == second:
            return

        def effect(model: list[Any]) -> None:
            model[first.buffer] += np.uint8(1 + constant)
            model[second.buffer] ^= model[first.buffer]

        options = {"bindings": [self.bound(first), self.bound(second)], "constants": [constant]}
        if indirect:
            counts = self.device.upload(np.array([1, 1, 1], np.uint32))
            call = lambda after: self.commands.dispatch_indirect(self.function, counts=counts, **options, after=after)  # noqa: E731
        else:
            call = lambda after: self.commands.dispatch(self.function, (1, 1, 1), **options, after=after)  # noqa: E731
        self.add(call, (), (first, second), effect)

    @rule()
    def barrier(self) -> None:
        if not self.ended:
            self.commands.barrier()
            self.since_barrier = len(self.recorded)

    @rule(opens=st.booleans())
    def group(self, opens: bool) -> None:
        if self.ended:
            return
        if opens:
            self.commands.begin_group("group")
            self.groups += 1
        elif self.groups:
            self.commands.end_group()
            self.groups -= 1

    @rule()
    def refuse(self) -> None:
        """A refused command leaves the recording as it was."""
        wrong = self.buffers[0].subspan(0, 8)
        for call in (
            lambda: self.commands.fill(wrong, b"abc"),
            lambda: self.commands.fill(wrong, 1, offset=9),
            lambda: self.commands.copy(wrong, wrong),
            lambda: self.commands.dispatch(self.function, 1, bindings=[wrong]),
            lambda: self.commands.fill(wrong, 1, after=["not a node"]),
        ):
            try:
                call()
            except (tg.TidegateError, TypeError):
                continue
            raise AssertionError("a wrong command was taken")

    @rule(pick=PICK, again=st.integers(1, 3))
    def execute(self, pick: int, again: int) -> None:
        if not self.ended:
            while self.groups:
                self.commands.end_group()
                self.groups -= 1
            self.commands.end()
            self.ended = True
        for _ in range(again):
            self.execute_once(choose(self.queues, pick))
            pick += 1

    def execute_once(self, queue: tg.Queue) -> None:
        table = [self.device.upload(content) for content in self.slots]
        model = [*self.model, *(content.copy() for content in self.slots)]
        queue.execute(self.commands, bindings=table).wait(LIMIT)
        for each in self.recorded:
            each.effect(model)
        for number, buffer in enumerate((*self.buffers, *table)):
            assert np.array_equal(buffer.to_numpy(timeout=LIMIT), model[number]), f"buffer {number}"
        self.model = model[:BUFFERS]

    def teardown(self) -> None:
        if hasattr(self, "device"):
            self.device.close(LIMIT)


class StreamsRecordingMachine(RecordingMachine):
    uri = "streams"


def _register() -> None:
    from tidegate.lowlevel import register_driver
    from tidegate.testing import register_streams

    register_driver("shuffled", f"{__name__}:shuffled")
    register_streams()


_register()

TestRecordingMachine = pytest.mark.slow(RecordingMachine.TestCase)
TestStreamsRecordingMachine = pytest.mark.slow(StreamsRecordingMachine.TestCase)
