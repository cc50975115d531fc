"""The simulated Metal under many threads, and under signals."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tidegate.conformance.threads import all_at_once

from .workbench import LIMIT, Workbench


@pytest.mark.usefixtures("switch_often")
def test_many_threads_submit_to_their_queues_and_to_one(bench: Workbench) -> None:
    events = [bench.device.newSharedEvent() for _ in range(4)]
    totals = [bench.buffer(4) for _ in range(4)]
    pipeline = bench.host_pipeline(_add_one, "device uint *x [[buffer(0)]]")

    def work(index: int) -> None:
        queue = bench.device.newCommandQueue()
        for value in range(1, 51):
            commands = bench.commands(queue, retained=value % 2 == 0)
            encoder = bench.compute(commands)
            encoder.setComputePipelineState_(pipeline)
            encoder.setBuffer_offset_atIndex_(totals[index], 0, 0)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
            encoder.endEncoding()
            commands.encodeSignalEvent_value_(events[index], value)
            commands.commit()
            bench.fill(bench.buffer(16), 1)
        assert events[index].waitUntilSignaledValue_timeoutMS_(50, 30_000)

    all_at_once(4, work)
    last = bench.fill(bench.buffer(16), 1)
    last.waitUntilCompleted()
    assert [int(bench.words(total)[0]) for total in totals] == [50] * 4
    assert not bench.metal.races


def _add_one(workgroups: Any, bindings: Any, constants: Any) -> None:
    bindings[0].view("u4")[0] += 1


@pytest.mark.slow
@pytest.mark.usefixtures("switch_often")
def test_objects_may_be_released_on_any_thread_in_the_middle_of_everything(bench: Workbench) -> None:
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect()

    def make() -> None:
        for _ in range(10):
            queue = bench.device.newCommandQueue()
            commands = bench.fill(bench.buffer(16), 1, bench.commands(queue))
            ring: list[Any] = [commands, queue]
            ring.append(ring)  # only the collector finds it
        stop.set()

    all_at_once(2, lambda index: (collect, make)[index]())
    gc.collect()
    assert bench.metal.close(LIMIT)
    assert bench.device.currentAllocatedSize() == 0


def raising_inside(event: Any, number: int) -> None:
    """Have a signal strike in the middle of every change of an event."""
    inside = event._state.raise_to
    event._state.raise_to = lambda *given: (signal.raise_signal(number), inside(*given))[1]


@contextmanager
def handling(number: int, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_a_signal_is_handled_behind_the_call_and_not_inside(bench: Workbench) -> None:
    """The handler, which raises, runs when the event has its value."""
    event, values = bench.device.newSharedEvent(), []

    def handler(number: int, frame: Any) -> None:
        values.append(event.signaledValue())
        raise KeyboardInterrupt

    raising_inside(event, signal.SIGINT)
    with handling(signal.SIGINT, handler), pytest.raises(KeyboardInterrupt):
        event.setSignaledValue_(3)
        len("a check of the interpreter")
    assert values == [3]
    len("a check of the interpreter")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_result_is_not_lost_to_a_signal_that_struck_inside(bench: Workbench) -> None:
    """What C code does with a result, here `extend`, is done before a handler runs, as with a call written in C."""
    event, kept, seen = bench.device.newSharedEvent(), [], []

    def handler(number: int, frame: Any) -> None:
        seen.append(list(kept))
        raise KeyboardInterrupt

    raising_inside(event, signal.SIGINT)
    with handling(signal.SIGINT, handler), pytest.raises(KeyboardInterrupt):
        kept.extend(map(event.setSignaledValue_, (3,)))
    assert kept == [None]
    assert seen == [[None]]


def test_a_handler_that_does_not_raise_runs_too(bench: Workbench) -> None:
    event, seen = bench.device.newSharedEvent(), []
    raising_inside(event, signal.SIGUSR1)
    with handling(signal.SIGUSR1, lambda number, frame: seen.append(event.signaledValue())):
        event.setSignaledValue_(3)
        len("a check of the interpreter")
    assert seen == [3]


def test_no_thread_is_left_when_the_objects_are_gone(bench: Workbench) -> None:
    heard = threading.Event()
    event = bench.device.newSharedEvent()
    listener = bench.metal.MTLSharedEventListener.alloc().init()
    event.notifyListener_atValue_block_(listener, 1, lambda _, __: heard.set())
    queue = bench.device.newCommandQueue()
    commands = bench.commands(queue)
    commands.addCompletedHandler_(lambda _: None)
    commands.encodeSignalEvent_value_(event, 1)
    commands.commit()
    commands.waitUntilCompleted()
    assert heard.wait(LIMIT)
    threads = [each for each in threading.enumerate() if each.name.startswith("simulated-")]
    del event, listener, queue, commands
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
