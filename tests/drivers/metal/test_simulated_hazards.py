"""The simulated Metal finds memory that two passes touch without an order between them."""

from __future__ import annotations

from typing import Any

import pytest

from .workbench import SHARED, Workbench

UNTRACKED = SHARED | 256


def encode_fill(bench: Workbench, commands: Any, buffer: Any, update: Any = None, wait: Any = None) -> None:
    encoder = bench.blit(commands)
    if wait is not None:
        encoder.waitForFence_(wait)
    encoder.fillBuffer_range_value_(buffer, (0, buffer.length()), 1)
    if update is not None:
        encoder.updateFence_(update)
    encoder.endEncoding()


def done(bench: Workbench, *all_commands: Any) -> int:
    for commands in all_commands:
        commands.waitUntilCompleted()
    return len(bench.metal.races)


def test_metal_orders_tracked_memory_within_a_queue(bench: Workbench) -> None:
    """Rule hazards."""
    buffer, first, second = bench.buffer(16), bench.commands(), bench.commands()
    encode_fill(bench, first, buffer)
    encode_fill(bench, second, buffer)
    first.commit()
    second.commit()
    assert done(bench, first, second) == 0


def test_untracked_memory_needs_an_order_within_a_queue(bench: Workbench) -> None:
    """Rule hazards."""
    buffer, gate = bench.buffer(16, UNTRACKED), bench.block()
    first, second = bench.fill(buffer, 1), bench.fill(buffer, 2)
    gate.open()
    assert done(bench, first, second) == 1
    assert "earlier on the same queue" in str(bench.metal.races[0])


def test_reading_twice_is_no_race(bench: Workbench) -> None:
    source, gate, commands = bench.buffer(16, UNTRACKED), bench.block(), bench.commands()
    for _ in range(2):
        encoder = bench.blit(commands)
        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(source, 0, bench.buffer(16), 0, 16)
        encoder.endEncoding()
    commands.commit()
    gate.open()
    assert done(bench, commands) == 0


def test_different_bytes_are_no_race(bench: Workbench) -> None:
    buffer, gate, commands = bench.buffer(32, UNTRACKED), bench.block(), bench.commands()
    for start in (0, 16):
        encoder = bench.blit(commands)
        encoder.fillBuffer_range_value_(buffer, (start, 16), 1)
        encoder.endEncoding()
    commands.commit()
    gate.open()
    assert done(bench, commands) == 0


@pytest.mark.parametrize("fenced", [False, True])
def test_a_fence_orders_passes(bench: Workbench, fenced: bool) -> None:
    """Rule hazards."""
    buffer, fence, commands = bench.buffer(16, UNTRACKED), bench.device.newFence(), bench.commands()
    encode_fill(bench, commands, buffer, update=fence)
    encode_fill(bench, commands, buffer, wait=fence if fenced else None)
    commands.commit()
    assert done(bench, commands) == (0 if fenced else 1)


@pytest.mark.parametrize("ordered", [False, True])
def test_an_event_orders_queues(bench: Workbench, ordered: bool) -> None:
    """Rule hazards."""
    buffer, event, other = bench.buffer(16), bench.device.newSharedEvent(), bench.device.newCommandQueue()
    first, second = bench.commands(), bench.commands(other)
    encode_fill(bench, first, buffer)
    first.encodeSignalEvent_value_(event, 1)
    second.encodeWaitForEvent_value_(event, 1 if ordered else 0)
    encode_fill(bench, second, buffer)
    first.commit()
    second.commit()
    assert done(bench, first, second) == (0 if ordered else 1)


def test_an_order_goes_over_several_queues(bench: Workbench) -> None:
    buffer, event = bench.buffer(16), bench.device.newSharedEvent()
    queues = [bench.device.newCommandQueue() for _ in range(3)]
    commands = [bench.commands(queue) for queue in queues]
    for index, each in enumerate(commands):
        each.encodeWaitForEvent_value_(event, index)
        if index != 1:
            encode_fill(bench, each, buffer)
        each.encodeSignalEvent_value_(event, index + 1)
        each.commit()
    assert done(bench, *commands) == 0


def test_what_the_host_has_seen_completed_is_ordered(bench: Workbench) -> None:
    """Rule hazards."""
    buffer, other = bench.buffer(16), bench.device.newCommandQueue()
    bench.fill(buffer, 1).waitUntilCompleted()
    assert done(bench, bench.fill(buffer, 2, bench.commands(other))) == 0


def test_a_host_that_lets_a_queue_go_on_orders_it(bench: Workbench) -> None:
    buffer, other, event = bench.buffer(16), bench.device.newCommandQueue(), bench.device.newSharedEvent()
    second = bench.commands(other)
    second.encodeWaitForEvent_value_(event, 1)
    encode_fill(bench, second, buffer)
    second.commit()
    bench.fill(buffer, 1).waitUntilCompleted()
    event.setSignaledValue_(1)
    assert done(bench, second) == 0


def test_kernels_count_by_what_they_declare(bench: Workbench) -> None:
    buffer = bench.buffer(16, UNTRACKED)
    reads = bench.host_pipeline(lambda *_: None, "device const uint *x [[buffer(0)]]")
    writes = bench.host_pipeline(lambda *_: None, "device uint *x [[buffer(0)]]")
    gate = bench.block()
    first = bench.run(reads, buffers=[buffer])
    second = bench.run(reads, buffers=[buffer])
    third = bench.run(writes, buffers=[buffer])
    gate.open()
    assert done(bench, first, second, third) == 2


def test_kernels_race_only_where_both_are_sure_to_be(bench: Workbench) -> None:
    buffer = bench.buffer(64, UNTRACKED)
    pipeline = bench.host_pipeline(lambda *_: None, "device uint *x [[buffer(0)]]")
    commands = bench.commands()
    for offset in (0, 32):
        encoder = bench.compute(commands)
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(buffer, offset, 0)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
        encoder.endEncoding()
    commands.commit()
    assert done(bench, commands) == 0


@pytest.mark.parametrize(("concurrent", "barrier", "races"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_dispatches_of_one_encoder_need_barriers(bench: Workbench, concurrent: bool, barrier: bool, races: int) -> None:
    """Rule hazards: tracking does not reach inside a concurrent encoder."""
    buffer, commands = bench.buffer(64), bench.commands()
    encoder = bench.compute(commands, concurrent)
    encoder.setComputePipelineState_(bench.host_pipeline(lambda *_: None, "device uint *x [[buffer(0)]]"))
    encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    for _ in range(2):
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
        if barrier:
            encoder.memoryBarrierWithScope_(1)
    encoder.endEncoding()
    commands.commit()
    assert done(bench, commands) == races


@pytest.mark.parametrize(("options", "races"), [(SHARED, 0), (UNTRACKED, 1)])
def test_blits_of_one_encoder_are_ordered_where_memory_is_tracked(bench: Workbench, options: int, races: int) -> None:
    """Rule hazards."""
    buffer, commands = bench.buffer(64, options), bench.commands()
    encoder = bench.blit(commands)
    for _ in range(2):
        encoder.fillBuffer_range_value_(buffer, (0, 16), 1)
    encoder.endEncoding()
    commands.commit()
    assert done(bench, commands) == races


def test_a_command_does_not_race_with_itself(bench: Workbench) -> None:
    buffer = bench.buffer(64, UNTRACKED)
    pipeline = bench.host_pipeline(lambda *_: None, "device uint *x [[buffer(0)]], device uint *y [[buffer(1)]]")
    assert done(bench, bench.run(pipeline, buffers=[buffer, buffer])) == 0


def test_queues_that_are_gone_are_forgotten(bench: Workbench) -> None:
    buffer = bench.buffer(16)
    for _ in range(100):
        queue = bench.device.newCommandQueue()
        assert done(bench, bench.fill(buffer, 1, bench.commands(queue))) == 0
        del queue
    assert done(bench, bench.fill(buffer, 1)) == 0
    assert len(bench.metal.simulation.hazards.host_clock()) < 5
    assert len(bench.queue._line.clock) < 40
