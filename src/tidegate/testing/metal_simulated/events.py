"""Events, shared events, and listeners that hear of values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from .dispatch import DispatchQueue
from .hazards import KEPT
from .objects import Labelled, Metal

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["Event", "Fence", "Listener", "SharedEvent", "SharedEventHandle"]

Due = list[tuple[int, "Listener", Callable[..., object]]]
"""Blocks that a value has released."""


class Event(Labelled, registered="MTLEvent"):
    """An event of one device: a value that rises, and those that wait for it."""

    def __init__(self, device: Metal) -> None:
        super().__init__(device._simulation)
        self._device = device
        self._state = EventState()
        with self._simulation.lock:
            self._simulation.events.add(self)

    def device(self) -> Any:
        return self._device


class EventState:
    """What an event is for queues: they hold it while they wait, however the event itself is kept."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.value = 0
        self.pending: Due = []
        self.times: dict[int, Any] = {0: {}}  # with which clock it came to a value

    def raise_to(self, value: int, clock: Any = None) -> Due:
        """Take the event to a value; return the blocks that are due."""
        with self.changed:
            self.value = max(self.value, value)
            if clock is not None:
                self.times[value] = clock
                if len(self.times) > KEPT:
                    del self.times[next(iter(self.times))]
            due = [each for each in self.pending if each[0] <= self.value]
            self.pending = [each for each in self.pending if each[0] > self.value]
            self.changed.notify_all()
        return due

    def wait(self, value: int, timeout: float | None, stop: Callable[[], bool]) -> bool:
        """Block until the value is there; False if it did not come."""
        with self.changed:
            self.changed.wait_for(lambda: self.value >= value or stop(), timeout)
            return self.value >= value


class SharedEvent(Event, registered="MTLSharedEvent"):
    """An event that the host, other devices and other processes may use too."""

    def signaledValue(self) -> int:
        return self._state.value

    def setSignaledValue_(self, value: int) -> None:
        state = self._state
        self._simulation.demand(value >= state.value, "event-order", f"{self!r}: {state.value} is set to {value}")
        self._deliver(state.raise_to(value, self._simulation.hazards.host_clock()))

    def waitUntilSignaledValue_timeoutMS_(self, value: int, milliseconds: int) -> bool:
        reached = self._state.wait(value, min(milliseconds / 1000, 1e6), lambda: self._simulation.closed)
        if reached:
            self._simulation.hazards.host_saw_event(self._state, value)
        return reached

    def notifyListener_atValue_block_(self, listener: Listener, value: int, block: Any) -> None:
        with self._state.changed:
            due = self._state.value >= value
            if not due:
                self._state.pending.append((value, listener, block))
        if due:
            self._deliver([(value, listener, block)])

    def newSharedEventHandle(self) -> SharedEventHandle:
        return SharedEventHandle(self)

    def _deliver(self, due: Due) -> None:
        for _, listener, block in due:
            listener._worker.put(partial(self._call, block))

    def _call(self, block: Callable[..., object]) -> None:
        self._simulation.count("notifications")
        block(self, self._state.value)


class SharedEventHandle(Metal, registered="MTLSharedEventHandle"):
    """What another process makes an event of."""

    def __init__(self, event: SharedEvent) -> None:
        super().__init__(event._simulation, event._label)
        self._event = event

    def label(self) -> str | None:
        return self._label


class Listener(Metal, registered="MTLSharedEventListener"):
    """Runs the blocks of notifications on its dispatch queue."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._queue: DispatchQueue | None = None

    def init(self) -> Listener:
        return self.initWithDispatchQueue_(DispatchQueue(self._simulation, b"com.apple.metal.listener"))

    def initWithDispatchQueue_(self, queue: DispatchQueue) -> Listener:
        self._queue = queue
        return self

    def dispatchQueue(self) -> DispatchQueue:
        return cast("DispatchQueue", self._queue)

    @property
    def _worker(self) -> Any:
        self._simulation.demand(self._queue is not None, "listener", "a listener that was never initialised")
        return cast("DispatchQueue", self._queue)._worker


class Fence(Labelled, registered="MTLFence"):
    """Orders passes of one queue."""

    def __init__(self, device: Metal) -> None:
        super().__init__(device._simulation)
        self._device = device
        self._time: Any = None

    def device(self) -> Any:
        return self._device
