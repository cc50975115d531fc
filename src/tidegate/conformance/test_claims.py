"""Claims of the timepoints that submissions will signal."""

from __future__ import annotations

import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .threads import all_at_once
from .witnesses import failure_of

pytestmark = pytest.mark.rules("M6")


@pytest.mark.rules("M6", "M16")
def test_a_point_that_is_claimed_already_is_refused_at_the_call(device: tg.Device, queue: tg.Queue) -> None:
    gate, sem = tg.Semaphore(), tg.Semaphore(label="tide")
    first = queue.barrier(wait=gate.at(1), signal=sem.at(1))
    submitted = device.statistics().submitted
    with pytest.raises(tg.InvalidArgumentError, match="tide"):
        queue.barrier(signal=sem.at(1))
    assert device.statistics().submitted == submitted
    assert sem.value == 0
    gate.signal(1)
    first.wait(timeout=LIMIT)
    assert sem.query() == 1


@pytest.mark.rules("M6", "M3")
def test_a_promise_made_twice_is_refused_while_the_first_runs(queue: tg.Queue, latch: Latch) -> None:
    sem = tg.Semaphore()
    first = latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    with pytest.raises(tg.InvalidArgumentError):
        queue.barrier(signal=sem.at(1))
    latch.open()
    first.wait(timeout=LIMIT)
    assert sem.query() == 1


@pytest.mark.rules("M6", "M16")
def test_a_point_that_is_reached_already_is_refused_at_the_call(queue: tg.Queue) -> None:
    sem = tg.Semaphore(5, label="tide")
    for value in (0, 3, 5):
        with pytest.raises(tg.InvalidArgumentError, match="tide"):
            queue.barrier(signal=sem.at(value))
    assert (sem.value, sem.failure) == (5, None)
    queue.barrier(signal=sem.at(6)).wait(timeout=LIMIT)


@pytest.mark.rules("M6")
def test_a_refusal_withdraws_the_claims_made_before_it(queue: tg.Queue) -> None:
    fresh, taken = tg.Semaphore(), tg.Semaphore(1)
    with pytest.raises(tg.InvalidArgumentError):
        queue.barrier(signal=[fresh.at(1), taken.at(1)])
    queue.barrier(signal=fresh.at(1)).wait(timeout=LIMIT)
    assert fresh.query() == 1


@pytest.mark.rules("M6", "M38")
def test_of_threads_that_claim_the_same_points_exactly_one_succeeds(queue: tg.Queue, switch_often: None) -> None:
    gate, one, other = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    for value in range(1, 30):

        def claim(index: int, value: int = value) -> tg.Submission | None:
            points = [one.at(value), other.at(value)]
            try:
                return queue.barrier(wait=gate.at(value), signal=points if index % 2 else points[::-1])
            except tg.InvalidArgumentError:
                return None

        made = [work for work in all_at_once(4, claim) if work is not None]
        assert len(made) == 1
        gate.signal(value)
        made[0].wait(timeout=LIMIT)
    assert (one.query(), other.query()) == (29, 29)


@pytest.mark.rules("M6")
def test_a_lower_value_that_nobody_claimed_may_be_claimed_after_a_higher_one(queue: tg.Queue) -> None:
    sem, gate = tg.Semaphore(), tg.Semaphore()
    last = queue.barrier(wait=gate.at(2), signal=sem.at(2))
    first = queue.barrier(wait=gate.at(1), signal=sem.at(1))
    gate.signal(1)
    first.wait(timeout=LIMIT)
    assert sem.query() == 1
    gate.signal(2)
    last.wait(timeout=LIMIT)
    assert sem.query() == 2


@pytest.mark.rules("M6")
def test_a_signal_out_of_order_fails_the_semaphore_loudly(queue: tg.Queue) -> None:
    sem, gate, bystander = tg.Semaphore(label="tide"), tg.Semaphore(), tg.Semaphore()
    early = queue.barrier(wait=gate.at(1), signal=[sem.at(1), bystander.at(1)])
    queue.barrier(signal=sem.at(2)).wait(timeout=LIMIT)
    assert sem.query() == 2
    dependent = queue.barrier(wait=sem.at(3))
    gate.signal(1)
    cause = failure_of(dependent)
    assert sem.failure is cause
    assert isinstance(cause, tg.TidegateError)
    assert "tide" in str(cause)
    assert sem.value == 2
    sem.wait(2, timeout=0)
    bystander.wait(1, timeout=LIMIT)
    with pytest.raises((tg.SemaphoreFailedError, tg.DeadlineExceededError)):
        sem.wait(3, timeout=0)
    del early


@pytest.mark.rules("M6")
def test_a_host_signal_over_a_claimed_value_is_legal_and_the_claim_then_fails_loudly(
    queue: tg.Queue, latch: Latch
) -> None:
    sem = tg.Semaphore(label="tide")
    work = latch.block(queue, signal=sem.at(3))
    latch.wait_until_running()
    sem.signal(5)
    assert sem.query() == 5
    waiter = sem.at(6)
    latch.open()
    cause = failure_of(waiter)
    assert "tide" in str(cause)
    assert sem.value == 5
    sem.wait(5, timeout=0)
    del work


@pytest.mark.rules("M6", "M3")
def test_a_host_signal_below_a_claimed_value_disturbs_nothing(queue: tg.Queue) -> None:
    gate, sem = tg.Semaphore(), tg.Semaphore()
    work = queue.barrier(wait=gate.at(1), signal=sem.at(10))
    sem.signal(4)
    sem.signal(9)
    gate.signal(1)
    work.wait(timeout=LIMIT)
    assert sem.query() == 10
