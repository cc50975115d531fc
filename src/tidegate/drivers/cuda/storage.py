"""What the memory of a CUDA device is to the core: an address that lives as long as somebody refers to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tidegate.driver import Storage
from tidegate.errors import UnsupportedError
from tidegate.types import MemoryKind

from ._errors import OUT_OF_MEMORY, may_pass, translate
from ._native import NativeError
from .memory_account import Departure
from .page_locked import LockedBlock, Locking

if TYPE_CHECKING:
    from .device import CudaDevice
    from .memory_pools import CudaPool
    from .native.compiled import Event
    from .stream import Stream


ANY = -1
"""Whichever stream: of some users nobody knows which it is."""
_LEGACY = frozenset({0, 1})


class Consumers:
    """What runs on the streams that a block was given to, ours or other libraries': the block outlives that.

    They let go of memory when they need it no more for what they will submit; what they have submitted may still run.
    By then their stream may be gone, and CUDA does not check handles: to name one that was destroyed ends the process.
    So only the default stream, which is always there, and those of ours are named; for all others an event stands
    behind whatever the context runs at that moment. Drivers before CUDA 12.5 have no such event: there, other
    libraries must keep their stream for as long as the memory.

    Such an event is refused while somebody captures a stream. Then it is asked for again at the next look.

    Args:
        device: the device. The caller holds its lock, with the context current.
        streams: their handles; `ANY` for one that is not known.
        ours: whether they are ours, and there.

    """

    reached = 0

    def __init__(self, device: CudaDevice, streams: set[int], ours: bool = False) -> None:
        self._device = device
        self._events: list[Event] = []
        named = ours or not device.native.has("cuCtxRecordEvent")
        self._named = {max(each, 0) for each in streams if named or each in _LEGACY}
        self._whole = not named and not streams <= _LEGACY
        self._ask()

    def _ask(self) -> None:
        """Record what is not recorded yet."""
        native, context = self._device.native, self._device.context
        for stream in tuple(self._named):
            if self._record(native.record_event, stream):
                self._named.discard(stream)
        if self._whole and self._record(native.record_context, context):
            self._whole = False

    def _record(self, record: Callable[[int, int], None], place: int) -> bool:
        """Return whether no more is to be done about it."""
        try:
            event = self._device.event_pool.take()
            record(event.handle, place)
        except NativeError as error:
            return not may_pass(error)  # otherwise the device is lost, and the memory with it
        self._events.append(event)
        return True

    @property
    def idle(self) -> bool:
        """Whether all of it is over."""
        device = self._device
        with device.entered(), device.lock:
            self._ask()
            while self._events and self._over(self._events[-1]):
                device.event_pool.give(self._events.pop())
        return not self._events and self._known

    def _over(self, event: Event) -> bool:
        try:
            return self._device.native.event_over(event.handle)
        except NativeError as error:
            return not may_pass(error)

    @property
    def _known(self) -> bool:
        return not self._named and not self._whole

    def precede(self, stream: int) -> bool:
        """Have a stream wait for it, if there is an event for all of it. Under the lock, with the context current."""
        if not self._known:
            return False
        while self._events:
            self._device.native.wait_event(stream, self._events[-1].handle)
            self._device.event_pool.give(self._events.pop())
        return True


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

    def follow(self, device: CudaDevice, stream: int) -> bool:
        """Have a stream wait for what it must outlive, if that is known. Not under the pool's lock, in the context."""
        birth = self.birth
        if birth is None:
            return True
        with device.lock:
            users = birth if isinstance(birth, Consumers) else _on(device, birth)
            return users.precede(stream)

    def look(self, device: CudaDevice) -> None:
        """Nobody refers to it any more: find out what it must still outlive. Not under the pool's lock."""
        if self.exported:
            with device.entered(), device.lock:
                self.birth, self.epoch = Consumers(device, self.exported), 1
                self.exported = set()
        birth = self.birth
        if birth is not None and birth.idle and birth.reached < self.epoch and not isinstance(birth, Consumers):
            # An interrupt came between the allocation and its epoch: nothing but the stream's end tells of it.
            with device.entered(), device.lock:
                birth = self.birth = _on(device, birth)
                self.epoch = 1
        if birth is not None and (birth.reached >= self.epoch or (isinstance(birth, Consumers) and birth.idle)):
            self.birth = None


def _on(device: CudaDevice, stream: Stream) -> Consumers:
    """Return what is on a timeline's stream now. Under the device's lock, with the context current."""
    ours = stream.priority is not None and stream in device.all_streams()
    return Consumers(device, {stream.handle if ours else ANY}, ours)


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
