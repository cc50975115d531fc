"""What the core knows of each thread: whether it is a host-call worker, and of which device the call is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .process import in_child

if TYPE_CHECKING:
    from .host_calls import HostCallPool


class ThreadState(threading.local):
    """This thread's roles."""

    def __init__(self) -> None:
        self.pool: HostCallPool | None = None
        self.host_call_device: Any = None


thread_state = ThreadState()


def _renew_in_child() -> None:
    thread_state.pool = None
    thread_state.host_call_device = None


in_child(_renew_in_child)
