"""Random programs over semaphores, queues and two devices, against the model in `timelines`.

After each step the machine waits for what the model says must come, and then compares all there is to see: payloads,
failures, which submissions are over and with which first cause, what ran, and which callbacks were called.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import tidegate as tg

from .drawing import PICK, choose
from .fences import LIMIT, let_background_threads_catch_up
from .recognition import Recognition
from .timelines import DONE, HELD, PROMISED, RUNNING, Model, Outcome, Plan, Point, State, certain
from .world import KINDS, Boom, World

MOST_TIMELINES, MOST_OPEN, MOST_GATES = 12, 6, 2
DEVICE = st.integers(0, 1)
STEP = st.sampled_from((1, 2, 1, 3, 0, -1))
"""How far from the payload a value is: mostly near and ahead."""
VALUE = st.tuples(PICK, STEP)
POINTS = st.lists(st.tuples(st.booleans(), PICK, STEP), max_size=2)


class Machine(RuleBasedStateMachine):
    """On the CPU device, which has no order of its own and runs small work in place."""

    uri = "cpu?workers=4"
    promising = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.uri)
        self.model = Model(self.promising)
        self.recognition = Recognition(self.model)
        self.numbers = itertools.count()
        for value in (0, 0, 3):
            self.make_timeline(value)

    def apply(self, action: Callable[..., Outcome], *arguments: object, told: object = None) -> None:
        self.model.apply(lambda state: action(state, *arguments), told, self.recognition.may_be)

    def make_timeline(self, value: int) -> None:
        self.world.semaphores.append(tg.Semaphore(value, label=f"timeline{len(self.world.semaphores)}"))
        self.apply(self.model.make, value)

    # Choosing --------------------------------------------------------------------------------------------------------

    def in_phase(self, *phases: str) -> list[int]:
        """The submissions that may be in one of some phases."""
        return [
            job.number
            for job in self.world.jobs
            if any(state.entries[job.number].phase in phases for state in self.model.states)
        ]

    def value(self, drawn: tuple[int, int]) -> tuple[int, int]:
        """A timeline, seldom a failed one, and a value near its payload."""
        pick, step = drawn
        number = choose([*self.world.living() * 3, *self.world.kept()], pick)
        return number, max(0, self.world.semaphore(number).value + step)

    def points(self, drawn: list[tuple[bool, int, int]]) -> list[Point]:
        recent = [job.number for job in self.world.jobs[-8:]]
        return [
            ("entry", choose(recent, pick), 1) if of_entry and recent else ("timeline", *self.value((pick, step)))
            for of_entry, pick, step in drawn
        ]

    # What users do ---------------------------------------------------------------------------------------------------

    @rule(value=st.integers(0, 3))
    def make(self, value: int) -> None:
        if len(self.world.living()) < 4 and len(self.world.semaphores) < MOST_TIMELINES:
            self.make_timeline(value)

    @rule(drawn=VALUE)
    def signal(self, drawn: tuple[int, int]) -> None:
        number, value = self.value(drawn)
        told: object = None
        try:
            self.world.semaphore(number).signal(value)
        except tg.InvalidArgumentError:
            told = "refused"
        except tg.SemaphoreFailedError as error:
            told = ("failed", self.recognition.name_of(error.__cause__))
        self.apply(self.model.signal, number, value, told=told)

    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        if len(self.world.living()) < 2 or not self.in_phase(HELD, RUNNING):
            return
        number = choose(self.world.living(), pick)
        cause = ("host", next(self.numbers))
        error = self.recognition.names[cause] = Boom(*cause)
        self.world.semaphore(number).fail(error)
        self.apply(self.model.fail, number, cause)

    @rule(pick=PICK)
    def drop(self, pick: int) -> None:
        if len(self.world.living()) < 2:
            return
        number = choose(self.world.living(), pick)
        self.world.semaphores[number] = None
        self.apply(self.model.drop, number)

    @rule(kind=st.sampled_from(KINDS), device=DEVICE, queue=DEVICE, waits=POINTS, signals=st.lists(VALUE, max_size=2))
    def submit(self, kind: str, device: int, queue: int, waits: list[Any], signals: list[tuple[int, int]]) -> None:
        gates = [job for job in self.world.jobs if job.gate is not None and not job.submission.done]
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
        told = self.world.submit(kind, device, queue, waits, signals)
        if self.world.ends[device] != "open":
            assert told == self.world.ends[device]
            return
        if told is None:
            job = self.world.jobs[-1]
            self.recognition.names["raised", job.number] = job.error
            self.model.plans.append(plan)
        self.apply(self.model.submit, plan, told=told)

    @rule(pick=PICK)
    def open(self, pick: int) -> None:
        if not self.in_phase(RUNNING):
            return
        number = choose(self.in_phase(RUNNING), pick)
        self.world.jobs[number].open()
        # Opened for good: where the work has not begun yet, it will run through.
        self.model.plans[number] = replace(self.model.plans[number], kind="plain")
        self.apply(self.model.open, number)

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        if not self.in_phase(HELD, RUNNING):
            return
        number = choose(self.in_phase(HELD, RUNNING), pick)
        self.apply(self.model.cancel, number, told=self.world.jobs[number].submission.cancel())

    @rule(device=DEVICE)
    def close(self, device: int) -> None:
        if len(self.world.jobs) < 6:
            return
        before = self.world.ends[device]
        self.world.close_at_once(device)
        if before == "open":
            self.apply(self.model.close, device)

    @rule(device=DEVICE)
    def lose(self, device: int) -> None:
        if len(self.world.jobs) >= 9 and self.world.ends == ["open", "open"]:
            self.world.lose(device)
            self.apply(self.model.lose, device)

    @rule(drawn=VALUE)
    def listen(self, drawn: tuple[int, int]) -> None:
        self.world.listen(("timeline", *self.value(drawn)))

    @rule(pick=PICK)
    def cancel_a_callback(self, pick: int) -> None:
        if self.world.told:
            told = choose(self.world.told, pick)
            told.cancelled = told.subscription.cancel()
            assert told.cancelled == (not told.calls)

    @rule(drawn=POINTS, mode=st.sampled_from(("all", "any", "each")))
    def poll(self, drawn: list[Any], mode: str) -> None:
        points = self.points(drawn)
        told: object = "late"
        try:
            told = _poll([self.world.point(point) for point in points], mode)
        except tg.DeadlineExceededError:
            pass
        except tg.SemaphoreFailedError as error:
            told = ("failed", self.recognition.name_of(error.__cause__))
        self.apply(self.polled, points, mode, told, told=told)

    def polled(self, state: State, points: list[Point], mode: str, told: object) -> Outcome:
        """What a poll gives in a state; of several failures, any may be told."""
        decided = [self.model.decided(state, point) for point in points]
        reached = [over and cause is None for over, cause in decided]
        if mode == "each":  # one after the other: the first that is not reached decides
            if all(reached):
                return "reached", state
            over, cause = decided[reached.index(False)]
            return ("failed", cause) if over else "late", state
        if mode == "any" and (not points or any(reached)):
            return ("reached", reached.index(True) if points else None), state
        failures = [("failed", cause) for over, cause in decided if over and cause is not None]
        if failures:
            return next((each for each in failures if self.recognition.may_be(told, each)), failures[0]), state
        return "reached" if all(reached) else "late", state

    # What must be so -------------------------------------------------------------------------------------------------

    @invariant()
    def the_world_is_in_a_state_the_model_knows(self) -> None:
        ends = self.model.settle()
        self.wait_for(certain(ends))
        points = [None if told.cancelled else told.point for told in self.world.told]
        if self.promising:
            seen = self.world.look()
            self.model.states = self.recognition.recognise(self.model.states, seen, points, exactly=False)
            assert self.model.states, f"no state of the model may become {seen}"
            return
        deadline = time.monotonic() + LIMIT
        while True:
            let_background_threads_catch_up()
            seen = self.world.look()
            self.model.states = self.recognition.recognise(ends, seen, points, exactly=True)
            if self.model.states and seen == self.world.look():
                break
            assert time.monotonic() < deadline, f"no state of the model is {seen}: {ends}"
        self.only_what_was_to_run_has_run()

    def wait_for(self, state: State) -> None:
        """Wait for what is certain to come."""
        for number, entry in enumerate(state.entries):
            if entry.phase == DONE:
                self.world.wait_for(self.world.jobs[number])
        for number in self.world.kept():
            self.world.semaphore(number).wait(state.timelines[number].payload, LIMIT)

    def only_what_was_to_run_has_run(self) -> None:
        for job in self.world.jobs:
            error = job.submission.error
            if job.kind == "barrier" or not job.submission.done or isinstance(error, tg.DeviceLostError):
                continue
            assert self.world.ran(job, self.model.plans[job.number].device) == (error is None or error is job.error)

    def teardown(self) -> None:
        self.world.end()


def _poll(points: list[Any], mode: str) -> object:
    if mode == "any":
        found = tg.wait_any(points, 0)
        return ("reached", None if found is None else [point is found for point in points].index(True))
    if mode == "all":
        tg.wait_all(points, 0)
    else:
        for point in points:
            point.wait(0)
    return "reached"


class StreamsMachine(Machine):
    """On in-order streams, with epochs and promises: work may be issued behind work that has not ended.

    The streams go their own pace, so what is seen may lag behind what is so.
    """

    uri = "streams"
    promising = True


TestMachine = pytest.mark.slow(Machine.TestCase)
TestStreamsMachine = pytest.mark.slow(StreamsMachine.TestCase)
