"""Shared events to the outside: semaphores that other users of Metal in this process can wait for, and theirs for us.

An exported event follows a timepoint, an imported semaphore follows an event, both through the host: what is known
there is true, while a shared event of Metal's rises even when the work behind it failed. That is also why a failure
cannot be told by an event: whoever waits for an exported one has to learn it some other way.

One listener per device, on a serial dispatch queue of its own, hears of imported events. Its block only leaves a note:
semaphores wake Python code, which has no business on such a thread, so a thread of ours acts on the notes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tidegate._core.background import deferred as reaper
from tidegate._core.background import report_unraisable, start_thread
from tidegate._core.compiled import Semaphore, Timepoint
from tidegate.driver import Work
from tidegate.drivers.metal import _native
from tidegate.drivers.metal._errors import given
from tidegate.drivers.metal._native import Object
from tidegate.errors import InvalidArgumentError, SemaphoreFailedError
from tidegate.types import MAX_VALUE, Outcome

if TYPE_CHECKING:
    from tidegate.drivers.metal.device import MetalDevice

EventValue = tuple[Object, int]


class EventBarrier(Work):
    """Signal foreign events on the GPU, then wait there for others."""

    __slots__ = ("signals", "waits")

    def __init__(self, signals: Iterable[EventValue], waits: Iterable[EventValue]) -> None:
        super().__init__("event_barrier")
        self.signals = tuple(signals)
        self.waits = tuple(waits)


class SharedEvents:
    """The events of one device that the outside knows."""

    def __init__(self, device: MetalDevice) -> None:
        self._native = device.native
        self._handle = device.handle
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._followers: dict[int, _Follower] = {}
        self._notes: SimpleQueue[int | None] = SimpleQueue()
        self._listener: Object = None

    def new_event(self) -> Object:
        """Return an MTLSharedEvent of this device."""
        with self._native.autorelease_pool():
            return given(_native.new_event(self._handle), "shared event")

    def barrier(self, signals: Iterable[EventValue], waits: Iterable[EventValue]) -> EventBarrier:
        """Return work for `lowlevel.event_barrier`."""
        return EventBarrier(signals, waits)

    def export(self, timepoint: Timepoint) -> Object:
        """Return an MTLSharedEvent that gets the timepoint's value when that is reached."""
        event = self.new_event()
        self.raise_event(event, min(timepoint.semaphore.value, timepoint.value))
        timepoint.add_callback(partial(self._reached, event))
        return event

    def _reached(self, event: Object, point: Timepoint, outcome: Outcome, _error: object) -> None:
        if outcome is Outcome.REACHED:
            self.raise_event(event, point.value)

    def raise_event(self, event: Object, value: int) -> None:
        """Take an event to a value, unless it is there already."""
        with self._native.autorelease_pool():
            if _native.event_value(event) < value:
                _native.set_event_value(event, value)

    def follow(self, event: Object, label: str) -> Semaphore:
        """Return a semaphore that has the event's values, and gives it its own."""
        with self._lock, self._native.autorelease_pool():
            if self._listener is None:
                # The listener last: an interrupt in between leaves a thread too many, not one too few.
                reaper.leave(self._start)
                self._listener = _native.new_listener(self._native, b"tidegate.metal.events")
            number = next(self._numbers)
            follower = _Follower(self, number, event, label)
            self._followers[number] = follower
        follower.follow_event()
        follower.follow_semaphore()
        return follower.semaphore

    def notify(self, number: int, event: Object, value: int) -> None:
        """Have a note left when the event has the value."""
        put = self._notes.put

        def heard(_event: Object, _value: int) -> None:
            put(number)

        listener = self._listener
        if listener is not None:
            _native.notify(event, listener, value, heard)

    def _start(self) -> None:
        """A note to the reaper."""
        start_thread(self._run, "tidegate-metal-events")

    def _run(self) -> None:
        while True:
            number = self._notes.get()
            if number is None:
                self._notes.put(None)
                return
            try:
                self._heard(number)
            except BaseException as error:
                report_unraisable(error, self)

    def _heard(self, number: int) -> None:
        follower = self._followers.get(number)
        if follower is not None:
            follower.follow_event()

    def forget(self, number: int) -> None:
        """Follow an event no more."""
        self._followers.pop(number, None)

    def close(self) -> None:
        """Follow nothing any more: imported semaphores end with their last user."""
        with self._lock:
            self._followers.clear()
            if self._listener is not None:
                self._notes.put(None)  # first: an interrupt in between has this done again
                self._listener = None


class _Follower:
    """An imported event and its semaphore, which it holds: it is who signals it (M12)."""

    def __init__(self, events: SharedEvents, number: int, event: Object, label: str) -> None:
        self._events = events
        self._number = number
        self._event = event
        self.semaphore = Semaphore(min(_native.event_value(event), MAX_VALUE), label)

    def follow_event(self) -> None:
        """Take the event's value over, and hear of the next one."""
        with self._events._native.autorelease_pool():
            value = min(_native.event_value(self._event), MAX_VALUE)
            try:
                self.semaphore.signal(value)
            except (InvalidArgumentError, SemaphoreFailedError):
                pass  # it has the value already, or was failed
            upcoming = max(value, self.semaphore.value) + 1
            if upcoming <= MAX_VALUE and self.semaphore.failure is None:
                self._events.notify(self._number, self._event, upcoming)
            else:
                self._events.forget(self._number)

    def follow_semaphore(self) -> None:
        """Give the event what the semaphore is signalled to, now and from now on."""
        value = self.semaphore.value
        self._events.raise_event(self._event, value)
        # From the value that was given, whatever the payload is by now: what rose meanwhile fires at once.
        if value < MAX_VALUE:
            self.semaphore.at(value + 1).add_callback(self._risen)

    def _risen(self, _point: Timepoint, outcome: Outcome, _error: object) -> None:
        if outcome is Outcome.REACHED and self._number in self._events._followers:
            self.follow_semaphore()
