"""Semaphores between threads: blocked waits, races, timeouts, many waiters, cancellation under fire."""

from __future__ import annotations

import gc
import itertools
import random
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import tidegate as tg

from .interrupts import Striker
from .latches import LIMIT
from .threads import Background, all_at_once, background

pytestmark = pytest.mark.rules("M4", "M38")


@pytest.mark.rules("M4", "M5")
def test_a_wait_for_a_smaller_value_is_woken_by_a_larger_signal() -> None:
    sem = tg.Semaphore()
    waiter = background(sem.wait, 3, LIMIT)
    sem.signal(10)
    waiter.result()


@pytest.mark.rules("M4", "M5")
def test_a_wait_is_not_woken_by_a_smaller_value() -> None:
    sem = tg.Semaphore()
    seen: list[int] = []

    def wait() -> None:
        sem.wait(3, LIMIT)
        seen.append(sem.value)

    waiter = background(wait)
    sem.signal(1)
    sem.signal(2)
    sem.signal(3)
    waiter.result()
    assert seen == [3]


@pytest.mark.rules("M5", "M9")
def test_wait_any_is_woken_by_the_second_point_signalled_later() -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    points = [one.at(1), other.at(1)]
    waiter = background(tg.wait_any, points, LIMIT)
    other.signal(1)
    assert waiter.result() is points[1]
    assert one.value == 0


@pytest.mark.rules("M5", "M9")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_wait_all_is_woken_by_the_last_point_in_any_order(order: tuple[int, ...]) -> None:
    sems = [tg.Semaphore() for _ in range(3)]
    waiter = background(tg.wait_all, [sem.at(2) for sem in sems], LIMIT)
    for index in order[:-1]:
        sems[index].signal(2)
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_all([sem.at(2) for sem in sems], timeout=0)
    assert waiter.running
    sems[order[-1]].signal(5)
    waiter.result()


@pytest.mark.parametrize("rounds", [200])
def test_two_threads_play_ping_pong(rounds: int) -> None:
    ping, pong = tg.Semaphore(), tg.Semaphore()

    def answer() -> None:
        for value in range(1, rounds + 1):
            ping.wait(value, LIMIT)
            pong.signal(value)

    other = background(answer)
    for value in range(1, rounds + 1):
        ping.signal(value)
        pong.wait(value, LIMIT)
    other.result()
    assert (ping.value, pong.value) == (rounds, rounds)


def test_two_threads_play_ping_pong_on_one_semaphore() -> None:
    sem = tg.Semaphore()

    def odd() -> None:
        for value in range(1, 200, 2):
            sem.wait(value - 1, LIMIT)
            sem.signal(value)

    other = background(odd)
    for value in range(2, 201, 2):
        sem.wait(value - 1, LIMIT)
        sem.signal(value)
    other.result()
    assert sem.value == 200


def test_the_same_value_may_be_waited_for_twice() -> None:
    sem = tg.Semaphore()
    waiters = [background(sem.wait, 1, LIMIT) for _ in range(2)]
    sem.signal(1)
    for waiter in waiters:
        waiter.result()
    sem.wait(1, timeout=0)


@pytest.mark.rules("M9")
def test_two_threads_may_wait_for_the_same_pair() -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    pair = [one.at(1), other.at(1)]
    everything = [background(tg.wait_all, pair, LIMIT) for _ in range(2)]
    anything = [background(tg.wait_any, pair, LIMIT) for _ in range(2)]
    one.signal(1)
    assert [waiter.result() for waiter in anything] == [pair[0]] * 2
    other.signal(1)
    for waiter in everything:
        waiter.result()


@pytest.mark.rules("M8")
@pytest.mark.parametrize("timeout", [0, 0.001, 0.05])
def test_every_kind_of_timeout_leaves_the_value_alone_and_a_later_wait_succeeds(timeout: float) -> None:
    sem = tg.Semaphore(4)
    assert isinstance(background(sem.wait, 5, timeout).error(), tg.DeadlineExceededError)
    assert sem.value == 4
    waiter = background(sem.wait, 5, LIMIT)
    sem.signal(5)
    waiter.result()


@pytest.mark.rules("M8")
def test_a_wait_without_a_limit_ends_with_its_signal() -> None:
    sem = tg.Semaphore()
    waiters = [background(sem.wait, 1, None), background(sem.wait, 1, float("inf"))]
    sem.signal(1)
    for waiter in waiters:
        waiter.result()


@pytest.mark.rules("M7")
def test_a_blocked_waiter_is_woken_by_failure_with_its_cause() -> None:
    sem, other = tg.Semaphore(), tg.Semaphore()
    waiters: list[Background[Any]] = [
        background(sem.wait, 1, LIMIT),
        background(tg.wait_all, [sem.at(1), other.at(1)], LIMIT),
        background(tg.wait_any, [sem.at(1), other.at(1)], LIMIT),
    ]
    error = ValueError("broken")
    sem.fail(error)
    for waiter in waiters:
        raised = waiter.error()
        assert isinstance(raised, tg.SemaphoreFailedError)
        assert raised.__cause__ is error
    assert other.failure is None
    other.signal(1)


@pytest.mark.rules("M7")
def test_the_failure_of_one_semaphore_leaves_waiters_of_others_alone() -> None:
    broken, sound = tg.Semaphore(), tg.Semaphore()
    waiter = background(sound.wait, 1, LIMIT)
    broken.fail(ValueError("broken"))
    assert waiter.running
    sound.signal(1)
    waiter.result()


@pytest.mark.rules("M4", "M10")
@pytest.mark.parametrize("count", [10_000])
def test_ten_thousand_waiters_on_one_semaphore_are_each_told_once(count: int) -> None:
    sem = tg.Semaphore()
    told = [0] * count

    def tell(index: int) -> Callable[[tg.Timepoint, tg.Outcome, BaseException | None], None]:
        def callback(point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
            told[index] += 1

        return callback

    for index in range(count):
        sem.at(1 + index % 100).add_callback(tell(index))
    sem.signal(50)
    assert sum(told) == count // 2
    sem.signal(100)
    assert told == [1] * count


@pytest.mark.slow
@pytest.mark.parametrize("count", [100])
def test_a_hundred_threads_wait_for_one_signal(count: int) -> None:
    sem = tg.Semaphore()
    waiters = [background(sem.wait, 1 + index % 3, LIMIT) for index in range(count)]
    sem.signal(3)
    for waiter in waiters:
        waiter.result()


@pytest.mark.rules("M6", "M38")
def test_of_threads_that_signal_the_same_value_exactly_one_succeeds() -> None:
    sem = tg.Semaphore()
    for value in range(1, 20):

        def attempt(index: int, value: int = value) -> bool:
            try:
                sem.signal(value)
            except tg.InvalidArgumentError:
                return False
            return True

        assert sum(all_at_once(4, attempt)) == 1
        assert sem.value == value


@pytest.mark.rules("M7", "M38")
def test_of_threads_that_fail_a_semaphore_exactly_one_wins_and_all_see_the_same() -> None:
    sem = tg.Semaphore()
    errors = [ValueError(str(index)) for index in range(8)]

    def fail(index: int) -> BaseException | None:
        sem.fail(errors[index])
        return sem.failure

    seen = all_at_once(8, fail)
    assert all(error is seen[0] for error in seen)
    assert seen[0] in errors


@pytest.mark.rules("M4", "M38")
@pytest.mark.slow
def test_no_wait_misses_a_signal_that_races_with_it(switch_often: None) -> None:
    for _ in range(300):
        sem = tg.Semaphore()
        fired: list[int] = []

        def wait_or_signal(index: int, sem: tg.Semaphore = sem, fired: list[int] = fired) -> None:
            if index == 0:
                sem.signal(1)
            elif index == 1:
                sem.wait(1, LIMIT)
            else:
                sem.at(1).add_callback(lambda *_: fired.append(1))

        all_at_once(3, wait_or_signal)
        assert fired == [1]


@pytest.mark.rules("M10", "M38")
@pytest.mark.slow
def test_cancelling_races_with_the_signal_and_its_answer_is_true(switch_often: None) -> None:
    for _ in range(300):
        sem = tg.Semaphore()
        called: list[int] = []
        neighbour: list[int] = []
        subscription = sem.at(1).add_callback(lambda *_, called=called: called.append(1))
        sem.at(1).add_callback(lambda *_, neighbour=neighbour: neighbour.append(1))

        def cancel_or_signal(
            index: int, sem: tg.Semaphore = sem, subscription: tg.Subscription = subscription
        ) -> bool | None:
            if index:
                return subscription.cancel()
            sem.signal(1)
            return None

        _, cancelled = all_at_once(2, cancel_or_signal)
        assert called == ([] if cancelled else [1])
        assert neighbour == [1]


@pytest.mark.rules("M10")
def test_a_callback_runs_on_the_thread_that_decided() -> None:
    sem = tg.Semaphore()
    threads: list[int] = []
    for value in (1, 2):
        sem.at(value).add_callback(lambda *_: threads.append(threading.get_ident()))

    def signalled() -> int:
        sem.signal(1)
        return threading.get_ident()

    other = background(signalled).result()
    sem.fail(ValueError("decided here"))
    assert threads == [other, threading.get_ident()]


@pytest.mark.rules("M10")
def test_while_a_callback_runs_other_threads_signal_and_wait_freely() -> None:
    """No lock is held around a callback."""
    sem, other = tg.Semaphore(), tg.Semaphore()
    inside, leave = threading.Event(), threading.Event()
    left: list[bool] = []

    def blocked(point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        inside.set()
        left.append(leave.wait(LIMIT))

    sem.at(1).add_callback(blocked)
    signaller = background(sem.signal, 1)
    try:
        assert inside.wait(LIMIT)
        sem.wait(1, timeout=LIMIT)
        sem.signal(2)
        other.signal(1)
        other.at(1).add_callback(lambda *_: None)
        assert sem.value == 2
    finally:
        leave.set()
    signaller.result()
    assert left == [True], "somebody waited for the callback"


@pytest.mark.rules("M10")
def test_callbacks_of_different_semaphores_may_signal_each_other_from_two_threads(switch_often: None) -> None:
    for _ in range(100):
        one, other = tg.Semaphore(), tg.Semaphore()
        one.at(1).add_callback(lambda *_, other=other: other.signal(other.value + 5))
        other.at(1).add_callback(lambda *_, one=one: one.signal(one.value + 5))
        sems = [one, other]

        def signal(index: int, sems: list[tg.Semaphore] = sems) -> None:
            try:
                sems[index].signal(1)
            except tg.InvalidArgumentError:
                pass  # the other thread's callback was faster

        all_at_once(2, signal)
        assert one.value >= 1
        assert other.value >= 1


@pytest.mark.rules("M12")
def test_a_thread_blocked_in_a_wait_keeps_its_semaphore() -> None:
    sem = tg.Semaphore()
    waiter = background(sem.at(1).wait, LIMIT)
    signaller: Callable[[int], None] = sem.signal
    del sem
    gc.collect()
    assert waiter.running
    signaller(1)
    waiter.result()


@pytest.mark.rules("M4")
def test_the_payload_seen_by_readers_never_falls(switch_often: None) -> None:
    sem = tg.Semaphore()
    last = 2000

    def read(index: int) -> bool:
        if index == 0:
            for value in range(1, last + 1):
                sem.signal(value)
            return True
        before = 0
        while before < last:
            now = sem.value
            if now < before:
                return False
            before = now
        return True

    assert all(all_at_once(3, read))


@pytest.mark.rules("M4", "M38")
@pytest.mark.slow
def test_random_signals_waits_and_cancels_of_many_threads_lose_nothing(switch_often: None) -> None:
    sem = tg.Semaphore()
    last = 400
    fired: list[int] = []
    cancelled: list[int] = []

    def work(index: int) -> None:
        chance = random.Random(index)
        if index == 0:
            for value in range(1, last + 1):
                sem.signal(value)
            return
        for _ in range(100):
            value = chance.randrange(1, last + 1)
            subscription = sem.at(value).add_callback(lambda *_: fired.append(1))
            if chance.random() < 0.5 and subscription.cancel():
                cancelled.append(1)
            if chance.random() < 0.1:
                sem.wait(value, LIMIT)

    all_at_once(5, work)
    assert len(fired) + len(cancelled) == 400


@pytest.mark.rules("M8", "M40")
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
@pytest.mark.parametrize("timeout", [None, LIMIT])
@pytest.mark.parametrize("way", ["semaphore", "all", "any", "submission"])
def test_a_blocked_wait_answers_ctrl_c(queue: tg.Queue, way: str, timeout: float | None) -> None:
    sem, other = tg.Semaphore(), tg.Semaphore()
    held = queue.barrier(wait=sem.at(1))
    waits: dict[str, Callable[[], object]] = {
        "semaphore": lambda: sem.wait(1, timeout),
        "all": lambda: tg.wait_all([sem.at(1), other.at(1)], timeout),
        "any": lambda: tg.wait_any([sem.at(1), other.at(1)], timeout),
        "submission": lambda: held.wait(timeout),
    }
    strikes = itertools.count()

    def strike(frame: FrameType | None) -> None:
        # Not the first one inside: a wait that sleeps again after a signal has to answer as well.
        if next(strikes) == 20:
            raise KeyboardInterrupt

    with Striker(signal.SIGINT, strike), pytest.raises(KeyboardInterrupt):
        waits[way]()
    assert sem.value == 0
    sem.signal(1)
    held.wait(timeout=LIMIT)


@pytest.mark.rules("M12")
@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs user signals")
def test_a_signal_handler_may_signal_and_fail(switch_often: None) -> None:
    """Also when it strikes a thread that is inside Tidegate: no lock is taken twice by one thread."""
    signalled: list[tg.Semaphore] = []
    failed: list[tg.Semaphore] = []

    def handler(frame: FrameType | None) -> None:
        if len(signalled) < 100:
            signalled.append(tg.Semaphore())
            signalled[-1].signal(1)
            failed.append(tg.Semaphore())
            failed[-1].fail(ValueError("from a handler"))

    with Striker(signal.SIGUSR1, handler):
        for _ in range(20_000):
            sem = tg.Semaphore()
            sem.at(1).add_callback(lambda *_: None)
            sem.signal(1)
            sem.at(2).add_callback(lambda *_: None).cancel()
            if len(signalled) >= 100:
                break
    for sem in signalled:
        sem.wait(1, timeout=LIMIT)
    for sem in failed:
        with pytest.raises(tg.SemaphoreFailedError):
            sem.wait(1, timeout=LIMIT)


def test_a_semaphore_may_be_made_used_and_dropped_by_different_threads() -> None:
    sems = all_at_once(4, lambda index: tg.Semaphore(index))
    waiters = [background(sem.wait, 10, LIMIT) for sem in sems]
    all_at_once(4, lambda index: sems[index].signal(10))
    for waiter in waiters:
        waiter.result()
