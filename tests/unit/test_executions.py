"""Recordings that are executed: what goes with each execution, and slots, checked when they are filled."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from tidegate.driver import Recording
from tidegate.testing import ManualDevice

LIMIT = 30.0


def noop(workgroups: Any, bindings: Any, constants: Any) -> None:
    pass


# Recordings --------------------------------------------------------------------------------------------------------


def test_a_recording_tells_what_it_is_and_forgets_what_was_discarded(device: tg.Device) -> None:
    buffer = device.allocate(8)
    commands = device.record(label="c")
    with pytest.raises(ValueError, match="stop"), commands:
        commands.fill(buffer, 0)
        assert repr(commands) == "<tidegate.CommandBuffer command buffer 'c', 1 commands, recording>"
        raise ValueError("stop")
    assert repr(commands) == "<tidegate.CommandBuffer command buffer 'c', 0 commands, discarded>"
    text = "^command buffer 'c' is discarded: nothing more can be recorded$"
    function = device.load(tg.Kernel("noop", bindings=0, cpu=noop))["noop"]
    for call in (
        commands.__enter__,
        commands.end,
        commands.barrier,
        commands.end_group,
        lambda: commands.begin_group("g"),
        lambda: commands.fill(buffer, 0),
        lambda: commands.dispatch(function, 1),
    ):
        with pytest.raises(tg.FailedPreconditionError, match=text):
            call()


def test_a_recorded_copy_writes_as_much_as_it_reads(device: tg.Device) -> None:
    small, large = device.upload(b"abcd"), device.upload(b"12345678")
    with device.record() as commands:
        commands.copy(small, large)
    device.queue().execute(commands).wait(LIMIT)
    assert large.read() == b"abcd5678"


def test_recorded_calls_are_checked_like_submitted_ones(device: tg.Device) -> None:
    function = device.load(tg.Kernel("noop", bindings=0, cpu=noop))["noop"]
    commands = device.record()
    with pytest.raises(TypeError, match=r"^dispatch takes a function of an executable, not int$"):
        commands.dispatch(3, 1)  # type: ignore[arg-type]
    with pytest.raises(
        tg.InvalidArgumentError, match=r"^function 'noop': the local memory is -1, and must be 0 or more$"
    ):
        commands.dispatch(function, 1, local_memory=-1)
    commands.dispatch(function, 1)
    commands.end()
    assert device.load(noop).label == ""


# Executions --------------------------------------------------------------------------------------------------------


def test_what_the_driver_prepared_and_what_it_costs_go_with_every_execution(
    manual: ManualDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, prepared = manual.device, []

    def prepare(recording: Recording) -> str:
        prepared.append(recording)
        return "native"

    monkeypatch.setattr(manual.driver, "prepare", prepare)
    buffer = device.allocate(8)
    with device.record(label="plain") as plain:
        plain.fill(buffer, 0)
    with device.record(one_shot=True) as slotted:
        slotted.fill(tg.slot(0), 0, length=4)
    assert [(recording.slots, recording.label, recording.one_shot) for recording in prepared] == [
        (0, "plain", False),
        (1, "", True),
    ]
    manual.queue.execute(plain)
    manual.queue.execute(slotted, bindings=[buffer])
    manual.queue.execute(plain, bindings=[buffer])
    works: list[Any] = [piece.work for piece in manual.issued]
    assert [work.prepared for work in works] == ["native"] * 3
    assert [work.recording for work in works] == [prepared[0], prepared[1], prepared[0]]
    assert [work.cost for work in works] == [8, None, 8]
    assert [len(work.table) for work in works] == [0, 1, 1]


def test_an_execution_uses_and_writes_what_its_commands_and_its_table_do(manual: ManualDevice) -> None:
    """What is in use stays although it is closed; what is written is waited for by a view."""
    device = manual.device
    source, target, table = (device.allocate(8, label=label) for label in ("source", "target", "table"))
    with device.record() as plain:
        plain.copy(source, target)
    with device.record() as slotted:
        slotted.copy(source, tg.slot(0))

    def written_by(submission: tg.Submission) -> list[str]:
        return [one.label for one in (source, target, table) if one.view("u1").ready is submission]

    assert written_by(manual.queue.execute(plain)) == ["target"]
    assert written_by(manual.queue.execute(plain, bindings=[table])) == ["target"]
    assert written_by(manual.queue.execute(slotted, bindings=[table])) == ["table"]
    pieces = manual.issued
    for buffer in (source, target, table):
        buffer.close()
    recording = pieces[1].work.recording  # type: ignore[attr-defined]
    copy = recording.commands[0].work
    assert [span.locate()[0].nbytes for span in (copy.source, copy.target, *pieces[1].work.table)] == [8, 8, 8]  # type: ignore[attr-defined]
    with pytest.raises(tg.ClosedError, match="'source' of 8 bytes is closed"):
        manual.queue.execute(plain)
    manual.finish_all()
    with pytest.raises(tg.FailedPreconditionError, match="has no storage"):
        copy.target.locate()


def test_a_recording_belongs_to_its_device_also_if_it_is_empty(manual: ManualDevice) -> None:
    with manual.device.record(label="c") as empty:
        pass
    text = "^command buffer 'c' belongs to device 'manual', not to device 'other'$"
    with ManualDevice(label="other") as other, pytest.raises(tg.InvalidArgumentError, match=text):
        other.queue.execute(empty)


def test_an_empty_recording_still_checks_its_table(device: tg.Device) -> None:
    with device.record() as empty:
        pass
    with pytest.raises(TypeError, match="takes a buffer, not str"):
        device.queue().execute(empty, bindings=["x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^execute takes a command buffer, not int$"):
        device.queue().execute(3)  # type: ignore[arg-type]
    device.queue().execute(empty, bindings=[device.allocate(4)]).wait(LIMIT)


# Slots -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slotted", ["source", "target", "both"])
def test_a_copy_with_slots_is_checked_when_they_are_filled(device: tg.Device, slotted: str) -> None:
    large, small = device.allocate(16), device.allocate(8)
    slots = {"source": (tg.slot(0), small), "target": (large, tg.slot(0)), "both": (tg.slot(0), tg.slot(1))}[slotted]
    table = {"source": [large], "target": [small], "both": [large, small]}[slotted]
    commands = device.record()
    commands.copy(*slots, length=None)
    commands.end()
    with pytest.raises(tg.OutOfRangeError):
        device.queue().execute(commands, bindings=table)
    same = {"source": [small], "target": [large], "both": [small, small]}[slotted]
    with pytest.raises(tg.InvalidArgumentError, match="overlap"):
        device.queue().execute(commands, bindings=same)


def test_a_recorded_copy_of_slots_takes_the_length_given(device: tg.Device) -> None:
    source, target = device.upload(b"abcdefgh"), device.upload(b"12345678")
    with device.record() as commands:
        commands.copy(source, tg.slot(0), source_offset=2, target_offset=1, length=3)
    device.queue().execute(commands, bindings=[target]).wait(LIMIT)
    assert target.read() == b"1cde5678"
    with device.record() as whole:
        whole.copy(source, tg.slot(0))
    device.queue().execute(whole, bindings=[target]).wait(LIMIT)
    assert target.read() == b"abcdefgh"
