"""When a counting device is asked to tell that work is over: when somebody listens, and not otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate.testing import register_streams

LIMIT = 30.0


@pytest.fixture
def queue() -> Iterator[tg.Queue]:
    register_streams()
    with tg.open_device("streams") as device:
        yield device.queue()


@pytest.fixture
def block(queue: tg.Queue) -> Iterator[Callable[[tg.Timepoint], tg.Submission]]:
    """Makes work that runs until the end of the test."""
    running, over = threading.Event(), threading.Event()

    def wait(_workgroups: Any, _bindings: Any, _constants: Any) -> None:
        running.set()
        assert over.wait(LIMIT)

    kernel = tg.Kernel("blocked", cpu=wait, bindings=0, constants=[], workgroup=(1, 1, 1))
    function = queue.device.load(kernel)["blocked"]

    def block(signal: tg.Timepoint) -> tg.Submission:
        work = queue.dispatch(function, (1, 1, 1), signal=signal)
        assert running.wait(LIMIT)
        return work

    yield block
    over.set()


def test_work_that_nobody_listens_to_is_not_armed(queue: tg.Queue, block: Callable[..., tg.Submission]) -> None:
    sem = tg.Semaphore()
    running = block(sem.at(1))
    links = [queue.barrier(wait=sem.at(value), signal=sem.at(value + 1)) for value in range(1, 10)]
    assert [link._promised != () for link in links] == [True] * 9, "a link of the chain is still held"
    assert not any(work.armed for work in (running, *links))


def test_of_a_chain_the_link_is_armed_that_somebody_listens_to(
    queue: tg.Queue, block: Callable[..., tg.Submission]
) -> None:
    sem = tg.Semaphore()
    running = block(sem.at(1))
    links = [queue.barrier(wait=sem.at(value), signal=sem.at(value + 1)) for value in range(1, 4)]
    subscription = sem.at(3).add_callback(lambda *_: None)
    assert [work.armed for work in (running, *links)] == [False, False, True, False]
    assert subscription.cancel()


def test_all_that_may_fail_a_semaphore_is_armed_for_those_who_wait_for_what_nobody_promised(
    queue: tg.Queue, block: Callable[..., tg.Submission]
) -> None:
    sem = tg.Semaphore()
    running = block(sem.at(1))
    before = queue.barrier(wait=sem.at(1), signal=sem.at(2))
    subscription = sem.at(9).add_callback(lambda *_: None)
    after = queue.barrier(wait=sem.at(2), signal=sem.at(3))
    assert all(work.armed for work in (running, before, after))
    assert subscription.cancel()
