"""Command buffers call by call: each command goes onto the stream in the order in which it was recorded.

That order satisfies every edge, and a stream keeps it. Nothing is made beforehand, so it suits recordings that run
once; it takes a place of the stream for each command, so it suits short ones only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.driver import Command, Copy, Dispatch, Fill, Recording, Span, Update, Work

from .encoding import NOTHING, Encoded, EncodedCopy, EncodedFill, EncodedLaunch, address_of
from .graph_order import does_nothing
from .recorded_data import RecordedData

if TYPE_CHECKING:
    from .device import CudaDevice
    from .executable import CudaFunction
    from .stream import Stream

MOST = 200
"""The most commands that go down this way: one submission must not fill a stream."""


class EncodedSteps(Encoded):
    """Several pieces of work, one after the other."""

    __slots__ = ("steps",)

    def __init__(self, steps: list[Encoded]) -> None:
        super().__init__(sum(step.places for step in steps))
        self.steps = steps

    def run(self, stream: Stream) -> None:
        for step in self.steps:
            step.run(stream)


class StreamCommandBuffer:
    """A recording that is gone through at each execution.

    Args:
        device: the device.
        recording: what was recorded; without indirect dispatches.

    """

    cold = False

    def __init__(self, device: CudaDevice, recording: Recording) -> None:
        self._commands = [
            (index, command) for index, command in enumerate(recording.commands) if not does_nothing(command.work)
        ]
        self._data = RecordedData(device, recording.commands)

    def warm(self, table: Sequence[Span]) -> None:
        """There is nothing to make beforehand."""

    def encode(self, table: Sequence[Span], stream: Any) -> Encoded:
        """Return one execution. Under the device's lock, with the context current."""
        return EncodedSteps([self._step(index, command, table) for index, command in self._commands])

    def _step(self, index: int, command: Command, table: Sequence[Span]) -> Encoded:
        work = command.work
        if isinstance(work, Update):
            return EncodedCopy(address_of(work.target.bind(table)), self._data.address(index), len(work.data))
        return _STEPS[type(work)](work, table)


def _fill(work: Fill, table: Sequence[Span]) -> Encoded:
    target = work.target.bind(table)
    return EncodedFill(target, work.pattern) if target.nbytes else NOTHING


def _copy(work: Copy, table: Sequence[Span]) -> Encoded:
    source, target = work.source.bind(table), work.target.bind(table)
    return EncodedCopy(address_of(target), address_of(source), source.nbytes) if source.nbytes else NOTHING


def _dispatch(work: Dispatch, table: Sequence[Span]) -> Encoded:
    # With memory of its own for the arguments: all launches are encoded before the first one runs.
    return EncodedLaunch(launch_of(work, work.workgroups, table))


_STEPS: dict[type[Work], Callable[[Any, Sequence[Span]], Encoded]] = {Fill: _fill, Copy: _copy, Dispatch: _dispatch}


def launch_of(work: Any, workgroups: tuple[int, int, int], table: Sequence[Span]) -> Any:
    """Return the launch of a dispatch, its slots filled from a table."""
    function: CudaFunction = work.function
    addresses = [address_of(binding.bind(table)) for binding in work.bindings]
    return function.launch(workgroups, addresses, work.constants, work.local_memory)
