"""Faults of command buffers and kernels: order, bindings, reuse, workgroups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tidegate import driver
from tidegate._core.kernel import Function
from tidegate._core.recording import CommandBuffer
from tidegate.drivers.cpu import command_buffer
from tidegate.drivers.cpu.transfers import bytes_of

from .fault import Patch, fault, planted

# Order --------------------------------------------------------------------------------------------------------------


def backwards(edges_of: Callable[[Any, int], set[int]]) -> Callable[..., Any]:
    """Return a plan that runs the commands of a recording in the last order that the given edges allow."""

    def plan_execute(device: Any, work: Any, _table: Any) -> Any:
        commands = work.recording.commands
        steps = [command_buffer.PLANS[type(command.work)](device, command.work, work.table) for command in commands]
        edges = [edges_of(commands, index) for index in range(len(commands))]

        def run() -> None:
            left = dict.fromkeys(range(len(steps)))
            while left:
                ready = max(index for index in left if not edges[index] & left.keys())
                steps[ready]()
                del left[ready]

        return run

    return plan_execute


def is_barrier(command: Any) -> bool:
    """Whether a recorded command is a barrier."""
    return isinstance(command.work, driver.Barrier)


@fault("M30", killed_by="test_commands::test_a_barrier_orders_all_before_it_before_all_after_it")
def ignores_barriers(patch: Patch) -> None:
    """Only edges order commands; a barrier is taken for a comment."""

    def edges_of(commands: Any, index: int) -> set[int]:
        if is_barrier(commands[index]):
            return set()
        return {before for before in commands[index].after if not is_barrier(commands[before])}

    patch.function(command_buffer.plan_execute, backwards(edges_of))


@fault("M30", killed_by="test_commands::test_edges_order_the_commands_they_name")
def ignores_edges(patch: Patch) -> None:
    """Only barriers order commands; `after=` is taken for a hint."""

    def edges_of(commands: Any, index: int) -> set[int]:
        if is_barrier(commands[index]):
            return set(commands[index].after)
        return {before for before in commands[index].after if is_barrier(commands[before])}

    patch.function(command_buffer.plan_execute, backwards(edges_of))


# Recording ----------------------------------------------------------------------------------------------------------


planted(
    "runs-a-one-shot-twice",
    "A one-shot command buffer may be executed as often as any other.",
    "M29",
    killed_by="test_commands::test_a_one_shot_command_buffer_runs_once",
    room="work/operations.pxi",
    before="not known.one_shot",
    after="True",
)


@fault("M29", killed_by="test_commands::test_an_exception_inside_a_recording_discards_it")
def keeps_a_broken_recording(patch: Patch) -> None:
    """A recording that was left by an exception can be executed."""
    patch.method(CommandBuffer, "__exit__", lambda self, *exception: self.end())


@fault("M29", killed_by="test_commands::test_a_refused_command_leaves_the_recording_as_it_was")
def records_what_it_refuses(patch: Patch) -> None:
    """A command joins the recording before its range is checked."""
    real = CommandBuffer.fill

    def fill(self: Any, target: Any, pattern: Any, **options: Any) -> Any:
        try:
            return real(self, target, pattern, **options)
        except Exception:
            real(self, target, 0)
            raise

    patch.method(CommandBuffer, "fill", fill)


@fault("M26", "M31", killed_by="test_bindings::test_execute_counts_as_a_write_of_every_binding")
def forgets_that_execute_writes(patch: Patch) -> None:
    """Host reads are not ordered after the command buffers that write."""
    real = CommandBuffer._execute

    def execute(self: Any, *arguments: Any) -> Any:
        work, touched, _ = real(self, *arguments)
        return work, touched, len(touched)

    patch.method(CommandBuffer, "_execute", execute)


# Bindings -----------------------------------------------------------------------------------------------------------


def with_table(table_of: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
    """Return a plan that runs a recording over another binding table."""
    plan = command_buffer.plan_execute

    def plan_execute(device: Any, work: Any, table: Any) -> Any:
        return plan(device, driver.Execute(work.recording, work.prepared, table_of(work), work.cost), table)

    return plan_execute


@fault("M31", "M18", killed_by="test_bindings::test_the_binding_table_is_captured_during_the_call")
def captures_the_table_late(patch: Patch) -> None:
    """The binding table is read when the work is issued, from the caller's own list."""
    execute, plan = CommandBuffer._execute, command_buffer.plan_execute
    given: dict[int, Any] = {}

    def execute_later(self: Any, device: Any, bindings: Any) -> Any:
        prepared = execute(self, device, bindings)
        given[id(prepared[0])] = bindings
        return prepared

    patch.method(CommandBuffer, "_execute", execute_later)
    patch.function(plan, with_table(lambda work: tuple(given.get(id(work), work.table))))


@fault("M31", "M29", killed_by="test_commands::test_one_command_buffer_runs_on_two_queues_at_once_with_other_bindings")
def shares_one_table(patch: Patch) -> None:
    """A command buffer has room for one binding table: that of the last call serves all that are still to run."""
    execute, plan = CommandBuffer._execute, command_buffer.plan_execute
    last: dict[int, Any] = {}

    def execute_noting(self: Any, *arguments: Any) -> Any:
        prepared = execute(self, *arguments)
        last[id(prepared[0].recording)] = prepared[0].table
        return prepared

    patch.method(CommandBuffer, "_execute", execute_noting)
    patch.function(plan, with_table(lambda work: last.get(id(work.recording), work.table)))


@fault("M31", "M16", killed_by="test_bindings::test_a_slot_without_an_entry_is_refused_at_execute")
def binds_nothing_to_an_empty_slot(patch: Patch) -> None:
    """A slot without an entry gets some memory that nobody looks at."""
    real = CommandBuffer._execute

    def execute(self: Any, device: Any, bindings: Any) -> Any:
        table = list(bindings)
        missing = 1 + max((span.index for span in self._slot_spans), default=-1) - len(table)
        return real(self, device, [*table, *(device.allocate(4096) for _ in range(missing))])

    patch.method(CommandBuffer, "_execute", execute)


# Workgroups ---------------------------------------------------------------------------------------------------------


def with_workgroups(patch: Patch, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    """Have every dispatch run over other workgroups."""
    real = command_buffer.plan_dispatch

    def plan_dispatch(device: Any, work: Any, table: Any) -> Any:
        groups: Any = change(work.workgroups)
        changed = driver.Dispatch(work.function, groups, work.bindings, work.constants, work.local_memory)
        return real(device, changed, table)

    patch.function(real, plan_dispatch)


@fault(
    "M32", killed_by="test_dispatch::test_a_dispatch_with_a_zero_among_its_workgroups_does_nothing_and_still_signals"
)
def runs_a_zero_grid_once(patch: Patch) -> None:
    """A dispatch of no workgroups runs one."""
    with_workgroups(patch, lambda groups: tuple(max(1, count) for count in groups))


@fault("M32", killed_by="test_dispatch::test_every_workgroup_runs_and_knows_its_id")
def forgets_the_third_dimension(patch: Patch) -> None:
    """A dispatch runs the first layer of its workgroups only."""
    with_workgroups(patch, lambda groups: (*groups[:2], min(1, groups[2])))


@fault("M32", killed_by="test_dispatch::test_indirect_counts_come_from_an_update_in_the_same_command_buffer")
def reads_indirect_counts_too_early(patch: Patch) -> None:
    """The counts of an indirect dispatch are read when the command buffer is submitted."""

    def plan(device: Any, work: Any, table: Any) -> Any:
        counts: Any = tuple(int(count) for count in bytes_of(work.counts.bind(table)).view(np.uint32))
        direct = driver.Dispatch(work.function, counts, work.bindings, work.constants, work.local_memory)
        return command_buffer.plan_dispatch(device, direct, table)

    patch.function(command_buffer.plan_dispatch_indirect, plan)


@fault("M18", "M31", killed_by="test_dispatch::test_bindings_and_constants_are_captured_during_the_call")
def captures_constants_late(patch: Patch) -> None:
    """A dispatch refers to the caller's list of constants, and converts them when it runs."""
    convert, plan = Function.convert_constants, command_buffer.plan_dispatch
    given: dict[int, Callable[[], Any]] = {}

    def convert_constants(self: Any, constants: Any) -> Any:
        converted = convert(self, constants)
        given[id(converted)] = partial(convert, self, constants)
        return converted

    def plan_dispatch(device: Any, work: Any, table: Any) -> Any:
        constants = given.get(id(work.constants), lambda: work.constants)()
        late = driver.Dispatch(work.function, work.workgroups, work.bindings, constants, work.local_memory)
        return plan(device, late, table)

    patch.method(Function, "convert_constants", convert_constants)
    patch.function(plan, plan_dispatch)
