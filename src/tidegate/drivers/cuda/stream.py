"""A CUDA stream as an epoch timeline (M2).

Behind the work of each submission the stream itself stores the epoch into a word of page-locked memory, and an event is
recorded. The host reads the word without a driver call; other streams wait for the event. Who sleeps for the last epoch
has another event recorded for that; who sleeps for an earlier one does so beside the stream (`retire`).

What it has of epochs, events and places is in `native/streams.pxi`; here is what has to do with the host: what is to be
done when an epoch is over, why one failed, and who is to be told.

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
import time
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from tidegate._core.background import report_unraisable
from tidegate.driver import EpochTimeline, Ticket

from ._errors import is_loss, translate
from ._native import NativeError
from .native.compiled import BUDGET, Event, StreamState

__all__ = ["BUDGET", "Stream"]

if TYPE_CHECKING:
    from .device import CudaDevice
    from .encoding import Encoded

ALARMS = 40
"""So many events for sleeping may be on a stream at once; it takes 56."""

_TURN, _TURNS = 0.0001, 50_000
_LOOKS = 256
"""Every so many fruitless looks CUDA is asked whether something is wrong."""


class Stream(EpochTimeline):
    """One stream, its word, and what is on it. Everything but `reached` is under the device's lock.

    Args:
        device: the device.
        handle: the CUstream.
        word: the address of its word; 0: events tell of its epochs.
        priority: the native priority; None for a stream of somebody else, who alone says what goes there.

    Attributes:
        state: the compiled side.
        open_waits: whether the submission that is being encoded follows work that the host has not retired yet.

    """

    def __init__(self, device: CudaDevice, handle: int, word: int, priority: int | None = None) -> None:
        super().__init__()
        self.sink = device.sink
        self.device = device
        self.handle = handle
        self.priority = priority
        self.open_waits = False
        self.state = StreamState(device, handle, word, priority)
        self._attach(self.state.address)
        self._failures: dict[int, BaseException] = {}
        self._overs: dict[int, Callable[[], None]] = {}
        self._over_lock = threading.RLock()
        self._armed: list[int] = []
        self._asleep: set[int] = set()
        self._alarms: dict[int, Event] = {}
        self._looks = 0

    @property
    def reached(self) -> int:
        return self.state.reached

    @property
    def idle(self) -> bool:
        """Whether everything issued is over."""
        return self.state.idle

    # Putting work on ------------------------------------------------------------------------------------------------

    def put(self, ticket: Ticket, encoded: Encoded, waits: Sequence[tuple[Stream, int]]) -> None:
        """Issue: waits for other streams, the work, the epoch. The caller holds the lock, the context is current."""
        state = self.state
        state.collect()
        places = encoded.places + len(waits)
        try:
            epoch = self.begin(ticket)
            if encoded.over is not None:
                self._overs[epoch] = encoded.over
                state.failed = True
            for stream, other in waits:
                state.parked_until = epoch
                state.follow(stream.state, other)
            encoded.run(self)
            state.close(places, encoded.event_only)
        except NativeError as error:
            self._fail(self.issued, self._explain(error))
        except BaseException as error:
            # An interrupt, perhaps before the work was put on: the epoch, which will be over soon, must not end well.
            if ticket.taken:
                self._fail(ticket.epoch, error)
            raise
        finally:
            if state.closed_epoch < self.issued:
                self._close(places)

    def _fail(self, epoch: int, error: BaseException) -> None:
        """An epoch shall not end well."""
        self._failures[epoch] = error
        self.state.failed = True

    def failed(self, epoch: int, call: int, code: int) -> None:
        """What the compiled way gave to CUDA was refused."""
        self._take_failure()
        if self.state.closed_epoch < self.issued:
            self.heal()
        self._tell_loss()

    def _take_failure(self) -> None:
        """Note what failed on the compiled way, if anything has."""
        found = self.state.take_failure()
        if found is not None:
            epoch, call, code = found
            self._fail(epoch, self._explain(self.device.native.error(call, code)))

    def _explain(self, error: NativeError) -> BaseException:
        if is_loss(error):
            self.device.doom(error)
        return translate(error)

    def _close(self, places: int = 0) -> None:
        """End the last epoch on the stream, because something came between."""
        try:
            self.state.close(places)
        except NativeError as error:
            self.device.doom(error)

    def heal(self) -> None:
        """Close an epoch that an interrupt left open."""
        with self.device.entered(), self.device.lock:
            if self.state.closed_epoch < self.issued:
                self._close()
        self._tell_loss()

    def _tell_loss(self) -> None:
        """Tell the core, if the device is gone. Not under the lock."""
        if self.device.doomed is not None:
            self.device.lose(self.device.doomed)

    def _forget_failures(self) -> None:
        """Let go of those that have been asked for. Others may retire at the same moment."""
        first = self.oldest
        oldest = self.issued + 1 if first is None else first.epoch
        for epoch in [epoch for epoch in self._failures if epoch < oldest]:
            self._failures.pop(epoch, None)

    def tidy(self) -> None:
        """Take back all that is over."""
        self.state.collect(self.issued)
        self._drop_alarms()

    def end(self) -> None:
        """The device is being closed: its words go."""
        self.state.collect(self.issued)
        self.state.leave_word()
        for _ in range(_TURNS):
            if not self.state.watchers:
                break
            time.sleep(_TURN)  # until they have looked away, which is a matter of microseconds
        for epoch in [epoch for epoch in self._alarms if epoch not in self._asleep]:
            self.device.sleep_events.give(self._alarms.pop(epoch))

    def event_at(self, epoch: int) -> Event:
        """Return the event behind an epoch that is not over, or behind the next one that has one."""
        if self.state.closed_epoch < self.issued:
            self._close()
        event = self.state.event_at(epoch)
        assert event is not None, "only what is issued and not over is waited for"
        return event

    # Looking and listening ------------------------------------------------------------------------------------------

    def advance(self) -> None:
        if self.oldest is None:
            return
        if self.state.closed_epoch < self.issued:
            self.heal()
        self._looks += 1
        # Where a word tells, the core looks itself, and comes here after many looks that were in vain.
        if self._looks % _LOOKS == 0 or (self.state.word_address and not self.state.event_only):
            self._ask()
        super().advance()
        self._tell_loss()  # who asks an event may have learnt of it

    def _ask(self) -> None:
        """Ask CUDA whether the oldest submission failed: no word will tell."""
        try:
            with self.device.entered():
                self.device.native.stream_idle(self.handle)
        except NativeError as error:
            self.device.lose(error)

    def outcome(self, epoch: int) -> BaseException | None:
        self._take_failure()
        if epoch in self._overs:
            with self._over_lock:  # two threads may retire the same submission: the second waits until it is done
                over = self._overs.get(epoch)
                if over is not None:
                    over()
                    self._overs.pop(epoch, None)
        failure = self._failures.get(epoch)
        self._forget_failures()
        self.state.failed = False  # before the look: whoever adds something behind it says so again
        if self._overs or self._failures:
            self.state.failed = True
        return failure

    def arm(self, epoch: int) -> None:
        device = self.device
        try:
            with device.entered(), device.lock:
                if self.state.closed_epoch < self.issued:
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
                if epoch is not None and self.state.event_at(epoch) is None:
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
