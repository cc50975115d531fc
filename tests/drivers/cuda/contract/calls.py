"""Every call of the native layer once, made ready to be made in a difficult moment.

`CALLS[group][name](rig)` prepares what a call needs and returns the call. Facts make it beside a running kernel, on a
thread without a context, or after a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sources
from rig import EVERYTHING, MIB, Rig

from tidegate.drivers.cuda._prototypes import FunctionAttribute, PoolAttribute

Call = Callable[[], Any]
Maker = Callable[[Rig], Call]

CALLS: dict[str, dict[str, Maker]] = {}


def _in(group: str) -> Callable[[Maker], Maker]:
    def added(maker: Maker) -> Maker:
        CALLS.setdefault(group, {})[maker.__name__.strip("_")] = maker
        return maker

    return added


# Contexts -------------------------------------------------------------------------------------------------------------


@_in("contexts")
def current_context(rig: Rig) -> Call:
    return rig.native.current_context


@_in("contexts")
def push_and_pop_context(rig: Rig) -> Call:
    def both() -> None:
        rig.native.push_context(rig.context)
        rig.native.pop_context()

    return both


@_in("contexts")
def primary_context(rig: Rig) -> Call:
    def retained() -> None:
        rig.native.primary_context(rig.device)
        rig.native.release_primary_context(rig.device)

    return retained


@_in("contexts")
def device_attribute(rig: Rig) -> Call:
    return lambda: rig.native.device_attribute(16, rig.device)


@_in("contexts")
def device_memory(rig: Rig) -> Call:
    return lambda: rig.native.device_memory(rig.device)


@_in("contexts")
def priority_range(rig: Rig) -> Call:
    return rig.native.priority_range


# Streams --------------------------------------------------------------------------------------------------------------


@_in("streams")
def create_stream(rig: Rig) -> Call:
    return rig.stream


@_in("streams")
def destroy_stream(rig: Rig) -> Call:
    stream = rig.native.create_stream(0)
    return lambda: rig.native.destroy_stream(stream)


@_in("streams")
def stream_idle(rig: Rig) -> Call:
    stream = rig.stream()
    return lambda: rig.native.stream_idle(stream)


@_in("streams")
def synchronize_stream(rig: Rig) -> Call:
    stream = rig.stream()
    return lambda: rig.native.synchronize_stream(stream)


@_in("streams")
def wait_event(rig: Rig) -> Call:
    event, stream = _recorded(rig)
    return lambda: rig.native.wait_event(stream, event)


@_in("streams")
def write_value(rig: Rig) -> Call:
    stream, words = rig.stream(), rig.words(1)
    return lambda: rig.native.write_value(stream, words.at(0), 1)


@_in("streams")
def wait_value(rig: Rig) -> Call:
    stream, words = rig.stream(), rig.words(1)
    return lambda: rig.native.wait_value(stream, words.at(0), 0)


# Events ---------------------------------------------------------------------------------------------------------------


def _recorded(rig: Rig) -> tuple[int, int]:
    event, stream = rig.event(), rig.stream()
    rig.native.record_event(event, stream)
    rig.synchronize(stream)
    return event, stream


@_in("events")
def create_event(rig: Rig) -> Call:
    return rig.event


@_in("events")
def destroy_event(rig: Rig) -> Call:
    event = rig.native.create_event()
    return lambda: rig.native.destroy_event(event)


@_in("events")
def record_event(rig: Rig) -> Call:
    event, stream = _recorded(rig)
    return lambda: rig.native.record_event(event, stream)


@_in("events")
def event_over(rig: Rig) -> Call:
    event, _ = _recorded(rig)
    return lambda: rig.native.event_over(event)


@_in("events")
def synchronize_event(rig: Rig) -> Call:
    event, _ = _recorded(rig)
    return lambda: rig.native.synchronize_event(event)


# Pools ----------------------------------------------------------------------------------------------------------------


def _full_pool(rig: Rig) -> int:
    """Return a pool that keeps memory which nobody uses."""
    pool, stream = rig.native.create_pool(rig.device), rig.stream()
    rig.native.set_pool(pool, PoolAttribute.RELEASE_THRESHOLD, EVERYTHING)
    rig.native.free(rig.native.allocate(4 * MIB, pool, stream), stream)
    rig.synchronize(stream)
    return pool


@_in("pools")
def create_pool(rig: Rig) -> Call:
    return lambda: rig.pool(threshold=None)


@_in("pools")
def destroy_pool(rig: Rig) -> Call:
    pool = _full_pool(rig)
    return lambda: rig.native.destroy_pool(pool)


@_in("pools")
def set_pool(rig: Rig) -> Call:
    pool = _full_pool(rig)
    rig.undo(lambda: rig.native.destroy_pool(pool))
    return lambda: rig.native.set_pool(pool, PoolAttribute.RELEASE_THRESHOLD, MIB)


@_in("pools")
def pool_attribute(rig: Rig) -> Call:
    pool = _full_pool(rig)
    rig.undo(lambda: rig.native.destroy_pool(pool))
    return lambda: rig.native.pool_attribute(pool, PoolAttribute.RESERVED)


@_in("pools")
def trim_pool(rig: Rig) -> Call:
    pool = _full_pool(rig)
    rig.undo(lambda: rig.native.destroy_pool(pool))
    return lambda: rig.native.trim_pool(pool, 0)


@_in("pools")
def allocate(rig: Rig) -> Call:
    pool, stream = _full_pool(rig), rig.stream()
    return lambda: rig.native.allocate(MIB, pool, stream)


@_in("pools")
def allocate_growing(rig: Rig) -> Call:
    pool, stream = rig.native.create_pool(rig.device), rig.stream()
    return lambda: rig.native.allocate(64 * MIB, pool, stream)


@_in("pools")
def free(rig: Rig) -> Call:
    pool, stream = _full_pool(rig), rig.stream()
    address = rig.native.allocate(MIB, pool, stream)
    rig.synchronize(stream)
    return lambda: rig.native.free(address, stream)


# Host memory ----------------------------------------------------------------------------------------------------------


def _pageable(rig: Rig, nbytes: int) -> int:
    """Return the address of ordinary memory, which stays until the rig goes."""
    array = np.ones(nbytes + 8192, np.uint8)
    rig.undo(lambda: array.size)
    return (array.ctypes.data + 4095) // 4096 * 4096


@_in("host memory")
def allocate_host(rig: Rig) -> Call:
    return lambda: rig.native.allocate_host(4096)


@_in("host memory")
def allocate_host_large(rig: Rig) -> Call:
    return lambda: rig.native.allocate_host(16 * MIB)


@_in("host memory")
def free_host(rig: Rig) -> Call:
    address = rig.native.allocate_host(MIB)
    return lambda: rig.native.free_host(address)


@_in("host memory")
def register_host(rig: Rig) -> Call:
    address = _pageable(rig, MIB)
    rig.undo(lambda: rig.native.unregister_host(address))
    return lambda: rig.native.register_host(address, MIB)


@_in("host memory")
def unregister_host(rig: Rig) -> Call:
    address = _pageable(rig, MIB)
    rig.native.register_host(address, MIB)
    return lambda: rig.native.unregister_host(address)


@_in("host memory")
def pointer_device(rig: Rig) -> Call:
    address = rig.memory(256)
    return lambda: rig.native.pointer_device(address)


@_in("host memory")
def is_page_locked(rig: Rig) -> Call:
    address = rig.pinned(256)
    return lambda: rig.native.is_page_locked(address)


# Transfers ------------------------------------------------------------------------------------------------------------


@_in("transfers")
def fill_device(rig: Rig) -> Call:
    address, stream = rig.memory(4096), rig.stream()
    return lambda: rig.native.fill(address, 7, 4, 1024, stream)


@_in("transfers")
def fill_pinned(rig: Rig) -> Call:
    address, stream = rig.pinned(4096), rig.stream()
    return lambda: rig.native.fill(address, 7, 4, 1024, stream)


@_in("transfers")
def copy_on_device(rig: Rig) -> Call:
    target, source, stream = rig.memory(4096), rig.memory(4096), rig.stream()
    return lambda: rig.native.copy(target, source, 4096, stream)


@_in("transfers")
def copy_pinned_up(rig: Rig) -> Call:
    target, source, stream = rig.memory(4096), rig.pinned(4096), rig.stream()
    return lambda: rig.native.copy(target, source, 4096, stream)


@_in("transfers")
def copy_pinned_down(rig: Rig) -> Call:
    target, source, stream = rig.pinned(4096), rig.memory(4096), rig.stream()
    return lambda: rig.native.copy(target, source, 4096, stream)


def pageable_up(nbytes: int) -> Maker:
    """Return an upload from ordinary memory."""

    def maker(rig: Rig) -> Call:
        target, source, stream = rig.memory(nbytes), _pageable(rig, nbytes), rig.stream()
        return lambda: rig.native.copy(target, source, nbytes, stream)

    return maker


def pageable_down(nbytes: int) -> Maker:
    """Return a download to ordinary memory."""

    def maker(rig: Rig) -> Call:
        target, source, stream = _pageable(rig, nbytes), rig.memory(nbytes), rig.stream()
        return lambda: rig.native.copy(target, source, nbytes, stream)

    return maker


PAGEABLE = {"4_kib": 4096, "64_kib": 65536, "64_kib_and_1": 65537, "1_mib": MIB}

for _name, _size in PAGEABLE.items():
    CALLS["transfers"][f"copy_pageable_up_{_name}"] = pageable_up(_size)
    CALLS["transfers"][f"copy_pageable_down_{_name}"] = pageable_down(_size)


# Code -----------------------------------------------------------------------------------------------------------------


@_in("code")
def load_library(rig: Rig) -> Call:
    return rig.library


@_in("code")
def load_library_of_ptx(rig: Rig) -> Call:
    return lambda: rig.library(sources.PTX)


@_in("code")
def unload_library(rig: Rig) -> Call:
    library = rig.native.load_library(rig.session.image)
    return lambda: rig.native.unload_library(library)


@_in("code")
def unload_library_with_loaded_functions(rig: Rig) -> Call:
    library = rig.native.load_library(rig.session.image)
    rig.native.function(rig.native.kernel(library, "store"))
    return lambda: rig.native.unload_library(library)


@_in("code")
def kernel(rig: Rig) -> Call:
    library = rig.library()
    return lambda: rig.native.kernel(library, "store")


@_in("code")
def kernels(rig: Rig) -> Call:
    library = rig.library()
    return lambda: rig.native.kernels(library)


@_in("code")
def function(rig: Rig) -> Call:
    handle = rig.native.kernel(rig.library(), "store")
    return lambda: rig.native.function(handle)


@_in("code")
def function_attribute(rig: Rig) -> Call:
    handle = rig.session.function("store")
    return lambda: rig.native.function_attribute(handle, FunctionAttribute.REGISTERS)


@_in("code")
def set_function_attribute(rig: Rig) -> Call:
    handle = rig.session.function("use_shared")
    return lambda: rig.native.set_function_attribute(handle, FunctionAttribute.MAX_DYNAMIC_SHARED, 65536)


@_in("code")
def launch(rig: Rig) -> Call:
    stream, work = rig.stream(), rig.call("nothing")
    return lambda: rig.native.launch(work, stream)


@_in("code")
def launch_of_a_kernel_not_yet_loaded(rig: Rig) -> Call:
    handle = rig.native.kernel(rig.library(), "nothing")
    stream, work = rig.stream(), rig.call(handle)
    return lambda: rig.native.launch(work, stream)


# Graphs ---------------------------------------------------------------------------------------------------------------


class _Graph:
    """A graph with one node of each kind, and an instance."""

    def __init__(self, rig: Rig, kept: bool = True) -> None:
        native = rig.native
        self.words, self.device = rig.words(4), rig.memory(256)
        self.graph = rig.graph() if kept else native.create_graph()
        self.store = rig.call("store", self.words.at(0), 1)
        self.kernel = native.add_kernel_node(self.graph, [], self.store)
        self.fill = native.add_fill_node(self.graph, [self.kernel], self.device, 1, 4, 8, rig.context)
        self.copy = native.add_copy_node(self.graph, [self.fill], self.words.at(1), self.device, 8, rig.context)
        self.instance = rig.instance(self.graph) if kept else native.instantiate_graph(self.graph)


@_in("graphs")
def create_graph(rig: Rig) -> Call:
    return rig.graph


@_in("graphs")
def destroy_graph(rig: Rig) -> Call:
    made = _Graph(rig, kept=False)
    return lambda: rig.native.destroy_graph(made.graph)


@_in("graphs")
def add_kernel_node(rig: Rig) -> Call:
    made = _Graph(rig)
    return lambda: rig.native.add_kernel_node(made.graph, [made.copy], made.store)


@_in("graphs")
def add_fill_node(rig: Rig) -> Call:
    made = _Graph(rig)
    return lambda: rig.native.add_fill_node(made.graph, [], made.device, 1, 4, 8, rig.context)


@_in("graphs")
def add_copy_node(rig: Rig) -> Call:
    made = _Graph(rig)
    return lambda: rig.native.add_copy_node(made.graph, [], made.words.at(2), made.device, 8, rig.context)


@_in("graphs")
def add_empty_node(rig: Rig) -> Call:
    made = _Graph(rig)
    return lambda: rig.native.add_empty_node(made.graph, [made.copy])


@_in("graphs")
def instantiate_graph(rig: Rig) -> Call:
    made = _Graph(rig)
    return lambda: rig.instance(made.graph)


@_in("graphs")
def destroy_graph_instance(rig: Rig) -> Call:
    made = _Graph(rig, kept=False)
    return lambda: rig.native.destroy_graph_instance(made.instance)


@_in("graphs")
def set_kernel_node(rig: Rig) -> Call:
    made = _Graph(rig)
    changed = rig.call("store", made.words.at(0), 2)
    return lambda: rig.native.set_kernel_node(made.instance, made.kernel, changed)


@_in("graphs")
def set_fill_node(rig: Rig) -> Call:
    made = _Graph(rig)
    return lambda: rig.native.set_fill_node(made.instance, made.fill, made.device, 2, 4, 8, rig.context)


@_in("graphs")
def set_copy_node(rig: Rig) -> Call:
    made = _Graph(rig)
    return lambda: rig.native.set_copy_node(made.instance, made.copy, made.words.at(2), made.device, 8, rig.context)


@_in("graphs")
def enable_node(rig: Rig) -> Call:
    made = _Graph(rig)
    return lambda: rig.native.enable_node(made.instance, made.kernel, False)


@_in("graphs")
def launch_graph(rig: Rig) -> Call:
    made, stream = _Graph(rig), rig.stream()
    return lambda: rig.native.launch_graph(made.instance, stream)


@_in("graphs")
def launch_graph_again(rig: Rig) -> Call:
    made, stream = _Graph(rig), rig.stream()
    rig.native.launch_graph(made.instance, stream)
    rig.synchronize(stream)
    return lambda: rig.native.launch_graph(made.instance, stream)


ALL: dict[str, Maker] = {name: maker for group in CALLS.values() for name, maker in group.items()}
