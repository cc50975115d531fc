"""The end of what a device counts: in order, noticed by whoever looks, well or not (M3, M7, M17)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import tidegate as tg
from tidegate.conformance.threads import background
from tidegate.testing import ManualDevice, ManualPiece

LIMIT = 30.0


def fill(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.queue.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def beside(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.transfer.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def test_what_is_over_is_retired_in_order_and_the_rest_stays(counting: ManualDevice) -> None:
    order: list[int] = []
    steps = tg.Semaphore()
    for value in range(1, 5):
        fill(counting, signal=steps.at(value))
        steps.at(value).add_callback(lambda point, *_told: order.append(point.value))
    counting.issued[1].finish(tell=False)
    assert order == []
    assert counting.device.statistics().retired == 2
    assert order == [1, 2]
    counting.issued[-1].finish()
    assert order == [1, 2, 3, 4]


def test_what_was_promised_is_retired_before_what_followed_it(counting: ManualDevice) -> None:
    steps, order = tg.Semaphore(), []
    works = [
        fill(counting, signal=steps.at(1)),
        beside(counting, wait=steps.at(1), signal=steps.at(2)),
        fill(counting, wait=steps.at(2), signal=steps.at(3)),
    ]
    for value in (1, 2, 3):
        steps.at(value).add_callback(lambda point, outcome, _error: order.append((point.value, outcome)))
    for piece in counting.issued:
        piece.finish(tell=False)
    assert works[1].done  # a look at the second queue retires what the first has to do first
    assert order[:2] == [(value, tg.Outcome.REACHED) for value in (1, 2)]
    assert steps.value == 3
    assert order == [(value, tg.Outcome.REACHED) for value in (1, 2, 3)]


def test_a_failure_reaches_those_who_followed_although_they_ran(counting: ManualDevice) -> None:
    one, other, problem = tg.Semaphore(), tg.Semaphore(), ZeroDivisionError("epoch 1")
    works = [
        fill(counting, signal=one.at(1)),
        fill(counting, wait=one.at(1), signal=other.at(1)),
        fill(counting, wait=other.at(1)),
        fill(counting),
    ]
    counting.issued[0].fail(problem, tell=False)
    counting.finish_all()
    assert [work.error for work in works] == [problem] * 3 + [None]
    assert (one.value, other.value, one.failure, other.failure) == (0, 0, problem, problem)


def test_a_follower_of_what_was_reached_before_it_failed_is_well(counting: ManualDevice) -> None:
    steps, done = tg.Semaphore(), tg.Semaphore()
    fill(counting, signal=steps.at(1))
    follower = fill(counting, wait=steps.at(1), signal=done.at(1))
    counting.issued[0].finish(tell=False)
    assert steps.value == 1
    steps.fail(ValueError("afterwards"))
    counting.finish_all()
    assert follower.error is None
    assert done.value == 1


def test_failing_a_semaphore_looks_first_whether_it_was_reached(counting: ManualDevice) -> None:
    steps = tg.Semaphore()
    work = fill(counting, signal=steps.at(1))
    counting.issued[0].finish(tell=False)
    steps.fail(ValueError("too late for 1"))
    assert (steps.value, work.error) == (1, None)


async def awaits(point: tg.Timepoint) -> None:
    await point


def poll_another() -> None:
    with pytest.raises(tg.DeadlineExceededError):
        tg.Semaphore().wait(1, 0)


LOOKS: dict[str, Callable[[tg.Device, tg.Submission, tg.Semaphore], object]] = {
    "value": lambda _device, _work, done: done.value,
    "query": lambda _device, _work, done: done.query(),
    "failure": lambda _device, _work, done: done.failure,
    "reached": lambda _device, _work, done: done.at(1).reached,
    "poll": lambda _device, _work, done: done.wait(1, 0),
    "wait": lambda _device, _work, done: done.wait(1, LIMIT),
    "wait_any": lambda _device, _work, done: tg.wait_any([done.at(1)], 0),
    "wait_all": lambda _device, _work, done: tg.wait_all([done.at(1)], LIMIT),
    "await": lambda _device, _work, done: asyncio.run(awaits(done.at(1))),
    "done": lambda _device, work, _done: work.done,
    "error": lambda _device, work, _done: work.error,
    "result": lambda _device, work, _done: work.result(LIMIT),
    "statistics": lambda device, _work, _done: device.statistics(),
    "another poll": lambda _device, _work, _done: poll_another(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whoever_looks_finds_what_is_over_though_nobody_was_told(
    counting: ManualDevice, look: Callable[..., object]
) -> None:
    done, told = tg.Semaphore(), []
    work = fill(counting, signal=done.at(1))
    done.at(1).add_callback(lambda *_told: told.append(1))
    counting.issued[0].finish(tell=False)
    assert told == []
    look(counting.device, work, done)
    assert told == [1]


def test_a_look_from_inside_of_a_driver_ends_nothing(counting: ManualDevice) -> None:
    done, seen = tg.Semaphore(), []
    fill(counting, signal=done.at(1))
    counting.issued[0].finish(tell=False)
    counting.before_taking = lambda _piece: seen.append((done.value, done.at(1).reached))
    fill(counting)
    assert seen == [(0, False)]
    assert done.value == 1


def test_a_thread_that_sleeps_is_told(counting: ManualDevice) -> None:
    done, asked = tg.Semaphore(), threading.Event()
    work = fill(counting, signal=done.at(1))
    arm = work.timeline.arm
    work.timeline.arm = lambda epoch: (arm(epoch), asked.set())
    waiting = background(done.wait, 1, LIMIT)
    assert asked.wait(LIMIT)
    counting.issued[0].finish()
    waiting.result()


@pytest.mark.parametrize("wait", ["thread", "await"])
def test_who_is_woken_looks_once_more(counting: ManualDevice, wait: str) -> None:
    """What is over by then counts, also what nobody told of; and the first of the list wins."""
    first, second, asked = tg.Semaphore(), tg.Semaphore(), threading.Semaphore(0)
    for work in (fill(counting, signal=first.at(1)), beside(counting, signal=second.at(1))):
        arm = work.timeline.arm
        work.timeline.arm = lambda epoch, arm=arm: (arm(epoch), asked.release())
    points = [first.at(1), second.at(1)]

    async def awaited() -> object:
        return await tg.when_any(points)

    waiting = background(tg.wait_any, points, LIMIT) if wait == "thread" else background(asyncio.run, awaited())
    for _ in points:
        assert asked.acquire(timeout=LIMIT)
    one, two = counting.issued
    one.finish(tell=False)
    two.finish()
    assert waiting.result() is points[0]


def test_an_end_that_is_found_by_asking_for_the_error_was_looked_at(
    counting: ManualDevice, caplog: pytest.LogCaptureFixture
) -> None:
    work = fill(counting)
    counting.issued[0].fail(ValueError("looked at"), tell=False)
    assert isinstance(work.error, ValueError)
    counting.close()
    assert "looked at" not in caplog.text


def test_threads_that_look_at_once_end_each_piece_once(counting: ManualDevice) -> None:
    steps, told = tg.Semaphore(), []
    for value in range(1, 101):
        fill(counting, signal=steps.at(value))
        steps.at(value).add_callback(lambda point, *_told: told.append(point.value))
    counting.issued[-1].finish(tell=False)
    lookers = [background(lambda: steps.value) for _ in range(4)]
    for looker in lookers:
        looker.result()
    steps.wait(100, LIMIT)
    assert sorted(told) == list(range(1, 101))


def test_a_piece_that_ends_while_another_is_taken_is_seen(counting: ManualDevice) -> None:
    done = tg.Semaphore()
    fill(counting, signal=done.at(1))
    done.at(1).add_callback(lambda *_told: None)

    def end(piece: ManualPiece) -> None:
        counting.before_taking = None
        counting.issued[0].finish()

    counting.before_taking = end
    follower = fill(counting, wait=done.at(1))
    counting.finish_all()
    assert follower.error is None
    assert done.value == 1
