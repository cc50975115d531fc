"""Graphs of the simulation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...drivers.cuda._native import Launch
from ...drivers.cuda._structs import KernelNodeParams, Memcpy3D, MemsetNodeParams
from .calls import Calls, call
from .codes import INVALID_VALUE, Refusal
from .graph import Graph, Instance, Node
from .launches import Work, copy_work, fill_work, launch_work


class GraphCalls(Calls):
    """As in `Native`."""

    @call("cuGraphCreate")
    def create_graph(self) -> int:
        """Create an empty graph."""
        graph = self.machine.add(Graph())
        self.counts["graphs"] += 1
        return graph

    @call("cuGraphDestroy")
    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph; its instances live on."""
        gone = self.machine.remove(Graph, graph, INVALID_VALUE)
        gone.destroyed = True
        for handle in gone.handles:
            self.machine.remove(Node, handle, INVALID_VALUE)
        self.counts["graphs"] -= 1

    @call("cuGraphAddKernelNode_v2", "context")
    def add_kernel_node(self, graph: int, after: list[int], launch: Launch) -> int:
        """Add a kernel. Its arguments are copied."""
        return self._add(graph, "kernel", after, launch_work(self.machine, launch))

    @call("cuGraphAddMemsetNode", "handle")
    def add_fill_node(
        self, graph: int, after: list[int], address: int, value: int, element: int, count: int, context: int
    ) -> int:
        """Add a fill."""
        return self._add(graph, "fill", after, self._fill(address, value, element, count))

    @call("cuGraphAddMemcpyNode", "handle")
    def add_copy_node(self, graph: int, after: list[int], target: int, source: int, nbytes: int, context: int) -> int:
        """Add a copy."""
        work, kinds = self._copy(target, source, nbytes)
        return self._add(graph, "copy", after, work, kinds)

    @call("cuGraphAddEmptyNode")
    def add_empty_node(self, graph: int, after: list[int]) -> int:
        """Add a node that only joins others."""
        return self._add(graph, "empty", after, None)

    def add_node(self, kind: str, graph: int, after: list[int], params: int, context: int) -> int:
        """Add a node of a kind from the structure at an address, which is copied."""
        if kind == "kernel":
            return self.add_kernel_node(graph, after, _launch_at(params))
        if kind == "fill":
            return self.add_fill_node(graph, after, *_fill_at(params), context)
        return self.add_copy_node(graph, after, *_copy_at(params), context)

    def _add(self, graph: int, kind: str, after: list[int], work: Work | None, shape: Any = None) -> int:
        found = self.machine.find(Graph, graph, INVALID_VALUE)
        before = [self.machine.find(Node, node, INVALID_VALUE) for node in after]
        handle = self.machine.add(found.add(kind, before, work, shape))
        found.handles.append(handle)
        return handle

    def _fill(self, address: int, value: int, element: int, count: int) -> Work:
        if not count:
            raise Refusal(INVALID_VALUE)
        return fill_work(self.machine, address, value, element, count)

    def _copy(self, target: int, source: int, nbytes: int) -> tuple[Work, tuple[str, str]]:
        if not nbytes:
            raise Refusal(INVALID_VALUE)
        return copy_work(self.machine, target, source, nbytes)

    @call("cuGraphInstantiateWithFlags", "context")
    def instantiate_graph(self, graph: int) -> int:
        """Make an instance that can be launched. Takes microseconds per node."""
        self._card.check_room()
        seed = self.machine.seed + next(self._numbers)
        instance = self.machine.add(Instance(self.machine.find(Graph, graph, INVALID_VALUE), seed))
        self.counts["graph instances"] += 1
        return instance

    @call("cuGraphExecDestroy")
    def destroy_graph_instance(self, instance: int) -> None:
        """Destroy an instance; one that runs goes when it is over."""
        self.machine.remove(Instance, instance, INVALID_VALUE)
        self.counts["graph instances"] -= 1

    @call("cuGraphExecKernelNodeSetParams_v2", "context")
    def set_kernel_node(self, instance: int, node: int, launch: Launch) -> None:
        """Change a kernel's arguments and grid in an instance, for launches to come."""
        self._set(instance, node, "kernel", launch_work(self.machine, launch))

    @call("cuGraphExecMemsetNodeSetParams", "handle")
    def set_fill_node(
        self, instance: int, node: int, address: int, value: int, element: int, count: int, context: int
    ) -> None:
        """Change a fill in an instance."""
        self._set(instance, node, "fill", self._fill(address, value, element, count))

    @call("cuGraphExecMemcpyNodeSetParams", "handle")
    def set_copy_node(self, instance: int, node: int, target: int, source: int, nbytes: int, context: int) -> None:
        """Change a copy in an instance."""
        work, kinds = self._copy(target, source, nbytes)
        self._set(instance, node, "copy", work, kinds)

    def set_nodes(self, kind: str, instance: int, nodes: Iterable[tuple[int, int]], context: int) -> None:
        """Change many nodes of one kind in an instance: pairs of a node and the address of its structure."""
        for node, params in nodes:
            if kind == "kernel":
                self.set_kernel_node(instance, node, _launch_at(params))
            elif kind == "fill":
                self.set_fill_node(instance, node, *_fill_at(params), context)
            else:
                self.set_copy_node(instance, node, *_copy_at(params), context)

    def _set(self, instance: int, node: int, kind: str, work: Work, shape: Any = None) -> None:
        self._instance(instance).set(self.machine.find(Node, node, INVALID_VALUE), kind, work, shape)

    def _instance(self, instance: int) -> Instance:
        found: Instance = self.machine.find(Instance, instance, INVALID_VALUE)
        return found

    @call("cuGraphNodeSetEnabled")
    def enable_node(self, instance: int, node: int, enabled: bool) -> None:
        """Switch a node of an instance on or off."""
        self._instance(instance).enable(self.machine.find(Node, node, INVALID_VALUE), enabled)

    @call("cuGraphLaunch", "handle")
    def launch_graph(self, instance: int, stream: int) -> None:
        """Run an instance once; behind an earlier run of the same instance."""
        found, place = self._instance(instance), self._stream(stream)
        before, work = found.last, found.launch()

        def run() -> None:
            while before is not None and not before.over and not place.card.fault:
                before.sleep()
            work(place.card)

        found.last = place.put(run, 1)


def _launch_at(params: int) -> Launch:
    given = KernelNodeParams.from_address(params)
    return Launch(given.function, tuple(given.grid), tuple(given.block), given.shared, given.params)


def _fill_at(params: int) -> tuple[int, int, int, int]:
    given = MemsetNodeParams.from_address(params)
    return given.target, given.value, given.element, given.width


def _copy_at(params: int) -> tuple[int, int, int]:
    given = Memcpy3D.from_address(params)
    return given.target.device, given.source.device, given.width
