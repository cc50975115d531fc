"""Devices and contexts of the simulation."""

from __future__ import annotations

import os

from .calls import Calls, call
from .codes import INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, Refusal

_ATTRIBUTES = {
    1: 1024,  # threads in a block
    2: 1024,
    3: 1024,
    4: 64,
    5: 2**31 - 1,  # the grid
    6: 65535,
    7: 65535,
    16: 132,  # multiprocessors
    75: 9,  # compute capability
    76: 0,
    95: 1,  # cooperative launch
    97: 227 << 10,  # shared memory of a block, on request
    115: 1,  # memory pools
    122: 1,  # memory operations of 64 bits
}


class DeviceCalls(Calls):
    """As in `Native`."""

    @call("cuInit", "nothing")
    def init(self) -> None:
        """Start CUDA in this process."""
        if os.getpid() != self.machine.process:
            raise Refusal(NOT_INITIALIZED)
        if not self._initialised:
            for card in self.machine.cards:
                card.connect()
        self._initialised = True

    @call("cuDriverGetVersion", "nothing")
    def driver_version(self) -> int:
        """Return the newest CUDA the driver knows, as 1000 * major + 10 * minor."""
        return 13000

    @call("cuDeviceGetCount")
    def device_count(self) -> int:
        """Return how many devices there are."""
        return len(self.machine.cards)

    @call("cuDeviceGet")
    def device(self, index: int) -> int:
        """Return a device by its number."""
        return self._device(index).index

    @call("cuDeviceGetName")
    def device_name(self, device: int) -> str:
        """Return its name."""
        self._device(device)
        return "Simulated H200"

    @call("cuDeviceTotalMem_v2")
    def device_memory(self, device: int) -> int:
        """Return the size of its memory."""
        return self._device(device).memory

    @call("cuDeviceGetAttribute")
    def device_attribute(self, attribute: int, device: int) -> int:
        """Return one of its attributes."""
        self._device(device)
        if attribute not in _ATTRIBUTES:
            raise Refusal(INVALID_VALUE)
        return _ATTRIBUTES[attribute]

    @call("cuDevicePrimaryCtxRetain")
    def primary_context(self, device: int) -> int:
        """Retain the context that all libraries of the process share."""
        card = self._device(device)
        if not card.retained:  # a context that is dead stays so, let go of or not
            self._check_fault(card)
        card.retained += 1
        return next(handle for handle, other in self._contexts.items() if other is card)

    @call("cuDevicePrimaryCtxRelease_v2")
    def release_primary_context(self, device: int) -> None:
        """Let go of it."""
        card = self._device(device)
        if not card.retained:
            raise Refusal(INVALID_CONTEXT)
        card.retained -= 1

    @call("cuCtxGetCurrent")
    def current_context(self) -> int:
        """Return the context of this thread, or 0."""
        stack = self._stack
        return next(handle for handle, card in self._contexts.items() if card is stack[-1]) if stack else 0

    @call("cuCtxPushCurrent_v2")
    def push_context(self, context: int) -> None:
        """Make a context this thread's, until it is popped."""
        if context not in self._contexts:
            raise Refusal(INVALID_VALUE)
        self._stack.append(self._contexts[context])

    @call("cuCtxPopCurrent_v2")
    def pop_context(self) -> int:
        """Take the last pushed context off."""
        current = self.current_context()
        if not current:
            raise Refusal(INVALID_CONTEXT)
        self._stack.pop()
        return current

    @call("cuCtxGetStreamPriorityRange", "context")
    def priority_range(self) -> tuple[int, int]:
        """Return the least and the greatest priority of streams; lower numbers are more urgent."""
        return 0, -5
