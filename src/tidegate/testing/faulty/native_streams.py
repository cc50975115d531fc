"""Faults of the CUDA driver: a stream that is made to wait, or is filled, holds up more than itself.

None of them is wrong by the rules of streams and events; the hardware has fewer places than those rules promise.
"""

from __future__ import annotations

from typing import Any

from tidegate.drivers.cuda import device
from tidegate.drivers.cuda.queue import CudaQueue

from .fault import Patch, fault

_MANY = 96
"""More streams than the card has connections to the host."""


def in_python(patch: Patch) -> None:
    """Have all work take the way in Python, where a fault may be."""
    real = CudaQueue.__init__

    def init(self: Any, device: Any, priority: int, takes_all: bool = True) -> None:
        real(self, device, priority, takes_all=False)

    patch.method(CudaQueue, "__init__", init)


def _streams_of(queue: Any) -> list[Any]:
    return [stream for stream in queue._device.all_streams() if stream.priority == queue.priority]


@fault(
    "M15",
    "M20",
    killed_by="test_queue_order::test_64_lanes_parked_behind_a_long_kernel_do_not_stop_a_65th",
    base="cuda-simulated",
)
def parks_a_stream_for_every_wait(patch: Patch) -> None:
    """Everything that waits gets a stream of its own to wait on, until none of the card's connections is free."""
    real = CudaQueue._choose

    def choose(self: Any, open_waits: Any) -> Any:
        stream = real(self, open_waits)
        if stream is None and open_waits and len(_streams_of(self)) < _MANY:
            self._device.make_stream(self.priority)
            stream = _streams_of(self)[-1]
        return stream

    patch.method(device, "STREAMS", _MANY)
    patch.method(CudaQueue, "_choose", choose)
    in_python(patch)


@fault(
    "M15",
    killed_by="test_queue_order::test_64_lanes_parked_behind_a_long_kernel_do_not_stop_a_65th",
    base="cuda-simulated",
)
def queues_up_behind_what_waits(patch: Patch) -> None:
    """There are few streams, work that waits goes onto any of them, and work that is ready lines up behind it."""

    def choose(self: Any, open_waits: Any) -> Any:
        if len(_streams_of(self)) < 4:
            self._device.make_stream(self.priority)
        return min(_streams_of(self), key=lambda stream: stream.issued - stream.reached)

    patch.method(CudaQueue, "_choose", choose)
    in_python(patch)


@fault(
    "M14",
    "M15",
    killed_by="test_queue_order::test_a_long_chain_behind_a_long_kernel_is_submitted_at_once",
    base="cuda-simulated",
)
def fills_streams(patch: Patch) -> None:
    """A stream is given all there is, and the call that finds it full blocks until the device has gone on."""
    real = CudaQueue._choose

    def choose(self: Any, open_waits: Any) -> Any:
        last = [stream for stream, epoch in open_waits if epoch == stream.issued]
        return last[0] if last else real(self, open_waits)

    patch.method(CudaQueue, "_choose", choose)
    in_python(patch)
