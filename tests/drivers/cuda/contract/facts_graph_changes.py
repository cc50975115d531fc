"""What may be changed about the nodes of an instance, and what graphs refuse."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from registry import fact
from rig import Rig, code


class _Kernel:
    """An instance with one kernel node, and a stream to run it on."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.native = rig, rig.native
        self.stream, self.words, self.graph = rig.stream(), rig.words(8), rig.graph()
        self.node = rig.native.add_kernel_node(self.graph, [], rig.call("store", self.words.at(0), 1))
        self.instance = rig.instance(self.graph)

    def run(self) -> list[int]:
        """Launch it and return the words."""
        self.native.launch_graph(self.instance, self.stream)
        self.rig.synchronize(self.stream)
        return self.words.list()


class _Fill:
    """An instance with one fill node of 16 bytes, in elements of four."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.native = rig, rig.native
        self.stream, self.graph, self.device = rig.stream(), rig.graph(), rig.memory(4096)
        rig.native.fill(self.device, 0, 1, 4096, self.stream)
        rig.synchronize(self.stream)
        self.node = rig.native.add_fill_node(self.graph, [], self.device, 1, 4, 4, rig.context)
        self.instance = rig.instance(self.graph)

    def change(self, address: int, value: int, element: int, count: int) -> int:
        """Change the node and return the code."""
        rig = self.rig
        return code(
            lambda: rig.native.set_fill_node(self.instance, self.node, address, value, element, count, rig.context)
        )

    def run(self) -> bytes:
        """Launch it and return the first 32 bytes."""
        self.native.launch_graph(self.instance, self.stream)
        self.rig.synchronize(self.stream)
        return self.rig.read(self.device, 32)


class _Copy:
    """An instance with one copy node of 16 bytes within the device, whose source counts up."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.native = rig, rig.native
        self.stream, self.graph = rig.stream(), rig.graph()
        self.source, self.target, self.pinned = rig.memory(4096), rig.memory(4096), rig.pinned(4096)
        (ctypes.c_ubyte * 4096).from_address(self.pinned)[:] = bytes(range(1, 129)) * 32
        rig.native.copy(self.source, self.pinned, 4096, self.stream)
        rig.native.fill(self.target, 0, 1, 4096, self.stream)
        rig.synchronize(self.stream)
        self.node = rig.native.add_copy_node(self.graph, [], self.target, self.source, 16, rig.context)
        self.instance = rig.instance(self.graph)

    def change(self, target: int, source: int, nbytes: int) -> int:
        """Change the node and return the code."""
        rig = self.rig
        return code(lambda: rig.native.set_copy_node(self.instance, self.node, target, source, nbytes, rig.context))

    def run(self) -> list[int]:
        """Launch it and return how the first 64 bytes begin and how many are not zero."""
        self.native.launch_graph(self.instance, self.stream)
        self.rig.synchronize(self.stream)
        found = self.rig.read(self.target, 64)
        return [found[0], sum(byte != 0 for byte in found)]


@fact()
def fact_kernel_node_with_another_function(rig: Rig) -> dict[str, object]:
    """Can a kernel node get another function with the same parameters?"""
    made = _Kernel(rig)
    made.words[0] = 5
    changed = code(lambda: rig.native.set_kernel_node(made.instance, made.node, rig.call("add", made.words.at(0), 2)))
    return {"code": changed, "word": made.run()[0]}


@fact()
def fact_kernel_node_with_fewer_parameters(rig: Rig) -> dict[str, object]:
    """Can a kernel node get a function with other parameters?"""
    made = _Kernel(rig)
    work = rig.call("write_groups", made.words.at(0), grid=(4, 1, 1))
    changed = code(lambda: rig.native.set_kernel_node(made.instance, made.node, work))
    return {"code": changed, "words": made.run()}


@fact()
def fact_kernel_node_with_another_grid(rig: Rig) -> dict[str, object]:
    """Can a kernel node get more groups and larger ones?"""
    stream, words, graph = rig.stream(), rig.words(8), rig.graph()
    node = rig.native.add_kernel_node(graph, [], rig.call("write_groups", words.at(0)))
    instance = rig.instance(graph)
    work = rig.call("write_groups", words.at(0), grid=(6, 1, 1), block=(32, 1, 1))
    changed = code(lambda: rig.native.set_kernel_node(instance, node, work))
    rig.native.launch_graph(instance, stream)
    rig.synchronize(stream)
    return {"code": changed, "words": words.list()}


@fact()
def fact_kernel_node_set_to_no_groups(rig: Rig) -> dict[str, object]:
    """Can a kernel node be set to a grid without groups, and what does it do then?"""
    made = _Kernel(rig)
    work = rig.call("store", made.words.at(0), 2, grid=(0, 1, 1))
    changed = code(lambda: rig.native.set_kernel_node(made.instance, made.node, work))
    return {"code": changed, "word": made.run()[0]}


@fact()
def fact_kernel_node_set_to_too_much_shared_memory(rig: Rig) -> int:
    """What does setting a kernel node to 64 KiB of shared memory return, if the function was not told?"""
    made = _Kernel(rig)
    work = rig.call("store", made.words.at(0), 2, shared=65536)
    return code(lambda: rig.native.set_kernel_node(made.instance, made.node, work))


@fact(alone=True)
def fact_kernel_node_set_where_a_fill_is(rig: Rig) -> int:
    """What does setting a fill node's parameters as a kernel's return?"""
    made, words = _Fill(rig), rig.words(1)
    return code(lambda: rig.native.set_kernel_node(made.instance, made.node, rig.call("store", words.at(0), 1)))


@fact()
def fact_kernel_nodes_that_are_refused(rig: Rig) -> dict[str, int]:
    """What does adding kernel nodes return that no launch would take?"""
    graph, words = rig.graph(), rig.words(1)
    shapes: dict[str, dict[str, object]] = {
        "no groups": {"grid": (0, 1, 1)},
        "1025 threads": {"block": (1025, 1, 1)},
        "64 KiB of shared memory": {"shared": 65536},
    }
    works = {name: rig.call("store", words.at(0), 1, **shape) for name, shape in shapes.items()}
    return {name: code(lambda work=work: rig.native.add_kernel_node(graph, [], work)) for name, work in works.items()}


@fact(alone=True)
def fact_kernel_node_with_refused_shared_memory_runs(rig: Rig) -> dict[str, int]:
    """Where is a kernel node with 64 KiB of shared memory refused, if the function was not told?"""
    graph, words, stream = rig.graph(), rig.words(1), rig.stream()
    found = {"instantiate": -1, "launch": -1, "synchronize": -1}
    found["add"] = code(lambda: rig.native.add_kernel_node(graph, [], rig.call("store", words.at(0), 1, shared=65536)))
    if found["add"] == 0:
        found["instantiate"] = code(lambda: rig.instance(graph))
    if found["instantiate"] == 0:
        instance = rig.instance(graph)
        found["launch"] = code(lambda: rig.native.launch_graph(instance, stream))
        found["synchronize"] = code(lambda: rig.synchronize(stream))
    return found


@fact()
def fact_fill_node_with_another_value_and_count(rig: Rig) -> dict[str, object]:
    """Can a fill node get another value, a smaller and a larger count?"""
    made = _Fill(rig)
    smaller = made.change(made.device, 2, 4, 2)
    first = list(memoryview(made.run()).cast("I"))
    larger = made.change(made.device, 3, 4, 8)
    return {"smaller": smaller, "larger": larger, "first": first, "second": list(memoryview(made.run()).cast("I"))}


@fact()
def fact_fill_node_with_another_element(rig: Rig) -> dict[str, object]:
    """Can a fill node's element go from four bytes to one and to two?"""
    made = _Fill(rig)
    found: dict[str, object] = {"1": made.change(made.device, 7, 1, 16)}
    found["bytes after 1"] = list(made.run()[:4])
    found["2"] = made.change(made.device, 9, 2, 8)
    found["bytes after 2"] = list(made.run()[:4])
    return found


@fact()
def fact_fill_node_with_another_address(rig: Rig) -> dict[str, int]:
    """Can a fill node go to another allocation, and to page-locked memory?"""
    made, device, words = _Fill(rig), rig.memory(64), rig.words(2)
    return {"another allocation": made.change(device, 1, 4, 4), "page-locked": made.change(words.at(0), 1, 4, 4)}


@fact()
def fact_fill_node_of_no_elements(rig: Rig) -> dict[str, int]:
    """Can a fill node be set to no elements, be added with none, and at an odd address?"""
    made, add = _Fill(rig), rig.native.add_fill_node
    return {
        "set": made.change(made.device, 1, 4, 0),
        "add": code(lambda: add(made.graph, [], made.device, 1, 4, 0, rig.context)),
        "add at an odd address": code(lambda: add(made.graph, [], made.device + 2, 1, 4, 1, rig.context)),
        "set to an odd address": made.change(made.device + 2, 1, 4, 1),
    }


@fact()
def fact_fill_node_over_a_long_row(rig: Rig) -> dict[str, object]:
    """Can a fill node fill 16 MiB in bytes, and does it reach the end?"""
    stream, graph, nbytes = rig.stream(), rig.graph(), 1 << 24
    device = rig.memory(nbytes)
    added = code(lambda: rig.native.add_fill_node(graph, [], device, 5, 1, nbytes, rig.context))
    if added:
        return {"code": added}
    rig.native.launch_graph(rig.instance(graph), stream)
    rig.synchronize(stream)
    return {"code": added, "end": list(rig.read(device + nbytes - 2, 2))}


@fact()
def fact_copy_node_with_another_size(rig: Rig) -> dict[str, object]:
    """Can a copy node get a smaller and a larger size?"""
    made = _Copy(rig)
    smaller = made.change(made.target, made.source, 8)
    first = made.run()
    larger = made.change(made.target, made.source, 32)
    return {"smaller": smaller, "larger": larger, "first": first, "second": made.run()}


@fact()
def fact_copy_node_with_other_addresses(rig: Rig) -> dict[str, object]:
    """Can a copy node get another source, and other kinds of memory?"""
    made = _Copy(rig)
    found: dict[str, object] = {"later in the source": made.change(made.target, made.source + 4, 16)}
    found["then"] = made.run()
    found["from page-locked memory"] = made.change(made.target, made.pinned, 16)
    found["to page-locked memory"] = made.change(made.pinned, made.source, 16)
    return found


@fact()
def fact_copy_node_that_was_an_upload(rig: Rig) -> dict[str, int]:
    """Can a copy node from page-locked memory be set to another place there, and to a source on the device?"""
    graph, device, other, words = rig.graph(), rig.memory(64), rig.memory(64), rig.words(4)
    node = rig.native.add_copy_node(graph, [], device, words.at(0), 16, rig.context)
    instance = rig.instance(graph)

    def change(target: int, source: int) -> Callable[[], None]:
        return lambda: rig.native.set_copy_node(instance, node, target, source, 16, rig.context)

    return {"another place": code(change(device, words.at(2))), "device": code(change(device, other))}


@fact()
def fact_copy_node_of_no_bytes(rig: Rig) -> dict[str, int]:
    """Can a copy node be set to no bytes, and be added with none?"""
    made = _Copy(rig)
    added = code(lambda: rig.native.add_copy_node(made.graph, [], made.target, made.source, 0, rig.context))
    return {"set": made.change(made.target, made.source, 0), "add": added}


@fact()
def fact_copy_node_of_an_odd_size(rig: Rig) -> dict[str, object]:
    """Can a copy node have an odd size and odd addresses?"""
    made = _Copy(rig)
    return {"code": made.change(made.target + 1, made.source + 3, 7), "then": made.run()}


@fact()
def fact_copy_node_from_ordinary_memory(rig: Rig) -> dict[str, object]:
    """Can a copy node read host memory that is not page-locked, and when does it read it?"""
    stream, graph, words, device = rig.stream(), rig.graph(), rig.words(1), rig.memory(64)
    array = np.full(1, 5, np.uint64)
    found: dict[str, object] = {"read": None}
    found["add"] = code(lambda: rig.native.add_copy_node(graph, [], device, array.ctypes.data, 8, rig.context))
    found["instantiate"] = code(lambda: rig.instance(graph)) if found["add"] == 0 else -1
    if found["instantiate"] == 0:
        instance = rig.instance(graph)
        array[0] = 6
        found["launch"] = code(lambda: rig.native.launch_graph(instance, stream))
        rig.native.copy(words.at(0), device, 8, stream)
        rig.synchronize(stream)
        found["read"] = words[0]
    return found


@fact()
def fact_an_edge_given_twice(rig: Rig) -> int:
    """What does adding a node return that names one it comes after twice?"""
    made = _Kernel(rig)
    work = rig.call("store", made.words.at(1), 1)
    return code(lambda: rig.native.add_kernel_node(made.graph, [made.node, made.node], work))


@fact(alone=True)
def fact_an_edge_from_another_graph(rig: Rig) -> int:
    """What does adding a node return that comes after a node of another graph?"""
    made, other = _Kernel(rig), _Kernel(rig)
    work = rig.call("store", made.words.at(1), 1)
    return code(lambda: rig.native.add_kernel_node(made.graph, [other.node], work))


@fact(alone=True)
def fact_a_node_of_another_graph_set(rig: Rig) -> int:
    """What does setting a node return that belongs to another graph than the instance?"""
    made, other = _Kernel(rig), _Kernel(rig)
    work = rig.call("store", made.words.at(1), 1)
    return code(lambda: rig.native.set_kernel_node(made.instance, other.node, work))


@fact()
def fact_several_changes_before_one_launch(rig: Rig) -> int:
    """Which of several changes of a node does the next launch see?"""
    made = _Kernel(rig)
    for value in range(2, 12):
        rig.native.set_kernel_node(made.instance, made.node, rig.call("store", made.words.at(0), value))
    return made.run()[0]


@fact()
def fact_a_node_changed_while_it_is_switched_off(rig: Rig) -> list[int]:
    """Is a change of a node that is switched off seen when it is on again?"""
    made = _Kernel(rig)
    rig.native.enable_node(made.instance, made.node, False)
    rig.native.set_kernel_node(made.instance, made.node, rig.call("store", made.words.at(0), 9))
    off = made.run()[0]
    rig.native.enable_node(made.instance, made.node, True)
    return [off, made.run()[0]]
