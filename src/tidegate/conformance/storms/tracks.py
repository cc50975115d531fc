"""Tracks: chains of operations over one buffer, in order by construction, with what NumPy has in its place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import tidegate as tg
from tidegate.types import MemoryKind

from .ledger import Bytes, Gate, check_bytes
from .strikes import StormError

if TYPE_CHECKING:
    from .machine import Storm

#: Run in place, by whoever waits, by workers alone.
SIZES = (64, 4096, 20_000, 70_000, 300_000)

_MOST_UPDATE = 256


class Track:
    """A buffer and the timeline of its operations: each waits for the one before and signals the next value.

    Attributes:
        model: what is in the buffer once all of them have ended well.
        over: whether it takes no more.

    """

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.random = storm.random
        self.nbytes = self.random.choice(SIZES)
        self.semaphore = tg.Semaphore(label="track")
        self.value = 0
        self.model: Bytes = np.zeros(self.nbytes, np.uint8)
        self.over = False
        self.history: list[str] = []
        self._lane = self.random.random() < 0.25
        self._to: tg.Queue | tg.Lane = storm.device.lane() if self._lane else storm.queue
        self._last: tg.Submission | None = None
        self.memory: MemoryKind = self.random.choice(("device", "shared", "host"))
        self.buffer = storm.device.allocate(self.nbytes, memory=self.memory)
        self._fill_all()

    @property
    def usable(self) -> bool:
        """Whether it takes more: it has not failed."""
        return not self.over and self.semaphore.failure is None

    def check(self) -> None:
        """Compare what is in the buffer at the end."""
        if self.usable and self.storm.works:
            check_bytes(self.told(), self.buffer.to_numpy(timeout=self.storm.limit), self.model)

    def told(self) -> str:
        """Tell what was done with it."""
        where = f"{self.nbytes} bytes of {self.memory} memory, {'a lane' if self._lane else 'a queue'}"
        return f"{self.semaphore!r}, {where}: " + "; ".join(self.history)

    # Taking an operation in -----------------------------------------------------------------------------------------

    def step(self, call: Callable[..., Any], apply: Callable[[], object] = lambda: None) -> Any:
        """Submit what `call(wait=, signal=)` submits, behind the rest.

        Args:
            call: submits it.
            apply: does the same to the model.

        """
        storm = self.storm
        gate = self._gate()
        waits = self._waits(gate)
        point = self.semaphore.at(self.value + 1)
        storm.current = point
        result, error = storm.attempt(lambda: call(wait=storm.dressed(waits), signal=storm.dressed(point)))
        taken = error is None or self._stands(waits, point)
        self._note(point, error, taken, gate)
        if taken and error is StormError and self.semaphore.failure is None:
            storm.ledger.wrong.append(f"a call whose argument raised was submitted: {point.explain()}")
        self.value = point.value
        storm.ledger.points.append(("an operation of a track", point))
        if gate is not None:
            storm.ledger.offer("work", gate)
        if taken:
            apply()
        if isinstance(result, tg.Submission):
            self._last = result
            storm.ledger.submissions.append(result)
        return result

    def _note(self, point: tg.Timepoint, error: type[BaseException] | None, taken: bool, gate: Gate | None) -> None:
        ends = "" if error is None else f", out of which came {error.__name__}{'' if taken else ': a barrier instead'}"
        held = "" if gate is None else ", held"
        self.history.append(f"{point.value} {sys._getframe(2).f_code.co_name}{held}{ends}")

    def _gate(self) -> Gate | None:
        if self.random.random() > 0.25:
            return None
        gate = self.storm.ledger.gate("a track")
        if self.random.random() < 0.5:
            self.storm.ledger.offer("work", gate)  # it may be opened before, while or after what waits is submitted
        return gate

    def _waits(self, gate: Gate | None) -> list[Any]:
        waits: list[Any] = [] if gate is None else [gate.point]
        if not self._lane:
            handle = self._last is not None and self.random.random() < 0.3
            waits.append(self._last if handle else self.semaphore.at(self.value))
        self._last = None
        return waits

    def _stands(self, waits: list[Any], point: tg.Timepoint) -> bool:
        """Whether an interrupted call has submitted; if not, something takes its place."""
        try:
            self._to.barrier(wait=waits, signal=point)
        except tg.InvalidArgumentError:
            return True
        return False

    # The operations -------------------------------------------------------------------------------------------------

    def random_step(self) -> None:
        """Submit one operation."""
        steps = [self.fill, self.update, self.upload, self.copy, self.download, self.download, self.host_call]
        steps += [self.execute, self.barrier, self.reallocate]
        if self.storm.increment is not None:
            steps.append(self.dispatch)
        self.random.choice(steps)()

    def _range(self, most: int | None = None) -> tuple[int, int]:
        length = self.random.randrange(4, min(self.nbytes, most or self.nbytes) + 1, 4)
        return self.random.randrange(0, self.nbytes - length + 1, 4), length

    def _fill_all(self) -> None:
        """Give fresh memory contents, whatever comes between."""
        filled: list[bool] = []
        pattern = self.random.randrange(256)
        while not filled and self.usable:
            self.step(lambda **points: self._to.fill(self.buffer, pattern, **points), lambda: filled.append(True))
        self.model[:] = pattern

    def fill(self) -> None:
        """Fill a range."""
        offset, length = self._range()
        pattern = self.random.randrange(256)

        def apply() -> None:
            self.model[offset : offset + length] = pattern

        number = self.storm.number
        self.step(
            lambda **points: self._to.fill(
                self.buffer, pattern, offset=number(offset), length=number(length), **points
            ),
            apply,
        )

    def _write(self, data: Bytes, offset: int) -> None:
        self.model[offset : offset + data.size] = data

    def update(self) -> None:
        """Write captured data."""
        offset, length = self._range(_MOST_UPDATE)
        data = np.frombuffer(self.random.randbytes(length), np.uint8)
        array = self.storm.array
        self.step(
            lambda **points: self._to.update(self.buffer, array(data), offset=offset, **points),
            lambda: self._write(data, offset),
        )

    def upload(self) -> None:
        """Borrow an array."""
        offset, length = self._range()
        data = np.resize(np.frombuffer(self.random.randbytes(61), np.uint8), length)
        array = self.storm.array
        self.step(
            lambda **points: self._to.upload(array(data), self.buffer, offset=offset, **points),
            lambda: self._write(data, offset),
        )

    def copy(self) -> None:
        """Copy from memory that never changes."""
        storm = self.storm
        offset, length = self._range(storm.source_bytes.size)
        self.step(
            lambda **points: self._to.copy(storm.source, self.buffer, target_offset=offset, length=length, **points),
            lambda: self._write(storm.source_bytes[:length], offset),
        )

    def download(self) -> None:
        """Read all of it."""
        out = np.zeros(self.nbytes, np.uint8)
        expected = self.model.copy()
        self.step(
            lambda **points: self._to.download(self.buffer, out, **points),
            lambda: self.storm.ledger.reads.append((self.semaphore.at(self.value), out, expected, self.told)),
        )

    def host_call(self) -> None:
        """Call a function, which sees the place in the order."""
        ran: list[bool] = []
        before = self.semaphore.at(self.value)

        def apply() -> None:
            self.storm.calls.append((self.semaphore.at(self.value), ran))

        if self._lane:
            self.step(lambda **points: self._to.host_call(ran.append, True, **points), apply)
        else:

            def runs() -> None:
                # What failed for another reason takes its semaphore no further, and whoever waits for it alone runs.
                ran.append(before.reached or before.semaphore.failure is not None)

            self.step(lambda **points: self._to.host_call(runs, **points), apply)

    def dispatch(self) -> None:
        """Add one to every word."""
        increment: Any = self.storm.increment
        count = self.nbytes // 4
        table = self.storm.table

        def apply() -> None:
            self.model.view(np.uint32)[:] += 1

        self.step(
            lambda **points: self._to.dispatch(
                increment,
                increment.workgroups_for(count),
                bindings=table([self.buffer]),
                constants=[np.uint32(count)],
                **points,
            ),
            apply,
        )

    def execute(self) -> None:
        """Run a recording: a fill, a barrier, an update."""

        def apply() -> None:
            self.model[:16] = 0x11
            self.model[8:16] = np.frombuffer(b"recorded", np.uint8)

        storm = self.storm
        self.step(
            lambda **points: self._to.execute(storm.commands, bindings=storm.table([self.buffer]), **points), apply
        )

    def barrier(self) -> None:
        """Nothing but order."""
        self.step(lambda **points: self._to.barrier(**points))

    def reallocate(self) -> None:
        """Give the memory back in the order of the queue, and take other memory."""
        freed: list[bool] = []
        self.step(lambda **points: self._to.free(self.buffer, **points), lambda: freed.append(True))
        if not freed:
            self.over = self.semaphore.failure is not None
            return
        number = self.storm.number
        buffer = self.step(lambda **points: self._to.allocate(number(self.nbytes), **points))
        if buffer is None:
            self.over = True  # an interrupt has kept the handle from us
            return
        self.buffer = buffer
        self._fill_all()

    def drop(self) -> None:
        """Let the buffer go while it is in use."""
        self.over = True
        if self.random.random() < 0.5:
            self.storm.attempt(self.buffer.close)
        del self.buffer
