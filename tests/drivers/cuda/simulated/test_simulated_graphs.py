"""Graphs of the simulation: pictures of their making, run in any order that their edges allow."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.testing import cuda_simulated


def address_of(words: Any, index: int = 0) -> int:
    return ctypes.addressof(words) + 8 * index


def run(bench: Any, instance: int) -> None:
    stream = bench.stream()
    bench.native.launch_graph(instance, stream)
    bench.native.synchronize_stream(stream)


def test_edges_are_kept(bench: Any) -> None:
    native, words = bench.native, bench.words(1)
    graph, after = native.create_graph(), []
    for value in (1, 0, 1, 1, 0, 1):
        after = [native.add_kernel_node(graph, after, bench.call("twice_plus", address_of(words), value))]
    for _ in range(5):
        words[0] = 0
        run(bench, native.instantiate_graph(graph))
        assert words[0] == 0b101101


def test_an_edge_that_is_missing_shows(make_bench: Callable[..., Any]) -> None:
    found = set()
    for seed in range(20):
        bench = make_bench(seed=seed)
        words, graph = bench.words(1), bench.native.create_graph()
        for value in (1, 2):
            bench.native.add_fill_node(graph, [], address_of(words), value, 4, 1, bench.context)
        run(bench, bench.native.instantiate_graph(graph))
        found.add(words[0])
    assert found == {1, 2}


def test_an_instance_is_not_changed_by_its_graph(bench: Any) -> None:
    native, words, graph = bench.native, bench.words(2), bench.native.create_graph()
    native.add_kernel_node(graph, [], bench.call("add", address_of(words), 1))
    instance = native.instantiate_graph(graph)
    late = native.add_kernel_node(graph, [], bench.call("add", address_of(words, 1), 1))
    assert bench.code(lambda: native.enable_node(instance, late, False)) == 1
    native.destroy_graph(graph)
    run(bench, instance)
    assert list(words) == [1, 0]


def test_arguments_are_copied_when_a_node_is_added_and_when_it_is_changed(bench: Any) -> None:
    native, words, graph = bench.native, bench.words(1), bench.native.create_graph()
    value = ctypes.c_uint64(1)
    launch = bench.call("store", address_of(words), value)
    node = native.add_kernel_node(graph, [], launch)
    instance = native.instantiate_graph(graph)
    value.value = 2
    run(bench, instance)
    assert words[0] == 1
    native.set_kernel_node(instance, node, launch)
    value.value = 3
    run(bench, instance)
    assert words[0] == 2


def test_a_change_reaches_only_launches_to_come(bench: Any) -> None:
    native, words, graph, stream = bench.native, bench.words(1), bench.native.create_graph(), bench.stream()
    node = native.add_kernel_node(graph, [], bench.call("twice_plus", address_of(words), 1))
    instance = native.instantiate_graph(graph)
    gate = bench.gate(stream)
    native.launch_graph(instance, stream)
    native.set_kernel_node(instance, node, bench.call("twice_plus", address_of(words), 0))
    native.launch_graph(instance, stream)
    native.enable_node(instance, node, False)
    native.launch_graph(instance, stream)
    gate.open()
    native.synchronize_stream(stream)
    assert words[0] == 0b10


def test_an_instance_runs_once_at_a_time(bench: Any) -> None:
    native, words, graph = bench.native, bench.words(2), bench.native.create_graph()
    native.add_kernel_node(graph, [], bench.call("hold", address_of(words), address_of(words, 1)))
    instance, first, second = native.instantiate_graph(graph), bench.stream(), bench.stream()
    native.launch_graph(instance, first)
    native.launch_graph(instance, second)
    bench.until(lambda: words[0] == 1)
    for _ in range(50):
        assert words[0] == 1
    words[1] = 1
    native.synchronize_stream(first)
    native.synchronize_stream(second)
    assert words[0] == 2


def test_what_a_copy_copies_between_cannot_change(bench: Any) -> None:
    native, words, device = bench.native, bench.words(4), bench.memory(64)
    graph = native.create_graph()
    node = native.add_copy_node(graph, [], address_of(words), device, 8, bench.context)
    instance = native.instantiate_graph(graph)
    assert bench.code(lambda: native.set_copy_node(instance, node, address_of(words, 1), device, 8, bench.context)) == 0
    assert bench.code(lambda: native.set_copy_node(instance, node, device + 8, device, 8, bench.context)) == 1
    assert bench.code(lambda: native.set_copy_node(instance, node, address_of(words), device, 0, bench.context)) == 1


def test_a_node_is_gone_with_its_graph(bench: Any) -> None:
    native, words, graph = bench.native, bench.words(1), bench.native.create_graph()
    launch = bench.call("store", address_of(words), 1)
    node = native.add_kernel_node(graph, [], launch)
    instance = native.instantiate_graph(graph)
    native.destroy_graph(graph)
    with pytest.raises(cuda_simulated.SimulatedCrashError):
        native.set_kernel_node(instance, node, launch)


def test_edges_name_nodes_of_the_same_graph_once(bench: Any) -> None:
    native, graph, other = bench.native, bench.native.create_graph(), bench.native.create_graph()
    node = native.add_empty_node(graph, [])
    assert bench.code(lambda: native.add_empty_node(graph, [node, node])) == 1
    assert bench.code(lambda: native.add_empty_node(other, [node])) == 1


def test_a_fault_in_a_graph_stops_what_depends_on_it(bench: Any) -> None:
    native, words, graph, stream = bench.native, bench.words(1), bench.native.create_graph(), bench.stream()
    bad = native.add_kernel_node(graph, [], bench.call("store", 0, 1))
    native.add_kernel_node(graph, [bad], bench.call("store", address_of(words), 1))
    native.launch_graph(native.instantiate_graph(graph), stream)
    assert bench.code(lambda: native.synchronize_stream(stream)) == 700
    assert words[0] == 0
