"""Queues: native ones with their epochs, and the choice among them (M2, M15, M20).

Each native queue is an MTLCommandQueue with an MTLSharedEvent that GPU work of other queues waits for. A submission is
one command buffer: waits for other queues' epochs first, then the work, then the signal of its own epoch. Such a wait
parks its whole queue, so it goes only where nothing is in flight, at most half of the queues are ever parked, and
nothing independent is put behind one. Independent work goes to an idle queue; behind other work only if all of that is
built-in and short, since a kernel may run for as long as it likes. Work that follows from the last thing in a queue
goes right behind it, and needs no wait at all.

`commandBuffer` blocks once a queue has 64 uncompleted command buffers. A queue takes fewer than that; what finds no
room is refused and tried again when a command buffer is over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate._core.failures import forget_frames
from tidegate.driver import Allocate, DriverQueue, EpochTimeline, Free, Sink, Ticket, Upload, Work
from tidegate.drivers.metal import _native, transfers
from tidegate.drivers.metal._errors import commands_error, given
from tidegate.drivers.metal.direct_command_buffer import encode
from tidegate.drivers.metal.retire import Flight, Retirement
from tidegate.errors import DeviceLostError, ResourceExhaustedError

if TYPE_CHECKING:
    from tidegate.drivers.metal.device import MetalDevice

CAPACITY = 64
"""How many uncompleted command buffers a queue of Metal's takes; the next one blocks its maker."""
BUDGET = 48
"""How many of ours a queue takes: fewer, because Metal counts one until a little after its status is completed."""
SHORT = 2**20
"""Built-in work up to so many bytes is over soon: other work may queue up behind it."""

Waits = list[tuple[EpochTimeline, int]]


class MetalTimeline(EpochTimeline):
    """A native queue and its epochs. `reached` is a word of the host, raised by completed statuses alone."""

    sink: Sink
    """There from the start of work: `MetalDevice.connect` is called before anything else."""

    def __init__(self, device: MetalDevice, name: str) -> None:
        super().__init__()
        self.native = device.native
        self.flights: deque[Flight] = deque()
        self.last_long = 0
        """The epoch of the last work that may take long."""
        self._lock = threading.Lock()
        self._word = 0
        self._failures: dict[int, BaseException] = {}
        self._lost: BaseException | None = None
        with self.native.autorelease_pool():
            self.queue = given(_native.new_queue(device.handle, CAPACITY, name), "command queue")
            self.event = given(_native.new_event(device.handle), "shared event")
        self.retirement = Retirement(self, name)

    @property
    def reached(self) -> int:
        return self._word

    @property
    def idle(self) -> bool:
        """Whether everything issued is over."""
        return self._word == self.issued

    @property
    def has_room(self) -> bool:
        """Whether one more command buffer can be made without blocking."""
        return len(self.flights) < BUDGET

    @property
    def is_short(self) -> bool:
        """Whether all that is in flight is over soon."""
        return self._word >= self.last_long

    def outcome(self, epoch: int) -> BaseException | None:
        return self._failures.get(epoch)  # two threads may ask

    def arm(self, epoch: int) -> None:
        self.retirement.arm(epoch)

    def advance(self) -> None:
        self.settle()
        self.report_loss()
        super().advance()
        if self._failures:
            self.forget_failures()

    def report_loss(self) -> None:
        """Tell the core if the device was found to be gone. Not under a lock of ours."""
        lost, self._lost = self._lost, None
        if lost is not None:
            self.sink.lost(lost)

    def close(self) -> None:
        """Let the native queue and its event go: nothing is in flight any more."""
        self.retirement.stop()
        if not self.flights:
            self.queue = self.event = None

    # Issuing -------------------------------------------------------------------------------------------------------

    def push(self, ticket: Ticket, flight: Flight, *, long: bool) -> None:
        """Give an encoded command buffer its epoch and commit it."""
        with self._lock:
            self._commit_the_last()
            flight.epoch = self.issued + 1
            _native.encode_signal(flight.commands, self.event, flight.epoch)
            if long:
                self.last_long = flight.epoch
            try:
                self.flights.append(flight)
                self.begin(ticket)
            finally:
                # Should an interrupt come between the epoch and the commit, whoever comes next commits it.
                if ticket.taken:
                    _native.commit(flight.commands)
                    flight.committed = True
                elif self.flights and self.flights[-1] is flight:
                    self.flights.pop()

    def _commit_the_last(self) -> None:
        """Make up for a commit that an interrupt prevented: a queue's order is that of its commits."""
        if self.flights and not self.flights[-1].committed:
            self._see_committed(self.flights[-1])

    # Ending --------------------------------------------------------------------------------------------------------

    def next_over(self) -> Flight | None:
        """Return what will be over next, committed."""
        with self._lock:
            if not self.flights:
                return None
            self._see_committed(self.flights[0])
            return self.flights[0]

    def settle(self) -> None:
        """See which command buffers are over, in order; release what they used, then raise the word."""
        while self.flights:
            with self._lock, self.native.autorelease_pool():
                held_up_by = self._land_all()
            if held_up_by is None:
                return
            # Not under the lock: the other queue may be looking at this one.
            other, epoch = held_up_by
            other.settle()
            if other.reached < epoch:
                return

    def finish_heavy(self, flight: Flight) -> None:
        """Do the host's long part of a command buffer that is over; for the retirement thread, which is one."""
        if flight.heavy:
            if _native.status(flight.commands) == _native.MTLCommandBufferStatusCompleted:
                self._finish(flight)
            flight.heavy = False

    def _land_all(self) -> tuple[MetalTimeline, int] | None:
        """Return the epoch that the oldest command buffer was behind and that is not known to be over, if there is one.

        Such epochs were issued before, so following them from queue to queue comes to an end.
        """
        while self.flights and self._land(self.flights[0]):
            del self.flights[0]
        return next((one for one in self.flights[0].behind if one[0].reached < one[1]), None) if self.flights else None

    def _land(self, flight: Flight) -> bool:
        """Whether a command buffer is over; if so, its epoch is. Doing it twice, after an interrupt, does no harm."""
        status = self._see_committed(flight)
        if status < _native.MTLCommandBufferStatusCompleted or flight.heavy:
            return False
        if any(other.reached < epoch for other, epoch in flight.behind):
            return False
        if flight.epoch > self._word:
            if status == _native.MTLCommandBufferStatusError:
                self._fail(flight)
            else:
                self._finish(flight)
            # Before the word: whoever is told of the end may allocate at once.
            flight.kept.clear()
            self._word = flight.epoch
        return True

    def forget_failures(self) -> None:
        """Let go of those that have been asked for. Others may do the same at the same moment."""
        for epoch in list(self._failures):
            still = self.oldest
            if still is None or epoch < still.epoch:
                self._failures.pop(epoch, None)

    def _see_committed(self, flight: Flight) -> int:
        """Return the status of a command buffer; one that an interrupt kept from being committed is committed now."""
        status = _native.status(flight.commands)
        if status == _native.MTLCommandBufferStatusNotEnqueued:
            _native.commit(flight.commands)
        flight.committed = True
        return status

    def _finish(self, flight: Flight) -> None:
        if flight.finish is None:
            return
        try:
            flight.finish()
        except Exception as error:
            self._failures[flight.epoch] = error
        flight.finish = None

    def _fail(self, flight: Flight) -> None:
        error = commands_error(_native.error_of(flight.commands), flight.label)
        self._failures[flight.epoch] = error
        if isinstance(error, DeviceLostError):
            self._lost = error
        # A failed command buffer signals too, as far as is known. Should one not, those who wait for it on the GPU are
        # freed here; only with nothing behind it, whose signal could be overwritten.
        if flight.epoch == self.issued and _native.event_value(self.event) < flight.epoch:
            _native.set_event_value(self.event, flight.epoch)


class MetalQueue(DriverQueue):
    """Chooses a native queue for each submission, and gives it the work."""

    def __init__(self, device: MetalDevice, timelines: Sequence[MetalTimeline]) -> None:
        self._device = device
        self._timelines = timelines

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        device = self._device
        opened = [(timeline, epoch) for timeline, epoch in waits if timeline.reached < epoch]
        # Not behind what is over and not retired yet: that may have failed, and nobody would ask again.
        if not waits and transfers.run_in_place(device, work):
            del work  # it keeps the storage, which must be free before the end is told
            device.sink.finished(ticket)
            return True
        if opened and not self._may_follow(work, opened):
            return False
        flight = Flight(work.kind)
        if isinstance(work, Allocate):
            try:
                flight.kept.append(device.allocate(work.nbytes, work.memory, work.pool))
            except ResourceExhaustedError:
                return False  # held on the host; whether memory has come back by then is for the core to find out
        taken = self._take(ticket, work, flight, opened)
        if not taken and not opened:
            for timeline in self._timelines:
                timeline.retirement.want_room()
        return taken

    def _take(self, ticket: Ticket, work: Work, flight: Flight, opened: Waits) -> bool:
        device = self._device
        with device.lock, device.native.autorelease_pool():
            chosen = self._choose(opened)
            if chosen is None:
                return False
            timeline, native_waits = chosen
            try:
                self._encode(timeline, flight, work, native_waits)
                long = bool(native_waits) or work.cost is None or work.cost > SHORT
                timeline.push(ticket, flight, long=long)
            except BaseException as error:
                if ticket.taken and flight.heavy:
                    timeline.arm(flight.epoch)
                if not ticket.taken:
                    # The error may live on: what the flight has would stay taken, and a command buffer that nobody
                    # commits keeps one of its queue's places.
                    flight.commands = None
                    flight.kept.clear()
                    forget_frames(error)
                raise
        if flight.heavy:
            timeline.arm(flight.epoch)
        return True

    def _encode(self, timeline: MetalTimeline, flight: Flight, work: Work, native_waits: Waits) -> None:
        flight.commands = given(_native.new_commands(timeline.queue, flight.label), "command buffer")
        for other, epoch in native_waits:
            assert isinstance(other, MetalTimeline)
            flight.behind.append((other, epoch))
            flight.kept.append(other.event)
            _native.encode_wait(flight.commands, other.event, epoch)
        encode(self._device, flight, work)
        _hand_memory_over(work, flight)

    def _may_follow(self, work: Work, opened: Waits) -> bool:
        """Whether work may go down before the host knows that what it waits for is over.

        Not an upload: it reads host memory, which a download may still have to write. Nor anything behind a download
        where the GPU sees host memory of the user's.
        """
        if isinstance(work, Upload):
            return False
        return not self._device.has_imports or not any(_has_host_part(timeline) for timeline, _ in opened)

    def _choose(self, opened: Waits) -> tuple[MetalTimeline, Waits] | None:
        """Return a native queue, and the epochs to be waited for there; None: not now."""
        if len(opened) == 1:
            timeline, epoch = opened[0]
            assert isinstance(timeline, MetalTimeline)
            if epoch == timeline.issued and timeline.has_room:
                return timeline, []
        needed = len(self._timelines) // 2 + 1 if opened else 1
        idle = self._idle(needed)
        if len(idle) >= needed:
            return idle[0], opened
        return None if opened else self._behind_short_work()

    def _idle(self, needed: int) -> list[MetalTimeline]:
        idle = [timeline for timeline in self._timelines if timeline.idle]
        if len(idle) >= needed:
            return idle
        for timeline in self._timelines:
            timeline.settle()
        return [timeline for timeline in self._timelines if timeline.idle]

    def _behind_short_work(self) -> tuple[MetalTimeline, Waits] | None:
        found = [timeline for timeline in self._timelines if timeline.is_short and timeline.has_room]
        return (min(found, key=lambda timeline: len(timeline.flights)), []) if found else None


def _has_host_part(timeline: EpochTimeline) -> bool:
    assert isinstance(timeline, MetalTimeline)
    return any(flight.finish is not None for flight in tuple(timeline.flights))


def _hand_memory_over(work: Work, flight: Flight) -> None:
    """Commit or release memory, last of all: it cannot be taken back."""
    if isinstance(work, Allocate):
        work.commit(flight.kept.pop(0))  # what `issue` has put there
    elif isinstance(work, Free):
        flight.kept.append(work.release())
