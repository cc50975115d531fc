"""Memory of the simulation: when it may be touched, what a pool hands out, and what is noticed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.drivers.cuda._native import NativeError
from tidegate.drivers.cuda._prototypes import PoolAttribute
from tidegate.testing.cuda_simulated import SimulatedDeadlockError

MIB = 1 << 20


def test_memory_freed_on_a_stream_and_used_later_on_it_is_a_fault(bench: Any) -> None:
    native, stream = bench.native, bench.stream()
    address = native.allocate(4096, bench.pool, stream)
    native.fill(address, 1, 1, 4096, stream)
    native.free(address, stream)
    native.synchronize_stream(stream)
    native.fill(address, 1, 1, 4096, stream)
    with pytest.raises(NativeError, match="ILLEGAL_ADDRESS"):
        native.synchronize_stream(stream)


def test_memory_used_before_its_stream_has_come_to_the_allocation_is_a_violation(bench: Any) -> None:
    native, first, second = bench.native, bench.stream(), bench.stream()
    gate = bench.gate(first)
    address = native.allocate(256, bench.pool, first)
    bench.launch(second, "store", address, 1)
    native.synchronize_stream(second)
    assert ["before the stream that allocates it" in text for text in native.violations] == [True]
    gate.open()


def test_memory_ordered_by_an_event_is_no_violation(bench: Any) -> None:
    native, first, second, event = bench.native, bench.stream(), bench.stream(), bench.native.create_event()
    gate = bench.gate(first)
    address = native.allocate(256, bench.pool, first)
    native.record_event(event, first)
    native.wait_event(second, event)
    bench.launch(second, "store", address, 1)
    gate.open()
    native.synchronize_stream(second)
    assert not native.violations


def test_freed_memory_does_not_keep_its_content(bench: Any) -> None:
    native, stream = bench.native, bench.stream()
    address = native.allocate(8192, bench.pool, stream)
    native.fill(address, 7, 1, 8192, stream)
    native.free(address, stream)
    again = native.allocate(8192, bench.pool, stream)
    native.synchronize_stream(stream)
    assert again == address
    assert 7 not in bench.read(again, 8192)


def test_what_is_written_past_the_end_is_noticed_at_the_free(bench: Any) -> None:
    native, stream = bench.native, bench.stream()
    address = native.allocate(100, bench.pool, stream)
    bench.launch(stream, "overrun", address, 101)
    native.free(address, stream)
    native.synchronize_stream(stream)
    assert ["past the end" in text for text in native.violations] == [True]


def test_a_kernel_on_memory_that_is_nobodys_is_a_fault(bench: Any) -> None:
    stream, own = bench.stream(), ctypes.c_uint64()
    bench.launch(stream, "store", ctypes.addressof(own), 1)
    assert bench.code(lambda: bench.native.synchronize_stream(stream)) == 700
    assert own.value == 0


def test_a_kernel_that_goes_through_a_null_pointer_is_a_fault_and_not_the_end_of_the_process(bench: Any) -> None:
    stream = bench.stream()
    bench.launch(stream, "store", 0, 1)
    assert bench.code(lambda: bench.native.synchronize_stream(stream)) == 700


def test_an_address_that_is_not_a_multiple_of_its_type_is_a_fault(bench: Any) -> None:
    stream = bench.stream()
    bench.launch(stream, "store", bench.memory(64) + 4, 1)
    assert bench.code(lambda: bench.native.synchronize_stream(stream)) == 716


def test_a_copy_past_the_end_is_refused(bench: Any) -> None:
    stream, address, host = bench.stream(), bench.memory(64), bench.native.allocate_host(64)
    assert bench.code(lambda: bench.native.copy(host, address + 8, 64, stream)) == 1
    assert bench.code(lambda: bench.native.copy(host, address + 8, 56, stream)) == 0


def test_ordinary_memory_is_copied_and_held_against_the_driver(bench: Any) -> None:
    source, address, stream = ctypes.create_string_buffer(b"tidegate"), bench.memory(8), bench.stream()
    bench.native.copy(address, ctypes.addressof(source), 8, stream)
    bench.native.synchronize_stream(stream)
    assert bench.read(address, 8) == b"tidegate"
    assert ["page-locked" in text for text in bench.native.violations] == [True]


def test_a_pool_with_a_maximum_runs_out(bench: Any) -> None:
    native, stream = bench.native, bench.stream()
    pool = native.create_pool(0, 64 * MIB)
    first = native.allocate(40 * MIB, pool, stream)
    assert bench.code(lambda: native.allocate(40 * MIB, pool, stream)) == 2
    native.free(first, stream)
    assert native.allocate(40 * MIB, pool, stream) == first


def test_memory_is_reused_at_once_on_its_stream_only(bench: Any) -> None:
    native, first, second = bench.native, bench.stream(), bench.stream()
    address = native.allocate(MIB, bench.pool, first)
    gate = bench.gate(first)
    native.free(address, first)
    assert native.allocate(MIB, bench.pool, second) != address
    assert native.allocate(MIB, bench.pool, first) == address
    gate.open()


def test_an_allocation_that_needs_the_memory_of_another_stream_waits_for_it(bench: Any) -> None:
    native, first, second = bench.native, bench.stream(), bench.stream()
    pool = native.create_pool(0, 32 * MIB)
    address = native.allocate(32 * MIB, pool, first)
    gate = bench.gate(first)
    native.free(address, first)
    assert native.allocate(32 * MIB, pool, second) == address
    assert not native.stream_idle(second)
    gate.open()
    native.synchronize_stream(second)


def test_a_pool_counts_what_is_asked_for_and_reserves_large_pieces(bench: Any) -> None:
    native, stream = bench.native, bench.stream()
    pool = native.create_pool(0)
    address = native.allocate(1001, pool, stream)
    assert native.pool_attribute(pool, PoolAttribute.USED) == 1001
    assert native.pool_attribute(pool, PoolAttribute.RESERVED) == 32 * MIB
    native.free(address, stream)
    assert native.pool_attribute(pool, PoolAttribute.USED) == 0
    native.synchronize_stream(stream)
    assert native.pool_attribute(pool, PoolAttribute.RESERVED) == 0
    assert native.pool_attribute(pool, PoolAttribute.USED_HIGH) == 1001


def test_a_pool_keeps_memory_up_to_its_threshold(bench: Any) -> None:
    native, stream = bench.native, bench.stream()
    pool = native.create_pool(0)
    native.set_pool(pool, PoolAttribute.RELEASE_THRESHOLD, 1 << 40)
    native.free(native.allocate(MIB, pool, stream), stream)
    native.synchronize_stream(stream)
    assert native.pool_attribute(pool, PoolAttribute.RESERVED) == 32 * MIB
    native.trim_pool(pool)
    assert native.pool_attribute(pool, PoolAttribute.RESERVED) == 0


def test_all_cards_memory_is_finite(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(memory=64 * MIB)
    assert bench.native.device_memory(0) == 64 * MIB
    assert bench.code(lambda: bench.native.allocate(65 * MIB, bench.pool, bench.stream())) == 2


def test_freeing_page_locked_memory_waits_for_running_work(bench: Any, on_a_thread: Callable[..., Any]) -> None:
    address, stream = bench.native.allocate_host(64), bench.stream()
    gate = bench.gate(stream)

    def free() -> None:
        bench.native.push_context(bench.context)
        bench.native.free_host(address)

    before = bench.native.counts["pinned"]
    thread = on_a_thread(free)
    thread.join(0.01)
    assert thread.is_alive()
    assert bench.native.counts["pinned"] == before
    gate.open()
    thread.join(30)
    assert bench.native.counts["pinned"] == before - 1


def test_a_wait_for_all_work_that_never_ends_is_called_a_deadlock(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(limit=0.05)
    address = bench.native.allocate_host(64)
    bench.gate(bench.stream())
    with pytest.raises(SimulatedDeadlockError):
        bench.native.free_host(address)


def test_page_locked_memory_that_was_freed_is_a_fault(bench: Any) -> None:
    stream, address = bench.stream(), bench.native.allocate_host(64)
    bench.native.free_host(address)
    bench.launch(stream, "store", address, 1)
    assert bench.code(lambda: bench.native.synchronize_stream(stream)) == 700
