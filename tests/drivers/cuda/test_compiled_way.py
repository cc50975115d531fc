"""The compiled way onto a stream: which work takes it, when it does not, and what it tells of what goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance.threads import background
from tidegate.drivers.cuda._native import NativeError
from tidegate.drivers.cuda.native.compiled import EVENTS_AT_A_TIME
from tidegate.drivers.cuda.queue import CudaQueue

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until

ADD_SOURCE = """
extern "C" __global__ void add(unsigned *x, unsigned a, unsigned long long b, float c) {
    x[0] += a + (unsigned)b + (unsigned)c;
}
"""
ADD = tg.Kernel("add", cuda=ADD_SOURCE, bindings=1, constants=[np.uint32, np.uint64, np.float32])
INVALID_VALUE, ILLEGAL_ADDRESS = 1, 700


class Rig:
    """A device that has been used: what the way in Python makes at first is there."""

    def __init__(self, found: SimulatedBench, patch: pytest.MonkeyPatch) -> None:
        self.found = found
        self.device, self.queue, self.lane = found.device, found.queue, found.device.lane()
        self.touch = self.device.load(TOUCH)["touch"]
        self.add, self.undeclared = self.device.load(ADD)["add"], self.device.load(ADD_SOURCE)["add"]
        self.buffer, self.other = found.shared(), found.shared()
        self.pinned = tg.pinned_empty(256, np.uint8, self.device)
        self.array = np.ones(256, np.uint8)
        with self.device.record() as self.commands:
            self.commands.dispatch(self.touch, 1, bindings=[tg.slot(0)])
            self.commands.fill(tg.slot(1), 1)
        self.issued: list[str] = []
        for once in [*WORK.values(), lambda rig: rig.queue.update(rig.other, b"1234")]:
            once(self).wait(LIMIT)
        real = CudaQueue.issue

        def issue(queue: Any, ticket: Any, work: Any, waits: Any) -> bool:
            self.issued.append(work.kind)
            taken: bool = real(queue, ticket, work, waits)
            return taken

        patch.setattr(CudaQueue, "issue", issue)


WORK: dict[str, Callable[[Rig], tg.Submission]] = {
    "dispatch": lambda rig: rig.queue.dispatch(rig.touch, 1, bindings=[rig.buffer]),
    "an empty dispatch": lambda rig: rig.queue.dispatch(rig.touch, 0, bindings=[rig.buffer]),
    "constants": lambda rig: rig.queue.dispatch(rig.add, 1, bindings=[rig.buffer], constants=[1, 2, 3.0]),
    "typed constants": lambda rig: rig.queue.dispatch(
        rig.add, 1, bindings=[rig.buffer], constants=[np.uint32(1), np.uint64(2), np.float32(3)]
    ),
    "undeclared": lambda rig: rig.queue.dispatch(rig.undeclared, 1, bindings=[rig.buffer], constants=[1, 2, 3.0]),
    "undeclared and typed": lambda rig: rig.queue.dispatch(
        rig.undeclared, 1, bindings=[rig.buffer], constants=[np.uint32(1), np.uint64(2), np.float32(3)]
    ),
    "fill": lambda rig: rig.queue.fill(rig.buffer, 7),
    "a fill by two": lambda rig: rig.queue.fill(rig.buffer, b"\1\2"),
    "a fill by four": lambda rig: rig.queue.fill(rig.buffer, b"\1\2\3\4"),
    "copy": lambda rig: rig.queue.copy(rig.buffer, rig.other),
    "update": lambda rig: rig.queue.update(rig.buffer, b"1234"),
    "upload": lambda rig: rig.queue.upload(rig.array, rig.buffer),
    "upload of page-locked memory": lambda rig: rig.queue.upload(rig.pinned, rig.buffer),
    "download into page-locked memory": lambda rig: rig.queue.download(rig.buffer, rig.pinned),
    "execute": lambda rig: rig.queue.execute(rig.commands, bindings=[rig.buffer, rig.other]),
    "lane": lambda rig: rig.lane.fill(rig.buffer, 7),
}


@pytest.fixture(params=[{}, {"epochs": "events"}], ids=str)
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with bench(request.param) as found:
        yield Rig(found, monkeypatch)
        assert found.native.violations == []


@pytest.mark.parametrize("what", WORK)
def test_no_work_that_is_plain_needs_the_way_in_python(rig: Rig, what: str) -> None:
    WORK[what](rig).wait(LIMIT)
    assert rig.issued == []


def test_what_follows_one_or_several_needs_it_neither(rig: Rig) -> None:
    (_, first), (_, second) = rig.found.latch(), rig.found.latch()
    rig.issued.clear()
    one, two = tg.Semaphore(), tg.Semaphore()
    chained = [rig.queue.fill(rig.buffer, 1, wait=first, signal=one.at(1))]
    chained.append(rig.queue.fill(rig.buffer, 2, wait=[first, second], signal=[two.at(1)]))
    chained.append(rig.queue.copy(rig.buffer, rig.other, wait=[one.at(1), two.at(1)], signal=[one.at(2), two.at(2)]))
    chained.append(rig.queue.barrier(wait=chained[-1]))
    assert all(work.timeline is not None for work in chained)
    assert rig.issued == []
    for latch in rig.found._latches:
        latch.open()
    tg.wait_all(chained, LIMIT)
    assert set(rig.other.read()) == {2}


def test_what_it_computes_is_right(rig: Rig) -> None:
    rig.queue.fill(rig.buffer, 0).wait(LIMIT)
    for what in ("dispatch", "an empty dispatch", "constants", "typed constants", "undeclared", "undeclared and typed"):
        WORK[what](rig).wait(LIMIT)
    assert rig.buffer.to_numpy(np.uint32)[0] == 1 + 4 * 6
    WORK["a fill by two"](rig).wait(LIMIT)
    assert rig.buffer.read()[:4] == b"\1\2\1\2"
    WORK["a fill by four"](rig).wait(LIMIT)
    WORK["update"](rig).wait(LIMIT)
    assert rig.buffer.read()[:8] == b"1234\1\2\3\4"
    rig.pinned[:] = 9
    WORK["upload of page-locked memory"](rig).wait(LIMIT)
    rig.pinned[:] = 0
    WORK["download into page-locked memory"](rig).wait(LIMIT)
    assert set(rig.pinned) == {9}
    assert rig.issued == []


@pytest.mark.parametrize(
    "constants", [[1 << 40, 2, 3.0], [1, 2], [b"12345", 2, 3.0], [-(1 << 31) - 1, 2, 3.0]], ids=str
)
def test_constants_that_do_not_fit_are_refused_in_words(rig: Rig, constants: list[Any]) -> None:
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        rig.queue.dispatch(rig.undeclared, 1, bindings=[rig.buffer], constants=constants).wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.InvalidArgumentError)


def test_a_call_that_is_refused_fails_its_submission_and_nothing_else(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def refused(*_: object) -> None:
            raise NativeError("cuMemsetD8Async", INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "no")

        patch.setattr(rig.found.native, "fill", refused)
        failing = [rig.queue.fill(rig.buffer, 1) for _ in range(3)]
    for work in failing:
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            work.wait(LIMIT)
        assert caught.value.__cause__.native_code == INVALID_VALUE  # type: ignore[union-attr]
    assert rig.device.health is tg.Health.OK
    rig.queue.fill(rig.buffer, 5).wait(LIMIT)
    assert set(rig.buffer.read()) == {5}


def test_a_call_that_tells_of_a_lost_device_loses_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[object] = []

    def refused(*_: object) -> None:
        lost.append(rig.found.native.machine.cards[0].die(ILLEGAL_ADDRESS))
        raise NativeError("cuMemsetD8Async", ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "gone")

    monkeypatch.setattr(rig.found.native, "fill", refused)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        rig.queue.fill(rig.buffer, 1).wait(LIMIT)
    assert lost
    assert isinstance(caught.value.__cause__, tg.DeviceLostError)
    assert rig.device.health is tg.Health.LOST


def test_an_epoch_that_cannot_be_ended_at_once_is_ended_before_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, left = rig.found.native.record_event, [1]

    def refused(event: int, stream: int) -> None:
        if left:
            left.pop()
            raise NativeError("cuEventRecord", INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "no")
        record(event, stream)

    monkeypatch.setattr(rig.found.native, "record_event", refused)
    work = rig.queue.fill(rig.buffer, 1)
    rig.queue.fill(rig.buffer, 2, wait=[]).wait(LIMIT)
    with pytest.raises(tg.SemaphoreFailedError):
        work.wait(LIMIT)
    assert rig.device.health is tg.Health.OK


def test_while_somebody_works_on_the_streams_it_waits_for_its_turn(rig: Rig) -> None:
    inside, leave = threading.Event(), threading.Event()

    def work_on_streams() -> None:
        with rig.found.driver.lock:
            inside.set()
            assert leave.wait(LIMIT)

    other = background(work_on_streams)
    assert inside.wait(LIMIT)
    submitting = background(rig.queue.fill, rig.buffer, 3)
    until(lambda: rig.issued)
    leave.set()
    submitting.result().wait(LIMIT)
    other.result()
    assert set(rig.buffer.read()) == {3}


def test_who_holds_the_lock_may_submit(rig: Rig) -> None:
    with rig.found.driver.lock:
        work = rig.queue.fill(rig.buffer, 3)
    work.wait(LIMIT)
    assert rig.issued == ["fill"]


def test_new_work_stays_on_the_host_while_code_is_loaded(rig: Rig) -> None:
    token = object()
    rig.found.driver.quiet.add(token)
    work = rig.queue.fill(rig.buffer, 3)
    assert work.timeline is None
    rig.found.driver.quiet.discard(token)
    rig.found.driver.sink.room()
    work.wait(LIMIT)


def test_events_and_the_staging_ring_are_used_again(rig: Rig) -> None:
    whole = rig.found.driver.staging.free
    last = None
    for turn in range(20 * EVENTS_AT_A_TIME):
        last = rig.queue.update(rig.buffer, bytes([turn % 256]) * 256, wait=last)
        if turn % 16 == 15:
            last.wait(LIMIT)
        if turn < EVENTS_AT_A_TIME:
            rig.issued.clear()  # the first ones may need more events than there are
    assert rig.issued == []
    assert rig.found.native.counts["events"] <= 8 * EVENTS_AT_A_TIME
    assert rig.found.driver.staging.free == whole


def test_small_data_that_finds_the_ring_full_goes_another_way(rig: Rig) -> None:
    latch, blocked = rig.found.latch()
    pieces = [rig.found.driver.staging.take(65536) for _ in range(63)]
    rig.issued.clear()
    target = rig.device.allocate(65536)
    updates = [rig.queue.update(target, bytes([turn]) * 65536, wait=blocked) for turn in range(3)]
    latch.open()
    tg.wait_all(updates, LIMIT)
    assert rig.issued
    assert len(set(target.read())) == 1
    del pieces
