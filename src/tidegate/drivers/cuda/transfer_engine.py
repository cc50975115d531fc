"""The transfer engine: large host data that is not page-locked, moved by threads.

A transfer goes piece by piece through page-locked slots: while one piece is on the link others are being copied, and
several threads copy at once, because one moves 8 GB/s and the link takes 55. Measured on an H200 for 256 MiB with
pieces of 4 MiB: 4 threads 28 GB/s, 8 threads 40 up and 34 down. Smaller pieces cost more in hand-overs, larger ones
gain nothing. An array that was never touched is slower, 12 GB/s down: the system makes its pages meanwhile.

A thread takes several pieces at a time (`native/pieces.pxi`), and has the GIL before and behind them only: beside a
busy Python thread it would wait 5 ms for it at every piece.

Such a transfer has no epoch: its end is reported to the sink.
"""

from __future__ import annotations

import ctypes
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from tidegate._core.background import deferred as reaper
from tidegate._core.background import report_unraisable, start_thread
from tidegate.driver import Storage, Ticket

from ._errors import is_loss, translate
from ._native import NativeError
from .native.compiled import carry
from .page_locked import LockedBlock, PageLocked, reserve_of

if TYPE_CHECKING:
    from .device import CudaDevice

SLOT = 4 << 20
SLOTS = 2
"""Slots per thread: one is being filled while the other is on the link."""
SMALLEST = 1 << 20
"""A transfer is not cut into smaller pieces than that, to wake no thread in vain."""
RUN = 8
"""So many pieces does a thread take at a time at most: then another transfer may have its turn."""
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
    """Page-locked memory for a piece, and the event behind its copy."""

    __slots__ = ("address", "block", "event")

    def __init__(self, block: LockedBlock, event: int) -> None:
        self.block = block
        self.address = block.address
        self.event = event


class TransferEngine:
    """The threads. They begin at the first use, sleep when there is nothing to do, and end at `stop`.

    What is put into the inbox is a transfer, once for each thread that shall take part. A thread that gets it takes
    some pieces, puts the transfer back behind the others, and so every transfer gets its turn.

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
        self._stopped = False
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
        if len(self._threads) < count:
            reaper.leave(self._start, count)

    def _start(self, count: int) -> None:
        """A note to the reaper."""
        while len(self._threads) < count and not self._stopped:
            thread = start_thread(_Worker(self).run, f"tidegate-cuda-transfer-{len(self._threads)}")
            if thread is None:
                return
            self._threads.append(thread)
            if self._stopped:
                self._inbox.put(None)

    def stop(self) -> None:
        """End the threads, which have nothing to do any more."""
        self._stopped = True
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

    def next_run(self, transfer: Transfer) -> tuple[int, int] | None:
        """Return where the next pieces begin and how long they are together; None if all have been begun.

        The fewer are left the fewer at a time, so that the threads end together.
        """
        with self._lock:
            begin = transfer.started
            left = transfer.nbytes - begin
            pieces = max(1, min(RUN, left // (self.workers * transfer.piece)))
            nbytes = min(pieces * transfer.piece, left)
            if nbytes <= 0 or transfer.error is not None:
                return None
            transfer.started = begin + nbytes
            if begin == 0:
                self._transfers.add(transfer)
                for _ in range(min(self.workers, -(-transfer.nbytes // transfer.piece)) - 2):
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

    def run_over(self, transfer: Transfer, nbytes: int, error: BaseException | None) -> None:
        """Some pieces are over, well or not; behind the last one the end is told."""
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

    def get(self) -> Transfer | None:
        """Return the next transfer to take part in; None: stop."""
        return self._inbox.get()


class _Worker:
    """One thread, with slots of its own."""

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._device = engine._device
        self._slots: list[_Slot] = []

    def run(self) -> None:
        try:
            with self._device.entered():
                while self._turn():
                    pass
                for slot in self._slots:
                    self._engine.give_slot(slot)
        except NativeError as error:
            if self._device.doomed is None:
                report_unraisable(error, self)

    def _turn(self) -> bool:
        """Take part in one transfer. False: stop."""
        transfer = self._engine.get()
        if transfer is None:
            return False
        run = self._engine.next_run(transfer)
        if run is not None:
            error: BaseException | None = None
            try:
                self._move(transfer, *run)
            except Exception as raised:
                error = raised
            self._engine.run_over(transfer, run[1], error)
        return True

    def _move(self, transfer: Transfer, begin: int, nbytes: int) -> None:
        host, address = transfer.host + begin, transfer.address + begin
        if transfer.visible:
            ctypes.memmove(*((address, host) if transfer.upload else (host, address)), nbytes)
            return
        while len(self._slots) < SLOTS:
            self._slots.append(self._engine.take_slot())
        slots = [(slot.address, slot.event) for slot in self._slots]
        stream = self._engine.stream(transfer.upload)
        carry(self._device, transfer.upload, host, address, nbytes, transfer.piece, slots, stream)


def transfer_of(ticket: Ticket, array: Any, storage: Storage, offset: int, nbytes: int, upload: bool) -> Transfer:
    """Return the transfer between an array and a range of a storage."""
    address: int = storage.address
    transfer = Transfer(ticket, array.ctypes.data, address + offset, nbytes, upload, (storage, array))
    transfer.visible = storage.memory != "device"
    return transfer
