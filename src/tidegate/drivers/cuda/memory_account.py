"""The accounts of a pool: what is handed out, what is kept, and what the budget still allows (M22, M24).

Bytes that are freed on a stream come back in two steps. At once, what is allocated on the *same* stream may have them,
for it comes behind the free in any case; so a chain of allocate, work, free needs the memory of one link however far it
runs ahead. For everybody else they come back when the host knows that the free is over. CUDA's own pools follow the
same rule, so the accounts say what CUDA will do, and the budget is kept here: CUDA's pools grow in steps of 32 MiB, and
would round a budget up to that.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.errors import InvalidArgumentError, ResourceExhaustedError


class Departure:
    """Bytes on their way back.

    Attributes:
        left: how many nobody else has taken over yet.
        stream: the handle of the stream that frees them, once it does.

    """

    __slots__ = ("left", "stream")

    def __init__(self, left: int) -> None:
        self.left = left
        self.stream = 0


class Account:
    """Numbers only; the pool has the lock. Each step is straight-line, so that an interrupt leaves none half done."""

    def __init__(self, budget: int | None) -> None:
        if budget is not None and budget < 0:
            raise InvalidArgumentError(f"pool: the budget is {budget}, and must be 0 or more bytes")
        self.budget = budget
        self.allocated = 0
        self.pooled = 0
        self._peak = 0
        self._allocations = 0
        self._reuses = 0
        self._leaving: dict[int, list[Departure]] = {}

    def allows(self, size: int) -> bool:
        """Whether the budget has room for so many bytes beside what is handed out and what is kept."""
        return self.budget is None or self.allocated + self.pooled + size <= self.budget

    def refusal(self, nbytes: int) -> ResourceExhaustedError:
        """Return the error for what the budget does not allow."""
        return ResourceExhaustedError(
            f"cannot allocate {nbytes} bytes: {self.allocated} of a budget of {self.budget} are in use",
            nbytes=nbytes,
            budget=self.budget,
        )

    def leaving_on(self, stream: int, size: int) -> Departure | None:
        """Return bytes that a stream frees and that what comes behind on it may have; the latest first."""
        line = self._leaving.get(stream)
        if line:
            for departure in reversed(line):
                if departure.left >= size:
                    return departure
        return None

    def take(self, size: int, from_kept: bool) -> None:
        """Hand out bytes, of those that are kept or new ones."""
        if from_kept:
            self.pooled -= size
            self._reuses += 1
        self.allocated += size
        self._allocations += 1
        if self.allocated > self._peak:
            self._peak = self.allocated

    def take_over(self, departure: Departure, size: int) -> None:
        """Hand out bytes that are leaving: they are counted as handed out already."""
        departure.left -= size
        self._allocations += 1
        self._reuses += 1
        if departure.left == 0:
            self._forget(departure)

    def give_up(self, size: int) -> None:
        """What was handed out last could not be had after all."""
        self.allocated -= size
        self._allocations -= 1

    def leave(self, departure: Departure, stream: int) -> None:
        """A stream frees these bytes."""
        departure.stream = stream
        self._leaving.setdefault(stream, []).append(departure)

    def arrive(self, departure: Departure, kept: bool = True) -> None:
        """The bytes are back. Again: nothing."""
        left = departure.left
        departure.left = 0
        self.allocated -= left
        if kept:
            self.pooled += left
        self._forget(departure)

    def _forget(self, departure: Departure) -> None:
        line = self._leaving.get(departure.stream)
        if line is not None and departure in line:
            line.remove(departure)
            if not line:
                self._leaving.pop(departure.stream, None)

    def statistics(self) -> Mapping[str, int | None]:
        """Return what `DriverPool.statistics` does."""
        return {
            "allocated_bytes": self.allocated,
            "pooled_bytes": self.pooled,
            "peak_bytes": self._peak,
            "budget_bytes": self.budget,
            "allocations": self._allocations,
            "reuses": self._reuses,
        }
