"""Bad input: a typed error that names the object and the need; nothing submitted, nothing lost.

Each case is a call that is given a timepoint to signal, if it is of a kind that signals. After the refusal the
timepoint has not moved, nobody has claimed it, and the memory is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg

LIMIT = 30.0
NBYTES = 64


def python_kernel(workgroups: Any, bindings: Any, constants: Any) -> None:
    bindings[0][:] = 0xFF


KERNEL = tg.Kernel("scribble", cpu=python_kernel, bindings=2, constants=[np.uint32, np.float32], workgroup=(1, 1, 1))


@dataclass
class World:
    """What a case may use: live objects, and their counterparts on a device that is closed."""

    folder: Path
    device: tg.Device
    queue: tg.Queue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = self.device.queue()
        self.buffer = self.device.upload(np.arange(NBYTES, dtype=np.uint8), label="victim")
        self.other = self.device.upload(np.zeros(NBYTES, np.uint8), label="other")
        self.function = self.device.load(KERNEL)["scribble"]
        self.semaphore = tg.Semaphore(5, label="counter")
        with self.device.record(label="recorded") as self.commands:
            self.commands.fill(tg.slot(3), 1)
        self.closed_buffer = self.device.upload(np.zeros(NBYTES, np.uint8), label="shut")
        self.closed_buffer.close()
        self.closed_device = tg.open_device("cpu", label="gone")
        self.closed_queue = self.closed_device.queue()
        self.buffer_of_closed_device = self.closed_device.allocate(NBYTES, label="left behind")
        self.closed_device.close(LIMIT)
        self.foreign_device = tg.open_device("cpu", label="abroad")
        self.foreign_buffer = self.foreign_device.allocate(NBYTES, label="foreigner")

    def dispatch(self, signal: tg.Timepoint, **options: Any) -> tg.Submission:
        """Dispatch with good arguments but for those given."""
        good = {"workgroups": (1, 1, 1), "bindings": [self.buffer, self.other], "constants": [1, 1]}
        return self.queue.dispatch(self.function, **{**good, **options}, signal=signal)

    def record(self, record: Callable[[tg.CommandBuffer], object]) -> None:
        with self.device.record(label="tape") as commands:
            record(commands)

    def close(self) -> None:
        self.foreign_device.close(LIMIT)


@dataclass
class Case:
    """A call that must be refused, the type of the refusal, and words its text must have."""

    name: str
    kind: type[BaseException]
    words: tuple[str, ...]
    call: Callable[[World, tg.Timepoint], object]

    def check(self, world: World) -> None:
        """Make the call, and see it refused without a trace."""
        point = tg.Semaphore(label="untouched").at(1)
        with pytest.raises(self.kind) as caught:
            self.call(world, point)
        text = str(caught.value)
        assert "\n" not in text
        assert not [word for word in self.words if word not in text], text
        assert isinstance(caught.value, tg.TidegateError) == issubclass(self.kind, tg.TidegateError)
        assert_no_trace(world, point)

    def __str__(self) -> str:
        return self.name


Invalid, Range, Precondition = tg.InvalidArgumentError, tg.OutOfRangeError, tg.FailedPreconditionError


def assert_no_trace(world: World, point: tg.Timepoint) -> None:
    assert point.semaphore.value == 0
    assert point.semaphore.failure is None
    assert point.semaphore.next().value == 1, "the refused call has left its claim behind"
    assert world.semaphore.value == 5
    assert world.semaphore.failure is None
    assert (world.device.statistics().held, world.device.statistics().issued) == (0, 0)
    assert world.buffer.read(timeout=LIMIT) == bytes(range(NBYTES))
    assert world.other.read(timeout=LIMIT) == bytes(NBYTES)
    world.queue.barrier(signal=point).wait(LIMIT)
    assert point.reached
