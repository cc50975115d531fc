"""A device that is lost: whoever waits is told, everything else is refused, and nothing hangs (M36)."""

from __future__ import annotations

import gc

import pytest

import tidegate as tg
from tidegate.testing import ManualDevice

LIMIT = 30.0


def fill(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.queue.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def test_a_lost_device_fails_everything_and_refuses_everything(either: ManualDevice) -> None:
    gate, signals, cause = tg.Semaphore(), [tg.Semaphore() for _ in range(3)], OSError("unplugged")
    held = fill(either, wait=gate.at(1), signal=signals[0].at(1))
    issued = fill(either, signal=signals[1].at(1))
    either.full = True
    put_off = fill(either, signal=signals[2].at(1))
    either.lose(cause)
    for work, semaphore in zip((held, issued, put_off), signals, strict=True):
        assert work.done
        assert work.error is semaphore.failure
    lost = issued.error
    assert isinstance(lost, tg.DeviceLostError)
    assert (str(lost), lost.__cause__) == ("device 'manual' is lost: unplugged", cause)
    device = either.device
    assert device.health is tg.Health.LOST
    for call in (device.queue, device.trim, device.record):
        with pytest.raises(tg.DeviceLostError, match=r"^device 'manual' is lost$") as caught:
            call()
        assert caught.value.__cause__ is lost
    with pytest.raises(tg.DeviceLostError) as caught:
        either.queue.barrier(signal=tg.Semaphore().at(1))
    assert str(caught.value) == "barrier on queue 'compute' of device 'manual': the device is lost"
    assert caught.value.__cause__ is lost
    either.lose(OSError("again"))
    device.close(LIMIT)
    assert device.health is tg.Health.LOST


def test_an_error_that_says_lost_already_is_taken_as_it_is(either: ManualDevice) -> None:
    work, cause = fill(either), tg.DeviceLostError("gone")
    either.lose(cause)
    assert work.error is cause
    assert cause.__cause__ is None


def test_the_end_of_work_that_was_lost_comes_too_late(either: ManualDevice) -> None:
    done = tg.Semaphore()
    work = fill(either, signal=done.at(1))
    either.lose(OSError("unplugged"))
    either.finish_all()
    assert isinstance(work.error, tg.DeviceLostError)
    assert done.value == 0


def test_the_loss_of_a_device_that_was_dropped_concerns_nobody() -> None:
    manual = ManualDevice()
    manual.device.close(LIMIT)
    sink = manual.driver.sink
    del manual
    gc.collect()
    sink.lost(OSError())
    sink.room()


def test_what_was_cancelled_before_the_loss_stays_cancelled(either: ManualDevice) -> None:
    gate = tg.Semaphore()
    held = fill(either, wait=gate.at(1))
    assert held.cancel()
    either.lose(OSError("unplugged"))
    assert isinstance(held.error, tg.AbortedError)


def test_a_callback_of_the_loss_may_submit_elsewhere_and_is_refused_here(either: ManualDevice) -> None:
    done, told = tg.Semaphore(), []
    with ManualDevice(label="other") as other:

        def act(*_told: object) -> None:
            told.append(fill(other))
            with pytest.raises(tg.DeviceLostError):
                fill(either)
            told.append("refused")

        fill(either, signal=done.at(1))
        done.at(1).add_callback(act)
        either.lose(OSError("unplugged"))
        assert told[1:] == ["refused"]
        other.finish_all()
        assert told[0].error is None
