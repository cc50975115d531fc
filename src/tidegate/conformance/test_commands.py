"""Command buffers: recorded once, run as often as one likes, in the order their barriers and edges give."""

from contextlib import ExitStack
from types import ModuleType

import numpy as np
import pytest

import tidegate as tg

from .buffers import GUARD, contents, guarded
from .latches import LIMIT
from .threads import all_at_once
from .witnesses import assert_still_claimable

pytestmark = [pytest.mark.rules("M29"), pytest.mark.needs("work")]


class Stop(Exception):
    """Raised by tests inside a recording."""


# Recording and reuse


def test_an_empty_command_buffer_only_signals(device: tg.Device, queue: tg.Queue) -> None:
    with device.record() as commands:
        pass
    gate, done = tg.Semaphore(), tg.Semaphore()
    run = queue.execute(commands, wait=gate.at(1), signal=done.at(1))
    assert not run.done
    gate.signal(1)
    done.wait(1, LIMIT)
    run.wait(LIMIT)


def test_every_transfer_can_be_recorded(device: tg.Device, queue: tg.Queue) -> None:
    source, target = guarded(device, 64), guarded(device, 64)
    with device.record() as commands:
        commands.fill(source, b"\x01\x02", offset=2, length=8)
        commands.update(source, b"hello", offset=20)
        commands.barrier()
        commands.copy(source, target, source_offset=1, target_offset=3, length=40)
    queue.execute(commands).wait(LIMIT)
    expected = np.full(64, GUARD, np.uint8)
    expected[2:10] = [1, 2] * 4
    expected[20:25] = list(b"hello")
    assert np.array_equal(contents(source), expected)
    copied = np.full(64, GUARD, np.uint8)
    copied[3:43] = expected[1:41]
    assert np.array_equal(contents(target), copied)


def test_nothing_runs_while_it_is_recorded(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    with device.record() as commands:
        commands.fill(buffer, 1)
        queue.barrier().wait(LIMIT)
    assert set(contents(buffer).tolist()) == {GUARD}
    queue.execute(commands).wait(LIMIT)
    assert set(contents(buffer).tolist()) == {1}


def test_a_command_buffer_runs_again_and_again(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    n = 300
    increment = kernels.load(device, kernels.increment)
    counters = device.upload(np.zeros(n, np.uint32))
    with device.record() as commands:
        commands.dispatch(increment, increment.workgroups_for(n), bindings=[counters], constants=[np.uint32(n)])
    previous: tg.Submission | None = None
    for run in range(1, 6):
        previous = queue.execute(commands, wait=previous)
        previous.wait(LIMIT)
        assert set(counters.to_numpy(np.uint32, timeout=LIMIT).tolist()) == {run}
    gate = tg.Semaphore()
    runs: list[tg.Timepoint | tg.Submission] = [gate.at(1)]
    for _ in range(5):
        runs.append(queue.execute(commands, wait=runs[-1]))
    gate.signal(1)
    tg.wait_all(runs, LIMIT)
    assert set(counters.to_numpy(np.uint32, timeout=LIMIT).tolist()) == {10}


@pytest.mark.rules("M29", "M31")
def test_one_command_buffer_runs_on_two_queues_at_once_with_other_bindings(
    device: tg.Device, queue: tg.Queue, second_queue: tg.Queue, kernels: ModuleType
) -> None:
    n = 1000
    scale_offset = kernels.load(device, kernels.scale_offset)
    with device.record() as commands:
        commands.dispatch(
            scale_offset,
            scale_offset.workgroups_for(n),
            bindings=[tg.slot(0), tg.slot(1)],
            constants=[np.float32(2), np.float32(1), np.uint32(n)],
        )
    gate = tg.Semaphore()
    inputs = [np.arange(n, dtype=np.float32) + 1000 * i for i in range(16)]
    outputs = [device.upload(np.zeros(n, np.float32)) for _ in inputs]
    runs = [
        (queue, second_queue)[i % 2].execute(commands, bindings=[device.upload(inputs[i]), outputs[i]], wait=gate.at(1))
        for i in range(16)
    ]
    gate.signal(1)
    tg.wait_all(runs, LIMIT)
    for given, output in zip(inputs, outputs, strict=True):
        assert np.array_equal(output.to_numpy(np.float32, timeout=LIMIT), given * 2 + 1)


def test_one_command_buffer_is_submitted_from_many_threads(device: tg.Device, queue: tg.Queue) -> None:
    target = guarded(device, 8 * 64)
    with device.record() as commands:
        commands.update(tg.slot(0), bytes(range(64)))

    def submit(index: int) -> None:
        span = target.subspan(64 * index, 64)
        for _ in range(20):
            queue.execute(commands, bindings=[span]).wait(LIMIT)

    all_at_once(8, submit)
    assert np.array_equal(contents(target), np.tile(np.arange(64, dtype=np.uint8), 8))


def test_several_command_buffers_are_recorded_at_once_from_several_threads(device: tg.Device, queue: tg.Queue) -> None:
    target = guarded(device, 8 * 16)

    def record(index: int) -> tg.CommandBuffer:
        with device.record() as commands:
            for step in range(16):
                commands.fill(target, index * 16 + step, offset=16 * index + step, length=1)
        return commands

    tg.wait_all([queue.execute(commands) for commands in all_at_once(8, record)], LIMIT)
    assert np.array_equal(contents(target), np.arange(128, dtype=np.uint8))


def test_recording_after_the_end_is_refused(device: tg.Device, queue: tg.Queue) -> None:
    first, second = guarded(device, 16), guarded(device, 16)
    with device.record() as commands:
        commands.fill(first, 1)
    for record in (
        lambda: commands.fill(first, 2),
        lambda: commands.update(first, b"x"),
        lambda: commands.copy(first, second),
        commands.barrier,
    ):
        with pytest.raises(tg.FailedPreconditionError):
            record()
    with pytest.raises(tg.FailedPreconditionError), commands.group("late"):
        pass
    queue.execute(commands).wait(LIMIT)
    assert set(contents(first).tolist()) == {1}


@pytest.mark.rules("M16", "M29")
def test_submitting_before_the_end_is_refused(device: tg.Device, queue: tg.Queue) -> None:
    semaphore = tg.Semaphore()
    with device.record() as commands, pytest.raises(tg.FailedPreconditionError):
        queue.execute(commands, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    queue.execute(commands).wait(LIMIT)


@pytest.mark.rules("M16", "M29")
def test_a_one_shot_command_buffer_runs_once(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    with device.record(one_shot=True) as commands:
        commands.fill(buffer, 1)
    semaphore, gate = tg.Semaphore(), tg.Semaphore()
    run = queue.execute(commands, wait=gate.at(1))
    with pytest.raises(tg.FailedPreconditionError):
        queue.execute(commands, signal=semaphore.at(1))
    gate.signal(1)
    run.wait(LIMIT)
    with pytest.raises(tg.FailedPreconditionError):
        queue.execute(commands, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    assert set(contents(buffer).tolist()) == {1}


@pytest.mark.usefixtures("switch_often")
@pytest.mark.rules("M29", "M38")
def test_of_many_threads_that_execute_a_one_shot_command_buffer_one_succeeds(
    device: tg.Device, queue: tg.Queue
) -> None:
    for _ in range(20):
        with device.record(one_shot=True) as commands:
            pass

        def execute(_index: int, commands: tg.CommandBuffer = commands) -> bool:
            try:
                queue.execute(commands).wait(LIMIT)
            except tg.FailedPreconditionError:
                return False
            return True

        assert sum(all_at_once(4, execute)) == 1


@pytest.mark.rules("M16", "M29")
def test_a_refused_execute_does_not_use_up_a_one_shot_command_buffer(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    with device.record(one_shot=True) as commands:
        commands.fill(tg.slot(0), 1)
    with pytest.raises(tg.OutOfRangeError):
        queue.execute(commands)
    queue.execute(commands, bindings=[buffer]).wait(LIMIT)
    assert set(contents(buffer).tolist()) == {1}


def test_a_refused_command_leaves_the_recording_as_it_was(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    increment = kernels.load(device, kernels.increment)
    buffer = guarded(device, 64)
    with device.record() as commands:
        first = commands.fill(buffer, 1, length=32)
        with pytest.raises(tg.OutOfRangeError):
            commands.fill(buffer, 2, length=65)
        with pytest.raises(tg.InvalidArgumentError):
            commands.fill(buffer, b"abc")
        with pytest.raises(tg.InvalidArgumentError):
            commands.copy(buffer, buffer, target_offset=1, length=2)
        with pytest.raises(tg.OutOfRangeError):
            commands.update(buffer, bytes(65))
        with pytest.raises(tg.InvalidArgumentError):
            commands.dispatch(increment, (1, 1, 1), bindings=[], constants=[np.uint32(1)])
        with pytest.raises(TypeError):
            commands.copy(buffer, "elsewhere")  # type: ignore[arg-type]
        commands.copy(buffer, buffer, target_offset=32, length=32, after=[first])
    queue.execute(commands).wait(LIMIT)
    assert set(contents(buffer).tolist()) == {1}


def test_an_exception_inside_a_recording_discards_it(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    with pytest.raises(Stop), device.record() as commands:
        commands.fill(buffer, 1)
        raise Stop
    semaphore = tg.Semaphore()
    with pytest.raises(tg.FailedPreconditionError):
        queue.execute(commands, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    with pytest.raises(tg.FailedPreconditionError):
        commands.fill(buffer, 1)
    assert set(contents(buffer).tolist()) == {GUARD}


def test_a_recorded_update_is_captured_while_it_is_recorded(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    data = np.full(16, 1, np.uint8)
    with device.record() as commands:
        commands.update(buffer, data)
        data[:] = 2
    data[:] = 3
    for _ in range(2):
        queue.fill(buffer, 0).wait(LIMIT)
        queue.execute(commands).wait(LIMIT)
        assert set(contents(buffer).tolist()) == {1}


@pytest.mark.rules("M27", "M29")
def test_a_recorded_update_holds_64_kib_and_not_a_byte_more(device: tg.Device, queue: tg.Queue) -> None:
    data = np.random.default_rng(3).integers(0, 256, 65536, np.uint8)
    buffer = guarded(device, 65537)
    with device.record() as commands:
        with pytest.raises((tg.InvalidArgumentError, tg.OutOfRangeError), match=r"65537|64 KiB|65536"):
            commands.update(buffer, bytes(65537))
        commands.update(buffer, data)
    queue.execute(commands).wait(LIMIT)
    found = contents(buffer)
    assert np.array_equal(found[:65536], data)
    assert found[65536] == GUARD


@pytest.mark.rules("M27", "M29")
def test_recorded_commands_of_no_length_are_legal(device: tg.Device, queue: tg.Queue) -> None:
    buffer, empty = guarded(device, 16), device.allocate(0)
    with device.record() as commands:
        commands.fill(buffer, 1, length=0)
        commands.fill(empty, 1)
        commands.update(buffer, b"", offset=16)
        commands.copy(empty, buffer)
        commands.copy(buffer, buffer, length=0)
    queue.execute(commands).wait(LIMIT)
    assert set(contents(buffer).tolist()) == {GUARD}


# Order


@pytest.mark.rules("M20", "M30")
def test_many_commands_between_barriers_all_run(device: tg.Device, queue: tg.Queue) -> None:
    count = 512
    buffer, copy = guarded(device, 4 * count), guarded(device, 4 * count)
    with device.record() as commands:
        for i in range(count):
            commands.fill(buffer, i.to_bytes(4, "little"), offset=4 * i, length=4)
        commands.barrier()
        for i in range(count):
            commands.copy(buffer, copy, source_offset=4 * i, target_offset=4 * (count - 1 - i), length=4)
        commands.barrier()
        for i in range(count):
            commands.fill(buffer, 255, offset=4 * i, length=4)
    queue.execute(commands).wait(LIMIT)
    assert np.array_equal(copy.to_numpy(np.uint32, timeout=LIMIT), np.arange(count, dtype=np.uint32)[::-1])
    assert set(contents(buffer).tolist()) == {255}


@pytest.mark.rules("M30")
def test_a_barrier_orders_all_before_it_before_all_after_it(device: tg.Device, queue: tg.Queue) -> None:
    """Large and small commands in turn: without the barriers the small ones would overtake."""
    steps, size = 12, 400_000
    scratch = guarded(device, size)
    log = guarded(device, steps)
    with device.record() as commands:
        for step in range(steps):
            commands.fill(scratch, step)
            commands.barrier()
            commands.copy(scratch, log, source_offset=size - 1, target_offset=step, length=1)
            commands.barrier()
    for _ in range(5):
        queue.fill(log, GUARD).wait(LIMIT)
        queue.execute(commands).wait(LIMIT)
        assert contents(log).tolist() == list(range(steps))


@pytest.mark.rules("M30")
def test_edges_order_the_commands_they_name(device: tg.Device, queue: tg.Queue) -> None:
    """The same chain by edges alone, beside a second chain that shares nothing with it."""
    steps, size = 12, 400_000
    chains = [(guarded(device, size), guarded(device, steps)) for _ in range(2)]
    with device.record() as commands:
        last: list[tg.Node | None] = [None, None]
        for step in range(steps):
            for which, (scratch, log) in enumerate(chains):
                previous = last[which]
                after = [] if previous is None else [previous]
                filled = commands.fill(scratch, 100 * which + step, after=after)
                last[which] = commands.copy(
                    scratch, log, source_offset=size - 1, target_offset=step, length=1, after=[filled]
                )
    for _ in range(5):
        queue.execute(commands).wait(LIMIT)
        for which, (_, log) in enumerate(chains):
            assert contents(log).tolist() == [100 * which + step for step in range(steps)]
            queue.fill(log, GUARD).wait(LIMIT)


@pytest.mark.rules("M30")
def test_an_edge_may_join_several_commands_and_one_command_may_have_many_followers(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    """A diamond 64 wide, with the join as its tip."""
    width, size = 64, 20_000
    source = guarded(device, size)
    middle = guarded(device, width * size)
    tip = guarded(device, width * size)
    with device.record() as commands:
        root = commands.fill(source, 7)
        sides = [commands.copy(source, middle, target_offset=i * size, after=[root]) for i in range(width)]
        commands.copy(middle, tip, after=sides)
    queue.execute(commands).wait(LIMIT)
    assert set(np.unique(contents(tip)).tolist()) == {7}


@pytest.mark.rules("M30")
def test_edges_and_barriers_work_together(device: tg.Device, queue: tg.Queue) -> None:
    size = 300_000
    first, second, third = (guarded(device, size) for _ in range(3))
    with device.record() as commands:
        a = commands.fill(first, 1)
        commands.copy(first, second, after=[a])
        commands.barrier()
        b = commands.fill(first, 2, after=[a])
        commands.copy(second, third, after=[])
        commands.copy(first, second, source_offset=size // 2, target_offset=size // 2, after=[b])
        commands.barrier()
    for _ in range(3):
        queue.execute(commands).wait(LIMIT)
        assert set(np.unique(contents(first)).tolist()) == {2}
        assert set(np.unique(contents(second)[: size // 2]).tolist()) == {1}
        assert set(np.unique(contents(second)[size // 2 :]).tolist()) == {2}
        assert set(np.unique(contents(third)[: size // 2]).tolist()) == {1}


@pytest.mark.rules("M29", "M30")
def test_an_edge_to_a_command_of_another_recording_is_refused(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    with device.record() as first:
        foreign = first.fill(buffer, 1)
    with device.record() as second:
        with pytest.raises(tg.InvalidArgumentError):
            second.fill(buffer, 2, after=[foreign])
        with pytest.raises(TypeError):
            second.fill(buffer, 2, after=[object()])  # type: ignore[list-item]
        second.fill(buffer, 3)
    queue.execute(second).wait(LIMIT)
    assert set(contents(buffer).tolist()) == {3}


@pytest.mark.rules("M30")
def test_debug_groups_nest_and_change_nothing(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    with device.record() as commands, commands.group("outer"):
        commands.fill(buffer, 1, length=8)
        with commands.group("inner"):
            commands.fill(buffer, 2, offset=8)
    queue.execute(commands).wait(LIMIT)
    assert contents(buffer).tolist() == [1] * 8 + [2] * 8


@pytest.mark.rules("M29", "M30")
def test_a_recording_that_ends_inside_a_group_is_refused(device: tg.Device, queue: tg.Queue) -> None:
    semaphore = tg.Semaphore()
    with ExitStack() as groups:
        with pytest.raises(tg.FailedPreconditionError, match="left open"), device.record() as commands:
            groups.enter_context(commands.group("left open"))
        with pytest.raises(tg.FailedPreconditionError):
            queue.execute(commands, signal=semaphore.at(1))
        groups.pop_all()
    assert_still_claimable(queue, semaphore.at(1))
