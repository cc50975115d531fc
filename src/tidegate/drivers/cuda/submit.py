"""The calls that every submission makes: into the context and out of it, and the end of an epoch.

All of them keep the GIL (see `_native`).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Sequence

from ._native import Launch, Native, NativeError

Slots = Sequence[tuple[int, int]]
"""Page-locked memory, each with an event."""


class Submit:
    """The calls for one device."""

    def __init__(self, native: Native) -> None:
        self._native = native

    def enter(self, context: int) -> bool:
        """Make a context current. Returns whether it was not: then `leave` must follow."""
        if self._native.current_context() == context:
            return False
        self._native.push_context(context)
        return True

    def leave(self) -> None:
        """Make the context current that was before."""
        self._native.pop_context()

    def close(self, stream: int, word: int, epoch: int, event: int) -> None:
        """End an epoch: raise the word, if there is one (not 0), and record the event."""
        if word:
            self._native.write_value(stream, word, epoch)
        self._native.record_event(event, stream)

    def launch(self, stream: int, launch: Launch, word: int, epoch: int, event: int, waits: Sequence[int] = ()) -> None:
        """Wait for events, launch a kernel, end the epoch; the last also if the launch is refused."""
        for each in waits:
            self._native.wait_event(stream, each)
        try:
            self._native.launch(launch, stream)
        finally:
            self.close(stream, word, epoch, event)

    def carry(self, upload: bool, host: int, address: int, nbytes: int, piece: int, slots: Slots, stream: int) -> None:
        """Copy between ordinary host memory and the device, piece by piece through page-locked slots; blocks.

        While one piece is on the link the next one is copied on the host. When it returns or raises, none is: the slots
        serve the next transfer.
        """
        try:
            self._carry_pieces(upload, host, address, nbytes, piece, slots, stream)
        except NativeError:
            for _, event in slots:
                with contextlib.suppress(NativeError):
                    self._native.synchronize_event(event)
            raise

    def _carry_pieces(
        self, upload: bool, host: int, address: int, nbytes: int, piece: int, slots: Slots, stream: int
    ) -> None:
        native = self._native
        begun: deque[tuple[int, int, int, int]] = deque()

        def finish() -> None:
            slot, event, begin, size = begun.popleft()
            native.synchronize_event(event)
            if not upload:
                ctypes.memmove(host + begin, slot, size)

        for number, begin in enumerate(range(0, nbytes, piece)):
            slot, event = slots[number % len(slots)]
            size = min(piece, nbytes - begin)
            if len(begun) == len(slots):
                finish()
            if upload:
                ctypes.memmove(slot, host + begin, size)
            native.copy(*((address + begin, slot) if upload else (slot, address + begin)), size, stream)
            native.record_event(event, stream)
            begun.append((slot, event, begin, size))
        while begun:
            finish()
