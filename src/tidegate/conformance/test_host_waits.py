"""Waiting on one thread: polls, timeouts, wait_all and wait_any."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg

from .latches import LIMIT
from .threads import background
from .witnesses import Recorder

pytestmark = pytest.mark.rules("M9")


# Waiting ------------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M8")
def test_a_poll_of_an_unreached_value_raises_and_changes_nothing() -> None:
    sem = tg.Semaphore(1)
    with pytest.raises(tg.DeadlineExceededError) as caught:
        sem.wait(2, timeout=0)
    assert isinstance(caught.value, TimeoutError)
    assert sem.value == 1
    sem.signal(2)
    sem.wait(2, timeout=0)


@pytest.mark.rules("M8")
@pytest.mark.parametrize("timeout", [None, 0, 0.0, 5, 0.25, math.inf])
def test_waiting_for_what_is_reached_returns_at_once_with_any_timeout(timeout: float | None) -> None:
    sem = tg.Semaphore(3)
    sem.wait(2, timeout)
    sem.at(3).wait(timeout)
    tg.wait_all([sem.at(3)], timeout)
    assert tg.wait_any([sem.at(9), sem.at(1)], timeout) == sem.at(1)


@pytest.mark.rules("M8")
@pytest.mark.parametrize("timeout", [-1, -0.001, -math.inf, math.nan])
@pytest.mark.parametrize("value", [1, 2])
def test_a_negative_timeout_or_nan_is_refused_reached_or_not(timeout: float, value: int) -> None:
    sem = tg.Semaphore(1)
    point = sem.at(value)
    waits: list[Callable[[], object]] = [
        lambda: sem.wait(value, timeout),
        lambda: point.wait(timeout),
        lambda: tg.wait_all([point], timeout),
        lambda: tg.wait_any([point], timeout),
    ]
    for wait in waits:
        with pytest.raises(tg.InvalidArgumentError):
            wait()


@pytest.mark.rules("M8")
def test_a_timeout_that_is_no_number_is_a_type_error() -> None:
    timeout: Any = "soon"
    with pytest.raises(TypeError):
        tg.Semaphore().wait(1, timeout)


@pytest.mark.rules("M8")
def test_a_wait_that_runs_over_its_time_leaves_the_value_alone_and_succeeds_later() -> None:
    sem = tg.Semaphore()
    for timeout in (0, 0.001, 0.02):
        with pytest.raises(tg.DeadlineExceededError):
            sem.wait(1, timeout)
        assert sem.value == 0
        assert sem.failure is None
    sem.signal(1)
    sem.wait(1, timeout=LIMIT)


# All and any --------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M9")
@pytest.mark.parametrize("timeout", [None, 0, 1.5])
def test_waiting_for_nothing_returns_at_once(timeout: float | None) -> None:
    assert tg.wait_all([], timeout) is None  # type: ignore[func-returns-value]
    assert tg.wait_any([], timeout) is None


@pytest.mark.rules("M9")
def test_wait_all_needs_every_point() -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    one.signal(1)
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_all([one.at(1), other.at(1)], timeout=0)
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_all([one.at(1), other.at(1)], timeout=0.01)
    other.signal(1)
    tg.wait_all([one.at(1), other.at(1)], timeout=LIMIT)


@pytest.mark.rules("M9")
def test_wait_any_returns_the_very_object_that_is_reached() -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    other.signal(5)
    missing, reached = one.at(1), other.at(5)
    assert tg.wait_any([missing, reached], timeout=LIMIT) is reached
    assert tg.wait_any(iter([missing, reached]), timeout=0) is reached


@pytest.mark.rules("M9")
@pytest.mark.parametrize("index", range(3))
def test_who_sleeps_in_wait_any_gets_the_point_that_ended_it(index: int) -> None:
    semaphores = [tg.Semaphore() for _ in range(3)]
    points = [semaphore.at(1) for semaphore in semaphores]
    sleeper = background(tg.wait_any, points, LIMIT)
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_any(points, 0.02)  # the other is asleep by then
    semaphores[index].signal(1)
    assert sleeper.result() is points[index]


@pytest.mark.rules("M9")
def test_wait_all_sleeps_until_the_last_point_is_reached() -> None:
    semaphores = [tg.Semaphore() for _ in range(3)]
    points = [semaphore.at(1) for semaphore in semaphores]
    sleeper = background(tg.wait_all, points, LIMIT)
    for semaphore in semaphores:
        with pytest.raises(tg.DeadlineExceededError):
            tg.wait_all(points, 0.02)
        assert sleeper.running
        semaphore.signal(1)
    sleeper.result()


@pytest.mark.rules("M9")
@pytest.mark.parametrize("wait", [tg.wait_all, tg.wait_any])
def test_a_wait_for_nothing_refuses_a_wrong_timeout_too(wait: Callable[..., object]) -> None:
    with pytest.raises(tg.InvalidArgumentError):
        wait([], timeout=-1)
    with pytest.raises(TypeError):
        wait([], timeout="soon")


@pytest.mark.rules("M9")
@pytest.mark.parametrize("wait", [tg.wait_all, tg.wait_any])
def test_points_that_are_no_collection_are_a_type_error(wait: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="iterable"):
        wait(3)


@pytest.mark.rules("M9")
def test_wait_any_of_nothing_reached_runs_over_its_time() -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    for timeout in (0, 0.01):
        with pytest.raises(tg.DeadlineExceededError):
            tg.wait_any([one.at(1), other.at(1)], timeout)


@pytest.mark.rules("M9")
def test_a_failure_ends_wait_all_and_wait_any_with_its_cause() -> None:
    broken, missing = tg.Semaphore(), tg.Semaphore()
    error = ValueError("broken")
    broken.fail(error)
    for wait in (tg.wait_all, tg.wait_any):
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            wait([missing.at(1), broken.at(1)], timeout=LIMIT)
        assert caught.value.__cause__ is error
    assert missing.value == 0
    assert missing.failure is None


@pytest.mark.rules("M9")
@pytest.mark.parametrize("reached_first", [True, False])
def test_in_wait_any_what_is_reached_wins_over_what_has_failed(reached_first: bool) -> None:
    broken, sound = tg.Semaphore(), tg.Semaphore()
    broken.fail(ValueError("broken"))
    sound.signal(1)
    reached = sound.at(1)
    points = [reached, broken.at(1)] if reached_first else [broken.at(1), reached]
    assert tg.wait_any(points, timeout=LIMIT) is reached


@pytest.mark.rules("M9")
def test_in_wait_all_a_failure_counts_although_the_others_are_reached() -> None:
    broken, sound = tg.Semaphore(), tg.Semaphore(1)
    broken.fail(ValueError("broken"))
    with pytest.raises(tg.SemaphoreFailedError):
        tg.wait_all([sound.at(1), broken.at(1)], timeout=0)


@pytest.mark.rules("M9")
def test_the_same_point_may_stand_twice_in_all_and_any() -> None:
    sem = tg.Semaphore(1)
    point = sem.at(1)
    tg.wait_all([point, point, sem.at(1)], timeout=LIMIT)
    assert tg.wait_any([sem.at(2), point, point], timeout=LIMIT) is point


@pytest.mark.rules("M9")
@pytest.mark.parametrize(
    "foreign", ["point", 3, None, object(), tg.Semaphore(1)], ids=["str", "int", "none", "object", "semaphore"]
)
def test_foreign_objects_among_the_points_are_a_type_error(foreign: Any) -> None:
    sem = tg.Semaphore(1)
    for wait in (tg.wait_all, tg.wait_any):
        with pytest.raises(TypeError):
            wait([sem.at(1), foreign], timeout=0)


@pytest.mark.rules("M9")
def test_losers_of_a_wait_keep_no_residue() -> None:
    """Neither in the semaphore that did not decide the wait, nor of that semaphore."""

    class Error(Exception):
        pass

    def living() -> int:
        gc.collect()
        return sum(str(type(thing).__module__).partition(".")[0] == "tidegate" for thing in gc.get_objects())

    sem, other = tg.Semaphore(), tg.Semaphore(1)
    before = living()
    for _ in range(100):
        assert tg.wait_any([sem.at(5), other.at(1)], timeout=LIMIT) == other.at(1)
        with pytest.raises(tg.DeadlineExceededError):
            tg.wait_any([sem.at(5)], timeout=0.0001)
        with pytest.raises(tg.DeadlineExceededError):
            tg.wait_all([sem.at(5), other.at(1)], timeout=0.0001)
    assert living() - before < 100
    recorder = Recorder()
    sem.at(5).add_callback(recorder)
    error = Error()
    sem.fail(error)
    assert recorder.outcomes == [tg.Outcome.FAILED]
    gone = weakref.ref(error)
    del error, sem, recorder
    gc.collect()
    assert gone() is None
