"""A queue of the CPU device: small work runs in place, the rest goes to the workers (M15, M34)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidegate.driver import DriverQueue, EpochTimeline, Ticket, Work
from tidegate.drivers.cpu.command_buffer import PLANS
from tidegate.drivers.cpu.workers import Task

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
        self._workers = device.workers

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        # Memory is bound now, so that it stays whatever the caller frees or closes before a worker comes to it.
        step = PLANS[type(work)](self._device, work, ())
        cost = work.cost
        if cost is not None and cost <= IN_PLACE:
            step()
            del step, work  # they keep the storage, which must be free before the end is told
            self._finished(ticket)
            return True
        task = Task(_Task(ticket, step, self._finished))
        put = self._workers.put
        del step, work  # the worker may be done with it before this thread goes on, and the memory asked for
        ticket.taken = True
        put(task)  # in C, and so the step itself: no interrupt comes between
        if cost is not None and cost <= BY_WAITERS:
            self._workers.hint(task)
        return True


class _Task:
    """Work on its way to a worker. Called again after an interrupt, it does not repeat the work but reports its end."""

    __slots__ = ("_error", "_finished", "_step", "_ticket")

    def __init__(self, ticket: Ticket, step: Callable[[], object], finished: Callable[..., None]) -> None:
        self._ticket: Ticket | None = ticket
        self._step: Callable[[], object] | None = step
        self._finished = finished
        self._error: BaseException | None = None

    def __call__(self) -> None:
        step, self._step = self._step, None
        first = step is not None
        if step is not None:
            try:
                step()
            except BaseException as error:
                self._error = error
            # The storage must be free before the end is told: whoever waits for it may allocate at once.
            del step
        if self._ticket is None:
            return
        self._finished(self._ticket, self._error)
        raised, self._error = self._error, None
        self._ticket = None  # the frames of the error know this one, and the submission keeps the error
        if first and raised is not None and not isinstance(raised, Exception):
            raise raised
