"""Streams and events of the simulation: their order, and the places where they hold somebody up."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.testing.cuda_simulated import SimulatedCrashError, SimulatedDeadlockError

CAPACITY = 1021


def address_of(words: Any, index: int = 0) -> int:
    return ctypes.addressof(words) + 8 * index


def test_a_stream_runs_in_order(bench: Any) -> None:
    words, stream = bench.words(1), bench.stream()
    for value in (1, 0, 1, 1):
        bench.launch(stream, "twice_plus", address_of(words), value)
    bench.native.synchronize_stream(stream)
    assert words[0] == 0b1011


def test_a_wait_holds_the_record_it_found(bench: Any) -> None:
    native, words = bench.native, bench.words(1)
    first, second, third, event = bench.stream(), bench.stream(), bench.stream(), native.create_event()
    gate = bench.gate(first)
    native.record_event(event, first)
    native.wait_event(third, event)
    native.write_value(third, address_of(words), 1)
    native.record_event(event, second)  # over at once: would let the third go if the wait followed the event
    bench.until(lambda: native.event_over(event))
    native.destroy_event(event)
    assert not native.stream_idle(third)
    gate.open()
    native.synchronize_stream(third)
    assert words[0] == 1


def test_an_event_never_recorded_is_over(bench: Any) -> None:
    event, stream = bench.native.create_event(), bench.stream()
    assert bench.native.event_over(event)
    bench.native.synchronize_event(event)
    bench.native.wait_event(stream, event)
    bench.native.synchronize_stream(stream)


def test_a_destroyed_stream_finishes_its_work(bench: Any) -> None:
    words, stream = bench.words(1), bench.native.create_stream()
    gate = bench.gate(stream)
    bench.native.write_value(stream, address_of(words), 4)
    bench.native.destroy_stream(stream)
    gate.open()
    bench.until(lambda: words[0] == 4)


WITH_A_STREAM: dict[str, Callable[[Any, int], Any]] = {
    "stream_idle": lambda bench, stream: bench.native.stream_idle(stream),
    "synchronize_stream": lambda bench, stream: bench.native.synchronize_stream(stream),
    "destroy_stream": lambda bench, stream: bench.native.destroy_stream(stream),
    "record_event": lambda bench, stream: bench.native.record_event(bench.native.create_event(), stream),
    "wait_event": lambda bench, stream: bench.native.wait_event(stream, bench.native.create_event()),
    "launch": lambda bench, stream: bench.launch(stream, "nothing"),
    "allocate": lambda bench, stream: bench.native.allocate(64, bench.pool, stream),
}

WITH_AN_EVENT: dict[str, Callable[[Any, int], Any]] = {
    "event_over": lambda bench, event: bench.native.event_over(event),
    "synchronize_event": lambda bench, event: bench.native.synchronize_event(event),
    "destroy_event": lambda bench, event: bench.native.destroy_event(event),
    "record_event": lambda bench, event: bench.native.record_event(event, bench.unused),
    "record_context": lambda bench, event: bench.native.record_context(event, bench.context),
    "wait_event": lambda bench, event: bench.native.wait_event(bench.unused, event),
}


@pytest.mark.parametrize("call", WITH_A_STREAM)
def test_a_call_with_a_stream_that_was_destroyed_is_a_crash(bench: Any, call: str) -> None:
    stream = bench.native.create_stream()
    bench.native.destroy_stream(stream)
    with pytest.raises(SimulatedCrashError):
        WITH_A_STREAM[call](bench, stream)
    assert ["crash" in text for text in bench.native.violations] == [True]


@pytest.mark.parametrize("call", WITH_AN_EVENT)
def test_a_call_with_an_event_that_was_destroyed_is_a_crash(bench: Any, call: str) -> None:
    event = bench.native.create_event()
    bench.native.destroy_event(event)
    with pytest.raises(SimulatedCrashError):
        WITH_AN_EVENT[call](bench, event)
    assert ["crash" in text for text in bench.native.violations] == [True]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_crash_in_a_call_from_c_lets_nobody_go_on(bench: Any) -> None:
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    query, stream = prototype(bench.native.address("cuStreamQuery")), bench.native.create_stream()
    bench.native.destroy_stream(stream)
    assert query(stream) == 999
    assert ["crash" in text for text in bench.native.violations] == [True]


def test_an_event_of_the_context_is_refused_while_somebody_captures(bench: Any) -> None:
    event = bench.native.create_event()
    bench.native.machine.cards[0].capturing = True
    assert bench.code(lambda: bench.native.record_context(event, bench.context)) == 900
    bench.native.machine.cards[0].capturing = False
    bench.native.record_context(event, bench.context)
    assert bench.code(lambda: bench.native.record_context(event, 12345)) == 201


def test_values_are_compared_cyclically(bench: Any) -> None:
    words, stream = bench.words(1), bench.stream()
    words[0] = 2**64 - 1
    bench.native.wait_value(stream, address_of(words), 5)
    assert not bench.native.stream_idle(stream)
    words[0] = 5  # behind the largest number
    bench.native.synchronize_stream(stream)
    bench.native.wait_value(stream, address_of(words), 2**64 - 3)  # before it: reached long ago
    bench.native.synchronize_stream(stream)


def test_a_written_value_may_be_smaller(bench: Any) -> None:
    words, stream = bench.words(1), bench.stream()
    bench.native.write_value(stream, address_of(words), 9)
    bench.native.write_value(stream, address_of(words), 3)
    bench.native.synchronize_stream(stream)
    assert words[0] == 3


def test_a_full_stream_blocks_its_caller_until_there_is_room(bench: Any, on_a_thread: Callable[..., Any]) -> None:
    native, words, stream = bench.native, bench.words(1), bench.stream()
    gate, event = bench.gate(stream), native.create_event()
    for _ in range(CAPACITY):
        native.write_value(stream, address_of(words), 1)
    native.record_event(event, stream)  # takes no place
    assert not native.violations
    thread = on_a_thread(lambda: native.write_value(stream, address_of(words), 2))
    bench.until(lambda: len(native.violations) == 1)
    assert thread.is_alive()
    gate.open()
    thread.join(30)
    native.synchronize_stream(stream)
    assert words[0] == 2
    assert "filled" in native.violations[0]


def test_a_stream_that_stays_full_is_called_a_deadlock(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(limit=0.05)
    words, stream = bench.words(1), bench.stream()
    bench.gate(stream)
    with pytest.raises(SimulatedDeadlockError):
        for _ in range(CAPACITY + 1):
            bench.native.write_value(stream, address_of(words), 1)
    assert "deadlock" in bench.native.violations[-1]


def connected(monkeypatch: pytest.MonkeyPatch, make_bench: Callable[..., Any], asked: str | None) -> Any:
    if asked is None:
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    else:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", asked)
    return make_bench()


def wait_until_stalled(bench: Any, streams: int) -> None:
    bench.until(lambda: len(bench.native.machine.cards[0].stalling) == streams)


@pytest.mark.parametrize(("asked", "most"), [(None, 8), ("32", 32), ("5", 5)])
def test_so_many_waiting_streams_stall_every_other(
    monkeypatch: pytest.MonkeyPatch, make_bench: Callable[..., Any], asked: str | None, most: int
) -> None:
    bench = connected(monkeypatch, make_bench, asked)
    native, words = bench.native, bench.words(3)
    for _ in range(most - 1):
        native.wait_value(bench.stream(), address_of(words), 1)
    early = bench.stream()
    native.write_value(early, address_of(words, 1), 1)
    native.synchronize_stream(early)  # one connection is left
    native.wait_value(bench.stream(), address_of(words), 1)
    late = bench.stream()
    native.write_value(late, address_of(words, 2), 1)
    native.write_value(early, address_of(words, 1), 2)
    wait_until_stalled(bench, 2)
    words[0] = 1
    native.synchronize_stream(late)
    native.synchronize_stream(early)
    assert list(words) == [1, 2, 1]


def test_a_stream_with_work_behind_its_kernel_counts_as_a_waiting_one(
    monkeypatch: pytest.MonkeyPatch, make_bench: Callable[..., Any]
) -> None:
    bench = connected(monkeypatch, make_bench, None)
    native, words, event = bench.native, bench.words(1), bench.native.create_event()
    busy = bench.stream()
    gate = bench.gate(busy)
    native.write_value(busy, address_of(words), 1)
    native.record_event(event, busy)
    waiting = [bench.stream() for _ in range(7)]
    for stream in waiting:
        native.wait_event(stream, event)
    other = bench.stream()
    bench.launch(other, "nothing")
    wait_until_stalled(bench, 1)
    gate.open()
    for stream in (*waiting, other):
        native.synchronize_stream(stream)


def test_streams_that_only_run_kernels_stall_nobody(
    monkeypatch: pytest.MonkeyPatch, make_bench: Callable[..., Any]
) -> None:
    bench = connected(monkeypatch, make_bench, "1")
    for _ in range(4):
        bench.gate(bench.stream())  # returns when its kernel runs


def test_records_of_blocking_events_fill_a_stream_early(bench: Any, on_a_thread: Callable[..., Any]) -> None:
    native, stream = bench.native, bench.stream()
    gate, sleeping, spinning = bench.gate(stream), native.create_event(True), native.create_event(False)
    for _ in range(200):
        native.record_event(spinning, stream)
    for _ in range(56):
        native.record_event(sleeping, stream)
    assert not native.violations
    thread = on_a_thread(lambda: native.record_event(sleeping, stream))
    bench.until(lambda: len(native.violations) == 1)
    assert thread.is_alive()
    gate.open()


def test_a_call_that_a_full_stream_blocks_blocks_others(bench: Any, on_a_thread: Callable[..., Any]) -> None:
    native, words, stream, made = bench.native, bench.words(1), bench.stream(), []
    gate = bench.gate(stream)

    def fill() -> None:
        for _ in range(CAPACITY + 1):
            native.write_value(stream, address_of(words), 1)

    def make() -> None:
        native.push_context(bench.context)
        made.append(native.create_event())

    on_a_thread(fill)
    bench.until(lambda: len(native.violations) == 1)
    on_a_thread(lambda: made.append(native.stream_idle(stream)))
    on_a_thread(make).join(0.01)
    assert not made
    assert native.stream_idle(bench.unused)
    gate.open()


def test_two_streams_run_side_by_side(bench: Any) -> None:
    first, second = bench.stream(), bench.stream()
    bench.gate(first)
    bench.gate(second)  # returns when its kernel runs
    assert not bench.native.stream_idle(first)


def test_synchronising_with_an_event_does_not_wait_for_what_came_later(bench: Any) -> None:
    stream, event = bench.stream(), bench.native.create_event()
    bench.launch(stream, "nothing")
    bench.native.record_event(event, stream)
    bench.gate(stream)
    bench.native.synchronize_event(event)
    assert not bench.native.stream_idle(stream)
