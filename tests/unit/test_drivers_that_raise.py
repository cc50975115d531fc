"""A driver that raises while it is given work: nothing is lost, nothing is told too early (M16, M17, M19, M22)."""

from __future__ import annotations

import threading

import pytest

import tidegate as tg
from tidegate.testing import ManualDevice, ManualPiece

LIMIT = 30.0


def fill(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.queue.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def raise_once(manual: ManualDevice, when: str, error: BaseException) -> None:
    """Have the device raise at its next piece, before or after it takes that."""

    def broken(_piece: ManualPiece) -> None:
        setattr(manual, f"{when}_taking", None)
        raise error

    setattr(manual, f"{when}_taking", broken)


ERRORS = pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=["error", "interrupt"])


def submit(error: BaseException, call: object) -> None:
    """Submit what the device raises for: an error concerns the submission alone, an interrupt comes out."""
    if isinstance(error, Exception):
        call()  # type: ignore[operator]
        return
    with pytest.raises(KeyboardInterrupt) as caught:
        call()  # type: ignore[operator]
    assert caught.value is error


@ERRORS
def test_what_is_raised_before_the_work_was_taken_fails_it_now(either: ManualDevice, error: BaseException) -> None:
    done, late = tg.Semaphore(), tg.Semaphore()
    follower = fill(either, wait=done.at(1), signal=late.at(1))
    raise_once(either, "before", error)
    submit(error, lambda: fill(either, signal=done.at(1)))
    assert done.failure is error
    assert follower.error is error
    assert either.issued == []
    assert either.device.statistics().issued == 0
    assert error.__traceback__ is None or not isinstance(error, Exception)


@ERRORS
def test_what_is_raised_after_the_work_was_taken_fails_it_at_its_end(
    either: ManualDevice, error: BaseException
) -> None:
    done = tg.Semaphore()
    raise_once(either, "after", error)
    submit(error, lambda: fill(either, signal=done.at(1)))
    (piece,) = either.issued
    assert done.failure is None
    assert either.device.statistics().issued == 1
    piece.finish()
    assert done.failure is error
    assert done.value == 0


@ERRORS
def test_what_was_raised_first_wins_over_what_the_device_says_at_the_end(
    either: ManualDevice, error: BaseException
) -> None:
    done = tg.Semaphore()
    raise_once(either, "after", error)
    submit(error, lambda: fill(either, signal=done.at(1)))
    either.issued[0].fail(KeyError("and the work failed too"))
    assert done.failure is error


@ERRORS
@pytest.mark.parametrize("when", ["before", "after"])
def test_held_work_that_a_signal_sets_free_fails_the_same_way(
    either: ManualDevice, error: BaseException, when: str
) -> None:
    gate, done, through = tg.Semaphore(), tg.Semaphore(), threading.Event()
    held = [fill(either, wait=gate.at(1), signal=done.at(1)), fill(either, wait=gate.at(1))]
    gate.at(1).add_callback(lambda *_told: through.set())
    raise_once(either, when, error)
    submit(error, lambda: gate.signal(1))
    assert through.wait(LIMIT), "what stood behind it was lost"
    either.finish_all()
    assert [one.error for one in held] == [error, None]
    assert done.failure is error


@ERRORS
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("order", ["producer first", "follower first"])
def test_work_that_goes_down_behind_other_work_fails_the_same_way(
    counting: ManualDevice, error: BaseException, when: str, order: str
) -> None:
    ready, done = tg.Semaphore(), tg.Semaphore()

    def submit_both() -> None:
        calls = [
            lambda: fill(counting, signal=ready.at(1)),
            lambda: fill(counting, wait=ready.at(1), signal=done.at(1)),
        ]
        for call in calls if order == "producer first" else calls[::-1]:
            call()

    def broken(piece: ManualPiece) -> None:
        if piece.waits:
            raise error

    setattr(counting, f"{when}_taking", broken)
    submit(error, submit_both)
    assert (done.failure is error) is (when == "before")
    counting.finish_all()
    assert (ready.value, ready.failure) == (1, None)
    assert (done.value, done.failure) == (0, error)


@ERRORS
def test_where_a_follower_was_refused_and_raises_later_it_fails_then(
    counting: ManualDevice, error: BaseException
) -> None:
    counting.follows = False
    steps = tg.Semaphore()
    fill(counting, signal=steps.at(1))
    fill(counting, wait=steps.at(1), signal=steps.at(2))
    raise_once(counting, "before", error)
    submit(error, lambda: counting.issued[0].finish())
    assert (steps.value, steps.failure) == (1, error)


def test_an_allocation_that_finds_no_memory_is_tried_again_when_something_ends(either: ManualDevice) -> None:
    fill(either)

    def full(_piece: ManualPiece) -> None:
        raise tg.ResourceExhaustedError("full")

    either.before_taking = full
    buffer = either.queue.allocate(16)
    assert buffer.ready.explain().endswith("ready, but waiting for memory")
    either.before_taking = None
    either.issued[0].finish()
    (piece,) = either.issued
    assert piece.submission is buffer.ready
    piece.finish()
    assert buffer.ready.error is None


def test_an_allocation_that_finds_no_memory_fails_where_nothing_can_help(either: ManualDevice) -> None:
    done, problem = tg.Semaphore(), tg.ResourceExhaustedError("full")

    def broken(_piece: ManualPiece) -> None:
        raise problem

    either.before_taking = broken
    buffer = either.queue.allocate(16, signal=done.at(1))
    assert buffer.ready.error is problem
    assert done.failure is problem
    either.before_taking = None
    fine = either.queue.allocate(16)
    either.finish_all()
    assert fine.ready.error is None


def test_other_work_that_finds_no_memory_fails(either: ManualDevice) -> None:
    problem = tg.ResourceExhaustedError("no room for a command")
    fill(either)
    raise_once(either, "before", problem)
    assert fill(either).error is problem


def test_an_interrupt_while_an_allocation_is_tried_again_fails_that_one_and_the_next_is_served(
    either: ManualDevice,
) -> None:
    fill(either)

    def full(_piece: ManualPiece) -> None:
        raise tg.ResourceExhaustedError("full")

    either.before_taking = full
    first, second = either.queue.allocate(16), either.queue.allocate(16)
    raise_once(either, "before", KeyboardInterrupt())
    either.automatic = True
    with pytest.raises(KeyboardInterrupt):
        either.issued[0].finish()
    second.ready.wait(LIMIT)
    assert isinstance(first.ready.error, KeyboardInterrupt)


def test_an_interrupt_among_many_that_a_loss_ends_loses_none(either: ManualDevice) -> None:
    dones = [tg.Semaphore() for _ in range(20)]
    for done in dones:
        fill(either, signal=done.at(1))

    def interrupt(*_told: object) -> None:
        raise KeyboardInterrupt

    dones[3].at(1).add_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        either.lose(OSError("unplugged"))
    for done in dones:
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            done.wait(1, LIMIT)
        assert isinstance(caught.value.__cause__, tg.DeviceLostError)
