"""Queues and epochs: what goes where, what is held back, and what the host believes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.drivers.metal.queue import BUDGET, CAPACITY

from .driver_bench import LIMIT, DriverBench, words


def test_a_thousand_submissions_behind_a_latch_return_at_once(metal: DriverBench) -> None:
    """Nobody waits in Metal for a place in a queue, and no queue has more than its budget."""
    latch = metal.latch()
    first = latch.block(metal.queue)
    buffer = metal.device.allocate(256)
    most = 0
    submissions = []
    for number in range(1000):
        submissions.append(metal.queue.fill(buffer, number % 251, wait=submissions[-1] if submissions else first))
        most = max(most, *(len(timeline.flights) for timeline in metal.timelines))
    assert not any(submission.done for submission in submissions)
    assert (BUDGET, CAPACITY) == (48, 64)
    assert 1 < most <= BUDGET
    latch.open()
    submissions[-1].wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == bytes([999 % 251]) * 256
    assert metal.native.statistics.get("blocked", 0) == 0


def test_a_thousand_independent_submissions_behind_busy_queues_return_at_once(metal: DriverBench) -> None:
    latch = metal.park_all_but(0)
    buffers = [metal.device.allocate(64) for _ in range(10)]
    submissions = [metal.queue.fill(buffers[number % 10], 7) for number in range(1000)]
    assert not any(submission.done for submission in submissions)
    latch.open()
    tg.wait_all(submissions, LIMIT)
    assert metal.native.statistics.get("blocked", 0) == 0


def test_what_was_refused_comes_down_when_there_is_room_although_nobody_waits(metal: DriverBench) -> None:
    """The retirement threads tell the core that there is room, without anybody who looks."""
    latch = metal.park_all_but(0)
    buffer = metal.device.allocate(64)
    told = threading.Event()
    done = tg.Semaphore()
    done.at(1).add_callback(lambda *_: told.set())
    metal.queue.fill(buffer, 3, signal=done.at(1))
    latch.open()
    assert told.wait(LIMIT)


def test_the_epoch_event_proves_nothing_to_the_host(metal: DriverBench) -> None:
    """Metal signals an encoded event before the command buffer is over: that is not the end of the work."""
    signalled, go_on = threading.Event(), threading.Event()

    def before_completion(_commands: Any) -> None:
        signalled.set()
        assert go_on.wait(LIMIT)

    buffer = metal.device.allocate(64)
    metal.native.before_completion = before_completion
    done = tg.Semaphore()
    filled = metal.queue.fill(buffer, 1, signal=done.at(1))
    try:
        assert signalled.wait(LIMIT)
        (timeline,) = [timeline for timeline in metal.timelines if timeline.issued]
        assert timeline.event.signaledValue() == 1
        assert timeline.reached == 0
        assert not filled.done
        assert not done.at(1).reached
        assert len(timeline.flights[0].kept) == 1
    finally:
        metal.native.before_completion = None
        go_on.set()
    filled.wait(LIMIT)
    assert done.at(1).reached


def test_a_command_buffer_that_fails_fails_its_submission_with_domain_code_and_text(metal: DriverBench) -> None:
    metal.native.fault("command_buffer", code=3, text="a page was not there")
    done = tg.Semaphore()
    failed = metal.queue.fill(metal.device.allocate(64), 1, signal=done.at(1))
    with pytest.raises(tg.SemaphoreFailedError):
        failed.wait(LIMIT)
    error = failed.error
    assert isinstance(error, tg.InternalError)
    assert (error.native_code, error.native_name) == (3, "MTLCommandBufferErrorPageFault")
    assert error.native_domain == "MTLCommandBufferErrorDomain"  # type: ignore[attr-defined]
    assert "a page was not there" in str(error)
    assert done.failure is error


def test_what_ran_on_the_promise_of_failed_work_fails_when_it_retires(metal: DriverBench) -> None:
    """It was issued, and its own command buffer ended well; the failure before it is its failure all the same."""
    latch = metal.latch()
    buffer = metal.device.allocate(64)
    sem = tg.Semaphore()
    latch.block(metal.queue, signal=sem.at(1))
    metal.native.fault("command_buffer", matches=lambda commands: commands.label() == "fill", count=1)
    second = metal.queue.fill(buffer, 1, wait=sem.at(1), signal=sem.at(2))
    third = metal.queue.copy(buffer, metal.device.allocate(64), wait=sem.at(2), signal=sem.at(3))
    assert sum(len(timeline.in_flight) for timeline in metal.timelines) == 3
    latch.open()
    with pytest.raises(tg.SemaphoreFailedError):
        third.wait(LIMIT)
    assert second.error is not None
    assert third.error is second.error
    assert sem.failure is second.error
    assert metal.native.statistics["commits"] == 3


def test_unrelated_work_of_the_same_queue_survives_a_failure(metal: DriverBench) -> None:
    metal.native.fault("command_buffer", count=1)
    failed = metal.queue.fill(metal.device.allocate(64), 1)
    with pytest.raises(tg.SemaphoreFailedError):
        failed.wait(LIMIT)
    buffer = metal.device.allocate(64)
    metal.queue.fill(buffer, 5).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == bytes([5]) * 64


def test_a_removed_device_is_lost_and_everything_on_it_wakes() -> None:
    bench = DriverBench()
    latch = bench.latch()
    held = [latch.block(bench.queue) for _ in range(3)]
    gate = tg.Semaphore()
    held.append(bench.queue.barrier(wait=gate.at(1)))
    bench.native.lose()
    victim = bench.queue.fill(bench.device.allocate(64), 1)
    for submission in [victim, *held]:
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            submission.wait(LIMIT)
        assert isinstance(caught.value.__cause__, tg.DeviceLostError)
    assert bench.device.health.value == "lost"
    bench.close()


def test_independent_work_does_not_queue_up_behind_a_parked_queue(metal: DriverBench) -> None:
    """Waits for other queues are put into at most half of the queues; the rest of such work is held on the host."""
    latch = metal.latch()
    blocked = latch.block(metal.queue)
    other = latch.block(metal.queue)
    held = [metal.queue.fill(metal.device.allocate(64), 1, wait=[blocked, other]) for _ in range(64)]
    parked = sum(bool(timeline.flights) for timeline in metal.inner.timelines["compute"])
    assert parked <= len(metal.inner.timelines["compute"]) // 2 + 2
    buffer = metal.device.allocate(64)
    metal.queue.fill(buffer, 9).wait(LIMIT)
    assert not any(submission.done for submission in held)
    latch.open()
    tg.wait_all(held, LIMIT)


def test_a_kernel_that_runs_on_does_not_hold_up_independent_work(metal: DriverBench) -> None:
    opened = threading.Event()
    inside = threading.Semaphore(0)

    def runs_on(_workgroups: Any, _bindings: Any, _constants: Any) -> None:
        inside.release()
        assert opened.wait(LIMIT)

    kernel = metal.host_kernel(runs_on)
    running = [metal.queue.dispatch(kernel, 1) for _ in range(3)]
    for _ in running:
        assert inside.acquire(timeout=LIMIT)
    buffers = [metal.device.allocate(64) for _ in range(50)]
    tg.wait_all([metal.queue.fill(buffer, 1) for buffer in buffers], LIMIT)
    assert not any(submission.done for submission in running)
    opened.set()
    tg.wait_all(running, LIMIT)


def test_work_that_follows_goes_behind_its_producer_without_a_native_wait(metal: DriverBench) -> None:
    latch = metal.latch()
    point: Any = latch.block(metal.queue)
    for _ in range(10):
        point = metal.queue.fill(metal.device.allocate(64), 1, wait=point)
    assert [len(timeline.flights) for timeline in metal.timelines if timeline.flights] == [11]
    latch.open()
    point.wait(LIMIT)


def test_short_work_shares_a_queue_when_none_is_idle(metal: DriverBench) -> None:
    """With one queue left that is not blocked, many small fills are in flight at once, not one after the other."""
    latch = metal.park_all_but(1)
    go_on = threading.Event()
    metal.native.before_completion = lambda _commands: go_on.wait(LIMIT)
    fills = [metal.queue.fill(metal.device.allocate(64), 1) for _ in range(20)]
    assert max(len(timeline.flights) for timeline in metal.timelines) == 20
    metal.native.before_completion = None
    go_on.set()
    tg.wait_all(fills, LIMIT)
    latch.open()


def test_an_upload_waits_on_the_host_for_a_download_it_reads(metal: DriverBench) -> None:
    """The host array is written when the download retires, so an upload of it may not be encoded before."""
    source = metal.upload(1024)
    target = metal.device.allocate(4096)
    array = np.zeros(1024, np.uint32)
    latch = metal.latch()
    first = latch.block(metal.queue)
    downloaded = metal.queue.download(source, array, wait=first)
    uploaded = metal.queue.upload(array, target, wait=downloaded)
    latch.open()
    uploaded.wait(LIMIT)
    assert words(target) == list(range(1024))


def test_large_arrays_are_copied_by_a_thread_for_that(metal: DriverBench) -> None:
    array = np.random.default_rng(1).integers(0, 2**32, 300_000, np.uint32)
    target = metal.device.allocate(array.nbytes)
    metal.queue.upload(array, target).wait(LIMIT)
    assert any(thread.name == "tidegate-metal-copier" for thread in threading.enumerate())
    assert np.array_equal(target.to_numpy(np.uint32, timeout=LIMIT), array)


def test_a_commit_that_an_interrupt_prevented_is_made_up_for_by_the_next_look(
    metal: DriverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.drivers.metal import _native

    real, calls = _native.commit, []

    def interrupted(commands: Any) -> None:
        calls.append(commands)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(commands)

    buffer = metal.device.allocate(64)
    done = tg.Semaphore()
    monkeypatch.setattr(_native, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        metal.queue.fill(buffer, 1, signal=done.at(1))
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        done.wait(1, LIMIT)
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)
    assert len(calls) == 2


@pytest.mark.parametrize(("nbytes", "long"), [(2**20, False), (2**20 + 4, True)])
def test_built_in_work_up_to_a_mebibyte_is_short(metal: DriverBench, nbytes: int, long: bool) -> None:
    filled = metal.queue.fill(metal.device.allocate(nbytes), 1)
    (timeline,) = [timeline for timeline in metal.timelines if timeline.issued]
    assert timeline.last_long == (1 if long else 0)
    filled.wait(LIMIT)


def test_memory_is_back_when_work_in_place_is_over(metal: DriverBench) -> None:
    """The last use of a dropped buffer runs on the spot; who starves for its memory is served by its end."""
    device = metal.open("metal-simulated?memory=8192")
    queue = device.queue()
    gate = tg.Semaphore()
    buffer = device.allocate(8192, memory="shared")
    queue.fill(buffer, 1, wait=gate.at(1))
    del buffer
    starving = queue.allocate(8192, memory="shared")
    assert not starving.ready.done
    gate.signal(1)
    starving.ready.wait(LIMIT)


def test_where_the_gpu_sees_host_memory_other_work_still_follows_natively(metal: DriverBench) -> None:
    metal.inner.has_imports = True
    latch = metal.latch()
    blocked = latch.block(metal.queue)
    filled = metal.queue.fill(metal.device.allocate(64), 1, wait=blocked)
    assert filled.timeline is blocked.timeline
    latch.open()
    filled.wait(LIMIT)
