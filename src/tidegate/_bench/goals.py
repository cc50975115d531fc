"""What a number is held against. A goal without its twin is neither met nor missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .model import TASK, TIDEGATE, Condition, Result, Samples


@dataclass(frozen=True)
class Verdict:
    """A goal, what was found, and whether that is enough (None: it could not be told).

    `unit` is that of value and limit: "x" for ratios, "ns" for times, "GB/s".
    """

    text: str
    value: float | None
    limit: float
    met: bool | None
    unit: str = "x"


class Goal(Protocol):
    """Judges a result."""

    def judge(self, result: Result) -> Verdict:
        """Return the verdict."""
        ...


def _verdict(text: str, value: float | None, limit: float, unit: str = "x") -> Verdict:
    return Verdict(text, value, limit, None if value is None else value <= limit, unit)


def _where(condition: Condition, variant: str = "") -> str:
    """Return what stands before the text of a goal that holds for one line of a case."""
    parts = [part for part in (variant, "busy" if condition == "busy" else "") if part]
    return ", ".join(parts) + ": " if parts else ""


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
        text = f"{_where(self.condition, self.variant)}<= {self.limit:g}x {self.twin}"
        return _verdict(text, _ratio(mine, theirs), self.limit)


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
        text = f"{_where(self.condition, self.variant)}p{self.quantile * 100:g} <= {self.limit_ns / 1e3:g} us"
        return _verdict(text, value, self.limit_ns, "ns")


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
    variant: str = ""

    def judge(self, result: Result) -> Verdict:
        """Compare time per byte, which is the inverse."""
        ratio = _ratio(result.get(TIDEGATE, self.variant), result.get(self.twin, self.variant))
        value = None if ratio is None else 1 / ratio
        met = None if value is None else value >= self.share
        text = f"{_where('idle', self.variant)}>= {self.share:g}x of the bandwidth of {self.twin}"
        return Verdict(text, value, self.share, met)


@dataclass(frozen=True)
class Moves:
    """We move at least so many gigabytes in a second, for cases whose unit is bandwidth."""

    gigabytes: float

    def judge(self, result: Result) -> Verdict:
        """Compare with a fixed bandwidth."""
        mine = result.get(TIDEGATE)
        value = None if mine is None else 1 / mine.p50
        met = None if value is None else value >= self.gigabytes
        return Verdict(f">= {self.gigabytes:g} GB/s", value, self.gigabytes, met, "GB/s")
