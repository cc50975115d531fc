"""What the core knows of each thread: its trampoline, and whether it is a host-call worker.

The *trampoline* (M10). Deciding a timepoint sets waiters free: callbacks, sleeping threads, awaits, submissions. They
are never run under the lock and never from inside one another. Each thread has a queue of them; whoever finds the
queue not running runs it to its end, what is added meanwhile included, so that a chain of any length needs no stack.

Interrupts. An entry stays at the head of the queue while it fires and is removed afterwards; firing is idempotent. So
an exception that comes from nowhere (Ctrl-C) can be answered by handing the whole queue to the reaper: nothing is lost
and nothing fires twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from .background import reaper, runner
from .process import in_child

if TYPE_CHECKING:
    from .host_calls import HostCallPool

SHARE = 256
"""How many submissions one signal runs on its own thread, and..."""
SHARE_SECONDS = 0.001
"""...for how long, before the runner takes the rest (M10)."""


class Firing(Protocol):
    """Something that waits on the trampoline."""

    @property
    def is_work(self) -> bool:
        """Whether another thread may run it: submissions, but never a user's callback."""

    def fire(self) -> None:
        """Run. Idempotent; raises only what comes from outside (KeyboardInterrupt)."""


class ThreadState(threading.local):
    """This thread's trampoline and roles."""

    def __init__(self) -> None:
        self.queue: deque[Firing] = deque()
        self.running = False
        self.unlimited = False
        self.pool: HostCallPool | None = None
        self.host_call_device: Any = None


thread_state = ThreadState()


def drain() -> None:
    """Run this thread's trampoline, unless it runs already."""
    state = thread_state
    queue = state.queue
    if state.running or not queue:
        return
    try:
        state.running = True
        _run(queue, state.unlimited)
    except BaseException:
        hand_over(queue)
        raise
    finally:
        state.running = False


def _run(queue: deque[Firing], unlimited: bool) -> None:
    share = -1 if unlimited else SHARE
    deadline = 0.0
    while queue:
        firing = queue[0]
        if share >= 0 and firing.is_work:
            share -= 1
            if share == SHARE - 2:
                deadline = monotonic() + SHARE_SECONDS
            if share < 0 or (share % 16 == 0 and monotonic() > deadline):
                _delegate(queue)
                share = 0  # what is still to come goes the same way, one by one
                continue
        firing.fire()
        if queue and queue[0] is firing:  # it may have given the queue away, after an interrupt
            del queue[0]


def _delegate(queue: deque[Firing]) -> None:
    """Give the submissions in the queue to the runner; callbacks stay with their thread."""
    runner.ensure()
    given = list(queue)  # in one step: a finalizer or a signal handler may add to the queue at any call below
    runner.leave(run_unlimited, [firing for firing in given if firing.is_work])
    for firing in given:
        if firing.is_work:
            del queue[0]
        else:
            queue.rotate(-1)


def hand_over(queue: deque[Firing]) -> None:
    """After an interrupt: let the reaper finish what this thread began."""
    given = list(queue)
    if given:
        reaper.leave(run_unlimited, given)
    for firing in given:
        if queue and queue[0] is firing:  # a signal handler may add to the queue here, or run all of it
            del queue[0]


def run_unlimited(firings: Iterable[Firing]) -> None:
    """Fire on this background thread, without the limit of a signalling thread."""
    thread_state.unlimited = True
    thread_state.queue.extend(firings)
    drain()


def _renew_in_child() -> None:
    thread_state.queue.clear()
    thread_state.running = False
    thread_state.pool = None
    thread_state.host_call_device = None


in_child(_renew_in_child)
