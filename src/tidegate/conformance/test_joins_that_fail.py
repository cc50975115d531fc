"""Joins of work that fails: whichever of several producers it is, and however it fails, the join fails with its error.

What else was waited for, and what has nothing to do with it, is done all the same.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import tidegate as tg

from . import kernels
from .buffers import MIB, ready
from .latches import LIMIT, Latch
from .subjects import Subject
from .witnesses import Told, failure_of
from .works import Place, Works, places_of

pytestmark = pytest.mark.rules("M17", "M21")

#: How a producer fails. The budget of the device is that of `works_that_fail`.
FAILING = (
    "call",
    "wait",
    "cancel",
    pytest.param("kernel", marks=pytest.mark.needs("fault")),
    pytest.param("allocation", marks=pytest.mark.needs("budget")),
)

_BUDGET_MIB = 16

JOINING = (
    *("fill-small", "fill-large", "copy-large", "upload-large", "download-small", "kernel", "execute"),
    *("host-call", "barrier", "allocation", "free"),
)

WAYS = ("straight", "held", "ahead")


@dataclass
class Failing:
    """A producer that fails, once `begin` was called."""

    submission: tg.Submission
    begin: Callable[[], object] = lambda: None


def _never_called() -> None:
    raise AssertionError("this must not run")


def _raise(error: BaseException) -> None:
    raise error


def failing(works: Works, how: str, place: Place, wait: Any, signal: tg.Timepoint) -> Failing:
    """Submit work that fails in the given way."""
    error = ValueError(f"it failed by its {how}")
    waits = [] if wait is None else [wait]
    if how == "call":
        return Failing(place.host_call(_raise, error, wait=waits, signal=signal))
    if how == "kernel":
        function = kernels.load(works.device, kernels.fault)
        return Failing(place.dispatch(function, (1, 1, 1), wait=waits, signal=signal))
    if how == "allocation":
        return Failing(ready(place.allocate((_BUDGET_MIB + 1) * MIB, wait=waits, signal=signal)))
    broken = tg.Semaphore()
    kind = works.kinds[works.next_number() % len(works.kinds)]
    work = works.make(kind, place, wait=[*waits, broken.at(1)], signal=signal).submission
    return Failing(work, (lambda: broken.fail(error)) if how == "wait" else work.cancel)


@pytest.fixture
def works_that_fail(open_device: Callable[..., tg.Device], subject: Subject) -> Works:
    """Makes work on a device with a budget, where the subject has budgets."""
    options = {} if "budget" in subject.lacks else {"memory": f"{_BUDGET_MIB}MiB"}
    return Works(open_device(**options), real="work" not in subject.lacks)


def join_of_one_that_fails(works: Works, how: str, joiner: str, which: int, way: str, places: list[Place]) -> None:
    """Three producers of which one fails, their join, and what follows from that and what does not."""
    draw = random.Random(which)
    ends = [tg.Semaphore() for _ in range(3)]
    end, after = tg.Semaphore(), tg.Semaphore()
    gate = tg.Semaphore(0 if way == "held" else 1)
    where = itertools.cycle(places)
    waits = [each.at(1) for each in ends]
    if way == "ahead":
        join = works.make(joiner, places[-1], wait=waits, signal=end.at(1))
    sound = []
    for index, signal in enumerate(waits):
        if index == which:
            broken = failing(works, how, next(where), gate.at(1), signal)
        else:
            kind = draw.choice([kind for kind in works.kinds if kind != "host-call"])
            sound.append(works.make(kind, next(where), wait=gate.at(1), signal=signal))
    if way != "ahead":
        join = works.make(joiner, places[-1], wait=waits, signal=end.at(1))
    behind = works.make("fill-large", places[0], wait=[join.submission], signal=after.at(1)).submission
    last = works.make("barrier", works.device.queue(priority=1), wait=after.at(1)).submission
    unrelated = works.make("fill-large", works.device.queue(), wait=gate.at(1))
    if gate.value == 0:
        gate.signal(1)
    broken.begin()
    error = failure_of(join.submission)
    assert broken.submission.error is error
    assert ends[which].failure is error
    assert join.submission.error is error
    assert join.begun is None or not join.begun()
    for follower in (end.at(1), behind, last):
        assert failure_of(follower) is error
    for piece in (*sound, unrelated):
        piece.submission.wait(LIMIT)
        piece.assert_told()
        assert piece.submission.error is None
    assert [each.value for each in ends] == [int(index != which) for index in range(3)]
    unrelated.assert_written()


@pytest.mark.rules("M7", "M17", "M21")
@pytest.mark.slow
@pytest.mark.parametrize("how", FAILING)
def test_whichever_of_several_fails_a_join_fails_with_its_error(works_that_fail: Works, how: str) -> None:
    works = works_that_fail
    draw = random.Random(how)
    for joiner in [kind for kind in JOINING if kind in works.kinds]:
        for which, way, several in draw.sample(list(itertools.product(range(3), WAYS, (1, 4))), 6):
            join_of_one_that_fails(works, how, joiner, which, way, places_of(works.device)[:several])


@pytest.mark.rules("M3", "M17")
@pytest.mark.slow
@pytest.mark.needs("fault", "work")
@pytest.mark.parametrize("joiner", ["fill-large", "kernel", "execute", "barrier", "fill-small", "upload-small"])
def test_a_join_fails_with_a_kernel_that_the_device_was_still_at_when_it_went_down(works: Works, joiner: str) -> None:
    """The other thing that is waited for keeps the join from going right behind the kernel."""
    fault = kernels.load(works.device, kernels.fault)
    for number in range(30):
        first, second, third, _ = places_of(works.device)
        beside = works.make(("fill-large", "kernel", "download-small")[number % 3], first)
        broken = second.dispatch(fault, (1, 1, 1))
        waits = [broken, beside.submission][:: 1 if number % 2 else -1]
        join = works.make(joiner, third, wait=waits)
        error = failure_of(join.submission)
        assert isinstance(error, Exception)
        assert broken.error is error
        beside.submission.wait(LIMIT)
        beside.assert_told()


@pytest.mark.rules("M7", "M10", "M17")
@pytest.mark.needs("latch", "fault")
@pytest.mark.parametrize("joiner", JOINING)
def test_a_join_that_nobody_looked_at_fails_with_the_kernel_that_failed_before(
    works: Works, queue: tg.Queue, second_queue: tg.Queue, latch: Latch, joiner: str
) -> None:
    """Its own work ends well on the device, if the device has it, and on another native queue than the failed one."""
    end, told = tg.Semaphore(), Told()
    blocked = latch.block(queue)
    fault = kernels.load(works.device, kernels.fault)
    broken = second_queue.dispatch(fault, (1, 1, 1))
    join = works.make(joiner, second_queue, wait=[blocked, broken], signal=end.at(1))
    end.at(1).add_callback(told)
    latch.wait_until_running()
    latch.open()
    told.assert_once(tg.Outcome.FAILED)
    assert join.submission.error is broken.error
    assert end.failure is broken.error


@pytest.mark.rules("M7", "M17")
@pytest.mark.parametrize("count", [2, 10])
def test_of_several_that_fail_the_first_to_do_so_is_what_a_join_fails_with(queue: tg.Queue, count: int) -> None:
    gates = [tg.Semaphore() for _ in range(count)]
    errors = [ValueError(str(index)) for index in range(count)]
    held = [queue.barrier(wait=gate.at(1)) for gate in gates]
    join = queue.barrier(wait=held)
    order = list(range(count))
    random.Random(3).shuffle(order)
    for index in order:
        gates[index].fail(errors[index])
    assert failure_of(join) is errors[order[0]]
    assert [failure_of(work) for work in held] == errors
