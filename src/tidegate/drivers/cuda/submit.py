"""The shortest way onto a stream, in two forms that do the same: Python, and C where it was built.

A submission of one kernel is one call in C, and four in Python. Both keep the GIL (see `_native`).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Sequence
from typing import Any

from . import compiled
from ._native import Launch, Native, NativeError
from .page_locked import open_devices

_STEPS = dict(
    enumerate(
        (
            "cuStreamWaitEvent",
            "cuLaunchKernel",
            "cuStreamWriteValue64",
            "cuEventRecord",
            "cuMemcpyAsync",
            "cuEventSynchronize",
        ),
        1,
    )
)
_ADDRESSES = (
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamWaitEvent",
    "cuLaunchKernel",
    "cuStreamWriteValue64_v2",
    "cuEventRecord",
    "cuMemcpyAsync",
    "cuEventSynchronize",
)

Slots = Sequence[tuple[int, int]]
"""Page-locked memory, each with an event."""


class Submit:
    """The Python form."""

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


class CompiledSubmit(Submit):
    """The C form."""

    def __init__(self, native: Native, module: Any) -> None:
        super().__init__(native)
        module.setup(*(native.address(name) for name in _ADDRESSES))
        self._enter = module.enter
        self._leave = module.leave
        self._close = module.close
        self._launch = module.launch
        self._carry = module.carry

    def enter(self, context: int) -> bool:
        pushed = self._enter(context)
        if pushed < 0:
            raise self._native.error("cuCtxPushCurrent", -pushed)
        return bool(pushed)

    def leave(self) -> None:
        code = self._leave()
        if code:
            raise self._native.error("cuCtxPopCurrent", code)

    def close(self, stream: int, word: int, epoch: int, event: int) -> None:
        code = self._close(stream, word, epoch, event)
        if code:
            raise self._native.error(_STEPS[code >> 16], code & 0xFFFF)

    def carry(self, upload: bool, host: int, address: int, nbytes: int, piece: int, slots: Slots, stream: int) -> None:
        code = self._carry(upload, host, address, nbytes, piece, stream, *(number for slot in slots for number in slot))
        if code:
            raise self._native.error(_STEPS[code >> 16], code & 0xFFFF)

    def launch(self, stream: int, launch: Launch, word: int, epoch: int, event: int, waits: Sequence[int] = ()) -> None:
        function, grid, block, shared, params, _, cooperative, cluster = launch
        if cooperative or cluster is not None:
            super().launch(stream, launch, word, epoch, event, waits)
            return
        code = self._launch(stream, function, *grid, *block, shared, params, word, epoch, event, *waits)
        if code:
            raise self._native.error(_STEPS[code >> 16], code & 0xFFFF)


def choose(native: Native, form: str, keeps_gil: bool) -> Submit:
    """Return the C form where it can serve, else the Python form."""
    if form == "python" or not keeps_gil or compiled.module is None:
        return Submit(native)
    if not hasattr(native, "address") or _is_taken(native):
        return Submit(native)
    return CompiledSubmit(native, compiled.module)


def _is_taken(native: Native) -> bool:
    """Whether the C module serves devices of another library: there is only one set of functions that it can call."""
    others = [device for device in open_devices() if isinstance(device.submit, CompiledSubmit)]
    return any(device.native is not native for device in others)
