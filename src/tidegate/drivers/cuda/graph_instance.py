"""A graph that can be launched, bound to one binding table at a time.

An instance owns everything it is made of, the graph included: CUDA knows the nodes of an instance by the handles of
the graph it came from. It may be changed while it runs: that touches later launches only. Launched twice it runs twice,
one after the other, on whatever streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof
from itertools import chain
from typing import TYPE_CHECKING, Any

from tidegate.driver import Command

from ._native import NODES, Native, NativeError
from .graph_node import Bound, Node, Table, make_node
from .graph_order import Place
from .native.compiled import InstanceState, Nodes, Words

if TYPE_CHECKING:
    from .device import CudaDevice

KINDS = ("kernel", "fill", "copy")
_REMEMBERED = 8
"""For so many sets of slots an instance remembers what follows them."""


class StaleError(Exception):
    """A node was left out, because there was nothing to do, and now there is."""


class Followers:
    """What follows some slots: nodes to hand over by kind, and nodes whose length may change."""

    __slots__ = ("nodes", "sized")

    def __init__(self, device: CudaDevice, nodes: Sequence[Node]) -> None:
        self.sized = [node for node in nodes if node.sized is not None]
        self.nodes: list[Nodes] = []
        for kind in KINDS:
            pairs = [(node.handle, node.params) for node in nodes if node.kind == kind and node.sized is None]
            if pairs:
                self.nodes.append(Nodes(device, NODES[kind][1], kind != "kernel", pairs))


class Instance:
    """An instance. Everything but making one happens under the device's lock.

    Args:
        device: the device.
        commands: what was recorded.
        places: its nodes and their order.
        table: what to bind at first.
        used: which slots of it are used.
        data: tells where the data of an update lies.

    Attributes:
        table: what is bound; None in a slot means that nobody knows.
        state: the compiled side: what is bound as far as it is all known, where it was last launched.

    """

    _graph = 0

    def __init__(
        self,
        device: CudaDevice,
        commands: Sequence[Command],
        places: Sequence[Place],
        table: Table,
        used: Sequence[int],
        data: Callable[[int], int],
    ) -> None:
        self.handle = 0
        self._device = device
        self.table: list[Bound | None] = list(table)
        self._used = used
        self._nodes = [make_node(place.command, commands[place.command], table, data) for place in places]
        self._graph = device.native.create_graph()
        device.graphs.add(self)
        self._link(places, table)
        self.handle = device.native.instantiate_graph(self._graph)
        self._words: dict[int, Words] = {}
        self._by_slot: dict[int, list[Node]] = {}
        self._followers: dict[tuple[int, ...], Followers] = {}
        self._index()
        self.state = InstanceState(self.handle)
        self._tell()

    def release(self) -> None:
        """Leave a note to destroy it. As a finalizer this may run anywhere, also inside of a driver call."""
        graph, self._graph = self._graph, 0
        if graph:
            native, handle = self._device.native, self.handle
            self._device.garbage.append(lambda: _destroy(native, handle, graph))

    __del__ = release

    def _link(self, places: Sequence[Place], table: Table) -> None:
        native, graph, context = self._device.native, self._graph, self._device.context
        over: list[list[int]] = []  # for each place the nodes behind which it is over: its own, or those before it
        for place, node in zip(places, self._nodes, strict=True):
            after = over[place.after[0]] if len(place.after) == 1 else _merged([over[index] for index in place.after])
            node.add(native, graph, after, table, context)
            over.append([node.handle] if node.handle else after)

    @property
    def idle(self) -> bool:
        """Whether every launch of it is over."""
        return self.state.idle

    def distance(self, table: Table) -> int:
        """How much must change to bind a table."""
        mine = self.table
        return sum(len(words) for slot, words in self._words.items() if mine[slot] != table[slot])

    def bind(self, table: Table) -> None:
        """Bind a table, for launches to come. What stays the same costs a comparison per slot.

        Raises:
            StaleError: it lacks a node; make another instance.
            NativeError: CUDA refuses a change; make another instance.

        """
        mine = self.table
        changed = tuple([slot for slot in self._words if mine[slot] != table[slot]])
        if not changed:
            return
        self.state.forget()
        for slot in changed:
            mine[slot] = None  # an exception on the way leaves: nobody knows
        for slot in changed:
            self._words[slot].store(table[slot].address)  # type: ignore[union-attr]
        self._hand_over(self._following(changed), table)
        for slot in changed:
            mine[slot] = table[slot]
        self._tell()

    def _tell(self) -> None:
        """Tell the compiled side what is bound."""
        self.state.is_bound([self.table[slot] for slot in self._used])

    def _hand_over(self, followers: Followers, table: Table) -> None:
        native, context = self._device.native, self._device.context
        for nodes in followers.nodes:
            nodes.hand_over(self.handle)
        for node in followers.sized:
            if not node.resize(native, self.handle, table, context):
                raise StaleError

    def _following(self, slots: tuple[int, ...]) -> Followers:
        """Return what follows any of some slots, each node once. Mostly it is the same slots that change."""
        found = self._followers.get(slots)
        if found is None:
            if len(self._followers) >= _REMEMBERED:
                self._followers.clear()
            nodes = dict.fromkeys(chain.from_iterable(self._by_slot[slot] for slot in slots))
            found = self._followers[slots] = Followers(self._device, list(nodes))
        return found

    def _index(self) -> None:
        """Find out which nodes and which of their words follow each slot."""
        cells: dict[int, list[tuple[int, int]]] = {}
        for node in self._nodes:
            for slot in node.slots:
                self._by_slot.setdefault(slot, []).append(node)
                cells.setdefault(slot, [])
            for word in node.words:
                cells[word.slot].append((addressof(word.cell), word.offset))
        self._words = {slot: Words(found) for slot, found in cells.items()}

    def launch(self, stream: Any) -> None:
        """Run it once, on a stream whose epoch has been taken."""
        self.state.launched(stream, stream.state, stream.issued)
        self._device.native.launch_graph(self.handle, stream.handle)


def _merged(groups: list[list[int]]) -> list[int]:
    return list(dict.fromkeys(chain.from_iterable(groups)))


def _destroy(native: Native, handle: int, graph: int) -> None:
    try:
        if handle:
            native.destroy_graph_instance(handle)
        native.destroy_graph(graph)
    except NativeError:
        pass  # the device is lost, and what it had with it
