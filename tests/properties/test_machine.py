"""Random programs over semaphores, queues and two devices, against the model in `timelines`.

After each step the machine waits for what the model says must come, and then compares all there is to see: payloads,
failures, which submissions are over and with which first cause, what ran, and which callbacks were called.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import tidegate as tg
from tidegate.testing import lose_device, register_streams

from .drawing import PICK, choose
from .fences import LIMIT, let_background_threads_catch_up
from .timelines import DONE, HELD, PROMISED, RUNNING, Cause, Model, Plan, Point, State, certain

DEVICE = st.integers(0, 1)
MOST_TIMELINES, MOST_OPEN, MOST_GATES = 12, 6, 2
STEP = st.sampled_from((1, 2, 1, 3, 0, -1))
"""How far from the payload a value is: mostly near and ahead."""
VALUE = st.tuples(PICK, STEP)
POINTS = st.lists(st.tuples(st.booleans(), PICK, STEP), max_size=2)
KINDS = ("barrier", "fill", "call", "raising call", "gated call", "kernel", "raising kernel", "gated kernel")

#: What the errors that Tidegate makes itself are.
MADE = {
    "overtaken": tg.FailedPreconditionError,
    "cancelled": tg.AbortedError,
    "closed": tg.AbortedError,
    "dropped": tg.AbortedError,
    "lost": tg.DeviceLostError,
}


class Boom(Exception):
    """An error of the program under test."""


@dataclass
class Job:
    """A submission, and what it leaves behind when it runs."""

    number: int
    kind: str
    error: Boom
    ran: bool = False
    gate: Any = None
    submission: tg.Submission = field(init=False)

    def open(self) -> None:
        if isinstance(self.gate, tg.Semaphore):
            self.gate.signal(1)
        else:
            self.gate.set()

    def call(self) -> None:
        if self.gate is not None:
            self.gate.wait(1, LIMIT)
        self.run()

    def kernel(self, workgroups: Any, bindings: Any, constants: Any) -> None:
        if self.gate is not None:
            assert self.gate.wait(LIMIT)
        self.run()

    def run(self) -> None:
        self.ran = True
        if self.kind.startswith("raising"):
            raise self.error


@dataclass
class Told:
    """What a callback was told."""

    point: Point
    calls: list[tuple[tg.Outcome, BaseException | None]] = field(default_factory=list)
    cancelled: bool = False
    subscription: tg.Subscription = field(init=False)

    def __call__(self, timepoint: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        assert timepoint.value == self.point[2]
        self.calls.append((outcome, error))


class Machine(RuleBasedStateMachine):
    """On the CPU device, which has no order of its own and runs small work in place."""

    uri = "cpu?workers=4"
    promising = False

    def __init__(self) -> None:
        super().__init__()
        register_streams()
        self.model = Model(self.promising)
        self.devices = [tg.open_device(self.uri, label=f"device{number}") for number in range(2)]
        self.ends = ["open", "open"]
        self.queues = [(device.queue(), device.queue("transfer")) for device in self.devices]
        self.marks = [device.upload(np.zeros(256, np.uint8), memory="shared") for device in self.devices]
        self.views = [self.view_of(mark) for mark in self.marks]
        self.semaphores: list[tg.Semaphore | None] = []
        self.jobs: list[Job] = []
        self.told: list[Told] = []
        self.causes: dict[Cause, BaseException] = {}
        self.numbers = itertools.count()
        for value in (0, 0, 3):
            self.make_timeline(value)

    @staticmethod
    def view_of(mark: tg.Buffer) -> Any:
        """The bytes of a buffer; the array outlives the mapping, and the device."""
        with mark.map("r", wait=()) as view:
            return view

    # Choosing --------------------------------------------------------------------------------------------------------

    def make_timeline(self, value: int) -> None:
        self.semaphores.append(tg.Semaphore(value, label=f"timeline{len(self.semaphores)}"))
        self.model.new_timeline(value)

    def kept(self) -> list[int]:
        return [number for number, semaphore in enumerate(self.semaphores) if semaphore is not None]

    def semaphore(self, number: int) -> tg.Semaphore:
        found = self.semaphores[number]
        assert found is not None
        return found

    def in_phase(self, *phases: str) -> list[int]:
        """The submissions that may be in one of some phases."""
        return [
            job.number
            for job in self.jobs
            if any(state.entries[job.number].phase in phases for state in self.model.states)
        ]

    def living(self) -> list[int]:
        """The timelines that can still move."""
        state = next(iter(self.model.states))
        return [number for number in self.kept() if state.timelines[number].failure is None]

    def value(self, drawn: tuple[int, int]) -> tuple[int, int]:
        """A timeline, seldom a failed one, and a value near its payload."""
        pick, step = drawn
        number = choose([*self.living() * 3, *self.kept()], pick)
        state = next(iter(self.model.states))
        return number, max(0, state.timelines[number].payload + step)

    def points(self, drawn: list[tuple[bool, int, int]]) -> list[Point]:
        recent = [job.number for job in self.jobs[-8:]]
        return [
            ("entry", choose(recent, pick), 1) if of_entry and recent else ("timeline", *self.value((pick, step)))
            for of_entry, pick, step in drawn
        ]

    def real(self, point: Point) -> Any:
        kind, number, value = point
        return self.semaphore(number).at(value) if kind == "timeline" else self.jobs[number].submission

    def new_cause(self, kind: str = "host") -> tuple[Cause, Boom]:
        cause = (kind, next(self.numbers))
        self.causes[cause] = error = Boom(*cause)
        return cause, error

    def cause_of(self, error: BaseException | None) -> Cause | None:
        """The name of an error that was seen before."""
        found = [cause for cause, known in self.causes.items() if known is error]
        return found[0] if found else None

    # What users do ---------------------------------------------------------------------------------------------------

    @rule(value=st.integers(0, 3))
    def make(self, value: int) -> None:
        if len(self.living()) < 4 and len(self.semaphores) < MOST_TIMELINES:
            self.make_timeline(value)

    @rule(drawn=VALUE)
    def signal(self, drawn: tuple[int, int]) -> None:
        number, value = self.value(drawn)
        observed: object = None
        try:
            self.semaphore(number).signal(value)
        except tg.InvalidArgumentError:
            observed = "refused"
        except tg.SemaphoreFailedError as error:
            observed = ("failed", self.cause_of(error.__cause__))
        self.model.apply(lambda state: self.model.signal(state, number, value), observed)

    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        if len(self.living()) < 2 or not self.in_phase(HELD, RUNNING):
            return
        number = choose(self.living(), pick)
        cause, error = self.new_cause()
        self.semaphore(number).fail(error)
        self.model.apply(lambda state: self.model.fail(state, number, cause), None)

    @rule(pick=PICK)
    def drop(self, pick: int) -> None:
        if len(self.living()) < 2:
            return
        number = choose(self.living(), pick)
        self.semaphores[number] = None
        self.model.apply(lambda state: self.model.drop(state, number), None)

    @rule(kind=st.sampled_from(KINDS), device=DEVICE, queue=DEVICE, waits=POINTS, signals=st.lists(VALUE, max_size=2))
    def submit(self, kind: str, device: int, queue: int, waits: list[Any], signals: list[tuple[int, int]]) -> None:
        gates = [job for job in self.jobs if job.gate is not None and not job.submission.done]
        if kind.startswith("gated") and len(gates) >= MOST_GATES:
            kind = kind.removeprefix("gated ")
        self.submit_one(kind, device, queue, self.points(waits), [self.value(drawn) for drawn in signals])

    @rule(device=DEVICE, queue=DEVICE, drawn=VALUE, waits=POINTS)
    def submit_a_chain(self, device: int, queue: int, drawn: tuple[int, int], waits: list[Any]) -> None:
        """Two links that meet at one value, the second one given first."""
        number, value = self.value(drawn)
        self.submit_one("barrier", device, queue, [("timeline", number, value + 1)], [(number, value + 2)])
        self.submit_one("barrier", device, queue, self.points(waits), [(number, value + 1)])

    def submit_one(
        self, kind: str, device: int, queue: int, waits: list[Point], signals: list[tuple[int, int]]
    ) -> None:
        if len(self.in_phase(HELD, PROMISED, RUNNING)) >= MOST_OPEN:
            return
        highest = {number: max(value for other, value in signals if other == number) for number, _ in signals}
        word, _, rest = kind.partition(" ")
        does = {"raising": "raise", "gated": "gate"}.get(word, "plain")
        plan = Plan(device, does, "call" not in (word, rest), tuple(waits), tuple(highest.items()))
        observed = self.try_to_submit(kind, plan, queue, waits, signals)
        if self.ends[device] != "open":
            assert observed == self.ends[device]
            return
        if observed is None:
            self.model.plans.append(plan)
        self.model.apply(lambda state: self.model.submit(state, plan), observed)

    def try_to_submit(
        self, kind: str, plan: Plan, queue: int, waits: list[Point], signals: list[tuple[int, int]]
    ) -> str | None:
        number = len(self.jobs)
        job = Job(number, kind, Boom("raised", number))
        options = {
            "wait": [self.real(point) for point in waits],
            "signal": [self.semaphore(signalled).at(value) for signalled, value in signals],
        }
        try:
            job.submission = self.give(job, plan.device, self.queues[plan.device][queue], options)
        except tg.ClosedError:
            return "closed"
        except tg.DeviceLostError:
            return "lost"
        except tg.InvalidArgumentError:
            return "refused"
        self.causes["raised", number] = job.error
        self.jobs.append(job)
        return None

    def give(self, job: Job, device: int, queue: tg.Queue, options: dict[str, Any]) -> tg.Submission:
        if job.kind == "barrier":
            return queue.barrier(**options)
        if job.kind == "fill":
            return queue.fill(self.marks[device], 1, offset=job.number, length=1, **options)
        if job.kind.endswith("call"):
            job.gate = tg.Semaphore() if job.kind.startswith("gated") else None
            return queue.host_call(job.call, **options)
        job.gate = threading.Event() if job.kind.startswith("gated") else None
        if self.ends[device] != "open":
            return queue.barrier(**options)
        function = self.devices[device].load(tg.Kernel("job", cpu=job.kernel, bindings=0))["job"]
        return queue.dispatch(function, 1, **options)

    @rule(pick=PICK)
    def open(self, pick: int) -> None:
        if self.in_phase(RUNNING):
            self.open_gate(choose(self.in_phase(RUNNING), pick))

    def open_gate(self, number: int) -> None:
        # Opened for good: where the work has not begun, it will run through.
        self.jobs[number].open()
        self.model.plans[number] = replace(self.model.plans[number], kind="plain")
        self.model.apply(lambda state: self.model.open(state, number), None)

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        if not self.in_phase(HELD, RUNNING):
            return
        number = choose(self.in_phase(HELD, RUNNING), pick)
        observed = self.jobs[number].submission.cancel()
        self.model.apply(lambda state: self.model.cancel(state, number), observed)

    @rule(device=DEVICE)
    def close(self, device: int) -> None:
        """Close without time to wait: what was issued goes on, and a later call ends it."""
        if len(self.jobs) < 6:
            return
        try:
            self.devices[device].close(0)
        except tg.DeadlineExceededError:
            pass
        if self.ends[device] == "open":
            self.ends[device] = "closed"
            self.model.apply(lambda state: self.model.close(state, device), None)

    @rule(device=DEVICE)
    def lose(self, device: int) -> None:
        if len(self.jobs) < 9 or self.ends != ["open", "open"]:
            return
        lose_device(self.devices[device])
        self.ends[device] = "lost"
        self.model.apply(lambda state: self.model.lose(state, device), None)

    @rule(drawn=VALUE)
    def listen(self, drawn: tuple[int, int]) -> None:
        number, value = self.value(drawn)
        told = Told(("timeline", number, value))
        told.subscription = self.semaphore(number).at(value).add_callback(told)
        self.told.append(told)

    @rule(pick=PICK)
    def cancel_a_callback(self, pick: int) -> None:
        if not self.told:
            return
        told = choose(self.told, pick)
        told.cancelled = told.subscription.cancel()
        assert told.cancelled == (not told.calls)

    @rule(drawn=POINTS, mode=st.sampled_from(("all", "any", "each")))
    def poll(self, drawn: list[Any], mode: str) -> None:
        points = self.points(drawn)
        real = [self.real(point) for point in points]
        observed: object = "late"
        try:
            if mode == "any":
                found = tg.wait_any(real, 0)
                observed = ("reached", None if found is None else [each is found for each in real].index(True))
            elif mode == "all":
                tg.wait_all(real, 0)
                observed = "reached"
            else:
                for each in real:
                    each.wait(0)
                observed = "reached"
        except tg.DeadlineExceededError:
            pass
        except tg.SemaphoreFailedError as error:
            observed = ("failed", self.cause_of(error.__cause__))
        self.model.apply(lambda state: (self.polled(state, points, mode, observed), state), observed)

    def polled(self, state: State, points: list[Point], mode: str, observed: object) -> object:
        """What a poll may give in a state; of several failures, any may be told."""
        decided = [self.model.decided(state, point) for point in points]
        reached = [over and cause is None for over, cause in decided]
        if mode == "each":  # one after the other: the first that is not reached decides
            index = reached.index(False) if False in reached else None
            if index is None:
                return "reached"
            over, cause = decided[index]
            return ("failed", cause) if over else "late"
        if mode == "any" and (not points or True in reached):
            return ("reached", reached.index(True) if points else None)
        failures = [("failed", cause) for over, cause in decided if over and cause is not None]
        if failures:
            return observed if observed in failures else failures[0]
        return "reached" if mode == "all" and all(reached) else "late"

    # What must be so -------------------------------------------------------------------------------------------------

    @invariant()
    def the_world_is_in_a_state_the_model_knows(self) -> None:
        ends = self.model.settle()
        self.wait_for(certain(ends))
        if self.promising:
            seen = self.look()
            self.model.states = {state for state in self.model.states if self.may_become(seen, state)}
            assert self.model.states, f"no state of the model has {seen}"
            return
        deadline = time.monotonic() + LIMIT
        while True:
            let_background_threads_catch_up()
            seen = self.look()
            states = {state for state in ends if self.is_exactly(seen, state)}
            if states and seen == self.look():
                break
            assert time.monotonic() < deadline, f"no state of the model is {seen}: {ends}"
        self.model.states = states
        self.check_what_ran()

    def wait_for(self, state: State) -> None:
        """Wait for what is certain to come."""
        for number, entry in enumerate(state.entries):
            if entry.phase == DONE:
                self.wait_quietly(self.jobs[number].submission)
        for number, timeline in enumerate(state.timelines):
            semaphore = self.semaphores[number]
            if semaphore is not None:
                semaphore.wait(timeline.payload, LIMIT)

    @staticmethod
    def wait_quietly(submission: tg.Submission) -> None:
        try:
            submission.wait(LIMIT)
        except tg.SemaphoreFailedError as error:
            cause = error.__cause__
        else:
            cause = None
        assert cause is submission.error

    Seen = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]

    def look(self) -> Seen:
        """What there is to see: submissions, callbacks, timelines. All of it only ever grows."""
        entries = tuple((job.submission.done, id(self.note(job.submission.error))) for job in self.jobs)
        told = tuple(
            (*((outcome, id(self.note(error))) for outcome, error in told.calls), told.cancelled) for told in self.told
        )
        timelines = tuple(
            None if semaphore is None else (semaphore.value, id(self.note(semaphore.failure)))
            for semaphore in self.semaphores
        )
        return entries, told, timelines

    def note(self, error: BaseException | None) -> BaseException | None:
        """Keep an error, so that its address stays its own."""
        if error is not None and error not in self.seen_errors:
            self.seen_errors.append(error)
        return error

    @property
    def seen_errors(self) -> list[BaseException]:
        return self.__dict__.setdefault("_seen_errors", [])

    def is_exactly(self, seen: Seen, state: State) -> bool:
        return self.fits(seen, state, exactly=True)

    def may_become(self, seen: Seen, state: State) -> bool:
        return self.fits(seen, state, exactly=False)

    def fits(self, seen: Seen, state: State, *, exactly: bool) -> bool:
        """Whether what was seen is a state, or may become it. Errors seen for the first time get their cause's name."""
        entries, told, timelines = seen
        names: dict[Cause, int] = {cause: id(error) for cause, error in self.causes.items()}
        facts: list[tuple[bool, int, bool, Cause | None]] = []
        for (done, error), entry in zip(entries, state.entries, strict=True):
            facts.append((done, error, entry.phase == DONE, entry.error))
        for calls, each in zip(told, self.told, strict=True):
            over, cause = self.model.decided(state, each.point)
            if each.cancelled:
                continue
            if len(calls) > 2:
                return False
            outcome, error = calls[0] if len(calls) == 2 else (None, id(None))
            facts.append((len(calls) == 2, error, over, cause))
            if outcome is not None and (outcome is tg.Outcome.REACHED) != (error == id(None)):
                return False
        for each, timeline in zip(timelines, state.timelines, strict=True):
            if each is None:
                continue
            payload, failure = each
            if payload > timeline.payload or (exactly and payload != timeline.payload):
                return False
            facts.append((failure != id(None), failure, timeline.failure is not None, timeline.failure))
        return all(self.agree(fact, names, exactly) for fact in facts) and self.learn(names)

    def agree(self, fact: tuple[bool, int, bool, Cause | None], names: dict[Cause, int], exactly: bool) -> bool:
        seen, error, expected, cause = fact
        if not seen:
            return not (exactly and expected)
        if not expected or (error == id(None)) != (cause is None):
            return False
        if cause is None:
            return True
        if cause not in names and error not in names.values() and self.is_of(cause, error):
            names[cause] = error
        return names.get(cause) == error

    def is_of(self, cause: Cause, error: int) -> bool:
        found = next(each for each in self.seen_errors if id(each) == error)
        kind, number, *_ = cause
        if type(found) is not MADE.get(str(kind)):
            return False
        whose = f"timeline{number}" if kind == "dropped" else f"device{number}" if kind == "lost" else ""
        return whose in str(found)

    def learn(self, names: dict[Cause, int]) -> bool:
        by_address = {id(error): error for error in (*self.seen_errors, *self.causes.values())}
        self.causes.update({cause: by_address[address] for cause, address in names.items()})
        return True

    def check_what_ran(self) -> None:
        for job in self.jobs:
            if job.kind == "barrier" or not job.submission.done:
                continue
            plan = self.model.plans[job.number]
            ran = bool(self.views[plan.device][job.number]) if job.kind == "fill" else job.ran
            error = job.submission.error
            assert ran == (error is None or error is job.error) or isinstance(error, tg.DeviceLostError)

    def teardown(self) -> None:
        for job in self.jobs:
            if job.gate is not None and not job.submission.done:
                job.open()
        for device in self.devices:
            device.close(LIMIT)
            statistics = device.statistics()
            assert (statistics.held, statistics.issued) == (0, 0)
            assert statistics.submitted == statistics.retired
        assert all(job.submission.done for job in self.jobs)
        for job in self.jobs:
            self.wait_quietly(job.submission)


class StreamsMachine(Machine):
    """On in-order streams, with epochs and promises: work may be issued behind work that has not ended."""

    uri = "streams"
    promising = True


TestMachine = Machine.TestCase
TestStreamsMachine = StreamsMachine.TestCase
