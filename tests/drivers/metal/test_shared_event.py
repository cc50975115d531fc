"""Shared events as semaphores to the outside: exported, imported, and waited for on the GPU."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate.types import MAX_VALUE

from .driver_bench import LIMIT, DriverBench


class Foreign:
    """Another framework in the process: its own queue on the same device, which knows nothing of Tidegate."""

    def __init__(self, metal: DriverBench) -> None:
        self._native = metal.native
        self._device = metal.inner.handle
        self._queue = self._device.newCommandQueue()

    def run(self, *, waits: Any = (), signals: Any = ()) -> Any:
        """Commit a command buffer that waits for events and then signals others."""
        with self._native.autorelease_pool():
            commands = self._queue.commandBuffer()
            for event, value in waits:
                commands.encodeWaitForEvent_value_(event, value)
            for event, value in signals:
                commands.encodeSignalEvent_value_(event, value)
            commands.commit()
        return commands

    def event(self) -> Any:
        return self._device.newSharedEvent()


def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    limit = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < limit


@pytest.fixture
def foreign(metal: DriverBench) -> Foreign:
    return Foreign(metal)


# Export -------------------------------------------------------------------------------------------------------------


def test_an_exported_event_gets_the_value_when_the_timepoint_is_reached(metal: DriverBench) -> None:
    sem = tg.Semaphore(2)
    event = lowlevel.export_event(sem.at(5), metal.device)
    assert event.signaledValue() == 2
    sem.signal(4)
    assert event.signaledValue() == 2
    sem.signal(9)
    assert event.signaledValue() == 5


def test_exporting_what_is_reached_gives_an_event_that_has_the_value(metal: DriverBench) -> None:
    sem = tg.Semaphore(7)
    assert lowlevel.export_event(sem.at(7), metal.device).signaledValue() == 7
    assert lowlevel.export_event(sem.at(3), metal.device).signaledValue() == 3


def test_foreign_gpu_work_waits_for_ours(metal: DriverBench, foreign: Foreign) -> None:
    sem = tg.Semaphore()
    event = lowlevel.export_event(sem.at(1), metal.device)
    theirs = foreign.run(waits=[(event, 1)])
    latch = metal.latch()
    latch.block(metal.queue, signal=sem.at(1))
    assert theirs.status() < 4
    latch.open()
    with metal.native.autorelease_pool():
        theirs.waitUntilCompleted()
    assert theirs.status() == 4


def test_a_failure_leaves_the_exported_event_where_it_is(metal: DriverBench) -> None:
    sem = tg.Semaphore()
    event = lowlevel.export_event(sem.at(1), metal.device)
    sem.fail(RuntimeError("no"))
    assert event.signaledValue() == 0


def test_the_event_of_failed_work_is_not_signalled_to_the_outside(metal: DriverBench) -> None:
    """Metal signals a queue's own event although the work failed; the exported one follows the host."""
    metal.native.fault("command_buffer")
    sem = tg.Semaphore()
    event = lowlevel.export_event(sem.at(1), metal.device)
    failed = metal.queue.fill(metal.device.allocate(64), 1, signal=sem.at(1))
    with pytest.raises(tg.SemaphoreFailedError):
        failed.wait(LIMIT)
    assert event.signaledValue() == 0


# Import -------------------------------------------------------------------------------------------------------------


def test_an_imported_semaphore_begins_with_the_events_value(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    event.setSignaledValue_(41)
    sem = lowlevel.import_event(event, metal.device, label="theirs")
    assert sem.value == sem.query() == 41
    sem.wait(41, 0)
    assert "theirs" in repr(sem)


def test_an_imported_semaphore_follows_the_host_and_the_gpu(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    event.setSignaledValue_(2)
    sem.wait(2, LIMIT)
    foreign.run(signals=[(event, 40)])
    sem.wait(40, LIMIT)
    assert sem.value == 40


def test_every_value_is_heard_of_in_one_long_chain(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    for value in range(1, 200):
        event.setSignaledValue_(value)
        sem.wait(value, LIMIT)


def test_a_wait_for_an_imported_semaphore_times_out_and_can_be_repeated(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    for timeout in (0, 0.01):
        with pytest.raises(tg.DeadlineExceededError):
            sem.wait(1, timeout)
    event.setSignaledValue_(1)
    sem.wait(1, LIMIT)


def test_any_and_all_mix_imported_and_own_timepoints(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    sem, own = lowlevel.import_event(event, metal.device), tg.Semaphore()
    event.setSignaledValue_(1)
    assert tg.wait_any([own.at(1), sem.at(1)], LIMIT) == sem.at(1)
    own.signal(1)
    tg.wait_all([own.at(1), sem.at(1)], LIMIT)


def test_our_work_waits_for_theirs(metal: DriverBench, foreign: Foreign) -> None:
    event, gate = foreign.event(), foreign.event()
    foreign.run(waits=[(gate, 1)], signals=[(event, 1)])
    sem = lowlevel.import_event(event, metal.device)
    buffer = metal.device.allocate(64)
    filled = metal.queue.fill(buffer, 4, wait=sem.at(1))
    assert not filled.done
    gate.setSignaledValue_(1)
    filled.wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == bytes([4]) * 64


def test_signalling_an_imported_semaphore_raises_the_event(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    sem.signal(3)
    assert event.signaledValue() == 3
    metal.queue.fill(metal.device.allocate(64), 1, signal=sem.at(5)).wait(LIMIT)
    theirs = foreign.run(waits=[(event, 5)])
    with metal.native.autorelease_pool():
        theirs.waitUntilCompleted()
    assert event.signaledValue() == 5


def test_the_event_rising_on_its_own_does_not_come_back_at_it(metal: DriverBench, foreign: Foreign) -> None:
    """The simulation refuses a value that does not rise; both sides are raised in turn here, many times."""
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    for value in range(1, 100, 2):
        event.setSignaledValue_(value)
        sem.wait(value, LIMIT)
        sem.signal(value + 1)
        eventually(lambda value=value: event.signaledValue() == value + 1)


def test_an_imported_semaphore_is_followed_although_its_user_dropped_it(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    filled = metal.queue.fill(metal.device.allocate(64), 1, wait=lowlevel.import_event(event, metal.device).at(1))
    gc.collect()
    event.setSignaledValue_(1)
    filled.wait(LIMIT)


def test_closing_the_device_ends_what_it_followed(foreign: Foreign, metal: DriverBench) -> None:
    other = metal.open()
    event = foreign.event()
    point = lowlevel.import_event(event, other).at(1)
    told: list[BaseException | None] = []
    ended = threading.Event()
    point.add_callback(lambda _point, _outcome, error: (told.append(error), ended.set()))
    other.close(LIMIT)
    del point
    gc.collect()
    assert ended.wait(LIMIT)
    assert isinstance(told[0], tg.AbortedError)


def test_a_failed_semaphore_stops_following(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    sem.fail(RuntimeError("enough"))
    event.setSignaledValue_(1)
    with pytest.raises(tg.SemaphoreFailedError):
        sem.wait(1, LIMIT)
    assert event.signaledValue() == 1


def test_values_beyond_the_largest_payload_are_taken_for_it(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    event.setSignaledValue_(2**64 - 1)
    sem.wait(MAX_VALUE, LIMIT)
    assert sem.value == MAX_VALUE
    assert lowlevel.import_event(event, metal.device).value == MAX_VALUE  # nothing is left to follow


def test_one_listener_and_one_thread_serve_all_imported_events(metal: DriverBench, foreign: Foreign) -> None:
    events = [foreign.event() for _ in range(20)]
    before = sum(thread.name == "tidegate-metal-events" for thread in threading.enumerate())
    sems = [lowlevel.import_event(event, metal.device) for event in events]
    for event in events:
        event.setSignaledValue_(1)
    tg.wait_all([sem.at(1) for sem in sems], LIMIT)
    assert sum(thread.name == "tidegate-metal-events" for thread in threading.enumerate()) <= max(before, 1) + 1


def test_no_python_of_ours_but_a_note_runs_on_the_listeners_queue(metal: DriverBench, foreign: Foreign) -> None:
    """Callbacks of an imported semaphore run on a thread of ours."""
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    threads: list[str] = []
    told = threading.Event()
    sem.at(1).add_callback(lambda *_: (threads.append(threading.current_thread().name), told.set()))
    foreign.run(signals=[(event, 1)])
    assert told.wait(LIMIT)
    assert threads == ["tidegate-metal-events"]


def test_an_export_of_an_import_rises_with_its_event(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    exported = lowlevel.export_event(lowlevel.import_event(event, metal.device).at(3), metal.device)
    theirs = foreign.run(waits=[(exported, 3)])
    event.setSignaledValue_(3)
    with metal.native.autorelease_pool():
        theirs.waitUntilCompleted()


# On the GPU, and which device ---------------------------------------------------------------------------------------


def test_an_event_barrier_signals_before_it_waits_and_is_over_after_it(metal: DriverBench, foreign: Foreign) -> None:
    inside, opened = foreign.event(), foreign.event()
    done = tg.Semaphore()
    barrier = lowlevel.event_barrier(
        metal.queue, signals=[(inside, 3)], waits=[(opened, 2)], wait=None, signal=done.at(1)
    )
    theirs = foreign.run(waits=[(inside, 3)], signals=[(opened, 2)])
    barrier.wait(LIMIT)
    assert done.at(1).reached
    with metal.native.autorelease_pool():
        theirs.waitUntilCompleted()


def test_without_a_device_the_only_one_with_events_serves(metal: DriverBench) -> None:
    sem = tg.Semaphore(1)
    with tg.open_device("cpu"):
        assert lowlevel.export_event(sem.at(1)).signaledValue() == 1
    metal.open()
    with pytest.raises(tg.InvalidArgumentError, match="several"):
        lowlevel.export_event(sem.at(1))


def test_devices_without_events_say_so(metal: DriverBench) -> None:
    sem = tg.Semaphore()
    with tg.open_device("cpu") as cpu:
        with pytest.raises(tg.UnsupportedError, match="no events"):
            lowlevel.export_event(sem.at(1), cpu)
        with pytest.raises(tg.UnsupportedError):
            lowlevel.import_event(object(), cpu)
        with pytest.raises(tg.UnsupportedError):
            lowlevel.event_barrier(cpu.queue())
    metal.device.close(LIMIT)
    with pytest.raises(tg.FailedPreconditionError, match="open"):
        lowlevel.export_event(sem.at(1))
    with pytest.raises(tg.ClosedError):
        lowlevel.export_event(sem.at(1), metal.device)


def test_what_is_no_timepoint_cannot_be_exported(metal: DriverBench) -> None:
    with pytest.raises(TypeError, match="timepoint"):
        lowlevel.export_event(tg.Semaphore(), metal.device)  # type: ignore[arg-type]


def test_every_step_of_one_is_followed_both_ways(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    sem = lowlevel.import_event(event, metal.device)
    for value in (1, 2, 3):
        sem.signal(value)
        assert event.signaledValue() == value


def test_the_last_values_of_all_are_followed_and_then_nothing_more(metal: DriverBench, foreign: Foreign) -> None:
    one, other = foreign.event(), foreign.event()
    for event in (one, other):
        event.setSignaledValue_(MAX_VALUE - 1)
    followed, signalled = lowlevel.import_event(one, metal.device), lowlevel.import_event(other, metal.device)
    one.setSignaledValue_(MAX_VALUE)
    followed.wait(MAX_VALUE, LIMIT)
    signalled.signal(MAX_VALUE)
    assert other.signaledValue() == MAX_VALUE
    eventually(lambda: not metal.inner.events._followers)


def test_a_failed_semaphore_is_forgotten_when_its_event_is_next_heard_of(metal: DriverBench, foreign: Foreign) -> None:
    event = foreign.event()
    lowlevel.import_event(event, metal.device).fail(RuntimeError("enough"))
    event.setSignaledValue_(1)
    eventually(lambda: not metal.inner.events._followers)


def test_an_event_is_set_only_to_what_it_has_not(
    metal: DriverBench, foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.drivers.metal import _native

    real, told = _native.set_event_value, []

    def counted(event: Any, value: int) -> None:
        told.append(value)
        real(event, value)

    monkeypatch.setattr(_native, "set_event_value", counted)
    sem = tg.Semaphore(2)
    lowlevel.export_event(sem.at(2), metal.device)
    assert told == [2]
    lowlevel.export_event(tg.Semaphore().at(0), metal.device)
    assert told == [2]
    event = foreign.event()
    imported = lowlevel.import_event(event, metal.device)
    event.setSignaledValue_(4)
    imported.wait(4, LIMIT)
    imported.signal(5)
    eventually(lambda: told == [2, 5])


def test_closing_the_device_ends_its_thread_for_events(metal: DriverBench, foreign: Foreign) -> None:
    before = threading.enumerate()
    other = metal.open()
    lowlevel.import_event(foreign.event(), other)

    def started() -> list[threading.Thread]:
        found = [
            thread for thread in threading.enumerate() if thread.name == "tidegate-metal-events" and thread.is_alive()
        ]
        return [thread for thread in found if thread not in before]  # by the object: numbers are given anew

    eventually(lambda: bool(started()))
    (thread,) = started()
    assert thread.daemon
    other.close(LIMIT)
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert other._driver.events._listener is None


def test_trouble_with_one_event_is_reported_and_others_are_followed(
    metal: DriverBench, foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda _trouble: reported.set())
    bad, good = foreign.event(), foreign.event()
    lowlevel.import_event(bad, metal.device)
    number = max(metal.inner.events._followers)
    monkeypatch.setattr(metal.inner.events._followers[number], "follow_event", lambda: 1 // 0)
    sem = lowlevel.import_event(good, metal.device)
    bad.setSignaledValue_(1)
    assert reported.wait(LIMIT)
    good.setSignaledValue_(1)
    sem.wait(1, LIMIT)


def test_any_and_all_over_exported_and_imported_events_with_and_without_time(metal: DriverBench) -> None:
    """What leaves as an event and comes back as a semaphore can be waited for like any other."""
    sources = [tg.Semaphore(), tg.Semaphore()]
    events = [lowlevel.export_event(source.at(1), metal.device) for source in sources]
    back = [lowlevel.import_event(event, metal.device) for event in events]
    points = [sem.at(1) for sem in back]
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_any(points, 0)
    buffer = metal.device.allocate(64)
    metal.queue.fill(buffer, 1, signal=sources[1].at(1))
    assert tg.wait_any(points, LIMIT) == points[1]
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_all(points, 0)
    metal.queue.fill(buffer, 2, signal=sources[0].at(1))
    tg.wait_all(points, LIMIT)
    assert [event.signaledValue() for event in events] == [1, 1]
