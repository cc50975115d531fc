"""Recordings that are executed: what goes with each execution, and slots, checked when they are filled."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from tidegate.driver import SlotSpan

from .hand_driver import LIMIT, HandDevice, open_by_hand


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
    assert commands._touched == {}
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
    work = commands._commands[0].work
    assert (work.source.nbytes, work.target.nbytes) == (4, 4)
    device.queue().execute(commands).wait(LIMIT)
    assert large.read() == b"abcd5678"


def test_recorded_calls_are_checked_like_submitted_ones(device: tg.Device) -> None:
    function = device.load(tg.Kernel("noop", bindings=0, cpu=noop))["noop"]
    counts = device.allocate(12)
    commands = device.record()
    with pytest.raises(TypeError, match=r"^dispatch takes a function of an executable, not int$"):
        commands.dispatch(3, 1)  # type: ignore[arg-type]
    with pytest.raises(
        tg.InvalidArgumentError, match=r"^function 'noop': the local memory is -1, and must be 0 or more$"
    ):
        commands.dispatch(function, 1, local_memory=-1)
    commands.dispatch(function, 1)
    commands.dispatch_indirect(function, counts=counts)
    commands.dispatch_indirect(function, counts=counts, local_memory=8)
    commands.end()
    assert [command.work.local_memory for command in commands._commands] == [0, 0, 8]
    assert device.load(noop).label == ""


# Executions --------------------------------------------------------------------------------------------------------


def test_what_the_driver_prepared_and_what_it_costs_go_with_every_execution(
    opened: tuple[tg.Device, HandDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, hand = opened
    prepared: list[Any] = []
    monkeypatch.setattr(hand, "prepare", lambda recording: prepared.append(recording) or "native", raising=False)
    works: list[Any] = []
    hand.before_issue = lambda ticket: works.append(ticket._work)  # type: ignore[attr-defined]
    buffer = device.allocate(8)
    with device.record(label="plain") as plain:
        plain.fill(buffer, 0)
    with device.record() as slotted:
        slotted.fill(tg.Slot(0), 0, length=4)
    assert [recording.slots for recording in prepared] == [0, 1]
    assert prepared[0].label == "plain"
    device.queue().execute(plain)
    device.queue().execute(slotted, bindings=[buffer])
    device.queue().execute(plain, bindings=[buffer])
    assert [work.prepared for work in works] == ["native"] * 3
    assert [work.recording for work in works] == [prepared[0], prepared[1], prepared[0]]
    assert [work.cost for work in works] == [8, None, 8]
    assert [len(work.table) for work in works] == [0, 1, 1]


def test_an_execution_touches_and_writes_what_its_commands_do(opened: tuple[tg.Device, HandDevice]) -> None:
    device, _ = opened
    source, target, table = device.allocate(8), device.allocate(8), device.allocate(8)
    with device.record() as plain:
        plain.copy(source, target)
    with device.record() as slotted:
        slotted.copy(source, tg.Slot(0))
    _, touched, written = plain._execute(device, ())
    assert (touched, written) == ([source._memory, target._memory], [target._memory])
    _, touched, written = plain._execute(device, [table])
    assert (touched, written) == ([source._memory, target._memory, table._memory], [target._memory])
    _, touched, written = slotted._execute(device, [table])
    assert (touched, written) == ([source._memory, table._memory], [table._memory])
    target.close()
    with pytest.raises(tg.ClosedError, match="is closed"):
        plain._execute(device, ())
    with device.record() as empty:
        pass
    assert empty._is_empty_for(device)
    other, _ = open_by_hand("other")
    assert not empty._is_empty_for(other)
    assert not plain._is_empty_for(device)
    assert not slotted._is_empty_for(device)
    with pytest.raises(tg.InvalidArgumentError, match="belongs to device 'hand', not to device 'other'"):
        other.queue().execute(empty)
    other.close()
    with device.record(one_shot=True) as once:
        pass
    assert not once._is_empty_for(device)


def test_an_empty_recording_passes_without_the_device(opened: tuple[tg.Device, HandDevice]) -> None:
    device, hand = opened
    with device.record() as empty:
        pass
    done = tg.Semaphore()
    submission = device.queue().execute(empty, signal=done.at(1))
    assert submission.done
    assert (hand.asked, done.value) == ([], 1)


def test_an_empty_recording_still_checks_its_table(device: tg.Device) -> None:
    with device.record() as empty:
        pass
    with pytest.raises(TypeError, match="takes a buffer, not str"):
        device.queue().execute(empty, bindings=["x"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^execute takes a command buffer, not int$"):
        device.queue().execute(3)  # type: ignore[arg-type]
    device.queue().execute(empty, bindings=[device.allocate(4)]).wait(LIMIT)


# Slots -------------------------------------------------------------------------------------------------------------


def test_ranges_of_slots_begin_at_zero_and_may_be_empty(device: tg.Device) -> None:
    commands = device.record()
    assert commands._range(tg.Slot(2), 0, 0, "fill") == SlotSpan(2, 0, 0)
    assert commands._range(tg.Slot(2), 4, None, "fill") == SlotSpan(2, 4, None)
    for offset, length in ((-1, None), (0, -1)):
        with pytest.raises(tg.OutOfRangeError, match=f"fill of slot 2 at {offset}, length {length}$"):
            commands._range(tg.Slot(2), offset, length, "fill")
    commands.end()


@pytest.mark.parametrize("slotted", ["source", "target", "both"])
def test_a_copy_with_slots_is_checked_when_they_are_filled(device: tg.Device, slotted: str) -> None:
    large, small = device.allocate(16), device.allocate(8)
    slots = {"source": (tg.Slot(0), small), "target": (large, tg.Slot(0)), "both": (tg.Slot(0), tg.Slot(1))}[slotted]
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
        commands.copy(source, tg.Slot(0), source_offset=2, target_offset=1, length=3)
    device.queue().execute(commands, bindings=[target]).wait(LIMIT)
    assert target.read() == b"1cde5678"
    with device.record() as whole:
        whole.copy(source, tg.Slot(0))
    device.queue().execute(whole, bindings=[target]).wait(LIMIT)
    assert target.read() == b"abcdefgh"


def test_ranges_of_slots_that_several_commands_name_are_looked_at_once(device: tg.Device) -> None:
    with device.record() as commands:
        for _ in range(3):
            commands.fill(tg.Slot(0), 0, length=4)
        commands.fill(tg.Slot(0), 0, offset=4, length=4)
    assert commands._slot_spans == [SlotSpan(0, 0, 4), SlotSpan(0, 4, 4)]
