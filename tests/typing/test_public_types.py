"""What a type checker must infer for a user's program. `mypy tests/typing` checks it, and pytest runs it as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import pytest

import tidegate as tg


def double(workgroups: tuple[int, int, int], bindings: list[npt.NDArray[np.uint8]], constants: tuple[Any, ...]) -> None:
    bindings[0].view(np.float32)[:] *= 2


def test_timelines_are_typed() -> None:
    sem = tg.Semaphore(3, label="typed")
    assert_type(sem.value, int)
    assert_type(sem.query(), int)
    assert_type(sem.failure, BaseException | None)
    assert_type(sem.at(4), tg.Timepoint)
    assert_type(sem.next(), tg.Timepoint)
    assert_type(sem.at(1).reached, bool)
    assert_type(sem.at(1).semaphore, tg.Semaphore)
    assert_type(tg.explain(sem.at(9)), str)

    def callback(point: tg.Timepoint, outcome: tg.Outcome, error: BaseException | None) -> None:
        assert outcome is tg.Outcome.REACHED

    subscription = sem.at(1).add_callback(callback)
    assert_type(subscription, tg.Subscription)
    assert_type(subscription.cancel(), bool)


def test_waits_take_timepoints_and_submissions_mixed() -> None:
    sem = tg.Semaphore(1)
    with tg.open_device("cpu") as device:
        points: list[tg.Timepoint | tg.Submission] = [sem.at(1), device.queue().barrier()]
        tg.wait_all(points, timeout=30)
        assert tg.wait_any(points, timeout=30) in points
        assert tg.wait_any([], timeout=0) is None


def test_devices_and_queues_are_typed() -> None:
    with tg.open_device("cpu", label="typed") as device:
        assert_type(device, tg.Device)
        assert_type(device.info, tg.DeviceInfo)
        assert_type(device.queue(), tg.Queue)
        assert_type(device.lane(), tg.Lane)
        assert_type(device.create_semaphore(), tg.Semaphore)
        assert_type(device.allocate(16), tg.Buffer)
        assert_type(device.statistics(), tg.Statistics)
        queue = device.queue()
        buffer = queue.allocate(16)
        assert_type(buffer, tg.Buffer)
        assert_type(buffer.nbytes, int)
        fill = queue.fill(buffer, 0, wait=buffer.ready)
        assert fill.cancel() in (True, False)
        fill.wait(timeout=30)
        assert_type(fill.done, bool)
        assert_type(fill.error, BaseException | None)
        assert_type(fill.explain(), str)
        assert_type(buffer.read(timeout=30), bytes)
        assert_type(buffer.subspan(0, 8), tg.Buffer)
        assert_type(buffer.view(np.float32), tg.BufferView)


def test_every_form_of_wait_and_signal_is_accepted() -> None:
    sem = tg.Semaphore(1)
    with tg.open_device("cpu") as device:
        queue = device.queue()
        first = queue.barrier(wait=None, signal=None)
        second = queue.barrier(wait=first, signal=sem.at(2))
        third = queue.barrier(wait=[first, sem.at(1)], signal=[sem.at(3)])
        generated: Iterable[tg.Timepoint | tg.Submission] = (point for point in (second, third))
        queue.barrier(wait=generated, signal=(sem.next(),)).wait(timeout=30)


def test_executables_and_command_buffers_are_typed() -> None:
    with tg.open_device("cpu") as device:
        executable = device.load(double)
        assert_type(executable, tg.Executable)
        function = executable["double"]
        assert_type(function, tg.Function)
        assert_type(function.name, str)
        assert_type(function.workgroups_for(10), tuple[int, int, int])
        buffer = device.upload(np.ones(4, dtype=np.float32))
        with device.record() as commands:
            assert_type(commands, tg.CommandBuffer)
            node = commands.fill(tg.slot(0), 0)
            commands.dispatch(function, (1, 1, 1), bindings=[tg.slot(0), buffer], after=[node])
        device.queue().execute(commands, bindings=[buffer]).wait(timeout=30)


def test_what_can_be_awaited_is_awaitable() -> None:
    with tg.open_device("cpu") as device:
        submission = device.queue().host_call(lambda: 3)
        waits: list[Awaitable[object]] = [submission, tg.Semaphore(1).at(1)]
        assert len(waits) == 2
        assert submission.result(timeout=30) == 3


def test_an_error_is_also_its_built_in() -> None:
    raised: list[Callable[[], object]] = [lambda: tg.Semaphore().signal(0), lambda: tg.Semaphore(-1)]
    for wrong in raised:
        with pytest.raises(ValueError) as caught:
            wrong()
        assert isinstance(caught.value, tg.InvalidArgumentError)
