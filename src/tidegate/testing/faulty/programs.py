"""Faults that random programs must find: each at the seam, where a driver of somebody's own would have it."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tidegate.drivers.cpu import command_buffer, transfers
from tidegate.drivers.cpu.queue import _Task
from tidegate.drivers.cpu.transfers import bytes_of
from tidegate.drivers.cuda import stream as cuda_stream

from .commands import with_table
from .fault import Patch, fault, streams
from .native_streams import in_python

_CAUGHT = "test_random_programs::test_a_random_program_does_what_numpy_does"


@fault("M3", "M15", killed_by=_CAUGHT, base="streams")
def forgets_one_of_several_waits(patch: Patch) -> None:
    """Of several epochs to wait for, the last is forgotten."""
    real = streams.StreamQueue._choose

    def choose(self: Any, waits: Any) -> Any:
        return real(self, waits[:-1] if len(waits) > 1 else waits)

    patch.method(streams.StreamQueue, "_choose", choose)


@fault("M3", "M15", killed_by=_CAUGHT, base="streams")
def does_not_wait_for_other_streams(patch: Patch) -> None:
    """A stream begins its work whether or not another one has come to the epoch that it waits for."""
    patch.method(streams.Stream, "_over", staticmethod(lambda waits: True))


@fault("M3", "M15", killed_by=_CAUGHT, base="cuda-simulated")
def orders_nothing_across_streams(patch: Patch) -> None:
    """Work that follows from other streams is put on a stream as if it followed from nothing."""
    real = cuda_stream.Stream.put

    def put(self: Any, ticket: Any, encoded: Any, _waits: Any) -> None:
        real(self, ticket, encoded, ())

    patch.method(cuda_stream.Stream, "put", put)
    in_python(patch)


@fault("M31", killed_by=_CAUGHT)
def executes_by_the_first_table(patch: Patch) -> None:
    """A command buffer that is used again runs over the bindings that it had the first time."""
    tables: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
    first = with_table(lambda work: tables.setdefault(work.recording, work.table))
    patch.function(command_buffer.plan_execute, first)


@fault("M30", killed_by=_CAUGHT)
def executes_backwards(patch: Patch) -> None:
    """The commands of a recording run from the last to the first, whatever edges and barriers say."""

    def plan_execute(device: Any, work: Any, _table: Any) -> Any:
        plans = command_buffer.PLANS
        steps = [plans[type(command.work)](device, command.work, work.table) for command in work.recording.commands]
        return lambda: [step() for step in reversed(steps)]

    patch.function(command_buffer.plan_execute, plan_execute)


@fault("M17", killed_by=_CAUGHT)
def takes_a_fault_for_success(patch: Patch) -> None:
    """What a worker's kernel raises is lost, and its signals come."""
    real = _Task.__call__

    def call(self: Any) -> None:
        step = self._step

        def quiet() -> None:
            try:
                step()
            except Exception:
                pass

        self._step = None if step is None else quiet
        real(self)

    patch.method(_Task, "__call__", call)


@fault("M27", killed_by=_CAUGHT)
def loses_the_end_of_large_copies(patch: Patch) -> None:
    """A copy goes by pages, and of more than four of them the rest behind the last is lost."""

    def plan_copy(_device: Any, work: Any, table: Any) -> Any:
        source = bytes_of(work.source.bind(table))
        count = source.nbytes if source.nbytes <= 4 * 4096 else source.nbytes // 4096 * 4096
        target = bytes_of(work.target.bind(table))
        return lambda: np.copyto(target[:count], source[:count])

    patch.function(transfers.plan_copy, plan_copy)
