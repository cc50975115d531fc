"""The express way: which submissions take it, and that those which do cannot be told from the others."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate._core import express
from tidegate._core.lock import core_lock

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until

pytestmark = pytest.mark.skipif(express._express is None, reason="the C form was not built, or is not wanted")

SUM = tg.Kernel(
    "add",
    cuda='extern "C" __global__ void add(unsigned *x, unsigned a, unsigned long long b) { x[0] += a + (unsigned)b; }',
    bindings=1,
    constants=[np.uint32, np.uint64],
)


class Rig:
    """A device with a stream that has been used: the first submission of all makes what the others use again."""

    def __init__(self, found: SimulatedBench) -> None:
        self.found = found
        self.device, self.queue = found.device, found.queue
        self.touch = self.device.load(TOUCH)["touch"]
        self.add = self.device.load(SUM)["add"]
        self.buffer = found.shared()
        self.expected = 0
        for _ in range(3):
            self.once().wait(LIMIT)

    def once(self, **options: Any) -> tg.Submission:
        """Count one up."""
        self.expected += 1
        return self.queue.dispatch(self.touch, 1, bindings=[self.buffer], **options)

    @property
    def count(self) -> int:
        with self.buffer.map("r") as data:
            return int(data.view(np.uint32)[0])


@pytest.fixture
def rig() -> Iterator[Rig]:
    with bench() as found:
        yield Rig(found)


def test_the_plain_cases_go_by_it(rig: Rig) -> None:
    timeline = tg.Semaphore()
    lane = rig.device.lane()
    latch, blocked = rig.found.latch()
    after = rig.once(wait=blocked, signal=timeline.at(1))
    chained = rig.once(wait=timeline.at(1), signal=[timeline.at(2)])
    barrier = rig.queue.barrier(wait=[chained])
    on_lane = [lane.dispatch(rig.touch, 1, bindings=[rig.buffer], wait=barrier) for _ in range(3)]
    assert [work._express for work in (after, chained, barrier)] == [True] * 3
    assert [work._express for work in on_lane][1:] == [False, False], "two waits are not plain"
    latch.open()
    tg.wait_all([*on_lane, barrier], LIMIT)
    assert rig.count == rig.expected + 3
    assert timeline.query() == 2


def test_constants_reach_the_kernel(rig: Rig) -> None:
    add = rig.add
    last = None
    made = []
    for number in range(1, 6):
        last = rig.queue.dispatch(add, (1, 1, 1), bindings=(rig.buffer,), constants=[number, 1 << 33], wait=last)
        made.append(last)
    made[-1].wait(LIMIT)
    assert all(work._express for work in made[1:])
    assert rig.count == rig.expected + 15


def test_what_is_over_leaves_nothing_behind(rig: Rig) -> None:
    timeline = tg.Semaphore()
    work = rig.once(signal=timeline.at(1))
    memory = rig.buffer._memory
    assert (work._express, memory.uses, memory.last_write()) == (True, 1, work)
    assert not timeline._state.calm
    work.wait(LIMIT)
    state = timeline._state
    assert (memory.uses, memory.last_write, work._work, work._signals, work._touches) == (0, None, None, (), ())
    assert (state.payload, state.calm, state.claims, state.promises) == (1, True, {}, {})
    assert work not in rig.device._issued
    gone = weakref.ref(work)
    del work
    gc.collect()
    assert gone() is None


def test_a_buffer_closed_meanwhile_goes_with_the_last_use(rig: Rig) -> None:
    latch, blocked = rig.found.latch()
    mine = rig.device.upload(np.zeros(1, np.uint32))
    memory = mine._memory
    work = rig.queue.dispatch(rig.touch, 1, bindings=[mine], wait=blocked)
    assert work._express
    mine.close()
    assert memory.storage is not None
    latch.open()
    work.wait(LIMIT)
    assert memory.storage is None


@pytest.mark.parametrize("how", ["thread", "callback", "held"])
def test_those_who_waited_before_it_are_told(rig: Rig, how: str) -> None:
    timeline, told = tg.Semaphore(), threading.Event()
    if how == "thread":
        threading.Thread(target=lambda: (timeline.wait(1, LIMIT), told.set()), daemon=True).start()
        until(lambda: timeline._state.waiters)
    elif how == "callback":
        timeline.at(1).add_callback(lambda *_: told.set())
    else:
        rig.queue.host_call(told.set, wait=timeline.at(1))
    work = rig.once(signal=timeline.at(1))
    assert work._express
    assert told.wait(LIMIT)


def test_a_failure_travels_through_it(rig: Rig) -> None:
    gate, timeline = tg.Semaphore(), tg.Semaphore()
    held = rig.queue.fill(rig.buffer, 0, wait=gate.at(1), signal=timeline.at(1))
    behind = rig.queue.barrier(wait=timeline.at(1), signal=timeline.at(2))
    assert not behind._express, "what it waits for is not on the device"
    problem = ValueError("on purpose")
    gate.fail(problem)
    for work in (held, behind):
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            work.wait(LIMIT)
        assert caught.value.__cause__ is problem
    with pytest.raises(tg.SemaphoreFailedError):
        rig.once(wait=timeline.at(2)).wait(LIMIT)


def test_work_behind_a_submission_that_is_doomed_fails_with_it(rig: Rig) -> None:
    latch, blocked = rig.found.latch()
    first = rig.once(wait=blocked)
    second = rig.once(wait=first)
    assert second._express
    problem = ValueError("on purpose")
    first._doom = problem
    latch.open()
    for work in (first, second):
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            work.wait(LIMIT)
        assert caught.value.__cause__ is problem


WRONG: dict[str, tuple[Callable[[Rig], object], type[Exception]]] = {
    "reached": (lambda rig: rig.once(signal=tg.Semaphore(5).at(5)), tg.InvalidArgumentError),
    "bindings": (lambda rig: rig.queue.dispatch(rig.touch, 1), tg.InvalidArgumentError),
    "groups": (lambda rig: rig.queue.dispatch(rig.touch, -1, bindings=[rig.buffer]), tg.InvalidArgumentError),
    "local": (
        lambda rig: rig.queue.dispatch(rig.touch, 1, bindings=[rig.buffer], local_memory=-1),
        tg.InvalidArgumentError,
    ),
    "constants": (
        lambda rig: rig.queue.dispatch(rig.touch, 1, bindings=[rig.buffer], constants=[1]),
        tg.InvalidArgumentError,
    ),
    "no buffer": (lambda rig: rig.queue.dispatch(rig.touch, 1, bindings=[3]), TypeError),
    "no function": (lambda rig: rig.queue.dispatch("touch", 1), TypeError),  # type: ignore[arg-type]
    "no wait": (lambda rig: rig.once(wait=3), TypeError),
    "no signal": (lambda rig: rig.once(signal=3), TypeError),
    "nothing to wait for": (lambda rig: rig.once(wait=[None]), TypeError),
    "nothing to signal": (lambda rig: rig.once(signal=(None,)), TypeError),
    "constants of an iterator": (
        lambda rig: rig.queue.dispatch(rig.add, 1, bindings=[rig.buffer], constants=iter([1 << 40, 0])),
        tg.InvalidArgumentError,
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_as_elsewhere(rig: Rig, what: str) -> None:
    spoil, expected = WRONG[what]
    before = rig.device.statistics()
    with pytest.raises(expected) as here:
        spoil(rig)
    with express.closed(), pytest.raises(expected) as there:
        spoil(rig)
    assert type(here.value) is type(there.value)
    if "semaphore at" not in str(here.value):
        assert str(here.value) == str(there.value)
    assert rig.device.statistics().submitted == before.submitted


def test_closed_buffers_claimed_points_and_closed_devices_are_refused(rig: Rig) -> None:
    timeline, closed = tg.Semaphore(), rig.found.shared()
    closed.close()
    latch, blocked = rig.found.latch()
    rig.once(wait=blocked, signal=timeline.at(1))
    with pytest.raises(tg.InvalidArgumentError, match="claims it already"):
        rig.once(wait=blocked, signal=timeline.at(1))
    with pytest.raises(tg.ClosedError):
        rig.queue.dispatch(rig.touch, 1, bindings=[closed])
    latch.open()
    rig.device.close(LIMIT)
    with pytest.raises(tg.ClosedError):
        rig.queue.dispatch(rig.touch, 1, bindings=[rig.buffer])


def test_what_is_on_the_way_goes_the_way_it_began(rig: Rig) -> None:
    stop = threading.Event()

    def open_and_close() -> None:
        while not stop.is_set():
            with express.closed():
                pass

    disturbing = threading.Thread(target=open_and_close, daemon=True)
    disturbing.start()
    last = None
    for _ in range(300):
        last = rig.once(wait=last)
    last.wait(LIMIT)  # type: ignore[union-attr]
    stop.set()
    disturbing.join(LIMIT)
    assert rig.count == rig.expected


def test_a_section_of_another_thread_is_not_stepped_into(rig: Rig) -> None:
    inside, leave = threading.Event(), threading.Event()

    def section() -> None:
        with core_lock:
            inside.set()
            leave.wait(LIMIT)

    other = threading.Thread(target=section, daemon=True)
    other.start()
    inside.wait(LIMIT)
    made: list[tg.Submission] = []
    submitting = threading.Thread(target=lambda: made.append(rig.once()), daemon=True)
    submitting.start()
    submitting.join(0.05)
    assert not made
    leave.set()
    submitting.join(LIMIT)
    made[0].wait(LIMIT)
    assert not made[0]._express


def test_threads_that_share_a_queue_and_a_timeline_lose_nothing(rig: Rig) -> None:
    total = 40
    counters = [rig.found.shared() for _ in range(4)]
    together = threading.Barrier(4)
    problems: list[BaseException] = []

    def work(mine: tg.Buffer) -> None:
        try:
            timeline = tg.Semaphore()
            together.wait(LIMIT)
            for step in range(1, total + 1):
                wait = timeline.at(step - 1) if step > 1 else None
                rig.queue.dispatch(rig.touch, 1, bindings=[mine], wait=wait, signal=timeline.at(step))
                if step % 7 == 0:
                    timeline.wait(step, LIMIT)
            timeline.wait(total, LIMIT)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert problems == []
    for mine in counters:
        with mine.map("r") as data:
            assert data.view(np.uint32)[0] == total
    statistics = rig.device.statistics()
    assert (statistics.held, statistics.issued) == (0, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_refused(rig: Rig) -> None:
    latch, blocked = rig.found.latch()
    over = rig.once()
    until(lambda: over.timeline is not None and over.timeline.reached >= over.epoch)  # and nobody has looked

    def child(answers: Any) -> None:
        for call in (rig.once, lambda: over.wait(LIMIT), lambda: blocked.wait(LIMIT)):
            try:
                call()
            except tg.FailedPreconditionError:
                continue
            answers.put("taken")
        answers.put("refused")

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    assert answers.get(timeout=LIMIT) == "refused"
    process.join(LIMIT)
    latch.open()
