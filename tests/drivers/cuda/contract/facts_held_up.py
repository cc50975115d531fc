"""Whom a thread holds up that is inside a call which waits for all work: threads that call on other streams."""

from __future__ import annotations

from collections.abc import Callable

import sources
from registry import fact
from rig import LIMIT, MIB, Rig


def _beside(rig: Rig, blocking: Callable[[], object]) -> dict[str, bool]:
    """Return which calls return beside a call that waits for a running kernel, one after the other."""
    native, pool, other = rig.native, rig.pool(), rig.stream()
    event, words = native.create_event(False), rig.words(1)
    rig.undo(lambda: native.destroy_event(event))
    short = rig.latch()
    short.open()
    gate = rig.latch().run(rig.stream())
    attempt = rig.attempt(blocking)
    found = {"blocks": not attempt.returned()}
    found["record_event"] = rig.returns(lambda: native.record_event(event, other))
    found["write_value"] = rig.returns(lambda: native.write_value(other, words.at(0), 1))
    found["launch, until it runs"] = rig.returns(lambda: short.run(other))
    found["event_over"] = rig.returns(lambda: native.event_over(event))
    found["allocate and free"] = rig.returns(lambda: native.free(native.allocate(1024, pool, other), other))
    found["current_context"] = rig.returns(native.current_context)
    found["wait_event"] = rig.returns(lambda: native.wait_event(other, event))
    gate.open()
    found["returns in the end"] = attempt.returned(LIMIT)
    return found


@fact(alone=True)
def fact_calls_beside_a_thread_that_loads_a_function(rig: Rig) -> dict[str, bool]:
    """Which calls on another stream return while a thread is in cuKernelGetFunction and waits for a kernel?"""
    kernel = rig.native.kernel(rig.library(rig.session.compile(sources.KERNELS + "\n")), "store")
    return _beside(rig, lambda: rig.native.function(kernel))


@fact(alone=True)
def fact_calls_beside_a_thread_that_frees_page_locked_memory(rig: Rig) -> dict[str, bool]:
    """Which calls on another stream return while a thread is in cuMemFreeHost and waits for a kernel?"""
    address = rig.native.allocate_host(MIB)
    return _beside(rig, lambda: rig.native.free_host(address))
