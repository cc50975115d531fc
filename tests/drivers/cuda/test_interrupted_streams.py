"""Interrupts in the middle of what the driver does with its streams: no epoch stays open, no place stays taken."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance.interrupts import interrupted_at
from tidegate.drivers.cuda.stream import Stream

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until

FORMS = [{}, {"gil": "release"}, {"gil": "release", "epochs": "events"}]
"""The compiled way, in which nothing can come between, and the way in Python."""


@pytest.fixture(params=FORMS, ids=str)
def found(request: pytest.FixtureRequest) -> Iterator[SimulatedBench]:
    with bench(request.param) as made:
        yield made
        assert made.native.violations == []


def _everywhere(found: SimulatedBench, once: Callable[[], object], check: Callable[[], None], most: int = 2000) -> None:
    """Do something again and again, interrupted at one place after the other, until it comes through."""
    for step in range(1, most):
        with interrupted_at(step) as interruption:
            once()
        check()
        if not interruption.fired:
            assert step > 10 or not found.driver.releases
            return
    raise AssertionError("it never came through")


def _at_rest(found: SimulatedBench) -> None:
    """Everything is over, and nothing is left of it."""
    found.queue.fill(found.shared(16), 1).wait(LIMIT)
    for stream in found.driver.all_streams():
        until(lambda stream=stream: stream.advance() or stream.idle)  # type: ignore[misc]
        with found.driver.entered(), found.driver.lock:
            stream.state.collect(1000)
        assert stream.state.closed_epoch == stream.issued
        assert stream.state.places == 0
        assert not stream.state.lent


def test_a_submission_interrupted_anywhere_leaves_its_stream_in_order(found: SimulatedBench) -> None:
    touch, target = found.device.load(TOUCH)["touch"], found.device.allocate(64)

    def once() -> None:
        found.queue.dispatch(touch, (1, 1, 1), bindings=[target])

    _everywhere(found, once, lambda: _at_rest(found))


def test_work_that_an_interrupt_kept_from_its_stream_does_not_end_well(
    found: SimulatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epoch may be over, and seen to be, before the interrupt has come out of the driver."""
    target = found.shared(16)
    values = iter(range(1, 2000))
    wanted: list[tuple[int, tg.Semaphore]] = []
    real = Stream._close

    def close_and_retire(self: Stream, *given: Any) -> None:
        real(self, *given)
        until(lambda: self.reached >= self.issued)
        self.advance()

    monkeypatch.setattr(Stream, "_close", close_and_retire)

    def once() -> None:
        value, done = next(values) % 256, tg.Semaphore()
        wanted.append((value, done))
        found.queue.fill(target, value, signal=done.at(1))

    def check() -> None:
        if not wanted:
            return
        value, done = wanted.pop()
        try:
            found.queue.barrier(signal=done.at(1))  # of those that were not submitted
            return
        except tg.InvalidArgumentError:
            pass
        try:
            done.wait(1, LIMIT)
        except tg.SemaphoreFailedError:
            return
        with target.map(wait=()) as data:
            assert set(data) == {value}

    _everywhere(found, once, check)


def test_a_thread_that_begins_to_listen_is_interrupted_anywhere_and_the_next_one_is_told(
    found: SimulatedBench,
) -> None:
    def check() -> None:
        assert found.device.health is tg.Health.OK

    for step in range(1, 500):
        latch, blocked = found.latch()
        assert isinstance(blocked.timeline, Stream)
        with interrupted_at(step) as interruption:
            blocked.timeline.arm(blocked.epoch)
        point = tg.Semaphore()
        found.queue.barrier(wait=blocked, signal=point.at(1))
        latch.open()
        point.wait(1, LIMIT)
        check()
        if not interruption.fired:
            break
    assert step > 5
    _at_rest(found)


def test_who_sleeps_for_an_alarm_that_was_interrupted_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that was never recorded is over: a thread would come back from it at once, again and again."""
    with bench() as found:
        latch, blocked = found.latch()
        record, left = found.native.record_event, [KeyboardInterrupt()]

        def interrupted(event: int, stream: int) -> None:
            if left:
                raise left.pop()
            record(event, stream)

        monkeypatch.setattr(found.native, "record_event", interrupted)
        with pytest.raises(KeyboardInterrupt):
            blocked.timeline.arm(blocked.epoch)
        assert blocked.timeline._alarms == {}
        woken: list[Any] = []
        wake = blocked.timeline._wake
        monkeypatch.setattr(blocked.timeline, "_wake", lambda: (woken.append(None), wake()))
        with pytest.raises(tg.DeadlineExceededError):
            blocked.wait(0.05)
        assert woken == []
        latch.open()
        blocked.wait(LIMIT)


def test_places_that_an_interrupt_left_wrong_are_right_again_when_the_stream_is_empty() -> None:
    with bench() as found:
        target = found.shared()
        found.queue.fill(target, 1).wait(LIMIT)
        (stream,) = [each for each in found.driver.all_streams() if each.issued]
        stream.state.places += 300
        found.queue.fill(target, 1).wait(LIMIT)
        found.queue.fill(target, 1).wait(LIMIT)
        with found.driver.lock:
            stream.state.collect()
        assert stream.state.places == 0


def test_finalizers_of_several_threads_leave_no_gap_in_the_garbage() -> None:
    with bench() as found:
        driver = found.driver
        done: list[int] = []
        for number in range(100):
            driver.garbage.append(lambda number=number: done.append(number))  # type: ignore[misc]
        found.device.trim()
        assert done == list(range(100))


def test_an_upload_that_is_interrupted_anywhere_gives_its_room_back(found: SimulatedBench) -> None:
    target, data = found.device.allocate(256), np.ones(256, np.uint8)
    found.queue.upload(data, target).wait(LIMIT)
    whole = found.driver.staging.free

    def once() -> None:
        found.queue.upload(data, target)

    _everywhere(found, once, lambda: _at_rest(found))
    until(lambda: gc.collect() >= 0 and found.driver.staging.free == whole)
