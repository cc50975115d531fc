"""A device and the work on it: how it is named, how it is lost, and who is told (M36, M37)."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import issuing, process, progress, registry, workload
from tidegate._core.device import Device
from tidegate._core.issuing import HostWork
from tidegate._core.lock import core_lock
from tidegate._core.submission import HELD, ISSUED, RETIRED
from tidegate._core.thread_state import thread_state
from tidegate._core.workload import Workload, _host_task
from tidegate.drivers.null import NullDriver

from .hand_driver import LIMIT, HandDevice, catch_up, fill, open_by_hand


@pytest.fixture
def device(opened: tuple[tg.Device, HandDevice]) -> tg.Device:
    return opened[0]


# What it is --------------------------------------------------------------------------------------------------------


def test_a_device_tells_its_name_and_health(device: tg.Device, hand: HandDevice) -> None:
    assert (device.label, device.describe(), device.info) == ("hand", "device 'hand'", hand.info)
    assert repr(device) == "<tidegate.Device device 'hand' ok>"
    plain = Device(NullDriver(), HandDevice(), "the-uri", "")
    assert plain.describe() == "device 'the-uri'"
    assert (device.health, device._attention, device._submitted, device._retired) == (tg.Health.OK, False, 0, 0)
    plain.close()
    assert plain.health is tg.Health.CLOSED
    with pytest.raises(NotImplementedError):
        Workload(HandDevice()).describe()


def test_queues_are_made_once_per_kind_and_priority(device: tg.Device, hand: HandDevice) -> None:
    assert [queue.kind for queue in device.queues] == ["compute", "transfer"]
    urgent = device.queue("transfer", 2)
    assert urgent is device.queue("transfer", priority=2)
    assert (urgent.kind, urgent.priority, urgent.device) == ("transfer", 2, device)
    assert repr(urgent) == "<tidegate.Queue queue 'transfer' of device 'hand'>"
    assert device.queues[2:] == (urgent,)
    assert device._host_queue() is device.queue("transfer")
    assert device.queue().priority == 0
    with pytest.raises(tg.InvalidArgumentError, match=r"^device 'hand' has no queue 'copy': it has compute, transfer$"):
        device.queue("copy")
    with pytest.raises(TypeError, match=r"^the priority must be an int, not str$"):
        device.queue("compute", "high")  # type: ignore[arg-type]
    urgent.flush()
    assert hand.flushes == 1


def test_a_lane_belongs_to_its_device(device: tg.Device) -> None:
    other, _ = open_by_hand("other")
    assert device.lane().queue is device.queue()
    assert device.lane(device.queue("transfer")).queue.kind == "transfer"
    with pytest.raises(tg.InvalidArgumentError, match=r"^queue 'compute' of device 'other' does not belong to device"):
        device.lane(other.queue())
    other.close()


def test_a_semaphore_of_a_device_has_its_name_and_the_line_of_the_caller(device: tg.Device) -> None:
    import sys

    line = sys._getframe().f_lineno + 1
    semaphore = device.create_semaphore(3, label="s")
    assert (semaphore.label, semaphore.value, device.create_semaphore().label) == ("hand/s", 3, "")
    assert device.create_semaphore().value == 0
    assert f"{__file__}:{line}" in semaphore.at(4).explain()
    unnamed = Device(NullDriver(), HandDevice(), "the-uri", "")
    assert unnamed.create_semaphore(label="s").label == "the-uri/s"
    unnamed.close()


def test_every_semaphore_works_with_every_device_through_the_host(device: tg.Device) -> None:
    kinds = tg.Compatibility
    found = device.semaphore_compatibility(tg.Semaphore())
    for one in (kinds.HOST_WAIT, kinds.HOST_SIGNAL, kinds.DEVICE_WAIT, kinds.DEVICE_SIGNAL, kinds.THROUGH_HOST):
        assert one in found
    with pytest.raises(TypeError, match=r"^semaphore_compatibility takes a semaphore, not int$"):
        device.semaphore_compatibility(3)  # type: ignore[arg-type]


def test_statistics_count_what_is_held_issued_and_over_by_now(device: tg.Device, hand: HandDevice) -> None:
    gate = tg.Semaphore()
    held, issued, done = fill(device, wait=gate.at(1)), fill(device), None
    statistics = device.statistics()
    assert (statistics.held, statistics.issued, statistics.submitted, statistics.retired) == (1, 1, 2, 0)
    hand.one.over(1)
    statistics = device.statistics()
    assert (statistics.held, statistics.issued, statistics.retired, done) == (1, 0, 1, None)
    assert issued._stage == RETIRED
    held.cancel()
    assert device.statistics().held == 0


# Losing ------------------------------------------------------------------------------------------------------------


def test_a_lost_device_fails_everything_and_refuses_everything(hand: HandDevice, device: tg.Device) -> None:
    gate, signals, cause = tg.Semaphore(), [tg.Semaphore() for _ in range(3)], OSError("unplugged")
    held = fill(device, wait=gate.at(1), signal=signals[0].at(1))
    issued = fill(device, signal=signals[1].at(1))
    hand.full = True
    put_off = fill(device, signal=signals[2].at(1))
    hand.sink.lost(cause)
    for work, semaphore in zip((held, issued, put_off), signals, strict=True):
        assert (work._stage, work.error) == (RETIRED, semaphore.failure)
    lost = issued.error
    assert isinstance(lost, tg.DeviceLostError)
    assert (str(lost), lost.__cause__) == ("device 'hand' is lost: unplugged", cause)
    assert device.health is tg.Health.LOST
    for call in (device.queue, device.trim, device.record):
        with pytest.raises(tg.DeviceLostError, match=r"^device 'hand' is lost$") as caught:
            call()
        assert caught.value.__cause__ is lost
    with pytest.raises(tg.DeviceLostError) as caught:
        device.queues[0].barrier(signal=tg.Semaphore().at(1))
    assert str(caught.value) == "barrier on queue 'compute' of device 'hand': the device is lost"
    assert caught.value.__cause__ is lost
    hand.sink.lost(OSError("again"))
    assert device._lost is lost
    device.close(LIMIT)
    assert (device.health, hand.closed) == (tg.Health.LOST, 1)


def test_an_error_that_says_lost_already_is_taken_as_it_is(hand: HandDevice, device: tg.Device) -> None:
    work, cause = fill(device), tg.DeviceLostError("gone")
    hand.sink.lost(cause)
    assert work.error is cause
    assert cause.__cause__ is None


def test_the_loss_of_a_dropped_device_concerns_nobody() -> None:
    device, hand = open_by_hand()
    device.close()
    sink = hand.sink
    del device
    gc.collect()
    sink.lost(OSError())
    sink.room()


def test_an_interrupt_while_a_lost_device_fails_its_work_leaves_all_of_it_to_the_reaper(
    hand: HandDevice, device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = [fill(device) for _ in range(3)]
    retire = workload.retire

    def interrupted(submission: tg.Submission, error: BaseException) -> None:
        monkeypatch.setattr(workload, "retire", retire)
        raise KeyboardInterrupt

    monkeypatch.setattr(workload, "retire", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hand.sink.lost(OSError())
    catch_up()
    assert [work._stage for work in works] == [RETIRED] * 3
    assert all(isinstance(work.error, tg.DeviceLostError) for work in works)


# What is on it -----------------------------------------------------------------------------------------------------


def test_only_what_is_alive_and_held_counts_as_held(device: tg.Device) -> None:
    gate = tg.Semaphore()
    held = fill(device, wait=gate.at(1))
    device._held[0] = lambda: None  # type: ignore[assignment]
    with core_lock:
        assert device._held_locked() == [held]
        held._stage = ISSUED
        assert device._held_locked() == []
        held._stage = HELD
    del device._held[0]
    held.cancel()


def test_a_host_call_knows_its_device_only_while_it_runs(device: tg.Device) -> None:
    seen: list[Any] = []
    gate = tg.Semaphore()
    call = device.queue().host_call(int, wait=gate.at(1))

    def run() -> int:
        seen.append(thread_state.host_call_device)
        return 5

    _host_task(call, HostWork("host_call", run))
    assert seen == [device]
    assert thread_state.host_call_device is None
    assert (call.done, call._result) == (True, 5)


def test_a_host_call_that_raises_anything_fails_its_submission(device: tg.Device) -> None:
    gate = tg.Semaphore()
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt()):
        call = device.queue().host_call(int, wait=gate.at(1))

        def run(error: BaseException = error) -> None:
            raise error

        _host_task(call, HostWork("host_call", run))
        assert call.error is error
        assert thread_state.host_call_device is None


def test_a_result_of_none_leaves_what_was_there(device: tg.Device) -> None:
    gate = tg.Semaphore()
    call = device.queue().host_call(int, wait=gate.at(1))
    call._result = "array"
    _host_task(call, HostWork("host_call", lambda: None))
    assert call._result == "array"


def test_why_ready_work_is_not_issued_is_told(device: tg.Device, hand: HandDevice) -> None:
    work = fill(device)
    assert device._why_not_issued(work) == "ready"
    hand.full = True
    assert device._why_not_issued(fill(device)) == "ready, waiting for room on the device"


def test_work_that_is_launched_twice_is_issued_once(device: tg.Device, hand: HandDevice) -> None:
    work = fill(device)
    issuing.launch(work)
    assert len(hand.asked) == 1
    hand.one.over(1)
    assert work.done
    issuing.launch(work)
    assert len(hand.asked) == 1


# The process -------------------------------------------------------------------------------------------------------


def test_polling_asks_every_device_and_tells_whether_any_made_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def poller(number: int, answer: bool) -> Any:
        return lambda: bool(asked.append(number)) or answer

    for answers, found in (([], False), ([False, False], False), ([True, False], True), ([False, True], True)):
        asked.clear()
        monkeypatch.setattr(progress, "pollers", [poller(n, answer) for n, answer in enumerate(answers)])
        assert progress.poll_devices() is found
        assert asked == list(range(len(answers)))


def test_at_exit_the_devices_of_this_process_are_abandoned(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned: list[str] = []
    ours = SimpleNamespace(
        _process=SimpleNamespace(forked=False), _driver=SimpleNamespace(abandon=lambda: abandoned.append("ours"))
    )
    theirs = SimpleNamespace(
        _process=SimpleNamespace(forked=True), _driver=SimpleNamespace(abandon=lambda: abandoned.append("theirs"))
    )
    monkeypatch.setattr(registry, "open_devices", lambda: [theirs, ours])
    monkeypatch.setattr(process, "here", process.Process())
    assert not process.here.exiting
    assert not process.here.forked
    registry._at_exit()
    assert abandoned == ["ours"]
    assert process.here.exiting


def test_the_end_of_the_interpreter_is_noted() -> None:
    import subprocess
    import sys

    program = (
        "import atexit, tidegate; from tidegate._core import process;"
        "atexit._run_exitfuncs(); raise SystemExit(not process.here.exiting)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT, check=False).returncode == 0
