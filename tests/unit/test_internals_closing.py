"""The end of a device: closed, dropped or left to a child, what is drained, and what is given up (M35)."""

from __future__ import annotations

import gc
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import device as devices
from tidegate._core import progress, workload
from tidegate._core.device import Device, _close_dropped, _forget_in_child, open_devices
from tidegate._core.lock import core_lock
from tidegate._core.submission import RETIRED

from .hand_driver import LIMIT, HandDevice, catch_up, fill, open_by_hand


@pytest.fixture
def device(opened: tuple[tg.Device, HandDevice]) -> tg.Device:
    return opened[0]


# Closing -----------------------------------------------------------------------------------------------------------


def test_a_closed_device_is_forgotten_refuses_everything_and_may_be_closed_again() -> None:
    device, hand = open_by_hand()
    buffer, commands = device.allocate(4), device.record()
    commands.end()
    assert device in open_devices()
    assert device._poller in progress.pollers
    queue = device.queues[0]
    with device as entered:
        assert entered is device
    assert device.queues == ()
    assert (hand.closed, device._closed, device._closing) == (1, True, True)
    device.close()
    device._end()
    assert hand.closed == 1
    assert device not in open_devices()
    assert device._poller not in progress.pollers
    for call in (
        lambda: device.queue(),
        lambda: device.lane(),
        lambda: device.lane(queue),
        lambda: device.allocate(1),
        lambda: device.upload(b"x"),
        lambda: device.create_pool(),
        lambda: device.load(None),
        lambda: device.record(),
        lambda: device.trim(),
        lambda: queue.flush(),
        lambda: buffer.read(),
    ):
        with pytest.raises(tg.ClosedError, match=r"^device 'hand' is closed$"):
            call()
    with pytest.raises(tg.ClosedError, match=r"^barrier on queue 'compute' of device 'hand': the device is closed$"):
        queue.barrier(signal=tg.Semaphore().at(1))
    with pytest.raises(tg.ClosedError):
        queue.execute(commands)
    with pytest.raises(tg.InvalidArgumentError):
        device.close(-1)


def test_closing_drains_what_follows_from_issued_work_and_gives_up_the_rest(
    device: tg.Device, hand: HandDevice
) -> None:
    hand.follows = False
    gate, chain, alone = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    fill(device, signal=chain.at(1))
    follower = fill(device, wait=chain.at(1), signal=chain.at(2))
    last = fill(device, wait=follower, signal=alone.at(5))
    below = fill(device, wait=alone.at(4))
    mixed = fill(device, wait=[chain.at(2), gate.at(1)])
    lonely = fill(device, wait=gate.at(1))
    above = fill(device, wait=chain.at(9))
    with core_lock:
        doomed = device._doomed_locked()
    assert set(doomed) == {mixed, lonely, above}
    with pytest.raises(tg.DeadlineExceededError) as caught:
        device.close(0)
    assert device.health is tg.Health.CLOSED
    assert (hand.closed, device._closed) == (0, False)
    with pytest.raises(tg.ClosedError):
        device.queue()
    assert [isinstance(one.error, tg.AbortedError) for one in (mixed, lonely, above)] == [True] * 3
    assert str(lonely.error) == f"{lonely.describe()} was given up: device 'hand' is closed"
    assert "device 'hand' is not drained: 4 submissions still run: " in str(caught.value)
    assert set(caught.value.submissions) == {*device._issued, follower, last, below}  # type: ignore[attr-defined]
    hand.follows = True
    while hand.one.word < 4:
        hand.one.over(hand.one.issued, wake=True)
        catch_up()
    device.close(LIMIT)
    assert [one.error for one in (follower, last, below)] == [None] * 3


def test_the_text_of_a_device_that_is_not_drained_names_eight_at_most(device: tg.Device, hand: HandDevice) -> None:
    works = [fill(device) for _ in range(10)]
    with pytest.raises(tg.DeadlineExceededError) as caught:
        device.close(0)
    assert str(caught.value).count("fill on") == 8
    assert "10 submissions still run" in str(caught.value)
    assert caught.value.submissions == works  # type: ignore[attr-defined]


def test_closing_sees_for_itself_what_is_over(device: tg.Device, hand: HandDevice) -> None:
    work = fill(device)
    hand.one.over(1)
    device.close(0)
    assert (work._stage, work._completion, hand.closed) == (RETIRED, None, 1)


def test_what_ends_just_as_the_time_is_over_counts_as_ended(
    device: tg.Device, hand: HandDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(device)

    def too_late(*_arguments: object) -> None:
        hand.one.over(1)
        raise tg.DeadlineExceededError("too late")

    monkeypatch.setattr(workload, "_wait_quietly", too_late)
    device.close(5)
    assert hand.closed == 1


def test_closing_waits_as_long_as_its_timeout_says(
    device: tg.Device, hand: HandDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []

    def wait(_submission: object, timeout: float | None) -> None:
        asked.append(timeout)
        hand.one.over(1)

    monkeypatch.setattr(workload, "_wait_quietly", wait)
    clock = [100.0]
    monkeypatch.setattr(devices, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(workload, "time", SimpleNamespace(monotonic=lambda: 101.5))
    fill(device)
    device.close(5.0)
    assert asked == [3.5]
    assert time.monotonic() > 0


def test_closing_waits_for_ever_without_a_timeout_and_never_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for timeout, found in ((None, None), (1.0, 0.0)):
        device, hand = open_by_hand()
        asked: list[float | None] = []

        def wait(_submission: object, timeout: float | None, hand: HandDevice = hand, asked: Any = asked) -> None:
            asked.append(timeout)
            hand.one.over(1)

        with monkeypatch.context() as patched:
            patched.setattr(workload, "_wait_quietly", wait)
            patched.setattr(devices, "time", SimpleNamespace(monotonic=lambda: 100.0))
            patched.setattr(workload, "time", SimpleNamespace(monotonic=lambda: 200.0))
            fill(device)
            device.close(timeout)
        assert asked == [found]


def test_waiting_quietly_passes_over_failures_and_not_over_time(device: tg.Device, hand: HandDevice) -> None:
    work = fill(device)
    with pytest.raises(tg.DeadlineExceededError):
        workload._wait_quietly(work, 0)
    hand.one.failures[1] = ValueError()
    hand.one.over(1)
    workload._wait_quietly(work, 0)
    workload._wait_quietly(work, -1)  # over: nothing is waited for


def test_a_device_is_not_closed_from_its_own_host_call(device: tg.Device) -> None:
    call = device.queue().host_call(device.close)
    call_error = None
    try:
        call.wait(LIMIT)
    except tg.SemaphoreFailedError as error:
        call_error = error.__cause__
    assert isinstance(call_error, tg.FailedPreconditionError)
    assert str(call_error) == "device 'hand' cannot be closed from its own host call: it would wait for itself"
    other, _ = open_by_hand("other")
    device.queue().host_call(other.close).wait(LIMIT)
    assert other.health is tg.Health.CLOSED


def test_a_device_of_the_parent_cannot_be_closed_or_used_in_the_child(device: tg.Device) -> None:
    here = device._process
    device._process = SimpleNamespace(forked=True, exiting=False)  # type: ignore[assignment]
    try:
        for call in (device.close, device.queue, device.trim, device.record):
            with pytest.raises(tg.FailedPreconditionError, match=r"^device 'hand' was made before this process was"):
                call()
    finally:
        device._process = here


def test_in_a_child_open_devices_are_forgotten_and_refuse_in_these_words(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    import weakref

    monkeypatch.setattr(devices, "_open_devices", weakref.WeakSet([device]))
    _forget_in_child()
    assert open_devices() == []
    for points in (tg.Semaphore().at(1), [tg.Semaphore().at(1)]):
        with pytest.raises(tg.FailedPreconditionError) as caught:
            device.queue().barrier(signal=points)
        assert str(caught.value) == (
            "barrier on queue 'compute' of device 'hand': the device was opened before this process was forked"
        )
    device._refusal = None


def test_an_interrupted_close_of_the_driver_is_completed_by_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    device, hand = open_by_hand()
    close, errors = hand.close, [KeyboardInterrupt()]

    def interrupted() -> None:
        if errors:
            raise errors.pop()
        close()

    monkeypatch.setattr(hand, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.close(LIMIT)
    catch_up()
    assert (hand.closed, device.health) == (1, tg.Health.CLOSED)


# Dropping ----------------------------------------------------------------------------------------------------------


def test_a_dropped_device_is_closed_with_a_warning_by_the_reaper() -> None:
    device, hand = open_by_hand()
    poller = device._poller
    assert poller in progress.pollers
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del device
        gc.collect()
        catch_up()
    assert hand.closed == 1
    assert poller not in progress.pollers
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == [
        "device 'hand' was dropped without close()"
    ]
    with pytest.warns(ResourceWarning, match="'again' was dropped"):
        _close_dropped(hand, poller, "again")


@pytest.mark.parametrize("state", ["closed", "forked", "exiting"])
def test_a_device_that_need_not_be_closed_is_dropped_in_silence(state: str) -> None:
    device, hand = open_by_hand()
    if state == "closed":
        device.close()
    else:
        device._forget()
        device._process = SimpleNamespace(forked=state == "forked", exiting=state == "exiting")  # type: ignore[assignment]
    del device
    gc.collect()
    catch_up()
    assert hand.closed == (state == "closed")


def test_a_device_whose_constructor_failed_is_dropped_in_silence(unraisable: list[Any]) -> None:
    device = Device.__new__(Device)
    del device
    gc.collect()
    assert unraisable == []
