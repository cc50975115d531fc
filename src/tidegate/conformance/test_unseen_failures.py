"""A failure that nobody looks at is told of once, with the line of the work, at the latest when its device closes."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

import tidegate as tg

from .latches import LIMIT
from .subjects import Subject
from .witnesses import Recorder, failure_of

pytestmark = pytest.mark.rules("M21")


class BrokenError(Exception):
    """What the work of these tests ends with."""


def broken() -> NoReturn:
    raise BrokenError("nobody looks")


class Reports(logging.Handler):
    """What the package logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def reports() -> Iterator[Reports]:
    gc.collect()  # of what tests before left
    with tg.open_device("cpu") as device:
        device.queue().host_call(gc.collect).wait(LIMIT)
    handler = Reports()
    logger = logging.getLogger("tidegate")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def opened(subject: Subject) -> Iterator[tg.Device]:
    """A device that the test itself closes."""
    device = subject.open_device()
    yield device
    device.close(LIMIT)


def failing_call(device: tg.Device, _kept: list[Any]) -> None:
    device.queue().host_call(broken)


def failing_with_a_signal(device: tg.Device, kept: list[Any]) -> None:
    kept.append(tg.Semaphore())
    device.queue().host_call(broken, signal=kept[-1].at(1))


def failing_on_a_lane(device: tg.Device, kept: list[Any]) -> None:
    kept.append(device.lane())
    kept[-1].host_call(broken)


def failing_deep_in_a_lane(device: tg.Device, kept: list[Any]) -> None:
    gate = tg.Semaphore()
    lane = device.lane()
    kept.append(lane)
    lane.barrier(wait=gate.at(1))
    lane.host_call(broken)
    lane.barrier()
    lane.fill(device.allocate(16), 1)
    gate.signal(1)


def failing_with_dependents(device: tg.Device, kept: list[Any]) -> None:
    sem = tg.Semaphore()
    kept.append(sem)
    for value in range(2, 6):
        kept.append(device.queue().barrier(wait=sem.at(value - 1), signal=sem.at(value)))
    device.queue().host_call(broken, signal=sem.at(1))


WAYS: list[Callable[[tg.Device, list[Any]], None]] = [
    failing_call,
    failing_with_a_signal,
    failing_on_a_lane,
    failing_deep_in_a_lane,
    failing_with_dependents,
]


def assert_told_once(reports: Reports) -> None:
    (text,) = reports.texts
    assert "host_call on queue" in text
    assert f"{__file__}:" in text, "the line that submitted it"
    assert "BrokenError: nobody looks" in text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keeps", [False, True], ids=["dropped", "kept"])
def test_a_failure_that_nobody_looked_at_is_reported_once_when_its_device_closes_at_the_latest(
    opened: tg.Device, reports: Reports, way: Callable[[tg.Device, list[Any]], None], keeps: bool
) -> None:
    kept: list[Any] = []
    way(opened, kept)
    if not keeps:
        kept.clear()
    opened.close(LIMIT)
    gc.collect()
    with tg.open_device("cpu") as other:  # what was collected is reported by another thread
        other.queue().host_call(gc.collect).wait(LIMIT)
        for _ in range(int(LIMIT * 100)):
            if reports.texts:
                break
            other.queue().host_call(gc.collect).wait(LIMIT)
    kept.clear()
    gc.collect()
    opened.close(LIMIT)
    assert_told_once(reports)


@pytest.mark.parametrize("way", WAYS)
def test_closing_strictly_raises_what_nobody_looked_at_once_the_device_is_closed(
    opened: tg.Device, reports: Reports, way: Callable[[tg.Device, list[Any]], None]
) -> None:
    kept: list[Any] = []
    way(opened, kept)
    with pytest.raises(tg.SemaphoreFailedError, match=r"never looked at: host_call on queue") as caught:
        opened.close(LIMIT, strict=True)
    assert isinstance(caught.value.__cause__, BrokenError)
    assert opened.health is tg.Health.CLOSED
    opened.close(LIMIT, strict=True)
    dropped = not kept
    kept.clear()
    gc.collect()
    assert len(reports.texts) <= dropped, "what nobody could look at any more may have been logged before"


def looks_by_waiting_for_the_lane(lane: tg.Lane, _work: tg.Submission, _point: tg.Timepoint) -> None:
    failure_of(lane.tail)


def looks_at_the_error(_lane: tg.Lane, work: tg.Submission, _point: tg.Timepoint) -> None:
    failure_of(work)


def looks_at_the_signal(_lane: tg.Lane, _work: tg.Submission, point: tg.Timepoint) -> None:
    failure_of(point)


def looks_at_the_semaphore(_lane: tg.Lane, work: tg.Submission, point: tg.Timepoint) -> None:
    while not work.done:
        point.semaphore.value
    assert isinstance(point.semaphore.failure, BrokenError)


def looks_at_a_dependent(lane: tg.Lane, _work: tg.Submission, point: tg.Timepoint) -> None:
    failure_of(lane.queue.barrier(wait=point))


def is_called_back(_lane: tg.Lane, work: tg.Submission, point: tg.Timepoint) -> None:
    told = Recorder()
    point.add_callback(told)
    while not work.done or not told.calls:
        point.semaphore.value
    assert told.outcomes == [tg.Outcome.FAILED]


def reads_what_it_wrote(lane: tg.Lane, work: tg.Submission, _point: tg.Timepoint) -> None:
    buffer = lane.device.allocate(16)
    lane.queue.fill(buffer, 1, wait=work)
    with pytest.raises(tg.SemaphoreFailedError):
        buffer.read(timeout=LIMIT)


@pytest.mark.parametrize(
    "look",
    [
        looks_by_waiting_for_the_lane,
        looks_at_the_error,
        looks_at_the_signal,
        looks_at_the_semaphore,
        looks_at_a_dependent,
        is_called_back,
        reads_what_it_wrote,
    ],
)
def test_a_failure_that_somebody_has_seen_anywhere_is_not_reported(
    opened: tg.Device, reports: Reports, look: Callable[[tg.Lane, tg.Submission, tg.Timepoint], None]
) -> None:
    sem = tg.Semaphore()
    lane = opened.lane()
    work = lane.host_call(broken, signal=sem.at(1))
    look(lane, work, sem.at(1))
    opened.close(LIMIT, strict=True)
    del work, sem, lane
    gc.collect()
    assert reports.texts == []


def test_what_was_given_up_on_purpose_is_not_reported(opened: tg.Device, reports: Reports) -> None:
    gate = tg.Semaphore()
    opened.queue().barrier(wait=gate.at(1)).cancel()
    opened.lane().barrier(wait=gate.at(1))
    opened.close(LIMIT, strict=True)
    gc.collect()
    assert reports.texts == []


def test_an_error_that_is_raised_again_after_somebody_has_looked_is_a_failure_of_its_own(
    opened: tg.Device, reports: Reports
) -> None:
    error = BrokenError("again")

    def fail() -> None:
        raise error

    queue = opened.queue()
    first = queue.host_call(fail)
    assert failure_of(first) is error
    second = queue.host_call(fail)
    while not second.done:
        pass
    opened.close(LIMIT)
    assert len(reports.texts) == 1


def test_who_depends_on_a_failure_that_was_looked_at_fails_without_a_further_report(
    opened: tg.Device, reports: Reports
) -> None:
    queue, sem = opened.queue(), tg.Semaphore()
    first = queue.host_call(broken, signal=sem.at(1))
    assert isinstance(failure_of(first), BrokenError)
    kept = [queue.barrier(wait=sem.at(1)), queue.barrier(wait=first), queue.fill(opened.allocate(16), 1, wait=first)]
    opened.close(LIMIT)
    assert all(one.done for one in kept)
    assert reports.texts == []


class Seen:
    """Something that a frame refers to."""


@pytest.mark.rules("M7", "M21")
def test_a_failure_that_was_reported_pins_no_local_of_a_frame_that_was_still_running(
    opened: tg.Device, reports: Reports
) -> None:
    gate = tg.Semaphore()
    held = opened.queue().barrier(wait=gate.at(1))

    def fail(gate: tg.Semaphore) -> weakref.ref[Seen]:
        local = Seen()
        try:
            broken()
        except BrokenError as error:
            gate.fail(error)  # this frame is among those that the error passed through, and goes on
        return weakref.ref(local)

    pinned = fail(gate)
    del held, gate
    gc.collect()
    opened.queue().host_call(gc.collect).wait(LIMIT)
    settled = threading.Event()
    tg.Semaphore().at(1).add_callback(lambda *_: settled.set())  # dropped: told behind what was dropped before
    assert settled.wait(LIMIT)
    assert len(reports.texts) == 1
    assert pinned() is None
