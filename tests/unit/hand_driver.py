"""A counting device that is moved by hand: nothing is over until a test says so, and every call is noted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tidegate._core.background import reaper, runner
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


def catch_up() -> None:
    """Wait until the background threads have done what was left to them so far."""
    for thread in (reaper, runner):
        done = threading.Event()
        thread.ensure()
        thread.leave(done.set)
        assert done.wait(LIMIT)
