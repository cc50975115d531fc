"""Memory of the simulation: pools, page-locked memory, fills and copies."""

from __future__ import annotations

import ctypes

from ...drivers.cuda._prototypes import PoolAttribute
from . import memory
from .calls import Calls, call
from .codes import INVALID_VALUE, Refusal
from .launches import copy_work, fill_work
from .memory import Pool


class MemoryCalls(Calls):
    """As in `Native`."""

    @call("cuMemPoolCreate")
    def create_pool(self, device: int, max_size: int = 0) -> int:
        """Create a pool of stream-ordered memory; 0: as much as the device has."""
        card = self._device(device)
        created = Pool(card, max_size)
        card.pools.append(created)
        pool = self.machine.add(created)
        self.counts["pools"] += 1
        return pool

    @call("cuMemPoolDestroy")
    def destroy_pool(self, pool: int) -> None:
        """Destroy a pool; its memory goes when what was allocated from it is freed."""
        destroyed = self.machine.remove(Pool, pool, INVALID_VALUE)
        destroyed.set(PoolAttribute.RELEASE_THRESHOLD, 0)
        destroyed.destroyed = True
        with self.machine.lock:
            destroyed.card.shrink_pools()
        self.counts["pools"] -= 1

    @call("cuMemPoolSetAttribute")
    def set_pool(self, pool: int, attribute: int, value: int) -> None:
        """Set an attribute of a pool."""
        self.machine.find(Pool, pool, INVALID_VALUE).set(attribute, value)

    @call("cuMemPoolGetAttribute")
    def pool_attribute(self, pool: int, attribute: int) -> int:
        """Return an attribute of a pool."""
        value: int = self.machine.find(Pool, pool, INVALID_VALUE).get(attribute)
        return value

    @call("cuMemPoolTrimTo")
    def trim_pool(self, pool: int, keep: int = 0) -> None:
        """Give back what a pool keeps beyond `keep` bytes."""
        trimmed = self.machine.find(Pool, pool, INVALID_VALUE)
        with self.machine.lock:
            trimmed.shrink(keep)

    @call("cuMemAllocFromPoolAsync", "handle")
    def allocate(self, nbytes: int, pool: int, stream: int) -> int:
        """Allocate in stream order."""
        found, place = self.machine.find(Pool, pool, INVALID_VALUE), self._stream(stream)
        if found.card is not place.card:
            raise Refusal(INVALID_VALUE)
        address: int = found.allocate(nbytes, place)
        self.counts["allocations"] += 1
        return address

    @call("cuMemFreeAsync", "handle")
    def free(self, address: int, stream: int) -> None:
        """Free in stream order."""
        place = self._stream(stream)
        if address:
            block = memory.allocated_block(self.machine, address)
            block.pool.free(block, place)
        self.counts["allocations"] -= 1

    @call("cuMemHostAlloc", "context")
    def allocate_host(self, nbytes: int, write_combined: bool = False) -> int:
        """Allocate page-locked host memory that every device sees at the same address. May block."""
        address = memory.allocate_host(self.machine, nbytes)
        self.counts["pinned"] += 1
        return address

    @call("cuMemFreeHost", "handle")
    def free_host(self, address: int) -> None:
        """Free page-locked memory. Blocks while work runs."""
        if address:  # freeing nothing is no mistake
            if self.machine.host.size(address) is None:
                raise Refusal(INVALID_VALUE)
            self._drain("cuMemFreeHost", self.machine.cards)
            with self.machine.lock:
                whole = self.machine.host.release(address)
            if not whole:
                self.machine.violation("something wrote past the end of page-locked memory")
        self.counts["pinned"] -= 1

    @call("cuMemHostRegister_v2", "context")
    def register_host(self, address: int, nbytes: int) -> None:
        """Page-lock memory of somebody else. Slow."""
        memory.register(self.machine, address, nbytes)
        self.counts["registered"] += 1

    @call("cuMemHostUnregister", "handle")
    def unregister_host(self, address: int) -> None:
        """Undo that."""
        memory.check_registered(self.machine, address)
        self._drain("cuMemHostUnregister", self.machine.cards)  # measured: it blocks as free_host does
        memory.unregister(self.machine, address)
        self.counts["registered"] -= 1

    @call("cuPointerGetAttribute")
    def pointer_device(self, address: int) -> int:
        """Return the number of the device that an address belongs to."""
        kind, index = memory.kind_of(self.machine, address)
        if kind not in ("device", "pinned"):
            raise Refusal(INVALID_VALUE)
        return index

    @call("cuPointerGetAttribute")
    def is_page_locked(self, address: int) -> bool:
        """Whether a host address is known to CUDA."""
        return memory.kind_of(self.machine, address)[0] == "pinned"

    @call("cuMemsetAsync", "handle")
    def fill(self, address: int, value: int, element: int, count: int, stream: int) -> None:
        """Store an element of 1, 2 or 4 bytes `count` times."""
        place = self._stream(stream)
        if count:
            work = fill_work(self.machine, address, value, element, count)
            place.put(lambda: work(place.card), 1)

    @call("cuMemcpyAsync", "handle")
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two addresses that CUDA knows. From or to other host memory it may block."""
        place = self._stream(stream)
        if not nbytes:
            return
        work, kinds = copy_work(self.machine, target, source, nbytes)
        if "pageable" in kinds:
            self.machine.violation("a copy from or to memory that is not page-locked: it may block its caller")
        if kinds[1] == "pageable" and kinds[0] != "pageable" and nbytes <= memory.STAGED:
            # Measured: that little is taken at the call, and the caller goes on.
            kept = ctypes.create_string_buffer(ctypes.string_at(source, nbytes), nbytes)
            work, _ = copy_work(self.machine, target, ctypes.addressof(kept), nbytes)
            place.put(lambda: (kept, work(place.card))[1], 1)
            return
        op = place.put(lambda: work(place.card), 1)
        if "pageable" in kinds:
            op.sleep()
            self._check_fault(place.card)
