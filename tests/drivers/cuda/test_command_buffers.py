"""Command buffers of the CUDA driver, over the simulated native layer: what is made, changed, kept and given back."""

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate._core import registry
from tidegate.conformance import kernels
from tidegate.conformance.interrupts import interrupted_at
from tidegate.drivers.cuda import CudaDriver
from tidegate.drivers.cuda._native import NativeError
from tidegate.drivers.cuda.graph_command_buffer import INSTANCES, GraphCommandBuffer
from tidegate.drivers.cuda.indirect import SplitCommandBuffer
from tidegate.drivers.cuda.stream_command_buffer import MOST, StreamCommandBuffer
from tidegate.testing import cuda_simulated

LIMIT = 30.0
GATE = tg.Kernel(
    "pass_gate",
    cuda="""
extern "C" __global__ void pass_gate(volatile unsigned *gate, unsigned *passed) {
    long long begin = clock64();
    while (gate[0] == 0 && clock64() - begin < 60000000000) __nanosleep(1000);
    passed[0] += 1;
}""",
    bindings=2,
)


class Bench:
    """A device over a native layer of its own, and a record of what graphs are told to change."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.changed: list[tuple[str, int]] = []
        self.refuse: Callable[[], None] = lambda: None
        self._set_nodes = native.set_nodes
        native.set_nodes = self._record
        self.device: tg.Device

    def _record(self, kind: str, instance: int, nodes: Any, context: int) -> None:
        nodes = list(nodes)
        self._set_nodes(kind, instance, nodes[: len(nodes) // 2], context)
        self.refuse()
        self._set_nodes(kind, instance, nodes[len(nodes) // 2 :], context)
        self.changed.append((kind, len(nodes)))

    def take_changed(self) -> dict[str, int]:
        """Return how many nodes of each kind were changed since the last time."""
        found: dict[str, int] = {}
        for kind, count in self.changed:
            found[kind] = found.get(kind, 0) + count
        self.changed.clear()
        return found

    @property
    def counts(self) -> dict[str, int]:
        """How often the driver had to take a way that costs more."""
        return self.device._driver.counts  # type: ignore[attr-defined, no-any-return]

    def form(self, commands: tg.CommandBuffer) -> Any:
        return commands._prepared

    def words(self, count: int, value: int = 0) -> tg.Buffer:
        buffer = self.device.allocate(4 * count, memory="shared")
        with buffer.map("w") as array:
            array.view(np.uint32)[:] = value
        return buffer


@pytest.fixture
def open_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    opened: list[Bench] = []

    def open_it(options: str = "", seed: int = 1) -> Bench:
        bench = Bench(cuda_simulated.native(seed=seed))
        name = f"cuda-bench-{len(opened)}"
        driver = CudaDriver(lambda _release: bench.native, cuda_simulated.SimulatedNvrtc)
        monkeypatch.setitem(registry._loaded, name, driver)
        bench.device = tg.open_device(f"{name}?{options}" if options else name)
        opened.append(bench)
        return bench

    yield open_it
    for bench in opened:
        bench.device.close(LIMIT)
        assert not bench.native.violations
        assert bench.native.counts["graphs"] == bench.native.counts["graph instances"] == 0


@pytest.fixture
def bench(open_bench: Callable[..., Bench]) -> Bench:
    """A device."""
    return open_bench()


def values(buffer: tg.Buffer) -> list[int]:
    return buffer.to_numpy(np.uint32, timeout=LIMIT).tolist()  # type: ignore[no-any-return]


def increments(bench: Bench, count: int, slots: int = 1) -> tg.CommandBuffer:
    """Record `count` dispatches, one after the other, each on the next slot."""
    increment = kernels.load(bench.device, kernels.increment)
    with bench.device.record() as commands:
        for index in range(count):
            commands.dispatch(increment, 1, bindings=[tg.slot(index % slots)], constants=[4])
            commands.barrier()
    return commands


def gated(bench: Bench) -> tg.CommandBuffer:
    """Record a kernel that waits until the first word of slot 0 is set, then counts in slot 1."""
    function = bench.device.load(GATE)["pass_gate"]
    with bench.device.record() as commands:
        commands.dispatch(function, 1, bindings=[tg.slot(0), tg.slot(1)])
    return commands


def let_through(gate: tg.Buffer) -> None:
    with gate.map("w", wait=()) as array:
        array.view(np.uint32)[0] = 1


# Which form


def test_the_form_follows_the_length_and_whether_it_can_be_reused(open_bench: Callable[..., Bench]) -> None:
    benches = {wanted: open_bench(f"commands={wanted}") for wanted in ("auto", "graph", "stream")}
    graph, stream = GraphCommandBuffer, StreamCommandBuffer
    for one_shot, count, forms in (
        (False, 1, (graph, graph, stream)),
        (True, 16, (stream, graph, stream)),
        (True, 17, (graph, graph, stream)),
        (False, MOST, (graph, graph, stream)),
        (False, MOST + 1, (graph, graph, graph)),
        (True, MOST + 1, (graph, graph, graph)),
    ):
        for (wanted, bench), form in zip(benches.items(), forms, strict=True):
            with bench.device.record(one_shot=one_shot) as commands:
                for _ in range(count):
                    commands.fill(tg.slot(0), 1)
                    commands.barrier()
            assert type(bench.form(commands)) is form, (wanted, one_shot, count)


def test_recording_makes_nothing_native(bench: Bench) -> None:
    before = dict(bench.native.counts)
    commands = increments(bench, 3)
    with bench.device.record() as data:
        data.update(tg.slot(0), b"data")
    assert bench.native.counts["graphs"] == 0
    assert bench.native.counts["pinned"] == before.get("pinned", 0)
    buffer = bench.words(4)
    bench.device.queue().execute(commands, bindings=[buffer]).wait(LIMIT)
    assert bench.native.counts["graphs"] == bench.native.counts["graph instances"] == 1
    assert values(buffer) == [3, 3, 3, 3]


def test_the_stream_form_makes_no_graph(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench("commands=stream")
    commands = increments(bench, 5, slots=2)
    buffers = [bench.words(4), bench.words(4)]
    bench.device.queue().execute(commands, bindings=buffers).wait(LIMIT)
    assert [values(buffer)[0] for buffer in buffers] == [3, 2]
    assert bench.native.counts["graphs"] == 0


# Binding


def test_a_table_bound_already_changes_no_node(bench: Bench) -> None:
    commands = increments(bench, 10)
    buffer = bench.words(4)
    queue = bench.device.queue()
    for _ in range(5):
        queue.execute(commands, bindings=[buffer]).wait(LIMIT)
    assert bench.take_changed() == {}
    assert values(buffer) == [50] * 4


def test_only_nodes_of_changed_slots_are_changed(bench: Bench) -> None:
    commands = increments(bench, 30, slots=3)
    queue = bench.device.queue()
    table = [bench.words(4) for _ in range(3)]
    queue.execute(commands, bindings=table).wait(LIMIT)
    replaced, table[1] = table[1], bench.words(4)
    queue.execute(commands, bindings=table).wait(LIMIT)
    assert bench.take_changed() == {"kernel": 10}
    assert [values(buffer)[0] for buffer in (*table, replaced)] == [20, 10, 20, 10]


def test_other_slots_may_change_every_time(bench: Bench) -> None:
    commands = increments(bench, 24, slots=12)
    queue = bench.device.queue()
    table = [bench.words(4) for _ in range(12)]
    runs = {id(buffer): 0 for buffer in table}
    kept = list(table)
    for slot in (None, *range(12), *range(12)):
        if slot is not None:
            table[slot] = bench.words(4)
            kept.append(table[slot])
        queue.execute(commands, bindings=table).wait(LIMIT)
        for buffer in table:
            runs[id(buffer)] = runs.get(id(buffer), 0) + 1
    assert bench.take_changed() == {"kernel": 2 * 24}
    assert [values(buffer)[0] for buffer in kept] == [2 * runs[id(buffer)] for buffer in kept]


def test_a_node_that_follows_two_changed_slots_is_changed_once(bench: Bench) -> None:
    add = kernels.load(bench.device, kernels.add)
    with bench.device.record() as commands:
        commands.dispatch(add, 1, bindings=[tg.slot(0), tg.slot(1), tg.slot(2)], constants=[4])
    queue = bench.device.queue()
    for first, second in ((1, 2), (3, 4)):
        inputs = [bench.device.upload(np.full(4, value, np.float32)) for value in (first, second)]
        out = bench.words(4)
        queue.execute(commands, bindings=[*inputs, out]).wait(LIMIT)
        assert out.to_numpy(np.float32, timeout=LIMIT).tolist() == [first + second] * 4
    assert bench.take_changed() == {"kernel": 1}


def test_slots_of_fills_copies_and_updates_follow_the_table(bench: Bench) -> None:
    with bench.device.record() as commands:
        commands.fill(tg.slot(0), b"\x01\x02", offset=2, length=4)
        commands.update(tg.slot(0), b"abcd", offset=8)
        commands.barrier()
        commands.copy(tg.slot(0), tg.slot(1), source_offset=2, target_offset=1, length=10)
    queue = bench.device.queue()
    for _ in range(3):
        first, second = bench.words(4), bench.words(4)
        queue.execute(commands, bindings=[first, second]).wait(LIMIT)
        assert first.read(timeout=LIMIT) == b"\0\0\x01\x02\x01\x02\0\0abcd\0\0\0\0"
        assert second.read(timeout=LIMIT) == b"\0\x01\x02\x01\x02\0\0abcd\0\0\0\0\0"
    assert bench.counts.get("reinstantiated", 0) == 0
    assert bench.native.counts["graphs"] == 1


def test_lengths_that_follow_a_slot_may_grow_shrink_and_vanish(bench: Bench) -> None:
    with bench.device.record() as commands:
        commands.fill(tg.slot(0), b"\x01\x02\x03\x04", offset=4)
        commands.copy(tg.slot(1), tg.slot(2))
    queue = bench.device.queue()
    for filled, copied in ((4, 3), (2, 1), (1, 4), (4, 0), (1, 0), (5, 5)):
        target, source, into = bench.words(filled), bench.words(8, 7), bench.words(8)
        queue.execute(commands, bindings=[target, source.subspan(0, 4 * copied), into]).wait(LIMIT)
        assert values(target) == [0] + [0x04030201] * (filled - 1)
        assert values(into) == [7] * copied + [0] * (8 - copied)
    assert bench.native.counts["graphs"] == 1
    assert bench.counts.get("reinstantiated", 0) == 0


def test_what_had_nothing_to_do_at_first_gets_an_instance_of_its_own(bench: Bench) -> None:
    with bench.device.record() as commands:
        first = commands.fill(tg.slot(0), 1)
        second = commands.copy(tg.slot(1), tg.slot(0), after=[first])
        commands.copy(tg.slot(0), tg.slot(2), after=[second])
    queue = bench.device.queue()
    for copied in (0, 4):
        target, out = bench.words(1), bench.words(1)
        source = bench.words(1, 0x05050505).subspan(0, copied)
        queue.execute(commands, bindings=[target, source, out]).wait(LIMIT)
        assert values(out) == [0x05050505 if copied else 0x01010101]
    assert bench.counts["reinstantiated"] == 1


def test_a_copy_follows_its_slots_between_kinds_of_memory(bench: Bench) -> None:
    with bench.device.record() as commands:
        commands.copy(tg.slot(0), tg.slot(1))
    queue = bench.device.queue()
    data = np.arange(16, dtype=np.uint32)
    for _ in range(2):
        for source_kind in ("device", "host"):
            for target_kind in ("device", "shared"):
                source = bench.device.upload(data, memory=source_kind)
                target = bench.device.allocate(64, memory=target_kind)
                queue.execute(commands, bindings=[source, target]).wait(LIMIT)
                assert values(target) == data.tolist()
                data = data + 1
    assert bench.native.counts["graph instances"] <= INSTANCES
    assert bench.counts.get("reinstantiated", 0) == 0  # one of the kept instances fits each of the four ways


def test_a_change_that_cuda_refuses_is_made_by_another_instance(bench: Bench) -> None:
    commands = increments(bench, 4)
    queue = bench.device.queue()
    first = bench.words(4)
    queue.execute(commands, bindings=[first]).wait(LIMIT)

    def refuse() -> None:
        raise NativeError("cuGraphExecKernelNodeSetParams", 910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "no")

    bench.refuse = refuse
    buffer = bench.words(4)
    queue.execute(commands, bindings=[buffer]).wait(LIMIT)
    assert values(buffer) == [4] * 4
    assert bench.counts["reinstantiated"] == 1
    gc.collect()
    queue.execute(commands, bindings=[buffer]).wait(LIMIT)
    assert bench.native.counts["graph instances"] == 1
    assert values(buffer) == [8] * 4
    assert values(first) == [4] * 4


def test_an_interrupt_anywhere_while_a_table_is_bound_leaves_no_node_behind(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "tidegate")  # what is logged keeps the frames it came from, and what they had
    commands = increments(bench, 8)
    queue = bench.device.queue()
    first, second = bench.words(4), bench.words(4)
    for step in range(1, 2000):
        queue.execute(commands, bindings=[first]).wait(LIMIT)
        with interrupted_at(step) as interruption:
            queue.execute(commands, bindings=[second])
        if not interruption.fired:
            break
    assert step > 10
    for buffer, least in ((first, 8 * step), (second, 8)):
        assert len(set(values(buffer))) == 1, "some commands ran on another buffer than the rest"
        assert values(buffer)[0] >= least
        assert values(buffer)[0] % 8 == 0


def test_cooperative_kernels_can_be_recorded_and_bound_anew(bench: Bench) -> None:
    kernel = kernels.increment
    function = bench.device.load(kernel, options=["cooperative"])[kernel.name]
    with bench.device.record() as commands:
        commands.dispatch(function, 1, bindings=[tg.slot(0)], constants=[4])
    launched = []
    add = bench.native.add_kernel_node
    bench.native.add_kernel_node = lambda *arguments: launched.append(arguments[2]) or add(*arguments)
    buffers = [bench.words(4) for _ in range(2)]
    for buffer in buffers:
        bench.device.queue().execute(commands, bindings=[buffer]).wait(LIMIT)
    assert [launch.cooperative for launch in launched] == [True]
    assert [values(buffer) for buffer in buffers] == [[1] * 4] * 2


# Instances


def test_executions_of_one_command_buffer_do_not_wait_for_one_another(bench: Bench) -> None:
    commands = gated(bench)
    queue = bench.device.queue()
    gates = [bench.words(1) for _ in range(INSTANCES + 3)]
    passed = [bench.words(1) for _ in gates]
    runs = [queue.execute(commands, bindings=pair) for pair in zip(gates, passed, strict=True)]
    for gate, run in reversed(list(zip(gates, runs, strict=True))):
        assert not run.done
        let_through(gate)
        run.wait(LIMIT)
    assert [values(buffer) for buffer in passed] == [[1]] * len(gates)


def test_only_so_many_instances_are_kept(bench: Bench) -> None:
    commands = gated(bench)
    queue = bench.device.queue()
    gates = [bench.words(1) for _ in range(2 * INSTANCES)]
    runs = [queue.execute(commands, bindings=[gate, bench.words(1)]) for gate in gates]
    assert bench.native.counts["graph instances"] == 2 * INSTANCES
    for gate in gates:
        let_through(gate)
    tg.wait_all(runs, LIMIT)
    for _ in range(3):
        queue.execute(commands, bindings=[gates[0], bench.words(1)]).wait(LIMIT)
    assert bench.native.counts["graph instances"] == INSTANCES


def test_executions_in_a_row_share_an_instance(bench: Bench) -> None:
    commands = increments(bench, 4)
    queue = bench.device.queue()
    buffer, gate = bench.words(4), bench.words(1)
    held = queue.execute(gated(bench), bindings=[gate, bench.words(1)])
    runs: list[tg.Submission] = [held]
    for _ in range(20):
        runs.append(queue.execute(commands, bindings=[buffer], wait=runs[-1]))
    assert bench.native.counts["graph instances"] <= 2
    let_through(gate)
    tg.wait_all(runs, LIMIT)
    assert values(buffer) == [80] * 4


def test_of_free_instances_the_one_bound_most_alike_is_taken(bench: Bench) -> None:
    commands = gated(bench)
    queue = bench.device.queue()
    tables = [[bench.words(1), bench.words(1)] for _ in range(3)]
    runs = [queue.execute(commands, bindings=table) for table in tables]
    for gate, _ in tables:
        let_through(gate)
    tg.wait_all(runs, LIMIT)
    bench.take_changed()
    for table in [*tables, *reversed(tables)]:
        queue.execute(commands, bindings=table).wait(LIMIT)
    assert bench.take_changed() == {}
    assert [values(passed) for _, passed in tables] == [[3]] * 3


def test_a_table_changed_while_an_earlier_execution_waits_leaves_that_alone(bench: Bench) -> None:
    queue = bench.device.queue()
    commands = increments(bench, 3)
    gate = bench.words(1)
    previous = queue.execute(gated(bench), bindings=[gate, bench.words(1)])
    buffers = [bench.words(4) for _ in range(6)]
    for buffer in buffers:
        previous = queue.execute(commands, bindings=[buffer], wait=previous)
    let_through(gate)
    previous.wait(LIMIT)
    assert [values(buffer) for buffer in buffers] == [[3] * 4] * 6


def test_a_dropped_command_buffer_takes_its_graphs_with_it(bench: Bench) -> None:
    queue = bench.device.queue()
    commands = increments(bench, 3)
    queue.execute(commands, bindings=[bench.words(4)]).wait(LIMIT)
    gate, passed = bench.words(1), bench.words(1)
    run = queue.execute(gated(bench), bindings=[gate, passed])
    del commands
    gc.collect()
    queue.fill(bench.words(4), 1).wait(LIMIT)
    assert bench.native.counts["graph instances"] == 1  # that of the one that still runs
    let_through(gate)
    run.wait(LIMIT)
    del run
    gc.collect()
    bench.device.trim()
    assert bench.native.counts["graphs"] == bench.native.counts["graph instances"] == 0
    assert values(passed) == [1]


def test_a_command_buffer_that_outlives_its_device_leaves_no_graph_behind(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench()
    commands = increments(bench, 3)
    bench.device.queue().execute(commands, bindings=[bench.words(4)]).wait(LIMIT)
    bench.device.close(LIMIT)
    assert bench.native.counts["graphs"] == bench.native.counts["graph instances"] == 0
    assert "ended" in repr(commands)


# Memory


@pytest.mark.parametrize("form", ["graph", "stream"])
def test_direct_buffers_may_be_committed_later_than_recorded(open_bench: Callable[..., Bench], form: str) -> None:
    bench = open_bench(f"commands={form}")
    queue = bench.device.queue()
    gate = tg.Semaphore()
    buffer = queue.allocate(16, memory="shared", wait=gate.at(1))
    with bench.device.record() as commands:
        commands.fill(buffer, 3)
    run = queue.execute(commands, wait=buffer.ready)
    gate.signal(1)
    run.wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == b"\x03" * 16


@pytest.mark.parametrize("form", ["graph", "stream"])
def test_direct_buffers_freed_before_an_execution_fail_it_and_no_other(
    open_bench: Callable[..., Bench], form: str
) -> None:
    bench = open_bench(f"commands={form}")
    queue = bench.device.queue()
    kept, freed = bench.words(4), bench.words(4)
    with bench.device.record() as both:
        both.fill(kept, 1)
        both.fill(freed, 1)
    with bench.device.record() as one:
        one.fill(kept, 2)
    queue.execute(both).wait(LIMIT)
    gate = tg.Semaphore()
    late = queue.execute(both, wait=gate.at(1))
    queue.free(freed).wait(LIMIT)
    gate.signal(1)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        late.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.FailedPreconditionError)
    queue.execute(one).wait(LIMIT)
    assert kept.read(timeout=LIMIT) == b"\x02" * 16


@pytest.mark.parametrize("form", ["graph", "stream"])
def test_a_command_buffer_keeps_no_memory_that_was_given_up(open_bench: Callable[..., Bench], form: str) -> None:
    bench = open_bench(f"commands={form}&memory=1MiB")
    queue = bench.device.queue()
    buffer = bench.device.allocate(1 << 20)
    with bench.device.record() as commands:
        commands.fill(buffer, 1)
        commands.fill(tg.slot(0), 1)
    queue.execute(commands, bindings=[buffer]).wait(LIMIT)
    buffer.close()
    assert bench.device.allocate(1 << 20).nbytes == 1 << 20


@pytest.mark.parametrize("form", ["graph", "stream"])
def test_updates_run_again_with_what_was_captured(open_bench: Callable[..., Bench], form: str) -> None:
    bench = open_bench(f"commands={form}")
    queue = bench.device.queue()
    data = np.random.default_rng(1).integers(0, 256, 40_000, np.uint8)
    expected = data.copy()
    buffer = bench.device.allocate(80_007)
    with bench.device.record() as commands:
        commands.update(buffer, data)
        commands.update(buffer, data[:7], offset=40_000)
        commands.update(tg.slot(0), data, offset=0)
        data[:] = 0
    for _ in range(2):
        queue.execute(commands, bindings=[buffer.subspan(40_007)]).wait(LIMIT)
        found = buffer.to_numpy(timeout=LIMIT)
        assert np.array_equal(found[:40_000], expected)
        assert np.array_equal(found[40_000:40_007], expected[:7])
        assert np.array_equal(found[40_007:], expected)
        queue.fill(buffer, 0).wait(LIMIT)


# Indirect dispatches


def counts_buffer(bench: Bench, *groups: int) -> tg.Buffer:
    return bench.device.upload(np.array(groups, np.uint32))


@pytest.mark.parametrize("form", ["graph", "stream"])
def test_a_recording_goes_on_behind_its_indirect_dispatches(open_bench: Callable[..., Bench], form: str) -> None:
    bench = open_bench(f"commands={form}")
    write_ids = kernels.load(bench.device, kernels.write_ids)
    copy_counts = kernels.load(bench.device, kernels.copy_counts)
    counts, out, copy = counts_buffer(bench, 0, 0, 0), bench.words(20), bench.words(20)
    with bench.device.record() as commands:
        commands.fill(out, 255)
        commands.dispatch(copy_counts, 1, bindings=[tg.slot(0), counts])
        commands.barrier()
        commands.dispatch_indirect(write_ids, counts=counts, bindings=[out])
        commands.barrier()
        commands.copy(out, copy)
    assert isinstance(bench.form(commands), SplitCommandBuffer)
    queue = bench.device.queue()
    for groups in ((2, 3, 1), (5, 1, 1), (0, 9, 9)):
        queue.execute(commands, bindings=[counts_buffer(bench, *groups)]).wait(LIMIT)
        size = int(np.prod(groups))
        assert values(copy) == [*range(size), *[0xFFFFFFFF] * (20 - size)]


def test_an_indirect_dispatch_may_follow_another(bench: Bench) -> None:
    increment, write_ids = (kernels.load(bench.device, kernel) for kernel in (kernels.increment, kernels.write_ids))
    counts, out = counts_buffer(bench, 1, 1, 1), bench.words(8)
    with bench.device.record() as commands:
        first = commands.dispatch_indirect(increment, counts=counts, bindings=[counts], constants=[1])
        second = commands.dispatch_indirect(increment, counts=counts, bindings=[counts], constants=[1], after=[first])
        commands.dispatch_indirect(write_ids, counts=counts, bindings=[out], after=[second])
    bench.device.queue().execute(commands).wait(LIMIT)
    assert values(out) == [0, 1, 2, 0, 0, 0, 0, 0]


def test_counts_beyond_the_limits_fail_the_submission_alone(bench: Bench) -> None:
    write_ids = kernels.load(bench.device, kernels.write_ids)
    out = bench.words(4)
    with bench.device.record() as commands:
        commands.dispatch_indirect(write_ids, counts=tg.slot(0), bindings=[out])
    queue = bench.device.queue()
    done = tg.Semaphore()
    run = queue.execute(commands, bindings=[counts_buffer(bench, 1, 70_000, 1)], signal=done.at(1))
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        run.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.OutOfRangeError)
    assert "write_ids" in str(caught.value.__cause__)
    queue.execute(commands, bindings=[counts_buffer(bench, 3, 1, 1)]).wait(LIMIT)
    assert values(out) == [0, 1, 2, 0]


def test_more_indirect_executions_than_streams_all_run(bench: Bench) -> None:
    write_ids = kernels.load(bench.device, kernels.write_ids)
    with bench.device.record() as commands:
        commands.fill(tg.slot(1), 255)
        commands.barrier()
        commands.dispatch_indirect(write_ids, counts=tg.slot(0), bindings=[tg.slot(1)])
    queue = bench.device.queue()
    gate = tg.Semaphore()
    outs = [bench.words(4) for _ in range(60)]
    runs = [
        queue.execute(commands, bindings=[counts_buffer(bench, index % 5, 1, 1), out], wait=gate.at(1))
        for index, out in enumerate(outs)
    ]
    gate.signal(1)
    tg.wait_all(runs, LIMIT)
    for index, out in enumerate(outs):
        assert values(out) == [*range(index % 5), *[0xFFFFFFFF] * 4][:4]


def test_what_depends_on_an_indirect_execution_comes_after_it(bench: Bench) -> None:
    write_ids = kernels.load(bench.device, kernels.write_ids)
    increment = kernels.load(bench.device, kernels.increment)
    out = bench.words(4)
    with bench.device.record() as commands:
        commands.dispatch_indirect(write_ids, counts=tg.slot(0), bindings=[out])
    queue = bench.device.queue()
    gate = bench.words(1)
    before = queue.execute(gated(bench), bindings=[gate, bench.words(1)])
    run = queue.execute(commands, bindings=[counts_buffer(bench, 4, 1, 1)], wait=before)
    after = queue.dispatch(increment, 1, bindings=[out], constants=[4], wait=run)
    assert not run.done
    let_through(gate)
    after.wait(LIMIT)
    assert values(out) == [1, 2, 3, 4]
