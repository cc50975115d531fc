"""Who may touch memory at the same time: a vector clock per queue.

Each pass (an encoder's work) of a queue has a number, and each command in it a group: groups run one after the other,
commands of one group in any order. A clock says, for each queue, up to which pass everything is known to be over, and
travels with events, fences and what the host has seen completed. Two accesses to the same bytes, at least one of them a
write, need an order: by the clock; within one queue, because the memory is tracked; within one compute encoder, by a
barrier or because it is serial.

What is found stands in `native.races` and not among the violations, because users may race as they like. Of a kernel
only the first element of each argument is sure to be touched, so not every race is found.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .rules import RULES, Violation

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["Access", "Clock", "Hazards", "Place"]

Clock = dict[int, int]
KEPT = 24
"""How many accesses per block of memory, and signals per event, are remembered."""
SHOWN = 100
"""How many races are recorded."""


@dataclass(frozen=True, slots=True)
class Access:
    """A range of a block of memory, and what is done to it."""

    block: Any
    start: int
    end: int
    write: bool
    tracked: bool
    what: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command stands: its queue, its pass, its group; and whether groups of the pass order all memory."""

    line: int
    number: int
    group: int
    ordering: bool


@dataclass(frozen=True, slots=True)
class _Past:
    """An access that was, as its block remembers it: without the block, which would keep itself alive."""

    place: Place
    start: int
    end: int
    write: bool
    tracked: bool
    what: str


def merge(clock: Clock, other: Clock | None) -> None:
    """Take over what `other` knows."""
    for line, number in (other or {}).items():
        if number > clock.get(line, 0):
            clock[line] = number


class Hazards:
    """The clock of the host, and the races that were found."""

    def __init__(self, simulation: Simulation) -> None:
        self._lock = threading.RLock()
        self._simulation = simulation
        self._host: Clock = {}
        self._alive: set[int] = set()
        self._ended: deque[int] = deque()
        self.races: list[Violation] = []

    def begin(self, line: int) -> None:
        """A queue was made."""
        with self._lock:
            self._alive.add(line)

    def end(self, line: int) -> None:
        """A queue was released: what it did counts as over. Called by finalizers, so it only leaves a note."""
        self._ended.append(line)

    def _forget_ended(self) -> None:
        while self._ended:
            line = self._ended.popleft()
            self._alive.discard(line)
            self._host.pop(line, None)

    def host_clock(self) -> Clock:
        """Return what the host knows to be over."""
        with self._lock:
            self._forget_ended()
            return dict(self._host)

    def living(self, clock: Clock) -> Clock:
        """Return a clock without the queues that are gone."""
        with self._lock:
            return {line: number for line, number in clock.items() if line in self._alive}

    def host_saw(self, clock: Clock | None) -> None:
        """The host has seen something completed."""
        if clock:
            with self._lock:
                merge(self._host, clock)
                self._forget_ended()

    def host_saw_event(self, state: Any, value: int) -> None:
        """The host has seen a value of an event."""
        self.host_saw(time_of(state, value))

    def check(self, place: Place, clock: Clock, accesses: list[Access]) -> None:
        """Note the accesses of a command, and find those that nothing orders behind earlier ones."""
        with self._lock:
            for access in accesses:
                for before in access.block.past:
                    if _conflict(before, access) and not self._is_ordered(before, place, clock, access):
                        self._found(before, place, access)
            for access in accesses:  # behind all checks: a command does not race with itself
                past: deque[_Past] = access.block.past
                past.append(_Past(place, access.start, access.end, access.write, access.tracked, access.what))
                if len(past) > KEPT:
                    past.popleft()

    def _is_ordered(self, before: _Past, place: Place, clock: Clock, access: Access) -> bool:
        return before.place.line not in self._alive or _ordered(before, place, clock, access)

    def _found(self, before: _Past, place: Place, access: Access) -> None:
        where = "the same queue" if before.place.line == place.line else "another queue"
        text = f"{access.what} and, earlier on {where}, {before.what} touch the same bytes without an order"
        if len(self.races) < SHOWN:
            self.races.append(Violation(RULES["hazards"], text))


def _conflict(before: _Past, access: Access) -> bool:
    return (access.write or before.write) and before.start < access.end and access.start < before.end


def _ordered(before: _Past, place: Place, clock: Clock, access: Access) -> bool:
    tracked = access.tracked and before.tracked
    if before.place.line == place.line:
        if before.place.number == place.number:
            return before.place.group != place.group and (place.ordering or tracked)
        if tracked:
            return True
    return clock.get(before.place.line, 0) >= before.place.number


def time_of(state: Any, value: int) -> Clock | None:
    """Return the clock with which an event came to a value."""
    with state.changed:
        later = [known for known in state.times if known >= value]
        return dict(state.times[min(later)]) if later else None
