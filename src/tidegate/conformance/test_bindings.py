"""Bindings of command buffers: buffers, slots, and the tables that fill them."""

from types import ModuleType

import numpy as np
import pytest

import tidegate as tg

from .buffers import GUARD, contents, guarded
from .latches import LIMIT
from .witnesses import assert_still_claimable

pytestmark = [pytest.mark.rules("M31"), pytest.mark.needs("work")]


@pytest.mark.rules("M31")
def test_direct_slot_and_mixed_bindings_reach_their_buffers(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    n = 500
    add = kernels.load(device, kernels.add)
    a, b = (np.arange(n, dtype=np.float32) * factor for factor in (1, 10))
    buffers = [device.upload(a), device.upload(b), device.upload(np.zeros(n, np.float32))]
    for slots in ([], [0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
        bindings = [tg.slot(slots.index(i)) if i in slots else buffers[i] for i in range(3)]
        with device.record() as commands:
            commands.dispatch(add, add.workgroups_for(n), bindings=bindings, constants=[np.uint32(n)])
        reset = queue.fill(buffers[2], 0)
        queue.execute(commands, bindings=[buffers[i] for i in slots], wait=reset).wait(LIMIT)
        assert np.array_equal(buffers[2].to_numpy(np.float32, timeout=LIMIT), a + b), slots


@pytest.mark.rules("M31")
def test_transfers_take_slots_too(device: tg.Device, queue: tg.Queue) -> None:
    with device.record() as commands:
        commands.fill(tg.slot(0), 1, offset=4, length=4)
        commands.update(tg.slot(0), b"abcd", offset=8)
        commands.barrier()
        commands.copy(tg.slot(0), tg.slot(1), source_offset=4, target_offset=2, length=8)
    for _ in range(2):
        first, second = guarded(device, 16), guarded(device, 16)
        queue.execute(commands, bindings=[first, second]).wait(LIMIT)
        assert contents(first).tolist() == [GUARD] * 4 + [1] * 4 + list(b"abcd") + [GUARD] * 4
        assert contents(second).tolist() == [GUARD] * 2 + [1] * 4 + list(b"abcd") + [GUARD] * 6


@pytest.mark.rules("M27", "M31")
def test_a_copy_without_a_length_takes_the_rest_of_whatever_stands_in_its_slot(
    device: tg.Device, queue: tg.Queue
) -> None:
    direct = guarded(device, 32)
    with device.record() as commands:
        commands.copy(tg.slot(0), tg.slot(1), source_offset=4, target_offset=2)
        commands.copy(tg.slot(0), direct, source_offset=8)
    for size in (16, 24):
        slotted = guarded(device, 32)
        source = device.upload(np.arange(size, dtype=np.uint8))
        queue.execute(commands, bindings=[source, slotted], wait=queue.fill(direct, GUARD)).wait(LIMIT)
        assert contents(slotted).tolist() == [GUARD] * 2 + list(range(4, size)) + [GUARD] * (34 - size)
        assert contents(direct).tolist() == list(range(8, size)) + [GUARD] * (40 - size)
    with pytest.raises(tg.OutOfRangeError):
        queue.execute(commands, bindings=[guarded(device, 40), guarded(device, 32)])


@pytest.mark.rules("M31")
def test_a_table_entry_may_be_a_subspan_and_offsets_count_from_its_start(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 64)
    with device.record() as commands:
        commands.fill(tg.slot(0), 1, offset=2, length=4)
        commands.fill(tg.slot(1), 2)
    queue.execute(commands, bindings=[buffer.subspan(8, 16), buffer.subspan(40, 8)]).wait(LIMIT)
    expected = [GUARD] * 64
    expected[10:14] = [1] * 4
    expected[40:48] = [2] * 8
    assert contents(buffer).tolist() == expected


@pytest.mark.rules("M31")
def test_one_table_entry_may_serve_many_bindings_and_one_buffer_many_slots(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    with device.record() as commands:
        commands.fill(tg.slot(0), 1, length=4)
        commands.fill(tg.slot(0), 2, offset=4, length=4)
        commands.fill(tg.slot(1), 3, offset=8)
    queue.execute(commands, bindings=[buffer, buffer]).wait(LIMIT)
    assert contents(buffer).tolist() == [1] * 4 + [2] * 4 + [3] * 8


@pytest.mark.rules("M16", "M31")
def test_a_slot_without_an_entry_is_refused_at_execute(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 16)
    with device.record() as commands:
        commands.fill(tg.slot(0), 1)
        commands.fill(tg.slot(2), 1)
    semaphore = tg.Semaphore()
    for table in ([], [buffer], [buffer, buffer]):
        with pytest.raises(tg.OutOfRangeError):
            queue.execute(commands, bindings=table, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    assert set(contents(buffer).tolist()) == {GUARD}
    others = [guarded(device, 16) for _ in range(3)]
    queue.execute(commands, bindings=others).wait(LIMIT)
    assert [set(contents(other).tolist()) for other in others] == [{1}, {GUARD}, {1}]


@pytest.mark.rules("M16", "M31")
def test_an_entry_too_small_for_what_was_recorded_is_refused_at_execute(device: tg.Device, queue: tg.Queue) -> None:
    small = guarded(device, 15)
    semaphore = tg.Semaphore()
    with device.record() as fill:
        fill.fill(tg.slot(0), 1, offset=8, length=8)
    with device.record() as copy:
        copy.copy(guarded(device, 16), tg.slot(0))
    with device.record() as update:
        update.update(tg.slot(0), bytes(16))
    for commands in (fill, copy, update):
        with pytest.raises(tg.OutOfRangeError):
            queue.execute(commands, bindings=[small], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    assert set(contents(small).tolist()) == {GUARD}


@pytest.mark.rules("M16", "M27", "M31")
def test_a_table_that_makes_a_copy_overlap_is_refused_at_execute(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 32)
    semaphore = tg.Semaphore()
    with device.record() as commands:
        commands.copy(tg.slot(0), tg.slot(1), length=16)
    with pytest.raises(tg.InvalidArgumentError):
        queue.execute(commands, bindings=[buffer, buffer.subspan(8, 16)], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    queue.execute(commands, bindings=[buffer, buffer.subspan(16, 16)]).wait(LIMIT)


@pytest.mark.rules("M16", "M31")
@pytest.mark.parametrize("entry", [None, 7, b"bytes", np.zeros(4, np.uint8)], ids=["None", "int", "bytes", "array"])
def test_a_foreign_object_in_the_table_is_a_type_error(device: tg.Device, queue: tg.Queue, entry: object) -> None:
    semaphore = tg.Semaphore()
    with device.record() as commands:
        commands.fill(tg.slot(0), 1)
    with pytest.raises(TypeError):
        queue.execute(commands, bindings=[entry], signal=semaphore.at(1))  # type: ignore[list-item]
    assert_still_claimable(queue, semaphore.at(1))


@pytest.mark.rules("M18", "M31")
def test_the_binding_table_is_captured_during_the_call(device: tg.Device, queue: tg.Queue) -> None:
    right, wrong = guarded(device, 16), guarded(device, 16)
    with device.record() as commands:
        commands.fill(tg.slot(0), 1)
    gate = tg.Semaphore()
    table = [right]
    run = queue.execute(commands, bindings=table, wait=gate.at(1))
    table[0] = wrong
    table.clear()
    gate.signal(1)
    run.wait(LIMIT)
    assert set(contents(right).tolist()) == {1}
    assert set(contents(wrong).tolist()) == {GUARD}


@pytest.mark.rules("M26", "M31")
def test_execute_counts_as_a_write_of_every_binding(device: tg.Device, queue: tg.Queue) -> None:
    direct, slotted, only_read = guarded(device, 16), guarded(device, 16), guarded(device, 16)
    with device.record() as commands:
        commands.copy(only_read, direct)
        commands.fill(tg.slot(0), 1)
    gate = tg.Semaphore()
    run = queue.execute(commands, bindings=[slotted], wait=gate.at(1))
    for buffer in (direct, slotted):
        with pytest.raises(tg.DeadlineExceededError):
            buffer.read(timeout=0)
    gate.signal(1)
    run.wait(LIMIT)
    assert slotted.read(timeout=LIMIT) == b"\x01" * 16


@pytest.mark.rules("M16", "M29")
def test_buffers_and_command_buffers_of_another_device_are_refused(
    device: tg.Device, queue: tg.Queue, partner_device: tg.Device
) -> None:
    """A command buffer belongs to the device that recorded it, and so do the buffers it may name."""
    foreign = partner_device.allocate(16)
    own = guarded(device, 16)
    semaphore = tg.Semaphore()
    with device.record() as commands:
        with pytest.raises(tg.InvalidArgumentError):
            commands.fill(foreign, 1)
        commands.fill(tg.slot(0), 1)
    with pytest.raises(tg.InvalidArgumentError):
        queue.execute(commands, bindings=[foreign], signal=semaphore.at(1))
    with pytest.raises(tg.InvalidArgumentError):
        partner_device.queue().execute(commands, bindings=[own], signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
