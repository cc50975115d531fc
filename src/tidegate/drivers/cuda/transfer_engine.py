"""The transfer engine: large host data that is not page-locked, moved by threads.

A transfer goes piece by piece through page-locked slots: while one piece is on the link others are being copied, and
several threads copy at once, because one moves 8 GB/s and the link takes 55. Measured on an H200 for 256 MiB with
pieces of 4 MiB: 4 threads 28 GB/s, 8 threads 40 up and 34 down. Smaller pieces cost more in hand-overs, larger ones
gain nothing. An array that was never touched is slower, 12 GB/s down: the system makes its pages meanwhile.

Such a transfer has no epoch: its end is reported to the sink.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from tidegate._core.background import report_unraisable
from tidegate.driver import Storage, Ticket

from ._errors import is_loss, translate
from ._native import NativeError
from .page_locked import LockedBlock, PageLocked, reserve_of

if TYPE_CHECKING:
    from .device import CudaDevice

SLOT = 4 << 20
SLOTS = 2
"""Slots per thread: one is being filled while the other is on the link."""
SMALLEST = 1 << 20
"""A transfer is not cut into smaller pieces than that, to wake no thread in vain."""
_PATIENCE = 5.0


class Transfer:
    """A copy between ordinary host memory and memory of the device.

    Args:
        ticket: the submission.
        host: the address in host memory.
        address: the address in the device's memory.
        nbytes: how much.
        upload: which way.
        keep: the storage and the array.

    """

    def __init__(self, ticket: Ticket, host: int, address: int, nbytes: int, upload: bool, keep: Any) -> None:
        self.ticket = ticket
        self.host = host
        self.address = address
        self.nbytes = nbytes
        self.upload = upload
        self.keep = keep
        self.visible = False
        """Whether the host sees the device's side too: then a thread copies straight."""
        self.piece = nbytes
        self.started = 0
        self.over = 0
        self.error: BaseException | None = None


class _Slot:
    __slots__ = ("address", "block", "event")

    def __init__(self, block: LockedBlock, event: int) -> None:
        self.block = block
        self.address = block.address
        self.event = event


class TransferEngine:
    """The threads. They begin at the first use, sleep when there is nothing to do, and end at `stop`.

    What is put into the inbox is a transfer, once for each thread that shall take part. A thread that gets it takes one
    piece, puts the transfer back behind the others, and so every transfer gets its turn.

    Args:
        device: the device.
        workers: how many threads at most.

    """

    def __init__(self, device: CudaDevice, workers: int | None = None) -> None:
        self._device = device
        self.workers = workers or max(2, min(8, (os.cpu_count() or 2) // 2))
        self._page_locked: PageLocked = reserve_of(device)
        self._inbox: SimpleQueue[Transfer | None] = SimpleQueue()
        self._lock = threading.Lock()  # of the threads only: an interrupt cannot come while it is held
        self._starting = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._streams: dict[bool, int] = {}
        self._transfers: set[Transfer] = set()

    @property
    def busy(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self._transfers)

    def submit(self, transfer: Transfer) -> None:
        """Take a transfer over. Its end is reported to the sink."""
        pieces = max(1, min(self.workers, transfer.nbytes // SMALLEST))
        transfer.piece = min(SLOT, -(-transfer.nbytes // (pieces * 4096)) * 4096)
        self._ensure(pieces)
        transfer.ticket.taken = True
        self._inbox.put(transfer)  # one thread; it calls the others in

    def _ensure(self, count: int) -> None:
        """Have so many threads."""
        if len(self._threads) >= count:
            return
        with self._starting:
            while len(self._threads) < count:
                name = f"tidegate-cuda-transfer-{len(self._threads)}"
                thread = threading.Thread(target=_Worker(self).run, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def stop(self) -> None:
        """End the threads, which have nothing to do any more."""
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join(_PATIENCE)
        self._threads = []
        native = self._device.native
        try:
            with self._device.entered():
                while self._streams:
                    native.destroy_stream(self._streams.popitem()[1])
        except NativeError:
            pass  # the device is lost

    # For the threads -------------------------------------------------------------------------------------------------

    def next_piece(self, transfer: Transfer) -> tuple[int, int] | None:
        """Return where the next piece begins and how long it is; None if all have been begun."""
        with self._lock:
            begin = transfer.started
            nbytes = min(transfer.piece, transfer.nbytes - begin)
            if nbytes <= 0 or transfer.error is not None:
                return None
            transfer.started = begin + nbytes
            if begin == 0:
                self._transfers.add(transfer)
                for _ in range(min(self.workers, -(-transfer.nbytes // nbytes)) - 2):
                    self._inbox.put(transfer)
            if transfer.started < transfer.nbytes:
                self._inbox.put(transfer)
        return begin, nbytes

    def stream(self, upload: bool) -> int:
        """Return the stream of a direction."""
        with self._lock:
            if upload not in self._streams:
                self._streams[upload] = self._device.native.create_stream()
            return self._streams[upload]

    def piece_over(self, transfer: Transfer, nbytes: int, error: BaseException | None) -> None:
        """A piece is over, well or not; behind the last one the end is told."""
        with self._lock:
            transfer.over += nbytes
            transfer.error = transfer.error or error
            ended = transfer.over == (transfer.nbytes if transfer.error is None else transfer.started)
        if isinstance(error, NativeError) and is_loss(error):
            self._device.lose(error)
        if ended:
            self._end(transfer)

    def _end(self, transfer: Transfer) -> None:
        error = transfer.error
        if isinstance(error, NativeError):
            error = translate(error)
        transfer.keep = None  # before the end is told: whoever waits for the memory may allocate at once
        self._transfers.discard(transfer)
        try:
            self._device.sink.finished(transfer.ticket, error)
        except BaseException as raised:
            report_unraisable(raised, self)

    def take_slot(self) -> _Slot:
        """Return memory and an event for a piece."""
        return _Slot(self._page_locked.take(SLOT), self._device.native.create_event())

    def give_slot(self, slot: _Slot) -> None:
        """Take it back."""
        self._page_locked.give(slot.block)
        self._device.native.destroy_event(slot.event)

    def get(self, block: bool) -> Transfer | None:
        """Return the next transfer to take part in; None: stop.

        Raises:
            Empty: there is none, and `block` is False.

        """
        return self._inbox.get(block)


class _Worker:
    """One thread: it begins pieces while it has slots, and ends the oldest when it has none or nothing to begin."""

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._device = engine._device
        self._free: list[_Slot] = []
        self._made = 0
        self._begun: deque[tuple[_Slot, Transfer, int, int]] = deque()

    def run(self) -> None:
        try:
            with self._device.entered():
                while self._turn():
                    pass
                for slot in self._free:
                    self._engine.give_slot(slot)
        except NativeError as error:
            if self._device.doomed is None:
                report_unraisable(error, self)

    def _turn(self) -> bool:
        """Do one thing. False: stop."""
        try:
            transfer = self._engine.get(block=not self._begun)
        except Empty:
            self._finish_oldest()
            return True
        if transfer is None:
            while self._begun:
                self._finish_oldest()
            return False
        piece = self._engine.next_piece(transfer)
        if piece is not None:
            self._begin(transfer, *piece)
        return True

    def _begin(self, transfer: Transfer, begin: int, nbytes: int) -> None:
        error: BaseException | None = None
        try:
            if transfer.visible:
                _copy(transfer, transfer.address + begin, begin, nbytes)
            else:
                slot = self._slot()
                self._put(transfer, slot, begin, nbytes)
                self._begun.append((slot, transfer, begin, nbytes))
                return
        except Exception as raised:
            error = raised
        self._engine.piece_over(transfer, nbytes, error)

    def _slot(self) -> _Slot:
        if not self._free and self._made == SLOTS:
            self._finish_oldest()
        if self._free:
            return self._free.pop()
        slot = self._engine.take_slot()
        self._made += 1
        return slot

    def _put(self, transfer: Transfer, slot: _Slot, begin: int, nbytes: int) -> None:
        native = self._device.native
        stream = self._engine.stream(transfer.upload)
        try:
            if transfer.upload:
                _copy(transfer, slot.address, begin, nbytes)
                native.copy(transfer.address + begin, slot.address, nbytes, stream)
            else:
                native.copy(slot.address, transfer.address + begin, nbytes, stream)
            native.record_event(slot.event, stream)
        except BaseException:
            self._free.append(slot)
            raise

    def _finish_oldest(self) -> None:
        slot, transfer, begin, nbytes = self._begun.popleft()
        error: BaseException | None = None
        try:
            self._device.native.synchronize_event(slot.event)
            if not transfer.upload:
                _copy(transfer, slot.address, begin, nbytes)
        except Exception as raised:
            error = raised
        self._free.append(slot)
        self._engine.piece_over(transfer, nbytes, error)


def _copy(transfer: Transfer, side: int, begin: int, nbytes: int) -> None:
    """Copy a piece between the array and memory that the host sees too; without the GIL."""
    if transfer.upload:
        ctypes.memmove(side, transfer.host + begin, nbytes)
    else:
        ctypes.memmove(transfer.host + begin, side, nbytes)


def transfer_of(ticket: Ticket, array: Any, storage: Storage, offset: int, nbytes: int, upload: bool) -> Transfer:
    """Return the transfer between an array and a range of a storage."""
    address: int = storage.address  # type: ignore[attr-defined]
    transfer = Transfer(ticket, array.ctypes.data, address + offset, nbytes, upload, (storage, array))
    transfer.visible = storage.memory != "device"
    return transfer
