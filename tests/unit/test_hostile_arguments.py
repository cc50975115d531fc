"""Arguments that run code of the user's in the middle of a call: it either has not happened, or it has (M16, M19).

An `__index__`, an iterator, an array's conversion, a finalizer and a callback may do anything: signal what the call
waits for, claim what it will signal, submit, close, collect, raise. Until all is prepared nothing of the call can be
seen, and then all of it is there at once: so whatever they do comes before the call, or behind it.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.testing import lose_device

LIMIT = 30.0


class World:
    """A device with something of everything on it, and what the call is to wait for and to signal."""

    def __init__(self, folder: Path) -> None:
        self.device = tg.open_device("cpu?workers=1")
        self.queue, self.lane = self.device.queue(), self.device.lane()
        self.buffer, self.other = self.device.upload(bytes(64)), self.device.upload(bytes(64))
        self.gate, self.done, self.aside = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
        self.problem = ValueError("hostile")
        self.function = self.device.load(KERNEL)["noop"]
        with self.device.record() as self.commands:
            self.commands.fill(tg.slot(0), 1)
        self.file = folder / "file"
        self.file.write_bytes(bytes(64))
        self.made: list[tg.Submission] = []
        """What the arguments submit."""
        self.held = self.queue.fill(self.other, 2, wait=self.aside.at(1))


def noop(_workgroups: object, _bindings: object, _constants: object) -> None:
    pass


KERNEL = tg.Kernel("noop", cpu=noop, bindings=1, constants=["i4"])


class Hook:
    """Acts once, when it is called first."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._acts = [act]
        self.acted = False

    def __call__(self) -> None:
        self.acted = True
        if self._acts:
            self._acts.pop()()


class Index:
    """An integer that acts when it is asked what it is."""

    def __init__(self, hook: Hook, value: int) -> None:
        self._hook = hook
        self._value = value

    def __index__(self) -> int:
        self._hook()
        return self._value


class Array:
    """An array that acts when it is asked for itself."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook

    def __array__(self, *_given: object, **_named: object) -> Any:
        self._hook()
        return np.ones(8, np.uint8)


def listed(hook: Hook, *things: Any) -> Iterator[Any]:
    """Act, then give what was given."""
    hook()
    yield from things


class Garbage:
    """Acts when it is collected."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self.itself = self

    def __del__(self) -> None:
        self._hook()


# What is called ----------------------------------------------------------------------------------------------------

Call = Callable[..., tg.Submission]

OPERATIONS: dict[str, Call] = {
    "barrier": lambda w, **to: w.queue.barrier(**to),
    "fill": lambda w, **to: w.queue.fill(w.buffer, 1, **to),
    "update": lambda w, **to: w.queue.update(w.buffer, b"data", **to),
    "upload": lambda w, **to: w.queue.upload(np.ones(8, np.uint8), w.buffer, **to),
    "download": lambda w, **to: w.queue.download(w.buffer, **to),
    "copy": lambda w, **to: w.queue.copy(w.buffer, w.other, length=8, **to),
    "dispatch": lambda w, **to: w.queue.dispatch(w.function, 1, bindings=[w.buffer], constants=[1], **to),
    "execute": lambda w, **to: w.queue.execute(w.commands, bindings=[w.buffer], **to),
    "allocate": lambda w, **to: w.queue.allocate(16, **to).ready,
    "free": lambda w, **to: w.queue.free(w.buffer, **to),
    "host_call": lambda w, **to: w.queue.host_call(int, **to),
    "read_file": lambda w, **to: w.queue.read_file(w.file, w.buffer, **to),
    "write_file": lambda w, **to: w.queue.write_file(w.buffer, w.file, **to),
    "lane.barrier": lambda w, **to: w.lane.barrier(**to),
    "lane.fill": lambda w, **to: w.lane.fill(w.buffer, 1, **to),
    "lane.allocate": lambda w, **to: w.lane.allocate(16, **to).ready,
}

#: Where else arguments run code of the user's.
PLACES: dict[str, Call] = {
    "fill offset": lambda w, h, **to: w.queue.fill(w.buffer, 1, offset=Index(h, 4), **to),
    "fill length": lambda w, h, **to: w.queue.fill(w.buffer, 1, length=Index(h, 4), **to),
    "fill pattern": lambda w, h, **to: w.queue.fill(w.buffer, Index(h, 1), **to),
    "update data": lambda w, h, **to: w.queue.update(w.buffer, Array(h), **to),
    "update offset": lambda w, h, **to: w.queue.update(w.buffer, b"data", offset=Index(h, 4), **to),
    "upload array": lambda w, h, **to: w.queue.upload(Array(h), w.buffer, **to),
    "upload offset": lambda w, h, **to: w.queue.upload(np.ones(8, np.uint8), w.buffer, offset=Index(h, 4), **to),
    "download offset": lambda w, h, **to: w.queue.download(w.buffer, offset=Index(h, 4), **to),
    "download length": lambda w, h, **to: w.queue.download(w.buffer, length=Index(h, 4), **to),
    "download shape": lambda w, h, **to: w.queue.download(w.buffer, shape=(Index(h, 4),), **to),
    "copy source": lambda w, h, **to: w.queue.copy(w.buffer, w.other, source_offset=Index(h, 4), length=4, **to),
    "copy target": lambda w, h, **to: w.queue.copy(w.buffer, w.other, target_offset=Index(h, 4), length=4, **to),
    "copy length": lambda w, h, **to: w.queue.copy(w.buffer, w.other, length=Index(h, 4), **to),
    "dispatch workgroups": lambda w, h, **to: w.queue.dispatch(
        w.function, (1, Index(h, 1)), bindings=[w.buffer], constants=[1], **to
    ),
    "dispatch bindings": lambda w, h, **to: w.queue.dispatch(
        w.function, 1, bindings=listed(h, w.buffer), constants=[1], **to
    ),
    "dispatch constants": lambda w, h, **to: w.queue.dispatch(
        w.function, 1, bindings=[w.buffer], constants=listed(h, 1), **to
    ),
    "dispatch constant": lambda w, h, **to: w.queue.dispatch(
        w.function, 1, bindings=[w.buffer], constants=[Index(h, 1)], **to
    ),
    "dispatch local memory": lambda w, h, **to: w.queue.dispatch(
        w.function, 1, bindings=[w.buffer], constants=[1], local_memory=Index(h, 0), **to
    ),
    "execute bindings": lambda w, h, **to: w.queue.execute(w.commands, bindings=listed(h, w.buffer), **to),
    "allocate size": lambda w, h, **to: w.queue.allocate(Index(h, 16), **to).ready,
    "read_file offset": lambda w, h, **to: w.queue.read_file(w.file, w.buffer, offset=Index(h, 4), length=4, **to),
    "read_file length": lambda w, h, **to: w.queue.read_file(w.file, w.buffer, length=Index(h, 4), **to),
    "write_file offset": lambda w, h, **to: w.queue.write_file(w.buffer, w.file, file_offset=Index(h, 4), **to),
    "lane.fill offset": lambda w, h, **to: w.lane.fill(w.buffer, 1, offset=Index(h, 4), **to),
    "lane.dispatch bindings": lambda w, h, **to: w.lane.dispatch(
        w.function, 1, bindings=listed(h, w.buffer), constants=[1], **to
    ),
}


def in_wait(call: Call, world: World, hook: Hook, *, wait: Any, signal: Any) -> tg.Submission:
    return call(world, wait=listed(hook, wait), signal=signal)


def in_signal(call: Call, world: World, hook: Hook, *, wait: Any, signal: Any) -> tg.Submission:
    return call(world, wait=wait, signal=listed(hook, signal))


def in_a_finalizer(call: Call, world: World, hook: Hook, *, wait: Any, signal: Any) -> tg.Submission:
    """The collector comes whenever the call makes something, and at the latest behind it."""
    kept = [Garbage(hook)]
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        kept.clear()
        return call(world, wait=wait, signal=signal)
    finally:
        gc.set_threshold(*before)
        gc.collect()


CALLS: dict[str, Call] = {
    **PLACES,
    **{f"{name} wait": partial(in_wait, call) for name, call in OPERATIONS.items()},
    **{f"{name} signal": partial(in_signal, call) for name, call in OPERATIONS.items()},
}
#: What a finalizer raises is reported: so these are for what raises nothing.
FINALIZED: dict[str, Call] = {f"{name} finalizer": partial(in_a_finalizer, call) for name, call in OPERATIONS.items()}


# What the arguments do ---------------------------------------------------------------------------------------------


def submit(world: World) -> None:
    world.made += [
        world.queue.fill(world.other, 3, wait=world.held),
        world.queue.host_call(int),
        world.lane.fill(world.other, 4),
        world.queue.barrier(wait=world.gate.at(1)),
    ]


def raise_problem(world: World) -> None:
    raise world.problem


def interrupt(_world: World) -> None:
    raise KeyboardInterrupt


def collect(world: World) -> None:
    """Whoever waits for a semaphore that goes fails, on a thread of its own; and garbage signals and submits."""
    dropped = tg.Semaphore()
    world.made.append(world.queue.barrier(wait=dropped.at(1)))
    del dropped
    Garbage(Hook(partial(submit_in_a_finalizer, world)))
    gc.collect()


def submit_in_a_finalizer(world: World) -> None:
    with suppress(tg.ClosedError):  # where another thread collects at the moment, it comes later
        submit(world)


def wait_in_vain(world: World) -> None:
    with pytest.raises(tg.DeadlineExceededError):
        tg.wait_all([world.gate.at(1), world.held], 0)
    with pytest.raises(tg.DeadlineExceededError):
        world.gate.wait(1, 0.001)


def another_thread(world: World) -> None:
    thread = threading.Thread(target=submit, args=(world,))
    thread.start()
    thread.join(LIMIT)


HARMLESS: dict[str, Callable[[World], object]] = {
    "submit": submit,
    "cancel another": lambda w: w.held.cancel(),
    "collect": collect,
    "wait in vain": wait_in_vain,
    "let another thread submit": another_thread,
    "add a callback": lambda w: w.gate.at(1).add_callback(lambda *_told: submit(w)),
    "explain": lambda w: (w.held.explain(), w.done.at(1).explain(), w.device.statistics()),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    if made.aside.failure is None and made.aside.value == 0:
        made.aside.signal(1)
    if made.gate.failure is None and made.gate.value == 0:
        made.gate.signal(1)
    for submission in made.made:
        if made.device.health is not tg.Health.LOST:
            try:
                submission.wait(LIMIT)
            except tg.SemaphoreFailedError:
                assert submission.error is not None
    made.device.close(LIMIT)
    statistics = made.device.statistics()
    assert (statistics.held, statistics.issued, statistics.submitted) == (0, 0, statistics.retired)


def make(world: World, call: str, act: Callable[[World], object]) -> tg.Submission:
    """Make a call with an argument that acts."""
    hook = Hook(lambda: act(world))
    submission = {**CALLS, **FINALIZED}[call](world, hook, wait=world.gate.at(1), signal=world.done.at(1))
    assert hook.acted
    return submission


def assert_nothing_happened(world: World, submitted: int) -> None:
    assert world.done.value == 0
    assert world.done.failure is None
    assert world.done.next().value == 1, "the call has left its claim behind"
    assert world.device.statistics().submitted == submitted


EVERY = pytest.mark.parametrize("call", CALLS)
ALSO_FINALIZERS = pytest.mark.parametrize("call", [*CALLS, *FINALIZED])


@ALSO_FINALIZERS
@pytest.mark.parametrize("act", HARMLESS)
def test_what_has_nothing_to_do_with_the_call_does_not_disturb_it(world: World, call: str, act: str) -> None:
    submission = make(world, call, HARMLESS[act])
    assert not submission.done
    world.gate.signal(1)
    submission.wait(LIMIT)
    assert world.done.value == 1


@ALSO_FINALIZERS
def test_what_the_call_waits_for_may_be_signalled_in_the_middle_of_it(world: World, call: str) -> None:
    submission = make(world, call, lambda w: w.gate.signal(1))
    submission.wait(LIMIT)
    assert world.done.value == 1


@ALSO_FINALIZERS
def test_what_the_call_waits_for_may_fail_in_the_middle_of_it(world: World, call: str) -> None:
    submission = make(world, call, lambda w: w.gate.fail(w.problem))
    with pytest.raises(tg.SemaphoreFailedError):
        submission.wait(LIMIT)
    assert submission.error is world.done.failure is world.problem


@EVERY
@pytest.mark.parametrize("act", ["signals it", "claims it"])
def test_what_the_call_would_signal_may_be_taken_in_the_middle_of_it(world: World, call: str, act: str) -> None:
    before = world.device.statistics().submitted

    def take(world: World) -> None:
        if act == "signals it":
            world.done.signal(1)
        else:
            world.made.append(world.queue.barrier(wait=world.gate.at(1), signal=world.done.at(1)))

    with pytest.raises(tg.InvalidArgumentError, match="cannot signal"):
        make(world, call, take)
    assert world.device.statistics().submitted == before + len(world.made)
    world.gate.signal(1)
    world.done.wait(1, LIMIT)


@EVERY
def test_what_the_call_would_signal_may_fail_in_the_middle_of_it_and_the_work_runs(world: World, call: str) -> None:
    submission = make(world, call, lambda w: w.done.fail(w.problem))
    world.gate.signal(1)
    submission.wait(LIMIT)
    assert world.done.failure is world.problem


@EVERY
@pytest.mark.parametrize("act", [raise_problem, interrupt], ids=["an error", "an interrupt"])
def test_what_is_raised_in_the_middle_of_a_call_comes_out_and_nothing_has_happened(
    world: World, call: str, act: Callable[[World], object]
) -> None:
    before = world.device.statistics().submitted
    with pytest.raises((ValueError, KeyboardInterrupt)) as caught:
        make(world, call, act)
    assert caught.value is world.problem or isinstance(caught.value, KeyboardInterrupt)
    assert_nothing_happened(world, before)


@EVERY
@pytest.mark.parametrize("end", ["closed", "lost"])
def test_the_device_may_end_in_the_middle_of_a_call(world: World, call: str, end: str) -> None:
    def act(world: World) -> None:
        if end == "closed":
            world.device.close(LIMIT)
        else:
            lose_device(world.device)

    before = world.device.statistics().submitted
    with pytest.raises((tg.ClosedError, tg.DeviceLostError)):
        make(world, call, act)
    assert_nothing_happened(world, before)


@EVERY
@pytest.mark.parametrize("end", ["closed", "freed"])
def test_the_buffer_may_end_in_the_middle_of_a_call(world: World, call: str, end: str) -> None:
    """Whether the call finds that, or the work does: somebody says so, and nothing hangs."""

    def act(world: World) -> None:
        if end == "closed":
            world.buffer.close()
        else:
            world.made.append(world.queue.free(world.buffer))

    try:
        submission = make(world, call, act)
    except tg.TidegateError:
        assert world.done.next().value == 1
        return
    world.gate.signal(1)
    try:
        submission.wait(LIMIT)
        assert world.done.value == 1
    except tg.SemaphoreFailedError:
        assert isinstance(submission.error, tg.TidegateError)
        assert world.done.failure is submission.error


@pytest.mark.parametrize("call", OPERATIONS)
@pytest.mark.parametrize("when", ["before the call returns", "when it is signalled"])
@pytest.mark.parametrize(
    "act",
    [submit, raise_problem, collect, lambda w: w.aside.signal(1), lambda w: w.aside.fail(w.problem)],
    ids=["submit", "raise", "collect", "signal", "fail"],
)
def test_a_callback_of_the_signal_may_do_anything(
    world: World, unraisable: list[Any], call: str, when: str, act: Callable[[World], object]
) -> None:
    told: list[Any] = []

    def callback(_point: object, outcome: tg.Outcome, _error: object) -> None:
        told.append(outcome)
        act(world)

    world.done.at(1).add_callback(callback)
    if when == "before the call returns":
        world.gate.signal(1)
    submission = OPERATIONS[call](world, wait=world.gate.at(1), signal=world.done.at(1))
    if when != "before the call returns":
        world.gate.signal(1)
    submission.wait(LIMIT)
    world.queue.host_call(int, wait=submission).wait(LIMIT)  # behind the callback, on whatever thread that is
    for _ in range(1000):
        if told:
            break
        world.queue.host_call(int).wait(LIMIT)
    assert told == [tg.Outcome.REACHED]
    assert len(unraisable) == (act is raise_problem)


# What submits nothing ----------------------------------------------------------------------------------------------

VALUES: dict[str, Callable[[World, Hook], object]] = {
    "signal": lambda w, h: w.gate.signal(Index(h, 7)),
    "at": lambda w, h: w.gate.at(Index(h, 7)),
    "wait": lambda w, h: w.gate.wait(Index(h, 0), 0),
    "timepoint": lambda w, h: tg.Timepoint(w.gate, Index(h, 7)),
    "semaphore": lambda w, h: tg.Semaphore(Index(h, 7)),
    "wait_all": lambda w, h: tg.wait_all(listed(h, tg.Semaphore(1).at(1)), LIMIT),
    "wait_any": lambda w, h: tg.wait_any(listed(h, tg.Semaphore(1).at(1)), LIMIT),
    "subspan": lambda w, h: w.other.subspan(Index(h, 1), Index(h, 2)),
    "view": lambda w, h: w.other.view("u1", (Index(h, 2),)),
    "allocate": lambda w, h: w.device.allocate(Index(h, 16)),
    "record": lambda w, h: record(w, h),
}


def record(world: World, hook: Hook) -> None:
    with world.device.record() as commands:
        commands.fill(world.other, 1, offset=Index(hook, 4), after=listed(hook))
        commands.update(world.other, Array(hook))


@pytest.mark.parametrize("call", VALUES)
@pytest.mark.parametrize("act", HARMLESS)
def test_other_calls_take_such_arguments_too(world: World, call: str, act: str) -> None:
    hook = Hook(lambda: HARMLESS[act](world))
    VALUES[call](world, hook)
    assert hook.acted


@pytest.mark.parametrize("call", VALUES)
@pytest.mark.parametrize("act", [raise_problem, interrupt], ids=["an error", "an interrupt"])
def test_what_is_raised_in_the_middle_of_another_call_comes_out(
    world: World, call: str, act: Callable[[World], object]
) -> None:
    with pytest.raises((ValueError, KeyboardInterrupt)):
        VALUES[call](world, Hook(lambda: act(world)))
    assert (world.gate.value, world.gate.next().value) == (0, 1)


def test_a_signal_whose_value_signals_more_is_refused(world: World) -> None:
    with pytest.raises(tg.InvalidArgumentError, match="cannot signal 7: the payload is 9 and must rise"):
        world.gate.signal(Index(Hook(lambda: world.gate.signal(9)), 7))  # type: ignore[arg-type]
