"""A CUDA stream as an epoch timeline (M2).

Behind the work of each submission the stream itself stores the epoch into a word of page-locked memory, and an event is
recorded. The host reads the word without a driver call; other streams wait for the event. Who sleeps for the last epoch
has another event recorded for that; who sleeps for an earlier one does so beside the stream (`retire`).

A stream has 1,021 places for work that has not begun, and a call that finds none free blocks: so no stream is given
more than a part of that, and what does not fit stays on the host.

A large copy between host and device has no word behind it: with one, measured, copies on several streams go one after
the other, both directions together (1.3 ms for a chunk up and down, where 0.7 is possible). Of such an epoch its event
tells, which is asked when somebody looks.

A fault of a kernel raises no word. Who sleeps is told by CUDA; who only looks, again and again, is told because every
so many looks ask CUDA.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from tidegate._core.background import report_unraisable
from tidegate.driver import EpochTimeline, Ticket

from ._errors import is_loss, translate
from ._native import NativeError
from .timepoint_pool import NativeTimepoint

if TYPE_CHECKING:
    from .device import CudaDevice
    from .encoding import Encoded
    from .event_pool import Event

BUDGET = 384
"""So many places may be taken when more is put on; one submission takes 256 at most."""

ALARMS = 40
"""So many events for sleeping may be on a stream at once; it takes 56."""

_LOOKS = 256
"""Every so many fruitless looks CUDA is asked whether something is wrong."""


class Stream(EpochTimeline):
    """One stream, its word, and what is on it. Everything but `reached` is under the device's lock.

    Attributes:
        places: how many of the native queue's places may be taken.
        parked_until: the last epoch that waits for another stream; nothing independent goes behind it (M15).
        word: the address of its word; 0 where it has none.
        open_waits: whether the submission that is being encoded follows work that the host has not retired yet.
        priority: the native priority; None for a stream of somebody else, who alone says what goes there.
        lent: whether one user has it for itself at the moment.

    """

    takes_word = 1

    def __init__(
        self, device: CudaDevice, handle: int, words: memoryview, index: int, priority: int | None = None
    ) -> None:
        super().__init__()
        self.priority = priority
        self.sink = device.sink
        self.device = device
        self.handle = handle
        self.places = 0
        self.parked_until = 0
        self.open_waits = False
        self.lent = False
        self._words = words
        self._index = index
        self.word = self.takes_word * (device.words_address + 8 * index)
        self._line: deque[NativeTimepoint] = deque()
        self._closed_epoch = 0
        self._found = 0
        self._silent_until = 0
        self._failures: dict[int, BaseException] = {}
        self._overs: dict[int, Callable[[], None]] = {}
        self._over_lock = threading.RLock()
        self._armed: list[int] = []
        self._asleep: set[int] = set()
        self._alarms: dict[int, Event] = {}
        self._looks = 0

    @property
    def reached(self) -> int:
        reached = max(self._words[self._index], self._found)
        if reached >= self._silent_until or self.device.doomed is not None:
            return reached
        try:
            return self._find(reached)
        except NativeError as error:  # many read this, some under locks: whoever looks next tells
            self.device.doom(error)
            return reached

    def _find(self, reached: int) -> int:
        """Ask the events of the epochs that no word tells of, if one of those is the next."""
        device = self.device
        with device.entered(), device.lock:
            for point in self._line:
                if point.epoch <= reached:
                    continue
                if not point.silent or not device.native.event_over(point.event.handle):
                    break
                reached = self._found = point.epoch
        return reached

    @property
    def idle(self) -> bool:
        """Whether everything issued is over."""
        return self.reached == self.issued

    @property
    def parked(self) -> bool:
        """Whether something on it may still wait for another stream."""
        return self.parked_until > self.reached

    # Putting work on ------------------------------------------------------------------------------------------------

    def put(self, ticket: Ticket, encoded: Encoded, waits: Sequence[tuple[Stream, int]]) -> None:
        """Issue: waits for other streams, the work, the epoch. The caller holds the lock, the context is current."""
        if self._line:
            self.collect()
        events = [stream.event_at(epoch) for stream, epoch in waits if stream.reached < epoch] if waits else ()
        point = self.device.timepoints.take()
        places = encoded.places + len(events)
        try:
            epoch = self.begin(ticket)
            if events:
                self.parked_until = epoch
            if encoded.over is not None:
                self._overs[epoch] = encoded.over
            encoded.submit(self, epoch, point.event.handle, events)
            self._stand(point, epoch, places, encoded.keep, encoded.silent or not self.word)
        except NativeError as error:
            self._failures[self.issued] = self._explain(error)
        except BaseException as error:
            # An interrupt, perhaps before the work was put on: the epoch, which will be over soon, must not end well.
            if ticket.taken:
                self._failures[ticket.epoch] = error
            raise
        finally:
            if self._closed_epoch < self.issued:
                self._close(places, encoded.keep)

    def _explain(self, error: NativeError) -> BaseException:
        if is_loss(error):
            self.device.doom(error)
        return translate(error)

    def _stand(self, point: NativeTimepoint, epoch: int, places: int, keep: object, silent: bool) -> None:
        """Remember where an epoch ends. What an interrupt leaves undone here, `heal` does."""
        point.epoch = epoch
        point.silent = silent
        point.places = places + 1
        point.keep = keep
        self._line.append(point)
        self.places += point.places
        if silent:
            self._silent_until = epoch
        self._closed_epoch = epoch

    def _close(self, places: int = 0, keep: object = None) -> None:
        """End the last epoch on the stream, because something came between."""
        try:
            point = self.device.timepoints.take()
            self.device.submit.close(self.handle, self.word, self.issued, point.event.handle)
        except NativeError as error:
            self.device.doom(error)
        else:
            self._stand(point, self.issued, places, keep, not self.word)

    def heal(self) -> None:
        """Close an epoch that an interrupt left open."""
        with self.device.entered(), self.device.lock:
            if self._closed_epoch < self.issued:
                self._close()
        self._tell_loss()

    def _tell_loss(self) -> None:
        """Tell the core, if the device is gone. Not under the lock."""
        if self.device.doomed is not None:
            self.device.lose(self.device.doomed)

    def collect(self, most: int = 8) -> None:
        """Take back what is over, a bounded number each time: every submission adds one."""
        reached = self.reached
        line = self._line
        while line and line[0].epoch <= reached and most:
            most -= 1
            point = line.popleft()
            self.places -= point.places
            self.device.timepoints.give(point)
        if not line:
            self.places = 0  # whatever an interrupt in the middle of this or of `_stand` has left
        if self._failures:
            self._forget_failures()

    def _forget_failures(self) -> None:
        """Let go of those that have been asked for. Others may retire at the same moment."""
        first = self.oldest
        oldest = self.issued + 1 if first is None else first.epoch
        for epoch in [epoch for epoch in self._failures if epoch < oldest]:
            del self._failures[epoch]

    def tidy(self) -> None:
        """Take back all that is over."""
        self.collect(len(self._line))
        self._drop_alarms()

    def end(self, words: memoryview) -> None:
        """The device is being closed: read the last epochs from a copy from now on."""
        self.collect(len(self._line))
        self._words = words
        self.word = 0
        for epoch in [epoch for epoch in self._alarms if epoch not in self._asleep]:
            self.device.sleep_events.give(self._alarms.pop(epoch))

    def event_at(self, epoch: int) -> int:
        """Return the event behind an epoch that is not over, or behind the next one that has one."""
        return self.shared_event_at(epoch).handle

    def shared_event_at(self, epoch: int) -> Event:
        """Return the same as it stands in the pool."""
        if self._closed_epoch < self.issued:
            self._close()
        point = self._point_at(epoch)
        assert point is not None, "only what is issued and not over is waited for"
        return point.event

    def _point_at(self, epoch: int) -> NativeTimepoint | None:
        line = self._line
        if not line:
            return None
        index = max(0, epoch - line[0].epoch)  # epochs stand one after the other, unless an interrupt left a gap
        if index < len(line) and line[index].epoch == epoch:
            return line[index]
        return next((point for point in line if point.epoch >= epoch), None)

    # Looking and listening ------------------------------------------------------------------------------------------

    def advance(self) -> None:
        if self.oldest is None:
            return
        if self._closed_epoch < self.issued:
            self.heal()
        self._looks += 1
        if self._looks % _LOOKS == 0:
            self._ask()
        super().advance()

    def _ask(self) -> None:
        """Ask CUDA whether the oldest submission failed: no word will tell."""
        try:
            with self.device.entered():
                self.device.native.stream_idle(self.handle)
        except NativeError as error:
            self.device.lose(error)

    def outcome(self, epoch: int) -> BaseException | None:
        if epoch in self._overs:
            with self._over_lock:  # two threads may retire the same submission: the second waits until it is done
                over = self._overs.get(epoch)
                if over is not None:
                    over()
                    self._overs.pop(epoch, None)
        return self._failures.get(epoch)

    def arm(self, epoch: int) -> None:
        device = self.device
        try:
            with device.entered(), device.lock:
                if self._closed_epoch < self.issued:
                    self._close()
                heappush(self._armed, epoch)
                if epoch == self.issued and self.reached < epoch:
                    self._alarm(epoch)
                if self._asleep and min(self._asleep) <= epoch:
                    return
        except NativeError as error:
            if is_loss(error):
                device.lose(error)
                return
        device.sleepers.run(self._listen)

    def _alarm(self, epoch: int) -> None:
        """Record an event to sleep for right behind the last epoch, while the stream has places for such."""
        self._drop_alarms()
        if epoch not in self._alarms and len(self._alarms) < ALARMS:
            event = self.device.sleep_events.take()
            self.device.native.record_event(event.handle, self.handle)
            self._alarms[epoch] = event  # not before: who sleeps for one that is not recorded does not sleep

    def _drop_alarms(self) -> None:
        """Give back the events to sleep for that are over."""
        for known in [known for known in self._alarms if known <= self.reached and known not in self._asleep]:
            self.device.sleep_events.give(self._alarms.pop(known))

    def _listen(self) -> None:
        """Sleep for the armed epochs, one after the other; runs on a sleeping thread."""
        device = self.device
        while True:
            with device.lock:
                untold = self._drop_over()
                epoch = None if untold else self._next_armed()
                if epoch is not None and self._point_at(epoch) is None:
                    epoch = None  # no such point: the device is lost
                if epoch is not None:
                    self._asleep.add(epoch)
                    event = self._alarms.get(epoch)
            if untold:
                self._wake()
                continue
            if epoch is None:
                break
            try:
                if event is None:
                    device.sleepers.sleep_beside(self, epoch)
                else:
                    device.native.synchronize_event(event.handle)
            finally:
                with device.lock:
                    self._asleep.discard(epoch)
            self._wake()
        self._wake()
        self._tell_loss()

    def _wake(self) -> None:
        try:
            self.device.sink.wake(self)
        except Exception as error:  # the later epochs that are armed must be told all the same
            report_unraisable(error, self)

    def _drop_over(self) -> bool:
        """Forget the armed epochs that are over. Returns whether there were any: they may not have been told yet."""
        reached = self.reached
        untold = False
        while self._armed and self._armed[0] <= reached:
            heappop(self._armed)
            untold = True
        return untold

    def _next_armed(self) -> int | None:
        """The earliest armed epoch that is not over and that nobody sleeps for yet."""
        if not self._armed or (self._asleep and min(self._asleep) <= self._armed[0]):
            return None
        return self._armed[0]


class EventStream(Stream):
    """For devices without 64-bit memory operations: the epoch is raised by whoever looks and finds an event over."""

    takes_word = 0

    def advance(self) -> None:
        super().advance()
        self._tell_loss()
