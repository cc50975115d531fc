"""What the memory of a CUDA device is to the core: an address that lives as long as somebody refers to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tidegate.driver import Storage
from tidegate.errors import UnsupportedError
from tidegate.types import MemoryKind

from ._errors import OUT_OF_MEMORY, translate
from ._native import NativeError
from .memory_account import Departure
from .page_locked import LockedBlock, Locking

if TYPE_CHECKING:
    from .device import CudaDevice
    from .memory_pools import CudaPool
    from .stream import Stream


class Consumers:
    """What other libraries have on the streams that an exported block was given to: the block outlives that.

    They let go of memory when they need it no more for what they will submit; what they have submitted may still run.
    """

    reached = 0

    def __init__(self, device: CudaDevice, streams: set[int]) -> None:
        self._device = device
        self._events = []
        for stream in streams:
            event = device.event_pool.take()
            try:
                device.native.record_event(event.handle, stream)
            except NativeError:
                device.event_pool.give(event)  # the stream is gone, and what was on it
            else:
                self._events.append(event)

    @property
    def idle(self) -> bool:
        """Whether all of it is over."""
        device = self._device
        with device.entered(), device.lock:
            while self._events and device.native.event_over(self._events[-1].handle):
                device.event_pool.give(self._events.pop())
        return not self._events


class Block(Departure):
    """Memory of a native pool.

    Attributes:
        address: where it lies.
        birth: what it must not be freed before: the stream whose order it was allocated in, while the host does not
            know that it has come to that; or those whom it was exported to.
        exported: the streams of other libraries that it was given to.
        epoch: the epoch that tells.
        freed: whether CUDA has been told to free it.

    """

    __slots__ = ("address", "birth", "epoch", "exported", "freed")

    def __init__(self, address: int, size: int, birth: Stream | None) -> None:
        super().__init__(size)
        self.address = address
        self.exported: set[int] = set()
        self.birth: Stream | Consumers | None = birth
        self.epoch = 0 if birth is None else birth.issued + 1
        self.freed = False

    def look(self, device: CudaDevice) -> None:
        """Nobody refers to it any more: find out what it must still outlive. Not under the pool's lock."""
        if self.exported:
            with device.entered(), device.lock:
                streams, self.exported = self.exported, set()
                self.birth, self.epoch = Consumers(device, streams), 1
        birth = self.birth
        if birth is not None and birth.idle and birth.reached < self.epoch and not isinstance(birth, Consumers):
            # An interrupt came between the allocation and its epoch: nothing but the stream's end tells of it.
            with device.entered(), device.lock:
                birth = self.birth = Consumers(device, {birth.handle})
                self.epoch = 1
        if birth is not None and (birth.reached >= self.epoch or (isinstance(birth, Consumers) and birth.idle)):
            self.birth = None


class CudaStorage(Storage):
    """Memory of the device, as long as anything refers to it."""

    __slots__ = ("address", "block", "memory", "nbytes", "pool")

    def __init__(self, pool: CudaPool, block: Block, nbytes: int) -> None:
        self.pool = pool
        self.block: Block | None = block
        self.address = block.address
        self.nbytes = nbytes
        self.memory: MemoryKind = "device"

    def __del__(self) -> None:
        try:
            pool, block = self.pool, self.block
        except AttributeError:
            return  # interrupted in the constructor
        if block is not None:
            pool.take_back(block)


class _VisibleStorage(Storage):
    """Memory that the host sees too, at the same address."""

    __slots__ = ("__array_interface__", "address", "memory", "nbytes")

    def __init__(self, address: int, nbytes: int, memory: MemoryKind) -> None:
        self.address = address
        self.nbytes = nbytes
        self.memory = memory
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def host(self) -> npt.NDArray[np.uint8]:
        # Through __array_interface__ the array's base is this object, so that any view keeps the memory.
        return np.asarray(self)


class HostStorage(_VisibleStorage):
    """Page-locked memory."""

    __slots__ = ("_block", "_departure", "_pool")

    def __init__(self, pool: CudaPool, block: LockedBlock, nbytes: int, memory: MemoryKind) -> None:
        super().__init__(block.address, nbytes, memory)
        self._departure = Departure(block.nbytes)
        self._pool = pool
        self._block = block

    def __del__(self) -> None:
        try:
            pool, block, departure = self._pool, self._block, self._departure
        except AttributeError:
            return
        pool.page_locked.give(block)
        pool.take_back(departure)


class WrappedStorage(_VisibleStorage):
    """An array of somebody else."""

    __slots__ = ("_array", "_device", "_locking")

    def __init__(self, device: CudaDevice, array: npt.NDArray[np.uint8], locking: Locking | None) -> None:
        super().__init__(array.ctypes.data, array.nbytes, "shared")
        self._array = array
        self._device = device
        self._locking = locking

    def __del__(self) -> None:
        try:
            locking, device = self._locking, self._device
        except AttributeError:
            return
        if locking is not None:
            device.default_pool.page_locked.unregister(locking)


def wrap(device: CudaDevice, array: npt.NDArray[np.uint8]) -> Storage:
    """Return storage over a host array, which stays where it is and is page-locked there. The context is current.

    Raises:
        UnsupportedError: the array is read-only, or CUDA cannot lock its pages.

    """
    if not array.flags.writeable:
        raise UnsupportedError("a CUDA device cannot use a read-only array where it lies: upload it")
    if array.nbytes == 0:
        return WrappedStorage(device, array, None)
    try:
        locking = device.default_pool.page_locked.register(array)
    except NativeError as error:
        if error.code == OUT_OF_MEMORY:
            raise translate(error) from error
        raise UnsupportedError(f"a CUDA device cannot lock the pages of this array: {error}") from error
    return WrappedStorage(device, array, locking)
