"""What a number is held against. A goal without its twin is neither met nor missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .model import TASK, TIDEGATE, Condition, Result, Samples


@dataclass(frozen=True)
class Verdict:
    """A goal, what was found, and whether that is enough (None: it could not be told)."""

    text: str
    value: float | None
    limit: float
    met: bool | None


class Goal(Protocol):
    """Judges a result."""

    def judge(self, result: Result) -> Verdict:
        """Return the verdict."""
        ...


def _verdict(text: str, value: float | None, limit: float) -> Verdict:
    return Verdict(text, value, limit, None if value is None else value <= limit)


def _ratio(mine: Samples | None, theirs: Samples | None) -> float | None:
    return mine.ratio_to(theirs) if mine and theirs else None


@dataclass(frozen=True)
class Ratio:
    """Our median is at most `limit` times the twin's."""

    limit: float
    twin: str = TASK
    condition: Condition = "idle"
    variant: str = ""

    def judge(self, result: Result) -> Verdict:
        """Compare round by round."""
        mine = result.get(TIDEGATE, self.variant, self.condition)
        theirs = result.get(self.twin, self.variant, self.condition)
        return _verdict(f"<= {self.limit:g}x {self.twin}", _ratio(mine, theirs), self.limit)


@dataclass(frozen=True)
class Flat:
    """The cost of one stays the same as the crowd grows: the large variant over the small one."""

    large: str
    small: str
    limit: float = 1.3

    def judge(self, result: Result) -> Verdict:
        """Compare the two sizes round by round."""
        value = _ratio(result.get(TIDEGATE, self.large), result.get(TIDEGATE, self.small))
        return _verdict(f"flat: {self.large} <= {self.limit:g}x {self.small}", value, self.limit)


@dataclass(frozen=True)
class Below:
    """Our quantile is at most `limit_ns`."""

    limit_ns: float
    quantile: float = 0.5
    condition: Condition = "idle"
    variant: str = ""

    def judge(self, result: Result) -> Verdict:
        """Compare with a fixed time."""
        mine = result.get(TIDEGATE, self.variant, self.condition)
        value = None if mine is None else mine.p50 if self.quantile == 0.5 else mine.quantile(self.quantile)
        where = " busy" if self.condition == "busy" else ""
        return _verdict(f"{where} p{self.quantile * 100:g} <= {self.limit_ns / 1e3:g} us".strip(), value, self.limit_ns)


@dataclass(frozen=True)
class BusyAsIdle:
    """What need not wake anybody costs beside a busy thread at most `limit` times what it costs alone."""

    limit: float = 2.0

    def judge(self, result: Result) -> Verdict:
        """Compare the medians of the two conditions; they are not taken in the same rounds."""
        busy, idle = result.get(TIDEGATE, condition="busy"), result.get(TIDEGATE)
        value = busy.p50 / idle.p50 if busy and idle else None
        return _verdict(f"busy <= {self.limit:g}x idle", value, self.limit)


@dataclass(frozen=True)
class Bandwidth:
    """We move at least `share` of the bytes per second that the twin moves."""

    share: float
    twin: str

    def judge(self, result: Result) -> Verdict:
        """Compare time per byte, which is the inverse."""
        ratio = _ratio(result.get(TIDEGATE), result.get(self.twin))
        value = None if ratio is None else 1 / ratio
        met = None if value is None else value >= self.share
        return Verdict(f">= {self.share:g}x of its bandwidth", value, self.share, met)
