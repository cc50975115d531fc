"""Interrupts and errors while work goes down to a device that counts: nothing is lost, nothing is taken twice."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate._core import issuing
from tidegate._core.lock import core_lock
from tidegate._core.submission import ISSUED

from .hand_driver import Bench, catch_up
from .raising import once


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
