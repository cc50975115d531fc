"""Semaphores and timepoints on one thread: values, failure, and what devices have to do with them."""

from __future__ import annotations

import gc
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


def test_a_timepoint_may_be_made_of_a_semaphore_and_a_value() -> None:
    sem = tg.Semaphore()
    point = tg.Timepoint(sem, 3)
    assert (point.semaphore, point.value) == (sem, 3)
    assert point == sem.at(3)
    for value in (-1, 2**64 - 1):
        with pytest.raises(tg.InvalidArgumentError):
            tg.Timepoint(sem, value)
    with pytest.raises(TypeError):
        tg.Timepoint(sem, "3")  # type: ignore[arg-type]


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
