"""A queue of the CPU device: small work runs in place, the rest goes to the workers (M15, M34)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidegate.driver import DriverQueue, EpochTimeline, Ticket, Work
from tidegate.drivers.cpu.command_buffer import PLANS

if TYPE_CHECKING:
    from tidegate.drivers.cpu.device import CpuDevice

IN_PLACE = 16 * 1024
"""Built-in work up to so many bytes runs where it becomes ready."""
BY_WAITERS = 256 * 1024
"""Built-in work up to so many bytes may be run by a thread that waits."""


class CpuQueue(DriverQueue):
    """Takes everything at once: there is no order here, and no room to run out of."""

    def __init__(self, device: CpuDevice) -> None:
        self._device = device
        self._finished = device.sink.finished
        self._put = device.workers.put

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        # Memory is bound now, so that it stays whatever the caller frees or closes before a worker comes to it.
        step = PLANS[type(work)](self._device, work, ())
        cost = work.cost
        if cost is not None and cost <= IN_PLACE:
            step()
            self._finished(ticket)
            return True
        task = _Task(ticket, step, self._finished)
        ticket.taken = True
        self._put(task, small=cost is not None and cost <= BY_WAITERS)
        return True


class _Task:
    """Work on its way to a worker. Reports its end, also where it never runs to it."""

    __slots__ = ("_finished", "_step", "_ticket")

    def __init__(self, ticket: Ticket, step: Callable[[], object], finished: Callable[..., None]) -> None:
        self._ticket = ticket
        self._step: Callable[[], object] | None = step
        self._finished = finished

    def __call__(self) -> None:
        step, self._step = self._step, None
        error: BaseException | None = None
        try:
            assert step is not None
            step()
        except BaseException as raised:
            error = raised
        # The storage must be free before the end is told: whoever waits for it may allocate at once.
        del step
        self._finished(self._ticket, error)
        if error is not None and not isinstance(error, Exception):
            raise error
