"""How a queue executes: one thread, command buffers in order, each a list of operations.

An operation waits for an event, signals one, or is a pass: the commands of an encoder. What was encoded is held by a
`Reference`, strong or weak as the command buffer asks. A weak one that is dead when it is needed, or when the command
buffer completes, is what crashes a GPU; here the command buffer fails, and a violation is recorded.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .dispatch import Worker, start
from .foundation import Error
from .hazards import Access, Clock, Place, merge, time_of
from .rules import RULES

if TYPE_CHECKING:
    from .simulation import Fault, Simulation

__all__ = ["Aborted", "Encoded", "Line", "Pass", "Reference", "Released", "Signal", "Wait"]

NOT_ENQUEUED, ENQUEUED, COMMITTED, SCHEDULED, COMPLETED, ERROR = range(6)
INVALID_RESOURCE, INTERNAL = 9, 1
DOMAIN = "MTLCommandBufferErrorDomain"


class Released(Exception):
    """Something encoded without a reference is gone."""


class Aborted(Exception):
    """The simulation was closed in the middle of something."""


class Reference:
    """Something encoded, kept or not."""

    __slots__ = ("_facts", "_get")

    def __init__(self, target: Any, retained: bool) -> None:
        self._facts = (target._registered, target._label, id(target))
        self._get: Callable[[], Any] = (lambda: target) if retained else weakref.ref(target)

    def __call__(self) -> Any:
        """Return it.

        Raises:
            Released: it is gone.

        """
        target = self._get()
        if target is None:
            kind, label, address = self._facts
            raise Released(f"{kind} {label or ''} at {address:#x} was released while a command buffer needed it")
        return target

    def is_to(self, target: Any) -> bool:
        """Whether this is what it refers to."""
        return self._get() is target


class Wait:
    """Nothing goes on until an event has a value."""

    def __init__(self, event: Reference, value: int) -> None:
        self.event = event
        self.value = value


class Signal:
    """An event gets a value."""

    def __init__(self, event: Reference, value: int) -> None:
        self.event = event
        self.value = value


class Pass:
    """The commands of one encoder, as groups that run one after the other; the order inside a group is open."""

    def __init__(self, ordering: bool) -> None:
        self.ordering = ordering  # groups are in order whatever they touch, not only for tracked memory
        self.groups: list[list[Callable[[], list[Access]]]] = [[]]
        self.waits: list[Reference] = []
        self.updates: list[Reference] = []


class Encoded:
    """A command buffer as its queue sees it."""

    def __init__(self, retained: bool) -> None:
        self.retained = retained
        self.references: list[Reference] = []
        self._known: dict[int, Reference] = {}
        self.operations: list[Wait | Signal | Pass] = []
        self.scheduled: list[Callable[..., object]] = []
        self.completed: list[Callable[..., object]] = []
        self.status = NOT_ENQUEUED
        self.error: Error | None = None
        self.buffer: Any = None  # the command buffer itself, from commit to completion
        self.host: Clock = {}
        self.over: Clock | None = None
        self.waiting = {SCHEDULED: 0, COMPLETED: 0}  # handlers that have not run, by the status that calls them

    def reference(self, target: Any) -> Reference:
        """Return the reference to something that is encoded."""
        known = self._known.get(id(target))
        if known is None or not known.is_to(target):  # the place of something dead may be taken anew
            known = self._known[id(target)] = Reference(target, self.retained)
            self.references.append(known)
        return known

    def has_come_to(self, status: int) -> bool:
        """Whether a wait for a status is over: it lasts until the handlers for that status have run."""
        return self.status >= status and not self.waiting[status]

    def forget(self) -> None:
        """Let go of everything: it is over."""
        for operation in self.operations:
            if isinstance(operation, Pass):
                operation.groups.clear()
                operation.waits.clear()
                operation.updates.clear()
        self.references.clear()
        self._known.clear()
        self.operations.clear()
        self.buffer = None


class Line:
    """The inside of a queue. Its thread lives as long as the queue, or longer while there is work."""

    _numbers = iter(range(1, 1 << 62))

    def __init__(self, simulation: Simulation, capacity: int, name: str) -> None:
        self._simulation = simulation
        self.number = next(self._numbers)
        self.capacity = capacity
        self.name = name
        self.changed = threading.Condition()
        self.entries: deque[Encoded] = deque()
        self.uncompleted = 0
        self.passes = 0
        self.clock: Clock = {}
        self.ending = False
        self.thread: threading.Thread | None = None
        self.handlers = Worker(simulation, f"simulated-metal-handlers-{name}")
        simulation.hazards.begin(self.number)
        with simulation.lock:
            simulation.lines.add(self)

    # The host's side

    def take_place(self) -> None:
        """Count one more command buffer; block while there are too many."""
        simulation = self._simulation
        with self.changed:
            if self.uncompleted >= self.capacity:
                simulation.count("blocked")
                self.changed.wait_for(
                    lambda: self.uncompleted < self.capacity or simulation.closed, simulation.settings.limit
                )
            simulation.demand(
                self.uncompleted < self.capacity,
                "queue-capacity",
                f"{self.name}: the caller is blocked, {self.uncompleted} command buffers are not completed",
            )
            self.uncompleted += 1

    def give_up(self, encoded: Encoded) -> None:
        """A command buffer was released before it was committed."""
        with self.changed:
            self.uncompleted -= 1
            if encoded in self.entries:
                self.entries.remove(encoded)
            self.changed.notify_all()

    def enqueue(self, encoded: Encoded) -> None:
        """Give a command buffer its place in the order."""
        with self.changed:
            if encoded.status == NOT_ENQUEUED:
                encoded.status = ENQUEUED
                self.entries.append(encoded)

    def commit(self, encoded: Encoded, buffer: Any) -> None:
        """Let a command buffer be executed when its turn comes."""
        with self.changed:
            self.enqueue(encoded)
            encoded.host = self._simulation.hazards.host_clock()
            encoded.buffer = buffer
            encoded.status = COMMITTED
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name=f"simulated-metal-{self.name}", daemon=True)
                start(self.thread)
            self.changed.notify_all()

    def wait(self, encoded: Encoded, status: int) -> None:
        """Block the host until a command buffer has come to a status."""
        simulation = self._simulation
        with self.changed:
            over = self.changed.wait_for(
                lambda: simulation.closed or encoded.has_come_to(status), 10 * simulation.settings.limit
            )
        simulation.demand(over, "wait-after-commit", f"{self.name}: a command buffer that does not end")
        simulation.hazards.host_saw(encoded.over)

    def end(self) -> None:
        """The queue was released: end the thread when there is nothing left."""
        self.ending = True
        self._simulation.hazards.end(self.number)
        with self.changed:
            self.changed.notify_all()

    # The device's side

    def _run(self) -> None:
        while True:
            encoded = self._next()
            if encoded is None:
                return
            self._execute(encoded)
            del encoded

    def _next(self) -> Encoded | None:
        def ready() -> bool:
            return bool(self.entries and self.entries[0].status == COMMITTED)

        with self.changed:
            self.changed.wait_for(lambda: ready() or self._simulation.closed or (self.ending and not self.entries))
            if not ready():
                self.thread = None
                return None
            encoded = self.entries.popleft()
            encoded.waiting[SCHEDULED] = len(encoded.scheduled)
            encoded.status = SCHEDULED
            self.changed.notify_all()
        for handler in encoded.scheduled:
            self.handlers.put(partial(self._handle, handler, SCHEDULED, encoded, encoded.buffer))
        return encoded

    def _execute(self, encoded: Encoded) -> None:
        simulation = self._simulation
        merge(self.clock, encoded.host)
        if len(self.clock) > 2 * len(encoded.host) + 16:
            self.clock = simulation.hazards.living(self.clock)
        fault = simulation.lost or simulation.take_fault("command_buffer", encoded.buffer)
        held: list[Callable[[], None]] = []
        if fault is not None and not fault.signals:
            encoded.operations = [each for each in encoded.operations if not isinstance(each, Signal)]
        error = self._operate(encoded, self._effective(encoded, fault), held)
        if fault is not None and error is None:
            error = Error(simulation, fault.domain, fault.code, fault.text)
        simulation.dawdle()
        if simulation.before_completion is not None:
            simulation.before_completion(encoded.buffer)
        self._complete(encoded, self._check_references(encoded, error))
        for late in held:
            self.handlers.put(late)

    def _operate(self, encoded: Encoded, effective: int | None, held: list[Callable[[], None]]) -> Error | None:
        """Do what was encoded; behind an error only the signals."""
        simulation, error = self._simulation, None
        for index, operation in enumerate(encoded.operations):
            try:
                if isinstance(operation, Signal):
                    self._signal(operation, encoded, index, held)
                elif isinstance(operation, Wait):
                    if error is None:
                        self._wait(operation)
                elif error is None:
                    effective = self._pass(operation, effective)
            except Released as gone:
                simulation.record(RULES["unretained"], str(gone))
                error = Error(simulation, DOMAIN, INVALID_RESOURCE, str(gone))
            except Aborted as end:
                error = Error(simulation, DOMAIN, INTERNAL, str(end))
            except BaseException as raised:
                error = Error(simulation, DOMAIN, INTERNAL, f"{type(raised).__name__}: {raised}")
        return error

    def _check_references(self, encoded: Encoded, error: Error | None) -> Error | None:
        """Find out what was released too early, although its command ran."""
        try:
            for reference in encoded.references:
                reference()
        except Released as gone:
            if error is None or error._code != INVALID_RESOURCE:
                self._simulation.record(RULES["unretained"], str(gone))
            return error or Error(self._simulation, DOMAIN, INVALID_RESOURCE, str(gone))
        return error

    def _effective(self, encoded: Encoded, fault: Fault | None) -> int | None:
        """Return how many commands still have an effect; None for all. What a failed buffer wrote is undefined."""
        if fault is None:
            return None
        groups = (group for each in encoded.operations if isinstance(each, Pass) for group in each.groups)
        return self._simulation.choose(sum(map(len, groups)) + 1)

    def _wait(self, operation: Wait) -> None:
        simulation = self._simulation
        state = operation.event()._state
        if not state.wait(operation.value, None, lambda: simulation.closed):
            raise Aborted("the simulation was closed while the queue waited for an event")
        operation.event()
        merge(self.clock, time_of(state, operation.value))

    def _signal(self, operation: Signal, encoded: Encoded, index: int, held: list[Callable[[], None]]) -> None:
        event = operation.event()
        if operation.value < event._state.value:
            text = f"{event!r}: a queue signals {operation.value}, and it has {event._state.value}"
            self._simulation.record(RULES["event-order"], text)
        due = event._state.raise_to(operation.value, {**self.clock, self.number: self.passes})
        if not due:
            return
        # Only when nothing behind it can block may the news be late: otherwise it might never come.
        last = all(isinstance(each, Signal) for each in encoded.operations[index:])
        if last and self._simulation.choose(2):
            held.append(lambda: event._deliver(due))
        else:
            event._deliver(due)

    def _pass(self, operation: Pass, effective: int | None) -> int | None:
        simulation = self._simulation
        self.passes += 1
        for fence in operation.waits:
            merge(self.clock, fence()._time)
        for index, group in enumerate(operation.groups):
            place = Place(self.number, self.passes, index, operation.ordering)
            order = list(group)
            if len(order) > 1:
                with simulation.lock:
                    simulation.random.shuffle(order)
            for command in order:
                if effective is not None:
                    if not effective:
                        return 0
                    effective -= 1
                simulation.hazards.check(place, self.clock, command())
        for fence in operation.updates:
            fence()._time = {**self.clock, self.number: self.passes}
        return effective

    def _complete(self, encoded: Encoded, error: Error | None) -> None:
        encoded.error = error
        encoded.over = {**self.clock, self.number: self.passes}
        encoded.waiting[COMPLETED] = len(encoded.completed)
        buffer = encoded.buffer
        with self.changed:
            encoded.forget()
            encoded.status = COMPLETED if error is None else ERROR
            self.changed.notify_all()
        for handler in encoded.completed:
            self.handlers.put(partial(self._handle, handler, COMPLETED, encoded, buffer))
        self._simulation.dawdle()
        with self.changed:
            self.uncompleted -= 1
            self.changed.notify_all()

    def _handle(self, handler: Callable[..., object], status: int, encoded: Encoded, buffer: Any) -> None:
        self._simulation.count("handlers")
        self._simulation.hazards.host_saw(encoded.over)
        try:
            handler(buffer)
        finally:
            with self.changed:
                encoded.waiting[status] -= 1
                self.changed.notify_all()
