"""A census of Tidegate's objects, of threads and of memory."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidegate as tg

LIMIT = 30.0

# What chance explains: a submission that retires just now, a worker that a pool added, an entry of a small cache.
SLACK = 20


def objects() -> Counter[str]:
    """How many living objects of Tidegate's own types there are, by type."""
    gc.collect()
    return Counter(
        f"{type(thing).__module__}.{type(thing).__qualname__}"
        for thing in gc.get_objects()
        if str(type(thing).__module__).partition(".")[0] == "tidegate"
    )


def resident_bytes() -> int | None:
    """The memory of this process, where the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGESIZE")


def let_the_reaper_catch_up() -> None:
    """Finalizers leave notes, which are taken in order: a note of our own tells that those before it are done."""
    done = threading.Event()
    semaphore = tg.Semaphore()
    semaphore.at(1).add_callback(lambda *_: done.set())
    del semaphore
    gc.collect()
    assert done.wait(LIMIT)


class Census:
    """Counts before, counts after, and tells what has grown."""

    def __init__(self) -> None:
        self.take()

    def take(self) -> None:
        """Count now; later comparisons are with this."""
        let_the_reaper_catch_up()
        self._objects = objects()
        self._threads = threading.active_count()

    def grown(self) -> dict[str, int]:
        """What there is more of than chance explains."""
        now = objects()
        now["threads"] = threading.active_count()
        before = self._objects | Counter(threads=self._threads)
        return {name: count - before[name] for name, count in now.items() if count - before[name] > SLACK}

    def check(self, patience: int = 100) -> None:
        """Fail if something has grown; what other threads are about to drop gets the time to be dropped."""
        for _ in range(patience):
            let_the_reaper_catch_up()
            if not self.grown():
                return
        assert self.grown() == {}

    def of(self, work: Callable[[int], object], rounds: int, warm_up: int = 50, patience: int = 100) -> None:
        """Fail if many rounds of some work leave more behind than a few do."""
        work(warm_up)
        self.take()
        work(rounds)
        self.check(patience)


@pytest.fixture
def census() -> Iterator[Census]:
    """A census; the test as a whole, its fixtures included, must leave nothing behind either."""
    made = Census()
    outer = Census()
    yield made
    outer.check()
