"""One node of a graph instance: the structure CUDA is given for it, and which words of that follow which slots.

The structures live as long as the instance. To bind a slot anew is to store addresses into some of their words and to
hand those structures over once more: no object is made on the way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import addressof, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.driver import Binding, Command, Copy, Dispatch, Fill, SlotSpan, Update, Work

from ._native import Launch, Native
from ._structs import KernelNodeParams, Memcpy3D, MemsetNodeParams, linear_copy, memset_params
from .encoding import address_of

if TYPE_CHECKING:
    from .executable import CudaFunction


class Bound(NamedTuple):
    """What stands in a slot: where, how long, and whether in host memory."""

    address: int
    nbytes: int
    host: bool


Table = Sequence[Bound | None]
"""What stands in each slot; None where the recording does not use it."""


class Word(NamedTuple):
    """An address inside of a structure that follows a slot."""

    cell: c_uint64
    slot: int
    offset: int


class Node:
    """A node. `handle` is 0 until it is in a graph, and stays 0 where there was nothing to do.

    Attributes:
        kind: "kernel", "fill" or "copy".
        params: the address of its structure.
        words: which of its words follow slots.
        sized: the slot on which its length depends, or None.

    """

    __slots__ = (
        "_count",
        "_enabled",
        "_keep",
        "_launch",
        "_offset",
        "_unit",
        "handle",
        "kind",
        "params",
        "sized",
        "words",
    )

    def __init__(self, kind: str, structure: ctypes.Structure, words: list[Word], keep: Any = None) -> None:
        self.kind = kind
        self.params = addressof(structure)
        self.words = words
        self.handle = 0
        self.sized: int | None = None
        self._keep = (structure, keep)
        self._launch: Launch | None = None
        self._enabled = True
        self._count: Any = None
        self._offset = self._unit = 0

    @property
    def slots(self) -> set[int]:
        """The slots that it follows."""
        found = {word.slot for word in self.words}
        if self.sized is not None:
            found.add(self.sized)
        return found

    def follow_length(self, span: Binding, count: Any, unit: int) -> None:
        """Have `count` follow the length of what stands in a slot, in units of so many bytes."""
        if isinstance(span, SlotSpan) and span.length is None:
            self.sized, self._offset, self._count, self._unit = span.index, span.offset, count, unit

    def add(self, native: Native, graph: int, after: list[int], table: Table, context: int) -> None:
        """Put it into a graph, unless there is nothing to do: CUDA has no nodes of length 0."""
        if self.sized is not None and not self._measure(table):
            return
        launch = self._launch
        if launch is not None and (launch.cooperative or launch.cluster is not None):
            self.handle = native.add_kernel_node(graph, after, launch)
        else:
            self.handle = native.add_node(self.kind, graph, after, self.params, context)

    def resize(self, native: Native, instance: int, table: Table, context: int) -> bool:
        """Change it in an instance, now that its words are set. False: it is not there, and should be."""
        nbytes = self._measure(table)
        if not self.handle:
            return not nbytes
        if nbytes:
            native.set_nodes(self.kind, instance, ((self.handle, self.params),), context)
        if self._enabled != bool(nbytes):
            native.enable_node(instance, self.handle, bool(nbytes))
            self._enabled = bool(nbytes)
        return True

    def _measure(self, table: Table) -> int:
        assert self.sized is not None
        bound = table[self.sized]
        assert bound is not None
        nbytes = bound.nbytes - self._offset
        self._count.value = nbytes // self._unit
        return nbytes


def make_node(index: int, command: Command, table: Table, data: Callable[[int], int]) -> Node:
    """Return the node of a command. `data(index)` tells where the data of an update lies."""
    return _MAKERS[type(command.work)](command.work, table, lambda: data(index))


def spans_of(work: Work) -> Sequence[Binding]:
    """Return the ranges that a command names."""
    if isinstance(work, Dispatch):
        return work.bindings
    if isinstance(work, Copy):
        return (work.source, work.target)
    if isinstance(work, (Fill, Update)):
        return (work.target,)
    return ()


def _kernel(work: Dispatch, table: Table, _data: Callable[[], int]) -> Node:
    function: CudaFunction = work.function  # type: ignore[assignment]
    addresses = [_address(binding, table) for binding in work.bindings]
    launch = function.launch(work.workgroups, addresses, work.constants, work.local_memory)
    cells = (c_void_p * len(addresses)).from_address(launch.params)
    words = [word for cell, binding in zip(cells, work.bindings, strict=True) for word in _word(cell or 0, binding)]
    structure = KernelNodeParams(launch.function, launch.grid, launch.block, launch.shared, launch.params)
    node = Node("kernel", structure, words, launch)
    node._launch = launch
    return node


def _fill(work: Fill, table: Table, _data: Callable[[], int]) -> Node:
    unit = len(work.pattern)
    count = _nbytes(work.target, table) // unit
    structure = memset_params(_address(work.target, table), int.from_bytes(work.pattern, "little"), unit, count)
    begin = addressof(structure)
    node = Node("fill", structure, _word(begin + MemsetNodeParams.target.offset, work.target))
    node.follow_length(work.target, c_size_t.from_address(begin + MemsetNodeParams.width.offset), unit)
    return node


def _copy(work: Copy, table: Table, _data: Callable[[], int]) -> Node:
    source = _address(work.source, table)
    structure = linear_copy(_address(work.target, table), source, _nbytes(work.source, table))
    begin = addressof(structure)
    words = [*_word(begin + _SOURCE, work.source), *_word(begin + _TARGET, work.target)]
    node = Node("copy", structure, words)
    node.follow_length(work.source, c_size_t.from_address(begin + Memcpy3D.width.offset), 1)
    return node


def _update(work: Update, table: Table, data: Callable[[], int]) -> Node:
    structure = linear_copy(_address(work.target, table), data(), len(work.data))
    return Node("copy", structure, _word(addressof(structure) + _TARGET, work.target))


_SIDE = type(Memcpy3D().source)
_SOURCE = Memcpy3D.source.offset + _SIDE.device.offset
_TARGET = Memcpy3D.target.offset + _SIDE.device.offset

_MAKERS: dict[type[Work], Callable[[Any, Table, Callable[[], int]], Node]] = {
    Dispatch: _kernel,
    Fill: _fill,
    Copy: _copy,
    Update: _update,
}


def _word(address: int, binding: Binding) -> list[Word]:
    """Return the word at an address, if it follows a slot."""
    if isinstance(binding, SlotSpan):
        return [Word(c_uint64.from_address(address), binding.index, binding.offset)]
    return []


def _address(binding: Binding, table: Table) -> int:
    if not isinstance(binding, SlotSpan):
        return address_of(binding)
    bound = table[binding.index]
    assert bound is not None
    return bound.address + binding.offset


def _nbytes(binding: Binding, table: Table) -> int:
    if not isinstance(binding, SlotSpan):
        return binding.nbytes
    bound = table[binding.index]
    assert bound is not None
    return bound.nbytes - binding.offset if binding.length is None else binding.length
