"""The shortest way onto a stream, in two forms that do the same: Python, and C where it was built.

A submission of one kernel is one call in C, and four in Python. Both keep the GIL (see `_native`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ._native import Launch, Native
from .page_locked import open_devices

_STEPS = {1: "cuStreamWaitEvent", 2: "cuLaunchKernel", 3: "cuStreamWriteValue64", 4: "cuEventRecord"}
_ADDRESSES = (
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamWaitEvent",
    "cuLaunchKernel",
    "cuStreamWriteValue64_v2",
    "cuEventRecord",
)


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


class CompiledSubmit(Submit):
    """The C form."""

    def __init__(self, native: Native, module: Any) -> None:
        super().__init__(native)
        module.setup(*(native.address(name) for name in _ADDRESSES))
        self._enter = module.enter
        self._leave = module.leave
        self._close = module.close
        self._launch = module.launch

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
    if form == "python" or not keeps_gil or os.environ.get("TIDEGATE_PURE", "0") not in ("", "0"):
        return Submit(native)
    try:
        from . import _submit  # type: ignore[attr-defined]
    except ImportError:
        return Submit(native)
    if not hasattr(native, "address") or _is_taken(native):
        return Submit(native)
    return CompiledSubmit(native, _submit)


def _is_taken(native: Native) -> bool:
    """Whether the C module serves devices of another library: there is only one set of functions that it can call."""
    others = [device for device in open_devices() if isinstance(device.submit, CompiledSubmit)]
    return any(device.native is not native for device in others)
