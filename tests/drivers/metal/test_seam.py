"""The driver as the core sees it: what it reports, when, and that it is never under a lock of its own."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate._core.compiled import Memory
from tidegate.driver import Allocate, Barrier, DeviceRequest, EpochTimeline, Ticket, Update
from tidegate.drivers.metal import MetalDriver
from tidegate.drivers.metal.device import MetalDevice
from tidegate.drivers.metal.memory import MetalStorage
from tidegate.drivers.metal.queue import BUDGET, MetalTimeline
from tidegate.drivers.metal.shared_event import EventBarrier
from tidegate.testing import metal_simulated
from tidegate.testing.metal_device import register_fill_kernels

LIMIT = 30.0


class Recorder:
    """A sink that notes what it is told, and whether the driver held a lock meanwhile."""

    def __init__(self) -> None:
        self.finished_tickets: list[object] = []
        self.woken: list[EpochTimeline] = []
        self.lost_with: list[BaseException] = []
        self.wakes, self.rooms = threading.Semaphore(0), threading.Semaphore(0)
        self.locks: list[Any] = []
        self.under_a_lock = False

    def _look(self) -> None:
        self.under_a_lock = self.under_a_lock or any(lock._is_owned() for lock in self.locks)

    def finished(self, ticket: Ticket, error: BaseException | None = None) -> None:
        self._look()
        self.finished_tickets.append(ticket)

    def wake(self, timeline: EpochTimeline) -> None:
        self._look()
        self.woken.append(timeline)
        self.wakes.release()

    def advance(self, timeline: EpochTimeline) -> None:
        self._look()

    def room(self) -> None:
        self.rooms.release()

    def lost(self, error: BaseException) -> None:
        self._look()
        self.lost_with.append(error)


class Seam:
    """An open device without a core above it. Its tickets are held submissions of another device."""

    def __init__(self) -> None:
        self.elsewhere = tg.open_device("null")
        self.never = tg.Semaphore()
        self.native = metal_simulated.native(seed=5)
        register_fill_kernels(self.native)
        self.device: MetalDevice = MetalDriver(self.native).open(DeviceRequest("metal", "metal"))
        self.sink = Recorder()
        self.device.connect(self.sink)
        self.queue = self.device.queue("compute", 0)
        self.timelines = self.device.timelines["compute"]
        # Locks that know their owner.
        self.device.lock = threading.RLock()
        for timeline in self.timelines:
            timeline._lock = threading.RLock()
        self.sink.locks = [self.device.lock, *(timeline._lock for timeline in self.timelines)]
        self.event = self.device.events.new_event()

    def ticket(self) -> tg.Submission:
        return self.elsewhere.queue().barrier(wait=self.never.at(1))

    def block(self, waits: Any = ()) -> tg.Submission | None:
        """Issue work that waits for the event; None if it was refused."""
        ticket = self.ticket()
        taken = self.queue.issue(ticket, EventBarrier((), [(self.event, 1)]), waits)
        return ticket if taken else None

    def barrier(self, waits: Any) -> tg.Submission | None:
        ticket = self.ticket()
        return ticket if self.queue.issue(ticket, Barrier(), waits) else None

    def wait_for_an_end(self) -> tuple[MetalTimeline, int]:
        """Issue work without commands, wait until its end is reported, and return its epoch."""
        ticket = self.ticket()
        assert self.queue.issue(ticket, EventBarrier((), ()), ())
        timeline, epoch = epoch_of(ticket)
        timeline.arm(epoch)
        assert self.sink.wakes.acquire(timeout=LIMIT)
        return timeline, epoch

    def close(self) -> None:
        if self.event.signaledValue() == 0:
            self.event.setSignaledValue_(1)
        self.device.close()
        self.elsewhere.close(LIMIT)
        for timeline in self.timelines:
            if timeline.retirement._thread is not None:
                timeline.retirement._thread.join(LIMIT)
        self.native.check()
        assert not self.sink.under_a_lock
        assert self.native.close()


@pytest.fixture
def seam() -> Iterator[Seam]:
    made = Seam()
    yield made
    made.close()


def epoch_of(ticket: tg.Submission | None) -> tuple[MetalTimeline, int]:
    assert ticket is not None
    assert isinstance(ticket.timeline, MetalTimeline)
    return ticket.timeline, ticket.epoch


def test_what_was_refused_for_want_of_room_is_told_when_there_is_some(seam: Seam) -> None:
    """Nothing is armed here: the driver has promised to come back, and does."""
    blocked = [seam.block() for _ in seam.timelines]
    assert all(blocked)
    assert seam.block() is None
    seam.event.setSignaledValue_(1)
    assert seam.sink.rooms.acquire(timeout=LIMIT)
    assert not seam.sink.woken
    assert seam.block() is not None


def test_a_refused_follower_asks_for_no_room_since_the_core_holds_it(seam: Seam) -> None:
    waits = [epoch_of(seam.block()) for _ in seam.timelines]
    assert seam.barrier(waits) is None
    seam.event.setSignaledValue_(1)
    for timeline, epoch in waits:
        timeline.arm(epoch)
        assert seam.sink.wakes.acquire(timeout=LIMIT)
    assert not seam.sink.rooms.acquire(blocking=False)


def test_a_queue_takes_its_budget_and_not_one_more(seam: Seam) -> None:
    point = epoch_of(seam.block())
    timeline = point[0]
    for _ in range(BUDGET - 1):
        point = epoch_of(seam.block([point]))
        assert point[0] is timeline
    assert len(timeline.flights) == BUDGET
    assert not timeline.has_room
    other = seam.block([point])
    assert other is None or other.timeline is not timeline


def test_waits_go_into_idle_queues_only_and_never_into_more_than_half(seam: Seam) -> None:
    first, second = epoch_of(seam.block()), epoch_of(seam.block())
    followers = []
    while True:
        follower = seam.block([first, second])
        if follower is None:
            break
        followers.append(follower)
    parked = {id(follower.timeline) for follower in followers}
    assert len(parked) == len(followers) == len(seam.timelines) // 2 - 2
    assert id(first[0]) not in parked
    assert sum(timeline.idle for timeline in seam.timelines) >= len(seam.timelines) // 2


def test_waits_that_are_over_are_counted_all_the_same_for_they_may_have_failed(seam: Seam) -> None:
    points = [epoch_of(seam.block()) for _ in range(3)]
    seam.event.setSignaledValue_(1)
    for timeline, epoch in points:
        timeline.arm(epoch)
        assert seam.sink.wakes.acquire(timeout=LIMIT)
    ticket = seam.barrier(points)
    assert ticket is not None
    assert not seam.sink.finished_tickets
    assert ticket.timeline is not None


def test_a_barrier_behind_unfinished_work_is_counted_behind_it(seam: Seam) -> None:
    point = epoch_of(seam.block())
    ticket = seam.barrier([point])
    assert epoch_of(ticket) == (point[0], 2)
    assert not seam.sink.finished_tickets


def test_epochs_are_told_in_order_and_each_armed_one_once(seam: Seam) -> None:
    point = epoch_of(seam.block())
    points = [point, *(epoch_of(seam.barrier([(point[0], number)])) for number in range(1, 5))]
    assert [epoch for _, epoch in points] == [1, 2, 3, 4, 5]
    timeline = point[0]
    for epoch in (5, 2, 2, 1):
        timeline.arm(epoch)
    seam.event.setSignaledValue_(1)
    while timeline.reached < 5:
        assert seam.sink.wakes.acquire(timeout=LIMIT)
    assert timeline.outcome(5) is None
    assert set(map(id, seam.sink.woken)) == {id(timeline)}


def test_a_removed_device_is_reported_once_by_whoever_finds_out(seam: Seam) -> None:
    seam.native.lose(text="unplugged")
    timeline, epoch = seam.wait_for_an_end()
    assert len(seam.sink.lost_with) == 1
    timeline.advance()
    (error,) = seam.sink.lost_with
    assert isinstance(error, tg.DeviceLostError)
    assert "unplugged" in str(error)
    assert timeline.outcome(epoch) is error
    assert timeline.outcome(epoch) is error, "two threads may ask"


def test_looking_reports_a_removed_device_too(seam: Seam) -> None:
    seam.native.lose()
    ticket = seam.ticket()
    assert seam.queue.issue(ticket, EventBarrier((), ()), ())
    timeline, _ = epoch_of(ticket)
    while not seam.sink.lost_with:
        timeline.advance()
    assert len(seam.sink.lost_with) == 1


def test_a_failed_command_buffer_that_never_signalled_frees_those_who_wait_for_it(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should Metal not signal for failed work, the host does, if nothing stands behind it."""
    from tidegate.drivers.metal import _native

    monkeypatch.setattr(_native, "encode_signal", lambda *_: None)
    seam.native.fault("command_buffer")
    timeline, epoch = seam.wait_for_an_end()
    assert timeline.event.signaledValue() == epoch
    assert timeline.outcome(epoch) is not None


def test_an_error_without_an_nserror_still_fails_the_work(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.drivers.metal import _native

    monkeypatch.setattr(_native, "error_of", lambda _commands: None)
    seam.native.fault("command_buffer")
    timeline, epoch = seam.wait_for_an_end()
    assert isinstance(timeline.outcome(epoch), tg.InternalError)


def test_allocation_that_finds_no_memory_behind_unfinished_work_stays_on_the_host(seam: Seam) -> None:
    """The core waits for what it waits for, and only then asks whether memory can come back."""
    pool = seam.device.create_pool(256)
    held = pool.allocate(256, "device")
    point = epoch_of(seam.block())
    ticket = seam.ticket()
    memory = Memory(None, 256, "device", "")
    assert not seam.queue.issue(ticket, Allocate(memory, pool), [point])
    assert not ticket.taken
    assert memory.is_pending
    del held
    assert seam.queue.issue(ticket, Allocate(memory, pool), [point])
    assert memory.is_live
    assert epoch_of(ticket) == (point[0], 2)


def test_the_idle_queue_is_found_although_nobody_has_looked_at_it(seam: Seam) -> None:
    """All queues were busy when last seen; issuing looks again before it refuses."""
    blocked = [epoch_of(seam.block()) for _ in seam.timelines]
    seam.event.setSignaledValue_(1)
    for timeline, _ in blocked:
        for flight in timeline.flights:
            with seam.native.autorelease_pool():
                flight.commands.waitUntilCompleted()
    assert all(not timeline.idle for timeline, _ in blocked)
    assert seam.block() is not None
    assert not seam.sink.rooms.acquire(blocking=False)


def test_an_armed_epoch_that_is_over_wakes_although_more_is_in_flight(seam: Seam) -> None:
    """Its thread must not go to sleep for what comes next before it has told of what is over."""
    ticket = seam.ticket()
    assert seam.queue.issue(ticket, EventBarrier((), ()), ())
    timeline, epoch = epoch_of(ticket)
    behind = epoch_of(seam.block([(timeline, epoch)])) if timeline.reached < epoch else None
    while timeline.reached < epoch:
        timeline.settle()
    if behind is None:  # it was over so soon that the next did not have to follow it
        behind = epoch_of(seam.block())
    timeline.arm(epoch)
    assert seam.sink.wakes.acquire(timeout=LIMIT)
    assert behind[0].reached < behind[1]


def test_wanting_room_where_nothing_is_in_flight_is_answered_at_once(seam: Seam) -> None:
    seam.timelines[0].retirement.want_room()
    assert seam.sink.rooms.acquire(timeout=LIMIT)


def test_the_retirement_thread_commits_what_an_interrupt_left(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.drivers.metal import _native

    real = _native.commit
    monkeypatch.setattr(_native, "commit", lambda _commands: (_ for _ in ()).throw(KeyboardInterrupt))
    ticket = seam.ticket()
    with pytest.raises(KeyboardInterrupt):
        seam.queue.issue(ticket, EventBarrier((), ()), ())
    assert ticket.taken
    monkeypatch.setattr(_native, "commit", real)
    timeline, epoch = epoch_of(ticket)
    timeline.arm(epoch)
    assert seam.sink.wakes.acquire(timeout=LIMIT)


def test_an_interrupt_before_the_epoch_is_taken_leaves_nothing_in_flight(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = epoch_of(seam.block())
    timeline = point[0]
    (first,) = timeline.flights

    def interrupted(_ticket: Ticket) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(timeline, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        seam.block([point])
    assert list(timeline.flights) == [first]
    monkeypatch.undo()
    assert epoch_of(seam.block([point])) == (timeline, 2)


def test_an_error_that_is_kept_keeps_neither_a_place_in_the_queue_nor_what_was_staged(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.drivers.metal import _native

    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_native, "copy", interrupted)
    storage = seam.device.allocate(4096, "device")

    class Range:
        nbytes = 4096

        def locate(self) -> Any:
            return storage, 0

        def bind(self, _table: Any) -> Any:
            return self

    kept = []
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt) as caught:
            seam.queue.issue(seam.ticket(), Update(Range(), bytes(4096)), ())
        kept.append(caught)
    assert sum(line.uncompleted for line in seam.native.simulation.lines) == 0
    assert seam.device.staging.ranges.free_bytes == seam.device.staging.ranges.capacity
    assert len(kept) == 3


def test_failed_work_that_signalled_is_not_signalled_again(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.drivers.metal import _native

    seam.native.fault("command_buffer")
    told: list[int] = []
    monkeypatch.setattr(_native, "set_event_value", lambda _event, value: told.append(value))
    timeline, epoch = seam.wait_for_an_end()
    assert timeline.outcome(epoch) is not None
    assert not told


def test_failed_work_with_more_behind_it_is_not_signalled_by_the_host(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal of what is behind it would be overtaken."""
    from tidegate.drivers.metal import _native

    real, told = _native.encode_signal, []
    point = epoch_of(seam.block())
    seam.native.fault("command_buffer")
    monkeypatch.setattr(_native, "encode_signal", lambda *_: None)
    timeline = point[0]
    second = epoch_of(seam.barrier([point]))
    third = epoch_of(seam.barrier([second]))
    monkeypatch.setattr(_native, "encode_signal", real)
    monkeypatch.setattr(_native, "set_event_value", lambda _event, value: told.append(value))
    seam.event.setSignaledValue_(1)
    timeline.arm(third[1])
    while timeline.reached < third[1]:
        assert seam.sink.wakes.acquire(timeout=LIMIT)
    assert any(timeline.outcome(epoch) is not None for epoch in (1, 2))
    assert not told


def test_trouble_in_the_core_does_not_end_the_retirement_thread(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    point = epoch_of(seam.block())
    second = epoch_of(seam.barrier([point]))
    real, calls = seam.sink.wake, []

    def wake(timeline: EpochTimeline) -> None:
        calls.append(timeline)
        if len(calls) == 1:
            raise RuntimeError("in the core")
        real(timeline)

    monkeypatch.setattr(seam.sink, "wake", wake)
    for timeline, epoch in (point, second):
        timeline.arm(epoch)
    seam.event.setSignaledValue_(1)
    while len(calls) < 2:
        second[0].arm(second[1])
        seam.sink.wakes.acquire(timeout=0.05)
    assert [type(each.exc_value) for each in reported] == [RuntimeError]
    thread = second[0].retirement._thread
    assert thread is not None
    assert thread.daemon


def test_the_retirement_thread_sleeps_when_nothing_is_armed(seam: Seam) -> None:
    timeline, _ = seam.wait_for_an_end()
    limit = time.monotonic() + LIMIT
    while not timeline.retirement._changed._waiters:  # type: ignore[attr-defined]
        assert time.monotonic() < limit, "it goes round and round"


def test_an_interrupt_before_the_flight_is_noted_takes_no_other_one_away(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = epoch_of(seam.block())
    timeline = point[0]

    class Interrupted(deque[Any]):
        def append(self, _flight: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(timeline, "flights", Interrupted(timeline.flights))
    before = list(timeline.flights)
    with pytest.raises(KeyboardInterrupt):
        seam.block([point])
    assert list(timeline.flights) == before
    monkeypatch.undo()


def test_a_commit_that_an_interrupt_prevented_comes_before_the_next_one(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue runs its command buffers in the order of their commits, and so do the values of its event rise."""
    from tidegate.drivers.metal import _native

    real = _native.commit
    committed: list[str] = []
    monkeypatch.setattr(_native, "commit", lambda _commands: (_ for _ in ()).throw(KeyboardInterrupt))
    first = seam.ticket()
    with pytest.raises(KeyboardInterrupt):
        seam.queue.issue(first, EventBarrier((), [(seam.event, 1)]), ())
    point = epoch_of(first)
    (flight,) = point[0].flights
    assert not flight.committed
    monkeypatch.setattr(_native, "commit", lambda commands: (committed.append(commands), real(commands)))
    second = seam.block([point])
    assert epoch_of(second) == (point[0], 2)
    assert committed == [each.commands for each in point[0].flights]
    assert all(each.committed for each in point[0].flights)


def test_what_is_committed_is_not_asked_for_it_again(seam: Seam, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.drivers.metal import _native

    point = epoch_of(seam.block())
    asked: list[Any] = []
    monkeypatch.setattr(_native, "status", asked.append)
    assert seam.block([point]) is not None
    assert not asked
    monkeypatch.undo()


def test_allocation_that_waits_for_two_queues_commits_its_memory_and_keeps_their_events(seam: Seam) -> None:
    points = [epoch_of(seam.block()), epoch_of(seam.block())]
    ticket = seam.ticket()
    memory = Memory(None, 64, "device", "")
    assert seam.queue.issue(ticket, Allocate(memory, None), points)
    assert isinstance(memory.storage, MetalStorage)
    timeline, _ = epoch_of(ticket)
    (flight,) = timeline.flights
    assert flight.kept == [point[0].event for point in points]
