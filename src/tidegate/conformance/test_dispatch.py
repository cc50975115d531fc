"""Kernels: calling them with bindings and constants, and what is refused."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .buffers import words
from .latches import LIMIT
from .witnesses import assert_still_claimable

pytestmark = [pytest.mark.rules("M32"), pytest.mark.needs("work")]

N = 1000


def floats(device: tg.Device, n: int = N, value: float = 0) -> tg.Buffer:
    return device.upload(np.full(n, value, np.float32))


# Bindings and constants


@pytest.mark.rules("M16", "M31", "M32")
def test_a_kernel_gets_its_bindings_and_constants_in_order(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    scale_offset = kernels.load(device, kernels.scale_offset)
    for n in (1, 255, 256, 257, N):
        x = np.arange(n, dtype=np.float32)
        source, target = device.upload(x), floats(device, n + 1, -1)
        queue.dispatch(
            scale_offset,
            scale_offset.workgroups_for(n),
            bindings=[source, target],
            constants=[np.float32(2.5), np.float32(-3), np.uint32(n)],
        ).wait(LIMIT)
        found = target.to_numpy(np.float32, timeout=LIMIT)
        assert np.array_equal(found[:n], x * np.float32(2.5) - np.float32(3)), n
        assert found[n] == -1


def test_constants_are_converted_to_their_declared_types(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    scale_offset = kernels.load(device, kernels.scale_offset)
    x = np.arange(N, dtype=np.float32)
    for constants in (
        [2, 1, N],
        [2.0, np.float64(1), np.int64(N)],
        (np.float32(2), np.int8(1), np.uint16(N)),
        [np.array(2, np.float32), 1, np.uint64(N)],
    ):
        target = floats(device)
        queue.dispatch(
            scale_offset, scale_offset.workgroups_for(N), bindings=[device.upload(x), target], constants=constants
        ).wait(LIMIT)
        assert np.array_equal(target.to_numpy(np.float32, timeout=LIMIT), x * 2 + 1), constants


def test_a_structured_constant_passes_by_value(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    affine = kernels.load(device, kernels.affine)
    x = np.arange(N, dtype=np.float32)
    target = floats(device)
    parameters = np.array((3, 0.5), kernels.AFFINE)
    gate = tg.Semaphore()
    run = queue.dispatch(
        affine,
        affine.workgroups_for(N),
        bindings=[device.upload(x), target],
        constants=[parameters, N],
        wait=gate.at(1),
    )
    parameters["scale"] = 100
    gate.signal(1)
    run.wait(LIMIT)
    assert np.array_equal(target.to_numpy(np.float32, timeout=LIMIT), x * 3 + np.float32(0.5))


@pytest.mark.rules("M18", "M31")
def test_bindings_and_constants_are_captured_during_the_call(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    scale_offset = kernels.load(device, kernels.scale_offset)
    x = np.arange(N, dtype=np.float32)
    right, wrong = floats(device), floats(device, value=-1)
    bindings: list[tg.Buffer] = [device.upload(x), right]
    constants: list[Any] = [np.array(2, np.float32), np.float32(1), np.uint32(N)]
    gate = tg.Semaphore()
    run = queue.dispatch(
        scale_offset, scale_offset.workgroups_for(N), bindings=bindings, constants=constants, wait=gate.at(1)
    )
    bindings[1] = wrong
    constants[0][...] = 77
    constants[1] = np.float32(77)
    bindings.clear()
    gate.signal(1)
    run.wait(LIMIT)
    assert np.array_equal(right.to_numpy(np.float32, timeout=LIMIT), x * 2 + 1)
    assert set(wrong.to_numpy(np.float32, timeout=LIMIT).tolist()) == {-1}


@pytest.mark.rules("M31", "M32")
def test_a_kernel_over_a_subspan_changes_only_that_range(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    increment = kernels.load(device, kernels.increment)
    counters = device.upload(np.zeros(N, np.uint32))
    for start, count in ((0, 10), (10, 1), (100, 300), (N - 1, 1)):
        reset = queue.fill(counters, 0)
        queue.dispatch(
            increment,
            increment.workgroups_for(count),
            bindings=[counters.subspan(4 * start, 4 * count)],
            constants=[count],
            wait=reset,
        ).wait(LIMIT)
        expected = np.zeros(N, np.uint32)
        expected[start : start + count] = 1
        assert np.array_equal(words(counters), expected), (start, count)


@pytest.mark.rules("M31", "M32")
def test_one_buffer_may_stand_in_several_bindings(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    add = kernels.load(device, kernels.add)
    buffer = floats(device, value=3)
    queue.dispatch(add, add.workgroups_for(N), bindings=[buffer, buffer, buffer], constants=[N]).wait(LIMIT)
    assert set(buffer.to_numpy(np.float32, timeout=LIMIT).tolist()) == {6}


@pytest.mark.rules("M26", "M32")
def test_a_dispatch_counts_as_a_write_of_every_binding(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    add = kernels.load(device, kernels.add)
    buffers = [floats(device, value=value) for value in (1, 2, 0)]
    gate = tg.Semaphore()
    queue.dispatch(add, add.workgroups_for(N), bindings=buffers, constants=[N], wait=gate.at(1))
    for buffer in buffers:
        with pytest.raises(tg.DeadlineExceededError):
            buffer.read(timeout=0)
    gate.signal(1)
    assert set(buffers[2].to_numpy(np.float32, timeout=LIMIT).tolist()) == {3}


# Workgroups


@pytest.mark.parametrize("groups", [(1, 1, 1), (32, 1, 1), (1024, 1, 1), (8, 4, 1), (4, 4, 4), (1, 1, 32), (3, 5, 7)])
def test_every_workgroup_runs_and_knows_its_id(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, groups: tuple[int, int, int]
) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    count = groups[0] * groups[1] * groups[2]
    out = device.upload(np.full(count + 1, 0xFFFFFFFF, np.uint32))
    queue.dispatch(write_ids, groups, bindings=[out]).wait(LIMIT)
    assert np.array_equal(words(out)[:count], np.arange(count, dtype=np.uint32))
    assert words(out)[count] == 0xFFFFFFFF


def test_the_number_of_workgroups_for_n_items_covers_them_and_no_more(device: tg.Device, kernels: ModuleType) -> None:
    increment = kernels.load(device, kernels.increment)
    width = increment.workgroup[0]
    for n, expected in ((0, 0), (1, 1), (width - 1, 1), (width, 1), (width + 1, 2), (10 * width, 10)):
        assert tuple(increment.workgroups_for(n)) == (expected, 1, 1)


@pytest.mark.parametrize("groups", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)])
def test_a_dispatch_with_a_zero_among_its_workgroups_does_nothing_and_still_signals(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, groups: tuple[int, int, int]
) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    out = device.upload(np.full(4, 77, np.uint32))
    gate, done = tg.Semaphore(), tg.Semaphore()
    queue.dispatch(write_ids, groups, bindings=[out], wait=gate.at(1), signal=done.at(1))
    assert done.value == 0
    gate.signal(1)
    done.wait(1, LIMIT)
    assert set(words(out).tolist()) == {77}
    with device.record() as commands:
        commands.dispatch(write_ids, groups, bindings=[out])
    queue.execute(commands, signal=done.at(2)).wait(LIMIT)
    assert set(words(out).tolist()) == {77}


@pytest.mark.rules("M16", "M32")
def test_impossible_workgroups_are_refused_at_the_call(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    out = device.upload(np.zeros(4, np.uint32))
    semaphore = tg.Semaphore()
    for groups in ((-1, 1, 1), (1, 1, -7), (2**40, 1, 1), (1, 2**32, 1)):
        with pytest.raises((tg.InvalidArgumentError, tg.OutOfRangeError)):
            queue.dispatch(write_ids, groups, bindings=[out], signal=semaphore.at(1))
    wrong: Any
    for wrong in ("many", (1.5, 1, 1), None):
        with pytest.raises(TypeError):
            queue.dispatch(write_ids, wrong, bindings=[out], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


# Local memory


def too_much(device: tg.Device) -> list[int]:
    """So many bytes of local memory that no kernel of the device can have them."""
    most = device.info.limits.max_local_memory
    return [*([] if most is None else [most + 1]), 2**32, 2**63 - 1, 2**63, 2**64 + 1, 2**200]


@pytest.mark.rules("M16", "M32")
@pytest.mark.parametrize("way", ["queue", "lane", "recording", "indirect"])
def test_more_local_memory_than_there_is_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, way: str
) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    out, counts = device.upload(np.full(4, 77, np.uint32)), device.upload(np.ones(3, np.uint32))
    lane, commands, signal = device.lane(), device.record(), tg.Semaphore().at(1)
    call: Callable[[int], object] = {
        "queue": lambda n: queue.dispatch(write_ids, 1, bindings=[out], local_memory=n, signal=signal),
        "lane": lambda n: lane.dispatch(write_ids, 1, bindings=[out], local_memory=n, signal=signal),
        "recording": lambda n: commands.dispatch(write_ids, 1, bindings=[out], local_memory=n),
        "indirect": lambda n: commands.dispatch_indirect(write_ids, counts=counts, bindings=[out], local_memory=n),
    }[way]
    for nbytes in (-1, -(2**63) - 1, *too_much(device)):
        with pytest.raises(tg.InvalidArgumentError, match=r"write_ids.*local memory"):
            call(nbytes)
    commands.end()
    tg.wait_all([queue.execute(commands), lane.barrier()], LIMIT)
    assert_still_claimable(queue, signal)
    assert set(words(out).tolist()) == {77}


@pytest.mark.rules("M32")
def test_a_kernel_that_uses_no_local_memory_may_be_given_some(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    for nbytes in (0, 1, 100, 4096):
        out = device.upload(np.full(4, 77, np.uint32))
        queue.dispatch(write_ids, 4, bindings=[out], local_memory=nbytes).wait(LIMIT)
        assert words(out).tolist() == [0, 1, 2, 3]


# Pipelines


@pytest.mark.rules("M15", "M32")
def test_an_update_and_two_dispatches_follow_one_another(
    device: tg.Device, queue: tg.Queue, second_queue: tg.Queue, kernels: ModuleType
) -> None:
    scale_offset = kernels.load(device, kernels.scale_offset)
    saxpy = kernels.load(device, kernels.saxpy)
    x = np.arange(N, dtype=np.float32)
    first, second = floats(device), floats(device)
    gate = tg.Semaphore()
    updated = queue.update(first, x, wait=gate.at(1))
    scaled = second_queue.dispatch(
        scale_offset, scale_offset.workgroups_for(N), bindings=[first, second], constants=[2, 1, N], wait=updated
    )
    summed = queue.dispatch(saxpy, saxpy.workgroups_for(N), bindings=[first, second], constants=[10, N], wait=scaled)
    gate.signal(1)
    summed.wait(LIMIT)
    assert np.array_equal(second.to_numpy(np.float32, timeout=LIMIT), x * 12 + 1)


@pytest.mark.rules("M30", "M32")
def test_an_update_and_two_dispatches_follow_one_another_in_a_command_buffer(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    scale_offset = kernels.load(device, kernels.scale_offset)
    saxpy = kernels.load(device, kernels.saxpy)
    x = np.arange(N, dtype=np.float32)
    for with_barriers in (True, False):
        first, second = floats(device), floats(device)
        with device.record() as commands:
            a = commands.update(first, x)
            if with_barriers:
                commands.barrier()
            b = commands.dispatch(
                scale_offset,
                scale_offset.workgroups_for(N),
                bindings=[first, second],
                constants=[2, 1, N],
                after=[] if with_barriers else [a],
            )
            if with_barriers:
                commands.barrier()
            commands.dispatch(
                saxpy,
                saxpy.workgroups_for(N),
                bindings=[first, second],
                constants=[10, N],
                after=[] if with_barriers else [b],
            )
        queue.execute(commands).wait(LIMIT)
        assert np.array_equal(second.to_numpy(np.float32, timeout=LIMIT), x * 12 + 1)


@pytest.mark.rules("M15", "M32")
def test_a_long_chain_of_dispatches_loses_none(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    increment = kernels.load(device, kernels.increment)
    counters = device.upload(np.zeros(N, np.uint32))
    previous: tg.Submission | None = None
    for _ in range(200):
        previous = queue.dispatch(
            increment, increment.workgroups_for(N), bindings=[counters], constants=[N], wait=previous
        )
    assert previous is not None
    previous.wait(LIMIT)
    assert set(words(counters).tolist()) == {200}


# Indirect


def ids_written(device: tg.Device, queue: tg.Queue, commands: tg.CommandBuffer, out: tg.Buffer) -> int:
    queue.fill(out, 255).wait(LIMIT)
    queue.execute(commands).wait(LIMIT)
    found = words(out)
    count = int((found != 0xFFFFFFFF).sum())
    assert np.array_equal(found[:count], np.arange(count, dtype=np.uint32))
    return count


@pytest.mark.rules("M32")
@pytest.mark.parametrize("groups", [(5, 1, 1), (2, 3, 4), (0, 1, 1), (1, 1, 0), (64, 1, 1)])
def test_indirect_counts_are_read_from_a_buffer(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, groups: tuple[int, int, int]
) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    out = device.upload(np.zeros(100, np.uint32))
    counts = device.upload(np.array([99, *groups, 99], np.uint32))
    with device.record() as commands:
        commands.dispatch_indirect(write_ids, counts=counts, counts_offset=4, bindings=[out])
    assert ids_written(device, queue, commands, out) == groups[0] * groups[1] * groups[2]


@pytest.mark.rules("M32")
def test_indirect_counts_come_from_an_update_in_the_same_command_buffer(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    out, counts = device.upload(np.zeros(100, np.uint32)), device.upload(np.zeros(3, np.uint32))
    with device.record() as commands:
        commands.update(counts, np.array([7, 2, 1], np.uint32))
        commands.barrier()
        commands.dispatch_indirect(write_ids, counts=counts, bindings=[out])
    assert ids_written(device, queue, commands, out) == 14


@pytest.mark.rules("M32")
def test_indirect_counts_come_from_a_fill_in_the_same_command_buffer(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    out, counts = device.upload(np.zeros(100, np.uint32)), device.upload(np.zeros(3, np.uint32))
    with device.record() as commands:
        filled = commands.fill(counts, (3).to_bytes(4, "little"))
        commands.dispatch_indirect(write_ids, counts=counts, bindings=[out], after=[filled])
    assert ids_written(device, queue, commands, out) == 27


@pytest.mark.rules("M31", "M32")
def test_indirect_counts_come_from_a_dispatch_in_the_same_command_buffer(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    copy_counts = kernels.load(device, kernels.copy_counts)
    out, counts = device.upload(np.zeros(100, np.uint32)), device.upload(np.zeros(3, np.uint32))
    with device.record() as commands:
        commands.dispatch(copy_counts, (1, 1, 1), bindings=[tg.slot(0), counts])
        commands.barrier()
        commands.dispatch_indirect(write_ids, counts=counts, bindings=[tg.slot(1)])
    for groups in ((4, 4, 1), (1, 1, 1), (0, 5, 5), (10, 1, 3)):
        queue.fill(out, 255).wait(LIMIT)
        table = [device.upload(np.array(groups, np.uint32)), out]
        queue.execute(commands, bindings=table).wait(LIMIT)
        assert int((words(out) != 0xFFFFFFFF).sum()) == groups[0] * groups[1] * groups[2]


@pytest.mark.rules("M31", "M32")
def test_indirect_counts_may_stand_in_a_slot(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    out = device.upload(np.zeros(100, np.uint32))
    with device.record() as commands:
        commands.dispatch_indirect(write_ids, counts=tg.slot(0), counts_offset=8, bindings=[out])
    for count in (3, 20):
        queue.fill(out, 255).wait(LIMIT)
        counts = device.upload(np.array([0, 0, count, 1, 1], np.uint32))
        queue.execute(commands, bindings=[counts]).wait(LIMIT)
        assert int((words(out) != 0xFFFFFFFF).sum()) == count


@pytest.mark.rules("M29", "M32")
def test_misplaced_indirect_counts_are_refused(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    write_ids = kernels.load(device, kernels.write_ids)
    out, counts = device.upload(np.zeros(100, np.uint32)), device.upload(np.ones(4, np.uint32))
    with device.record() as commands:
        for offset in (1, 2, 3):
            with pytest.raises(tg.InvalidArgumentError):
                commands.dispatch_indirect(write_ids, counts=counts, counts_offset=offset, bindings=[out])
        for offset in (8, 16, 400):
            with pytest.raises(tg.OutOfRangeError):
                commands.dispatch_indirect(write_ids, counts=counts, counts_offset=offset, bindings=[out])
        with pytest.raises(tg.InvalidArgumentError):
            commands.dispatch_indirect(write_ids, counts=counts.subspan(2, 12), bindings=[out])
        commands.dispatch_indirect(write_ids, counts=counts, counts_offset=4, bindings=[out])
    assert ids_written(device, queue, commands, out) == 1


# What is refused


@pytest.mark.rules("M16", "M32")
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_bindings_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, count: int
) -> None:
    scale_offset = kernels.load(device, kernels.scale_offset)
    buffer = floats(device)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError, match=r"scale_offset.*2"):
        queue.dispatch(scale_offset, (1, 1, 1), bindings=[buffer] * count, constants=[1, 0, N], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


@pytest.mark.rules("M16", "M32")
@pytest.mark.parametrize("constants", [[], [1], [1, 0], [1, 0, N, 5]])
def test_a_wrong_number_of_constants_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, constants: list[int]
) -> None:
    scale_offset = kernels.load(device, kernels.scale_offset)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError, match=r"scale_offset.*3"):
        queue.dispatch(
            scale_offset,
            (1, 1, 1),
            bindings=[floats(device), floats(device)],
            constants=constants,
            signal=semaphore.at(1),
        )
    assert_still_claimable(queue, semaphore.at(1))


@pytest.mark.rules("M16", "M32")
@pytest.mark.parametrize("value", [-1, 2**32, 10**30, np.int64(-5), np.uint64(2**40)])
def test_a_constant_that_does_not_fit_its_type_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, value: Any
) -> None:
    increment = kernels.load(device, kernels.increment)
    counters = device.upload(np.zeros(N, np.uint32))
    semaphore = tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError, match="increment"):
        queue.dispatch(increment, (1, 1, 1), bindings=[counters], constants=[value], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    assert set(words(counters).tolist()) == {0}


@pytest.mark.rules("M16", "M32")
@pytest.mark.parametrize(
    "value", ["5", None, b"\0", [1], object(), 1.5, np.float32(2)], ids=lambda value: type(value).__name__
)
def test_a_constant_of_a_foreign_type_is_a_type_error(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, value: Any
) -> None:
    increment = kernels.load(device, kernels.increment)
    counters = device.upload(np.zeros(N, np.uint32))
    semaphore = tg.Semaphore()
    with pytest.raises(TypeError):
        queue.dispatch(increment, (1, 1, 1), bindings=[counters], constants=[value], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


@pytest.mark.rules("M16", "M31")
@pytest.mark.parametrize("binding", ["x", None, 5, b"bytes", np.zeros(4)], ids=["str", "None", "int", "bytes", "array"])
def test_a_binding_of_a_foreign_type_is_a_type_error(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, binding: Any
) -> None:
    increment = kernels.load(device, kernels.increment)
    semaphore = tg.Semaphore()
    with pytest.raises(TypeError):
        queue.dispatch(increment, (1, 1, 1), bindings=[binding], constants=[1], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


@pytest.mark.rules("M16", "M31")
def test_a_slot_outside_of_a_command_buffer_is_refused(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    increment = kernels.load(device, kernels.increment)
    semaphore = tg.Semaphore()
    slot: Any = tg.slot(0)
    with pytest.raises((TypeError, tg.InvalidArgumentError)):
        queue.dispatch(increment, (1, 1, 1), bindings=[slot], constants=[1], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


@pytest.mark.rules("M16", "M32")
def test_what_is_no_function_is_a_type_error(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    semaphore = tg.Semaphore()
    function: Any
    for function in (None, len, kernels.increment, device.load(kernels.increment)):
        with pytest.raises(TypeError):
            queue.dispatch(function, (1, 1, 1), bindings=[], constants=[], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
