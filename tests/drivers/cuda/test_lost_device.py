"""A device whose context is dead: whoever looks, waits or submits is told, by the errors of the model (M36)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tidegate as tg
from tidegate._core.compiled import poll_devices
from tidegate.drivers.cuda._native import NativeError
from tidegate.drivers.cuda.stream import Stream

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until

FORMS = [{}, {"epochs": "events"}, {"gil": "release"}]


@pytest.fixture(params=FORMS, ids=str)
def faulty(request: pytest.FixtureRequest) -> Iterator[tuple[SimulatedBench, tg.Submission]]:
    """A device on which a kernel has faulted, and nobody has looked since."""
    with bench(request.param) as found:
        touch = found.device.load(TOUCH)["touch"]
        target = found.device.allocate(64)
        found.native.fault_next_launch()
        work = found.queue.dispatch(touch, (1, 1, 1), bindings=[target])
        until(lambda: found.native.machine.cards[0].fault)
        yield found, work


def _is_lost(error: BaseException | None) -> bool:
    return isinstance(error, tg.DeviceLostError) and "restarted" in str(error)


def test_who_begins_to_wait_after_the_fault_is_told(faulty: tuple[SimulatedBench, tg.Submission]) -> None:
    found, work = faulty
    with pytest.raises(tg.SemaphoreFailedError) as raised:
        work.wait(LIMIT)
    assert _is_lost(raised.value.__cause__)
    assert found.device.health is tg.Health.LOST


def test_who_only_looks_is_told(faulty: tuple[SimulatedBench, tg.Submission]) -> None:
    _, work = faulty
    until(lambda: work.done)
    assert _is_lost(work.error)


def test_other_devices_go_on_beside_one_that_is_lost(faulty: tuple[SimulatedBench, tg.Submission]) -> None:
    """Whoever waits for anything lets every open device progress."""
    for _ in range(1000):
        poll_devices()
    with tg.open_device("cpu") as cpu:
        cpu.queue().fill(cpu.allocate(64), 1).wait(LIMIT)


def test_a_device_that_is_lost_between_an_open_epoch_and_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt left an epoch open, and the call that shall close it finds the device gone."""
    with bench({"gil": "release"}) as found:
        target = found.device.allocate(64)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        close, left = Stream._close, [interrupted]
        monkeypatch.setattr(found.native, "fill", interrupted)
        monkeypatch.setattr(Stream, "_close", lambda self, *given: (left.pop() if left else close)(self, *given))
        done = tg.Semaphore()
        with pytest.raises(KeyboardInterrupt):
            found.queue.fill(target, 1, signal=done.at(1))
        found.native.machine.cards[0].die(700)
        with pytest.raises(tg.SemaphoreFailedError):
            done.wait(1, LIMIT)
        assert found.device.health is tg.Health.LOST


def test_an_event_that_cannot_be_made_for_a_sleeper_is_no_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as found:
        latch, blocked = found.latch()
        create, left = found.native.create_event, [NativeError("cuEventCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY", "no")]

        def refused(blocking: bool) -> object:
            if left:
                raise left.pop()
            return create(blocking)

        monkeypatch.setattr(found.native, "create_event", refused)
        with pytest.raises(tg.DeadlineExceededError):
            blocked.wait(0.01)
        assert not left
        latch.open()
        blocked.wait(LIMIT)
        assert found.device.health is tg.Health.OK


def test_a_lost_device_frees_what_waits_for_a_download_and_can_be_closed() -> None:
    with bench() as found:
        latch, blocked = found.latch()
        into = np.zeros(64, np.uint8)
        work = found.queue.download(found.shared(64), into, wait=blocked)
        found.native.machine.cards[0].die(719)
        with pytest.raises(tg.SemaphoreFailedError):
            work.wait(LIMIT)
        latch.open()
