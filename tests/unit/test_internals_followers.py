"""Work that goes down on a promise instead of waiting for it, and work that is held after all (M15, M17)."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from tidegate._core import issuing
from tidegate._core.lock import core_lock
from tidegate._core.submission import HELD, ISSUED, READY
from tidegate.conformance.threads import background

from .hand_driver import LIMIT, Bench, catch_up, open_by_hand


def decide(bench: Bench, semaphore: tg.Semaphore, how: str, problem: Exception) -> None:
    """Have another thread decide what waits for the first work of a bench, or not, while it is issued; only once."""
    bench.hand.before_issue = None
    if how == "reached":
        bench.one.over(1, wake=True)
    elif how == "failed":
        background(semaphore.fail, problem).result()


# At the call -------------------------------------------------------------------------------------------------------


def test_work_that_waits_for_issued_work_of_its_device_goes_down_on_the_promise(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    first = bench.work(signal=semaphore.at(1))
    follower = bench.work(bench.other, wait=semaphore.at(1), signal=semaphore.at(2))
    assert follower._stage == ISSUED
    assert bench.waits(follower) == [(bench.one, 1)]
    assert follower._promised == ((semaphore._state, 1, first),)
    assert follower._pending is None
    assert semaphore._state.waiters == {}
    assert bench.device._held == {}
    bench.two.over(1)
    bench.one.over(1)
    assert semaphore.value == 2
    assert follower._promised == ()


def test_several_waits_on_one_native_timeline_become_the_last_of_them(bench: Bench) -> None:
    semaphores = [tg.Semaphore() for _ in range(3)]
    for semaphore in semaphores[:2]:
        bench.work(signal=semaphore.at(1))
    bench.work(bench.other, signal=semaphores[2].at(1))
    for order in (semaphores, semaphores[::-1]):
        follower = bench.work(wait=[semaphore.at(1) for semaphore in order])
        assert dict(bench.waits(follower)) == {bench.one: 2, bench.two: 1}


def test_a_wait_for_what_is_not_issued_keeps_it_held_and_arms_what_is(bench: Bench) -> None:
    promised, free = tg.Semaphore(), tg.Semaphore()
    bench.work(signal=promised.at(1))
    held = bench.work(wait=[promised.at(1), free.at(1)])
    assert (held._stage, bench.times(held), bench.one.armed) == (HELD, 0, [1])
    free.signal(1)
    assert (held._stage, bench.times(held)) == (HELD, 0)
    bench.one.over(1, wake=True)
    assert (held._stage, bench.waits(held)) == (ISSUED, [])


def test_work_of_another_device_is_not_followed_but_armed(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    device, hand = open_by_hand("second")
    held = device.queue().fill(device.allocate(4), 0, wait=semaphore.at(1))
    assert (held._stage, hand.asked, bench.one.armed) == (HELD, [], [1])
    bench.one.over(1, wake=True)
    assert held._stage == ISSUED
    hand.one.over(1)
    device.close(LIMIT)


def test_a_driver_without_promises_is_never_asked_to_follow() -> None:
    device, hand = open_by_hand()
    hand.promises = False
    buffer, semaphore = device.allocate(4), tg.Semaphore()
    early = device.queue().fill(buffer, 0, wait=semaphore.at(1))
    device.queue().fill(buffer, 0, signal=semaphore.at(1))
    late = device.queue().fill(buffer, 0, wait=semaphore.at(1))
    assert (early._stage, late._stage, len(hand.asked)) == (HELD, HELD, 1)
    assert hand.one.armed == [1]
    hand.one.over(1, wake=True)
    assert (early._stage, late._stage) == (ISSUED, ISSUED)
    hand.one.over(3)
    device.close(LIMIT)


def test_a_host_call_never_goes_down_on_a_promise(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    early = bench.queue.host_call(int, wait=semaphore.at(1))
    bench.work(signal=semaphore.at(1))
    late = bench.queue.host_call(int, wait=semaphore.at(1))
    assert (early._stage, late._stage) == (HELD, HELD)
    bench.one.over(1, wake=True)
    tg.wait_all([early, late], LIMIT)


def test_a_driver_that_will_not_follow_leaves_it_held_until_the_producer_is_over(bench: Bench) -> None:
    bench.hand.follows = False
    semaphore = tg.Semaphore()
    producer = bench.work(signal=semaphore.at(1))
    held = bench.work(wait=semaphore.at(1))
    assert (held._stage, held._promised, held._queued, bench.times(held)) == (HELD, (), False, 1)
    assert held not in bench.device._issued
    assert bench.device.statistics().held == 1
    assert bench.one.armed == [1]
    bench.one.over(1, wake=True)
    assert producer.done
    assert (held._stage, bench.waits(held)) == (ISSUED, [])


def test_a_refused_follower_may_be_cancelled(bench: Bench) -> None:
    bench.hand.follows = False
    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    held = bench.work(wait=semaphore.at(1))
    assert held.cancel()
    assert isinstance(held.error, tg.AbortedError)


def test_what_is_all_promised_at_the_call_never_stands_in_line(bench: Bench) -> None:
    reached, one, two = tg.Semaphore(1), tg.Semaphore(), tg.Semaphore()
    producers = [bench.work(signal=one.at(1)), bench.work(bench.other, signal=two.at(1))]
    follower = bench.work(wait=[reached.at(1), one.at(1), two.at(1)])
    assert follower._stage == ISSUED
    assert [producer for _, _, producer in follower._promised] == producers
    assert (follower._pending, one._state.waiters, two._state.waiters, bench.device._held) == (None, {}, {}, {})
    assert dict(bench.waits(follower)) == {bench.one: 1, bench.two: 1}
    alone = bench.work(wait=one.at(1))
    assert bench.waits(alone) == [(bench.one, 1)]
    ready = bench.work(wait=reached.at(1))
    assert (ready._promised, bench.waits(ready)) == ((), [])


@pytest.mark.parametrize("meanwhile", ["nothing", "reached", "failed"])
def test_where_the_driver_would_rather_not_it_is_held_after_all(bench: Bench, meanwhile: str) -> None:
    bench.hand.follows = False
    semaphore, problem = tg.Semaphore(), ValueError()
    bench.work(signal=semaphore.at(1))

    bench.hand.before_issue = lambda _ticket: decide(bench, semaphore, meanwhile, problem)
    follower = bench.work(wait=semaphore.at(1))
    assert follower._promised == ()
    if meanwhile == "nothing":
        assert (follower._stage, follower._queued, list(bench.device._held)) == (HELD, False, [id(follower)])
        assert follower not in bench.device._issued
        assert bench.one.armed == [1]
        assert follower.cancel()
    elif meanwhile == "reached":
        assert (follower._stage, bench.times(follower), bench.waits(follower)) == (ISSUED, 2, [])
        assert follower._queued
    else:
        assert (follower.done, follower.error, bench.times(follower)) == (True, problem, 1)


# When the producer is issued ---------------------------------------------------------------------------------------


def test_those_who_wait_are_offered_to_follow_when_their_producer_is_issued(bench: Bench) -> None:
    gate, semaphore = tg.Semaphore(), tg.Semaphore()
    exact = bench.work(wait=semaphore.at(4))
    below = bench.work(wait=semaphore.at(3))
    above = bench.work(wait=semaphore.at(5))
    elsewhere = bench.work(wait=[semaphore.at(4), gate.at(1)])
    producer = bench.work(signal=semaphore.at(4))
    assert [work._stage for work in (exact, below, above, elsewhere)] == [ISSUED, ISSUED, HELD, HELD]
    assert bench.times(above) == bench.times(elsewhere) == 0
    assert exact._promised == ((semaphore._state, 4, producer),)
    assert below._promised == ((semaphore._state, 3, producer),)
    gate.signal(1)
    above.cancel()


def test_those_who_wait_for_the_submission_itself_are_offered_too(bench: Bench) -> None:
    gate = tg.Semaphore()
    producer = bench.work(wait=gate.at(1))
    follower = bench.work(bench.other, wait=producer)
    assert follower._stage == HELD
    gate.signal(1)
    assert follower._stage == ISSUED
    assert bench.waits(follower) == [(bench.one, 1)]


def test_a_chain_given_in_reverse_goes_down_whole_when_its_head_does(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    chain = [bench.work(wait=semaphore.at(value), signal=semaphore.at(value + 1)) for value in range(20, 0, -1)]
    assert {work._stage for work in chain} == {HELD}
    head = bench.work(signal=semaphore.at(1))
    catch_up()
    assert {work._stage for work in (head, *chain)} == {ISSUED}
    bench.one.over(21)
    assert semaphore.value == 21


@pytest.mark.parametrize("meanwhile", ["nothing", "reached", "failed"])
def test_one_that_is_offered_to_follow_and_refused_stays_held_unless_it_was_decided(
    bench: Bench, meanwhile: str
) -> None:
    bench.hand.follows = False
    semaphore, problem = tg.Semaphore(), ValueError()
    follower = bench.work(wait=semaphore.at(1))

    def look(ticket: Any) -> None:
        if ticket is follower:
            assert follower._queued
            decide(bench, semaphore, meanwhile, problem)

    bench.hand.before_issue = look
    bench.work(signal=semaphore.at(1))
    assert follower._promised == ()
    if meanwhile == "nothing":
        assert (follower._stage, follower._queued, bench.times(follower)) == (HELD, False, 1)
        assert follower not in bench.device._issued
        assert bench.one.armed == [1]
        bench.one.over(1, wake=True)
        assert (follower._stage, bench.times(follower)) == (ISSUED, 2)
    elif meanwhile == "reached":
        assert (follower._stage, follower._queued, bench.times(follower)) == (ISSUED, True, 2)
    else:
        assert (follower.done, follower.error, bench.times(follower)) == (True, problem, 1)


def test_one_that_is_refused_when_offered_may_be_cancelled(bench: Bench) -> None:
    bench.hand.follows = False
    semaphore = tg.Semaphore()
    follower = bench.work(wait=semaphore.at(1))
    bench.work(signal=semaphore.at(1))
    assert issuing._try_promises(follower) is False
    assert follower.cancel()


def test_who_else_waits_where_a_chain_link_stands_itself(bench: Bench) -> None:
    gate = tg.Semaphore()
    link, other = bench.work(wait=gate.at(1)), bench.work(wait=gate.at(1))
    state = gate._state
    with core_lock:
        assert issuing._others_wait_locked(state, link)
    other.cancel()
    with core_lock:
        assert not issuing._others_wait_locked(state, link)
        assert issuing._others_wait_locked(state, other)
    higher = bench.work(wait=gate.at(2))
    with core_lock:
        assert issuing._others_wait_locked(state, link)
    link.cancel()
    higher.cancel()


# Decided meanwhile -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failed", [False, True])
def test_a_wait_decided_while_the_driver_refuses_is_not_missed(bench: Bench, failed: bool) -> None:
    bench.hand.follows = False
    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    problem = ValueError("meanwhile")

    def meanwhile(ticket: Any) -> None:
        assert ticket._queued  # nobody else may fire it
        decide(bench, semaphore, "failed" if failed else "reached", problem)

    bench.hand.before_issue = meanwhile
    follower = bench.work(wait=semaphore.at(1))
    if failed:
        assert follower.done
        assert follower.error is problem
    else:
        assert (follower._stage, bench.waits(follower), bench.times(follower)) == (ISSUED, [], 2)
    assert follower._queued


def test_a_doomed_submission_does_not_go_down_on_a_promise(bench: Bench) -> None:
    promised, failed, problem = tg.Semaphore(), tg.Semaphore(), ValueError("never")
    failed.fail(problem)
    bench.work(signal=promised.at(1))
    follower = bench.work(wait=[promised.at(1), failed.at(1)])
    assert bench.times(follower) == 0
    assert follower.error is problem
    assert promised._state.waiters == {}


def test_an_offer_comes_to_nothing_for_one_that_is_no_longer_held(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    held = bench.work(wait=semaphore.at(1))
    offer = issuing._Offer(held)
    assert offer.is_work
    assert held.cancel()
    offer.fire()
    assert bench.times(held) == 0


def test_a_queued_submission_is_not_offered_and_not_taken_twice(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    producer = bench.work(signal=semaphore.at(1))
    bench.hand.follows = False
    held = bench.work(wait=semaphore.at(1))
    assert issuing._may_follow(held, producer)
    held._queued = True
    assert not issuing._may_follow(held, producer)
    assert not issuing._try_promises(held)
    assert bench.times(held) == 1
    held._queued = False
    assert not issuing._may_follow(object(), producer)


# In sight ----------------------------------------------------------------------------------------------------------


def test_a_follower_on_its_way_down_is_in_sight_of_whoever_closes_the_device(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore, seen = tg.Semaphore(), []
    native_waits = issuing.native_waits

    def looking(promised: Any) -> Any:
        with core_lock:
            seen.extend(bench.device._held_locked())
            assert not set(seen) & set(bench.device._doomed_locked())
        return native_waits(promised)

    monkeypatch.setattr(issuing, "native_waits", looking)
    follower = bench.work(wait=semaphore.at(1))
    bench.work(signal=semaphore.at(1))
    assert seen == [follower]
    assert follower._stage == ISSUED


def test_what_is_launched_stands_in_line_nowhere_and_is_in_sight_without_a_gap(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, failed, seen = tg.Semaphore(), tg.Semaphore(), []
    held = bench.work(wait=[gate.at(1), failed.at(1)])
    issue = issuing.issue

    def noting(submission: tg.Submission, waits: Any) -> bool:
        seen.append((submission._stage, submission in bench.device._issued, submission._pending, bench.device._held))
        return issue(submission, waits)

    monkeypatch.setattr(issuing, "issue", noting)
    failed.signal(1)
    gate.signal(1)
    assert seen == [(READY, True, None, {})]
    assert held._stage == ISSUED
    doomed = bench.work(wait=[gate.at(2), failed.at(2)])
    failed.fail(ValueError())
    assert doomed.done
    assert gate._state.waiters == {}
    assert len(seen) == 1
