"""Memory of a CUDA device: stream-ordered pools for all of it, and page-locked memory for what the host shall see.

`device.allocate` allocates on a stream that carries nothing else and waits for that, so the memory is anybody's. Memory
that is allocated in queue order is allocated on the stream its submission goes to, and what is freed in queue order is
freed there: behind one another on one stream they use the same bytes without a wait. CUDA may not make a stream wait to
get at memory (`INTERNAL_DEPENDENCIES` is off), since nobody here would know of that wait.

A storage that is simply dropped leaves a note, and the next call to the pool frees it on the pool's own stream: nothing
in flight uses it. But a buffer may be closed before the stream has come to its allocation; then it is freed when that
is over.

Kinds "host" and "shared" are page-locked memory, cached on both sides. Not write-combined: uploads from it reach the
link's speed as it is, and the host reads such memory a hundred times slower.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate._core import process
from tidegate._core.background import deferred as reaper
from tidegate.driver import DriverPool, Storage
from tidegate.errors import ResourceExhaustedError, UnsupportedError
from tidegate.types import MemoryKind

from ._errors import OUT_OF_MEMORY, translate, translated
from ._native import Native, NativeError
from ._prototypes import PoolAttribute
from .encoding import NotNow
from .memory_account import Account, Departure
from .page_locked import LockedBlock, forget, reserve_of, size_class
from .storage import Block, CudaStorage, HostStorage, WrappedStorage, wrap

if TYPE_CHECKING:
    from .device import CudaDevice
    from .stream import Stream

__all__ = ["CudaPool", "CudaStorage", "HostStorage", "WrappedStorage", "wrap"]

_ALIGNMENT = 512
_ALL = 2**64 - 1
_LEGACY = 0


class CudaPool(DriverPool):
    """Memory with a budget. Thread safe. Under its lock there are short native calls only.

    Args:
        device: the device.
        budget: how many bytes may be handed out and kept; None for all there are.

    """

    def __init__(self, device: CudaDevice, budget: int | None) -> None:
        self._account = Account(budget)
        self._device = device
        self._native: Native = device.native
        self._lock = threading.RLock()
        self._pool = 0
        self._home = device.memory_stream
        self._live = 0
        self._returned: deque[Departure] = deque()
        self._young: list[Block] = []
        self._freeing: dict[int, Block] = {}
        self._closed = False
        self._process = process.here
        self.page_locked = reserve_of(device)

    # Allocating ------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, memory: MemoryKind) -> Storage:
        """Return storage that may be used at once. The context is current.

        Raises:
            ResourceExhaustedError: the budget does not allow it, or there is no more.
            UnsupportedError: another kind of memory.

        """
        if memory != "device":
            return self._allocate_host(nbytes, memory)
        storage = self._allocate(nbytes, None)
        self._native.synchronize_stream(self._home)  # nothing else is on it: it only makes the allocation true
        return storage

    def allocate_in_order(self, nbytes: int, memory: MemoryKind, stream: Stream) -> Storage:
        """Return storage for what comes behind on a stream. Under the device's lock, with the context current.

        Raises:
            NotNow: there may be room once the waits are over; or it takes a call that is too slow for this place.
            ResourceExhaustedError: as `allocate`, and nothing is waited for.

        """
        try:
            if memory == "device":
                return self._allocate(nbytes, stream)
            return self._allocate_host(nbytes, memory, kept_only=True)
        except ResourceExhaustedError:
            # Tried again later, it would be issued without its waits; so it stays held for them first.
            if stream.open_waits:
                raise NotNow from None
            raise

    def _allocate(self, nbytes: int, stream: Stream | None) -> CudaStorage:
        size = max(_ALIGNMENT, -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
        handle = self._home if stream is None else stream.handle
        self._look()
        with self._lock:
            self._collect()
            self._take(size, nbytes, handle)
            try:
                address = self._allocate_natively(size, handle)
            except BaseException:
                self._account.give_up(size)
                raise
            self._live += 1
            freed = self._freeing.pop(address, None)
            if freed is not None:
                freed.freed = True  # it is handed out again, so that free came through
                self._live -= 1
            return CudaStorage(self, Block(address, size, stream), nbytes)

    def _take(self, size: int, nbytes: int, handle: int) -> None:
        account = self._account
        if account.pooled >= size:
            account.take(size, from_kept=True)
            return
        departure = account.leaving_on(handle, size)
        if departure is not None:
            account.take_over(departure, size)
            return
        self._make_room(size, nbytes)
        account.take(size, from_kept=False)

    def _make_room(self, size: int, nbytes: int) -> None:
        account = self._account
        if not account.allows(size):
            self._drop_kept()
            if not account.allows(size):
                raise account.refusal(nbytes)

    def _allocate_natively(self, size: int, handle: int) -> int:
        if not self._pool:
            self._pool = self._make_pool()
        try:
            return self._native.allocate(size, self._pool, handle)
        except NativeError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        self._drop_kept()
        try:
            return self._native.allocate(size, self._pool, handle)
        except NativeError as error:
            raise translate(error, f"cannot allocate {size} bytes") from error

    def _make_pool(self) -> int:
        native = self._native
        native.primary_context(self._device.handle)  # storages may outlive the device, and the context has them
        pool = native.create_pool(self._device.handle)
        budget = self._account.budget
        native.set_pool(pool, PoolAttribute.RELEASE_THRESHOLD, _ALL if budget is None else budget)
        native.set_pool(pool, PoolAttribute.INTERNAL_DEPENDENCIES, 0)
        return pool

    def _allocate_host(self, nbytes: int, memory: MemoryKind, kept_only: bool = False) -> HostStorage:
        if memory not in ("host", "shared"):
            raise UnsupportedError(f"a CUDA device has no {memory!r} memory: it has device, host and shared")
        size = size_class(nbytes)
        self._look()
        with self._lock:
            self._collect()
            self._make_room(size, nbytes)
            self._account.take(size, from_kept=False)
        block: LockedBlock | None = None
        try:
            block = self.page_locked.take_kept(nbytes) if kept_only else self.page_locked.take(nbytes)
        except NativeError as error:
            raise translate(error, f"cannot allocate {nbytes} bytes of host memory") from error
        finally:
            if block is None:
                with self._lock:
                    self._account.give_up(size)
        if block is None:
            raise NotNow
        return HostStorage(self, block, nbytes, memory)

    # Freeing ---------------------------------------------------------------------------------------------------------

    def free_in_order(self, storage: CudaStorage, stream: Stream) -> None:
        """Free behind what is on a stream. Under the device's lock, with the context current; `freed` follows."""
        block = storage.block
        assert block is not None
        with self._lock:
            self._free(block, stream.handle)
            self._account.leave(block, stream.handle)

    def freed(self, storage: CudaStorage) -> None:
        """The free of a storage is over on the device. Again: nothing."""
        block = storage.block
        if block is None:
            return
        with self._lock:
            if block.freed:
                self._account.arrive(block)
                storage.block = None
        # Otherwise the free was refused or interrupted: it goes the way of what is dropped.
        self._device.sink.room()

    def take_back(self, departure: Departure) -> None:
        """Note what nobody refers to any more. Called by finalizers."""
        self._returned.append(departure)
        if self._process.forked or self._process.exiting:
            return
        if self._closed:
            reaper.leave(self._end_late)
            return
        sink = getattr(self._device, "sink", None)
        if sink is not None:
            sink.room()

    def _look(self) -> None:
        """See which allocations have been come to. Not under the lock: a stream may want the device's for that."""
        for departure in (*self._returned, *self._young):
            if isinstance(departure, Block):
                departure.look(self._device)

    def _collect(self) -> None:
        """Free what finalizers noted. Under the lock, with the context current."""
        while self._returned:
            departure = self._returned[0]
            if isinstance(departure, Block):
                self._settle(departure)
            else:
                self._account.arrive(departure, kept=False)
            del self._returned[0]
        if self._young:
            for block in [block for block in self._young if block.birth is None and not block.exported]:
                self._settle(block)
                self._young.remove(block)

    def _settle(self, block: Block) -> None:
        if not block.freed:
            if block.birth is not None or block.exported:
                if block not in self._young:
                    self._young.append(block)
                return
            try:
                self._free(block, self._home)
            except NativeError:
                block.freed = True  # the device is lost, and the memory with it
        self._account.arrive(block)

    def _free(self, block: Block, handle: int) -> None:
        """Free natively, once. A free that was interrupted is tried again, and refused if it had come through."""
        again = block.address in self._freeing
        self._freeing[block.address] = block
        try:
            self._native.free(block.address, handle)
        except NativeError:
            del self._freeing[block.address]
            if not again:
                raise
        block.freed = True
        self._live -= 1
        self._freeing.pop(block.address, None)

    def _drop_kept(self) -> None:
        """Have CUDA take back what it keeps for us."""
        if self._pool:
            self._native.synchronize_stream(self._home)
            self._native.trim_pool(self._pool)
        self._account.pooled = 0

    def trim(self) -> None:
        device = self._device
        self._look()
        with translated(f"device {device.info.uri!r}"), device.entered(), self._lock:
            self._collect()
            self._drop_kept()
        self.page_locked.release()

    def statistics(self) -> Mapping[str, int | None]:
        self._look()
        with self._lock:
            if (self._returned or self._young) and not self._closed and self._device.doomed is None:
                with self._device.entered():
                    self._collect()
            return self._account.statistics()

    # Its end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The device ends; nothing is in flight, the context is current. What lives is freed when it is let go."""
        self._look()
        self._leave_to_the_device()
        with self._lock:
            self._collect()
            self._home = _LEGACY
            self._closed = True
            if self._live == 0:
                self._destroy()
        forget(self._device)
        self.page_locked.release()

    def _leave_to_the_device(self) -> None:
        """Nobody will look again: have what is still used be freed behind that. The context is current."""
        blocks = [each for each in (*self._returned, *self._young) if isinstance(each, Block)]
        if all(block.birth is None for block in blocks):
            return
        stream = self._native.create_stream()  # it may wait for as long as it takes, and nothing else is behind that
        try:
            for block in blocks:
                if block.birth is not None and not block.freed and block.follow(self._device, stream):
                    with self._lock:
                        self._free(block, stream)
                    block.birth = None
        finally:
            self._native.destroy_stream(stream)  # which stops nothing

    def _end_late(self) -> None:
        """Free what was let go of after the device was closed, or the pool dropped; and behind the last, the pool."""
        device = self._device
        if device.doomed is not None:
            return
        try:
            with device.entered():
                self._look()
                self._leave_to_the_device()
                device.event_pool.trim()  # of a device that is closed nobody else would
                with self._lock:
                    self._collect()
                    if self._live == 0:
                        self._destroy()
        except NativeError:
            return  # nothing of it keeps the context any more
        if device.closed:
            self.page_locked.release()

    def _destroy(self) -> None:
        pool, self._pool = self._pool, 0
        if pool:
            self._native.destroy_pool(pool)
            self._account.pooled = 0
            self._native.release_primary_context(self._device.handle)

    def __del__(self) -> None:
        try:
            known = self._process
        except AttributeError:
            return
        if self._pool and not known.forked and not known.exiting and self._device.doomed is None:
            # Storages of it may be found to be garbage together with it, and let go of behind this.
            self._home = _LEGACY
            self._closed = True
            reaper.leave(self._end_late)
