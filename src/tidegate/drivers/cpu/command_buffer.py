"""Running kernels and recordings on the CPU.

A recording runs in the order in which it was recorded, which satisfies every edge; what runs at the same time is the
workgroups of a C kernel, spread over the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.driver import (
    Allocate,
    Barrier,
    Copy,
    Dispatch,
    DispatchIndirect,
    Download,
    Execute,
    Fill,
    Free,
    Span,
    Update,
    Upload,
    Work,
)
from tidegate.drivers.cpu import transfers
from tidegate.drivers.cpu.executable import CpuFunction
from tidegate.drivers.cpu.transfers import Step, bytes_of

if TYPE_CHECKING:
    from tidegate.drivers.cpu.device import CpuDevice

Plan = Callable[["CpuDevice", Any, Sequence[Span]], Step]


def plan_dispatch(device: CpuDevice, work: Dispatch, table: Sequence[Span]) -> Step:
    """Bind a dispatch to its memory."""
    function = work.function
    assert isinstance(function, CpuFunction)
    bindings = [bytes_of(binding.bind(table)) for binding in work.bindings]
    if 0 in work.workgroups:
        return lambda: None
    return lambda: function.run(device.workers, work.workgroups, bindings, work.constants, work.local_memory)


def plan_dispatch_indirect(device: CpuDevice, work: DispatchIndirect, table: Sequence[Span]) -> Step:
    """Bind an indirect dispatch; the counts are read when it runs."""
    function = work.function
    assert isinstance(function, CpuFunction)
    bindings = [bytes_of(binding.bind(table)) for binding in work.bindings]
    counts = bytes_of(work.counts.bind(table))

    def step() -> None:
        x, y, z = (int(count) for count in np.frombuffer(counts.tobytes(), np.uint32))
        if x and y and z:
            function.run(device.workers, (x, y, z), bindings, work.constants, work.local_memory)

    return step


def plan_execute(device: CpuDevice, work: Execute, _table: Sequence[Span]) -> Step:
    """Bind every command of a recording."""
    commands = work.recording.commands
    steps = [PLANS[type(command.work)](device, command.work, work.table) for command in commands]

    def run() -> None:
        for step in steps:
            step()

    return run


PLANS: dict[type[Work], Plan] = {
    Barrier: transfers.plan_nothing,
    Allocate: transfers.plan_allocate,
    Free: transfers.plan_free,
    Fill: transfers.plan_fill,
    Update: transfers.plan_update,
    Upload: transfers.plan_upload,
    Download: transfers.plan_download,
    Copy: transfers.plan_copy,
    Dispatch: plan_dispatch,
    DispatchIndirect: plan_dispatch_indirect,
    Execute: plan_execute,
}
