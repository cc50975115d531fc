"""Asking devices to tell when work is over, because somebody has begun to listen.

Work that nobody listens to is retired when somebody next looks; only when a thread sleeps, a callback or an await is
registered, or held work depends on it, the device is asked to wake us at its epoch.

Tables that others may change are read here, as wherever no section is entered, by way of `list(table)` and `get`. Not
by `copy` or `tuple`: these allocate when they have begun to look at the table, so the collector may run there, and a
finalizer may change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .background import reaper
from .lock import call_driver, inside

if TYPE_CHECKING:
    from .submission import Submission
    from .timeline import TimelineState


def promise_for(state: TimelineState, value: int) -> Submission | None:
    """Return the issued submission that will take `state` to `value`: the one that claims it, else the next above."""
    promises = state.promises
    found = promises.get(value)
    if found is None and promises:
        above = min([claim for claim in list(promises) if claim > value], default=None)
        found = None if above is None else promises.get(above)
    return found


def arm(state: TimelineState, value: int) -> None:
    """Have a device tell when `state` is taken to `value`, if one will. Not inside a core section.

    Where nobody has promised that yet, what is promised below may still fail it.
    """
    submission = promise_for(state, value)
    for each in [submission] if submission is not None else list(state.promises.values()):
        arm_submission(each)


def arm_submission(submission: Submission) -> None:
    """Arm one submission, if a device counts it."""
    timeline = submission.timeline
    if timeline is None or submission.armed:
        return
    if inside.driver:
        reaper.leave(arm_submission, submission)
        return
    call_driver(timeline.arm, submission.epoch)
    submission.armed = True  # not before: what an interrupt cut short must be asked for again
