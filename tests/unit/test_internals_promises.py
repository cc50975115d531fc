"""Promises of issued work on a device that counts: who is promised, and who asks to be told (M15, M17)."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate._core import issuing
from tidegate._core.arming import arm, arm_submission, promise_for
from tidegate._core.lock import core_lock
from tidegate._core.submission import ISSUED

from .hand_driver import LIMIT, Bench
from .raising import once


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


def test_a_link_that_stands_alone_in_its_chain_is_not_armed_for_itself(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    link = bench.work(wait=semaphore.at(1), signal=semaphore.at(2))
    bench.work(signal=semaphore.at(1))
    assert link._stage == ISSUED
    assert bench.one.armed == [1]
    assert not link.armed
    assert (link._pending, semaphore._state.waiters, bench.device._held) == (None, {}, {})


def test_a_host_failure_above_a_promise_is_no_promise_any_more(bench: Bench) -> None:
    done, problem = tg.Semaphore(), ValueError("by the host")
    bench.work(signal=done.at(5))
    done.fail(problem)
    late = bench.work(wait=done.at(5))
    assert late.error is problem
    assert bench.times(late) == 0
