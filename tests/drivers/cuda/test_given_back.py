"""`trim` gives back every native object that nobody uses, whatever came before: bursts, sleepers, interrupts."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import numpy as np
import pytest

import tidegate as tg
from tidegate._core.compiled import poll_devices
from tidegate.conformance.interrupts import interrupted_at
from tidegate.conformance.threads import background
from tidegate.drivers.cuda.native.compiled import EVENTS_AT_A_TIME, EventPool

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until

FORMS = [{}, {"gil": "release"}, {"gil": "release", "epochs": "events"}]
"""The compiled way, in which nothing can come between, and the way in Python."""


@pytest.fixture(params=FORMS, ids=str)
def found(request: pytest.FixtureRequest) -> Iterator[SimulatedBench]:
    with bench(request.param) as made:
        yield made
        assert made.native.violations == []


def _events(found: SimulatedBench) -> int:
    poll_devices()  # what is over is retired by whoever looks
    gc.collect()
    found.device.trim()
    return int(found.native.counts["events"])


def test_a_device_at_rest_has_no_event_behind_a_trim(found: SimulatedBench) -> None:
    latch, blocked = found.latch()
    target, lane = found.device.allocate(64), found.device.lane()
    chain = [lane.fill(target, 1, wait=blocked) for _ in range(200)]
    beside = [found.queue.fill(found.shared(), 1) for _ in range(20)]
    sleeping = [background(work.wait, LIMIT) for work in (blocked, chain[3], chain[100], chain[-1])]
    assert _events(found) > 0, "what is in flight has some"
    latch.open()
    tg.wait_all([*chain, *beside], LIMIT)
    for one in sleeping:
        one.result()
    until(lambda: _events(found) == 0)


@pytest.fixture
def _nothing_logged() -> Iterator[None]:
    """What is logged keeps the frames it came from, to the end of the test, and with them what they had."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_nothing_logged")
def test_a_submission_interrupted_anywhere_leaves_no_event(found: SimulatedBench) -> None:
    touch, target = found.device.load(TOUCH)["touch"], found.device.allocate(64)
    for step in range(1, 2000):
        # At rest there are enough for one more: an event that CUDA has just made can be lost before it has a name.
        found.queue.dispatch(touch, (1, 1, 1), bindings=[target]).wait(LIMIT)
        with interrupted_at(step) as interruption:
            found.queue.dispatch(touch, (1, 1, 1), bindings=[target])
        if not interruption.fired:
            break
    found.queue.fill(target, 1).wait(LIMIT)
    assert step > 10 or not found.driver.releases
    until(lambda: _events(found) == 0)


def test_an_event_that_is_forgotten_is_used_again(found: SimulatedBench) -> None:
    pool = EventPool(found.native, found.driver.lock)
    with found.driver.entered():
        made = pool.take()
        handle, others = made.handle, [pool.take() for _ in range(EVENTS_AT_A_TIME - 1)]
        del made
        assert pool.take().handle == handle
        pool.trim()
        assert pool.take().handle != handle, "it was destroyed"
        for event in others:
            pool.give(event)
        pool.trim()
        assert found.native.counts["events"] == 0


def test_an_event_whose_destruction_is_interrupted_is_not_used_again(
    found: SimulatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, destroy = EventPool(found.native, found.driver.lock), found.native.destroy_event

    def interrupted(event: int) -> None:
        destroy(event)
        raise KeyboardInterrupt

    with found.driver.entered():
        pool.give(pool.take())
        with monkeypatch.context() as patch:
            patch.setattr(found.native, "destroy_event", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.trim()
        gc.collect()
        pool.trim()


def test_exported_memory_that_is_let_go_of_leaves_no_event(found: SimulatedBench) -> None:
    with found.foreign_stream() as stream:
        for _ in range(40):
            found.device.upload(np.zeros(64, np.uint8)).view(np.uint8).__dlpack__(stream=stream)
    until(lambda: _events(found) == 0)
