"""Which stream takes what: priorities, streams of others, streams that are lent; and what is left for the rest."""

from __future__ import annotations

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate.drivers.cuda import indirect

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until

GATE = tg.Kernel(
    "gate",
    cuda="""
extern "C" __global__ void gate(volatile unsigned *word) {
    long long begin = clock64();
    while (word[0] == 0 && clock64() - begin < 60000000000) __nanosleep(1000);
}""",
    bindings=1,
)


def _counts(found: SimulatedBench) -> tg.Buffer:
    counts = found.shared(12)
    with counts.map("rw") as data:
        data.view(np.uint32)[:] = 1
    return counts


def test_every_timeline_has_a_word_of_its_own() -> None:
    with bench(connections=8) as found, found.foreign_stream() as first, found.foreign_stream() as second:
        latches = [found.latch()[0] for _ in range(found.driver.most_streams)]
        target = found.shared()
        urgent = [found.device.queue("compute", priority) for priority in range(1, 6)]
        work = [queue.fill(target, 1) for queue in urgent]
        lanes = [found.device.lane(stream=stream) for stream in (first, second)]
        work += [lane.fill(target, 2) for lane in lanes]
        streams = found.driver.all_streams()
        assert len({stream.state.word_address for stream in streams}) == len(streams) == found.driver.most_streams + 7
        tg.wait_all(work, LIMIT)
        assert all(not latch._opened.is_set() for latch in latches)


def test_all_foreign_streams_beside_all_priorities_have_words() -> None:
    with bench() as found:
        driver = found.driver
        block = driver._words_block
        with driver.entered(), driver.lock:
            for priority in (0,) * 24 + tuple(
                range(-5, 0)
            ):  # all of our own, and the only one of each further priority
                driver.make_stream(priority)
            streams = [driver.foreign_stream(0x10000 + number) for number in range(40)]
        assert all(0 <= stream.state.word_address - block.address < block.nbytes for stream in streams)


def test_work_of_one_priority_does_not_go_behind_work_of_another() -> None:
    with bench() as found:
        latch, blocked = found.latch()
        target = found.shared()
        queue = found.device.queue("compute", 3)
        behind = queue.fill(target, 1, wait=blocked)
        independent = queue.fill(target, 2)
        independent.wait(LIMIT)
        assert behind.timeline is None or behind.timeline.priority == queue._port.priority
        assert independent.timeline.priority == queue._port.priority
        latch.open()
        behind.wait(LIMIT)


def test_what_follows_a_lane_on_a_foreign_stream_does_not_go_there() -> None:
    with bench() as found, found.foreign_stream() as stream, found.parked(stream):
        target = found.shared()
        lane = found.device.lane(stream=stream)
        on_theirs = lane.fill(target, 1)
        followers = [found.queue.fill(target, 2, wait=on_theirs) for _ in range(4)]
        independent = found.queue.fill(target, 3)
        independent.wait(LIMIT)
        theirs = found.driver.foreign_stream(stream)
        assert theirs.issued == 1
        assert not any(work.timeline is theirs for work in (*followers, independent))


class Gate:
    """Command buffers that come to a gate, and dispatch indirectly behind it."""

    def __init__(self, found: SimulatedBench) -> None:
        self.word = found.shared()
        self.target = found.shared()
        self.counts = _counts(found)
        self._found = found
        self._gate = found.device.load(GATE)["gate"]
        self._touch = found.device.load(TOUCH)["touch"]

    def record(self, dispatches: int) -> tg.CommandBuffer:
        with self._found.device.record() as commands:
            commands.dispatch(self._gate, (1, 1, 1), bindings=[self.word])
            commands.barrier()
            for _ in range(dispatches):
                commands.dispatch_indirect(self._touch, counts=self.counts, bindings=[self.target])
        return commands

    def open(self) -> None:
        with self.word.map("rw", wait=()) as data:
            data[:] = 1


def test_half_of_the_streams_are_left_beside_those_that_are_lent_and_those_that_wait() -> None:
    with bench() as found:
        gate, target = Gate(found), found.shared()
        half = found.driver.most_streams // 2
        _, blocked = found.latch()
        _, other = found.latch()
        work = [found.queue.fill(target, 1, wait=[blocked, other]) for _ in range(half)]
        work += [found.queue.execute(commands) for commands in [gate.record(1) for _ in range(half)]]
        with found.foreign_stream() as stream, found.parked(stream):
            work += [lowlevel.from_cuda_stream(found.device, stream) for _ in range(half)]
            with found.driver.lock:
                taken = sum(each.state.lent or each.state.parked for each in found.driver.all_streams())
            assert 0 < taken <= half
            found.queue.fill(found.shared(), 7).wait(LIMIT)
        gate.open()
        for latch in found._latches:
            latch.open()
        tg.wait_all(work, LIMIT)


def test_an_interrupted_loan_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as found:
        touch, target, counts = found.device.load(TOUCH)["touch"], found.shared(), _counts(found)
        with found.device.record() as commands:
            commands.dispatch_indirect(touch, counts=counts, bindings=[target])

        def interrupted(self: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(indirect.Run, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                found.queue.execute(commands)
        until(lambda: not any(stream.state.lent for stream in found.driver.all_streams()))
        found.queue.execute(commands).wait(LIMIT)


def test_more_indirect_dispatches_than_a_stream_has_places_leave_room_on_it() -> None:
    with bench() as found:
        gate = Gate(found)
        work = found.queue.execute(gate.record(1100))
        found.queue.fill(found.shared(), 1).wait(LIMIT)
        assert not work.done
        gate.open()
        work.wait(LIMIT)
        assert found.native.violations == []
        with gate.target.map() as data:
            assert data.view(np.uint32)[0] == 1100


def test_what_finds_no_stream_to_borrow_does_not_hold_up_what_needs_none() -> None:
    with bench() as found:
        gate, target = Gate(found), found.shared()
        lent = [found.queue.execute(commands) for commands in [gate.record(1) for _ in range(20)]]
        until(lambda: len(found.device._backlog) == 20 - found.driver.most_streams // 2)
        with found.device.record() as plain:
            plain.fill(target, 3)
        keeper = object()
        found.driver.quiet.add(keeper)
        ready = [found.queue.fill(target, 1), found.queue.execute(plain)]
        assert not any(work.taken for work in ready)
        found.driver.quiet.discard(keeper)
        found.driver.sink.room()
        tg.wait_all(ready, LIMIT)
        assert not any(work.done for work in lent)
        gate.open()
        tg.wait_all(lent, LIMIT)


def test_two_devices_on_one_card_leave_hardware_queues_for_what_is_ready() -> None:
    with bench() as found, found.foreign_stream() as stream:
        devices = [found.device, found.open()]
        assert [device._driver.peers for device in devices] == [2, 2]
        blocked = [[found.latch(device.queue())[1] for _ in range(2)] for device in devices]
        with found.parked(stream):
            work = []
            for device, both in zip(devices, blocked, strict=True):
                target = device.allocate(64)
                work += [device.queue().fill(target, 1, wait=both) for _ in range(30)]
                for _ in range(30):
                    lowlevel.from_cuda_stream(device, stream)
            for device in devices:
                device.queue().fill(device.allocate(64), 1).wait(LIMIT)
            assert not found.native.machine.cards[0].stalling
            assert len(found.native.machine.cards[0].held) < 32
            assert not any(each.done for each in work)
