"""Semaphores and timepoints at their edges: texts, copies, values, and the short ways."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import semaphore as module
from tidegate._core import timeline
from tidegate._core.semaphore import Semaphore, _query, _wait
from tidegate._core.timeline import TimelineState, abandon, advance, checked_value, fail, finish
from tidegate._core.timepoint import Timepoint

from .hand_driver import LIMIT

TOP = 2**64 - 2


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
    assert notes == [(abandon, (states[2],))]


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
