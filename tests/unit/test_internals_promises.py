"""Work on a device that counts: promises, followers, arming, and retirement in the order of epochs (M3, M15, M17)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import issuing, workload
from tidegate._core.arming import arm, arm_submission, promise_for
from tidegate._core.lock import core_lock
from tidegate._core.submission import HELD, ISSUED, READY, RETIRED

from .hand_driver import LIMIT, catch_up, close_by_hand, open_by_hand


class Bench:
    """A device that is moved by hand, two of its queues and a buffer to work on."""

    def __init__(self) -> None:
        self.device, self.hand = open_by_hand()
        self.queue, self.other = self.device.queue(), self.device.queue("transfer")
        self.one, self.two = self.hand.one, self.hand.two
        self.buffer = self.device.allocate(16)

    def work(self, queue: tg.Queue | None = None, **options: Any) -> tg.Submission:
        return (queue or self.queue).fill(self.buffer, 0, **options)

    def waits(self, submission: tg.Submission) -> list[tuple[Any, int]]:
        """Return the waits with which it was last issued."""
        (*_, found) = (waits for ticket, waits in self.hand.asked if ticket is submission)
        return found

    def times(self, submission: tg.Submission) -> int:
        return sum(ticket is submission for ticket, _ in self.hand.asked)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    close_by_hand(bench.device, bench.hand)
    assert not any(ref() for ref in bench.device._held.values())


# Who is promised ---------------------------------------------------------------------------------------------------


def test_a_promise_for_a_value_is_its_claim_or_else_the_lowest_above(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    works = {value: bench.work(signal=semaphore.at(value)) for value in (6, 4, 9)}
    state = semaphore._state
    assert state.promises == works
    assert promise_for(state, 4) is works[4]
    assert promise_for(state, 1) is works[4]
    assert promise_for(state, 5) is works[6]
    assert promise_for(state, 9) is works[9]
    assert promise_for(state, 10) is None
    assert promise_for(tg.Semaphore()._state, 1) is None


def test_arming_asks_once_for_the_epoch_of_the_promise_and_for_nothing_else(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    bench.work()
    second = bench.work(signal=semaphore.at(2))
    third = bench.work(signal=semaphore.at(4))
    assert not second.armed
    arm(semaphore._state, 1)
    arm(semaphore._state, 2)
    assert (bench.one.armed, second.armed, third.armed) == ([2], True, False)
    arm(semaphore._state, 9)  # nobody promises that, but what is promised below may fail it
    assert (bench.one.armed, third.armed) == ([2, 3], True)


def test_what_an_interrupt_kept_from_being_armed_is_armed_the_next_time(bench: Bench) -> None:
    work, arm_epoch = bench.work(), bench.one.arm
    bench.one.arm = once(arm_epoch, KeyboardInterrupt())  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        arm_submission(work)
    arm_submission(work)
    assert bench.one.armed == [1]


def test_what_no_device_counts_cannot_be_armed(bench: Bench) -> None:
    gate = tg.Semaphore()
    held = bench.work(wait=gate.at(1))
    arm_submission(held)
    assert not held.armed
    held.cancel()


def test_issued_work_that_nobody_listens_to_is_not_armed_and_listeners_arm_it(bench: Bench) -> None:
    first, second, third = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    bench.work(signal=first.at(1))
    bench.work(signal=second.at(1))
    bench.work(signal=third.at(1))
    assert bench.one.armed == []
    second.at(1).add_callback(lambda *_told: None)
    assert bench.one.armed == [2]
    host = bench.queue.host_call(int, wait=third.at(1))
    assert bench.one.armed == [2, 3]
    assert not host.done
    bench.one.over(3, wake=True)
    host.wait(LIMIT)


@pytest.mark.parametrize("by", ["semaphore", "submission"])
def test_work_that_is_listened_to_before_it_is_issued_is_armed_when_it_is(bench: Bench, by: str) -> None:
    gate, done, told = tg.Semaphore(), tg.Semaphore(), []
    held = bench.work(wait=gate.at(1), signal=done.at(1))
    point = done.at(1)
    if by == "submission":
        state, value = held._wait_target()
        from tidegate._core.subscription import when_over

        when_over(held, lambda: told.append(1))
        assert (state.promises, value) == ({}, 1)
    else:
        point.add_callback(lambda *_told: told.append(1))
    assert bench.one.armed == []
    gate.signal(1)
    assert bench.one.armed == [1]
    if by == "submission":
        assert state.promises == {1: held}
    assert not told
    bench.one.over(1, wake=True)
    assert told == [1]
    assert (done._state.promises, done._state.claims) == ({}, {})


def test_every_64th_epoch_is_armed_although_nobody_listens(bench: Bench) -> None:
    for _ in range(130):
        bench.work()
    assert bench.one.armed == [64, 128]
    assert bench.device._poller.timelines == {bench.one}


def test_a_completion_asked_for_after_issue_is_promised(bench: Bench) -> None:
    work = bench.work()
    state, _ = work._wait_target()
    assert state.promises == {1: work}
    assert not work.done
    bench.one.over(1)
    assert work.done
    assert (state.promises, state.payload) == ({}, 1)


# Followers ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("failed", [False, True])
def test_a_wait_decided_while_the_driver_refuses_is_not_missed(bench: Bench, failed: bool) -> None:
    bench.hand.follows = False
    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    problem = ValueError("meanwhile")

    def meanwhile(ticket: Any) -> None:
        assert ticket._queued  # nobody else may fire it
        bench.hand.before_issue = None
        if failed:
            semaphore.fail(problem)
        else:
            bench.one.over(1, wake=True)

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


# Interrupts --------------------------------------------------------------------------------------------------------


def once(function: Any, error: BaseException) -> Any:
    """Return a function that raises the first time and then does what the given one does."""
    errors = [error]

    def wrapped(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return function(*arguments)

    return wrapped


def test_an_interrupt_before_a_follower_is_taken_leaves_it_to_go_down_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = tg.Semaphore()
    follower = bench.work(wait=semaphore.at(1))
    monkeypatch.setattr(issuing, "_promises_locked", once(issuing._promises_locked, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        bench.work(signal=semaphore.at(1))
    catch_up()
    assert follower._stage == ISSUED


def test_an_interrupt_while_a_follower_goes_down_fails_it(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    bench.hand.before_issue = once(lambda _ticket: None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bench.work(wait=semaphore.at(1), signal=semaphore.at(2))
    catch_up()
    assert isinstance(semaphore.failure, KeyboardInterrupt)
    assert semaphore._state.waiters == {}


def test_an_interrupt_after_the_device_took_it_fails_it_at_its_end_and_not_before(bench: Bench) -> None:
    semaphore = tg.Semaphore()

    def interrupt(_ticket: object) -> None:
        bench.hand.after_issue = None
        raise KeyboardInterrupt

    bench.hand.after_issue = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.work(signal=semaphore.at(1))
    catch_up()
    (work,) = bench.device._issued
    assert (work._stage, semaphore.failure) == (ISSUED, None)
    assert semaphore._state.promises == {1: work}
    bench.one.over(1)
    assert isinstance(semaphore.failure, KeyboardInterrupt)
    assert semaphore.value == 0


def test_an_error_after_the_device_took_it_fails_it_at_its_end_and_raises_nothing(bench: Bench) -> None:
    semaphore, problem = tg.Semaphore(), ValueError("late")

    def fail(_ticket: object) -> None:
        bench.hand.after_issue = None
        raise problem

    bench.hand.after_issue = fail
    work = bench.work(signal=semaphore.at(1))
    catch_up()
    assert (work._stage, work._doom, semaphore.failure) == (ISSUED, problem, None)
    bench.one.over(1)
    assert work.error is problem
    assert semaphore.failure is problem
    assert problem.__traceback__ is None


def test_a_second_interrupt_does_not_change_the_reason(bench: Bench) -> None:
    work = bench.work()
    first, second = ValueError(), KeyError()
    issuing.give_up(work, first)
    issuing.give_up(work, second)
    assert (work._doom, work._stage) == (first, ISSUED)
    bench.one.over(1)
    assert work.error is first


def test_giving_up_what_is_over_changes_nothing(bench: Bench) -> None:
    work = bench.work()
    bench.one.over(1)
    assert work.done
    issuing.give_up(work, ValueError())
    assert (work._doom, work.error) == (None, None)


def test_an_interrupt_while_promises_are_noted_leaves_them_to_the_reaper(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore = tg.Semaphore()
    monkeypatch.setattr(issuing, "_promise_locked", once(issuing._promise_locked, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        bench.work(signal=semaphore.at(1))
    catch_up()
    (work,) = bench.device._issued
    assert semaphore._state.promises == {1: work}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("no")])
def test_what_the_driver_raises_before_taking_it_fails_it_now(bench: Bench, error: BaseException) -> None:
    semaphore = tg.Semaphore()
    bench.hand.before_issue = once(lambda _ticket: None, error)
    if isinstance(error, Exception):
        work = bench.work(signal=semaphore.at(1))
        assert work.done
        assert work.error is error
    else:
        with pytest.raises(KeyboardInterrupt):
            bench.work(signal=semaphore.at(1))
    assert semaphore.failure is error
    assert semaphore._state.promises == {}
    assert bench.device._issued == {}


def test_promises_are_not_made_for_what_is_over_or_lost_its_claim(bench: Bench) -> None:
    semaphore, other = tg.Semaphore(), tg.Semaphore()
    work = bench.work(signal=[semaphore.at(1), other.at(1)])
    completion, _ = work._wait_target()
    signals = work._signals
    semaphore._state.promises.clear()
    other._state.promises.clear()
    claim = other._state.claims.pop(1)
    with core_lock:
        issuing._promise_locked(work)
    assert semaphore._state.promises == {1: work}
    assert other._state.promises == {}
    other._state.claims[1] = claim
    bench.one.over(1)
    assert work.done
    work._signals = signals
    with core_lock:
        issuing._promise_locked(work)
    assert semaphore._state.promises == {}
    assert completion.promises == {}
    work._signals = ()


def test_an_interrupted_cancel_is_completed_by_the_reaper(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    held = bench.work(wait=gate.at(1), signal=done.at(1))
    with monkeypatch.context() as patched:
        patched.setattr(issuing, "retire", once(issuing.retire, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            held.cancel()
        catch_up()
    assert isinstance(done.failure, tg.AbortedError)
    assert held.done


def test_a_cancel_is_decided_once_whoever_comes_between(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tg.Semaphore()
    held = bench.work(wait=gate.at(1))
    retire = issuing.retire

    def meanwhile(submission: tg.Submission, error: BaseException) -> None:
        gate.signal(1)
        assert not submission.cancel()
        retire(submission, error)

    monkeypatch.setattr(issuing, "retire", meanwhile)
    assert held.cancel()
    assert bench.times(held) == 0
    assert isinstance(held.error, tg.AbortedError)


# The end of epochs -------------------------------------------------------------------------------------------------


def test_what_is_over_is_retired_in_order_and_the_rest_stays(bench: Bench) -> None:
    works = [bench.work() for _ in range(4)]
    bench.one.over(2)
    assert [work._stage for work in works] == [ISSUED] * 4
    bench.one.advance()
    assert [work._stage for work in works] == [RETIRED, RETIRED, ISSUED, ISSUED]
    assert list(bench.one.in_flight) == works[2:]
    bench.one.over(4)
    bench.one.advance()
    bench.one.advance()
    assert list(bench.one.in_flight) == []
    assert bench.device.statistics().retired == 4


def test_what_was_promised_is_retired_before_what_followed_it(bench: Bench) -> None:
    semaphore, order = tg.Semaphore(), []
    first = bench.work(signal=semaphore.at(1))
    second = bench.work(bench.other, wait=semaphore.at(1), signal=semaphore.at(2))
    third = bench.work(wait=semaphore.at(2), signal=semaphore.at(3))
    for value in (1, 2, 3):
        semaphore.at(value).add_callback(lambda point, outcome, error: order.append((point.value, outcome)))
    bench.one.word, bench.two.word = 2, 1
    bench.two.advance()
    assert [work._stage for work in (first, second, third)] == [RETIRED, RETIRED, ISSUED]
    assert semaphore.value == 3
    assert order == [(value, tg.Outcome.REACHED) for value in (1, 2, 3)]


def test_a_failed_epoch_fails_its_followers_although_they_ran(bench: Bench) -> None:
    semaphore, other, problem = tg.Semaphore(), tg.Semaphore(), ZeroDivisionError("epoch 1")
    first = bench.work(signal=semaphore.at(1))
    second = bench.work(wait=semaphore.at(1), signal=other.at(1))
    third = bench.work(wait=other.at(1))
    bench.one.failures[1] = problem
    bench.one.over(3)
    assert third.error is problem
    assert second.error is problem
    assert first.error is problem
    assert semaphore._state.seen
    assert (semaphore.value, other.value) == (0, 0)
    assert other.failure is problem


def test_the_reason_given_first_wins_over_what_the_device_says(bench: Bench) -> None:
    work, mine, theirs = bench.work(), ValueError("mine"), KeyError("theirs")
    work._doom = mine
    bench.one.failures[1] = theirs
    bench.one.over(1)
    assert work.error is mine


def test_a_follower_of_something_reached_before_it_failed_is_well(bench: Bench) -> None:
    semaphore, done = tg.Semaphore(), tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    follower = bench.work(wait=semaphore.at(1), signal=done.at(1))
    bench.one.word = 1
    bench.one.advance()
    semaphore.fail(ValueError("afterwards"))
    bench.one.over(2)
    assert follower.error is None
    assert done.value == 1


def test_a_poll_of_the_device_retires_what_is_over(bench: Bench) -> None:
    work = bench.work()
    bench.one.over(1)
    assert not bench.device._poller()
    assert bench.hand.polled == 1
    assert work._stage == RETIRED
    bench.hand.poll_answers = [True]
    assert bench.device._poller()


def test_looking_at_a_timeline_retires_what_is_over_on_it(bench: Bench) -> None:
    looks = [
        lambda semaphore: semaphore.value,
        lambda semaphore: semaphore.query(),
        lambda semaphore: semaphore.at(1).reached,
        lambda semaphore: semaphore.wait(1, 0),
        lambda semaphore: semaphore.failure,
        lambda semaphore: tg.wait_any([semaphore.at(1)], 0),
    ]
    for look in looks:
        semaphore = tg.Semaphore()
        bench.work(signal=semaphore.at(1))
        bench.one.over(bench.one.issued)
        assert semaphore._state.payload == 0
        look(semaphore)
        assert semaphore._state.payload == 1


def test_looking_inside_a_core_section_retires_nothing(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    bench.one.over(1)
    with core_lock:
        assert semaphore.value == 0
    assert semaphore.value == 1


def test_failing_a_semaphore_looks_first_whether_it_was_reached(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    work = bench.work(signal=semaphore.at(1))
    bench.one.over(1)
    semaphore.fail(ValueError("too late for 1"))
    assert (semaphore.value, work.error) == (1, None)


def test_a_sleeping_wait_arms_what_it_waits_for(bench: Bench) -> None:
    from tidegate.conformance.threads import background

    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    armed = threading.Event()
    arm_epoch = bench.one.arm
    bench.one.arm = lambda epoch: (arm_epoch(epoch), armed.set())  # type: ignore[method-assign]
    waiting = background(semaphore.wait, 1, LIMIT)
    assert armed.wait(LIMIT)
    bench.one.over(1, wake=True)
    waiting.result()
    assert bench.one.armed == [1]


# No room -----------------------------------------------------------------------------------------------------------


def test_what_the_device_has_no_room_for_is_put_off_and_goes_down_in_order(bench: Bench) -> None:
    first = bench.work()
    bench.hand.full = True
    late = [bench.work() for _ in range(3)]
    assert [work._stage for work in late] == [READY] * 3
    assert list(bench.device._backlog) == late
    assert list(bench.device._issued) == [first]
    assert bench.device._attention
    assert late[0].explain().endswith("ready, waiting for room on the device")
    bench.hand.full = False
    bench.one.over(1, wake=True)
    assert [work._stage for work in late] == [ISSUED] * 3
    assert [work.epoch for work in late] == [2, 3, 4]
    assert not bench.device._attention
    assert list(bench.device._issued) == late


def test_room_that_the_driver_tells_of_is_used_by_the_reaper_if_something_waits_for_it(bench: Bench) -> None:
    bench.hand.full = True
    late = bench.work()
    bench.hand.full = False
    bench.hand.sink.room()
    catch_up()
    assert late._stage == ISSUED
    assert not bench.device._attention


def test_what_was_put_off_stays_first_when_there_is_still_no_room(bench: Bench) -> None:
    bench.hand.full = True
    late = [bench.work() for _ in range(2)]
    bench.device._after_retirement()
    assert list(bench.device._backlog) == late
    assert bench.device._issued == {}
    assert bench.device._attention


@pytest.mark.parametrize(
    ("count", "armed"),
    [(1, [1]), (2, [2]), (3, [2, 3]), (4, [3, 4]), (5, [3, 5]), (6, [4, 6]), (9, [5, 9])],
)
def test_no_room_arms_the_middle_and_the_last_of_what_is_in_flight(bench: Bench, count: int, armed: list[int]) -> None:
    for _ in range(count):
        bench.work()
    bench.hand.full = True
    bench.work()
    assert bench.one.armed == armed


def test_one_that_was_put_off_and_is_over_meanwhile_is_passed_over(bench: Bench) -> None:
    bench.hand.full = True
    gone, next_one = bench.work(), bench.work()
    tries = bench.times(gone)
    issuing.retire(gone, ValueError("given up"))
    bench.hand.full = False
    bench.device._after_retirement()
    assert (bench.times(gone), next_one._stage) == (tries, ISSUED)
    assert list(bench.device._backlog) == []


def test_an_interrupt_while_one_that_was_put_off_is_tried_fails_it_and_keeps_the_next(bench: Bench) -> None:
    bench.hand.full = True
    done = tg.Semaphore()
    late = [bench.work(signal=done.at(1)), bench.work()]
    bench.hand.full = False
    bench.hand.before_issue = once(lambda _ticket: None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bench.device._after_retirement()
    assert isinstance(done.failure, KeyboardInterrupt)
    catch_up()
    assert late[1]._stage in (READY, ISSUED)
    assert (late[1]._stage == ISSUED) is not (late[1] in bench.device._backlog)


def test_an_interrupt_around_the_try_puts_it_back_in_its_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.hand.full = True
    late = [bench.work(), bench.work()]
    with monkeypatch.context() as patched:
        patched.setattr(workload, "issue", once(issuing.issue, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            bench.device._issue_next()
    assert list(bench.device._backlog) == late
    assert bench.device._issue_next() is False


def test_an_interrupt_between_taking_a_follower_and_issuing_it_fails_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    semaphore, done = tg.Semaphore(), tg.Semaphore()
    follower = bench.work(wait=semaphore.at(1), signal=done.at(1))
    monkeypatch.setattr(issuing, "native_waits", once(issuing.native_waits, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        bench.work(signal=semaphore.at(1))
    catch_up()
    assert follower.done
    assert isinstance(done.failure, KeyboardInterrupt)


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


def test_an_epoch_that_another_thread_retires_meanwhile_is_passed_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate._core import retirement

    bench.work()
    bench.one.over(1)
    retire_counted = retirement._retire_counted

    def faster(submission: Any) -> None:
        retire_counted(submission)
        bench.one.in_flight.clear()

    with monkeypatch.context() as patched:
        patched.setattr(retirement, "_retire_counted", faster)
        bench.one.advance()

    class Emptied:
        """Empty between the look and the grasp."""

        def __bool__(self) -> bool:
            return True

        def __getitem__(self, _index: int) -> Any:
            raise IndexError

    in_flight, bench.one.in_flight = bench.one.in_flight, Emptied()  # type: ignore[assignment]
    bench.one.advance()
    bench.one.in_flight = in_flight


def test_the_end_found_by_asking_for_the_error_is_not_reported_as_unseen(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    import gc

    gc.collect()
    catch_up()
    caplog.clear()
    work = bench.work()
    bench.one.failures[1] = ValueError("looked at")
    bench.one.over(1)
    assert isinstance(work.error, ValueError)
    del work
    gc.collect()
    catch_up()
    assert "looked at" not in caplog.text


def test_who_waits_at_promises_is_told_of_and_nobody_else(bench: Bench) -> None:
    alone, awaited = tg.Semaphore(), tg.Semaphore()
    work = bench.work(signal=[alone.at(1), awaited.at(1)])
    with core_lock:
        assert issuing._promise_locked(work) is False
    awaited.at(1).add_callback(lambda *_told: None)
    with core_lock:
        assert issuing._promise_locked(work) is True
    quiet = bench.work()
    state, _ = quiet._wait_target()
    with core_lock:
        assert issuing._promise_locked(quiet) is False
        state.waiters[1] = {}
        assert issuing._promise_locked(quiet) is True
        state.waiters.clear()
    bench.one.over(2)
    assert quiet.done
    with core_lock:
        assert issuing._promise_locked(quiet) is False


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

    def decide(_ticket: object) -> None:
        bench.hand.before_issue = None
        if meanwhile == "reached":
            bench.one.over(1, wake=True)
        elif meanwhile == "failed":
            semaphore.fail(problem)

    bench.hand.before_issue = decide
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


def test_an_interrupt_after_the_driver_would_rather_not_fails_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate._core import scheduling

    bench.hand.follows = False
    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    monkeypatch.setattr(scheduling, "_line_up_locked", once(scheduling._line_up_locked, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        bench.work(wait=semaphore.at(1), signal=semaphore.at(2))
    catch_up()
    assert isinstance(semaphore.failure, KeyboardInterrupt)


@pytest.mark.parametrize("meanwhile", ["nothing", "reached", "failed"])
def test_one_that_is_offered_to_follow_and_refused_stays_held_unless_it_was_decided(
    bench: Bench, meanwhile: str
) -> None:
    bench.hand.follows = False
    semaphore, problem = tg.Semaphore(), ValueError()
    follower = bench.work(wait=semaphore.at(1))

    def decide(ticket: Any) -> None:
        if ticket is follower:
            assert follower._queued
            bench.hand.before_issue = None
            if meanwhile == "reached":
                bench.one.over(1, wake=True)
            elif meanwhile == "failed":
                semaphore.fail(problem)

    bench.hand.before_issue = decide
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


def test_a_link_that_stands_alone_in_its_chain_is_not_armed_for_itself(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    link = bench.work(wait=semaphore.at(1), signal=semaphore.at(2))
    bench.work(signal=semaphore.at(1))
    assert link._stage == ISSUED
    assert bench.one.armed == [1]
    assert not link.armed
    assert (link._pending, semaphore._state.waiters, bench.device._held) == (None, {}, {})
