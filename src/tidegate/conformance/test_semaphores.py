"""Semaphores and timepoints on one thread: values, failure, waits, wait_all and wait_any, callbacks, dropping."""

from __future__ import annotations

import gc
import itertools
import math
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg

from .latches import LIMIT

LARGEST = 2**64 - 2

pytestmark = pytest.mark.rules("M1", "M4")


@pytest.fixture(params=["host", "device"])
def make(request: pytest.FixtureRequest) -> Callable[..., tg.Semaphore]:
    """Both ways to make a semaphore."""
    if request.param == "host":
        return tg.Semaphore
    device: tg.Device = request.getfixturevalue("device")
    return device.create_semaphore


class Recorder:
    """A callback that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[tg.Timepoint, tg.Outcome, BaseException | None]] = []

    def __call__(self, point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        self.calls.append((point, outcome, error))

    @property
    def outcomes(self) -> list[tg.Outcome]:
        return [outcome for _, outcome, _ in self.calls]


# Values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initial", [0, 1, 7, LARGEST])
def test_a_semaphore_starts_at_its_initial_value(make: Callable[..., tg.Semaphore], initial: int) -> None:
    sem = make(initial)
    assert sem.value == initial
    assert sem.query() == initial
    assert sem.failure is None
    sem.wait(initial, timeout=0)


def test_without_an_initial_value_a_semaphore_starts_at_zero(make: Callable[..., tg.Semaphore]) -> None:
    assert make().value == 0


def test_signals_raise_the_payload_by_any_step(make: Callable[..., tg.Semaphore]) -> None:
    sem = make()
    for value in (2, 3, 40):
        sem.signal(value)
        assert sem.value == value
        assert sem.query() == value


@pytest.mark.rules("M6")
@pytest.mark.parametrize("value", [0, 4, 5])
def test_a_signal_that_does_not_raise_the_payload_is_refused_and_changes_nothing(
    make: Callable[..., tg.Semaphore], value: int
) -> None:
    sem = make(5, label="tide")
    with pytest.raises(tg.InvalidArgumentError, match=r"tide.*5"):
        sem.signal(value)
    assert sem.value == 5
    assert sem.failure is None
    sem.signal(6)
    assert sem.value == 6


def test_the_largest_value_can_be_signalled_and_waited_for(make: Callable[..., tg.Semaphore]) -> None:
    sem = make()
    sem.signal(LARGEST)
    sem.wait(LARGEST, timeout=0)
    assert sem.value == LARGEST


@pytest.mark.parametrize("value", [-1, LARGEST + 1, 2**64, 2**100])
def test_values_outside_of_the_range_are_refused_everywhere(make: Callable[..., tg.Semaphore], value: int) -> None:
    sem = make(label="tide")
    for use in (sem.signal, sem.at, lambda v: sem.wait(v, timeout=0), lambda v: make(v)):
        with pytest.raises(tg.InvalidArgumentError):
            use(value)
    assert sem.value == 0
    assert sem.failure is None


@pytest.mark.parametrize("value", ["1", 1.0, None, b"bytes", [1]])
def test_a_value_that_is_no_integer_is_a_type_error(make: Callable[..., tg.Semaphore], value: Any) -> None:
    sem = make()
    for use in (sem.signal, sem.at, lambda v: sem.wait(v, timeout=0), lambda v: make(v)):
        with pytest.raises(TypeError):
            use(value)
    assert sem.value == 0


def test_numpy_integers_are_values() -> None:
    np = pytest.importorskip("numpy")
    sem = tg.Semaphore(np.uint64(3))
    sem.signal(np.uint64(LARGEST))
    assert sem.value == LARGEST
    assert type(sem.value) is int


def test_labels_show_in_the_repr_and_in_errors(make: Callable[..., tg.Semaphore]) -> None:
    sem = make(label="spring tide")
    assert "spring tide" in repr(sem)
    assert "spring tide" in repr(sem.at(3))
    with pytest.raises(tg.DeadlineExceededError, match="spring tide"):
        sem.wait(3, timeout=0)


# Timepoints ---------------------------------------------------------------------------------------------------------


def test_a_timepoint_is_reached_once_the_payload_is_at_or_above_its_value() -> None:
    sem = tg.Semaphore()
    point = sem.at(3)
    assert (point.semaphore, point.value) == (sem, 3)
    assert not point.reached
    sem.signal(2)
    assert not point.reached
    sem.signal(3)
    assert point.reached
    sem.signal(10)
    assert point.reached


def test_timepoints_compare_and_hash_by_semaphore_and_value() -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    assert one.at(1) == one.at(1)
    assert hash(one.at(1)) == hash(one.at(1))
    assert len({one.at(1), one.at(1), one.at(2), other.at(1)}) == 3
    assert one.at(1) != one.at(2)
    assert one.at(1) != other.at(1)
    assert one.at(1) != 1


def test_a_timepoint_signals_and_fails_its_semaphore() -> None:
    sem = tg.Semaphore()
    sem.at(4).signal()
    assert sem.value == 4
    error = ValueError("no more")
    sem.at(9).fail(error)
    assert sem.failure is error


def test_next_gives_out_rising_values_above_the_payload_and_each_value_given_out_before() -> None:
    sem = tg.Semaphore(5)
    assert [sem.next().value for _ in range(3)] == [6, 7, 8]
    sem.signal(20)
    assert sem.next().value == 21


@pytest.mark.rules("M3", "M4")
def test_next_is_above_every_claimed_value(queue: tg.Queue) -> None:
    sem, gate = tg.Semaphore(), tg.Semaphore()
    queue.barrier(wait=gate.at(1), signal=sem.at(10))
    assert sem.next().value == 11
    gate.signal(1)
    sem.wait(10, timeout=LIMIT)


def test_next_past_the_largest_value_is_refused() -> None:
    sem = tg.Semaphore(LARGEST)
    with pytest.raises(tg.InvalidArgumentError):
        sem.next()


# Failure ------------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M7")
def test_a_failure_reaches_a_waiter_as_the_cause_the_same_object_with_its_text() -> None:
    sem = tg.Semaphore(label="tide")
    error = OSError(28, "no space left on the device")
    sem.fail(error)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        sem.wait(1, timeout=LIMIT)
    assert caught.value.__cause__ is error
    assert (error.errno, error.strerror) == (28, "no space left on the device")
    assert caught.value.timepoint == sem.at(1)
    assert "tide" in str(caught.value)
    assert "no space left" in str(caught.value)


@pytest.mark.rules("M7")
def test_the_first_failure_wins() -> None:
    sem = tg.Semaphore()
    first, second = ValueError("first"), ValueError("second")
    sem.fail(first)
    sem.fail(second)
    assert sem.failure is first
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        sem.query()
    assert caught.value.__cause__ is first


@pytest.mark.rules("M7")
def test_after_a_failure_the_past_stands() -> None:
    sem = tg.Semaphore()
    sem.signal(3)
    sem.fail(ValueError("later"))
    assert sem.value == 3
    assert sem.at(3).reached
    assert not sem.at(4).reached
    sem.wait(3, timeout=0)
    sem.at(2).wait(timeout=0)
    tg.wait_all([sem.at(1), sem.at(3)], timeout=0)
    with pytest.raises(tg.SemaphoreFailedError):
        sem.wait(4, timeout=0)


@pytest.mark.rules("M7")
def test_after_a_failure_signal_and_query_raise_and_value_does_not() -> None:
    sem = tg.Semaphore(2)
    error = ValueError("broken")
    sem.fail(error)
    for use in (lambda: sem.signal(3), lambda: sem.at(3).signal(), sem.query):
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            use()
        assert caught.value.__cause__ is error
    assert sem.value == 2


@pytest.mark.rules("M7")
def test_a_failure_pins_no_local_of_the_frames_it_passed_through() -> None:
    class Large:
        pass

    def broken() -> None:
        large = Large()
        seen.append(weakref.ref(large))
        raise ValueError("broken")

    seen: list[weakref.ref[Large]] = []
    sem = tg.Semaphore()
    try:
        broken()
    except ValueError as error:
        sem.fail(error)
    gc.collect()
    assert seen[0]() is None
    assert sem.failure is not None
    assert "broken" in "".join(traceback.format_exception(sem.failure))


@pytest.mark.rules("M7")
@pytest.mark.parametrize("error", ["text", None, 3, ValueError])
def test_a_failure_that_is_no_exception_object_is_a_type_error(error: Any) -> None:
    sem = tg.Semaphore()
    with pytest.raises(TypeError):
        sem.fail(error)
    assert sem.failure is None
    sem.signal(1)


@pytest.mark.rules("M7")
def test_failing_one_semaphore_leaves_the_others_alone() -> None:
    broken, sound = tg.Semaphore(), tg.Semaphore()
    broken.fail(ValueError("broken"))
    sound.signal(1)
    assert sound.query() == 1
    assert sound.failure is None


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


# Callbacks ----------------------------------------------------------------------------------------------------------


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


# Dropping the right to signal ---------------------------------------------------------------------------------------


@pytest.mark.rules("M12")
def test_when_a_semaphore_is_collected_a_held_submission_that_waits_for_it_is_aborted(queue: tg.Queue) -> None:
    sem = tg.Semaphore(label="dropped")
    held = queue.barrier(wait=sem.at(1))
    assert not held.done
    del sem
    gc.collect()
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        held.wait(timeout=LIMIT)
    assert isinstance(caught.value.__cause__, tg.AbortedError)
    assert isinstance(held.error, tg.AbortedError)


@pytest.mark.rules("M12")
def test_a_dropped_semaphore_aborts_the_dependents_down_the_chain(queue: tg.Queue) -> None:
    sem, end = tg.Semaphore(), tg.Semaphore()
    middle = tg.Semaphore()
    queue.barrier(wait=sem.at(1), signal=middle.at(1))
    queue.barrier(wait=middle.at(1), signal=end.at(1))
    del sem, middle
    gc.collect()
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        end.wait(1, timeout=LIMIT)
    assert isinstance(caught.value.__cause__, tg.AbortedError)


@pytest.mark.rules("M12")
def test_a_timepoint_holds_the_right_to_signal(queue: tg.Queue) -> None:
    point = tg.Semaphore().at(1)
    held = queue.barrier(wait=point)
    gc.collect()
    assert held.error is None
    point.signal()
    held.wait(timeout=LIMIT)


@pytest.mark.rules("M12")
def test_a_submission_holds_the_semaphores_it_will_signal(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    middle = tg.Semaphore()
    queue.barrier(wait=gate.at(1), signal=middle.at(1))
    last = queue.barrier(wait=middle.at(1))
    del middle
    gc.collect()
    gate.signal(1)
    last.wait(timeout=LIMIT)


@pytest.mark.rules("M12", "M18")
def test_an_unreachable_cycle_of_held_submissions_ends(queue: tg.Queue) -> None:
    one, other, watched = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    queue.barrier(wait=one.at(1), signal=[other.at(1), watched.at(1)])
    queue.barrier(wait=other.at(1), signal=one.at(1))
    del one, other
    gc.collect()
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        watched.wait(1, timeout=LIMIT)
    assert isinstance(caught.value.__cause__, tg.AbortedError)


@pytest.mark.rules("M12")
def test_a_reached_timepoint_of_a_dropped_semaphore_stays_reached(queue: tg.Queue) -> None:
    sem = tg.Semaphore(3)
    work = queue.barrier(wait=sem.at(2))
    del sem
    gc.collect()
    work.wait(timeout=LIMIT)
    assert work.error is None


@pytest.mark.rules("M12")
def test_a_finalizer_may_signal_and_fail() -> None:
    class Signaller:
        def __init__(self) -> None:
            self.itself = self  # only the collector frees it

        def __del__(self) -> None:
            signalled.signal(1)
            failed.fail(error)

    signalled, failed = tg.Semaphore(), tg.Semaphore()
    error = ValueError("from a finalizer")
    Signaller()
    gc.collect()
    signalled.wait(1, timeout=LIMIT)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        failed.wait(1, timeout=LIMIT)
    assert caught.value.__cause__ is error


# Devices and semaphores ---------------------------------------------------------------------------------------------


@pytest.mark.rules("M1")
def test_a_semaphore_belongs_to_no_device(queue: tg.Queue, partner_device: tg.Device) -> None:
    sem = partner_device.create_semaphore()
    queue.barrier(wait=sem.at(1), signal=sem.at(2))
    sem.signal(1)
    sem.wait(2, timeout=LIMIT)


@pytest.mark.rules("M1", "M35")
def test_semaphores_outlive_their_device(open_device: Callable[..., tg.Device]) -> None:
    device = open_device()
    sem = device.create_semaphore()
    point = sem.at(1)
    device.close(timeout=LIMIT)
    sem.signal(1)
    assert point.reached
    point.wait(timeout=0)


@pytest.mark.rules("M1")
def test_a_device_tells_how_it_works_with_a_semaphore(device: tg.Device) -> None:
    compatibility = device.semaphore_compatibility(tg.Semaphore())
    assert tg.Compatibility.HOST_WAIT in compatibility
    assert tg.Compatibility.HOST_SIGNAL in compatibility


@pytest.mark.rules("M1")
def test_a_device_puts_its_name_into_the_label_of_its_semaphores(device: tg.Device) -> None:
    assert "tide" in repr(device.create_semaphore(label="tide"))
    assert device.create_semaphore(initial_value=4, label="tide").value == 4
