"""Faults of the CUDA driver: a stream that is made to wait, or is filled, holds up more than itself.

None of them is wrong by the rules of streams and events; the hardware has fewer places than those rules promise.
"""

from __future__ import annotations

from typing import Any

from tidegate.drivers.cuda import device, queue
from tidegate.drivers.cuda.device import CudaDevice
from tidegate.drivers.cuda.queue import CudaQueue

from .fault import Patch, fault

_MANY = 96
"""More streams than the card has connections to the host."""


@fault(
    "M15",
    "M20",
    killed_by="test_queue_order::test_64_lanes_parked_behind_a_long_kernel_do_not_stop_a_65th",
    base="cuda-simulated",
)
def parks_a_stream_for_every_wait(patch: Patch) -> None:
    """Everything that waits gets a stream of its own to wait on, until none of the card's connections is free."""

    def empty_stream(self: Any, priority: int) -> Any:
        streams = self.streams_of(priority)
        idle = (stream for stream in streams if stream.idle and not stream.lent)
        return next(idle, None) or (self._make_stream(priority) if self._made < _MANY else None)

    patch.method(device, "STREAMS", _MANY)
    patch.method(CudaDevice, "empty_stream", empty_stream)
    patch.method(CudaDevice, "may_park", lambda self: True)


@fault(
    "M15",
    killed_by="test_queue_order::test_64_lanes_parked_behind_a_long_kernel_do_not_stop_a_65th",
    base="cuda-simulated",
)
def queues_up_behind_what_waits(patch: Patch) -> None:
    """There are few streams, work that waits goes onto any of them, and work that is ready lines up behind it."""

    def choose(self: Any, open_waits: Any) -> Any:
        streams = self._device.streams_of(self._priority)
        return min(streams, key=queue._load) if len(streams) >= 4 else self._device.empty_stream(self._priority)

    patch.method(CudaQueue, "_choose", choose)


@fault(
    "M14",
    "M15",
    killed_by="test_queue_order::test_a_long_chain_behind_a_long_kernel_is_submitted_at_once",
    base="cuda-simulated",
)
def fills_streams(patch: Patch) -> None:
    """A stream is given all there is, and the call that finds it full blocks until the device has gone on."""
    patch.method(queue, "BUDGET", 1 << 30)
