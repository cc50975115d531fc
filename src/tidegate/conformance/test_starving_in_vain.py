"""Allocations that starve in vain: what might have helped does not, or there was nothing that might.

Then they fail, with all that follows from them, and whoever waits for any of it is told; nothing else is touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

import pytest

import tidegate as tg

from .buffers import MIB, ready
from .latches import LIMIT
from .scarcity import FOLLOW, LEARN, NBYTES, Give, Learn, Scene
from .witnesses import failure_of

pytestmark = [pytest.mark.rules("M22"), pytest.mark.needs("budget", "work")]

# How there is no help: each takes the memory, and returns what lets the last hope go ---------------------------------


def _nothing() -> None:
    pass


def _kept(scene: Scene) -> tg.Buffer:
    buffer = scene.full()
    scene.kept.append(buffer)
    return buffer


def nothing_is_in_flight(scene: Scene, _promise: tg.Timepoint) -> Give:
    _kept(scene)
    return _nothing


def held_work_keeps_what_it_uses(scene: Scene, _promise: tg.Timepoint) -> Give:
    gate = tg.Semaphore()
    scene.kernel(_kept(scene), wait=gate.at(1), signal=tg.Semaphore().at(1))
    scene.kept.append(gate)
    return _nothing


def the_free_waits_for_it(scene: Scene, promise: tg.Timepoint) -> Give:
    scene.queue.free(_kept(scene), wait=promise, signal=tg.Semaphore().at(1))
    return _nothing


def what_ends_the_use_waits_for_it(scene: Scene, promise: tg.Timepoint) -> Give:
    first = scene.full()
    scene.kernel(first, wait=scene.second.barrier(wait=promise), signal=tg.Semaphore().at(1))
    first.close()
    return _nothing


def the_gate_of_the_free_fails(scene: Scene, _promise: tg.Timepoint) -> Give:
    gate = tg.Semaphore()
    scene.queue.free(_kept(scene), wait=gate.at(1), signal=tg.Semaphore().at(1))
    return lambda: gate.fail(ValueError("no gate"))


def the_free_is_cancelled(scene: Scene, _promise: tg.Timepoint) -> Give:
    gate = tg.Semaphore()
    scene.kept.append(gate)
    return scene.queue.free(_kept(scene), wait=gate.at(1)).cancel


def too_little_comes_back(scene: Scene, _promise: tg.Timepoint) -> Give:
    gate, small = tg.Semaphore(), scene.device.allocate(MIB // 2)
    _kept(scene)
    scene.queue.free(small, wait=gate.at(1))
    return lambda: gate.signal(1)


def the_running_kernel_gives_nothing_back(scene: Scene, _promise: tg.Timepoint) -> Give:
    _, latch = scene.running()
    _kept(scene)
    return latch.open


def work_behind_a_running_kernel_gives_nothing_back(scene: Scene, _promise: tg.Timepoint) -> Give:
    over, latch = scene.running()
    scene.kernel(_kept(scene), wait=over)
    return latch.open


def the_running_host_call_gives_nothing_back(scene: Scene, _promise: tg.Timepoint) -> Give:
    gate, begun = tg.Semaphore(), threading.Event()

    def call() -> None:
        begun.set()
        gate.wait(1, LIMIT)

    _kept(scene)
    scene.queue.host_call(call)
    assert begun.wait(LIMIT)
    return lambda: gate.signal(1)


Hinder: TypeAlias = Callable[[Scene, tg.Timepoint], Give]

#: Where it is certain from the start.
AT_ONCE: tuple[Hinder, ...] = (
    nothing_is_in_flight,
    held_work_keeps_what_it_uses,
    the_free_waits_for_it,
    what_ends_the_use_waits_for_it,
)

LATER = (
    the_gate_of_the_free_fails,
    the_free_is_cancelled,
    too_little_comes_back,
    pytest.param(the_running_kernel_gives_nothing_back, marks=pytest.mark.needs("latch")),
    pytest.param(work_behind_a_running_kernel_gives_nothing_back, marks=pytest.mark.needs("latch")),
    the_running_host_call_gives_nothing_back,
)


@pytest.mark.rules("M16", "M22", "M10", "M11", "M40")
@pytest.mark.slow
@pytest.mark.parametrize("learn", LEARN)
@pytest.mark.parametrize("hinder", [*AT_ONCE, *LATER])
def test_whoever_waits_for_what_starves_learns_that_no_help_is_left(scene: Scene, hinder: Hinder, learn: Learn) -> None:
    for follow in FOLLOW:
        done = tg.Semaphore()
        give = hinder(scene, done.at(1))
        starving = scene.queue.allocate(NBYTES, signal=done.at(1))
        work, point = follow(scene, starving, done.at(1))
        assert ready(starving).done == (hinder in AT_ONCE), f"{follow.__name__}"
        error = learn(scene, work, point, give)
        assert isinstance(error, tg.ResourceExhaustedError), f"{follow.__name__}: {error!r}"
        assert ready(starving).error is error
        assert done.failure is error
        assert failure_of(work) is error
        small = scene.second.allocate(MIB // 4)
        scene.second.fill(small, 1, wait=small.ready).wait(LIMIT)
        small.close()
        del give
        scene.give_all_back()


@pytest.mark.rules("M17", "M22")
def test_what_nobody_can_serve_fails_and_others_that_starve_are_served(scene: Scene) -> None:
    gate, done, other = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    scene.queue.free(scene.full(), wait=gate.at(1))
    too_large = scene.queue.allocate(5 * MIB, signal=done.at(1))
    fits = scene.queue.allocate(NBYTES, signal=other.at(1))
    gate.signal(1)
    other.wait(1, LIMIT)
    assert isinstance(failure_of(done.at(1)), tg.ResourceExhaustedError)
    assert ready(too_large).error is done.failure
    assert ready(fits).error is None
    scene.queue.free(fits).wait(LIMIT)


@pytest.mark.rules("M10", "M22", "M23", "M40")
@pytest.mark.needs("fault")
@pytest.mark.parametrize("learn", LEARN)
def test_whoever_waits_is_told_one_or_the_other_where_the_kernel_before_the_free_fails(
    scene: Scene, learn: Learn
) -> None:
    """The free fails, but where it was issued by then it has given the memory back all the same."""
    for follow in FOLLOW:
        gate, done, freed = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
        broken = scene.fault(wait=gate.at(1))
        scene.queue.free(_kept(scene), wait=broken, signal=freed.at(1))
        starving = scene.queue.allocate(NBYTES, signal=done.at(1))
        work, point = follow(scene, starving, done.at(1))
        error = learn(scene, work, point, lambda gate=gate: gate.signal(1))  # type: ignore[misc]
        assert error is None or isinstance(error, tg.ResourceExhaustedError), f"{follow.__name__}: {error!r}"
        assert failure_of(freed.at(1)) is broken.error
        starving.close()
        scene.give_all_back()
