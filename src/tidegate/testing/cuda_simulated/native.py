"""The simulated native layer: every public method of `Native`, with its meaning, without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

from ...drivers.cuda._native import NativeError
from ...drivers.cuda._prototypes import PROTOTYPES
from .code_calls import CodeCalls
from .codes import native_error
from .device_calls import DeviceCalls
from .graph_calls import GraphCalls
from .memory_calls import MemoryCalls
from .stream_calls import StreamCalls
from .thunks import thunk


class SimulatedNative(DeviceCalls, StreamCalls, MemoryCalls, CodeCalls, GraphCalls):
    """A machine with cards like an H200, as `Native` shows it. `simulated_native` makes one."""

    @property
    def violations(self) -> list[str]:
        """What no driver may do and somebody did, in words."""
        return self.machine.violations

    def fault_next_launch(self, code: int = 700) -> None:
        """Let the next kernel of every card fault."""
        for card in self.machine.cards:
            card.next_fault = code

    def address(self, name: str) -> int:
        """Return where a function of the driver lies, for callers in C."""
        thunks: dict[str, Any] = self.__dict__.setdefault("_thunks", {})
        if name not in thunks:
            thunks[name] = thunk(self, name)
        return ctypes.cast(thunks[name], ctypes.c_void_p).value or 0

    def has(self, name: str) -> bool:
        """Whether the driver has a function that came with a later version."""
        return name in PROTOTYPES and name not in self._without

    def error(self, call: str, code: int) -> NativeError:
        """Return the error for a code."""
        return native_error(call, code)
