"""Failure and ends: closing, losing a device, what cannot be opened."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg
from tidegate.testing import lose_device

from .latches import LIMIT, Latch
from .subjects import Subject
from .threads import Background, background
from .witnesses import failure_of

pytestmark = pytest.mark.rules("M35")


# Opening ------------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M16")
def test_an_unknown_driver_is_not_found_and_the_text_lists_the_known_ones() -> None:
    with pytest.raises(tg.NotFoundError, match=r"no-such-driver[\s\S]*cpu"):
        tg.open_device("no-such-driver")


@pytest.mark.rules("M16")
def test_an_unknown_option_is_refused_by_name(subject: Subject) -> None:
    with pytest.raises(tg.InvalidArgumentError, match="no_such_option"):
        subject.open_device(no_such_option=1)


@pytest.mark.rules("M16")
@pytest.mark.parametrize("uri", ["", "?", "cpu?workers", "cpu?workers=none", "cpu?workers=-1", "cpu?memory=lots"])
def test_a_malformed_uri_is_refused(uri: str) -> None:
    with pytest.raises((tg.InvalidArgumentError, tg.NotFoundError)):
        tg.open_device(uri)


@pytest.mark.rules("M16")
def test_a_uri_that_is_no_text_is_a_type_error() -> None:
    uri: Any = 3
    with pytest.raises(TypeError):
        tg.open_device(uri)


@pytest.mark.rules("M16")
def test_the_driver_is_listed_with_its_devices(device: tg.Device) -> None:
    listed = {driver.name: driver for driver in tg.list_drivers()}
    assert device.info.driver in listed
    assert listed[device.info.driver].available
    assert device.health is not None


# Closing ------------------------------------------------------------------------------------------------------------


def test_close_twice_is_fine(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    device.close(timeout=LIMIT)
    device.close(timeout=LIMIT)
    device.close()


def test_leaving_the_with_block_closes(open_device: Callable[..., tg.Device]) -> None:
    with open_device() as device:
        queue = device.queue()
        work = queue.barrier()
    work.wait(timeout=LIMIT)
    with pytest.raises(tg.ClosedError):
        queue.barrier()


def test_a_closed_device_refuses_everything(open_device: Callable[..., tg.Device]) -> None:
    device = open_device(label="shut")
    queue, lane, buffer = device.queue(), device.lane(), device.allocate(64)
    device.close(timeout=LIMIT)
    end = tg.Semaphore()
    uses: list[Callable[[], Any]] = [
        lambda: queue.barrier(signal=end.at(1)),
        lambda: queue.host_call(print, signal=end.at(1)),
        lambda: queue.fill(buffer, 0, signal=end.at(1)),
        lambda: queue.allocate(64, signal=end.at(1)),
        lambda: queue.free(buffer, signal=end.at(1)),
        lambda: lane.barrier(signal=end.at(1)),
        lambda: device.allocate(64),
        device.queue,
        device.lane,
        device.record,
        lambda: device.load(lambda workgroups, bindings, constants: None),
        lambda: buffer.read(timeout=LIMIT),
        lambda: buffer.to_numpy("u1", timeout=LIMIT),
        lambda: buffer.write(b"1"),
    ]
    for use in uses:
        with pytest.raises(tg.ClosedError):
            use()
    assert (end.value, end.failure) == (0, None)
    end.signal(1)
    assert "shut" in repr(device)


def test_close_drains_issued_work_and_what_follows_from_it_alone(
    open_device: Callable[..., tg.Device], latch: Latch
) -> None:
    device = open_device()
    queue = device.queue()
    running, middle, end = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    order: list[str] = []
    latch.block(queue, signal=running.at(1))
    latch.wait_until_running()
    queue.host_call(order.append, "second", wait=middle.at(1), signal=end.at(1))
    queue.host_call(order.append, "first", wait=running.at(1), signal=middle.at(1))
    with pytest.raises(tg.DeadlineExceededError):
        device.close(timeout=0)  # by now it has given up what does not follow
    closing = background(device.close, LIMIT)
    latch.open()
    closing.result()
    end.wait(1, timeout=LIMIT)
    assert order == ["first", "second"]


def test_close_aborts_what_waits_for_something_else(open_device: Callable[..., tg.Device], latch: Latch) -> None:
    device = open_device()
    queue = device.queue()
    gate, running = tg.Semaphore(), tg.Semaphore()
    ends = [tg.Semaphore() for _ in range(3)]
    ran: list[int] = []
    latch.block(queue, signal=running.at(1))
    latch.wait_until_running()
    alone = queue.host_call(ran.append, 1, wait=gate.at(1), signal=ends[0].at(1))
    mixed = queue.host_call(ran.append, 2, wait=[gate.at(1), running.at(1)], signal=ends[1].at(1))
    behind = queue.host_call(ran.append, 3, wait=ends[0].at(1), signal=ends[2].at(1))
    closing = background(device.close, LIMIT)
    latch.open()
    closing.result()
    points: list[tg.Timepoint | tg.Submission] = [alone, mixed, behind, *(end.at(1) for end in ends)]
    for point in points:
        assert isinstance(failure_of(point), tg.AbortedError)
    assert ran == []
    assert (gate.value, gate.failure) == (0, None)
    gate.signal(1)


def test_close_aborts_a_cycle(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    queue = device.queue()
    one, other = tg.Semaphore(), tg.Semaphore()
    works = [queue.barrier(wait=one.at(1), signal=other.at(1)), queue.barrier(wait=other.at(1), signal=one.at(1))]
    device.close(timeout=LIMIT)
    for work in works:
        assert isinstance(failure_of(work), tg.AbortedError)


def test_close_wakes_threads_that_wait_for_what_is_aborted(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    gate, end = tg.Semaphore(), tg.Semaphore()
    work = device.queue().barrier(wait=gate.at(1), signal=end.at(1))
    waiters: list[Background[Any]] = [
        background(work.wait, LIMIT),
        background(end.wait, 1, LIMIT),
        background(tg.wait_any, [work], LIMIT),
    ]
    device.close(timeout=LIMIT)
    for waiter in waiters:
        error = waiter.error()
        assert isinstance(error, tg.SemaphoreFailedError)
        assert isinstance(error.__cause__, tg.AbortedError)


@pytest.mark.rules("M35", "M40")
def test_close_over_its_time_names_what_still_runs_and_may_be_called_again(
    open_device: Callable[..., tg.Device], latch: Latch
) -> None:
    device = open_device()
    queue = device.queue()
    blocked = latch.block(queue)
    latch.wait_until_running()
    for timeout in (0, 0.01):
        with pytest.raises(tg.DeadlineExceededError) as caught:
            device.close(timeout=timeout)
        assert "latches.py" in str(caught.value)
    with pytest.raises(tg.ClosedError):
        queue.barrier()
    latch.open()
    device.close(timeout=LIMIT)
    blocked.wait(timeout=LIMIT)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_close_refuses_a_wrong_timeout_and_stays_open(device: tg.Device, timeout: float) -> None:
    with pytest.raises(tg.InvalidArgumentError):
        device.close(timeout=timeout)
    device.queue().barrier().wait(timeout=LIMIT)


@pytest.mark.rules("M35", "M33")
def test_close_from_the_devices_own_host_call_is_refused(device: tg.Device, queue: tg.Queue) -> None:
    work = queue.host_call(device.close)
    assert isinstance(failure_of(work), tg.FailedPreconditionError)
    queue.barrier().wait(timeout=LIMIT)


@pytest.mark.rules("M35", "M33")
def test_close_from_a_host_call_of_another_device_works(
    device: tg.Device, open_device: Callable[..., tg.Device]
) -> None:
    other = open_device()
    device.queue().host_call(other.close, LIMIT).wait(timeout=LIMIT)
    with pytest.raises(tg.ClosedError):
        other.queue()


@pytest.mark.rules("M35", "M33")
def test_a_host_call_that_is_drained_may_not_submit_to_the_closing_device(
    open_device: Callable[..., tg.Device],
) -> None:
    device = open_device()
    queue = device.queue()
    inside, closing = threading.Event(), threading.Event()
    end = tg.Semaphore()

    def submits() -> None:
        inside.set()
        assert closing.wait(LIMIT)
        queue.barrier(signal=end.at(1))

    work = queue.host_call(submits)
    assert inside.wait(LIMIT)
    with pytest.raises(tg.DeadlineExceededError):
        device.close(timeout=0)
    closing.set()
    device.close(timeout=LIMIT)
    assert isinstance(failure_of(work), tg.ClosedError)
    assert (end.value, end.failure) == (0, None)


def test_close_from_many_threads_at_once(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    gate = tg.Semaphore()
    held = [device.queue().barrier(wait=gate.at(1)) for _ in range(50)]
    closers = [background(device.close, LIMIT) for _ in range(4)]
    for closer in closers:
        closer.result()
    for work in held:
        assert isinstance(failure_of(work), tg.AbortedError)


def test_submitting_while_another_thread_closes_either_works_or_is_refused(
    open_device: Callable[..., tg.Device], switch_often: None
) -> None:
    for _ in range(10):
        device = open_device()
        queue = device.queue()
        made: list[tg.Submission] = []

        def submits(queue: tg.Queue = queue, made: list[tg.Submission] = made) -> None:
            try:
                while True:
                    made.append(queue.barrier())
            except tg.ClosedError:
                pass

        submitter = background(submits)
        while not made and submitter.running:
            pass
        device.close(timeout=LIMIT)
        submitter.result()
        for work in made:
            with contextlib.suppress(tg.SemaphoreFailedError):
                work.wait(timeout=LIMIT)
            assert work.error is None or isinstance(work.error, tg.AbortedError)


def test_closing_one_device_leaves_the_others_alone(device: tg.Device, open_device: Callable[..., tg.Device]) -> None:
    other = open_device()
    gate, end = tg.Semaphore(), tg.Semaphore()
    kept = device.queue().barrier(wait=gate.at(1), signal=end.at(1))
    doomed = other.queue().barrier(wait=gate.at(1))
    other.close(timeout=LIMIT)
    assert isinstance(failure_of(doomed), tg.AbortedError)
    assert not kept.done
    gate.signal(1)
    end.wait(1, timeout=LIMIT)


@pytest.mark.rules("M35", "M17")
def test_what_close_aborts_fails_its_dependents_on_other_devices(
    device: tg.Device, open_device: Callable[..., tg.Device]
) -> None:
    other = open_device()
    gate, sem = tg.Semaphore(), tg.Semaphore()
    other.queue().barrier(wait=gate.at(1), signal=sem.at(1))
    dependent = device.queue().barrier(wait=sem.at(1))
    other.close(timeout=LIMIT)
    assert isinstance(failure_of(dependent), tg.AbortedError)


@pytest.mark.rules("M35", "M18")
def test_a_device_that_is_dropped_without_close_finishes_its_work(subject: Subject) -> None:
    gate, end = tg.Semaphore(), tg.Semaphore()
    # Not by the fixture, which would keep the device: its work alone has to.
    subject.open_device().queue().barrier(wait=gate.at(1), signal=end.at(1))
    gc.collect()
    gate.signal(1)
    end.wait(1, timeout=LIMIT)


# A lost device ------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M36")
@pytest.mark.needs("loss")
def test_a_lost_device_wakes_every_waiter_and_fails_every_submission(
    open_device: Callable[..., tg.Device], latch: Latch
) -> None:
    device = open_device()
    queue = device.queue()
    gate, running = tg.Semaphore(), tg.Semaphore()
    ends = [tg.Semaphore() for _ in range(2)]
    issued = latch.block(queue, signal=running.at(1))
    latch.wait_until_running()
    held = queue.barrier(wait=gate.at(1), signal=ends[0].at(1))
    behind = queue.barrier(wait=running.at(1), signal=ends[1].at(1))
    points: list[tg.Timepoint | tg.Submission] = [issued, held, behind, running.at(1), ends[0].at(1), ends[1].at(1)]
    waiters = [background(point.wait, LIMIT) for point in points]
    lose_device(device)
    for waiter in waiters:
        error = waiter.error()
        assert isinstance(error, tg.SemaphoreFailedError)
        assert isinstance(error.__cause__, tg.DeviceLostError)
    for work in (issued, held, behind):
        assert work.done
        assert isinstance(work.error, tg.DeviceLostError)
    assert gate.failure is None
    # The kernel is still inside the latch: closing must not wait for it.
    device.close(timeout=LIMIT)


@pytest.mark.rules("M36")
@pytest.mark.needs("loss")
def test_a_lost_device_takes_no_new_work(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    queue = device.queue()
    lose_device(device)
    end = tg.Semaphore()
    try:
        work = queue.barrier(signal=end.at(1))
    except tg.DeviceLostError:
        assert (end.value, end.failure) == (0, None)
    else:
        assert isinstance(failure_of(work), tg.DeviceLostError)
        assert isinstance(failure_of(end.at(1)), tg.DeviceLostError)
    device.close(timeout=LIMIT)


@pytest.mark.rules("M36")
@pytest.mark.needs("loss")
def test_other_devices_go_on_when_one_is_lost(
    device: tg.Device, open_device: Callable[..., tg.Device], partner_device: tg.Device
) -> None:
    doomed = open_device()
    gate, lost = tg.Semaphore(), tg.Semaphore()
    doomed.queue().barrier(wait=gate.at(1), signal=lost.at(1))
    unrelated = [opened.queue().barrier(wait=gate.at(1)) for opened in (device, partner_device)]
    dependent = device.queue().barrier(wait=lost.at(1))
    lose_device(doomed)
    assert isinstance(failure_of(dependent), tg.DeviceLostError)
    gate.signal(1)
    tg.wait_all(unrelated, timeout=LIMIT)
    device.queue().host_call(lambda: None).wait(timeout=LIMIT)


@pytest.mark.rules("M36")
@pytest.mark.needs("loss")
def test_a_device_may_be_lost_twice_and_while_it_closes(open_device: Callable[..., tg.Device], latch: Latch) -> None:
    device = open_device()
    latch.block(device.queue())
    latch.wait_until_running()
    closing = background(device.close, LIMIT)
    lose_device(device)
    lose_device(device)
    closing.result()
    device.close(timeout=LIMIT)


@pytest.mark.rules("M36")
@pytest.mark.needs("loss")
def test_the_health_of_a_device_tells_that_it_is_lost(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    before = device.health
    lose_device(device)
    assert device.health != before
    assert "lost" in str(device.health).lower()


@pytest.mark.rules("M36", "M7")
@pytest.mark.needs("loss")
def test_what_was_reached_before_the_loss_stays_reached(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    sem = tg.Semaphore()
    done = device.queue().barrier(signal=sem.at(1))
    done.wait(timeout=LIMIT)
    lose_device(device)
    sem.wait(1, timeout=0)
    done.wait(timeout=0)
    assert done.error is None
