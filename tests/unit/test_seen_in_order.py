"""What one thread has seen of a step, every later look of it confirms: at each line of the step, without any luck.

Truth changes inside the core lock, but looks are free of it. So a thread may look at any moment of a step, and what it
sees first must not be contradicted by what it sees next. Here a step halts after each of its lines in turn, while
observers look in every order; and a look halts after each of its lines, while the whole step happens.

What is asserted follows from what was seen, never from when. Once a submission is seen to be over, every look must tell
its end. Once one of its signals is seen, every look must, but for its other signals: those have no common moment (M3).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import lock, workload
from tidegate._core.lock import interrupted_here
from tidegate.testing import lose_device, register_streams, streams

LIMIT = 30.0
PATIENCE = 1.0
"""How long an observer is let look before the halted thread goes on: only for locks that are not the core's."""
BYTES = 64
ORDERS, LOOKS = 2, 4
"""How many observers look at each halt, and how often. With very many of both, each pair of looks meets each line."""

_CORE = Path(lock.__file__).parent
_SOURCES = [str(path) for path in (*_CORE.glob("*.py"), Path(streams.__file__))]
_FILES = frozenset(_SOURCES)
_LOCKING = frozenset(
    (source, number)
    for source in _SOURCES
    for number, line in enumerate(Path(source).read_text().splitlines(), 1)
    if "with core_lock" in line
)
_ONE_STEP = frozenset({"pass_calmly", "signal"})
"""Nothing can come between the lines of these: they do without the lock where there is a GIL, and only there (M38)."""

OPEN = "not decided yet"
DONE = "done"
REACHED = "reached"

Look = Callable[[], object]


class Failed:
    """A look that found a failure."""

    def __init__(self, cause: BaseException | None) -> None:
        self.cause = cause

    def __repr__(self) -> str:
        return f"Failed({self.cause!r})"

    def meets(self, found: object) -> bool:
        """Whether another look found the same: the very same first error."""
        return isinstance(found, Failed) and found.cause is self.cause


class Cancelled(Failed):
    """The failure of what is cancelled. Its error is not known before: the first one found is it."""

    def meets(self, found: object) -> bool:
        if self.cause is None and isinstance(found, Failed) and isinstance(found.cause, tg.AbortedError):
            self.cause = found.cause
        return super().meets(found)


def meets(end: object, found: object) -> bool:
    return end.meets(found) if isinstance(end, Failed) else end == found


def polled(call: Callable[[], object]) -> object:
    """Return what a poll says."""
    try:
        answer = call()
    except tg.DeadlineExceededError:
        return OPEN
    except tg.SemaphoreFailedError as error:
        return Failed(error.__cause__)
    return REACHED if answer is None else answer


# Scenes ------------------------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """A step, the looks at it, and what each must tell once it is over."""

    step: Callable[[], object]
    failed: Failed | None = None
    """How it ends, if not well."""
    keeps: list[object] = field(default_factory=list)
    looks: dict[str, Look] = field(default_factory=dict)
    ends: dict[str, object] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    """What each look is at: a signal, something aside, or "", the submission itself."""
    aside: set[str] = field(default_factory=set)
    """Those parts that may come about before the submission is over, and tell nothing of it."""
    submission: tg.Submission | None = None

    def look(self, name: str, look: Look, end: object = None, *, signal: str = "", aside: bool = False) -> None:
        """Add a look, and what it must tell once all is over; None: the failure, or that it was reached."""
        self.looks[name] = look
        self.ends[name] = self._end(REACHED) if end is None else end
        self.parts[name] = signal or (name if aside else "")
        if aside:
            self.aside.add(self.parts[name])

    def _end(self, well: object) -> object:
        return well if self.failed is None else self.failed

    def look_at_signal(self, name: str, semaphore: tg.Semaphore, aside: bool = False) -> None:
        how = {"signal": name, "aside": aside}
        self.look(f"{name}.wait", lambda: polled(lambda: semaphore.wait(1, 0)), **how)
        self.look(f"{name}.query", lambda: polled(lambda: REACHED if semaphore.query() else OPEN), **how)
        if self.failed is None:
            self.look(f"{name}.value", lambda: REACHED if semaphore.value else OPEN, **how)
        else:
            self.look(f"{name}.failure", lambda: Failed(semaphore.failure) if semaphore.failure else OPEN, **how)

    def look_at(self, work: tg.Submission, result: object = REACHED) -> None:
        self.submission = work
        self.look("done", lambda: DONE if work.done else OPEN, DONE)
        self.look("wait", lambda: polled(lambda: work.wait(0)))
        self.look("result", lambda: polled(lambda: work.result(0)), self._end(result))
        self.look("any", lambda: polled(lambda: tg.wait_any([work], 0)), self._end(work))
        if self.failed is not None:
            self.look("error", lambda: Failed(work.error) if work.error else OPEN)

    def look_into(self, buffer: tg.Buffer, data: int) -> None:
        self.look("read", lambda: polled(lambda: buffer.read(timeout=0)), self._end(bytes([data]) * BYTES))

    def count(self, device: tg.Device, submissions: int = 1) -> None:
        """Look at the counts of the device too: they must agree with one another, and with everything else."""
        before = device.statistics().retired

        def look() -> object:
            now = device.statistics()
            assert now.submitted == now.retired + now.held + now.issued, now
            return DONE if now.retired - before >= submissions else OPEN

        self.look("statistics", look, DONE)

    def see(self, order: list[str]) -> list[tuple[str, object]]:
        return [(name, self.looks[name]()) for name in order]

    def prove(self, seen: list[tuple[str, object]], place: str) -> None:
        """Judge what one observer has seen, in order."""
        told: set[str] = set()
        for name, found in seen:
            part = self.parts[name]
            if found is OPEN:
                too_late = told & {"", part} if part else told - self.aside
                assert not too_late, f"{place}: {name} came too late: {seen}"
            else:
                assert meets(self.ends[name], found), f"{place}: {name} is not {self.ends[name]}: {seen}"
                told.add(part)

    def prove_over(self) -> None:
        for name, look in self.looks.items():
            found = look()
            assert meets(self.ends[name], found), f"at the end {name} found {found}, not {self.ends[name]}"


def _over(submission: tg.Submission) -> bool:
    """Let a stream be done with a submission, without a look at it, then look: on the CPU it is over already."""
    timeline = submission.timeline
    if timeline is not None:
        with timeline.device.changed:
            assert timeline.device.changed.wait_for(lambda: timeline.reached >= submission.epoch, LIMIT)
    if not submission.done:  # it was held behind another, and goes down with that one's end
        with suppress(tg.SemaphoreFailedError):
            submission.wait(LIMIT)
    return submission.done


class Stage:
    """A device, and its threads' work in the hands of the test."""

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = tg.open_device(uri)
        self.queue = self.device.queue()
        self.tasks: list[Callable[[], object]] = []
        monkeypatch.setattr(workload, "_RELEASE_S", 0.0)  # the one that releases is halted: it gets no turn
        monkeypatch.setattr(workload.host_pool, "run", self._take)
        if uri == "cpu":
            monkeypatch.setattr(self.device._driver.workers, "put", lambda task: self.tasks.append(task.run))

    def _take(self, task: Callable[[], object], ticket: Any) -> None:
        ticket.taken = True
        self.tasks.append(task)

    def buffer(self) -> tg.Buffer:
        buffer = self.device.allocate(BYTES, memory="shared")
        buffer.write(bytes(BYTES))
        return buffer

    def finish(self, submission: tg.Submission) -> None:
        while self.tasks:
            self.tasks.pop(0)()
        _over(submission)


def decide(gate: tg.Semaphore, failed: Failed | None) -> None:
    if failed is None or failed.cause is None:
        gate.signal(1)
    else:
        gate.fail(failed.cause)


def behind(gate: tg.Semaphore, failed: Failed | None, make: Callable[[], tg.Submission]) -> tuple[Scene, tg.Submission]:
    """Return the scene of one submission that a semaphore holds back."""
    work = make()
    return Scene(lambda: (decide(gate, failed), _over(work)), failed, keeps=[gate]), work


def fill(stage: Stage, failed: Failed | None) -> Scene:
    """Two signals and a written buffer."""
    gate, a, b = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    buffer = stage.buffer()
    signal = [a.at(1), b.at(1)]
    scene, work = behind(gate, failed, lambda: stage.queue.fill(buffer, 7, wait=gate.at(1), signal=signal))
    scene.look_at_signal("a", a)
    scene.look_at_signal("b", b)
    scene.look_at(work)
    scene.look_into(buffer, 7)
    return scene


def cancelled(stage: Stage, _failed: Failed | None) -> Scene:
    """A held submission that is given up."""
    gate, a = tg.Semaphore(), tg.Semaphore()
    buffer = stage.buffer()
    work = stage.queue.fill(buffer, 7, wait=gate.at(1), signal=a.at(1))
    scene = Scene(lambda: cancel(work), Cancelled(None), keeps=[gate])
    scene.look_at_signal("a", a)
    scene.look_at(work)
    scene.look_into(buffer, 7)
    return scene


def cancel(work: tg.Submission) -> None:
    assert work.cancel()
    assert work.done
    assert isinstance(work.error, tg.AbortedError)


def break_if(failed: Failed | None) -> None:
    if failed is not None and failed.cause is not None:
        raise failed.cause


def kernel(stage: Stage, failed: Failed | None) -> Scene:
    """A kernel, which a worker or a stream runs."""

    def run(_workgroups: object, bindings: Any, _constants: object) -> None:
        break_if(failed)
        bindings[0][:] = 9

    a = tg.Semaphore()
    buffer = stage.buffer()
    function = stage.device.load(tg.Kernel("k", cpu=run, bindings=1))["k"]
    work = stage.queue.dispatch(function, (1, 1, 1), bindings=[buffer], signal=a.at(1))
    scene = Scene(lambda: stage.finish(work), failed)
    scene.look_at_signal("a", a)
    scene.look_at(work)
    scene.look_into(buffer, 9)
    return scene


def host_call(stage: Stage, failed: Failed | None) -> Scene:
    """A function on a host thread, with a result."""

    def run() -> str:
        break_if(failed)
        return "made"

    a = tg.Semaphore()
    work = stage.queue.host_call(run, signal=a.at(1))
    scene = Scene(lambda: stage.finish(work), failed)
    scene.look_at_signal("a", a)
    scene.look_at(work, "made")
    return scene


def download(stage: Stage, failed: Failed | None) -> Scene:
    """Work without a signal, with a result."""
    gate = tg.Semaphore()
    buffer = stage.buffer()
    scene, work = behind(gate, failed, lambda: stage.queue.download(buffer, wait=gate.at(1)))
    scene.look_at(work, bytes(BYTES))
    scene.look("result", lambda: polled(lambda: work.result(0).tobytes()), scene.ends["result"])
    return scene


def allocate(stage: Stage, failed: Failed | None) -> Scene:
    """Storage that comes in queue order: once that is over, the host can read it; perhaps before, too."""
    gate, a = tg.Semaphore(), tg.Semaphore()
    buffer = stage.queue.allocate(BYTES, memory="shared", wait=gate.at(1), signal=a.at(1))
    scene, work = behind(gate, failed, lambda: buffer.ready)
    scene.look_at_signal("a", a)
    scene.look_at(work)
    if failed is None:
        scene.look("read", lambda: REACHED if _readable(buffer) else OPEN, aside=True)
    return scene


def free(stage: Stage, failed: Failed | None) -> Scene:
    """A buffer that is given back in queue order: once that is over, it is refused; if that failed, it is there."""
    gate, a = tg.Semaphore(), tg.Semaphore()
    buffer = stage.buffer()
    scene, work = behind(gate, failed, lambda: stage.queue.free(buffer, wait=gate.at(1), signal=a.at(1)))
    scene.look_at_signal("a", a)
    scene.look_at(work)
    there = failed is not None
    scene.look("read", lambda: REACHED if _readable(buffer) is there else OPEN, REACHED, aside=True)
    return scene


def _readable(buffer: tg.Buffer) -> bool:
    try:
        return len(buffer.read(timeout=0)) == BYTES
    except tg.FailedPreconditionError:
        return False


def lane(stage: Stage, failed: Failed | None) -> Scene:
    """The last of a lane: over only after those before it."""
    gate = tg.Semaphore()
    buffer = stage.buffer()
    line = stage.device.lane(stage.queue)
    first = line.fill(buffer, 7, wait=gate.at(1))
    scene, work = behind(gate, failed, lambda: line.fill(buffer, 8))
    scene.look_at(work)
    # A failure of the first is one of the lane, before the last knows of it.
    scene.look("tail", lambda: polled(lambda: line.wait(0)), aside=failed is not None)
    scene.look("first", lambda: DONE if first.done else OPEN, DONE, aside=True)
    scene.look_into(buffer, 8)
    return scene


def chain(stage: Stage, failed: Failed | None) -> Scene:
    """Work behind work, on the promise of the device where there is one."""
    gate, a, b = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    buffer = stage.buffer()
    first = stage.queue.fill(buffer, 7, wait=gate.at(1), signal=a.at(1))
    scene, work = behind(gate, failed, lambda: stage.queue.fill(buffer, 8, wait=a.at(1), signal=b.at(1)))
    scene.look_at_signal("b", b)
    scene.look_at(work)
    scene.look_at_signal("a", a, aside=True)
    scene.look("first", lambda: DONE if first.done else OPEN, DONE, aside=True)
    scene.look_into(buffer, 8)
    return scene


def submit(stage: Stage, _failed: Failed | None) -> Scene:
    """A call that has not even returned: who sees its signal reads what it wrote."""
    a = tg.Semaphore()
    buffer = stage.buffer()
    data = bytes([7]) * BYTES
    scene = Scene(lambda: _over(stage.queue.fill(buffer, 7, signal=a.at(1))))
    scene.look_at_signal("a", a)
    scene.look("read", lambda: REACHED if polled(lambda: buffer.read(timeout=0)) == data else OPEN, aside=True)
    return scene


def semaphore(_stage: Stage, failed: Failed | None) -> Scene:
    """A semaphore by itself, with somebody waiting."""
    a = tg.Semaphore()
    a.at(1).add_callback(lambda *_: None)
    scene = Scene(lambda: decide(a, failed), failed)
    scene.look_at_signal("a", a)
    scene.look("all", lambda: polled(lambda: tg.wait_all([a.at(1)], 0)), signal="a")
    return scene


SCENES = (fill, cancelled, kernel, host_call, download, allocate, free, lane, chain, submit, semaphore)
FAILING = (fill, kernel, host_call, free, chain, semaphore)
EVERY = [(make, None) for make in SCENES] + [(make, ValueError) for make in FAILING]
HALTED_LOOKS = ("fill_failing", "lane")
names = [f"{make.__name__}{'' if problem is None else '_failing'}" for make, problem in EVERY]


# Threads -----------------------------------------------------------------------------------------------------------


class Traced(threading.Thread):
    """Does something, and tells `line` of each line of the core, but for what is one step."""

    def __init__(self, step: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._step = step
        self.settled = threading.Event()  # it is through, or where it wanted to get
        self._found: object = None
        self._error: BaseException | None = None

    def run(self) -> None:
        sys.settrace(self._enter)
        try:
            self._found = self._step()
        except BaseException as error:
            self._error = error
        finally:
            sys.settrace(None)
            self.settled.set()

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        return self._trace if code.co_filename in _FILES and code.co_name not in _ONE_STEP else None

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self.line(frame.f_code.co_filename, frame.f_lineno)
        return self._trace

    def finish(self) -> Any:
        """Return what it found, or raise what it raised."""
        self.join(LIMIT)
        assert not self.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._found


class Halting(Traced):
    """Halts after a given number of lines, or is over before."""

    def __init__(self, step: Callable[[], object], halt_after: int) -> None:
        super().__init__(step)
        self._left = halt_after
        self.halted = self.locked = False
        self.place = "over"
        self._go = threading.Event()
        self.start()
        assert self.settled.wait(LIMIT)

    def line(self, source: str, number: int) -> None:
        self._left -= 1
        if self._left == 0:
            self.place = f"{Path(source).name}:{number}, {'with' if interrupted_here() else 'without'} the lock"
            self.locked = interrupted_here()
            self.halted = True
            self.settled.set()
            self._go.wait(LIMIT)

    def finish(self) -> Any:
        self._go.set()
        return super().finish()


class Observer(Traced):
    """Acts while another thread halts; settled as soon as it must wait for the lock that the other holds."""

    def __init__(self, step: Callable[[], object], halting: Halting) -> None:
        super().__init__(step)
        self._locked = halting.locked
        self.start()
        self.settled.wait(PATIENCE)

    def line(self, source: str, number: int) -> None:
        if self._locked and (source, number) in _LOCKING:
            self.settled.set()


def orders_of(scene: Scene, turn: int) -> list[list[str]]:
    """Return a few orders to look in. Which look comes first, and what comes next, changes from turn to turn."""
    looks = list(scene.looks)
    orders = []
    for first in range(len(looks)):
        others = looks[first + 1 :] + looks[:first]
        cut = turn % max(1, len(others))
        orders.append([looks[first], *others[cut:], *others[:cut]][:LOOKS])
    cut = turn // 2 * ORDERS % len(orders)
    return (orders[cut:] + orders[:cut])[:ORDERS]


# Tests -------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["cpu", "streams"])
def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    register_streams()
    stage = Stage(request.param, monkeypatch)
    yield stage
    stage.device.close(LIMIT)


def lay(stage: Stage, number: int, turn: int) -> Scene:
    """Make a scene anew. Every other time somebody waits for the submission before, so that it has a timeline."""
    make, problem = EVERY[number]
    scene = make(stage, None if problem is None else Failed(problem("broken")))
    if scene.submission is not None and make not in (allocate, free):
        scene.count(stage.device, 2 if make in (lane, chain) else 1)
    if turn % 2 and scene.submission is not None:
        with suppress(tg.DeadlineExceededError):
            scene.submission.wait(0)
    return scene


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EVERY)), ids=names)
def test_what_was_seen_of_a_step_at_any_of_its_lines_is_confirmed_by_every_later_look(
    stage: Stage, number: int
) -> None:
    halted, line = True, 0
    while halted:
        line += 1
        scene = lay(stage, number, line)
        halting = Halting(scene.step, line)
        observers = [Observer(partial(scene.see, order), halting) for order in orders_of(scene, line)]
        halting.finish()
        for observer in observers:
            scene.prove(observer.finish(), halting.place)
        scene.prove_over()
        halted = halting.halted
    assert line > 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [names.index(name) for name in HALTED_LOOKS], ids=HALTED_LOOKS)
def test_a_look_during_which_a_whole_step_happens_tells_what_was_before_or_what_is_now(
    stage: Stage, number: int
) -> None:
    for name in lay(stage, number, 0).looks:
        halted, line = True, 0
        while halted:
            line += 1
            scene = lay(stage, number, line)
            look = Halting(scene.looks[name], line)
            step = Observer(scene.step, look)
            found = look.finish()
            step.finish()
            assert found is OPEN or meets(scene.ends[name], found), f"{look.place}: {name} found {found}"
            scene.prove_over()
            halted = look.halted


@pytest.mark.slow
def test_a_read_during_which_the_next_write_is_submitted_tells_the_failure_of_the_last_or_waits(stage: Stage) -> None:
    halted, line = True, 0
    while halted:
        line += 1
        problem, gate, buffer = ValueError("broken"), tg.Semaphore(), stage.buffer()
        stage.queue.fill(buffer, 7, wait=gate.at(1))
        gate.fail(problem)
        read = Halting(lambda: polled(lambda: buffer.read(timeout=0)), line)
        halted = read.halted
        never = tg.Semaphore()
        write = Observer(lambda: stage.queue.fill(buffer, 8, wait=never.at(1)), read)
        found = read.finish()
        write.finish().cancel()
        assert found in (OPEN, bytes(BYTES)) or Failed(problem).meets(found), f"{read.place}: the read found {found}"


@pytest.mark.slow
@pytest.mark.parametrize(("uri", "make"), [("cpu", fill), ("streams", chain)])
def test_what_is_over_when_the_device_is_lost_stays_over_with_the_same_error(
    monkeypatch: pytest.MonkeyPatch, uri: str, make: Callable[..., Scene]
) -> None:
    register_streams()
    line = 1
    while lost_at(Stage(uri, monkeypatch), make, line):
        line += 1
    assert line > 1


def lost_at(stage: Stage, make: Callable[..., Scene], line: int) -> bool:
    """Lose the device while a step that sets work free halts at a line. False: the step was over before."""
    scene = make(stage, None)
    work = scene.submission
    assert work is not None
    halting = Halting(scene.step, line)
    loser = Observer(lambda: (lose_device(stage.device), work.done, work.error), halting)
    with suppress(tg.DeviceLostError):
        halting.finish()
    _, done, error = loser.finish()
    with suppress(tg.SemaphoreFailedError):
        work.wait(LIMIT)
    assert work.done, f"lost at {halting.place}"
    if done:
        assert work.error is error, f"lost at {halting.place}: {error!r}, then {work.error!r}"
    assert work.error is None or isinstance(work.error, tg.DeviceLostError), f"lost at {halting.place}: {work.error!r}"
    stage.device.close(LIMIT)
    return halting.halted
