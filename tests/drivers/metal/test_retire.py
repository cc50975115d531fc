"""Retirement: threads that exist only when somebody has to be told, and what happens before anybody is."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.drivers.metal.direct_command_buffer import LIGHT
from tidegate.drivers.metal.retire import Retirement

from .driver_bench import LIMIT, DriverBench


def retirement_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("tidegate-metal-compute")}


def test_work_that_nobody_listens_to_starts_no_thread_and_is_seen_by_whoever_looks(metal: DriverBench) -> None:
    before = retirement_threads()  # of other devices: they may end meanwhile
    done = tg.Semaphore()
    completed = threading.Event()
    metal.native.before_completion = lambda _commands: completed.set()
    filled = metal.queue.fill(metal.device.allocate(64), 1, signal=done.at(1))
    assert completed.wait(LIMIT)
    while not filled.done:
        pass
    assert done.at(1).reached
    assert retirement_threads() <= before


def test_an_armed_epoch_wakes_although_nobody_looks(metal: DriverBench) -> None:
    latch = metal.latch()
    done = tg.Semaphore()
    told = threading.Event()
    latch.block(metal.queue, signal=done.at(1))
    done.at(1).add_callback(lambda *_: told.set())
    assert not told.is_set()
    latch.open()
    assert told.wait(LIMIT)


def test_an_epoch_that_is_over_already_wakes_when_it_is_armed(metal: DriverBench) -> None:
    filled = metal.queue.fill(metal.device.allocate(64), 1)
    filled.wait(LIMIT)
    timeline = filled.timeline
    woken = threading.Event()

    class Sink:
        def wake(self, _timeline: object) -> None:
            woken.set()

    assert timeline is not None
    before, timeline.sink = timeline.sink, Sink()  # type: ignore[assignment]
    timeline.arm(filled.epoch)
    assert woken.wait(LIMIT)
    timeline.sink = before


def test_each_armed_epoch_wakes_not_only_the_last(metal: DriverBench) -> None:
    first, second = metal.latch(), metal.latch()
    one, other = tg.Semaphore(), tg.Semaphore()
    told = threading.Event()
    blocked = first.block(metal.queue, signal=one.at(1))
    second.block(metal.queue, wait=blocked, signal=other.at(1))
    other.at(1).add_callback(lambda *_: None)
    one.at(1).add_callback(lambda *_: told.set())
    first.open()
    assert told.wait(LIMIT)
    assert not other.at(1).reached
    second.open()
    other.wait(1, LIMIT)


def test_storage_is_back_before_the_end_is_told(metal: DriverBench) -> None:
    """Whoever is told of the end may allocate at once, with a budget for just one buffer."""
    device = metal.open("metal-simulated?memory=8192")
    queue = device.queue()
    failed: list[BaseException] = []

    def again(_point: Any, outcome: tg.Outcome, _error: object) -> None:
        try:
            device.allocate(8192)
        except tg.ResourceExhaustedError as error:
            failed.append(error)

    for _ in range(50):
        buffer = queue.allocate(8192)
        done = tg.Semaphore()
        told = threading.Event()
        done.at(2).add_callback(again)
        done.at(2).add_callback(lambda *_, told=told: told.set())
        queue.fill(buffer, 1, wait=buffer.ready, signal=done.at(1))
        queue.free(buffer, wait=done.at(1), signal=done.at(2))
        del buffer
        assert told.wait(LIMIT)
    assert not failed


@pytest.mark.parametrize("nbytes", [4096, LIGHT + 4])
def test_a_download_is_over_when_the_array_is_filled(metal: DriverBench, nbytes: int) -> None:
    source = metal.upload(nbytes // 4)
    for _ in range(20):
        array = np.zeros(nbytes // 4, np.uint32)
        done = tg.Semaphore()
        told = threading.Event()
        seen: list[bool] = []
        done.at(1).add_callback(
            lambda *_, array=array, told=told: (seen.append(bool((array == np.arange(nbytes // 4)).all())), told.set())
        )
        metal.queue.download(source, array, signal=done.at(1))
        assert told.wait(LIMIT)
        assert seen == [True]


def test_a_large_download_is_copied_by_the_retirement_thread(metal: DriverBench) -> None:
    threads: list[str] = []
    locked: list[Any] = []
    for timeline in metal.timelines:
        timeline._lock = threading.RLock()  # which knows its owner

    class Watched(np.ndarray[Any, Any]):
        """Tells who writes into it: `np.copyto` asks an array of a subclass first."""

        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            threads.append(threading.current_thread().name)
            locked.extend(timeline for timeline in metal.timelines if timeline._lock._is_owned())
            return function(*(np.asarray(each) for each in args), **kwargs)

    source = metal.upload(LIGHT)
    target = np.zeros(LIGHT * 4, np.uint8).view(Watched)
    from tidegate.driver import Download

    work = Download(source, target)
    submission = metal.queue._submit(work, None, None)
    submission.wait(LIMIT)
    (name,) = threads
    assert name.startswith("tidegate-metal-")
    assert not locked, "whoever looks meanwhile would wait for the copy"


def test_closing_a_lost_device_keeps_what_is_in_flight_until_it_has_landed() -> None:
    bench = DriverBench()
    latch = bench.latch()
    buffer = bench.device.allocate(64)
    latch.block(bench.queue)
    bench.queue.fill(buffer, 1)
    flights = [flight for timeline in bench.timelines for flight in timeline.flights]
    assert flights
    from tidegate.testing import lose_device

    lose_device(bench.device)
    bench.device.close(LIMIT)
    timelines = bench.timelines
    latch.open()
    limit = time.monotonic() + LIMIT
    for timeline in timelines:
        while timeline.flights:
            assert time.monotonic() < limit, "it keeps what has landed"
            time.sleep(0)
        thread = timeline.retirement._thread
        if thread is not None:
            thread.join(LIMIT)
            assert not thread.is_alive()
    bench.close()


def test_an_abandoned_device_keeps_what_is_in_flight_for_ever(metal: DriverBench, monkeypatch: Any) -> None:
    from tidegate.drivers.metal import _native

    kept: list[object] = []
    monkeypatch.setattr(_native, "keep_for_ever", kept.append)
    metal.inner.abandon()
    assert not kept
    metal.latch().block(metal.queue)
    metal.inner.abandon()
    assert kept == [metal.inner]


def test_a_large_download_that_nobody_listens_to_is_over_all_the_same(metal: DriverBench) -> None:
    """Who merely looks does not copy so much; the retirement thread does, without having been asked."""
    source = metal.upload(LIGHT)
    downloaded = metal.queue.download(source, np.zeros(LIGHT, np.uint32))
    limit = time.monotonic() + LIMIT
    while not downloaded.done:
        assert time.monotonic() < limit


def test_a_large_download_that_failed_leaves_the_array_alone(metal: DriverBench) -> None:
    source = metal.upload(LIGHT)
    array = np.full(LIGHT, 77, np.uint32)
    metal.native.fault("command_buffer")
    failed = metal.queue.download(source, array)
    with pytest.raises(tg.SemaphoreFailedError):
        failed.wait(LIMIT)
    assert set(array.tolist()) == {77}


def test_a_download_that_cannot_be_copied_fails(metal: DriverBench) -> None:
    from tidegate.driver import Download

    source = metal.upload(16)
    array = np.zeros(64, np.uint8)
    array.flags.writeable = False
    failed = metal.queue._submit(Download(source, array), None, None)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        failed.wait(LIMIT)
    assert isinstance(caught.value.__cause__, ValueError)


def test_what_a_command_buffer_kept_is_dropped_at_its_end(metal: DriverBench) -> None:
    latch = metal.latch()
    filled = metal.queue.fill(metal.device.allocate(64), 1, wait=latch.block(metal.queue))
    (flights,) = [tuple(timeline.flights) for timeline in metal.timelines if timeline.flights]
    latch.open()
    filled.wait(LIMIT)
    assert [flight.kept for flight in flights] == [[], []]


def test_a_large_download_whose_issue_is_interrupted_before_it_is_armed_ends_all_the_same(
    metal: DriverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the retirement thread copies that much, and it has to be told of it."""
    source = metal.upload((LIGHT + 4) // 4)
    array = np.zeros((LIGHT + 4) // 4, np.uint32)
    told, strikes = threading.Event(), [KeyboardInterrupt()]
    real = Retirement.arm

    def arm(retirement: Retirement, epoch: int) -> None:
        if strikes:
            raise strikes.pop()
        real(retirement, epoch)

    monkeypatch.setattr(Retirement, "arm", arm)
    done = tg.Semaphore()
    done.at(1).add_callback(lambda *_: told.set())
    with pytest.raises(KeyboardInterrupt):
        metal.queue.download(source, array, signal=done.at(1))
    assert told.wait(LIMIT)
    assert isinstance(done.failure, KeyboardInterrupt)
    metal.device.close(LIMIT)
