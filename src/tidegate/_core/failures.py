"""Errors that end work: what they keep alive, and how an error that nobody has looked at is reported in the end (M21).

Each error that ends a submission has one record. The submissions that fail with the error and the timelines that carry
it share the record, and whoever may still look at the error refers to one of those. So when the record is collected,
nobody can look any more, and the error is reported; if its device is closed before that, it is reported then. The
device remembers a few of the errors that were reported before, for a strict close. Work that was given up on purpose,
by a cancel, a close or a dropped semaphore, is not reported. An error that somebody has looked at is reported again if
it is raised again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ..errors import AbortedError
from . import process
from .background import deferred

if TYPE_CHECKING:
    from .compiled import Submission


class Unseen:
    """A failure, until somebody looks at it or it is reported."""

    __slots__ = ("__weakref__", "_dropped", "error", "seen", "text")

    def __init__(self, text: str, error: BaseException, dropped: deque[tuple[str, BaseException]]) -> None:
        self.seen = True  # until the rest is set: an interrupted constructor has nothing to report
        self.text = text
        self.error = error
        self._dropped = dropped
        self.seen = False

    def __del__(self) -> None:
        # An interrupted constructor may not even have set `seen`.
        if not (getattr(self, "seen", True) or process.here.exiting):
            self._dropped.append((self.text, self.error))
            deferred.leave(_log, self.text, self.error)

    def report(self) -> None:
        """Tell of it, once, unless somebody has looked."""
        if not self.seen:
            self.seen = True
            _log(self.text, self.error)


_records: WeakValueDictionary[int, Unseen] = WeakValueDictionary()
"""By the identity of the error, which lives as long as its record does."""


def record_of(error: BaseException) -> Unseen | None:
    """Return the record of an error that has ended a submission."""
    return _records.get(id(error))


def note_failure(submission: Submission, error: BaseException) -> Unseen | None:
    """Return the record of an error that ends a submission, a new one unless one waits to be reported.

    None for work that was given up on purpose.
    """
    if isinstance(error, AbortedError):
        return None
    record = record_of(error)
    if record is None or record.seen:
        workload = submission._workload
        record = Unseen(submission.describe(), error, workload._dropped_failures)
        _records[id(error)] = record
        workload._failures.add(record)
    return record


def mark_seen(error: BaseException | None) -> None:
    """Somebody is told of an error: it need not be reported."""
    record = None if error is None else record_of(error)
    if record is not None:
        record.seen = True


def _log(text: str, error: BaseException) -> None:
    import logging  # here, because importing it costs as much as a third of Tidegate

    forget_frames(error)  # again, because some frames may still have been running when the work ended
    said = str(error)
    name = type(error).__name__
    logging.getLogger("tidegate").error(
        "the failure of %s was never looked at: %s", text, f"{name}: {said}" if said else name, exc_info=error
    )


def brief(error: BaseException | None) -> str:
    """Return an error as one line."""
    text = str(error)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def forget_frames(error: BaseException) -> None:
    """Clear the locals of the frames an error passed through, so that keeping it pins nothing (M7)."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        pending += (current.__cause__, current.__context__)
        trace = current.__traceback__
        while trace is not None:
            try:
                trace.tb_frame.clear()
            except RuntimeError:
                pass  # it is still running; its locals go when it ends, unless the error keeps it
            trace = trace.tb_next
