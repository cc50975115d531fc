"""What tests see things with: the order in which work ran, the calls of a callback, the cause of a failure."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tidegate as tg

from .latches import LIMIT


class Log:
    """What ran, in order, told by host calls."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def call(self, queue: tg.Queue | tg.Lane, entry: str, *, wait: Any = None, signal: Any = None) -> tg.Submission:
        return queue.host_call(self.entries.append, entry, wait=wait, signal=signal)


class Recorder:
    """A callback that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[tg.Timepoint, tg.Outcome, BaseException | None]] = []

    def __call__(self, point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        self.calls.append((point, outcome, error))

    @property
    def outcomes(self) -> list[tg.Outcome]:
        return [outcome for _, outcome, _ in self.calls]


class Told:
    """A callback that must come once, on whatever thread."""

    def __init__(self) -> None:
        self.outcomes: list[tg.Outcome] = []
        self.error: BaseException | None = None
        self._first = threading.Event()

    def __call__(self, _point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        self.outcomes.append(outcome)
        self.error = error
        self._first.set()

    def wait(self) -> None:
        """Wait for the callback, and let nothing be looked at meanwhile."""
        assert self._first.wait(LIMIT), "the callback was never called"

    def assert_once(self, outcome: tg.Outcome = tg.Outcome.REACHED) -> None:
        """Wait for the callback, which was called just once."""
        self.wait()
        assert self.outcomes == [outcome]


def failure_of(point: tg.Timepoint | tg.Submission) -> BaseException:
    """Wait for something to fail and give the cause."""
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        point.wait(timeout=LIMIT)
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def assert_fails_with(submission: tg.Submission, kind: type[BaseException]) -> None:
    """Wait for a submission to fail with an error of a kind, which it knows too."""
    assert isinstance(failure_of(submission), kind)
    assert isinstance(submission.error, kind)


def assert_still_claimable(queue: tg.Queue, point: tg.Timepoint) -> None:
    """A refused call moved no signal and left its claim free for somebody else."""
    assert not point.reached
    assert point.semaphore.failure is None
    queue.barrier(signal=point).wait(LIMIT)
    assert point.reached
