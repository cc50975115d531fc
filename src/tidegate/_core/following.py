"""What follows from what: a walk from submissions to those that wait for them, however many there are in between.

Each wait is looked at once. The waits at one timeline are listed in the order of their values, and taken off that list
as claims on higher values are found. So a long chain on one timeline costs no more than one over many timelines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiled import Submission, Timeline


def dependents(producers: Iterable[Submission]) -> set[Submission]:
    """Return what waits, however indirectly, for something that one of the producers will signal."""
    return _walk(producers, None, every=False)


def followers(producers: Iterable[Submission], among: Container[Submission]) -> set[Submission]:
    """Return those of `among` that wait for nothing but what the producers, and one another, will signal."""
    return _walk(producers, among, every=True)


def _walk(producers: Iterable[Submission], among: Container[Submission] | None, *, every: bool) -> set[Submission]:
    found: set[Submission] = set()
    unmet: dict[Submission, int] = {}
    waiting: dict[Timeline, deque[tuple[int, Submission]]] = {}
    stack = list(producers)
    while stack:
        for timeline, claimed in stack.pop()._claims():
            left = waiting.get(timeline)
            if left is None:
                left = waiting[timeline] = deque(timeline.waiting())
            while left and left[0][0] <= claimed:
                waiter = left.popleft()[1]
                if among is not None and waiter not in among:
                    continue
                unmet[waiter] = unmet.get(waiter, len(waiter._pending()) if every else 1) - 1
                if unmet[waiter] == 0:
                    found.add(waiter)
                    stack.append(waiter)
    return found
