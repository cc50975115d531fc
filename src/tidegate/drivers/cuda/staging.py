"""The staging ring: small host data on its way to a device and back (M28).

CUDA copies on its own only from and to page-locked memory. Small data goes through a ring of it: it is copied there
when its submission is issued, or out of it when that is over, and the space comes back with each submission. What
finds no room there gets page-locked memory of its own: it must not wait for others (M15, M28). Large data goes through
the transfer engine.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from ._errors import OUT_OF_MEMORY
from ._native import NativeError
from .encoding import NotNow
from .native.compiled import Gaps, Piece
from .page_locked import LockedBlock, PageLocked, reserve_of
from .transfer_engine import TransferEngine

if TYPE_CHECKING:
    from .device import CudaDevice

__all__ = ["StagingPiece", "StagingRing", "TransferEngine"]

CAPACITY = 4 << 20
ALIGNMENT = 64
SHARE = 64 << 10
"""So much of the ring may one have."""


class StagingPiece:
    """A range of the ring. It goes back when `release` is called, or nobody refers to it any more."""

    __slots__ = ("_gaps", "_piece", "address", "bytes")

    def __init__(self, gaps: Gaps) -> None:
        self._piece = Piece()
        self._gaps = gaps
        self.address = 0
        self.bytes = memoryview(b"")

    def release(self) -> None:
        """Give it back. Again: nothing."""
        self._gaps.give(self._piece)

    def __del__(self) -> None:
        try:
            self._gaps.give(self._piece)
        except AttributeError:
            return  # interrupted in the constructor


class SpilledPiece:
    """Page-locked memory of its own, used as a piece of the ring is."""

    __slots__ = ("_block", "_page_locked", "address", "bytes")

    def __init__(self, page_locked: PageLocked, nbytes: int) -> None:
        self._page_locked = page_locked
        self._block: LockedBlock | None = None
        block = self._block = page_locked.take(nbytes)
        self.address = block.address
        self.bytes = memoryview((ctypes.c_uint8 * nbytes).from_address(block.address)).cast("B")

    def release(self) -> None:
        """Give it back. Again: nothing."""
        if self._block is not None:
            self._page_locked.give(self._block)  # again after an interrupt here: a block is put away only once
            self._block = None

    def __del__(self) -> None:
        try:
            self.release()
        except AttributeError:
            return  # interrupted in the constructor


AnyPiece = StagingPiece | SpilledPiece


class StagingRing:
    """Page-locked memory for small data, in one block that is made at first use. Any thread may use it.

    The compiled way takes its share from the same block.

    Args:
        device: the device.
        capacity: its size.

    """

    def __init__(self, device: CudaDevice, capacity: int = CAPACITY) -> None:
        self._device = device
        self._page_locked: PageLocked = reserve_of(device)
        self._lock = threading.RLock()
        self._gaps = Gaps(capacity)
        self._block: LockedBlock | None = None
        self._bytes = memoryview(b"")

    @property
    def free(self) -> int:
        """How many bytes are free."""
        with self._device.lock:
            self._device.collect_all()  # what the compiled way has taken comes back with its epochs
        return self._gaps.free

    def take(self, nbytes: int) -> StagingPiece:
        """Reserve. The context is current.

        Raises:
            NotNow: no room until something is over.

        """
        if self._block is None:
            self._make()
        staged = StagingPiece(self._gaps)  # before: an interrupt behind the reservation must not lose it
        piece = self._gaps.take(nbytes, ALIGNMENT, staged._piece)
        if piece is None:
            with self._device.lock:
                self._device.collect_all()
            piece = self._gaps.take(nbytes, ALIGNMENT, staged._piece)
        block = self._block
        if piece is None or block is None:
            raise NotNow
        staged.bytes = self._bytes[piece.begin : piece.begin + nbytes]
        staged.address = block.address + piece.begin
        return staged

    def stage(self, data: Any) -> AnyPiece:
        """Reserve room for bytes and put them there."""
        view = memoryview(data)
        piece = self.reserve(view.nbytes)
        piece.bytes[:] = view
        return piece

    def reserve(self, nbytes: int) -> AnyPiece:
        """Reserve, in the ring if it has room and that is not too much for one. The context is current.

        Raises:
            NotNow: there is no memory.

        """
        try:
            return self.take(nbytes) if nbytes <= SHARE else self.spill(nbytes)
        except NotNow:
            return self.spill(nbytes)

    def spill(self, nbytes: int) -> SpilledPiece:
        """Return memory outside of the ring. May take a while, but waits for no work."""
        try:
            return SpilledPiece(self._page_locked, nbytes)
        except NativeError as error:
            if error.code == OUT_OF_MEMORY:
                raise NotNow from None
            raise

    def _make(self) -> None:
        """Have the block. A finalizer or a signal handler in the middle of this goes without."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise NotNow
        with self._lock:
            if self._block is None:
                size = self._gaps.size
                block = self._page_locked.take(size)
                self._bytes = memoryview((ctypes.c_uint8 * size).from_address(block.address)).cast("B")
                self._block = block
                self._device.use_ring(block.address, self._gaps)

    def close(self) -> None:
        """Give the memory back. Nothing is in flight."""
        with self._lock:
            block, self._block = self._block, None
            self._gaps = Gaps(self._gaps.size)
            self._device.use_ring(0, self._gaps)
            self._bytes = memoryview(b"")
        if block is not None:
            self._page_locked.give(block)
