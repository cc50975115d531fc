"""The host data of recorded updates, in page-locked memory from which the device copies it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.driver import Command, Update

if TYPE_CHECKING:
    from .device import CudaDevice
    from .page_locked import LockedBlock

_ALIGNMENT = 16


class RecordedData:
    """One block of memory for all updates of a recording, made at the first use and kept as long as this is.

    Args:
        device: the device.
        commands: what was recorded.

    """

    def __init__(self, device: CudaDevice, commands: Sequence[Command]) -> None:
        self._block: LockedBlock | None = None
        self._device = device
        self._commands = commands
        self._offsets: dict[int, int] = {}
        self._nbytes = 0
        for index, command in enumerate(commands):
            if isinstance(command.work, Update):
                self._offsets[index] = self._nbytes
                self._nbytes += -(-len(command.work.data) // _ALIGNMENT) * _ALIGNMENT

    def __del__(self) -> None:
        if self._block is not None:
            self._device.default_pool.page_locked.give(self._block)

    def address(self, index: int) -> int:
        """Return where the data of the command with this index lies. The context is current."""
        block = self._block
        if block is None:
            made = self._written()
            with self._device.lock:
                block = self._block
                if block is None:
                    block = self._block = made
            if block is not made:  # two threads came here at once; one block counts
                self._device.default_pool.page_locked.give(made)
        return block.address + self._offsets[index]

    def _written(self) -> LockedBlock:
        block = self._device.default_pool.page_locked.take(self._nbytes)
        for index, offset in self._offsets.items():
            work = self._commands[index].work
            assert isinstance(work, Update)
            ctypes.memmove(block.address + offset, work.data, len(work.data))
        return block
