"""Semaphores, timepoints and callbacks at their edges: texts, copies, the short ways, and interrupts between steps."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import weakref
from collections import deque
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import semaphore as module
from tidegate._core import subscription as subscriptions
from tidegate._core import timeline
from tidegate._core.lock import core_lock
from tidegate._core.semaphore import Semaphore, _abandon, _query, _wait
from tidegate._core.subscription import Subscription, when_over
from tidegate._core.thread_state import thread_state
from tidegate._core.timeline import TimelineState, advance, brief, checked_value, fail, failed_error, finish
from tidegate._core.timepoint import Timepoint

from .hand_driver import LIMIT, catch_up

TOP = 2**64 - 2


def state_of(semaphore: tg.Semaphore) -> TimelineState:
    return semaphore._state


def once(function: Any, error: BaseException) -> Any:
    errors = [error]

    def wrapped(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return function(*arguments)

    return wrapped


# What it says of itself --------------------------------------------------------------------------------------------


def test_a_semaphore_tells_its_label_value_and_failure() -> None:
    assert repr(tg.Semaphore(3)) == "<tidegate.Semaphore value=3>"
    semaphore = tg.Semaphore(2, label="x")
    assert (semaphore.label, repr(semaphore)) == ("x", "<tidegate.Semaphore 'x' value=2>")
    semaphore.fail(ValueError("no"))
    assert repr(semaphore) == "<tidegate.Semaphore 'x' value=2 failed=ValueError('no')>"


def test_a_timepoint_tells_its_semaphore_and_value() -> None:
    semaphore = tg.Semaphore(label="x")
    assert repr(semaphore.at(4)) == "<tidegate.Timepoint x@4>"
    plain = tg.Semaphore()
    assert repr(plain.at(4)) == f"<tidegate.Timepoint {id(plain._state):#x}@4>"


def test_a_refused_first_value_names_the_semaphore_and_leaves_nothing_to_finalize() -> None:
    for label, name in (("", "a new semaphore"), ("x", "semaphore 'x'")):
        for value in (-1, TOP + 1):
            with pytest.raises(tg.InvalidArgumentError, match=f"^{name}: the value is {value}, and must be in 0"):
                tg.Semaphore(value, label)


def test_a_semaphore_cannot_be_copied_or_pickled_and_its_timepoints_compare_by_it() -> None:
    semaphore = tg.Semaphore(label="one")
    assert copy.copy(semaphore) is semaphore
    assert copy.deepcopy(semaphore) is semaphore
    with pytest.raises(TypeError, match=r"^semaphore 'one' belongs to its process and cannot be pickled$"):
        pickle.dumps(semaphore)
    assert semaphore.at(1) == semaphore.at(1)
    assert hash(semaphore.at(1)) == hash(semaphore.at(1))
    assert semaphore.at(1) != semaphore.at(2)
    assert semaphore.at(1) != tg.Semaphore().at(1)
    assert semaphore.at(1) != 1


def test_the_object_of_a_state_is_the_living_one_or_a_new_one() -> None:
    semaphore = tg.Semaphore()
    state = semaphore._state
    assert Semaphore._over(state) is semaphore
    del semaphore
    again = Semaphore._over(state)
    assert again._state is state
    assert Semaphore._over(state) is again
    lonely = TimelineState(0, "", None)
    assert lonely.owner is None
    made = Semaphore._over(lonely)
    assert lonely.owner is not None
    assert lonely.owner() is made


# Values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 2**30 - 2, 2**30 - 1, 2**30, TOP])
def test_a_semaphore_names_signals_and_is_waited_for_at_every_value(value: int) -> None:
    semaphore = tg.Semaphore()
    assert semaphore.at(value).value == value
    assert type(semaphore.at(value)) is Timepoint
    if value:
        semaphore.signal(value)
    semaphore.wait(value, LIMIT)
    semaphore.wait(value)
    semaphore.wait(value, 0)
    assert semaphore.value == semaphore.query() == value


def test_values_that_are_no_plain_ints_take_the_checked_way() -> None:
    class Index:
        def __index__(self) -> int:
            return 3

    semaphore = tg.Semaphore(label="s")
    semaphore.signal(Index())  # type: ignore[arg-type]
    assert semaphore.value == 3
    assert type(semaphore.value) is int
    semaphore.wait(Index(), LIMIT)  # type: ignore[arg-type]
    assert semaphore.at(Index()).value == 3  # type: ignore[arg-type]
    for call in (semaphore.signal, semaphore.wait, semaphore.at):
        for wrong in (True, 1.0, "1", None):
            with pytest.raises(TypeError, match=r"^semaphore 's': the value must be an int, not "):
                call(wrong)  # type: ignore[arg-type]
        for outside in (-1, TOP + 1):
            with pytest.raises(tg.InvalidArgumentError, match="must be in 0") as caught:
                call(outside)
            assert caught.value.value == outside


def test_a_checked_value_is_an_exact_int_between_the_ends() -> None:
    assert checked_value(0, "x") == 0
    assert checked_value(TOP, "x") == TOP
    with pytest.raises(tg.InvalidArgumentError, match=r"^x: the value is 18446744073709551615, and must be in 0\.\.2"):
        checked_value(TOP + 1, "x")


def test_signalling_zero_or_below_the_payload_is_refused_with_both_values() -> None:
    semaphore = tg.Semaphore(label="s")
    for value in (0, 5, 4):
        if value == 5:
            semaphore.signal(5)
            continue
        with pytest.raises(tg.InvalidArgumentError, match="must rise") as caught:
            semaphore.signal(value)
        assert (caught.value.value, caught.value.payload) == (value, semaphore.value)
        assert semaphore._state.calm


def test_next_is_above_the_payload_and_everything_given_out() -> None:
    semaphore = tg.Semaphore(3)
    assert [semaphore.next().value for _ in range(3)] == [4, 5, 6]
    semaphore.signal(20)
    assert semaphore.next().value == 21
    with pytest.raises(tg.InvalidArgumentError, match="must be in 0"):
        tg.Semaphore(TOP).next()


# The short ways ----------------------------------------------------------------------------------------------------


class Forbidden:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the short way has no business with {name}")


def test_the_short_ways_take_no_lock_and_look_at_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    if module.put_in_place.__globals__["COMPILED"]:
        pytest.skip("the C form serves")
    semaphore = tg.Semaphore()
    for name in ("advance", "_query", "wait_targets", "spin_for", "look", "core_lock"):
        monkeypatch.setattr(module, name, Forbidden())
    semaphore.signal(1)
    assert semaphore.query() == 1
    for value in (0, 1):
        semaphore.wait(value)
        semaphore.wait(value, 1)
        semaphore.wait(value, 0.5)
    assert semaphore.value == 1


def test_a_wait_spins_only_for_what_may_still_come_and_only_if_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    if module.put_in_place.__globals__["COMPILED"]:
        pytest.skip("the C form serves")
    spun: list[int] = []
    waited: list[Any] = []
    monkeypatch.setattr(module, "spin_for", lambda _state, value: spun.append(value) or value == 5)
    monkeypatch.setattr(module, "wait_targets", lambda targets, **options: waited.append((targets[0][1], options)))
    semaphore = tg.Semaphore()
    semaphore.wait(5)
    assert (spun, waited) == ([5], [])
    semaphore.wait(6, 0.001)
    assert (spun, waited) == ([5, 6], [(6, {"any_of_them": False, "timeout": 0.001})])
    for timeout in (0, 0.0, 0.0009, -1):
        semaphore.wait(6, timeout)
    assert spun == [5, 6]
    assert [options["timeout"] for _, options in waited[1:]] == [0, 0.0, 0.0009, -1]
    semaphore.fail(ValueError())
    semaphore.wait(6)
    assert spun == [5, 6]


def test_querying_something_failed_names_the_next_value() -> None:
    semaphore = tg.Semaphore(4)
    problem = ValueError("x")
    semaphore.fail(problem)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        semaphore.query()
    assert caught.value.timepoint == semaphore.at(5)
    assert caught.value.__cause__ is problem
    assert "before 5" in str(caught.value)


def test_the_forms_for_forked_children_do_the_same_and_ask_first() -> None:
    semaphore = tg.Semaphore(2)
    assert _query(semaphore) == 2
    _wait(semaphore, 2)
    with pytest.raises(tg.DeadlineExceededError):
        _wait(semaphore, 3, 0)
    with pytest.raises(tg.InvalidArgumentError):
        _wait(semaphore, -1)
    semaphore.at(3).add_callback(lambda *_told: None)
    assert _query(semaphore) == 2
    parent = type("Parent", (), {"forked": True})()
    semaphore._state.process = parent
    point = semaphore.at(2)
    for call in (
        lambda: _query(semaphore),
        lambda: _wait(semaphore, 1),
        lambda: advance(semaphore, 9),
        lambda: semaphore.fail(ValueError()),
        lambda: point.add_callback(lambda *_told: None),
        lambda: tg.wait_all([point]),
    ):
        with pytest.raises(tg.FailedPreconditionError, match="was made before this process was forked"):
            call()
    assert (semaphore._state.payload, semaphore._state.failure) == (2, None)


def test_a_semaphore_of_the_parent_is_not_abandoned_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[Any] = []
    monkeypatch.setattr(module.reaper, "_notes", type("Notes", (), {"put": staticmethod(notes.append)})())
    kept: list[tg.Semaphore] = []
    for forked in (True, False):
        for waiting in (True, False):
            semaphore = tg.Semaphore()
            if waiting:
                semaphore._state.waiters[1] = {}
            semaphore._state.process = type("P", (), {"forked": forked})()
            kept.append(semaphore)
    states = [semaphore._state for semaphore in kept]
    del semaphore
    kept.clear()
    assert notes == [(_abandon, (states[2],))]


# Failures ----------------------------------------------------------------------------------------------------------


def test_failing_takes_exceptions_only() -> None:
    semaphore = tg.Semaphore(label="s")
    for wrong in (ValueError, "x", None):
        with pytest.raises(TypeError, match=r"^semaphore 's': fail takes an exception, not "):
            semaphore.fail(wrong)  # type: ignore[arg-type]
    semaphore.at(3).fail(KeyError("k"))
    assert isinstance(semaphore.failure, KeyError)


def test_a_failure_is_seen_by_whoever_asks_for_it_and_not_by_asking_for_the_value() -> None:
    semaphore = tg.Semaphore()
    assert semaphore.failure is None
    assert not semaphore._state.seen
    semaphore.fail(ValueError())
    assert semaphore.value == 0
    assert not semaphore._state.seen
    assert semaphore.failure is not None
    assert semaphore._state.seen
    assert semaphore.failure is not None
    assert semaphore._state.seen


def test_the_error_of_a_failed_timeline_has_a_timepoint_only_while_its_semaphore_lives() -> None:
    semaphore = tg.Semaphore(1, label="s")
    state = semaphore._state
    state.failure = ValueError()
    error = failed_error(state, 4)
    assert error.timepoint == semaphore.at(4)
    assert str(error) == "semaphore 's' failed at 1, before 4: ValueError"
    assert error.__cause__ is state.failure
    assert state.seen
    error.timepoint = None
    del semaphore
    assert failed_error(state, 4).timepoint is None
    assert failed_error(TimelineState(0, "", None), 1).timepoint is None
    assert brief(KeyError("x")) == "KeyError: 'x'"


def test_a_dropped_semaphore_that_lives_again_is_not_abandoned() -> None:
    semaphore = tg.Semaphore(label="s")
    _abandon(semaphore._state)
    assert semaphore.failure is None
    state = semaphore._state
    del semaphore
    _abandon(state)
    assert isinstance(state.failure, tg.AbortedError)
    lonely = TimelineState(0, "l", None)
    _abandon(lonely)
    assert isinstance(lonely.failure, tg.AbortedError)


def test_a_failure_looked_for_before_it_came_does_not_count_as_seen() -> None:
    semaphore = tg.Semaphore()
    told: list[Any] = []
    semaphore.at(1).add_callback(lambda *args: told.append(args))
    assert not semaphore._state.seen
    semaphore.fail(ValueError())
    assert semaphore._state.seen
    assert told[0][1] is tg.Outcome.FAILED


# Calm --------------------------------------------------------------------------------------------------------------


class Watching(TimelineState):
    """Notes whether it is calm while its payload or failure changes and waiters are told."""

    __slots__ = ("calm_then",)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "calm_then":
            super().__setattr__(name, value)
            return
        if name in ("payload", "failure") and hasattr(self, "calm_then"):
            self.calm_then.append((name, self.calm))
        super().__setattr__(name, value)


def watched() -> tuple[tg.Semaphore, Watching]:
    semaphore = tg.Semaphore()
    state = Watching(0, "w", None)
    state.owner = weakref.ref(semaphore)
    state.calm_then = []
    semaphore._state = state
    return semaphore, state


def test_a_timeline_is_not_calm_while_it_changes_under_the_lock_and_is_again_afterwards() -> None:
    semaphore, state = watched()
    advance(semaphore, 3)
    assert state.calm_then == [("payload", False)]
    assert state.calm is timeline.GIL
    state.calm_then.clear()
    fail(state, ValueError())
    assert state.calm_then == [("failure", False)]
    assert not state.calm


def test_finishing_ends_the_calm_before_it_looks_and_restores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = watched()
    seen: list[bool] = []
    collect = timeline.collect_locked

    def noting(*arguments: Any) -> None:
        seen.append(state.calm)
        collect(*arguments)

    monkeypatch.setattr(timeline, "collect_locked", noting)
    finish(state)
    assert seen == [False]
    assert state.calm is timeline.GIL


# Interrupts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["raise_locked", "settle_locked", "drain"])
def test_an_interrupted_signal_is_completed_by_the_reaper(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told = tg.Semaphore(), []
    semaphore.at(1).add_callback(lambda *_told: told.append(threading.current_thread().name))
    original = getattr(timeline, where)

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(timeline, where, original)
        original(*arguments) if where != "drain" else None
        raise KeyboardInterrupt

    monkeypatch.setattr(timeline, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        semaphore.signal(1)
    assert not thread_state.queue
    catch_up()
    assert told == ["tidegate-reaper"]
    assert semaphore.value == 1
    assert semaphore._state.waiters == {}
    assert semaphore._state.calm is timeline.GIL


def test_a_signal_interrupted_between_store_and_collection_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told = tg.Semaphore(), []
    semaphore.at(1).add_callback(lambda *_told: told.append(1))
    monkeypatch.setattr(timeline, "collect_locked", once(timeline.collect_locked, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        semaphore.signal(1)
    catch_up()
    assert told == [1]


@pytest.mark.parametrize("where", ["fail_locked", "drain"])
def test_an_interrupted_failure_is_completed_by_the_reaper(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told, problem = tg.Semaphore(), [], ValueError()
    semaphore.at(1).add_callback(lambda _point, _outcome, error: told.append(error))
    original = getattr(timeline, where)

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(timeline, where, original)
        if where == "fail_locked":
            arguments[0].failure = arguments[1]
        raise KeyboardInterrupt

    monkeypatch.setattr(timeline, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        semaphore.fail(problem)
    assert not thread_state.queue
    catch_up()
    assert told == [problem]


def test_a_refused_signal_leaves_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore = tg.Semaphore(5)
    notes: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(timeline, "reaper", type("R", (), {"leave": staticmethod(lambda *note: notes.append(note))})())
        with pytest.raises(tg.InvalidArgumentError):
            advance(semaphore, 5)
    assert notes == []


# Callbacks ---------------------------------------------------------------------------------------------------------


def test_a_callback_gets_its_timepoint_outcome_and_error() -> None:
    semaphore, told = tg.Semaphore(1), []
    for value in (1, 2, 3):
        semaphore.at(value).add_callback(lambda *given: told.append(given))
    semaphore.signal(2)
    problem = ValueError()
    semaphore.fail(problem)
    semaphore.at(3).add_callback(lambda *given: told.append(given))
    assert told == [
        (semaphore.at(1), tg.Outcome.REACHED, None),
        (semaphore.at(2), tg.Outcome.REACHED, None),
        (semaphore.at(3), tg.Outcome.FAILED, problem),
        (semaphore.at(3), tg.Outcome.FAILED, problem),
    ]
    with pytest.raises(TypeError, match=r"^add_callback takes a function, not int$"):
        semaphore.at(3).add_callback(3)  # type: ignore[arg-type]


def test_a_callback_on_something_failed_counts_as_looking_and_on_something_reached_does_not() -> None:
    semaphore = tg.Semaphore(1)
    semaphore.fail(ValueError())
    semaphore.at(1).add_callback(lambda *_told: None)
    assert not semaphore._state.seen
    semaphore.at(2).add_callback(lambda *_told: None)
    assert semaphore._state.seen
    semaphore.at(1).add_callback(lambda *_told: None)
    assert semaphore._state.seen


def test_a_callback_is_told_once_cancelled_for_good_and_lets_its_function_go() -> None:
    semaphore, out = tg.Semaphore(), deque[Any]()

    def function(*_told: object) -> None:
        pass

    due = semaphore.at(1).add_callback(function)
    assert not due.is_work
    due.due(semaphore._state, None, out)
    due.due(semaphore._state, ValueError(), out)
    assert list(out) == [due]
    assert due._error is None
    assert not due.cancel()  # it is on its way
    due.fire()
    assert due._function is None
    due.fire()
    assert not due.cancel()
    cancelled = semaphore.at(1).add_callback(function)
    assert cancelled.cancel()
    assert cancelled._function is None
    cancelled.due(semaphore._state, None, out)
    cancelled.fire()
    assert list(out) == [due]
    assert cancelled.cancel()
    due._unregister()


def test_what_a_callback_raises_is_reported_with_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)

    def fails(*_told: object) -> None:
        raise ValueError("from the callback")

    subscription = tg.Semaphore(1).at(1).add_callback(fails)
    ((report),) = reports
    assert (report.exc_type, report.object) == (ValueError, fails)
    assert subscription._function is None


def test_a_callback_interrupted_before_it_is_registered_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told = tg.Semaphore(), []
    monkeypatch.setattr(subscriptions, "drain", once(subscriptions.drain, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        semaphore.at(1).add_callback(lambda *_told: told.append(1))
    assert semaphore._state.waiters == {}
    semaphore.signal(1)
    assert told == []


def test_a_callback_interrupted_when_it_is_due_is_called_by_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, told = tg.Semaphore(1), []
    monkeypatch.setattr(subscriptions, "drain", once(subscriptions.drain, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        semaphore.at(1).add_callback(lambda *_told: told.append(threading.current_thread().name))
    assert not thread_state.queue
    catch_up()
    assert told == ["tidegate-reaper"]


def test_a_subscription_cancelled_inside_a_core_section_is_unregistered_later() -> None:
    semaphore = tg.Semaphore()
    subscription = semaphore.at(1).add_callback(lambda *_told: None)
    with core_lock:
        assert subscription.cancel()
        assert semaphore._state.waiters
    catch_up()
    assert semaphore._state.waiters == {}


def test_when_over_tells_nothing_but_that_it_is_over() -> None:
    semaphore, told = tg.Semaphore(), []
    subscription = when_over(semaphore.at(2), lambda *given: told.append(given))
    assert isinstance(subscription, Subscription)
    semaphore.fail(ValueError())
    when_over(semaphore.at(2), lambda *given: told.append(given))
    assert told == [(), ()]
    with pytest.raises(TypeError, match=r"^when_over takes timepoints and submissions, not int$"):
        when_over(3, print)


def test_timepoints_pass_everything_to_their_semaphore() -> None:
    semaphore = tg.Semaphore(label="s")
    point = semaphore.at(2)
    assert not point.reached
    assert "nobody has promised" in point.explain()
    with pytest.raises(tg.DeadlineExceededError):
        point.wait(0)
    point.signal()
    assert point.reached
    assert semaphore.at(1).reached
    assert not semaphore.at(3).reached
    point.wait(LIMIT)
    assert point._wait_target() == (semaphore._state, 2)


def test_a_semaphore_that_is_finalized_owns_nothing_and_one_made_anew_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[Any] = []
    monkeypatch.setattr(module, "reaper", type("R", (), {"leave": staticmethod(lambda *note: notes.append(note))})())
    semaphore = tg.Semaphore()
    state = semaphore._state
    state.waiters[1] = {}
    semaphore.__del__()
    assert state.owner is None
    assert notes == [(_abandon, state)]
    semaphore.__del__()
    assert len(notes) == 2
    heir = Semaphore._over(state)
    semaphore.__del__()
    assert state.owner is not None
    assert state.owner() is heir
    state.waiters.clear()
    semaphore.__del__()
    heir.__del__()
    assert len(notes) == 3


def test_a_semaphore_whose_constructor_refused_is_finalized_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with pytest.raises(tg.InvalidArgumentError):
        tg.Semaphore(-1)
    Semaphore.__new__(Semaphore).__del__()
    assert unraisable == []


def test_a_timepoint_is_awaited_to_its_value_and_not_below() -> None:
    import asyncio

    semaphore, seen = tg.Semaphore(), []

    async def wait() -> None:
        await semaphore.at(2)
        seen.append(semaphore.value)

    async def main() -> None:
        task = asyncio.ensure_future(wait())
        for value in (1, 2):
            await asyncio.sleep(0)
            semaphore.signal(value)
            await asyncio.sleep(0)
        await asyncio.wait_for(task, LIMIT)

    asyncio.run(main())
    assert seen == [2]
