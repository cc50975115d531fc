"""The shortest way to bind a slot anew, in two forms that do the same: Python, and C where it was built.

A thousand nodes to change are a thousand calls of CUDA, 0.5 us each; in Python what is around each costs as much again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof, c_uint64
from itertools import chain
from typing import Any

from ._native import NODES, Native
from .submit import CompiledSubmit, Submit

Words = Any
"""Addresses inside of structures, as a form keeps them."""
Nodes = Any
"""Nodes of one kind and their structures, as a form keeps them."""


class Rebind:
    """The Python form."""

    def __init__(self, native: Native) -> None:
        self._native = native

    def words(self, cells: Sequence[tuple[c_uint64, int]]) -> Words:
        """Return words, each to be stored an offset behind an address, as `store` takes them."""
        return cells

    def nodes(self, pairs: Sequence[tuple[int, int]]) -> Nodes:
        """Return nodes, each with the address of its structure, as `change` takes them."""
        return pairs

    def store(self, words: Words, address: int) -> None:
        """Store an address into all words."""
        for cell, offset in words:
            cell.value = address + offset

    def change(self, kind: str, instance: int, nodes: Nodes, context: int) -> None:
        """Hand the structures of nodes of one kind over, for launches to come."""
        self._native.set_nodes(kind, instance, nodes, context)


class CompiledRebind(Rebind):
    """The C form. What it is given lies in arrays of 64-bit numbers, two for each word or node."""

    def __init__(self, native: Native, module: Any) -> None:
        super().__init__(native)
        self._store = module.store
        self._change = module.change
        self._functions = {kind: native.address(names[1]) for kind, names in NODES.items()}

    def words(self, cells: Sequence[tuple[c_uint64, int]]) -> Words:
        return array("Q", chain.from_iterable((addressof(cell), offset) for cell, offset in cells))

    def nodes(self, pairs: Sequence[tuple[int, int]]) -> Nodes:
        return array("Q", chain.from_iterable(pairs))

    def store(self, words: Words, address: int) -> None:
        begin, count = words.buffer_info()
        self._store(begin, count // 2, address)

    def change(self, kind: str, instance: int, nodes: Nodes, context: int) -> None:
        begin, count = nodes.buffer_info()
        code = self._change(self._functions[kind], instance, begin, count // 2, 0 if kind == "kernel" else context)
        if code:
            raise self._native.error(NODES[kind][1], code)


def rebind_for(native: Native, submit: Submit) -> Rebind:
    """Return the form that goes with a form of submitting."""
    if not isinstance(submit, CompiledSubmit):
        return Rebind(native)
    from . import _submit  # type: ignore[attr-defined]

    return CompiledRebind(native, _submit)
