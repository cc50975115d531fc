"""Finalizers on threads that have not begun yet.

A thread that is started allocates before it says that it has begun, so the collector may run on it, and a finalizer
there may use Tidegate. Whoever starts the thread waits for it meanwhile: it must have no lock that the finalizer may
need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .threads import background

pytestmark = pytest.mark.rules("M10", "M12", "M40")

LARGE = 2 << 20
"""More than any driver copies on the thread that submits."""

Act = Callable[[], object]


class Beginning:
    """Calls a function, once, on the next thread that begins, before it has said so."""

    def __init__(self) -> None:
        self._acts: list[Act] = []

    def strike(self, act: Act) -> None:
        """Have `act` called."""
        self._acts.append(act)

    def come(self) -> None:
        """A thread begins."""
        try:
            act = self._acts.pop()
        except IndexError:
            return
        act()


@pytest.fixture
def beginning(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beginning]:
    found = Beginning()
    real = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin(thread: threading.Thread) -> None:
        if not thread.name.startswith("simulated"):  # that one stands for C code, on which no finalizer runs
            found.come()
        real(thread)

    monkeypatch.setattr(threading.Thread, "_bootstrap_inner", begin)
    yield found
    found._acts.clear()


@pytest.mark.needs("latch")
def test_a_callback_registered_on_a_starting_thread_is_called_and_holds_nobody_up(
    queue: tg.Queue, latch: Latch, beginning: Beginning
) -> None:
    done, told, told_too = tg.Semaphore(label="done"), threading.Event(), threading.Event()
    struck: list[bool] = []

    def act() -> None:
        struck.append(True)
        done.at(1).add_callback(lambda *_: told_too.set())

    def listen() -> None:
        beginning.strike(act)
        done.at(1).add_callback(lambda *_: told.set())  # the first that is armed: drivers have a thread for that

    latch.block(queue, signal=done.at(1))
    latch.wait_until_running()
    background(listen).result(LIMIT)
    latch.open()
    assert told.wait(LIMIT)
    assert not struck or told_too.wait(LIMIT)


def test_a_host_call_submitted_on_a_starting_thread_runs(queue: tg.Queue, beginning: Beginning) -> None:
    submitted: list[tg.Submission] = []

    def call() -> tg.Submission:
        beginning.strike(lambda: submitted.append(queue.host_call(lambda: "second")))
        return queue.host_call(lambda: "first")

    assert background(call).result(LIMIT).result(LIMIT) == "first"
    assert [one.result(LIMIT) for one in submitted] in ([], ["second"])


@pytest.mark.needs("work")
def test_a_large_upload_submitted_on_a_starting_thread_is_done(
    device: tg.Device, queue: tg.Queue, beginning: Beginning
) -> None:
    first, second = device.allocate(LARGE), device.allocate(LARGE)
    submitted: list[tg.Submission] = []

    def upload() -> tg.Submission:
        beginning.strike(lambda: submitted.append(queue.upload(np.full(LARGE, 2, np.uint8), second)))
        return queue.upload(np.full(LARGE, 1, np.uint8), first)

    background(upload).result(LIMIT).wait(LIMIT)
    assert set(first.read(timeout=LIMIT)) == {1}
    for one in submitted:
        one.wait(LIMIT)
        assert set(second.read(timeout=LIMIT)) == {2}
