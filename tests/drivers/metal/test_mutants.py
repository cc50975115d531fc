"""The driver with one fault each, as somebody could really make it: a named test must fail.

What the test is called that catches it stands beside each fault; without the fault it passes, as a test of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate.driver import Ticket
from tidegate.drivers.metal import _native, queue
from tidegate.drivers.metal.queue import MetalTimeline
from tidegate.drivers.metal.retire import Flight
from tidegate.testing.metal_simulated import ViolationError

from . import test_lifetimes, test_queue, test_staging
from .driver_bench import DriverBench

Spoil = Callable[[pytest.MonkeyPatch, DriverBench], None]


class YieldingList(list[Any]):
    """A list that lets other threads run whenever it is looked at or changed."""

    def __getitem__(self, index: Any) -> Any:
        os.sched_yield()
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        os.sched_yield()
        super().__setitem__(index, value)


class NoLock:
    """A mutex that excludes nobody."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_exception: object) -> None:
        return None

    def _is_owned(self) -> bool:
        return False


def drops_what_a_command_buffer_needs_early(patch: pytest.MonkeyPatch, _metal: DriverBench) -> None:
    real = MetalTimeline.push

    def push(self: MetalTimeline, ticket: Ticket, flight: Flight, *, long: bool) -> None:
        real(self, ticket, flight, long=long)
        flight.kept.clear()

    patch.setattr(MetalTimeline, "push", push)


def has_no_mutex_over_the_staging_buffer(patch: pytest.MonkeyPatch, metal: DriverBench) -> None:
    ranges = metal.inner.staging.ranges
    patch.setattr(ranges, "_lock", NoLock())
    patch.setattr(ranges, "_gaps", YieldingList(ranges._gaps))


def signals_before_completion(patch: pytest.MonkeyPatch, _metal: DriverBench) -> None:
    def land(self: MetalTimeline, flight: Flight) -> bool:
        if _native.event_value(self.event) < flight.epoch:
            return False
        self._finish(flight)
        flight.kept.clear()
        self._word = flight.epoch
        return True

    patch.setattr(MetalTimeline, "_land", land)


def lets_a_failed_wait_through(patch: pytest.MonkeyPatch, _metal: DriverBench) -> None:
    patch.setattr(MetalTimeline, "outcome", lambda self, epoch: None)


def blocks_in_the_caller_at_64_command_buffers(patch: pytest.MonkeyPatch, _metal: DriverBench) -> None:
    patch.setattr(queue, "BUDGET", 10**9)


MUTANTS: list[tuple[Spoil, Callable[[DriverBench], None]]] = [
    (
        drops_what_a_command_buffer_needs_early,
        test_lifetimes.test_what_only_the_command_buffer_needs_lives_until_it_is_over,
    ),
    (has_no_mutex_over_the_staging_buffer, test_staging.reserve_in_eight_threads),
    (signals_before_completion, test_queue.test_the_epoch_event_proves_nothing_to_the_host),
    (lets_a_failed_wait_through, test_queue.test_what_ran_on_the_promise_of_failed_work_fails_when_it_retires),
    (
        blocks_in_the_caller_at_64_command_buffers,
        test_queue.test_a_thousand_submissions_behind_a_latch_return_at_once,
    ),
]
NAMES = [spoil.__name__ for spoil, _ in MUTANTS]


@pytest.fixture
def unwatched() -> Iterator[DriverBench]:
    """A device whose simulation gives up soon, and whose broken rules are what is wanted."""
    made = DriverBench(check=False, limit=1.0)
    yield made
    made.native.before_completion = None
    made.close()


# Finalizers of a spoilt staging buffer cannot tell their trouble to anybody.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("spoil", "named"), MUTANTS, ids=NAMES)
def test_the_named_test_catches_the_mutant(
    unwatched: DriverBench, spoil: Spoil, named: Callable[[DriverBench], None]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch, unwatched)
        with pytest.raises((AssertionError, tg.TidegateError, ViolationError, pytest.fail.Exception, IndexError)):
            named(unwatched)


def test_the_staging_buffer_withstands_the_same_list_with_its_mutex(metal: DriverBench) -> None:
    """What shows the missing mutex does no harm where there is one."""
    ranges = metal.inner.staging.ranges
    ranges._gaps = YieldingList(ranges._gaps)
    test_staging.reserve_in_eight_threads(metal, rounds=100)
