"""The nouns of a benchmark: side, case, samples, result."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .contestants import Contestants
    from .goals import Goal

TIDEGATE = "tidegate"
TASK = "iree local-task"
SYNC = "iree local-sync"
STANDARD = "standard library"
SIDES = (TIDEGATE, TASK, SYNC, STANDARD)

Condition = Literal["idle", "busy"]
"""Alone, or beside one thread that runs Python all the time."""

Sampler = Callable[[], Sequence[float]]
"""Does one round of a case and returns nanoseconds per operation (or per byte): one number or many."""

Side = Callable[["Contestants"], AbstractContextManager[Sampler]]
"""Prepares one side of a case, gives its sampler, and cleans up."""


MOST_OTHERS = 0.15
"""Cores that other processes may use before a case counts as disturbed."""


class Missing(Exception):
    """A side that cannot take part. The text goes into the table."""


class Key(NamedTuple):
    """One line of measurement: who, in which size of the case, and in which company."""

    side: str
    variant: str
    condition: Condition


@dataclass
class Samples:
    """What one side gave, round by round, in nanoseconds."""

    rounds: list[list[float]] = field(default_factory=list)

    def quantile(self, fraction: float) -> float:
        """Return the sample below which `fraction` of all samples lie."""
        ordered = sorted(sample for one in self.rounds for sample in one)
        return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]

    @property
    def count(self) -> int:
        """How many samples there are."""
        return sum(len(one) for one in self.rounds)

    @property
    def p50(self) -> float:
        """The median of all samples."""
        return statistics.median(sample for one in self.rounds for sample in one)

    @property
    def p99(self) -> float:
        """The sample that one in a hundred exceeds."""
        return self.quantile(0.99)

    def ratio_to(self, twin: Samples) -> float:
        """Return the median, over the rounds both took, of this side's median over the twin's in that round.

        A machine that slows down for a while changes both medians of a round, and leaves this ratio alone.
        """
        pairs = zip(self.rounds, twin.rounds, strict=False)
        return statistics.median(statistics.median(mine) / statistics.median(theirs) for mine, theirs in pairs)


@dataclass(frozen=True)
class Case:
    """One thing that is measured.

    Attributes:
        name: as `--case` takes it.
        title: as the table shows it.
        sides: for each size of the case ("" if there is only one), who takes part.
        goals: what the numbers are held against.
        rounds: how many rounds at most; a time limit may end a case before, after three rounds.
        conditions: alone, and beside a busy thread where asked.
        unit: "time" is nanoseconds per operation, "bandwidth" nanoseconds per byte.
        crowded: the case leaves much garbage, which is collected before each side's turn and not in it.

    """

    name: str
    title: str
    sides: Mapping[str, Mapping[str, Side]]
    goals: Sequence[Goal] = ()
    rounds: int = 30
    conditions: Sequence[Condition] = ("idle",)
    unit: Literal["time", "bandwidth"] = "time"
    crowded: bool = False


@dataclass
class Result:
    """The samples of one case, and why a side has none."""

    case: Case
    samples: dict[Key, Samples] = field(default_factory=dict)
    missing: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    others: float | None = None
    """How many cores other processes used meanwhile, where the system tells."""

    @property
    def disturbed(self) -> bool:
        """Whether others took so much of the machine that the verdicts mean little."""
        return self.others is not None and self.others > MOST_OTHERS

    def get(self, side: str, variant: str = "", condition: Condition = "idle") -> Samples | None:
        """Return the samples of one line, or None."""
        return self.samples.get(Key(side, variant, condition))
