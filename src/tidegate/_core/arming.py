"""Asking devices to tell when work is over, because somebody has begun to listen.

Work that nobody listens to is retired when somebody next looks; only when a thread sleeps, a callback or an await is
registered, or held work depends on it, the device is asked to wake us at its epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .submission import Submission
    from .timeline import TimelineState


def arm(state: TimelineState) -> None:
    """Arm what is issued of the submissions that claim `state`. Not inside a core section."""
    for submission in tuple(state.claims.values()):
        arm_submission(submission)


def arm_submission(submission: Submission) -> None:
    """Arm one submission, if a device counts it."""
    timeline = submission.timeline
    if timeline is not None and not submission.armed:
        submission.armed = True
        timeline.arm(submission.epoch)
