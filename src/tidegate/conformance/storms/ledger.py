"""What is known of all that a storm has done, and the accounts when it is over."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

import tidegate as tg

from ..threads import background

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]

#: More threads than that are not needed by what a storm does.
MOST_THREADS = 160


class Gate:
    """Something that work is held for. Opened or failed once, by whoever takes it from those that are closed."""

    def __init__(self, what: str) -> None:
        self.semaphore = tg.Semaphore(label=f"gate of {what}")
        self.point = self.semaphore.at(1)
        self.offered = False
        self._over = False

    def open(self) -> None:
        """Let what is held go down."""
        self.semaphore.signal(1)
        self._over = True

    def fail(self, error: BaseException) -> None:
        """Let it fail."""
        self.semaphore.fail(error)
        self._over = True

    def ensure_over(self) -> None:
        """Open it unless it is: whoever took it may have been interrupted before it did anything, or after."""
        if self._over:
            return
        try:
            self.semaphore.wait(1, timeout=0.05)
        except tg.DeadlineExceededError:
            self.semaphore.signal(1)
        except tg.SemaphoreFailedError:
            pass


class Told:
    """A callback that counts its calls.

    Attributes:
        certain: Whether its registration came through.
    """

    def __init__(self, point: tg.Timepoint) -> None:
        self.point = point
        self.calls: list[tg.Outcome] = []
        self.certain = False
        self.cancelled: bool | None = False
        self.subscription: tg.Subscription | None = None

    def __call__(self, point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        self.calls.append(outcome)
        self.act()

    def act(self) -> None:
        """What else it does."""

    def wrong(self) -> str | None:
        """What is wrong with its calls, now that all is over."""
        least = 1 if self.certain and self.cancelled is False else 0
        most = 0 if self.cancelled else 1
        if least <= len(self.calls) <= most:
            return None
        return f"a callback of {self.point!r} was called {len(self.calls)} times (cancelled: {self.cancelled})"


class Extra:
    """What something that came from anywhere has submitted: a fill, a download of it, a host call."""

    def __init__(self, buffer: tg.Buffer, pattern: int) -> None:
        self.buffer = buffer
        self.pattern = pattern
        self.semaphore = tg.Semaphore(label="extra work")
        self.submitted = 0
        self.out: Bytes = np.zeros(buffer.nbytes, np.uint8)
        self.ran: list[int] = []


def each(things: deque[T]) -> Iterator[T]:
    """Yield what is in a deque, and what comes meanwhile: finalizers and callbacks may still be at work."""
    index = 0
    while index < len(things):
        yield things[index]
        index += 1


class Ledger:
    """All that is known of one round on a device.

    Deques, for who takes or adds one may come from anywhere and must find every step whole.
    """

    def __init__(self, device: tg.Device, works: bool, limit: float) -> None:
        self.device = device
        self.works = works
        self.limit = limit
        self.points: deque[tuple[str, tg.Timepoint]] = deque()
        self.submissions: deque[tg.Submission] = deque()
        self.aborted: deque[tuple[str, tg.Timepoint]] = deque()
        self.told: deque[Told] = deque()
        self.extras: deque[Extra] = deque()
        self.reads: deque[tuple[tg.Timepoint, Bytes, Bytes, Callable[[], str]]] = deque()
        self.gates: deque[Gate] = deque()
        self.closed: dict[str, deque[Gate]] = {"work": deque(), "host": deque()}
        self.wrong: deque[str] = deque()

    def gate(self, what: str) -> Gate:
        """Return a new gate that something shall wait for; it may be opened from `offer` on."""
        gate = Gate(what)
        self.gates.append(gate)
        return gate

    def offer(self, what: str, gate: Gate) -> None:
        """Let whoever comes open a gate. Twice is fine."""
        if not gate.offered:
            gate.offered = True
            self.closed[what].append(gate)

    def take(self, what: str) -> Gate | None:
        """Take a closed gate, the oldest."""
        try:
            return self.closed[what].popleft()
        except IndexError:
            return None

    # The accounts ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Open what is closed, and see that everything has ended as it should.

        Raises:
            AssertionError: it has not.
        """
        for closed in self.closed.values():
            while closed:
                closed.popleft().open()
        for gate in each(self.gates):
            gate.ensure_over()
        for what, point in itertools.chain(each(self.points), each(self.aborted)):
            self._ends(what, point)
        for submission in each(self.submissions):
            self._ends("a submission", submission)
        for what, point in each(self.aborted):
            failure = point.semaphore.failure
            assert isinstance(failure, tg.AbortedError), f"{what} ended with {failure!r}, and nobody could signal it"
        self._check_reads()
        self._await_calls()
        self.settle_extras()
        wrong = [*each(self.wrong), *filter(None, (told.wrong() for told in each(self.told)))]
        assert not wrong, "\n".join(wrong)
        self.check_locks()
        check_counts(self.device, self.limit)
        assert threading.active_count() <= MOST_THREADS, f"there are {threading.active_count()} threads"

    def _ends(self, what: str, point: tg.Timepoint | tg.Submission) -> None:
        try:
            point.wait(timeout=self.limit)
        except tg.SemaphoreFailedError:
            pass
        except tg.DeadlineExceededError as error:
            raise AssertionError(f"lost: {what}, {point!r}: {error}\n{point.explain()}") from None

    def settle_extras(self) -> None:
        """See that what was submitted by whatever struck has ended as it should."""
        for extra in each(self.extras):
            for value in range(1, extra.submitted + 1):
                self._ends("extra work", extra.semaphore.at(value))
            value = extra.semaphore.value
            if self.works and value >= 2:
                assert (extra.out == extra.pattern).all(), (
                    f"extra work read {extra.out} where {extra.pattern} had been written"
                )
            assert len(extra.ran) <= 1, "a host call ran twice"
            assert value < 3 or extra.ran == [1], f"a host call has ended and ran {len(extra.ran)} times"

    def _check_reads(self) -> None:
        """What ended well has read what the operations before it wrote: all of those ended well too, in order."""
        for point, found, expected, told in each(self.reads):
            if self.works and point.reached:
                check_bytes(f"the download that signalled {point.value} of {told()}", found, expected)

    def _await_calls(self) -> None:
        """A callback may still be on its way: whoever decides runs it after the decision."""
        limit = time.monotonic() + self.limit
        while any(told.wrong() for told in each(self.told)) and time.monotonic() < limit:
            if any(len(told.calls) > 1 for told in each(self.told)):
                return
            background(int).result()

    def check_locks(self) -> None:
        """See that another thread, which gets no lock that this one holds, can signal, submit and wait."""
        queue = self.device.queue()

        def uses() -> None:
            sem, told = tg.Semaphore(), []
            sem.at(1).add_callback(lambda *_: told.append(1))
            queue.barrier(wait=sem.at(1), signal=sem.at(2))
            queue.host_call(int, wait=sem.at(2), signal=sem.at(3))
            buffer = queue.allocate(64, wait=sem.at(3), signal=sem.at(4))
            queue.fill(buffer, 1, wait=sem.at(4), signal=sem.at(5))
            sem.signal(1)
            sem.wait(5, timeout=self.limit)
            assert told == [1]

        background(uses).result(2 * self.limit)


def check_bytes(what: str, found: Bytes, expected: Bytes) -> None:
    """Compare bytes."""
    wrong = np.flatnonzero(found != expected)
    assert wrong.size == 0, (
        f"{what}: {wrong.size} of {found.size} bytes are wrong, from {wrong[0]} to {wrong[-1]}:"
        f" {found[wrong[:8]]} instead of {expected[wrong[:8]]}"
    )


def check_counts(device: tg.Device, limit: float) -> None:
    """See that nothing is held or issued, and that whatever was submitted is retired."""
    until = time.monotonic() + limit
    while True:
        counts = device.statistics()
        left = counts.held, counts.issued, counts.submitted - counts.retired
        if left == (0, 0, 0):
            return
        assert time.monotonic() < until, f"held, issued and not retired are {left}: {counts}"
        background(int).result()


def check_memory(device: tg.Device, limit: float) -> None:
    """See that all memory has come back, now that nobody has a buffer any more."""
    until = time.monotonic() + limit
    while (left := device.statistics().allocated_bytes) > 0:
        assert time.monotonic() < until, f"{left} bytes have not come back"
        gc.collect()
