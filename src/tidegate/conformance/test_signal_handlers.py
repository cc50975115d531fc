"""Signal handlers and finalizers that set held work free, or submit, at every place where they can come.

Each test does one thing again and again, and one step later each time a handler comes that raises nothing but uses
Tidegate: it signals what work of the same queue waits for, or a host call, or submits. All of it ends, in order.
"""

from __future__ import annotations

import gc
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .interrupts import Interruption, calls_at, unless_stuck
from .latches import LIMIT, Latch
from .subjects import Subject
from .test_interrupts import Told, assert_it_ends, assert_no_lock_is_held, at_every_step
from .threads import background

pytestmark = [
    pytest.mark.rules("M10", "M12", "M40"),
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread"),
]

#: A thread that is stuck for so long stays so: what it waits for within a limit has been told by then.
STUCK_S = LIMIT + 1

#: Every so many steps another thread tries all locks; where the handler found one taken, the thread itself is stuck.
TRY_LOCKS = 16

NBYTES = 64


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Keep the collector away: its finalizers would make the steps differ from try to try."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Stage:
    """What the tests need of a device, made once: buffers, something to execute and to dispatch."""

    def __init__(self, device: tg.Device, works: bool, kernels: Any) -> None:
        self.device = device
        self.queue = device.queue()
        self.works = works
        self.buffers = [device.upload(np.zeros(NBYTES, np.uint8)) for _ in range(4)]
        self.array = np.arange(NBYTES, dtype=np.uint8)
        self.increment = kernels.load(device, kernels.increment) if works else None
        with device.record() as commands:
            commands.fill(self.buffers[1], 3)
        self.commands = commands


@pytest.fixture
def stage(device: tg.Device, subject: Subject, kernels: Any) -> Stage:
    return Stage(device, "work" not in subject.lacks, kernels)


# What a handler does ------------------------------------------------------------------------------------------------


class Handler:
    """Is called once, at any place. Makes what it sets free beforehand; `end` at 2 is then reached in order."""

    fails = False

    def __init__(self, stage: Stage, pattern: int) -> None:
        self.stage = stage
        self.pattern = pattern % 255 + 1
        self.gate, self.end = tg.Semaphore(label="gate"), tg.Semaphore(label="end of what was freed")
        self.ran: list[int] = []
        self.called = False
        self.told = [Told(self.end.at(1)), Told(self.end.at(2))]
        self.prepare()

    def __call__(self) -> None:
        self.called = True
        self.act()

    def prepare(self) -> None:
        """Submit what is held."""

    def act(self) -> None:
        """What the handler does."""
        self.gate.signal(1)

    def check(self, what: Interruption) -> None:
        """All of it came to its end, one after the other."""
        if not self.called:
            self()
        assert assert_it_ends(self.end.at(2), what) == ("failed" if self.fails else "reached"), what
        assert {told.once() for told in self.told} == {tg.Outcome.FAILED if self.fails else tg.Outcome.REACHED}
        self.check_results(what)

    def check_results(self, what: Interruption) -> None:
        """What it did is there."""

    def fills(self, wait: Any) -> None:
        """A fill and a copy behind it."""
        _, _, one, two = self.stage.buffers
        self.stage.queue.fill(one, self.pattern, wait=wait, signal=self.end.at(1))
        self.stage.queue.copy(one, two, wait=self.end.at(1), signal=self.end.at(2))

    def has_filled(self, what: Interruption) -> None:
        if self.stage.works:
            found = self.stage.buffers[3].to_numpy(timeout=LIMIT)
            assert (found == self.pattern).all(), f"{found} instead of {self.pattern} after the {what}"


class SignalsWork(Handler):
    """Sets work of the same queue free."""

    def prepare(self) -> None:
        self.fills(self.gate.at(1))

    def check_results(self, what: Interruption) -> None:
        self.has_filled(what)


class SignalsHostCall(Handler):
    """Sets two host calls free."""

    def prepare(self) -> None:
        for value in (1, 2):
            self.stage.queue.host_call(
                self.ran.append, value, wait=[self.gate.at(1), self.end.at(value - 1)], signal=self.end.at(value)
            )

    def check_results(self, what: Interruption) -> None:
        assert self.ran == [1, 2], what


class Submits(Handler):
    """Submits work, and a host call."""

    def act(self) -> None:
        self.fills(None)
        self.stage.queue.host_call(self.ran.append, 1, wait=self.end.at(1), signal=self.gate.at(1))

    def check_results(self, what: Interruption) -> None:
        assert_it_ends(self.gate.at(1), what)
        assert self.ran == [1], what
        self.has_filled(what)


class Fails(Handler):
    """Fails what held work and a host call wait for."""

    fails = True

    def prepare(self) -> None:
        self.fills(self.gate.at(1))
        self.stage.queue.host_call(self.ran.append, 1, wait=self.gate.at(1))

    def act(self) -> None:
        self.gate.fail(ValueError("by a handler"))

    def check_results(self, what: Interruption) -> None:
        assert self.ran == []


HANDLERS: dict[str, type[Handler]] = {
    "signals-work": SignalsWork,
    "signals-host-call": SignalsHostCall,
    "submits": Submits,
    "fails": Fails,
}

any_handler = pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)


def try_every_place(stage: Stage, handler: type[Handler], attempt: Callable[[Handler, int], Interruption]) -> None:
    """Have the handler come at each place of an attempt."""

    def checked(step: int) -> Interruption:
        coming = handler(stage, step)
        what = attempt(coming, step)
        coming.check(what)
        if step % TRY_LOCKS == 0:
            assert_no_lock_is_held(stage.queue)
        _assert_all_is_over(stage.device)
        return what

    at_every_step(checked)
    assert_no_lock_is_held(stage.queue)


@contextmanager
def comes_at(step: int, handler: Handler) -> Iterator[Interruption]:
    """Have the handler come at a place of the block, out of which the thread must find."""
    with unless_stuck(STUCK_S), calls_at(step, handler) as what:
        yield what


def _assert_all_is_over(device: tg.Device) -> None:
    """Nothing is left on the device. Who signals first and counts then may need a moment more."""
    limit = time.monotonic() + LIMIT
    while True:
        statistics = device.statistics()
        left = statistics.held, statistics.issued, statistics.submitted - statistics.retired
        if left == (0, 0, 0) or time.monotonic() > limit:
            break
        background(int).result()
    assert left == (0, 0, 0), statistics


# Submitting ---------------------------------------------------------------------------------------------------------

Submit = Callable[..., Any]


def _allocate(stage: Stage, **points: Any) -> Any:
    return stage.queue.allocate(NBYTES, **points)


def _free(stage: Stage, **points: Any) -> Any:
    return stage.queue.free(stage.device.allocate(NBYTES), **points)


def _dispatch(stage: Stage, **points: Any) -> Any:
    function: Any = stage.increment
    return stage.queue.dispatch(function, (1, 1, 1), bindings=[stage.buffers[0]], constants=[np.uint32(16)], **points)


SUBMITS: dict[str, Submit] = {
    "barrier": lambda stage, **points: stage.queue.barrier(**points),
    "fill": lambda stage, **points: stage.queue.fill(stage.buffers[0], 7, **points),
    "update": lambda stage, **points: stage.queue.update(stage.buffers[0], b"1234", **points),
    "copy": lambda stage, **points: stage.queue.copy(stage.buffers[0], stage.buffers[1], **points),
    "upload": lambda stage, **points: stage.queue.upload(stage.array, stage.buffers[0], **points),
    "download": lambda stage, **points: stage.queue.download(stage.buffers[0], **points),
    "dispatch": _dispatch,
    "execute": lambda stage, **points: stage.queue.execute(stage.commands, **points),
    "allocate": _allocate,
    "free": _free,
    "host_call": lambda stage, **points: stage.queue.host_call(int, **points),
    "lane": lambda stage, **points: stage.device.lane().fill(stage.buffers[0], 9, **points),
}


def _needs_work(operation: str, stage: Stage) -> None:
    if operation == "dispatch" and not stage.works:
        pytest.skip("needs kernels")


@pytest.mark.rules("M10", "M12", "M19", "M40")
@any_handler
@pytest.mark.parametrize("operation", SUBMITS)
@pytest.mark.parametrize("held", [False, True], ids=["ready", "held"])
def test_a_handler_may_come_at_every_place_of_a_submit(
    stage: Stage, operation: str, held: bool, handler: type[Handler]
) -> None:
    _needs_work(operation, stage)

    def attempt(handler: Handler, step: int) -> Interruption:
        gate, one, other = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
        told = [Told(one.at(1)), Told(other.at(1))]
        with comes_at(step, handler) as what:
            SUBMITS[operation](stage, wait=[gate.at(1)] if held else None, signal=[one.at(1), other.at(1)])
            if held:
                gate.signal(1)
        for sem in (one, other):
            assert assert_it_ends(sem.at(1), what) == "reached", what
        assert {waiter.once() for waiter in told} == {tg.Outcome.REACHED}
        return what

    try_every_place(stage, handler, attempt)


@pytest.mark.rules("M3", "M12", "M15", "M40")
@pytest.mark.needs("latch")
@any_handler
@pytest.mark.parametrize("operation", ["fill", "download", "dispatch", "free", "host_call"])
def test_a_handler_may_come_while_work_follows_what_is_running(
    stage: Stage, latch: Latch, operation: str, handler: type[Handler]
) -> None:
    _needs_work(operation, stage)

    def attempt(handler: Handler, step: int) -> Interruption:
        running, end = latch(), tg.Semaphore()
        blocked = running.block(stage.queue)
        with comes_at(step, handler) as what:
            SUBMITS[operation](stage, wait=blocked, signal=end.at(1))
        assert not end.at(1).reached, f"ended before what it follows, after the {what}"
        running.open()
        assert assert_it_ends(end.at(1), what) == "reached", what
        return what

    try_every_place(stage, handler, attempt)


@pytest.mark.rules("M2", "M12", "M18", "M40")
@pytest.mark.needs("latch")
@any_handler
def test_nothing_that_a_handler_brings_ends_the_work_that_is_being_issued(
    stage: Stage, latch: Latch, handler: type[Handler]
) -> None:
    """Work that a handler puts onto the device between two steps of an issue has an epoch and a place of its own."""

    def attempt(handler: Handler, step: int) -> Interruption:
        running, end = latch(), tg.Semaphore()
        with comes_at(step, handler) as what:
            running.block(stage.queue, signal=end.at(1))
        if not handler.called:
            handler()
        stage.queue.barrier(wait=handler.end.at(2)).cancel()
        for _ in range(3):
            _let_others_run(stage)
            assert not end.at(1).reached, f"ended while it runs, after the {what}"
        running.open()
        assert assert_it_ends(end.at(1), what) == "reached", what
        return what

    try_every_place(stage, handler, attempt)


def _let_others_run(stage: Stage) -> None:
    """Independent work is done beside a kernel that runs."""
    end = tg.Semaphore()
    stage.queue.host_call(int, signal=end.at(1))
    end.wait(1, timeout=LIMIT)


# What ends, and what sets free --------------------------------------------------------------------------------------


@any_handler
def test_a_handler_may_come_at_every_place_of_a_signal(stage: Stage, handler: type[Handler]) -> None:
    queue = stage.queue

    def attempt(handler: Handler, step: int) -> Interruption:
        sem, end = tg.Semaphore(), tg.Semaphore()
        told = [Told(sem.at(1)), Told(sem.at(2)), Told(end.at(2))]
        queue.fill(stage.buffers[0], 1, wait=sem.at(1), signal=end.at(1))
        queue.copy(stage.buffers[0], stage.buffers[1], wait=end.at(1), signal=end.at(2))
        call = queue.host_call(int, wait=sem.at(2))
        with comes_at(step, handler) as what:
            sem.signal(2)
        for point in (end.at(2), call):
            assert assert_it_ends(point, what) == "reached", what
        assert {waiter.once() for waiter in told} == {tg.Outcome.REACHED}
        return what

    try_every_place(stage, handler, attempt)


@any_handler
def test_a_handler_may_come_at_every_place_of_a_failure(stage: Stage, handler: type[Handler]) -> None:
    queue = stage.queue

    def attempt(handler: Handler, step: int) -> Interruption:
        sem, end = tg.Semaphore(), tg.Semaphore()
        told = [Told(sem.at(1)), Told(end.at(2))]
        queue.fill(stage.buffers[0], 1, wait=sem.at(1), signal=end.at(1))
        queue.allocate(NBYTES, wait=end.at(1), signal=end.at(2))
        with comes_at(step, handler) as what:
            sem.fail(ValueError("meant"))
        assert assert_it_ends(end.at(2), what) == "failed", what
        assert {waiter.once() for waiter in told} == {tg.Outcome.FAILED}
        return what

    try_every_place(stage, handler, attempt)


@any_handler
def test_a_handler_may_come_at_every_place_of_a_cancel(stage: Stage, handler: type[Handler]) -> None:
    def attempt(handler: Handler, step: int) -> Interruption:
        gate, end = tg.Semaphore(), tg.Semaphore()
        work = stage.queue.fill(stage.buffers[0], 1, wait=gate.at(1), signal=end.at(1))
        behind = stage.queue.fill(stage.buffers[0], 2, wait=end.at(1))
        with comes_at(step, handler) as what:
            assert work.cancel()
        for point in (end.at(1), behind):
            assert assert_it_ends(point, what) == "failed", what
        return what

    try_every_place(stage, handler, attempt)


@any_handler
def test_a_handler_may_come_at_every_place_of_adding_a_callback(stage: Stage, handler: type[Handler]) -> None:
    def attempt(handler: Handler, step: int) -> Interruption:
        sem = tg.Semaphore()
        stage.queue.fill(stage.buffers[0], 1, signal=sem.at(1))
        with comes_at(step, handler) as what:
            told = Told(sem.at(1))
        assert told.once() is tg.Outcome.REACHED
        return what

    try_every_place(stage, handler, attempt)


@any_handler
def test_a_handler_may_come_while_the_end_of_work_is_seen(stage: Stage, handler: type[Handler]) -> None:
    """Waits that spin take another way each time, so a number of steps has to do."""
    queue = stage.queue
    for step in itertools.chain(range(1, 80), range(80, 400, 7)):
        what = _seen_with(stage, queue, handler(stage, step), step)
        if not what.fired and step > 80:
            break
    assert_no_lock_is_held(queue)


def _seen_with(stage: Stage, queue: tg.Queue, handler: Handler, step: int) -> Interruption:
    end = tg.Semaphore()
    for value in range(1, 5):
        queue.fill(stage.buffers[0], value, wait=end.at(value - 1), signal=end.at(value))
    queue.free(stage.device.allocate(NBYTES), wait=end.at(4), signal=end.at(5))
    call = queue.host_call(int, wait=end.at(5))
    with comes_at(step, handler) as what:
        end.wait(2, timeout=LIMIT)
        tg.wait_all([end.at(5), call], timeout=LIMIT)
    handler.check(what)
    return what


@pytest.mark.rules("M12", "M35", "M40")
@any_handler
def test_a_handler_may_come_at_every_place_of_closing_a_device(
    stage: Stage, handler: type[Handler], open_device: Callable[..., tg.Device]
) -> None:
    def attempt(handler: Handler, step: int) -> Interruption:
        closing = open_device()
        gate, end = tg.Semaphore(), tg.Semaphore()
        queue = closing.queue()
        buffer = closing.allocate(NBYTES)
        queue.fill(buffer, 1, signal=end.at(1))
        call = queue.host_call(int, wait=end.at(1))
        held = queue.fill(buffer, 2, wait=gate.at(1))
        with comes_at(step, handler) as what:
            closing.close(timeout=LIMIT)
        for point in (end.at(1), call):
            assert assert_it_ends(point, what) == "reached", what
        assert assert_it_ends(held, what) == "failed", what
        statistics = closing.statistics()
        assert (statistics.held, statistics.issued) == (0, 0)
        return what

    try_every_place(stage, handler, attempt)


@any_handler
def test_a_handler_may_come_while_a_buffer_in_use_is_closed_and_dropped(stage: Stage, handler: type[Handler]) -> None:
    def attempt(handler: Handler, step: int) -> Interruption:
        gate, end = tg.Semaphore(), tg.Semaphore()
        buffer = stage.device.allocate(NBYTES)
        stage.queue.fill(buffer, 5, wait=gate.at(1), signal=end.at(1))
        out = np.zeros(NBYTES, np.uint8)
        stage.queue.download(buffer, out, wait=end.at(1), signal=end.at(2))
        with comes_at(step, handler) as what:
            buffer.close()
            del buffer
            gate.signal(1)
        assert assert_it_ends(end.at(2), what) == "reached", what
        assert not stage.works or (out == 5).all(), what
        return what

    try_every_place(stage, handler, attempt)
