"""A thread that runs Python all the time and so takes the GIL whenever it can."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy_thread() -> Iterator[None]:
    """Keep one thread busy for the time of the block."""
    running, stop = threading.Event(), False

    def spin() -> None:
        running.set()
        count = 0
        while not stop:
            count += 1

    thread = threading.Thread(target=spin, name="busy", daemon=True)
    thread.start()
    running.wait()
    try:
        yield
    finally:
        stop = True
        thread.join()
