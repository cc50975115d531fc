"""Memory of the simulated machine: stream-ordered pools, page-locked memory, and who may touch what when.

There are two views of a block. The host's: allocated from the call of `allocate` to the call of `free`; sizes,
statistics and refusals go by it. And the device's: live from when the stream *reaches* the allocation to when it
reaches the free; work that touches memory is held against that one at the moment it runs.
"""

from __future__ import annotations

import ctypes

from ...drivers.cuda._prototypes import PoolAttribute
from .arena import ALIGNMENT, is_whole, poison, renew
from .codes import (
    HOST_MEMORY_ALREADY_REGISTERED,
    HOST_MEMORY_NOT_REGISTERED,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    Fault,
    Refusal,
)
from .machine import Card, Machine
from .op import Op
from .stream import Stream

GRANULARITY = 32 << 20
"""Pools take memory from the device in pieces of that size (measured)."""

STAGED = 1 << 20
"""A copy from pageable memory of up to so many bytes, at least, is taken at the call and does not block it."""


class Block:
    """Memory of a pool. `nbytes` and `free_op` are the host's view, `live` and `awaited` the device's."""

    def __init__(self, pool: Pool, start: int, capacity: int) -> None:
        self.pool = pool
        self.start = start
        self.capacity = capacity
        self.nbytes = 0
        self.free_op: Op | None = None
        self.live = False
        self.awaited = 0

    def is_free_for(self, stream: Stream, pool: Pool) -> bool:
        """Whether work on a stream may have it without waiting for anything new."""
        op = self.free_op
        assert op is not None
        if op.stream is stream:
            return True
        if op.number <= op.stream.synchronised or (op.over and pool.attributes[PoolAttribute.OPPORTUNISTIC]):
            return True
        follow = pool.attributes[PoolAttribute.FOLLOW_EVENTS]
        return bool(follow) and stream.behind.get(op.stream, 0) >= op.number

    def reach(self, nbytes: int) -> None:
        """The stream is at the allocation."""
        with self.pool.card.machine.lock:
            self.awaited -= 1
            self.live = True
            renew(self.start, nbytes)

    def leave(self, nbytes: int) -> None:
        """The stream is at the free."""
        machine = self.pool.card.machine
        if not self.live:
            machine.violation("memory was freed before its allocation was reached")
        elif not is_whole(self.start, nbytes):
            machine.violation(f"something wrote past the end of an allocation of {nbytes} bytes")
        poison(self.start, nbytes)
        self.live = False


class Pool:
    """Stream-ordered memory of a card."""

    def __init__(self, card: Card, max_size: int) -> None:
        self.card = card
        self.max_size = _pieces(max_size) if max_size else card.memory
        self.cached: list[Block] = []
        self.footprint = 0
        self.destroyed = False
        kind = PoolAttribute
        self.attributes = dict.fromkeys((kind.RELEASE_THRESHOLD, kind.RESERVED, kind.RESERVED_HIGH), 0)
        self.attributes |= {kind.USED: 0, kind.USED_HIGH: 0}
        self.attributes |= dict.fromkeys((kind.FOLLOW_EVENTS, kind.OPPORTUNISTIC, kind.INTERNAL_DEPENDENCIES), 1)

    @property
    def threshold(self) -> int:
        """How many bytes it keeps when somebody synchronises."""
        return self.attributes[PoolAttribute.RELEASE_THRESHOLD]

    def get(self, attribute: int) -> int:
        """Return an attribute."""
        if attribute not in self.attributes:
            raise Refusal(INVALID_VALUE)
        return self.attributes[attribute]

    def set(self, attribute: int, value: int) -> None:
        """Set an attribute: a permission, the threshold, or a high-water mark back to nothing."""
        marks = (PoolAttribute.RESERVED_HIGH, PoolAttribute.USED_HIGH)
        if attribute not in self.attributes or attribute in (PoolAttribute.RESERVED, PoolAttribute.USED):
            raise Refusal(INVALID_VALUE)
        if attribute in marks and value:
            raise Refusal(INVALID_VALUE)
        # A mark falls to what there is, not to nothing.
        self.attributes[attribute] = self.attributes[attribute - 1] if attribute in marks else value

    def allocate(self, nbytes: int, stream: Stream) -> int:
        """Allocate in stream order; nothing is at no address."""
        if nbytes == 0:
            return 0
        with self.card.machine.lock:
            block = self._reuse(nbytes, stream) or self._grow(nbytes)
            if block is None:
                self.shrink(0)
                block = self._grow(nbytes)
        block = block or self._depend(nbytes, stream)
        if block is None:
            raise Refusal(OUT_OF_MEMORY)
        block.nbytes = nbytes
        with self.card.machine.lock:
            block.awaited += 1
        self._use(nbytes)
        self.card.blocks[block.start] = block
        self.card.allocated.add(block.start)
        stream.put(lambda: block.reach(nbytes))
        return block.start

    def free(self, block: Block, stream: Stream) -> None:
        """Free in stream order. The statistics fall at once, whatever still runs (measured)."""
        nbytes = block.nbytes
        self.card.allocated.discard(block.start)
        block.free_op = stream.put(lambda: block.leave(nbytes))
        self._use(-nbytes)
        self.cached.append(block)

    def shrink(self, keep: int) -> None:
        """Give back to the device what is free, as long as at least `keep` bytes are left."""
        if self.attributes[PoolAttribute.RESERVED] <= keep:
            return
        for block in list(self.cached):
            over = block.free_op is not None and block.free_op.over
            if over and _pieces(self.footprint - block.capacity) >= keep:
                self.cached.remove(block)
                del self.card.blocks[block.start]
                self.card.arena.release(block.start)
                self._reserve(-block.capacity)

    def _reuse(self, nbytes: int, stream: Stream) -> Block | None:
        fitting = [
            block
            for block in self.cached
            if nbytes <= block.capacity <= max(2 * nbytes, 4096) and block.is_free_for(stream, self)
        ]
        return self._take(min(fitting, key=lambda block: block.capacity)) if fitting else None

    def _grow(self, nbytes: int) -> Block | None:
        capacity = -(-nbytes // ALIGNMENT) * ALIGNMENT
        reserved = _pieces(self.footprint + capacity)
        growth = reserved - self.attributes[PoolAttribute.RESERVED]
        if reserved > self.max_size or self.card.reserved + growth > self.card.memory:
            return None
        start = self.card.arena.allocate(capacity)
        if start is None:
            return None
        self._reserve(capacity)
        return Block(self, start, capacity)

    def _depend(self, nbytes: int, stream: Stream) -> Block | None:
        """Where all else fails: have the stream wait for a free on another one (measured)."""
        if not self.attributes[PoolAttribute.INTERNAL_DEPENDENCIES]:
            return None
        for block in self.cached:
            if block.capacity >= nbytes and block.free_op is not None:
                self._take(block)
                stream.wait(block.free_op)
                return block
        return None

    def _take(self, block: Block) -> Block:
        self.cached.remove(block)
        return block

    def _reserve(self, nbytes: int) -> None:
        kind = PoolAttribute
        self.footprint += nbytes
        before = self.attributes[kind.RESERVED]
        self.attributes[kind.RESERVED] = now = _pieces(self.footprint)
        self.attributes[kind.RESERVED_HIGH] = max(now, self.attributes[kind.RESERVED_HIGH])
        self.card.reserved += now - before

    def _use(self, nbytes: int) -> None:
        kind = PoolAttribute
        self.attributes[kind.USED] += nbytes
        self.attributes[kind.USED_HIGH] = max(self.attributes[kind.USED], self.attributes[kind.USED_HIGH])


def _pieces(nbytes: int) -> int:
    return -(-nbytes // GRANULARITY) * GRANULARITY


def allocated_block(machine: Machine, address: int) -> Block:
    """Return the block that the host has allocated at exactly this address."""
    for card in machine.cards:
        if address in card.allocated:
            block: Block = card.blocks[address]
            return block
    raise Refusal(INVALID_VALUE)


def kind_of(machine: Machine, address: int) -> tuple[str, int]:
    """Return what an address is, and of which device: "device", "pinned", "pageable", or "" for none."""
    for card in machine.cards:
        if address in card.arena:
            return "device", card.index
    if address in machine.host or _registration(machine, address) is not None:
        return "pinned", 0
    return ("pageable", 0) if address >= 4096 else ("", 0)


def check_range(machine: Machine, address: int, nbytes: int) -> str:
    """Refuse a range that is not all in one allocation of the host's view (measured); returns its kind."""
    kind, index = kind_of(machine, address)
    if not kind:
        raise Refusal(INVALID_VALUE)
    if kind == "device":
        card = machine.cards[index]
        found = card.arena.find(address)
        start = found[0] if found else 0
        if start in card.allocated and address + nbytes > start + card.blocks[start].nbytes:
            raise Refusal(INVALID_VALUE)
    elif address in machine.host:
        found = machine.host.find(address)
        if found is None or address + nbytes > sum(found):
            raise Refusal(INVALID_VALUE)
    return kind


def touch(card: Card, address: int, nbytes: int, by: str, pageable: bool) -> None:
    """Hold an access of running work against the device's view; a wrong one is a fault."""
    machine = card.machine
    with machine.lock:
        for other in machine.cards:
            if address in other.arena:
                if other is not card and not pageable:
                    raise Fault(ILLEGAL_ADDRESS)  # no peer access; copies go between cards all the same
                _touch_block(other, address, nbytes, by)
                return
        if address in machine.host:
            if machine.host.find(address) is None:
                raise Fault(ILLEGAL_ADDRESS)
        elif _registration(machine, address) is None and not pageable:
            raise Fault(ILLEGAL_ADDRESS)


def _touch_block(card: Card, address: int, nbytes: int, by: str) -> None:
    found = card.arena.find(address)
    if found is None:
        raise Fault(ILLEGAL_ADDRESS)
    block: Block = card.blocks[found[0]]
    if not block.live:
        if not block.awaited:
            raise Fault(ILLEGAL_ADDRESS)
        card.machine.violation(f"{by} used memory before the stream that allocates it had come to the allocation")
    if address + nbytes > block.start + block.capacity:
        raise Fault(ILLEGAL_ADDRESS)


def copy_now(card: Card, target: int, source: int, nbytes: int) -> None:
    """Copy, on the device."""
    touch(card, target, nbytes, "a copy", True)
    touch(card, source, nbytes, "a copy", True)
    ctypes.memmove(target, source, nbytes)


def fill_now(card: Card, address: int, pattern: bytes, count: int) -> None:
    """Fill, on the device."""
    total = len(pattern) * count
    touch(card, address, total, "a fill", False)
    if len(set(pattern)) == 1:
        ctypes.memset(address, pattern[0], total)
        return
    done = min(total, 4096 // len(pattern) * len(pattern))
    ctypes.memmove(address, pattern * (done // len(pattern)), done)
    while done < total:
        step = min(done, total - done)
        ctypes.memmove(address + done, address, step)
        done += step


def allocate_host(machine: Machine, nbytes: int) -> int:
    """Allocate page-locked memory."""
    with machine.lock:
        start = machine.host.allocate(nbytes) if nbytes else 0
    if start is None:
        raise Refusal(OUT_OF_MEMORY)
    return start


def register(machine: Machine, address: int, nbytes: int) -> None:
    """Page-lock somebody else's memory."""
    with machine.lock:
        if nbytes == 0:
            raise Refusal(INVALID_VALUE)
        if address in machine.host or _is_read_only(address):
            raise Refusal(INVALID_VALUE)
        if any(start < address + nbytes and address < start + n for start, n in machine.registered.items()):
            raise Refusal(HOST_MEMORY_ALREADY_REGISTERED)
        machine.registered[address] = nbytes


def _is_read_only(address: int) -> bool:
    """Whether memory of this process may only be read, where the system tells."""
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
            for line in file:
                bounds, permissions = line.split(maxsplit=2)[:2]
                start, end = (int(bound, 16) for bound in bounds.split("-"))
                if start <= address < end:
                    return "w" not in permissions
    except OSError:
        pass
    return False


def check_registered(machine: Machine, address: int) -> None:
    """Refuse to undo what was not done; memory that came page-locked is another matter (measured)."""
    if address in machine.registered:
        return
    known = address in machine.host or _registration(machine, address) is not None
    raise Refusal(INVALID_VALUE if known else HOST_MEMORY_NOT_REGISTERED)


def unregister(machine: Machine, address: int) -> None:
    """Undo it."""
    with machine.lock:
        machine.registered.pop(address, None)


def _registration(machine: Machine, address: int) -> int | None:
    for start, nbytes in machine.registered.items():
        if start <= address < start + nbytes:
            return start
    return None
