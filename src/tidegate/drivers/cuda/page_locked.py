"""Page-locked host memory of the process: taken from CUDA in blocks, cut up, kept, and given back only at rest.

To get such memory is slow (0.6 ms a MiB) but waits for nothing. To give it back, or to undo a registration, waits until
nothing runs on the GPU, and, measured, holds a lock of CUDA's meanwhile: a call of another thread that keeps the GIL
then stands still with it, and if what runs waits for this process, for ever. So memory is kept for whoever needs some
next, one reserve per GPU for all devices that are open on it, and CUDA gets it back only while no open device has work
in flight and none can begin any: at `trim`, and when a device is closed. What other libraries have running there only
costs time.

A reserve keeps the primary context as long as it has memory, because that would take the memory with it, and arrays
over it may outlive the device they were mapped from (M25).
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidegate._core import process
from tidegate._core.background import deferred as reaper

from ._native import Native, NativeError
from .native.compiled import Gaps, Piece

if TYPE_CHECKING:
    from .device import CudaDevice

SLAB = 2 << 20
SMALL = 64 << 10
"""Requests up to that size share a block."""
ALIGNMENT = 256
_PAGE = 4096


class Slab:
    """A block of page-locked memory that small requests share."""

    __slots__ = ("address", "gaps")

    def __init__(self, address: int) -> None:
        self.address = address
        self.gaps = Gaps(SLAB)


class LockedBlock:
    """Page-locked memory that was handed out."""

    __slots__ = ("address", "nbytes", "piece", "slab")

    def __init__(self, address: int, nbytes: int, slab: Slab | None = None, piece: Piece | None = None) -> None:
        self.address = address
        self.nbytes = nbytes
        self.slab = slab
        self.piece = piece


class Registration:
    """Memory of somebody else that was page-locked here; `keep` are the arrays over it, until that is undone.

    Memory that went back to the system while it is registered would leave CUDA copying from pages that are not there.
    """

    __slots__ = ("address", "keep", "nbytes", "users")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.users = 0
        self.keep: list[Any] = []


class Locking:
    """One use of a registration."""

    __slots__ = ("ended", "registration")

    def __init__(self, registration: Registration) -> None:
        self.registration = registration
        self.ended = False


class PageLocked:
    """The reserve of one GPU. Any thread may use it; what may call CUDA wants the context current.

    Args:
        native: the way to CUDA.
        device: the native device.

    """

    def __init__(self, native: Native, device: int) -> None:
        self._native = native
        self._device = device
        self._process = process.here
        self._context = 0
        self._lock = threading.RLock()
        self._kept: dict[int, list[int]] = {}
        self._slabs: list[Slab] = []
        self._blocks = 0
        self._returned: deque[LockedBlock | Locking] = deque()
        self._registrations: dict[int, Registration] = {}

    # Taking and giving -----------------------------------------------------------------------------------------------

    def take(self, nbytes: int) -> LockedBlock:
        """Return memory. May take a while, but waits for no work."""
        found = self.take_kept(nbytes)
        if found is not None:
            return found
        if nbytes > SMALL or self._lock._is_owned():  # type: ignore[attr-defined]
            size = size_class(nbytes)
            return LockedBlock(self._new(size), size)
        slab = Slab(self._new(SLAB))
        with self._lock:
            piece = slab.gaps.take(size_class(nbytes), ALIGNMENT)
            assert piece is not None
            self._slabs.append(slab)
        return LockedBlock(slab.address + piece.begin, size_class(nbytes), slab, piece)

    def take_kept(self, nbytes: int) -> LockedBlock | None:
        """Return memory without asking CUDA for any; None: there is none."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return None  # a finalizer or a signal handler in the middle of another call
        size = size_class(nbytes)
        with self._lock:
            self._collect()
            if nbytes > SMALL:
                kept = self._kept.get(size)
                return LockedBlock(kept.pop(), size) if kept else None
            for slab in self._slabs:
                piece = slab.gaps.take(size, ALIGNMENT)
                if piece is not None:
                    return LockedBlock(slab.address + piece.begin, size, slab, piece)
        return None

    def give(self, block: LockedBlock) -> None:
        """Take memory back. Callable from finalizers."""
        self._returned.append(block)

    def _new(self, nbytes: int) -> int:
        with self._lock:
            self._hold_context()
            self._blocks += 1  # before: who releases meanwhile must not let the context go
        try:
            return self._native.allocate_host(nbytes)
        except BaseException:
            with self._lock:
                self._blocks -= 1
            raise

    def _hold_context(self) -> None:
        if not self._context:
            self._context = self._native.primary_context(self._device)
        _lingering.add(self)

    def _collect(self) -> None:
        while self._returned:
            self._put_away(self._returned[0])
            del self._returned[0]

    def _put_away(self, returned: LockedBlock | Locking) -> None:
        """Again, after an interrupt: nothing."""
        if isinstance(returned, Locking):
            if not returned.ended:
                returned.ended = True
                returned.registration.users -= 1
        elif returned.slab is not None and returned.piece is not None:
            returned.slab.gaps.give(returned.piece)
        elif returned.nbytes:
            nbytes, returned.nbytes = returned.nbytes, 0
            self._kept.setdefault(nbytes, []).append(returned.address)

    # Memory of others ------------------------------------------------------------------------------------------------

    def register(self, array: npt.NDArray[np.uint8]) -> Locking | None:
        """Page-lock an array, or share in what is; None: somebody else has done it, and keeps it so.

        Raises:
            NativeError: CUDA does not take it.

        """
        address = array.ctypes.data
        with self._lock:
            self._collect()
            found = self._registered(address, array.nbytes)
            if found is None:
                if self.is_locked(address, array.nbytes):
                    return None
                self._hold_context()
                self._native.register_host(address, array.nbytes)
                found = self._registrations[address] = Registration(address, array.nbytes)
            found.keep.append(array)
            found.users += 1
        return Locking(found)

    def _registered(self, address: int, nbytes: int) -> Registration | None:
        for known in self._registrations.values():
            if known.address <= address and address + nbytes <= known.address + known.nbytes:
                return known
        return None

    def unregister(self, locking: Locking) -> None:
        """End one use. Callable from finalizers."""
        self._returned.append(locking)
        if not self._process.forked and not self._process.exiting:
            reaper.leave(self.release)

    def is_locked(self, address: int, nbytes: int) -> bool:
        """Whether CUDA may copy from or to this host memory on its own."""
        native = self._native
        return native.is_page_locked(address) and native.is_page_locked(address + nbytes - 1)

    # Giving back to CUDA ---------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Give CUDA back what is not in use, if no open device has work in flight. Under no lock of ours."""
        try:
            at_rest(self._release)
        except NativeError:
            pass  # the context is lost, and the memory with it

    def _release(self) -> None:
        with self._lock:
            self._collect()
            if not self._context:
                return
            self._native.push_context(self._context)
            try:
                self._undo_registrations()
                self._free_kept()
            finally:
                self._native.pop_context()
            if self._blocks == 0 and not self._registrations:
                _lingering.discard(self)
                self._context = 0
                self._native.release_primary_context(self._device)

    def _undo_registrations(self) -> None:
        for registration in [each for each in self._registrations.values() if each.users <= 0]:
            del self._registrations[registration.address]
            _quietly(self._native.unregister_host, registration.address)

    def _free_kept(self) -> None:
        for addresses in self._kept.values():
            while addresses:
                self._free(addresses.pop())
        for slab in [slab for slab in self._slabs if slab.gaps.free == SLAB]:
            self._slabs.remove(slab)
            self._free(slab.address)

    def _free(self, address: int) -> None:
        self._blocks -= 1
        _quietly(self._native.free_host, address)


def size_class(nbytes: int) -> int:
    """Return the size of what serves `nbytes`: whole pages if it has a block of its own, at most an eighth more."""
    if nbytes <= SMALL:
        return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
    step = max(_PAGE, 1 << (nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def _quietly(call: Callable[[int], None], address: int) -> None:
    try:
        call(address)
    except NativeError:
        pass  # a lost device: the memory goes with the process


# The devices that share a reserve -----------------------------------------------------------------------------------

_open: weakref.WeakSet[CudaDevice] = weakref.WeakSet()
_reserves: weakref.WeakValueDictionary[tuple[int, int], PageLocked] = weakref.WeakValueDictionary()
_lingering: set[PageLocked] = set()
"""Reserves that have memory of CUDA's, kept here although no device may be open any more."""
_table = threading.RLock()


def reserve_of(device: CudaDevice) -> PageLocked:
    """Return the reserve that an open device shares."""
    key = (id(device.native), device.handle)
    with _table:
        found = _reserves.get(key)
        if found is None:
            found = _reserves[key] = PageLocked(device.native, device.handle)
        return found


def join(device: CudaDevice) -> None:
    """A device is open: from now on it may have work in flight."""
    with _table:
        _open.add(device)
        _count_peers()


def forget(device: CudaDevice) -> None:
    """A device is being closed: nothing is in flight on it, and nothing will be."""
    with _table:
        _open.discard(device)
        _count_peers()


def _count_peers() -> None:
    """Tell each how many are open on its GPU."""
    for device in _open:
        device.peers = sum(other.ordinal == device.ordinal for other in _open)


def open_devices() -> list[CudaDevice]:
    """Return the devices that are open and not lost, in an order in which their locks may be taken."""
    with _table:
        return sorted((device for device in _open if device.doomed is None), key=id)


def at_rest(then: Callable[[], None]) -> bool:
    """Call `then` while no open device has work in flight and none can begin any; if one has, return False."""
    with _table:  # a device that is opened meanwhile waits
        return _all_locked(open_devices(), then)


def _all_locked(devices: list[CudaDevice], then: Callable[[], None], held: int = 0) -> bool:
    if held == len(devices):
        then()
        return True
    with devices[held].lock:
        return not busy(devices[held]) and _all_locked(devices, then, held + 1)


def busy(device: CudaDevice) -> bool:
    """Whether a device has work in flight."""
    return device.transfers.busy or any(stream.state.lent or not stream.idle for stream in device.all_streams())


def _renew_in_child() -> None:
    """In a forked child there is none of this: another thread of the parent may have had the lock."""
    _table._at_fork_reinit()  # type: ignore[attr-defined]
    _open.clear()
    _reserves.clear()
    _lingering.clear()


process.in_child(_renew_in_child)
