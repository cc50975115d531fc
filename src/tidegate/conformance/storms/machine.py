"""The loop of a storm: a random program on the main thread, and what it does when something strikes."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from types import FrameType
from typing import Any, TypeVar

import numpy as np

import tidegate as tg

from .. import kernels
from ..interrupts import in_simulation
from ..subjects import Subject
from .kinds import FRIENDLY, Kind
from .ledger import Bytes, Extra, Ledger, Told, check_counts, check_memory, each
from .strikes import Mourned, StormError, Timer, can_be_interrupted, collecting_often
from .tracks import Track

T = TypeVar("T")

#: So many operations are a round: then the timer rests, and everything is accounted for.
OPERATIONS = 250

#: So many rounds share a device.
PER_DEVICE = 3

_TRACKS = 5
_MOST_CLOSED = 10
_EXTRA_BUFFERS = 24
_EXTRA_BYTES = 256
_SHORT_S = 0.002


class Storm:
    """A storm of one kind on one subject.

    Args:
        subject: opens the devices.
        kind: what comes.
        seed: of the program; the moments of the signals are the operating system's.
        limit: how many seconds anything may take that must end.

    Attributes:
        current: the timepoint of what is being submitted.
        calls: what host calls of tracks noted, with the timepoints that they signal.

    """

    device: tg.Device
    queue: tg.Queue
    ledger: Ledger

    def __init__(self, subject: Subject, kind: Kind, seed: int, limit: float) -> None:
        self.subject = subject
        self.kind = kind
        self.seed = seed
        self.limit = limit
        self.works = "work" not in subject.lacks
        self.random = Random(seed)
        self.timer = Timer(Random(seed + 1), self._strike)
        self.current: tg.Timepoint | None = None
        self.calls: deque[tuple[tg.Timepoint, list[bool]]] = deque()
        self.operations = 0
        self.rounds = 0
        self._armed = False
        self._closing = False
        self._postponed: deque[str] = deque()
        self._buffers: deque[tg.Buffer] = deque()

    def run(self, until: float, went: Callable[[], object]) -> None:
        """Go on until a moment of the monotonic clock; calls `went` before each round.

        Raises:
            AssertionError: the accounts do not add up.

        """
        with self.timer, collecting_often(False):
            while time.monotonic() < until or not self.rounds:
                self._open()
                for _ in range(PER_DEVICE):
                    went()
                    self._round()
                    self.rounds += 1
                    if time.monotonic() >= until:
                        break
                self._close()

    # Devices and rounds ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.device = self.subject.open_device(label="storm")
        self.queue = self.device.queue()
        self.increment = kernels.load(self.device, kernels.increment) if self.works else None
        self.source_bytes: Bytes = np.resize(np.arange(251, dtype=np.uint8), 70_000)
        self.source = self.device.upload(self.source_bytes)
        with self.device.record() as commands:
            commands.fill(tg.slot(0), 0x11, length=16)
            commands.barrier()
            commands.update(tg.slot(0), b"recorded", offset=8)
        self.commands = commands

    def _close(self) -> None:
        """Close the device while it goes on."""
        device = self.device
        self._clear()
        self._closing = True
        self.timer.start()
        self.attempt(lambda: device.close(timeout=self.limit))
        self.timer.stop()
        device.close(timeout=self.limit)
        self._closing = False
        self.ledger.settle_extras()
        check_counts(device, self.limit)
        del self.ledger

    def _clear(self) -> None:
        """Drop all that keeps memory, and see that it comes back."""
        self.ledger = Ledger(self.device, self.works, self.limit)
        self.calls.clear()
        self._buffers.clear()
        self.current = None
        del self.source, self.commands, self.increment
        gc.collect()
        if not self.kind.interrupts:
            # An interrupt between the two may leave a pool's counts wrong, though never its memory.
            check_memory(self.device, self.limit)

    def _round(self) -> None:
        self.random.seed(f"{self.seed}-{self.rounds}")
        self.ledger = Ledger(self.device, self.works, self.limit)
        self.calls.clear()
        self._stock()
        tracks = [Track(self) for _ in range(_TRACKS)]
        with collecting_often(self.kind.finalizers):
            self.timer.start()
            try:
                for _ in range(OPERATIONS):
                    self._operation(tracks)
            finally:
                self.timer.stop()
                self._armed = False
        self._catch_up()
        gc.collect()
        self._catch_up()
        self.ledger.settle()
        for point, ran in each(self.calls):
            assert len(ran) <= 1, f"the host call that signals {point!r} ran {len(ran)} times"
            assert all(ran), f"the host call that signals {point!r} ran before the operation that it follows was over"
            assert not point.reached or ran, f"the host call that signalled {point!r} did not run"
        for track in tracks:
            track.check()

    def _stock(self) -> None:
        while len(self._buffers) < _EXTRA_BUFFERS:
            self._buffers.append(self.device.allocate(_EXTRA_BYTES))

    def _catch_up(self) -> None:
        """Do what struck a simulation and was put off."""
        while self._postponed:
            self.act(self._postponed.popleft())

    # The program ----------------------------------------------------------------------------------------------------

    def _operation(self, tracks: list[Track]) -> None:
        self.operations += 1
        self._catch_up()
        if len(self._buffers) < _EXTRA_BUFFERS // 2:
            self._stock()
        for what, closed in self.ledger.closed.items():
            if len(closed) > _MOST_CLOSED:
                self._open_gate(what)
        if self.random.random() < 0.6:
            self._go_on(tracks)
        else:
            self.random.choice(_OTHERS)(self, tracks)

    def _go_on(self, tracks: list[Track]) -> None:
        index = self.random.randrange(len(tracks))
        if not tracks[index].usable:
            tracks[index] = Track(self)
        tracks[index].random_step()

    def attempt(self, call: Callable[[], T]) -> tuple[T | None, type[BaseException] | None]:
        """Call what may be interrupted, once; returns what it returned, or what kind of error came out."""
        began = time.monotonic()
        self._armed = True
        try:
            return call(), None
        except (KeyboardInterrupt, StormError) as error:
            return None, type(error)
        finally:
            self._armed = False
            took = time.monotonic() - began
            if took > self.limit:
                self.ledger.wrong.append(f"a call that never waits took {took:.1f} s")

    def _open_gate(self, what: str) -> None:
        gate = self.ledger.take(what)
        if gate is not None:
            self.attempt(gate.open)

    def _open_work(self, tracks: list[Track]) -> None:
        self._open_gate("work")

    def _open_host(self, tracks: list[Track]) -> None:
        self._open_gate("host")

    def _fail_gate(self, tracks: list[Track]) -> None:
        gate = self.ledger.take("work") if self.random.random() < 0.3 else None
        if gate is not None:
            self.attempt(lambda: gate.fail(StormError("failed on purpose")))

    def _hold_host_calls(self, tracks: list[Track]) -> None:
        """A few host calls that all wait for one gate."""
        ledger = self.ledger
        gate = ledger.gate("host calls")
        ledger.offer("host", gate)
        for _ in range(self.random.randint(1, 3)):
            end = tg.Semaphore(label="end of a held host call")
            ran: list[bool] = []
            queue = self.queue
            _, error = self.attempt(
                lambda end=end, ran=ran: queue.host_call(  # type: ignore[misc]
                    ran.append, True, wait=self.dressed(gate.point), signal=end.at(1)
                )
            )
            if error is None:
                ledger.points.append(("a held host call", end.at(1)))
                self.calls.append((end.at(1), ran))

    def _cancel(self, tracks: list[Track]) -> None:
        submissions = self.ledger.submissions
        if submissions and self.random.random() < 0.3:
            self.attempt(submissions[-1].cancel)

    def _wait(self, tracks: list[Track]) -> None:
        track = self.random.choice(tracks)
        value, timeout = track.value, self.random.choice((0, _SHORT_S))

        def waits() -> None:
            try:
                track.semaphore.wait(value, timeout)
            except (tg.DeadlineExceededError, tg.SemaphoreFailedError):
                pass

        self.attempt(waits)

    def _wait_for_some(self, tracks: list[Track]) -> None:
        points = [track.semaphore.at(track.value) for track in tracks]
        waits = self.random.choice((tg.wait_all, tg.wait_any))

        def wait() -> None:
            try:
                waits(self.dressed(points), _SHORT_S)
            except (tg.DeadlineExceededError, tg.SemaphoreFailedError):
                pass

        self.attempt(wait)

    def _read(self, tracks: list[Track]) -> None:
        track = self.random.choice(tracks)

        def reads() -> None:
            try:
                track.buffer.read(timeout=_SHORT_S)
            except (tg.DeadlineExceededError, tg.SemaphoreFailedError, tg.FailedPreconditionError):
                pass

        if track.usable:
            self.attempt(reads)

    def _listen(self, tracks: list[Track]) -> None:
        track = self.random.choice(tracks)
        told = _Acting(self, track.semaphore.at(max(1, track.value)))
        self.ledger.told.append(told)
        told.subscription, error = self.attempt(lambda: told.point.add_callback(told))
        told.certain = error is None

    def _stop_listening(self, tracks: list[Track]) -> None:
        told = self.ledger.told[-1] if self.ledger.told else None
        if told is not None and told.subscription is not None and told.cancelled is False:
            told.cancelled = None  # perhaps
            subscription = told.subscription
            answer, error = self.attempt(subscription.cancel)
            if error is None:
                told.cancelled = answer

    def _drop_semaphore(self, tracks: list[Track]) -> None:
        """Nobody can signal any more what work waits for."""
        semaphore, end = tg.Semaphore(label="dropped"), tg.Semaphore(label="behind a dropped one")
        queue = self.queue
        points = [semaphore.at(1)]
        _, error = self.attempt(lambda: queue.barrier(wait=points, signal=end.at(1)))
        points.clear()
        del semaphore
        if error is None:
            self.ledger.aborted.append(("work that waits for a dropped semaphore", end.at(1)))

    def _mourn(self, tracks: list[Track]) -> None:
        if self.kind.finalizers:
            for _ in range(5):
                Mourned(self._collected)

    def _drop_track(self, tracks: list[Track]) -> None:
        index = self.random.randrange(len(tracks))
        if tracks[index].usable:
            tracks[index].drop()

    def _look(self, tracks: list[Track]) -> None:
        point = self.random.choice(tracks).semaphore.at(1)
        for look in (self.device.statistics, point.explain):
            self.attempt(look)

    def _close_another(self, tracks: list[Track]) -> None:
        """Another device, closed with work of every kind on it."""
        if self.random.random() > 0.15:
            return
        other = self.subject.open_device()
        queue, gate, end = other.queue(), tg.Semaphore(), tg.Semaphore()
        buffer = other.allocate(64)
        queue.fill(buffer, 1, signal=end.at(1))
        queue.host_call(int, wait=end.at(1), signal=end.at(2))
        held = [queue.fill(buffer, 2, wait=gate.at(1)), queue.host_call(int, wait=gate.at(1))]
        self.attempt(lambda: other.close(timeout=self.limit))
        other.close(timeout=self.limit)
        interrupted = isinstance(end.failure, KeyboardInterrupt)  # while it issued what had become ready
        assert end.value == 2 or interrupted, f"work on a device that was closed ended with {end!r}"
        for submission in held:
            assert isinstance(submission.error, (tg.AbortedError, KeyboardInterrupt)), f"{submission!r} ended otherwise"
        check_counts(other, self.limit)

    # What strikes ---------------------------------------------------------------------------------------------------

    def _strike(self, frame: FrameType | None) -> None:
        """The signal handler."""
        act = self.random.choice(self.kind.acts)
        if act != "interrupt":
            self.act(act)
        elif self._armed and can_be_interrupted(frame):
            # Once per call: what strikes while the first is cleaned up after is beyond any promise.
            self._armed = False
            raise KeyboardInterrupt

    def _collected(self, frame: FrameType) -> None:
        """A finalizer, on any thread."""
        act = self.random.choice(FRIENDLY)
        if in_simulation(frame):
            self._postponed.append(act)
        else:
            self.act(act)

    def act(self, what: str) -> None:
        """Do something, wherever it may be called."""
        if what in ("signal", "host-call", "fail"):
            gate = self.ledger.take("host" if what == "host-call" else "work")
            if gate is not None:
                gate.open() if what != "fail" else gate.fail(StormError("failed by what struck"))
        elif what in ("submit", "follow"):
            self._extra(self.current if what == "follow" else None)

    def _extra(self, after: tg.Timepoint | None) -> None:
        """Submit: a fill, a download of it, a host call behind."""
        try:
            buffer = self._buffers.popleft()
        except IndexError:
            return
        extra = Extra(buffer, self.random.randrange(1, 256))
        at = extra.semaphore.at
        self.ledger.extras.append(extra)
        try:
            self.queue.fill(buffer, extra.pattern, wait=after, signal=at(1))
            extra.submitted = 1
            self.queue.download(buffer, extra.out, wait=at(1), signal=at(2))
            extra.submitted = 2
            self.queue.host_call(extra.ran.append, 1, wait=at(2), signal=at(3))
            extra.submitted = 3
        except tg.ClosedError:
            if not self._closing:
                raise

    # Arguments ------------------------------------------------------------------------------------------------------

    def _hostile(self) -> bool:
        return self.kind.hostile and self.random.random() < 0.3

    def mischief(self) -> None:
        """What an argument does while it is looked at."""
        if self.random.random() < 0.15:
            raise StormError("raised by an argument")
        self.act(self.random.choice(FRIENDLY))

    def number(self, value: int) -> Any:
        """Return a number, perhaps one with code of its own."""
        return _Number(self, value) if self._hostile() else value

    def dressed(self, points: Any) -> Any:
        """Return timepoints, perhaps in an iterable with code of its own."""
        if not self._hostile():
            return points
        return _Iterable(self, points if isinstance(points, list) else [points])

    def table(self, bindings: list[tg.Buffer]) -> Any:
        """Return a table of bindings, perhaps one with code of its own."""
        return _Iterable(self, bindings) if self._hostile() else bindings

    def array(self, data: Bytes) -> Any:
        """Return host data, perhaps in something with code of its own."""
        return _Array(self, data) if self._hostile() else data


_OTHERS: tuple[Callable[[Storm, list[Track]], None], ...] = (
    *(Storm._open_work, Storm._open_work, Storm._open_work, Storm._open_host, Storm._open_host),
    *(Storm._hold_host_calls, Storm._hold_host_calls, Storm._hold_host_calls, Storm._fail_gate, Storm._cancel),
    *(Storm._wait, Storm._wait, Storm._wait_for_some, Storm._read, Storm._listen, Storm._listen, Storm._listen),
    *(Storm._stop_listening, Storm._drop_semaphore, Storm._mourn, Storm._mourn, Storm._drop_track, Storm._look),
    Storm._close_another,
)


class _Acting(Told):
    """A callback that may do something."""

    def __init__(self, storm: Storm, point: tg.Timepoint) -> None:
        super().__init__(point)
        self._storm = storm

    def act(self) -> None:
        storm = self._storm
        if not storm.kind.callbacks:
            return
        if storm.random.random() < 0.2:
            raise StormError("raised by a callback")
        storm.act(storm.random.choice(FRIENDLY))


class _Number:
    def __init__(self, storm: Storm, value: int) -> None:
        self._storm = storm
        self._value = value

    def __index__(self) -> int:
        self._storm.mischief()
        return self._value


class _Iterable:
    def __init__(self, storm: Storm, items: list[Any]) -> None:
        self._storm = storm
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._storm.mischief()
            yield item


class _Array:
    def __init__(self, storm: Storm, data: Bytes) -> None:
        self._storm = storm
        self._data = data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Bytes:
        self._storm.mischief()
        return self._data
