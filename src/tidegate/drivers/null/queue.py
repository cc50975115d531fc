"""A queue: issue work, and report its end.

This one reports each submission as soon as it has it (`sink.finished`). A device that runs its work in order has an
`EpochTimeline` instead: see `tidegate.testing.streams` for a whole one in 200 lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.driver import Allocate, DriverQueue, EpochTimeline, Free, Sink, Ticket, Work
from tidegate.drivers.null.memory import NullStorage


class NullQueue(DriverQueue):
    """Takes everything and does nothing."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        commit_or_release(work)
        self._sink.finished(ticket)
        return True


def commit_or_release(work: Work) -> None:
    """Do what cannot be left undone: storage comes and goes while work is issued."""
    if isinstance(work, Allocate):
        work.commit(NullStorage(work.pool, work.nbytes, work.memory))
    elif isinstance(work, Free):
        work.release()
