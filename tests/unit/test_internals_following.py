"""Who waits for whom, and for nobody else: what closing and starving ask (M22, M35)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidegate as tg
from tidegate._core.following import dependents_locked, followers_locked
from tidegate._core.lock import core_lock
from tidegate._core.submission import Submission
from tidegate._core.thread_state import thread_state


@pytest.fixture
def queue() -> Iterator[tg.Queue]:
    with tg.open_device("cpu?workers=1") as device:
        yield device.queue()


def dependents(*producers: Submission) -> set[Submission]:
    with core_lock:
        return dependents_locked(producers)


def followers(*producers: Submission, among: set[Submission]) -> set[Submission]:
    with core_lock:
        return followers_locked(producers, among)


def test_they_are_found_by_signals_and_by_the_handle_and_callbacks_are_none(queue: tg.Queue) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    producer = queue.barrier(wait=gate.at(1), signal=done.at(1))
    by_signal = queue.barrier(wait=done.at(1))
    assert dependents(producer) == {by_signal}
    by_handle = queue.barrier(wait=producer)
    done.at(1).add_callback(lambda *_told: None)
    assert dependents(producer) == {by_signal, by_handle}
    assert dependents(by_signal) == set()
    assert followers(producer, among={by_signal}) == {by_signal}
    second = queue.barrier(wait=done.at(1))
    assert followers(producer, among={second}) == {second}
    producer.cancel()


def test_a_claim_covers_the_waits_up_to_its_value_and_no_others(queue: tg.Queue) -> None:
    gate, line = tg.Semaphore(), tg.Semaphore()
    waits = {value: queue.barrier(wait=line.at(value)) for value in (5, 3, 4, 2)}
    producer = queue.barrier(wait=gate.at(1), signal=line.at(4))
    later = queue.barrier(wait=gate.at(1), signal=line.at(5))
    assert dependents(producer) == {waits[2], waits[3], waits[4]}
    assert dependents(producer, later) == dependents(later, producer) == set(waits.values())
    producer.cancel()


def test_it_goes_on_along_chains_and_around_circles(queue: tg.Queue) -> None:
    gate, one, two = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    first = queue.barrier(wait=[gate.at(1), two.at(1)], signal=one.at(1))
    second = queue.barrier(wait=one.at(1), signal=two.at(1))
    third = queue.barrier(wait=second)
    assert dependents(first) == {first, second, third}
    assert dependents(third) == set()
    gate.fail(ValueError("over"))


def test_a_follower_waits_for_nothing_else(queue: tg.Queue) -> None:
    gate, other = tg.Semaphore(), tg.Semaphore()
    one, two = (queue.barrier(wait=gate.at(1)) for _ in range(2))
    both = queue.barrier(wait=[one, two])
    more = queue.barrier(wait=[both, other.at(1)])
    last = queue.barrier(wait=both)
    held = {both, more, last}
    assert followers(one, among=held) == set()
    assert followers(one, two, among=held) == {both, last}
    assert followers(one, two, among={last}) == set()
    assert dependents(one) == held
    gate.signal(1)
    other.signal(1)


def test_a_bucket_that_an_interrupt_left_behind_counts_for_nothing(queue: tg.Queue) -> None:
    gate, done, never = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    producer = queue.barrier(wait=gate.at(1), signal=done.at(1))
    waiter = queue.barrier(wait=[done.at(1), never.at(1)])
    with core_lock:
        waiter.due(done._state, None, thread_state.queue)  # as `collect_locked` does before it takes the bucket away
    assert followers(producer, among={waiter}) == set()
    waiter.cancel()
    producer.cancel()
