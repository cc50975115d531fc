"""What a thread that looks or waits can do for the devices: see what is over, and small ready work (M34).

Devices register a `poll`; it makes a little progress on the calling thread and says whether it did. `look` is for one
timeline: it retires what the devices have finished of the work that is promised on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .lock import call_driver, interrupted_here
from .process import in_child

if TYPE_CHECKING:
    from .timeline import TimelineState

pollers: list[Callable[[], bool]] = []
in_child(pollers.clear)


def poll_devices() -> bool:
    """Let every open device make a little progress here. Returns whether any did."""
    done = False
    for poll in tuple(pollers):
        done = poll() or done
    return done


def look(state: TimelineState) -> None:
    """Retire what is over of the submissions that promise `state`."""
    if interrupted_here():
        return
    for timeline in {submission.timeline for submission in list(state.promises.values())}:
        assert timeline is not None, "only what a device counts is a promise"
        call_driver(timeline.advance)
