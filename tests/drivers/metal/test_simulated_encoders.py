"""Encoders of the simulated Metal: their life, blits, dispatches, argument tables and residency."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .workbench import COMPLETED, ERROR, PRIVATE, Workbench


def finish(commands: Any) -> None:
    commands.commit()
    commands.waitUntilCompleted()


def dispatching(bench: Workbench, pipeline: Any = None) -> tuple[Any, Any]:
    """A command buffer, and an encoder with a pipeline."""
    commands = bench.commands()
    encoder = bench.compute(commands)
    encoder.setComputePipelineState_(bench.pipeline() if pipeline is None else pipeline)
    return commands, encoder


# The life of an encoder


def test_an_encoder_is_ended_before_the_next(bench: Workbench) -> None:
    """Rule one-encoder."""
    commands = bench.commands()
    encoder = bench.blit(commands)
    with bench.breaks("one-encoder"):
        bench.compute(commands)
    with bench.breaks("one-encoder"):
        commands.encodeSignalEvent_value_(bench.device.newSharedEvent(), 1)
    with bench.breaks("one-encoder"):
        commands.encodeWaitForEvent_value_(bench.device.newSharedEvent(), 1)
    with bench.breaks("one-encoder"):
        commands.commit()
    encoder.endEncoding()
    finish(commands)


def test_an_encoder_released_without_its_end_is_found_out(bench: Workbench) -> None:
    """Rule one-encoder."""
    commands = bench.commands()
    bench.blit(commands)
    del commands
    assert bench.broken() == ["one-encoder"]


def test_an_ended_encoder_takes_nothing(bench: Workbench) -> None:
    """Rule ended-encoder."""
    buffer, pipeline = bench.buffer(16), bench.pipeline()
    commands = bench.commands()
    blit = bench.blit(commands)
    blit.endEncoding()
    compute = bench.compute(commands)
    compute.endEncoding()
    for call in (
        blit.endEncoding,
        lambda: blit.fillBuffer_range_value_(buffer, (0, 16), 1),
        lambda: blit.pushDebugGroup_("x"),
        lambda: compute.setComputePipelineState_(pipeline),
        lambda: compute.setBuffer_offset_atIndex_(buffer, 0, 0),
        lambda: compute.setBytes_length_atIndex_(b"1234", 4, 0),
        lambda: compute.memoryBarrierWithScope_(1),
        lambda: compute.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1)),
    ):
        with bench.breaks("ended-encoder"):
            call()


def test_debug_groups_balance(bench: Workbench) -> None:
    """Rule debug-groups."""
    encoder = bench.blit(bench.commands())
    with bench.breaks("debug-groups"):
        encoder.popDebugGroup()
    encoder.pushDebugGroup_("inside")
    with bench.breaks("debug-groups"):
        encoder.endEncoding()
    encoder.popDebugGroup()
    encoder.endEncoding()


# Blits


@pytest.mark.parametrize("span", [(1, 4), (2, 4), (0, 3), (0, 6)])
def test_fills_are_on_the_4_byte_grid(bench: Workbench, span: tuple[int, int]) -> None:
    """Rule blit-alignment."""
    encoder, buffer = bench.blit(bench.commands()), bench.buffer(16)
    with bench.breaks("blit-alignment"):
        encoder.fillBuffer_range_value_(buffer, span, 1)
    encoder.endEncoding()


@pytest.mark.parametrize("place", [(2, 0, 4), (0, 2, 4), (0, 0, 2)])
def test_copies_are_on_the_4_byte_grid(bench: Workbench, place: tuple[int, int, int]) -> None:
    """Rule blit-alignment."""
    encoder, source, target = bench.blit(bench.commands()), bench.buffer(16), bench.buffer(16)
    start, to, length = place
    with bench.breaks("blit-alignment"):
        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(source, start, target, to, length)
    encoder.endEncoding()


@pytest.mark.parametrize("span", [(0, 0), (0, 20), (16, 4)])
def test_fills_stay_inside_and_are_not_empty(bench: Workbench, span: tuple[int, int]) -> None:
    """Rule blit-range."""
    encoder, buffer = bench.blit(bench.commands()), bench.buffer(16)
    with bench.breaks("blit-range"):
        encoder.fillBuffer_range_value_(buffer, span, 1)
    encoder.endEncoding()


def test_copies_stay_inside_and_do_not_overlap(bench: Workbench) -> None:
    """Rule blit-range."""
    encoder, small, large = bench.blit(bench.commands()), bench.buffer(8), bench.buffer(16)
    copy = encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_
    with bench.breaks("blit-range"):
        copy(small, 4, large, 0, 8)
    with bench.breaks("blit-range"):
        copy(large, 0, small, 4, 8)
    with bench.breaks("blit-range"):
        copy(large, 0, large, 4, 8)
    copy(large, 0, large, 8, 8)
    encoder.endEncoding()


def test_fills_and_copies_do_what_they_say(bench: Workbench) -> None:
    commands, source, target = bench.commands(), bench.buffer(16, PRIVATE), bench.buffer(16)
    encoder = bench.blit(commands)
    encoder.fillBuffer_range_value_(source, (4, 8), 7)
    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(source, 4, target, 8, 4)
    encoder.endEncoding()
    finish(commands)
    assert bench.words(target).tolist() == [0, 0, 0x07070707, 0]


def test_only_managed_memory_is_synchronized(bench: Workbench) -> None:
    """Rule synchronize-managed."""
    encoder, shared, managed = bench.blit(bench.commands()), bench.buffer(16), bench.buffer(16, 16)
    with bench.breaks("synchronize-managed"):
        encoder.synchronizeResource_(shared)
    with bench.breaks("synchronize-managed"):
        shared.didModifyRange_((0, 16))
    encoder.synchronizeResource_(managed)
    managed.didModifyRange_((0, 16))
    encoder.endEncoding()


# Dispatches


def test_a_dispatch_needs_a_pipeline(bench: Workbench) -> None:
    """Rule pipeline-set."""
    encoder = bench.compute(bench.commands())
    with bench.breaks("pipeline-set"):
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()


def test_a_kernel_runs_with_its_buffers_and_constants(bench: Workbench) -> None:
    commands, encoder = dispatching(bench)
    buffer = bench.buffer(64)
    encoder.setBuffer_offset_atIndex_(buffer, 16, 0)
    encoder.setBytes_length_atIndex_(np.uint32(3).tobytes(), 4, 1)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (16, 1, 1))
    encoder.setBufferOffset_atIndex_(20, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_((3, 1, 1), (2, 1, 1))
    encoder.endEncoding()
    finish(commands)
    assert commands.status() == COMPLETED
    assert bench.words(buffer).tolist() == [0] * 4 + [1, 2, 2, 1] + [0] * 8


def test_a_kernel_sees_the_workgroups_structs_and_constants_in_buffers(bench: Workbench) -> None:
    seen: list[Any] = []
    name, source = bench.metal.host_kernel(
        lambda *given: seen.append(given),
        "constant pair &p [[buffer(1)]], device const uchar *x [[buffer(0)]], constant uint &n [[buffer(2)]]",
    )
    pipeline = bench.pipeline("struct pair { float a; uint b; };\n" + source, name)
    constants, data = bench.buffer(16), bench.buffer(10)
    bench.words(constants)[:2] = [np.float32(1.5).view(np.uint32), 9]
    commands, encoder = dispatching(bench, pipeline)
    encoder.setBuffer_offset_atIndex_(data, 3, 0)
    encoder.setBuffer_offset_atIndex_(constants, 0, 1)
    encoder.setBytes_length_atIndex_(np.uint32(5).tobytes(), 4, 2)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_((2, 3, 4), (1, 1, 1))
    encoder.endEncoding()
    finish(commands)
    ((workgroups, bindings, (pair, n)),) = seen
    assert (workgroups, len(bindings), len(bindings[0]), n) == ((2, 3, 4), 1, 7, 5)
    assert (pair["a"], pair["b"]) == (1.5, 9)


def test_arguments_are_taken_when_the_dispatch_is_encoded(bench: Workbench) -> None:
    seen: list[int] = []
    pipeline = bench.host_pipeline(lambda _, __, values: seen.append(int(values[0])), "constant uint &n [[buffer(0)]]")
    commands, encoder = dispatching(bench, pipeline)
    for value in (1, 2):
        encoder.setBytes_length_atIndex_(np.uint32(value).tobytes(), 4, 0)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    finish(commands)
    assert seen == [1, 2]


def test_every_argument_is_bound_aligned_and_large_enough(bench: Workbench) -> None:
    """Rule bindings."""
    _, encoder = dispatching(bench)
    buffer, run = bench.buffer(16), encoder.dispatchThreadgroups_threadsPerThreadgroup_
    encoder.setBytes_length_atIndex_(b"1234", 4, 1)
    with bench.breaks("bindings"):
        run((1, 1, 1), (1, 1, 1))
    encoder.setBuffer_offset_atIndex_(buffer, 2, 0)
    with bench.breaks("bindings"):
        run((1, 1, 1), (1, 1, 1))
    encoder.setBytes_length_atIndex_(b"1234", 4, 0)
    with bench.breaks("bindings"):  # bytes for memory that the kernel writes
        run((1, 1, 1), (1, 1, 1))
    encoder.setBuffer_offset_atIndex_(bench.buffer(3), 0, 0)
    with bench.breaks("bindings"):
        run((1, 1, 1), (1, 1, 1))
    encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    encoder.setBytes_length_atIndex_(b"12", 2, 1)
    with bench.breaks("bindings"):
        run((1, 1, 1), (1, 1, 1))
    with bench.breaks("bindings"):
        encoder.setBuffer_offset_atIndex_(buffer, 16, 0)
    with bench.breaks("bindings"):
        encoder.setBufferOffset_atIndex_(0, 5)
    encoder.endEncoding()


def test_constants_may_want_a_larger_alignment() -> None:
    """Rule bindings, on other GPUs."""
    bench = Workbench(constant_alignment=32)
    _, encoder = dispatching(bench)
    buffer = bench.buffer(64)
    encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    encoder.setBuffer_offset_atIndex_(buffer, 4, 1)
    with bench.breaks("bindings"):
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.setBuffer_offset_atIndex_(buffer, 32, 1)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    bench.close()


def test_there_are_31_buffers(bench: Workbench) -> None:
    """Rule buffer-index."""
    encoder, buffer = bench.compute(bench.commands()), bench.buffer(16)
    encoder.setBuffer_offset_atIndex_(buffer, 0, 30)
    with bench.breaks("buffer-index"):
        encoder.setBuffer_offset_atIndex_(buffer, 0, 31)
    with bench.breaks("buffer-index"):
        encoder.setBytes_length_atIndex_(b"1234", 4, 31)
    encoder.endEncoding()


@pytest.mark.parametrize("length", [0, 4097])
def test_bytes_are_few(bench: Workbench, length: int) -> None:
    """Rule set-bytes."""
    encoder = bench.compute(bench.commands())
    with bench.breaks("set-bytes"):
        encoder.setBytes_length_atIndex_(bytes(length), length, 0)
    encoder.setBytes_length_atIndex_(bytes(4096), 4096, 0)
    encoder.endEncoding()


@pytest.mark.parametrize(
    ("groups", "threads"), [((1, 1, 1), (1025, 1, 1)), ((1, 1, 1), (0, 1, 1)), ((0, 1, 1), (1, 1, 1))]
)
def test_threadgroups_fit_and_nothing_is_empty(bench: Workbench, groups: Any, threads: Any) -> None:
    """Rule threadgroup-size."""
    _, encoder = dispatching(bench, bench.host_pipeline(lambda *_: None))
    with bench.breaks("threadgroup-size"):
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(groups, threads)
    with bench.breaks("threadgroup-size"):
        encoder.dispatchThreads_threadsPerThreadgroup_(groups, threads)
    encoder.endEncoding()


def test_a_kernel_may_allow_fewer_threads(bench: Workbench) -> None:
    """Rule threadgroup-size."""
    bench.metal.register("few", lambda *_: None)
    pipeline = bench.pipeline("[[max_total_threads_per_threadgroup(8)]] kernel void few() { }", "few")
    assert pipeline.maxTotalThreadsPerThreadgroup() == 8
    _, encoder = dispatching(bench, pipeline)
    with bench.breaks("threadgroup-size"):
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (3, 3, 1))
    encoder.endEncoding()


def test_threadgroup_memory_is_there_and_fits(bench: Workbench) -> None:
    """Rule threadgroup-memory."""
    pipeline = bench.host_pipeline(lambda *_: None, "threadgroup float *scratch [[threadgroup(0)]]")
    commands, encoder = dispatching(bench, pipeline)
    with bench.breaks("threadgroup-memory"):
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    for length in (8, 32 << 10 | 16):
        with bench.breaks("threadgroup-memory"):
            encoder.setThreadgroupMemoryLength_atIndex_(length, 0)
    encoder.setThreadgroupMemoryLength_atIndex_(32, 0)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    finish(commands)
    assert commands.status() == COMPLETED


def indirect(encoder: Any, buffer: Any, offset: int) -> None:
    encoder.dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup_(
        buffer, offset, (1, 1, 1)
    )


def test_indirect_counts_are_read_when_the_command_runs(bench: Workbench) -> None:
    seen: list[Any] = []
    counts, commands = bench.buffer(32), bench.commands()
    blit = bench.blit(commands)
    blit.fillBuffer_range_value_(counts, (4, 12), 1)
    blit.endEncoding()
    encoder = bench.compute(commands)
    encoder.setComputePipelineState_(bench.host_pipeline(lambda groups, *_: seen.append(groups)))
    indirect(encoder, counts, 4)
    indirect(encoder, counts, 16)  # three zeros: nothing runs
    encoder.endEncoding()
    finish(commands)
    assert seen == [(0x01010101,) * 3]


@pytest.mark.parametrize("offset", [2, 8, 16])
def test_indirect_counts_are_aligned_and_inside(bench: Workbench, offset: int) -> None:
    """Rule indirect-offset."""
    _, encoder = dispatching(bench, bench.host_pipeline(lambda *_: None))
    with bench.breaks("indirect-offset"):
        indirect(encoder, bench.buffer(16), offset)
    encoder.endEncoding()


def orders(concurrent: bool, barriers: bool) -> set[str]:
    """In which orders three dispatches run, over many seeds."""
    found = set()
    for seed in range(30):
        bench, seen = Workbench(seed=seed), []
        commands = bench.commands()
        encoder = bench.compute(commands, concurrent)
        for letter in "abc":
            encoder.setComputePipelineState_(bench.host_pipeline(lambda *_, letter=letter: seen.append(letter)))
            encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
            if barriers:
                encoder.memoryBarrierWithScope_(1)
        encoder.endEncoding()
        finish(commands)
        found.add("".join(seen))
        bench.close()
    return found


def test_a_serial_encoder_runs_dispatches_in_order() -> None:
    assert orders(concurrent=False, barriers=False) == {"abc"}


def test_a_concurrent_encoder_runs_dispatches_in_any_order() -> None:
    """Choice concurrent-dispatch."""
    assert len(orders(concurrent=True, barriers=False)) == 6


def test_barriers_order_a_concurrent_encoder() -> None:
    assert orders(concurrent=True, barriers=True) == {"abc"}


# Argument buffers


def test_an_address_leads_to_a_resident_buffer(bench: Workbench) -> None:
    """Rule residency."""
    target, arguments = bench.buffer(64), bench.buffer(8)

    def through(workgroups: Any, bindings: Any, constants: Any) -> None:
        address = int(bindings[0].view(np.uint64)[0])
        bench.metal.resolve(address).view(np.uint32)[0] = 5

    pipeline = bench.host_pipeline(through, "device const ulong *arguments [[buffer(0)]]")
    np.frombuffer(arguments.contents().as_buffer(8), np.uint64)[0] = target.gpuAddress() + 8
    statuses = []
    for resident in (False, True):
        commands, encoder = dispatching(bench, pipeline)
        encoder.setBuffer_offset_atIndex_(arguments, 0, 0)
        if resident:
            encoder.useResource_usage_(target, 2)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
        encoder.endEncoding()
        finish(commands)
        statuses.append(commands.status())
    assert statuses == [ERROR, COMPLETED]
    assert bench.broken() == ["residency"]
    assert bench.words(target)[2] == 5


def test_a_heap_makes_its_buffers_resident(bench: Workbench) -> None:
    descriptor = bench.metal.MTLHeapDescriptor.alloc().init()
    descriptor.setSize_(4096)
    heap = bench.device.newHeapWithDescriptor_(descriptor)
    buffer = heap.newBufferWithLength_options_(64, PRIVATE)
    lengths: list[int] = []
    pipeline = bench.host_pipeline(lambda *_: lengths.append(len(bench.metal.resolve(buffer.gpuAddress()))))
    commands, encoder = dispatching(bench, pipeline)
    encoder.useHeaps_count_([heap], 1)
    encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    finish(commands)
    assert lengths == [4096]


def test_addresses_mean_nothing_outside_kernels(bench: Workbench) -> None:
    with pytest.raises(RuntimeError, match="inside a kernel only"):
        bench.metal.resolve(bench.buffer(16).gpuAddress())
