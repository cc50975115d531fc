"""Graphs: nodes with dependencies, and instances of them that are launched.

An instance is a picture of its graph at one moment. Its nodes run in a random order that their dependencies allow, some
side by side, so that an edge which is missing is found.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterable
from random import Random
from typing import Any

from .codes import INVALID_VALUE, Refusal
from .launches import Work
from .machine import Card
from .op import Op

_HELPERS = 3
"""How many kernels run beside the first."""


class Node:
    """A node of a graph. `shape` is what a change of its parameters in an instance must keep."""

    def __init__(self, graph: Graph, kind: str, after: tuple[Node, ...], work: Work | None, shape: Any) -> None:
        self.graph = graph
        self.kind = kind
        self.after = after
        self.work = work
        self.shape = shape


class Graph:
    """Nodes in the order they were added."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.handles: list[int] = []
        self.destroyed = False

    def add(self, kind: str, after: Iterable[Node], work: Work | None, shape: Any = None) -> Node:
        """Add a node behind others of the same graph, each named once."""
        before = tuple(after)
        if len(set(before)) != len(before) or any(node.graph is not self for node in before):
            raise Refusal(INVALID_VALUE)
        node = Node(self, kind, before, work, shape)
        self.nodes.append(node)
        return node


class Instance:
    """What can be launched.

    Attributes:
        last: the launch that came last; the next one, on whatever stream, runs behind it.

    """

    def __init__(self, graph: Graph, seed: int) -> None:
        self._works: dict[Node, Work | None] = {node: node.work for node in graph.nodes}
        self._shapes: dict[Node, Any] = {node: node.shape for node in graph.nodes}
        self._disabled: set[Node] = set()
        self._chance = Random(seed)
        self.last: Op | None = None

    def set(self, node: Node, kind: str, work: Work, shape: Any = None) -> None:
        """Change what a node does in launches to come; not what it is, and not between which kinds of memory."""
        self._check(node, kind)
        if self._shapes[node] != shape:
            raise Refusal(INVALID_VALUE)
        self._works[node] = work

    def enable(self, node: Node, enabled: bool) -> None:
        """Switch a node on or off. A node that only joins others cannot be."""
        self._check(node, node.kind)
        if node.kind == "empty":
            raise Refusal(INVALID_VALUE)
        (self._disabled.discard if enabled else self._disabled.add)(node)

    def _check(self, node: Node, kind: str) -> None:
        # A node goes with its graph: after that its handle is good for nothing, in any instance (measured).
        if node.graph.destroyed or node not in self._works or node.kind != kind:
            raise Refusal(INVALID_VALUE)

    def launch(self) -> Work:
        """Return one run of it as it is now."""
        works = {node: None if node in self._disabled else work for node, work in self._works.items()}
        chance = Random(self._chance.random())
        return lambda card: _Run(works, chance, card).run()


class _Run:
    """One run of an instance: ready nodes in any order, and side by side, as a card runs branches."""

    def __init__(self, works: dict[Node, Work | None], chance: Random, card: Card) -> None:
        self._works = works
        self._chance = chance
        self._card = card
        self._missing = {node: len(node.after) for node in works}
        self._followers: dict[Node, list[Node]] = {node: [] for node in works}
        for node in works:
            for before in node.after:
                self._followers[before].append(node)
        self._ready = [node for node, count in self._missing.items() if not count]
        self._left = len(works)
        self._helpers = 0
        self._fault: BaseException | None = None
        self._changed = threading.Condition()

    def run(self) -> None:
        """Run all nodes; raises the first fault."""
        while True:
            self._work()
            with self._changed:
                if self._fault is not None:
                    raise self._fault
                if not self._left:
                    return
                if not self._ready:
                    self._changed.wait()

    def _work(self) -> None:
        """Run nodes as long as some are ready."""
        while (node := self._take()) is not None:
            try:
                work = self._works[node]
                if work is not None:
                    work(self._card)
                self._done(node)
            except BaseException as error:
                with self._changed:
                    self._fault = self._fault or error
                    self._changed.notify_all()

    def _take(self) -> Node | None:
        with self._changed:
            if not self._ready or self._fault is not None:
                return None
            node = self._ready.pop(self._chance.randrange(len(self._ready)))
            if self._helpers < _HELPERS and any(other.kind == "kernel" for other in self._ready):
                self._helpers += 1
                _thread.start_new_thread(self._help, ())
            return node

    def _help(self) -> None:
        self._work()
        with self._changed:
            self._helpers -= 1

    def _done(self, node: Node) -> None:
        with self._changed:
            self._left -= 1
            for follower in self._followers[node]:
                self._missing[follower] -= 1
                if not self._missing[follower]:
                    self._ready.append(follower)
            self._changed.notify_all()
