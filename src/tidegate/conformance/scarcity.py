"""Scenes of scarcity: a device whose memory is full, what follows from an allocation there, and who waits for that.

give = ...                                          # takes the memory; gives it back when called
starving = scene.queue.allocate(NBYTES, signal=done.at(1))
work, point = a_chain(scene, starving, done.at(1))
assert by_a_callback(scene, work, point, give) is None
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

import tidegate as tg

from .buffers import MIB, ready
from .latches import LIMIT, Latch
from .loops import Asyncio
from .threads import background
from .witnesses import Told

#: What is taken before, and then asked for: of the 4 MiB that there are, so that there is never room for both.
NBYTES = 3 * MIB

#: Lets something happen that was waited for.
Give: TypeAlias = Callable[[], object]


class Scene:
    """A device whose memory is full, and what else there is to play with."""

    def __init__(self, device: tg.Device, latch: Latch, kernels: ModuleType) -> None:
        self.device = device
        self.queue, self.second = device.queue(), device.queue(priority=1)
        self.latch = latch
        self._increment = kernels.load(device, kernels.increment)
        self._kernels = kernels
        self.kept: list[Any] = []
        self._taken = 0

    def full(self) -> tg.Buffer:
        """Take the memory, in one way and the other by turns."""
        self._taken += 1
        if self._taken % 2:
            buffer = self.queue.allocate(NBYTES)
            ready(buffer).wait(LIMIT)
            return buffer
        return self.device.allocate(NBYTES)

    def kernel(self, buffer: tg.Buffer, **options: Any) -> tg.Submission:
        """Run a kernel over a part of a buffer."""
        return self.queue.dispatch(self._increment, (1, 1, 1), bindings=[buffer], constants=[np.uint32(16)], **options)

    def fault(self, **options: Any) -> tg.Submission:
        """Run a kernel that fails."""
        function: tg.Function = self._kernels.load(self.device, self._kernels.fault)
        return self.queue.dispatch(function, (1, 1, 1), **options)

    def running(self) -> tuple[tg.Timepoint, Latch]:
        """Have a kernel run until its latch is opened; what it signals, and the latch."""
        over, latch = tg.Semaphore(), self.latch()
        latch.block(self.queue, signal=over.at(1))
        latch.wait_until_running()
        return over.at(1), latch

    def give_all_back(self) -> None:
        """Let whatever is left of a scene go, and see that no memory is lost."""
        for each in self.kept:
            if isinstance(each, tg.Semaphore):
                each.fail(ValueError("the scene is over"))
            elif isinstance(each, tg.Buffer):
                each.close()
        self.kept.clear()
        most = self.queue.allocate(NBYTES + MIB // 2)  # but for what latches need
        self.queue.free(most, wait=ready(most)).wait(LIMIT)


# Who waits: each begins to, lets the rest happen, and returns what the work failed with -------------------------------


def _cause(error: BaseException | None) -> BaseException | None:
    if isinstance(error, tg.SemaphoreFailedError):
        return error.__cause__
    if error is not None:
        raise error
    return None


def by_a_wait(scene: Scene, work: tg.Submission, point: tg.Timepoint, give: Give) -> BaseException | None:
    waiting = background(work.wait, LIMIT)
    give()
    return _cause(waiting.error(2 * LIMIT))


def by_a_wait_for_its_signal(scene: Scene, work: tg.Submission, point: tg.Timepoint, give: Give) -> Any:
    waiting = background(point.wait, LIMIT)
    give()
    return _cause(waiting.error(2 * LIMIT))


def by_wait_any(scene: Scene, work: tg.Submission, point: tg.Timepoint, give: Give) -> BaseException | None:
    never = tg.Semaphore()
    waiting = background(tg.wait_any, [never.at(1), work, point], LIMIT)
    give()
    return _cause(waiting.error(2 * LIMIT))


def by_a_later_wait(scene: Scene, work: tg.Submission, point: tg.Timepoint, give: Give) -> BaseException | None:
    give()
    return _cause(background(work.wait, LIMIT).error(2 * LIMIT))


def by_a_callback(scene: Scene, work: tg.Submission, point: tg.Timepoint, give: Give) -> BaseException | None:
    told = Told()
    point.add_callback(told)
    give()
    told.wait()
    return told.error


def by_await(scene: Scene, work: tg.Submission, point: tg.Timepoint, give: Give) -> BaseException | None:
    loop = Asyncio()

    async def waits() -> None:
        await work

    async def gives() -> None:
        await loop.settle()
        give()

    try:
        loop.run(lambda: loop.together(waits, gives))
    except BaseExceptionGroup as errors:
        (error,) = errors.exceptions
        return _cause(error)
    return None


def by_held_work(scene: Scene, work: tg.Submission, point: tg.Timepoint, give: Give) -> BaseException | None:
    end = tg.Semaphore()
    scene.second.barrier(wait=[work, point], signal=end.at(1))
    return by_a_callback(scene, work, end.at(1), give)


def by_held_work_of_another_device(
    scene: Scene, work: tg.Submission, point: tg.Timepoint, give: Give
) -> BaseException | None:
    end = tg.Semaphore()
    with tg.open_device("null") as other:
        other.queue().barrier(wait=work, signal=end.at(1))
        return by_a_callback(scene, work, end.at(1), give)


Learn: TypeAlias = Callable[[Scene, tg.Submission, tg.Timepoint, Give], "BaseException | None"]

LEARN: tuple[Learn, ...] = (
    by_a_wait,
    by_a_wait_for_its_signal,
    by_wait_any,
    by_a_later_wait,
    by_a_callback,
    by_await,
    by_held_work,
    by_held_work_of_another_device,
)


# What follows from an allocation: each returns the last of what it submits, and what that signals ---------------------


def the_allocation_itself(scene: Scene, buffer: tg.Buffer, done: tg.Timepoint) -> tuple[tg.Submission, tg.Timepoint]:
    return ready(buffer), done


def a_fill_of_it(scene: Scene, buffer: tg.Buffer, done: tg.Timepoint) -> tuple[tg.Submission, tg.Timepoint]:
    end = tg.Semaphore()
    return scene.second.fill(buffer, 1, length=64, wait=buffer.ready, signal=end.at(1)), end.at(1)


def a_kernel_over_it(scene: Scene, buffer: tg.Buffer, done: tg.Timepoint) -> tuple[tg.Submission, tg.Timepoint]:
    end = tg.Semaphore()
    return scene.kernel(buffer, wait=done, signal=end.at(1)), end.at(1)


def a_chain(scene: Scene, buffer: tg.Buffer, done: tg.Timepoint) -> tuple[tg.Submission, tg.Timepoint]:
    """To the second allocation and work over that, which has room only when the first is freed again."""
    end = tg.Semaphore()
    filled = scene.kernel(buffer, wait=scene.second.fill(buffer, 1, wait=done))
    scene.second.free(buffer, wait=filled)
    again = scene.queue.allocate(NBYTES, wait=filled)
    scene.kept.append(again)
    return scene.second.fill(again, 2, wait=again.ready, signal=end.at(1)), end.at(1)


Follow: TypeAlias = Callable[[Scene, tg.Buffer, tg.Timepoint], tuple[tg.Submission, tg.Timepoint]]

FOLLOW: tuple[Follow, ...] = (the_allocation_itself, a_fill_of_it, a_kernel_over_it, a_chain)
