"""The state of timelines and submissions: nothing stays behind, nothing is told twice, with a GIL or without."""

from __future__ import annotations

import gc
import logging
from collections import deque
from functools import partial
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import scheduling, timeline
from tidegate._core.lock import core_lock
from tidegate._core.submission import Completion, _abandon
from tidegate._core.timeline import (
    TimelineState,
    add_waiter_locked,
    collect_locked,
    fail_locked,
    finish,
    raise_locked,
    remove_waiter_locked,
)
from tidegate._core.unseen import forget_frames
from tidegate.conformance.threads import all_at_once, background
from tidegate.drivers.cpu import workers
from tidegate.drivers.cpu.workers import Task, Workers

from .hand_driver import LIMIT, catch_up


class Waiter:
    """Notes what it was told."""

    is_work = False

    def __init__(self) -> None:
        self.told: list[BaseException | None] = []

    def due(self, _state: TimelineState, error: BaseException | None, out: deque[Any]) -> None:
        self.told.append(error)
        out.append(self)

    def fire(self) -> None:
        raise NotImplementedError


def state_at(payload: int = 0) -> TimelineState:
    return TimelineState(payload, "it", None)


# Waiters -----------------------------------------------------------------------------------------------------------


def test_the_heap_is_rebuilt_when_more_than_half_of_it_is_stale() -> None:
    state = state_at()
    waiters = {value: Waiter() for value in range(1, 11)}
    for value, waiter in waiters.items():
        assert add_waiter_locked(state, value, waiter)
    for value in range(1, 6):
        remove_waiter_locked(state, value, waiters[value])
    assert sorted(state.values) == list(range(1, 11))  # 10 places for 5 values: just allowed
    remove_waiter_locked(state, 6, waiters[6])
    assert sorted(state.values) == [7, 8, 9, 10]
    assert state.values[0] == 7
    for value in range(10, 6, -1):
        remove_waiter_locked(state, value, waiters[value])
        assert len(state.values) <= 2 * len(state.waiters)
    assert (state.values, state.waiters, state.calm) == ([], {}, True)


def test_a_value_removed_and_awaited_again_is_told_once() -> None:
    state, first, second, low = state_at(), Waiter(), Waiter(), Waiter()
    add_waiter_locked(state, 1, low)
    add_waiter_locked(state, 2, first)
    remove_waiter_locked(state, 2, first)
    add_waiter_locked(state, 2, second)  # its place in the heap is there twice now
    out: deque[Any] = deque()
    raise_locked(state, 2, out)
    assert list(out) == [low, second]
    assert (first.told, second.told) == ([], [None])
    assert (state.values, state.waiters) == ([], {})


def test_removing_an_unknown_waiter_changes_nothing() -> None:
    state, known = state_at(), Waiter()
    add_waiter_locked(state, 3, known)
    remove_waiter_locked(state, 3, Waiter())
    remove_waiter_locked(state, 4, known)
    assert state.waiters == {3: {known: None}}
    assert not state.calm


def test_a_waiter_of_what_is_reached_or_failed_is_not_taken_and_calm_returns() -> None:
    state = state_at(3)
    assert not add_waiter_locked(state, 3, Waiter())
    assert state.calm
    assert add_waiter_locked(state, 4, Waiter())
    assert not state.calm
    out: deque[Any] = deque()
    fail_locked(state, ValueError(), out)
    assert not add_waiter_locked(state, 5, Waiter())
    assert not state.calm
    assert state.waiters == {}


def test_a_signal_takes_the_waiters_up_to_its_value_from_the_lowest_and_leaves_the_others() -> None:
    state = state_at()
    waiters = {value: Waiter() for value in (5, 2, 4, 3)}
    for value, waiter in waiters.items():
        add_waiter_locked(state, value, waiter)
    out: deque[Any] = deque()
    raise_locked(state, 4, out)
    assert list(out) == [waiters[2], waiters[3], waiters[4]]
    assert (state.payload, list(state.waiters)) == (4, [5])
    problem = ValueError()
    fail_locked(state, problem, out)
    fail_locked(state, KeyError(), out)
    assert waiters[5].told == [problem]
    assert state.failure is problem


def test_a_failure_tells_those_already_reached_that_they_are() -> None:
    state, reached, unreached = state_at(), Waiter(), Waiter()
    add_waiter_locked(state, 1, reached)
    add_waiter_locked(state, 2, unreached)
    state.payload = 1  # an interrupt came between the store and the collection
    out: deque[Any] = deque()
    problem = ValueError()
    fail_locked(state, problem, out)
    assert (reached.told, unreached.told) == ([None], [problem])


def test_collecting_again_tells_nobody_twice() -> None:
    state, waiter = state_at(), Waiter()
    add_waiter_locked(state, 1, waiter)
    out: deque[Any] = deque()
    raise_locked(state, 1, out)
    collect_locked(state, out)
    assert waiter.told == [None]


@pytest.mark.parametrize("many", [False, True])
def test_a_wait_that_ends_over_time_or_by_another_leaves_no_residue(many: bool) -> None:
    first, second = tg.Semaphore(), tg.Semaphore()
    points = [first.at(5), second.at(7)]
    with pytest.raises(tg.DeadlineExceededError):
        (tg.wait_any if many else tg.wait_all)(points, 0.002)
    thread = background(tg.wait_any, points, LIMIT)
    third = first.at(9).add_callback(lambda *_told: None)
    first.signal(5)
    assert thread.result() is points[0]
    assert third.cancel()
    for semaphore in (first, second):
        state = semaphore._state
        assert (state.waiters, state.values, state.claims, state.calm) == ({}, [], {}, True)


def test_1000_cancelled_callbacks_leave_no_residue() -> None:
    semaphore = tg.Semaphore()
    subscriptions = [semaphore.at(value).add_callback(lambda *_told: None) for value in range(1, 1001)]
    assert all(subscription.cancel() for subscription in subscriptions)
    assert all(subscription.cancel() for subscription in subscriptions)  # again is the same answer
    assert (semaphore._state.values, semaphore._state.waiters, semaphore._state.calm) == ([], {}, True)


def test_a_cancelled_submission_leaves_no_residue(device: tg.Device) -> None:
    gate, other, done = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    held = device.queue().barrier(wait=[gate.at(1), other.at(1)], signal=done.at(1))
    assert done._state.claims
    assert held.cancel()
    assert not held.cancel()
    for semaphore in (gate, other):
        assert (semaphore._state.waiters, semaphore._state.values) == ({}, [])
    assert done._state.claims == {}
    assert device._held == {}


def test_a_refused_submission_withdraws_its_claims_and_what_next_gives(device: tg.Device) -> None:
    fresh, used, gate = tg.Semaphore(), tg.Semaphore(3), tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError):
        device.queue().barrier(wait=gate.at(1), signal=[fresh.at(9), used.at(3)])
    assert (fresh._state.claims, fresh._state.high, fresh._state.calm) == ({}, 0, True)
    assert gate._state.waiters == {}
    assert fresh.next().value == 1


def test_two_waits_on_one_semaphore_count_as_the_higher_in_either_order(device: tg.Device) -> None:
    for values in ((1, 2), (2, 1), (2, 2)):
        gate = tg.Semaphore()
        held = device.queue().barrier(wait=[gate.at(value) for value in values])
        assert list(gate._state.waiters) == [2]
        gate.signal(1)
        assert not held.done
        gate.signal(2)
        assert held.done


def test_a_claim_whose_submission_is_gone_fails_its_timeline(device: tg.Device) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore(label="done")
    held = device.queue().barrier(wait=gate.at(1), signal=done.at(4))
    claim = done._state.claims[4]
    _abandon(claim)
    assert isinstance(done.failure, tg.AbortedError)
    assert str(done.failure) == "semaphore 'done' at 4: the submission that was to signal it is gone"
    assert done._state.claims == {}
    _abandon(claim)  # a claim that no longer stands is nobody's
    gate.signal(1)
    assert held.done


def test_forgetting_frames_reaches_causes_and_contexts_and_survives_a_circle() -> None:
    class Thing:
        pass

    def fails() -> None:
        thing = Thing()
        try:
            raise KeyError(id(thing))
        except KeyError as error:
            raise ValueError from error

    try:
        fails()
    except ValueError as error:
        caught = error
    assert caught.__cause__ is not None
    caught.__cause__.__context__ = caught
    forget_frames(caught)
    assert caught.__traceback__ is not None
    last = caught.__traceback__.tb_next
    assert last is not None
    assert last.tb_frame.f_locals == {}
    assert not [one for one in gc.get_objects() if type(one) is Thing]


def test_forgetting_frames_goes_on_behind_a_missing_context() -> None:
    def fails() -> None:
        kept = object()
        raise KeyError(id(kept))

    try:
        fails()
    except KeyError as error:
        cause = error
    outer = ValueError()
    outer.__cause__ = cause
    forget_frames(outer)
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_next is not None
    assert cause.__traceback__.tb_next.tb_frame.f_locals == {}


def test_failing_clears_the_locals_of_the_frames_of_the_error() -> None:
    def fails() -> None:
        kept = object()
        raise KeyError(id(kept))

    semaphore = tg.Semaphore()
    try:
        fails()
    except KeyError as error:
        semaphore.fail(error)
    assert semaphore.failure is not None
    assert semaphore.failure.__traceback__ is not None
    assert semaphore.failure.__traceback__.tb_next is not None
    assert semaphore.failure.__traceback__.tb_next.tb_frame.f_locals == {}


def test_finishing_completes_what_an_interrupted_signal_began() -> None:
    semaphore, called = tg.Semaphore(), []
    semaphore.at(2).add_callback(lambda point, *_rest: called.append(point.value))
    semaphore._state.payload = 2  # as far as it got
    finish(semaphore._state)
    assert called == [2]
    assert semaphore._state.calm is timeline.GIL


def test_an_interrupt_in_a_callback_reaches_the_signaller_and_the_others_are_called_once() -> None:
    semaphore, called = tg.Semaphore(), []

    def interrupted(*_told: object) -> None:
        called.append("interrupted")
        raise KeyboardInterrupt

    semaphore.at(1).add_callback(interrupted)
    semaphore.at(1).add_callback(lambda *_told: called.append("second"))
    with pytest.raises(KeyboardInterrupt):
        semaphore.signal(1)
    catch_up()
    assert called == ["interrupted", "second"]
    assert semaphore.value == 1


def test_the_error_of_a_failed_wait_names_its_timepoint() -> None:
    semaphore = tg.Semaphore(label="s")
    semaphore.fail(ValueError("broken"))
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        semaphore.wait(4, LIMIT)
    assert caught.value.timepoint == semaphore.at(4)
    assert str(caught.value) == "semaphore 's' failed at 0, before 4: ValueError: broken"


# Completions and unseen failures -----------------------------------------------------------------------------------


def test_a_completion_is_made_once_and_goes_from_0_to_1(device: tg.Device) -> None:
    gate = tg.Semaphore()
    held = device.queue().barrier(wait=gate.at(1))
    assert held._completion is None
    first, value = held._wait_target()
    assert isinstance(first, Completion)
    assert (first.payload, value, list(first.claims)) == (0, 1, [1])
    assert held._wait_target() == (first, 1)
    assert first.describe() == held.describe()
    gate.signal(1)
    assert (first.payload, first.claims, first.failure) == (1, {}, None)


def test_a_completion_made_after_the_end_is_decided(device: tg.Device) -> None:
    over = device.queue().barrier()
    state, _ = over._wait_target()
    assert (state.payload, state.claims) == (1, {})
    gate, problem = tg.Semaphore(), ValueError("x")
    gate.fail(problem)
    failed = device.queue().barrier(wait=gate.at(1))
    state, _ = failed._wait_target()
    assert (state.payload, state.failure) == (0, problem)
    assert failed.error is problem


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    catch_up()
    return [record.getMessage() for record in caplog.records if record.name == "tidegate"]


def failing(device: tg.Device, **options: Any) -> tg.Submission:
    """A submission that has failed, on this thread and before this returns, so that nobody need look at it."""
    gate = tg.Semaphore()
    gate.fail(ZeroDivisionError("the work"))
    return device.queue().barrier(wait=gate.at(1), **options)


def test_a_failure_nobody_looked_at_is_logged_exactly_once(device: tg.Device, caplog: pytest.LogCaptureFixture) -> None:
    submission = failing(device)
    text = submission.describe()
    assert reports(caplog) == []  # while it is there, somebody may still look
    del submission
    assert reports(caplog) == [f"the failure of {text} was never looked at: ZeroDivisionError: the work"]
    assert reports(caplog) == [f"the failure of {text} was never looked at: ZeroDivisionError: the work"]
    (record,) = [record for record in caplog.records if record.name == "tidegate"]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


@pytest.mark.parametrize("look", ["error", "wait", "result", "wait_all", "poll"])
def test_a_failure_somebody_looked_at_is_not_logged(
    device: tg.Device, caplog: pytest.LogCaptureFixture, look: str
) -> None:
    submission = failing(device)
    if look == "error":
        assert isinstance(submission.error, ZeroDivisionError)
    else:
        with pytest.raises(tg.SemaphoreFailedError):
            if look == "wait_all":
                tg.wait_all([submission], LIMIT)
            else:
                getattr(submission, "wait" if look == "poll" else look)(0 if look == "poll" else LIMIT)
    del submission
    assert reports(caplog) == []


def test_a_failure_seen_at_its_semaphore_is_not_logged(device: tg.Device, caplog: pytest.LogCaptureFixture) -> None:
    semaphore = tg.Semaphore()
    submission = failing(device, signal=semaphore.at(1))
    with pytest.raises(tg.SemaphoreFailedError):
        semaphore.wait(1, LIMIT)
    del submission
    assert reports(caplog) == []


def test_a_failure_seen_at_its_semaphore_is_not_logged_although_its_submission_was_dropped_before(
    device: tg.Device, caplog: pytest.LogCaptureFixture
) -> None:
    semaphore = tg.Semaphore()
    failing(device, signal=semaphore.at(1))
    with pytest.raises(tg.SemaphoreFailedError):
        semaphore.wait(1, LIMIT)
    assert reports(caplog) == []


def test_a_failure_passed_on_to_a_dependent_is_logged_once_for_the_first_one(
    device: tg.Device, caplog: pytest.LogCaptureFixture
) -> None:
    submission = failing(device)
    follower = device.queue().barrier(wait=submission)
    text = submission.describe()
    del submission, follower
    assert reports(caplog) == [f"the failure of {text} was never looked at: ZeroDivisionError: the work"]


def test_an_aborted_submission_is_not_logged(device: tg.Device, caplog: pytest.LogCaptureFixture) -> None:
    gate = tg.Semaphore()
    held = device.queue().barrier(wait=gate.at(1))
    assert held.cancel()
    del held
    assert reports(caplog) == []


def test_a_good_submission_is_not_logged(device: tg.Device, caplog: pytest.LogCaptureFixture) -> None:
    device.queue().host_call(len, ()).wait(LIMIT)
    assert reports(caplog) == []


# Without a GIL -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["gil", "free-threaded"])
def gil(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both forms of the short ways (M38)."""
    for module in (timeline, scheduling, workers):
        monkeypatch.setattr(module, "GIL", request.param)
    return bool(request.param)


def test_a_timeline_is_calm_only_where_a_gil_guards_it(gil: bool, device: tg.Device) -> None:
    semaphore = tg.Semaphore()
    assert semaphore._state.calm is gil
    semaphore.at(1).add_callback(lambda *_told: None)
    assert semaphore._state.calm is False
    semaphore.signal(1)
    assert semaphore._state.calm is gil
    device.queue().barrier(wait=semaphore.at(1), signal=semaphore.at(2))
    assert semaphore._state.calm is gil
    device.queue().barrier(wait=[semaphore.at(2)], signal=[semaphore.at(3)])
    assert semaphore._state.calm is gil
    device.queue().barrier(wait=semaphore.at(4), signal=semaphore.at(5))
    assert semaphore._state.calm is False
    semaphore.signal(4)
    assert semaphore.value == 5
    assert semaphore._state.calm is gil
    semaphore.fail(ValueError())
    assert semaphore._state.calm is False


@pytest.mark.usefixtures("gil")
def test_signals_rise_wake_and_refuse_in_both_forms() -> None:
    semaphore = tg.Semaphore()
    called: list[int] = []
    semaphore.signal(1)
    assert (semaphore.query(), semaphore.value) == (1, 1)
    semaphore.at(3).add_callback(lambda point, *_rest: called.append(point.value))
    waiting = background(semaphore.wait, 4, LIMIT)
    for value in (2, 3, 4, 2**40, 2**64 - 2):
        semaphore.signal(value)
        assert semaphore.query() == value
    waiting.result()
    assert called == [3]
    for value in (0, 1, 2**64 - 2):
        with pytest.raises(tg.InvalidArgumentError):
            semaphore.signal(value)
    semaphore.wait(2**64 - 2, LIMIT)
    failed = tg.Semaphore(7)
    failed.fail(ValueError("end"))
    with pytest.raises(tg.SemaphoreFailedError):
        failed.query()
    with pytest.raises(tg.SemaphoreFailedError):
        failed.signal(8)


def test_a_semaphore_that_failed_at_the_highest_payload_says_so_when_queried() -> None:
    semaphore = tg.Semaphore(2**64 - 2)
    semaphore.fail(ValueError("end"))
    with pytest.raises(tg.SemaphoreFailedError):
        semaphore.query()


@pytest.mark.usefixtures("gil")
def test_submissions_pass_hold_and_refuse_in_both_forms(device: tg.Device) -> None:
    queue, gate, done = device.queue(), tg.Semaphore(), tg.Semaphore()
    assert queue.barrier(signal=done.at(1)).done
    assert done.value == 1
    held = queue.barrier(wait=gate.at(1), signal=done.at(2))
    assert not held.done
    with pytest.raises(tg.InvalidArgumentError):
        queue.barrier(signal=done.at(2))
    with pytest.raises(tg.InvalidArgumentError):
        queue.barrier(signal=done.at(1))
    gate.signal(1)
    done.wait(2, LIMIT)
    buffer = device.allocate(1 << 16)
    queue.fill(buffer, 7, signal=done.at(3))
    assert queue.download(buffer, wait=done.at(3)).result(LIMIT).tolist() == [7] * (1 << 16)
    statistics = device.statistics()
    assert statistics.submitted == statistics.retired == 4


@pytest.mark.usefixtures("gil")
def test_racing_threads_lose_no_signal_in_both_forms() -> None:
    semaphore = tg.Semaphore()

    def player(index: int) -> None:
        for turn in range(index, 200, 2):
            semaphore.wait(turn, LIMIT)
            semaphore.signal(turn + 1)

    all_at_once(2, player)
    assert semaphore.value == 200


@pytest.mark.usefixtures("gil")
def test_a_task_runs_once_whoever_claims_it() -> None:
    ran: list[int] = []
    tasks = [Task(lambda number=number: ran.append(number)) for number in range(200)]
    claimed = all_at_once(4, lambda _index: [task.run() for task in tasks])
    assert sorted(ran) == list(range(200))
    for answers in zip(*claimed, strict=True):
        assert sorted(answers) == [False, False, False, True]
    assert all(task._run is None for task in tasks)


@pytest.mark.usefixtures("gil")
def test_an_interrupted_task_may_be_claimed_again() -> None:
    problems: list[BaseException] = [KeyboardInterrupt()]
    ran: list[int] = []

    def work() -> None:
        if problems:
            raise problems.pop()
        ran.append(1)

    task = Task(work)
    with pytest.raises(KeyboardInterrupt):
        task.run()
    assert task.run()
    assert not task.run()
    assert ran == [1]


@pytest.mark.usefixtures("gil")
def test_a_task_that_a_waiting_thread_took_is_passed_over_by_the_workers() -> None:
    crew = Workers(0, "nobody")
    ran: list[str] = []
    crew.put(workers.Task(lambda: ran.append("large")))
    assert not crew.steal()
    for name in ("first", "second"):
        task = workers.Task(partial(ran.append, name))
        crew.put(task)
        crew.hint(task)
    assert crew.steal()
    assert ran == ["first"]
    crew._tasks.put(None)
    background(workers._work, crew._tasks).result()  # where it belongs: it marks its thread as a worker
    assert ran == ["first", "large", "second"]
    assert not crew.steal()


def test_an_interrupted_theft_goes_back_to_the_workers() -> None:
    crew, times = Workers(0, "nobody"), []

    def work() -> None:
        times.append(1)
        if len(times) == 1:
            raise KeyboardInterrupt

    task = workers.Task(work)
    crew.put(task)
    crew.hint(task)
    crew._tasks.get(timeout=LIMIT)  # a worker passed it over while it was claimed
    with pytest.raises(KeyboardInterrupt):
        crew.steal()
    assert crew._tasks.get(timeout=LIMIT).run()  # type: ignore[union-attr]
    assert times == [1, 1]


def test_the_core_lock_knows_its_owner() -> None:
    assert not core_lock._is_owned()  # type: ignore[attr-defined]
    with core_lock:
        assert core_lock._is_owned()  # type: ignore[attr-defined]
        assert background(core_lock._is_owned).result() is False  # type: ignore[attr-defined]
