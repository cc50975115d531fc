"""Callbacks: when they are called, what they may do, and how they are cancelled."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .witnesses import Recorder

pytestmark = pytest.mark.rules("M10")


@pytest.mark.rules("M10")
def test_a_callback_is_called_before_the_signal_returns_with_its_point_and_outcome() -> None:
    sem = tg.Semaphore()
    recorder = Recorder()
    point = sem.at(3)
    point.add_callback(recorder)
    sem.signal(2)
    assert recorder.calls == []
    sem.signal(7)
    assert recorder.calls == [(point, tg.Outcome.REACHED, None)]


@pytest.mark.rules("M10")
def test_a_callback_of_a_failure_gets_the_first_error_itself() -> None:
    sem = tg.Semaphore()
    recorder = Recorder()
    sem.at(3).add_callback(recorder)
    error = ValueError("broken")
    sem.fail(error)
    sem.fail(ValueError("later"))
    ((_, outcome, found),) = recorder.calls
    assert outcome is tg.Outcome.FAILED
    assert found is error


@pytest.mark.rules("M10")
def test_a_callback_on_what_is_decided_already_is_called_before_add_callback_returns() -> None:
    sem = tg.Semaphore(3)
    recorder = Recorder()
    sem.at(3).add_callback(recorder)
    assert recorder.outcomes == [tg.Outcome.REACHED]
    sem.fail(ValueError("broken"))
    sem.at(3).add_callback(recorder)
    sem.at(4).add_callback(recorder)
    assert recorder.outcomes == [tg.Outcome.REACHED, tg.Outcome.REACHED, tg.Outcome.FAILED]


@pytest.mark.rules("M4", "M10")
def test_a_callback_is_called_by_a_running_device_that_nobody_looks_at(queue: tg.Queue, latch: Latch) -> None:
    sem, called = tg.Semaphore(), threading.Event()
    latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    sem.at(1).add_callback(lambda *_: called.set())
    latch.open()
    assert called.wait(LIMIT)


@pytest.mark.rules("M10")
def test_one_signal_fires_the_callbacks_of_all_values_up_to_it_and_no_others() -> None:
    sem = tg.Semaphore()
    fired: list[int] = []
    for value in (5, 1, 3, 9, 1, 4):
        sem.at(value).add_callback(lambda point, outcome, error: fired.append(point.value))
    sem.signal(4)
    assert sorted(fired) == [1, 1, 3, 4]
    sem.signal(20)
    assert sorted(fired) == [1, 1, 3, 4, 5, 9]


@pytest.mark.rules("M10")
def test_a_callback_may_signal_the_semaphore_that_woke_it() -> None:
    sem = tg.Semaphore()
    recorder = Recorder()

    def forward(point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        sem.signal(2)

    sem.at(1).add_callback(forward)
    sem.at(2).add_callback(recorder)
    sem.signal(1)
    assert sem.value == 2
    assert recorder.outcomes == [tg.Outcome.REACHED]


@pytest.mark.rules("M10")
def test_nested_callbacks_come_after_the_current_one() -> None:
    first, second = tg.Semaphore(), tg.Semaphore()
    order: list[str] = []

    def outer(point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        order.append("outer begins")
        second.signal(1)
        order.append("outer ends")

    first.at(1).add_callback(outer)
    second.at(1).add_callback(lambda *_: order.append("inner"))
    first.signal(1)
    assert order == ["outer begins", "outer ends", "inner"]


@pytest.mark.rules("M10")
@pytest.mark.parametrize("length", [10_000])
def test_a_long_chain_of_callbacks_needs_no_recursion(length: int) -> None:
    chain = [tg.Semaphore() for _ in range(length)]
    for here, there in itertools.pairwise(chain):
        here.at(1).add_callback(lambda *_, there=there: there.signal(1))
    chain[0].signal(1)
    assert chain[-1].value == 1


@pytest.mark.rules("M10")
def test_a_callback_may_fail_another_semaphore_and_add_callbacks() -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    recorder = Recorder()
    error = ValueError("passed on")

    def pass_on(point: tg.Timepoint, outcome: tg.Outcome, cause: BaseException | None) -> None:
        other.at(1).add_callback(recorder)
        other.fail(error)

    one.at(1).add_callback(pass_on)
    one.signal(1)
    assert recorder.calls == [(other.at(1), tg.Outcome.FAILED, error)]


@pytest.mark.rules("M10", "M14")
def test_a_callback_may_submit(queue: tg.Queue) -> None:
    sem, done = tg.Semaphore(), tg.Semaphore()
    sem.at(1).add_callback(lambda *_: queue.barrier(signal=done.at(1)))
    sem.signal(1)
    done.wait(1, timeout=LIMIT)


@pytest.mark.rules("M10")
def test_inside_a_callback_an_unreached_wait_is_refused_and_a_poll_is_not() -> None:
    sem, other = tg.Semaphore(), tg.Semaphore(1)
    raised: list[type[BaseException] | None] = []

    def waits(point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        for timeout, value in ((None, 2), (1.0, 2), (0, 2), (None, 1)):
            try:
                other.wait(value, timeout)
            except tg.TidegateError as problem:
                raised.append(type(problem))
            else:
                raised.append(None)
        try:
            tg.wait_any([other.at(2)], timeout=1)
        except tg.TidegateError as problem:
            raised.append(type(problem))

    sem.at(1).add_callback(waits)
    sem.signal(1)
    refused, late = tg.FailedPreconditionError, tg.DeadlineExceededError
    assert raised == [refused, refused, late, None, refused]


@pytest.mark.rules("M10")
def test_what_a_callback_raises_goes_to_the_unraisable_hook_and_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[BaseException | None] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: caught.append(unraisable.exc_value))
    error = ValueError("from a callback")

    def broken(point: tg.Timepoint, outcome: tg.Outcome, cause: BaseException | None) -> None:
        raise error

    sem = tg.Semaphore()
    recorder = Recorder()
    sem.at(1).add_callback(recorder)
    sem.at(1).add_callback(broken)
    sem.at(1).add_callback(recorder)
    sem.signal(1)
    assert caught == [error]
    assert recorder.outcomes == [tg.Outcome.REACHED] * 2
    assert sem.failure is None


@pytest.mark.rules("M10")
def test_a_cancelled_callback_is_never_called_and_its_neighbours_are() -> None:
    sem = tg.Semaphore()
    cancelled, kept = Recorder(), Recorder()
    sem.at(1).add_callback(kept)
    subscription = sem.at(1).add_callback(cancelled)
    sem.at(1).add_callback(kept)
    assert subscription.cancel() is True
    subscription.cancel()
    sem.signal(1)
    assert cancelled.calls == []
    assert kept.outcomes == [tg.Outcome.REACHED] * 2


@pytest.mark.rules("M10")
def test_cancelling_after_the_call_says_false() -> None:
    sem = tg.Semaphore()
    recorder = Recorder()
    subscription = sem.at(1).add_callback(recorder)
    sem.signal(1)
    assert subscription.cancel() is False
    assert len(recorder.calls) == 1


@pytest.mark.rules("M10")
def test_a_callback_may_cancel_another_that_is_already_due() -> None:
    """True means never called, False means called: also when both were set free by the same signal."""
    sem = tg.Semaphore()
    second = Recorder()
    answers: list[bool] = []
    sem.at(1).add_callback(lambda *_: answers.append(subscription.cancel()))
    subscription = sem.at(1).add_callback(second)
    sem.signal(1)
    (cancelled,) = answers
    assert len(second.calls) == (0 if cancelled else 1)


@pytest.mark.rules("M10")
def test_a_callback_cannot_cancel_itself_while_it_runs() -> None:
    sem = tg.Semaphore()
    answers: list[bool] = []
    subscription = sem.at(1).add_callback(lambda *_: answers.append(subscription.cancel()))
    sem.signal(1)
    assert answers == [False]


@pytest.mark.rules("M10")
def test_a_callback_that_is_not_callable_is_a_type_error() -> None:
    callback: Any = "call me"
    sem = tg.Semaphore()
    with pytest.raises(TypeError):
        sem.at(1).add_callback(callback)
    sem.signal(1)
