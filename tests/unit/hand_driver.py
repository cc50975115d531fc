"""A counting device that is moved by hand: nothing is over until a test says so, and every call is noted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tidegate as tg
from tidegate._core.background import Background, reaper, runner
from tidegate._core.device import Device
from tidegate.driver import DriverQueue, EpochTimeline, Ticket, Work
from tidegate.drivers.null import NullDriver
from tidegate.drivers.null.device import NullDevice
from tidegate.types import DeviceInfo

LIMIT = 30.0
Waits = list[tuple[EpochTimeline, int]]


class HandTimeline(EpochTimeline):
    """Epochs that end when `over` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.word = 0
        self.armed: list[int] = []
        self.failures: dict[int, BaseException] = {}

    @property
    def reached(self) -> int:
        return self.word

    def outcome(self, epoch: int) -> BaseException | None:
        return self.failures.pop(epoch, None)

    def arm(self, epoch: int) -> None:
        self.armed.append(epoch)

    def over(self, epoch: int, wake: bool = False) -> None:
        """The device is done up to here; it tells only if asked to."""
        self.word = epoch
        if wake:
            assert self.sink is not None
            self.sink.wake(self)


class HandQueue(DriverQueue):
    def __init__(self, hand: HandDevice, timeline: HandTimeline) -> None:
        self._hand = hand
        self._timeline = timeline

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        hand = self._hand
        hand.asked.append((ticket, list(waits)))
        if hand.before_issue is not None:
            hand.before_issue(ticket)
        if hand.full or (waits and not hand.follows):
            return False
        self._timeline.begin(ticket)
        if hand.after_issue is not None:
            hand.after_issue(ticket)
        return True

    def flush(self) -> None:
        self._hand.flushes += 1


class HandDevice(NullDevice):
    """Two queues with a timeline each: "compute" is `one`, "transfer" is `two`."""

    promises = True

    def __init__(self) -> None:
        super().__init__(DeviceInfo("hand", "moved by hand", "hand", memory_bytes=0))
        self.one, self.two = HandTimeline(), HandTimeline()
        self.asked: list[tuple[Ticket, Waits]] = []
        self.full = False
        self.follows = True
        self.before_issue: Callable[[Ticket], object] | None = None
        self.after_issue: Callable[[Ticket], object] | None = None
        self.polled = 0
        self.poll_answers: list[bool] = []
        self.flushes = 0
        self.closed = 0

    def connect(self, sink: object) -> None:
        super().connect(sink)  # type: ignore[arg-type]
        self.sink = self._sink
        self.one.sink = self.two.sink = self._sink

    def queue(self, kind: str, priority: int) -> DriverQueue:
        return HandQueue(self, self.one if kind == "compute" else self.two)

    def poll(self) -> bool:
        self.polled += 1
        return bool(self.poll_answers) and self.poll_answers.pop()

    def close(self) -> None:
        self.closed += 1

    def end_all(self) -> None:
        """Everything issued is over, whatever follows from that included."""
        self.full = False
        self.before_issue = self.after_issue = None
        for timeline in (self.one, self.two):
            timeline.over(timeline.issued, wake=True)
        self.sink.room()


def open_by_hand(label: str = "hand") -> tuple[Device, HandDevice]:
    """Return a device and the handle that moves it."""
    hand = HandDevice()
    return Device(NullDriver(), hand, "hand", label), hand


def close_by_hand(device: Device, hand: HandDevice) -> None:
    """Let everything issued end, and what becomes free by that, then close."""
    while device._issued or device._backlog:
        hand.end_all()
        catch_up()
    device.close(LIMIT)


def fill(device: Device, **options: Any) -> tg.Submission:
    """Submit a small piece of work."""
    return device.queue().fill(device.allocate(4), 0, **options)


class Bench:
    """A device that is moved by hand, two of its queues and a buffer to work on."""

    def __init__(self) -> None:
        self.device, self.hand = open_by_hand()
        self.queue, self.other = self.device.queue(), self.device.queue("transfer")
        self.one, self.two = self.hand.one, self.hand.two
        self.buffer = self.device.allocate(16)

    def work(self, queue: tg.Queue | None = None, **options: Any) -> tg.Submission:
        return (queue or self.queue).fill(self.buffer, 0, **options)

    def waits(self, submission: tg.Submission) -> list[tuple[Any, int]]:
        """Return the waits with which it was last issued."""
        (*_, found) = (waits for ticket, waits in self.hand.asked if ticket is submission)
        return found

    def times(self, submission: tg.Submission) -> int:
        return sum(ticket is submission for ticket, _ in self.hand.asked)


def catch_up(*threads: Background) -> None:
    """Wait until these background threads, or else both, have done what was left to them so far."""
    for thread in threads or (reaper, runner):
        done = threading.Event()
        thread.ensure()
        thread.leave(done.set)
        assert done.wait(LIMIT)
