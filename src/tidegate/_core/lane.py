"""A lane: the everyday way. The operations of a queue, one after the other."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from .compiled import Semaphore, Timepoint
from .operations import Operations
from .queue import Queue

if TYPE_CHECKING:
    from .device import Device


class Lane(Operations):
    """Gives work to a queue in order: each operation follows the one before. Made by `device.lane`.

    An operation still takes `wait=` for joins with other work, and `signal=`. One that is refused at the call takes no
    place. A failure fails what was submitted behind it; `reset()` starts afresh. Threads may share a lane: the order is
    that of the calls.

    The order is a timeline of the lane's own: each operation waits for the highest claim on it and claims the next
    value. Both are done in the step that admits the operation, so a lane needs no lock, and a refused operation leaves
    nothing to undo.
    """

    def __init__(self, queue: Queue, label: str = "") -> None:
        self.label = label
        self._join(queue.device, queue.device, queue, Semaphore(label=label or "lane"))

    def __repr__(self) -> str:
        return f"<tidegate.Lane {self.label!r} on {self._queue.describe()}>"

    @property
    def queue(self) -> Queue:
        """The queue it gives work to."""
        return self._queue

    @property
    def device(self) -> Device:
        """The device of that queue."""
        return self._device

    @property
    def tail(self) -> Timepoint:
        """The end of everything submitted so far: reached when all of it is over."""
        return self._tail()

    def wait(self, timeout: float | None = None) -> None:
        """Block until everything submitted so far is over: see `Semaphore.wait`."""
        self.tail.wait(timeout)

    def __await__(self) -> Generator[Any, Any, None]:
        return self.tail.__await__()

    def reset(self) -> None:
        """Start afresh: what comes now follows nothing that was submitted before."""
        self._join(self._device, self._device, self._queue, Semaphore(label=self.label or "lane"))
