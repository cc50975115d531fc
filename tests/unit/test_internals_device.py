"""A device and the work on it: how it is named, how it ends, how it is lost, and who is told (M35 to M37)."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import device as devices
from tidegate._core import issuing, process, progress, registry, workload
from tidegate._core.device import Device, _close_dropped, _forget_in_child, open_devices
from tidegate._core.issuing import HostWork
from tidegate._core.lock import core_lock
from tidegate._core.submission import HELD, ISSUED, RETIRED
from tidegate._core.thread_state import thread_state
from tidegate._core.workload import Workload, _follows_locked, _host_task, _waiting_for_locked
from tidegate.driver import DeviceRequest
from tidegate.drivers.null import NullDriver
from tidegate.types import DeviceInfo, DriverInfo

from .hand_driver import LIMIT, HandDevice, catch_up, close_by_hand, open_by_hand


@pytest.fixture
def opened() -> Iterator[tuple[tg.Device, HandDevice]]:
    device, hand = open_by_hand()
    yield device, hand
    close_by_hand(device, hand)


@pytest.fixture
def device(opened: tuple[tg.Device, HandDevice]) -> tg.Device:
    return opened[0]


@pytest.fixture
def hand(opened: tuple[tg.Device, HandDevice]) -> HandDevice:
    return opened[1]


def fill(device: tg.Device, **options: Any) -> tg.Submission:
    return device.queue().fill(device.allocate(4), 0, **options)


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


# Closing -----------------------------------------------------------------------------------------------------------


def test_a_closed_device_is_forgotten_refuses_everything_and_may_be_closed_again() -> None:
    device, hand = open_by_hand()
    buffer, commands = device.allocate(4), device.record()
    commands.end()
    assert device in open_devices()
    assert device._poller in progress.pollers
    with device as entered:
        assert entered is device
    assert (hand.closed, device._closed, device._closing) == (1, True, True)
    device.close()
    device._end()
    assert hand.closed == 1
    assert device not in open_devices()
    assert device._poller not in progress.pollers
    for call in (
        lambda: device.queue(),
        lambda: device.lane(),
        lambda: device.lane(device.queues[0]),
        lambda: device.allocate(1),
        lambda: device.upload(b"x"),
        lambda: device.create_pool(),
        lambda: device.load(None),
        lambda: device.record(),
        lambda: device.trim(),
        lambda: device.queues[0].flush(),
        lambda: buffer.read(),
    ):
        with pytest.raises(tg.ClosedError, match=r"^device 'hand' is closed$"):
            call()
    with pytest.raises(tg.ClosedError, match=r"^barrier on queue 'compute' of device 'hand': the device is closed$"):
        device.queues[0].barrier(signal=tg.Semaphore().at(1))
    with pytest.raises(tg.ClosedError):
        device.queues[0].execute(commands)
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


def test_followers_are_found_by_signals_and_by_the_handle(device: tg.Device) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    producer = fill(device, wait=gate.at(1), signal=done.at(1))
    by_signal = fill(device, wait=done.at(1))
    with core_lock:
        assert _waiting_for_locked(producer) == [by_signal]
    by_handle = fill(device, wait=producer)
    done.at(1).add_callback(lambda *_told: None)
    with core_lock:
        assert set(_waiting_for_locked(producer)) == {by_signal, by_handle}
        assert _follows_locked(by_signal, {id(producer)})
        assert not _follows_locked(by_signal, {id(by_handle)})
        assert not _follows_locked(by_signal, set())
        done._state.claims[7] = lambda: None  # type: ignore[assignment]
        assert _follows_locked(by_signal, {id(producer)})
        assert not _follows_locked(by_signal, set())
        del done._state.claims[7]
    producer.cancel()
    assert by_handle.done
    assert by_signal.done


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


# Finding drivers ---------------------------------------------------------------------------------------------------


class Fake(NullDriver):
    def __init__(self, name: str, available: bool = True) -> None:
        self.name = name
        self._available = available

    def describe(self) -> DriverInfo:
        devices = (DeviceInfo(f"{self.name}:0", self.name, self.name, memory_bytes=0),) if self._available else ()
        return DriverInfo(self.name, available=self._available, devices=devices)

    def open(self, request: DeviceRequest) -> Any:
        if not self._available:
            raise tg.DriverUnavailableError(f"no {self.name} here")
        device = HandDevice()
        device.request = request  # type: ignore[attr-defined]
        return device


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A registry of its own, with what the test puts there."""
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(registry, "_OWN", {})
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    return registry._loaded  # type: ignore[return-value]


def test_a_driver_is_loaded_once_from_an_object_or_a_function(
    drivers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Fake("made")
    calls: list[int] = []
    module = SimpleNamespace(driver=made, factory=lambda: calls.append(1) or made)
    monkeypatch.setattr(registry, "import_module", {"some.module": module}.__getitem__)
    registry.register_driver("object", "some.module:driver")
    registry.register_driver("function", "some.module:factory")
    point = SimpleNamespace(name="entry", value="some.module:driver")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == "tidegate.drivers" else [])
    for name in ("object", "function", "entry"):
        assert registry.load_driver(name) is made
        assert registry.load_driver(name) is made
    assert calls == [1]
    assert set(drivers) == {"object", "function", "entry"}


def test_our_own_drivers_come_before_those_of_entry_points(
    drivers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register_driver("x", "ours:driver")
    points = [SimpleNamespace(name="x", value="theirs:driver"), SimpleNamespace(name="y", value="theirs:other")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    assert registry._known() == {"x": "ours:driver", "y": "theirs:other"}


def test_unknown_drivers_are_refused_in_these_words(drivers: dict[str, Any]) -> None:
    with pytest.raises(tg.UnsupportedError, match=r"^driver 'sim': the simulator is not part of this version$"):
        tg.open_device("sim")
    registry._OWN.update(two="-", one="-")
    with pytest.raises(tg.NotFoundError, match=r"^there is no driver 'tpu'; the known ones are: one, two$") as caught:
        tg.open_device("tpu")
    assert caught.value.name == "tpu"


def test_drivers_are_listed_with_the_reason_why_not(drivers: dict[str, Any]) -> None:
    drivers["good"] = Fake("good")
    registry._OWN.update(good="-", broken="no.such.module:driver")
    good, broken = tg.list_drivers()
    assert (good.name, good.available) == ("good", True)
    assert (broken.name, broken.available) == ("broken", False)
    assert "No module named" in broken.reason


def test_devices_are_listed_best_first_without_the_hidden(drivers: dict[str, Any]) -> None:
    for name in ("other", "cpu", "null", "metal", "cuda"):
        drivers[name] = Fake(name, available=name != "metal")
        registry._OWN[name] = "-"
    assert [info.uri for info in tg.list_devices()] == ["cuda:0", "cpu:0", "other:0"]


@pytest.mark.parametrize(
    ("present", "opened"), [(("cuda", "cpu"), "cuda"), (("cpu",), "cpu"), (("metal", "cpu"), "metal")]
)
def test_auto_opens_the_best_that_is_there_with_the_options_given(
    drivers: dict[str, Any], present: tuple[str, ...], opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cuda", "metal", "cpu"):
        drivers[name] = Fake(name, available=name in present)
    monkeypatch.setenv("TIDEGATE_DEVICE", "")
    for uri in ("auto?memory=1", None):
        with tg.open_device(uri, label="best") as device:
            request = device._driver.request  # type: ignore[attr-defined]
            assert (device._driver_name, device._uri, device.label) == (opened, opened, "best")
            assert (request.uri, request.driver, request.path) == (opened, opened, "")
            assert request.options == ({"memory": "1"} if uri else {})


def test_auto_with_nothing_there_says_what_the_last_one_says(drivers: dict[str, Any]) -> None:
    for name in ("cuda", "metal", "cpu"):
        drivers[name] = Fake(name, available=False)
    with pytest.raises(tg.DriverUnavailableError, match=r"^no cpu here$"):
        tg.open_device("auto")


def test_the_environment_names_the_device_where_the_call_does_not(
    drivers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers["one"], drivers["two"] = Fake("one"), Fake("two")
    monkeypatch.setenv("TIDEGATE_DEVICE", "one:3?a=b")
    with tg.open_device() as device:
        assert (device._driver_name, device._uri) == ("one", "one:3?a=b")
    with tg.open_device("two") as device:
        assert device._driver_name == "two"


def test_options_of_later_versions_are_refused() -> None:
    with pytest.raises(tg.UnsupportedError, match=r"^open_device: validate= is not part of this version$"):
        tg.open_device("null", validate=True)
    with pytest.raises(tg.UnsupportedError, match=r"^open_device: trace= is not part of this version$"):
        tg.open_device("null", trace=True)
    with tg.open_device("null", validate=False, trace=None):
        pass


def test_a_device_whose_constructor_failed_is_dropped_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    device = Device.__new__(Device)
    del device
    gc.collect()
    assert unraisable == []


def test_the_end_of_the_interpreter_is_noted() -> None:
    import subprocess
    import sys

    program = (
        "import atexit, tidegate; from tidegate._core import process;"
        "atexit._run_exitfuncs(); raise SystemExit(not process.here.exiting)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT, check=False).returncode == 0


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
