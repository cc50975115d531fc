"""What a recording holds: the exact order of its commands, its groups, and what it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import tidegate as tg
from tidegate.driver import Barrier, Command
from tidegate.testing import ManualDevice

from .raising import refused

LIMIT = 30.0


@pytest.fixture
def buffer(device: tg.Device) -> tg.Buffer:
    return device.allocate(256, label="b")


def recorded(record: Callable[[tg.CommandBuffer, tg.Buffer], object]) -> tuple[Command, ...]:
    """Return the commands of a recording as a driver gets them."""
    with ManualDevice() as manual:
        with manual.device.record() as commands:
            record(commands, manual.buffer)
        manual.queue.execute(commands)
        (piece,) = manual.tries
        return piece.work.recording.commands  # type: ignore[attr-defined, no-any-return]


def edges(commands: Iterable[Command]) -> list[tuple[int, ...]]:
    return [command.after for command in commands]


def test_commands_without_barrier_or_edges_have_no_order() -> None:
    def record(commands: tg.CommandBuffer, buffer: tg.Buffer) -> None:
        for _ in range(3):
            commands.fill(buffer, 1)

    assert edges(recorded(record)) == [(), (), ()]


def test_a_barrier_comes_after_all_since_the_last_one_and_before_all_that_follow() -> None:
    def record(commands: tg.CommandBuffer, buffer: tg.Buffer) -> None:
        for count in (2, 2, 1):
            for _ in range(count):
                commands.fill(buffer, 1)
            if count == 2:
                commands.barrier()

    found = recorded(record)
    assert [index for index, command in enumerate(found) if isinstance(command.work, Barrier)] == [2, 5]
    assert edges(found) == [(), (), (0, 1), (2,), (2,), (3, 4), (5,)]


def test_a_barrier_before_everything_is_nothing_and_a_second_one_follows_the_first() -> None:
    def record(commands: tg.CommandBuffer, buffer: tg.Buffer) -> None:
        commands.barrier()
        commands.fill(buffer, 1)
        commands.barrier()
        commands.barrier()
        commands.fill(buffer, 2)

    assert edges(recorded(record)) == [(), (0,), (1,), (2,)]


def test_edges_are_sorted_once_each_and_joined_with_the_barrier() -> None:
    def record(commands: tg.CommandBuffer, buffer: tg.Buffer) -> None:
        first = commands.fill(buffer, 1)
        second = commands.fill(buffer, 2)
        commands.fill(buffer, 3, after=[second, first, second])
        commands.barrier()
        late = commands.fill(buffer, 4)
        commands.fill(buffer, 5, after=[late, first])
        commands.fill(buffer, 6, after=(node for node in (late,)))

    assert edges(recorded(record)) == [(), (), (0, 1), (0, 1, 2), (3,), (0, 3, 4), (3, 4)]


def test_after_takes_nodes_of_this_recording_only(device: tg.Device, buffer: tg.Buffer) -> None:
    with device.record(label="other") as other:
        foreign = other.fill(buffer, 1)

    def record(commands: tg.CommandBuffer, mine: tg.Buffer) -> None:
        with pytest.raises(TypeError, match="after= takes nodes of this recording, not int"):
            commands.fill(mine, 1, after=[0])  # type: ignore[list-item]
        with pytest.raises(tg.InvalidArgumentError, match="after= names a node of command buffer 'other'"):
            commands.fill(mine, 1, after=[foreign])
        commands.fill(mine, 2)

    assert edges(recorded(record)) == [()]


def test_each_command_has_the_groups_that_were_open_outermost_first() -> None:
    def record(commands: tg.CommandBuffer, buffer: tg.Buffer) -> None:
        commands.fill(buffer, 1)
        with commands.group("outer"):
            commands.fill(buffer, 2)
            commands.begin_group("inner")
            commands.fill(buffer, 3)
            commands.barrier()
            commands.end_group()
            commands.fill(buffer, 4)
        commands.fill(buffer, 5)

    assert [command.groups for command in recorded(record)] == [
        (),
        ("outer",),
        ("outer", "inner"),
        ("outer", "inner"),
        ("outer",),
        (),
    ]


def test_groups_must_balance(device: tg.Device, buffer: tg.Buffer) -> None:
    commands = device.record(label="c")
    with refused(tg.FailedPreconditionError, "command buffer 'c': there is no open group to end"):
        commands.end_group()
    commands.begin_group("open")
    commands.begin_group("deeper")
    with refused(tg.FailedPreconditionError, "command buffer 'c': group 'deeper' is still open"):
        commands.end()
    commands.end_group()
    commands.end_group()
    commands.end()
    with refused(tg.FailedPreconditionError, "command buffer 'c' is ended: nothing more can be recorded"):
        commands.end()


def test_an_exception_inside_a_group_closes_it_and_discards_the_recording(device: tg.Device, buffer: tg.Buffer) -> None:
    commands = device.record(label="c")
    with pytest.raises(ZeroDivisionError), commands, commands.group("g"):
        commands.fill(buffer, 1)
        raise ZeroDivisionError
    with refused(tg.FailedPreconditionError, "command buffer 'c' is discarded: it cannot be executed"):
        device.queue().execute(commands)
    with refused(tg.FailedPreconditionError, "command buffer 'c' is discarded: nothing more can be recorded"):
        commands.fill(buffer, 1)


def test_slots_count_to_the_highest_one_named_and_each_must_have_an_entry(device: tg.Device, buffer: tg.Buffer) -> None:
    queue = device.queue()
    with device.record(label="c") as commands:
        commands.fill(tg.slot(2), 7, offset=4, length=8)
        commands.copy(tg.slot(0), buffer, length=4)
    for count in (0, 1, 2):
        with refused(
            tg.OutOfRangeError,
            f"command buffer 'c': slot 2 has no entry: the binding table has {count}",
        ):
            queue.execute(commands, bindings=[buffer] * count)
    table = [device.upload(bytes(range(16))) for _ in range(3)]
    queue.execute(commands, bindings=table).wait(LIMIT)
    assert table[2].read(timeout=LIMIT) == bytes([0, 1, 2, 3, *[7] * 8, 12, 13, 14, 15])
    assert buffer.subspan(0, 4).read(timeout=LIMIT) == bytes(range(4))
    with pytest.raises(tg.OutOfRangeError):
        queue.execute(commands, bindings=[*table[:2], table[2].subspan(0, 11)])
    queue.execute(commands, bindings=[*table[:2], table[2].subspan(0, 12)]).wait(LIMIT)


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (0, -1)])
def test_a_slot_range_below_zero_is_refused(device: tg.Device, offset: int, length: int) -> None:
    with (
        device.record(label="c") as commands,
        refused(tg.OutOfRangeError, f"command buffer 'c': fill of slot 1 at {offset}, length {length}"),
    ):
        commands.fill(tg.slot(1), 1, offset=offset, length=length)


def test_slots_are_checked_at_execute_for_what_recording_could_not_know(device: tg.Device, buffer: tg.Buffer) -> None:
    queue = device.queue()
    with device.record() as fill:
        fill.fill(tg.slot(0), b"abcd")
    with pytest.raises(tg.InvalidArgumentError, match="multiples of"):
        queue.execute(fill, bindings=[buffer.subspan(2, 8)])
    with device.record() as copy:
        copy.copy(tg.slot(0), tg.slot(1))
    with pytest.raises(tg.InvalidArgumentError, match="overlap"):
        queue.execute(copy, bindings=[buffer.subspan(0, 9), buffer.subspan(8, 9)])
    with refused(tg.OutOfRangeError, "copy: 9 bytes of source do not fit 8 bytes of target"):
        queue.execute(copy, bindings=[buffer.subspan(0, 9), buffer.subspan(16, 8)])
    queue.execute(copy, bindings=[buffer.subspan(0, 8), buffer.subspan(8, 8)]).wait(LIMIT)


def test_a_one_shot_recording_runs_once_and_a_refusal_does_not_use_it_up(device: tg.Device, buffer: tg.Buffer) -> None:
    queue, semaphore = device.queue(), tg.Semaphore(5)
    with device.record(one_shot=True, label="once") as commands:
        commands.fill(buffer, 1)
    with pytest.raises(tg.InvalidArgumentError):
        queue.execute(commands, signal=semaphore.at(5))
    queue.execute(commands, signal=semaphore.at(6)).wait(LIMIT)
    with refused(tg.FailedPreconditionError, "command buffer 'once' is one-shot and was executed already"):
        queue.execute(commands)


def test_a_recording_that_has_not_ended_cannot_be_executed(device: tg.Device) -> None:
    commands = device.record(label="c")
    with refused(tg.FailedPreconditionError, "command buffer 'c' is recording: it cannot be executed"):
        device.queue().execute(commands)
    commands.end()
    device.queue().execute(commands).wait(LIMIT)


def add_one(workgroups: Any, bindings: Any, constants: Any) -> None:
    bindings[0][: workgroups[0]] += 1


KERNEL = tg.Kernel("add_one", bindings=1, cpu=add_one)


def test_commands_begin_at_offset_zero_and_a_copy_takes_the_whole_source(device: tg.Device) -> None:
    source, target = device.upload(bytes(range(8))), device.upload(bytes(8))
    with device.record() as commands:
        commands.copy(source, target)
        commands.barrier()
        commands.update(target, b"\xff")
        commands.barrier()
        commands.fill(source, 9)
    device.queue().execute(commands).wait(LIMIT)
    assert target.read(timeout=LIMIT) == b"\xff" + bytes(range(1, 8))
    assert source.read(timeout=LIMIT) == bytes([9] * 8)
    with device.record() as refusing, pytest.raises(tg.InvalidArgumentError, match="multiples of"):
        refusing.fill(source, b"ab", offset=1, length=2)


def test_a_dispatch_is_recorded_as_a_node(device: tg.Device) -> None:
    function, buffer = device.load(KERNEL)["add_one"], device.upload(bytes(8))
    with device.record() as commands:
        first = commands.dispatch(function, 3, bindings=[buffer])
        commands.dispatch(function, 2, bindings=[tg.slot(0)], after=[first])
    device.queue().execute(commands, bindings=[buffer]).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == bytes([2, 2, 1, 0, 0, 0, 0, 0])


def test_indirect_counts_take_twelve_aligned_bytes_that_are_read_and_not_written(device: tg.Device) -> None:
    function, buffer = device.load(KERNEL)["add_one"], device.upload(bytes(8))
    counts = device.upload(bytes([0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]))
    with device.record() as commands:
        commands.dispatch_indirect(function, counts=counts, counts_offset=4, bindings=[buffer])
        commands.dispatch_indirect(function, counts=tg.slot(0), bindings=[buffer], after=())
        with pytest.raises(tg.OutOfRangeError):
            commands.dispatch_indirect(function, counts=counts, counts_offset=8, bindings=[buffer])
        with pytest.raises(tg.InvalidArgumentError, match="at byte 2,"):
            commands.dispatch_indirect(function, counts=counts, counts_offset=2, bindings=[buffer])
        with pytest.raises(tg.InvalidArgumentError, match="at byte 2,"):
            commands.dispatch_indirect(function, counts=tg.slot(0), counts_offset=2, bindings=[buffer])
    with pytest.raises(tg.InvalidArgumentError, match="at byte 2,"):
        device.queue().execute(commands, bindings=[counts.subspan(2, 12)])
    device.queue().execute(commands, bindings=[counts.subspan(0, 12)]).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == bytes([1] * 5 + [0] * 3)


def test_functions_and_recordings_of_another_device_are_refused(device: tg.Device, buffer: tg.Buffer) -> None:
    with tg.open_device("cpu?workers=1", label="other") as other:
        foreign = other.load(KERNEL)["add_one"]
        with device.record(label="c") as commands:
            with refused(tg.InvalidArgumentError, "function 'add_one' belongs to device 'other', not to device 'dev'"):
                commands.dispatch(foreign, 1, bindings=[buffer])
            commands.fill(buffer, 1)
        with refused(tg.InvalidArgumentError, "command buffer 'c' belongs to device 'dev', not to device 'other'"):
            other.queue().execute(commands)
        other.close(LIMIT)


def test_an_empty_one_shot_recording_runs_once_too(device: tg.Device) -> None:
    with device.record(one_shot=True) as commands:
        pass
    device.queue().execute(commands).wait(LIMIT)
    with pytest.raises(tg.FailedPreconditionError, match="one-shot"):
        device.queue().execute(commands)
