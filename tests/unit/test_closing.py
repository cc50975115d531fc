"""The end of a device: what is drained, what is given up, what is refused afterwards (M35)."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import Any

import pytest

import tidegate as tg
from tidegate.conformance.threads import background
from tidegate.testing import ManualDevice

LIMIT = 30.0


def fill(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.queue.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def test_a_closed_device_refuses_everything_in_these_words_and_may_be_closed_again() -> None:
    manual = ManualDevice()
    device, queue, buffer, commands = manual.device, manual.queue, manual.buffer, manual.device.record()
    commands.end()
    with device as entered:
        assert entered is device
    assert device.queues == ()
    device.close()
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
        with pytest.raises(tg.ClosedError, match=r"^device 'manual' is closed$"):
            call()
    with pytest.raises(tg.ClosedError, match=r"^barrier on queue 'compute' of device 'manual': the device is closed$"):
        queue.barrier(signal=tg.Semaphore().at(1))
    with pytest.raises(tg.ClosedError):
        queue.execute(commands)
    with pytest.raises(tg.InvalidArgumentError):
        device.close(-1)


def test_closing_drains_what_follows_from_issued_work_and_gives_up_the_rest(either: ManualDevice) -> None:
    either.follows = False
    gate, chain, alone = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    first = fill(either, signal=chain.at(1))
    follower = fill(either, wait=chain.at(1), signal=chain.at(2))
    last = fill(either, wait=follower, signal=alone.at(5))
    below = fill(either, wait=alone.at(4))
    doomed = [
        fill(either, wait=[chain.at(2), gate.at(1)]),
        fill(either, wait=gate.at(1)),
        fill(either, wait=chain.at(9)),
    ]
    with pytest.raises(tg.DeadlineExceededError) as caught:
        either.device.close(0)
    assert either.device.health is tg.Health.CLOSED
    with pytest.raises(tg.ClosedError):
        either.device.queue()
    assert [type(one.error) for one in doomed] == [tg.AbortedError] * 3
    assert str(doomed[1].error) == f"{doomed[1].describe()} was given up: device 'manual' is closed"
    assert "device 'manual' is not drained: 4 submissions still run: " in str(caught.value)
    assert set(caught.value.submissions) == {first, follower, last, below}  # type: ignore[attr-defined]
    either.automatic = True
    either.finish_all()
    either.device.close(LIMIT)
    assert [one.error for one in (first, follower, last, below)] == [None] * 4


def test_the_text_of_a_device_that_is_not_drained_names_eight_at_most(either: ManualDevice) -> None:
    works = [fill(either) for _ in range(10)]
    with pytest.raises(tg.DeadlineExceededError) as caught:
        either.device.close(0)
    assert str(caught.value).count("fill on") == 8
    assert "10 submissions still run" in str(caught.value)
    assert set(caught.value.submissions) == set(works)  # type: ignore[attr-defined]


def test_closing_sees_for_itself_what_is_over(counting: ManualDevice) -> None:
    work = fill(counting)
    counting.issued[0].finish(tell=False)
    counting.device.close(0)
    assert work.done


def test_closing_waits_for_what_runs_and_passes_over_failures(either: ManualDevice) -> None:
    works = [fill(either) for _ in range(3)]
    closing = background(either.device.close, LIMIT)
    while either.device.health is tg.Health.OK:
        pass
    either.issued[0].fail(ValueError("seen below"))
    either.finish_all()
    closing.result()
    assert [type(work.error) for work in works] == [ValueError, type(None), type(None)]


def test_a_device_is_not_closed_from_its_own_host_call_and_another_one_is(manual: ManualDevice) -> None:
    call = manual.queue.host_call(manual.device.close)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        call.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.FailedPreconditionError)
    assert str(call.error) == "device 'manual' cannot be closed from its own host call: it would wait for itself"
    other = ManualDevice(label="other")
    manual.queue.host_call(other.device.close).wait(LIMIT)
    assert other.device.health is tg.Health.CLOSED


def test_a_close_of_the_driver_that_was_interrupted_is_made_again() -> None:
    manual, closed = ManualDevice(), threading.Event()
    problems = [KeyboardInterrupt()]

    def close() -> None:
        if problems:
            raise problems.pop()
        closed.set()

    manual.driver.close = close  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        manual.device.close(LIMIT)
    assert closed.wait(LIMIT)
    assert manual.device.health is tg.Health.CLOSED


def test_a_dropped_device_is_closed_with_a_warning() -> None:
    manual, closed = ManualDevice(), threading.Event()
    caught: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_rest, **_named: (caught.append(str(message)), closed.set())  # type: ignore[assignment]
        del manual
        gc.collect()
        assert closed.wait(LIMIT)
    assert caught == ["device 'manual' was dropped without close()"]


def test_a_closed_device_is_dropped_in_silence(unraisable: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manual = ManualDevice()
        manual.device.close()
        del manual
        gc.collect()
    assert unraisable == []
