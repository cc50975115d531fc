"""A device that is moved by hand: work stays on it until a test says that it is over, well or not.

    with ManualDevice() as manual:
        work = manual.queue.fill(manual.buffer, 0)
        assert not work.done
        manual.issued[0].finish()
        assert work.done

It takes everything at once and does nothing of it; its memory has a size and no bytes. A test may have it refuse work
("not now"), or raise, before or after it has taken a piece. There are two forms, as there are two kinds of hardware. In
the plain one each piece ends by itself, in any order. In the *counting* one the queues "compute" and "transfer" count
what they take in epochs, which end in order; there a piece may be issued behind others that are not over, and nobody is
told of an end unless the core has asked for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from .._core.device import Device
from ..driver import DriverQueue, EpochTimeline, Ticket, Work
from ..drivers.null import NullDriver
from ..drivers.null.device import NullDevice
from ..drivers.null.queue import commit_or_release
from ..errors import FailedPreconditionError
from ..types import DeviceInfo

if TYPE_CHECKING:
    from .._core.buffer import Buffer
    from .._core.queue import Queue

__all__ = ["ManualDevice", "ManualPiece"]

_QUIETLY_CLOSED_WITHIN = 30.0

Hook = Callable[["ManualPiece"], object]


class ManualPiece:
    """One try to give work to the device.

    Attributes:
        submission: The submission it belongs to.
        work: What there is to do, as drivers see it.
        queue: The kind of its queue.
        waits: On a counting device, the epochs that it was to be issued behind.
        taken: Whether the device took it.
        over: Whether it has ended.

    """

    def __init__(self, manual: ManualDevice, queue: str, ticket: Ticket, work: Work, waits: Sequence[_Wait]) -> None:
        self._manual = manual
        self.submission = ticket
        self.work = work
        self.queue = queue
        self.waits = list(waits)
        self.taken = False
        self.over = False

    def __repr__(self) -> str:
        state = "over" if self.over else "issued" if self.taken else "refused"
        return f"<tidegate.testing.ManualPiece {self.work.kind} on {self.queue!r}, {state}>"

    @property
    def wake_up_requested(self) -> bool:
        """Whether the core has asked to be told of its end; on a counting device only."""
        timeline = self.submission.timeline
        return isinstance(timeline, _Timeline) and self.submission.epoch in timeline.asked_for

    def finish(self, *, tell: bool = True) -> None:
        """The device is done with it.

        On a counting device it is done with everything that it took before on that queue, too.

        Args:
            tell: On a counting device, whether it tells those who asked. Without, somebody has to look.

        Raises:
            FailedPreconditionError: the device has not taken it, or what it was issued behind is not over.

        """
        self._end(None, tell)

    def fail(self, error: BaseException, *, tell: bool = True) -> None:
        """The device is done with it, and it went wrong: see `finish`."""
        self._end(error, tell)

    def _end(self, error: BaseException | None, tell: bool) -> None:
        if not self.taken:
            raise FailedPreconditionError(f"{self!r}: what was not taken does not end")
        if any(timeline.reached < epoch for timeline, epoch in self.waits):
            raise FailedPreconditionError(f"{self!r}: what it was issued behind is not over")
        timeline = self.submission.timeline
        if isinstance(timeline, _Timeline):
            if error is not None:
                timeline.failures[self.submission.epoch] = error
            timeline.raise_to(self.submission.epoch, tell)
        else:
            self.over = True
            self._manual.driver.sink.finished(self.submission, error)


_Wait = tuple[EpochTimeline, int]


class _Timeline(EpochTimeline):
    """Epochs that end by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.word = 0
        self.pieces: list[ManualPiece] = []
        self.asked_for: set[int] = set()
        self.failures: dict[int, BaseException] = {}

    @property
    def reached(self) -> int:
        return self.word

    def outcome(self, epoch: int) -> BaseException | None:
        return self.failures.get(epoch)

    def arm(self, epoch: int) -> None:
        self.asked_for.add(epoch)
        if epoch <= self.word:
            self.tell()

    def raise_to(self, epoch: int, tell: bool) -> None:
        before, self.word = self.word, max(self.word, epoch)
        for piece in self.pieces[before:epoch]:
            piece.over = True
        if tell and any(before < asked <= epoch for asked in self.asked_for):
            self.tell()

    def tell(self) -> None:
        assert self.sink is not None
        self.sink.wake(self)


class _Queue(DriverQueue):
    def __init__(self, manual: ManualDevice, kind: str, timeline: _Timeline | None) -> None:
        self._manual = manual
        self._kind = kind
        self._timeline = timeline

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[_Wait]) -> bool:
        manual = self._manual
        piece = ManualPiece(manual, self._kind, ticket, work, waits)
        manual.tries.append(piece)
        if manual.before_taking is not None:
            manual.before_taking(piece)
        if manual.full or (waits and not manual.follows):
            return False
        commit_or_release(work)
        with manual.lock:
            if self._timeline is None:
                ticket.taken = True
            else:
                self._timeline.begin(ticket)
                self._timeline.pieces.append(piece)
            piece.taken = True
        if manual.after_taking is not None:
            manual.after_taking(piece)
        if manual.automatic:
            piece.finish()
        return True


class _Driver(NullDriver):
    name = "cpu"  # kernels for the CPU can be loaded; they never run


class _DriverDevice(NullDevice):
    def __init__(self, manual: ManualDevice, counting: bool, promises: bool) -> None:
        super().__init__(DeviceInfo("manual", "moved by hand", "manual", memory_bytes=0))
        self._manual = manual
        self.promises = promises
        self.timelines = {kind: _Timeline() for kind in self.queue_kinds} if counting else {}

    def connect(self, sink: object) -> None:
        super().connect(sink)  # type: ignore[arg-type]
        self.sink = self._sink
        for timeline in self.timelines.values():
            timeline.sink = self._sink

    def queue(self, kind: str, priority: int) -> DriverQueue:
        return _Queue(self._manual, kind, self.timelines.get(kind))

    @staticmethod
    def poll() -> bool:  # without `self`, which knows the device: that shall go when it is dropped
        return False


class ManualDevice:
    """A device and the hand that moves it. As a context manager it lets everything end, then closes the device.

    Args:
        counting: Whether its queues count in epochs.
        promises: Whether a counting device takes work that waits for work it has not done yet.
        label: The device's name.

    Attributes:
        device: The device, for the program under test.
        queue: Its queue "compute".
        transfer: Its queue "transfer".
        buffer: 64 bytes to work on.
        tries: Every try to give it work, the refused ones too, oldest first.
        full: Set it, and the device says "not now" to everything.
        follows: Unset it, and a counting device says "not now" to what would wait for work on it.
        automatic: Set it, and what the device takes is over at once.
        before_taking: Called with each piece before it is taken. What it raises, the device raises.
        after_taking: Called with each piece that was taken. What it raises, the device raises.
        driver: The driver's side of the device, for tests that give it more than it has.

    """

    def __init__(self, *, counting: bool = False, promises: bool = True, label: str = "manual") -> None:
        self.tries: list[ManualPiece] = []
        self.full = False
        self.follows = True
        self.automatic = False
        self.before_taking: Hook | None = None
        self.after_taking: Hook | None = None
        self.lock = threading.RLock()
        self.driver = _DriverDevice(self, counting, counting and promises)
        self.device = Device(_Driver(), self.driver, "manual", label)
        self.queue: Queue = self.device.queue()
        self.transfer: Queue = self.device.queue("transfer")
        self.buffer: Buffer = self.device.allocate(64)

    def __enter__(self) -> ManualDevice:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def issued(self) -> list[ManualPiece]:
        """What the device has taken and is not done with, oldest first."""
        return [piece for piece in self.tries if piece.taken and not piece.over]

    def tries_of(self, submission: object) -> list[ManualPiece]:
        """Return the tries to give it one submission."""
        return [piece for piece in self.tries if piece.submission is submission]

    def finish_all(self) -> None:
        """Be done with all that was taken so far."""
        for piece in self.issued:
            if not piece.over:
                piece.finish()

    def room(self) -> None:
        """Tell the core that what was refused may be tried again."""
        self.driver.sink.room()

    def lose(self, error: BaseException) -> None:
        """The device is gone."""
        self.driver.sink.lost(error)

    def close(self) -> None:
        """Let everything end that was given to it or follows from that, then close the device."""
        self.full = False
        self.automatic = True
        self.before_taking = self.after_taking = None
        self.finish_all()
        self.room()
        self.device.close(_QUIETLY_CLOSED_WITHIN)
