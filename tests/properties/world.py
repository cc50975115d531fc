"""The real side of the timeline machine: devices, semaphores, submissions, callbacks, and what can be seen of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import tidegate as tg
from tidegate.testing import lose_device, register_streams

from .fences import LIMIT
from .timelines import Point

KINDS = ("barrier", "fill", "call", "raising call", "gated call", "kernel", "raising kernel", "gated kernel")


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
        """Let it run on; twice is fine, and so is a job without a gate."""
        if isinstance(self.gate, threading.Event):
            self.gate.set()
        elif self.gate is not None and self.gate.value == 0:
            self.gate.signal(1)

    def call(self) -> None:
        if self.gate is not None:
            self.gate.wait(1, LIMIT)  # a wait of ours: the pool grows, so that any number of calls may stand here
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
        assert (outcome is tg.Outcome.REACHED) == (error is None)
        self.calls.append((outcome, error))


class Fact(NamedTuple):
    """Whether something is over, and its error."""

    over: bool
    error: BaseException | None


class Seen(NamedTuple):
    """All there is to see. It only ever grows, so a look that takes a while sees no more than what is so at its end."""

    entries: tuple[Fact, ...]
    callbacks: tuple[Fact, ...]
    timelines: tuple[tuple[int, Fact] | None, ...]


class World:
    """Two devices with two queues each, and what was made so far."""

    def __init__(self, uri: str) -> None:
        register_streams()
        self.devices = [tg.open_device(uri, label=f"device{number}") for number in range(2)]
        self.ends = ["open", "open"]
        self.queues = [(device.queue(), device.queue("transfer")) for device in self.devices]
        self.marks = [device.upload(np.zeros(256, np.uint8), memory="shared") for device in self.devices]
        self.views = [_view_of(mark) for mark in self.marks]
        self.semaphores: list[tg.Semaphore | None] = []
        self.jobs: list[Job] = []
        self.told: list[Told] = []

    def kept(self) -> list[int]:
        """The timelines the user still has."""
        return [number for number, semaphore in enumerate(self.semaphores) if semaphore is not None]

    def living(self) -> list[int]:
        """Those of them that can still move."""
        return [number for number in self.kept() if self.semaphore(number).failure is None]

    def semaphore(self, number: int) -> tg.Semaphore:
        found = self.semaphores[number]
        assert found is not None
        return found

    def point(self, point: Point) -> Any:
        kind, number, value = point
        return self.semaphore(number).at(value) if kind == "timeline" else self.jobs[number].submission

    # Doing -----------------------------------------------------------------------------------------------------------

    def submit(
        self, kind: str, device: int, queue: int, waits: list[Point], signals: list[tuple[int, int]]
    ) -> str | None:
        """Submit a job; returns why it was refused, or None."""
        job = Job(len(self.jobs), kind, Boom("raised", len(self.jobs)))
        options = {
            "wait": [self.point(point) for point in waits],
            "signal": [self.semaphore(signalled).at(value) for signalled, value in signals],
        }
        try:
            job.submission = self._give(job, device, self.queues[device][queue], options)
        except tg.ClosedError:
            return "closed"
        except tg.DeviceLostError:
            return "lost"
        except tg.InvalidArgumentError:
            return "refused"
        self.jobs.append(job)
        return None

    def _give(self, job: Job, device: int, queue: tg.Queue, options: dict[str, Any]) -> tg.Submission:
        if job.kind == "barrier" or self.ends[device] != "open":
            return queue.barrier(**options)
        if job.kind == "fill":
            return queue.fill(self.marks[device], 1, offset=job.number, length=1, **options)
        if job.kind.endswith("call"):
            job.gate = tg.Semaphore() if job.kind.startswith("gated") else None
            return queue.host_call(job.call, **options)
        job.gate = threading.Event() if job.kind.startswith("gated") else None
        function = self.devices[device].load(tg.Kernel("job", cpu=job.kernel, bindings=0))["job"]
        return queue.dispatch(function, 1, **options)

    def listen(self, point: Point) -> None:
        told = Told(point)
        told.subscription = self.point(point).add_callback(told)
        self.told.append(told)

    def close_at_once(self, device: int) -> None:
        """Close without time to wait: what was issued goes on."""
        try:
            self.devices[device].close(0)
        except tg.DeadlineExceededError:
            pass
        if self.ends[device] == "open":
            self.ends[device] = "closed"

    def lose(self, device: int) -> None:
        lose_device(self.devices[device])
        self.ends[device] = "lost"

    def end(self) -> None:
        """Let everything end, and check that nothing is left."""
        for job in self.jobs:
            job.open()  # also where the device was lost, and the submission is over: a thread still stands there
        for device in self.devices:
            device.close(LIMIT)
            statistics = device.statistics()
            assert (statistics.held, statistics.issued) == (0, 0)
            assert statistics.submitted == statistics.retired
        assert all(job.submission.done for job in self.jobs)
        for job in self.jobs:
            self.wait_for(job)

    # Seeing ----------------------------------------------------------------------------------------------------------

    @staticmethod
    def wait_for(job: Job) -> None:
        """Wait for the end of a job, whatever it is."""
        cause = None
        try:
            job.submission.wait(LIMIT)
        except tg.SemaphoreFailedError as error:
            cause = error.__cause__
        assert cause is job.submission.error

    def look(self) -> Seen:
        timelines = tuple(
            None if each is None else (each.value, Fact(each.failure is not None, each.failure))
            for each in self.semaphores
        )
        callbacks = tuple(self._told(told) for told in self.told)
        entries = tuple(Fact(job.submission.done, job.submission.error) for job in self.jobs)
        return Seen(entries, callbacks, timelines)

    @staticmethod
    def _told(told: Told) -> Fact:
        assert len(told.calls) <= 1, "a callback was called twice"
        assert not (told.calls and told.cancelled), "a cancelled callback was called"
        return Fact(True, told.calls[0][1]) if told.calls else Fact(False, None)

    def ran(self, job: Job, device: int) -> bool:
        """Whether the work of a job, which is no barrier, was done."""
        return bool(self.views[device][job.number]) if job.kind == "fill" else job.ran


def _view_of(mark: tg.Buffer) -> Any:
    """The bytes of a buffer; the array outlives the mapping, and the device."""
    with mark.map("r", wait=()) as view:
        return view
