"""A fault of the simulation is for good."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.drivers.cuda._native import NativeError


def test_nothing_behind_a_fault_happens(bench: Any) -> None:
    native, stream, words, event = bench.native, bench.stream(), bench.words(1), bench.native.create_event()
    gate = bench.gate(stream)
    native.fault_next_launch()
    bench.launch(stream, "nothing")
    native.write_value(stream, ctypes.addressof(words), 1)
    native.record_event(event, stream)
    gate.open()
    for _ in range(2):
        with pytest.raises(NativeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            native.synchronize_event(event)
    assert words[0] == 0


def test_work_of_other_streams_does_not_end_either(bench: Any) -> None:
    native, first, second, words = bench.native, bench.stream(), bench.stream(), bench.words(1)
    gate = bench.gate(first)
    native.write_value(first, ctypes.addressof(words), 1)
    native.fault_next_launch(719)
    bench.launch(second, "nothing")
    assert bench.code(lambda: native.synchronize_stream(second)) == 719
    gate.open()
    assert bench.code(lambda: native.synchronize_stream(first)) == 719
    assert words[0] == 0


def test_a_fault_wakes_who_sleeps(bench: Any, on_a_thread: Callable[..., Any]) -> None:
    native, first, second, codes = bench.native, bench.stream(), bench.stream(), []
    gate = bench.gate(first)
    thread = on_a_thread(lambda: codes.append(bench.code(lambda: native.synchronize_stream(first))))
    native.fault_next_launch()
    bench.launch(second, "nothing")
    thread.join(30)
    assert codes == [700]
    gate.open()


def test_a_failed_assertion_is_told_when_no_other_kernel_runs(bench: Any) -> None:
    native, busy, broken, parked, words = (
        bench.native, bench.stream(), bench.stream(), bench.stream(), bench.words(1)
    )  # fmt: skip
    native.wait_value(parked, ctypes.addressof(words), 1)
    gate = bench.gate(busy)
    native.fault_next_launch(710)
    bench.launch(broken, "nothing")
    bench.until(lambda: not native.machine.cards[0].next_fault)  # it has failed
    for _ in range(20):
        assert not native.stream_idle(broken)
        assert not native.stream_idle(busy)
    gate.open()
    assert bench.code(lambda: native.synchronize_stream(broken)) == 710
    assert bench.code(lambda: native.synchronize_stream(parked)) == 710


def test_two_assertions_that_fail_do_not_wait_for_each_other(bench: Any) -> None:
    native, gate = bench.native, bench.gate(bench.stream())
    broken = [bench.stream(), bench.stream()]
    for stream in broken:
        native.fault_next_launch(710)
        bench.launch(stream, "nothing")
        bench.until(lambda: not native.machine.cards[0].next_fault)
    gate.open()
    assert [bench.code(lambda stream=stream: native.synchronize_stream(stream)) for stream in broken] == [710, 710]


def test_a_fault_frees_parked_streams_for_their_end(bench: Any) -> None:
    native, words = bench.native, bench.words(1)
    parked, broken = bench.stream(), bench.stream()
    native.wait_value(parked, ctypes.addressof(words), 1)
    native.fault_next_launch()
    bench.launch(broken, "nothing")
    assert bench.code(lambda: native.synchronize_stream(parked)) == 700


STILL_WORK: dict[str, Callable[[Any], Any]] = {
    "current_context": lambda bench: bench.native.current_context(),
    "device_attribute": lambda bench: bench.native.device_attribute(75, 0),
    "pool_attribute": lambda bench: bench.native.pool_attribute(bench.pool, 7),
    "create_graph": lambda bench: bench.native.create_graph(),
    "kernel": lambda bench: bench.native.kernel(bench.library, "nothing"),
    "destroy_pool": lambda bench: bench.native.destroy_pool(bench.pool),
}

REPORT_IT: dict[str, Callable[[Any], Any]] = {
    "create_stream": lambda bench: bench.native.create_stream(),
    "create_event": lambda bench: bench.native.create_event(),
    "allocate_host": lambda bench: bench.native.allocate_host(64),
    "function": lambda bench: bench.function("nothing"),
    "priority_range": lambda bench: bench.native.priority_range(),
}


def code_after_a_trap(bench: Any, call: Callable[[Any], Any]) -> int:
    stream = bench.stream()
    bench.launch(stream, "trap")
    assert bench.code(lambda: bench.native.synchronize_stream(stream)) == 719
    code: int = bench.code(lambda: call(bench))
    return code


@pytest.mark.parametrize("name", STILL_WORK)
def test_some_calls_still_work_after_a_fault(bench: Any, name: str) -> None:
    assert code_after_a_trap(bench, STILL_WORK[name]) == 0


@pytest.mark.parametrize("name", REPORT_IT)
def test_other_calls_report_it(bench: Any, name: str) -> None:
    assert code_after_a_trap(bench, REPORT_IT[name]) == 719


def test_a_refused_launch_is_no_fault(bench: Any) -> None:
    stream = bench.stream()
    assert bench.code(lambda: bench.launch(stream, "nothing", grid=(0, 1, 1))) == 1
    assert bench.code(lambda: bench.launch(stream, "nothing", block=(1025, 1, 1))) == 1
    assert bench.code(lambda: bench.launch(stream, "nothing", shared=49153)) == 1
    bench.launch(stream, "nothing")
    bench.native.synchronize_stream(stream)
