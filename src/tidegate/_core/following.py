"""What follows from what: a walk from submissions to those that wait for them, however many there are in between.

Every wait is met once. Those at one timeline are taken from the lowest value on, as higher and higher claims come into
sight, so that a long chain on one timeline costs no more than one over many.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from .submission import Submission, claims_of

if TYPE_CHECKING:
    from .timeline import TimelineState


def dependents_locked(producers: Iterable[Submission]) -> set[Submission]:
    """Return what waits, however indirectly, for something that one of the producers will signal."""
    return _walk_locked(producers, None, every=False)


def followers_locked(producers: Iterable[Submission], among: Container[Submission]) -> set[Submission]:
    """Return those of `among` that wait for nothing but what the producers, and one another, will signal."""
    return _walk_locked(producers, among, every=True)


def _walk_locked(
    producers: Iterable[Submission], among: Container[Submission] | None, *, every: bool
) -> set[Submission]:
    found: set[Submission] = set()
    unmet: dict[Submission, int] = {}
    values: dict[TimelineState, list[int]] = {}
    stack = list(producers)
    while stack:
        for state, claimed in claims_of(stack.pop()):
            if state not in values:
                values[state] = sorted(state.waiters, reverse=True)
            for waiter in _up_to_locked(state, claimed, values[state]):
                if among is not None and waiter not in among:
                    continue
                unmet[waiter] = unmet.get(waiter, len(waiter._pending or ()) if every else 1) - 1
                if unmet[waiter] == 0:
                    found.add(waiter)
                    stack.append(waiter)
    return found


def _up_to_locked(state: TimelineState, claimed: int, left: list[int]) -> list[Submission]:
    """Take the values that a claim covers from what is left, which is in falling order; return who waits there.

    A bucket that an interrupt has left behind may hold some that wait there no longer.
    """
    covered: list[Submission] = []
    while left and left[-1] <= claimed:
        bucket = state.waiters[left.pop()]
        covered += [one for one in bucket if isinstance(one, Submission) and one._pending and state in one._pending]
    return covered
