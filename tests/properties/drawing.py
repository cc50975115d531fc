"""Drawing what Hypothesis can replay.

What is drawn must not depend on what the world has done so far, for that may differ from one run of an example to the
next. So a number is drawn, and chooses among what there is when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

PICK = st.integers(0, 59)
SHARE = st.integers(0, 64)


def choose(things: Sequence[T], pick: int) -> T:
    return things[pick % len(things)]


def part_of(whole: int, share: int) -> int:
    """A number in 0..whole, both ends likely."""
    return whole * share // 64
