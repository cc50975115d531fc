"""Executables: loading them, what they know of their functions, and kernels that fault."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .buffers import words
from .latches import LIMIT
from .subjects import Subject

pytestmark = [pytest.mark.rules("M32"), pytest.mark.needs("work")]

N = 1000


def floats(device: tg.Device, n: int = N, value: float = 0) -> tg.Buffer:
    return device.upload(np.full(n, value, np.float32))


@contextmanager
def compiler_or_skip() -> Iterator[None]:
    """A driver may be here without what it compiles source with."""
    try:
        yield
    except tg.DriverUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.rules("M32")
def test_a_function_knows_what_it_takes(device: tg.Device, kernels: ModuleType) -> None:
    executable = device.load(kernels.scale_offset)
    assert list(executable.functions) == ["scale_offset"]
    function = executable["scale_offset"]
    assert function.name == "scale_offset"
    assert function.bindings == 2
    assert [np.dtype(kind) for kind in function.constants or ()] == [np.float32, np.float32, np.uint32]
    assert tuple(function.workgroup) == (256, 1, 1)
    assert "scale_offset" in repr(function)


@pytest.mark.rules("M32")
def test_one_source_may_have_two_entry_points(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, subject: Subject
) -> None:
    with compiler_or_skip():
        executable = device.load(kernels.TWO_ENTRY_POINTS[subject.language])
    assert sorted(executable.functions) == ["negate", "twice"]
    buffer = device.upload(np.arange(1, 9, dtype=np.float32))
    twice, negate = executable["twice"], executable["negate"]
    first = queue.dispatch(twice, twice.workgroups_for(8), bindings=[buffer], constants=[np.uint32(8)])
    second = queue.dispatch(negate, negate.workgroups_for(8), bindings=[buffer], constants=[np.uint32(8)], wait=first)
    queue.dispatch(twice, twice.workgroups_for(4), bindings=[buffer], constants=[np.uint32(4)], wait=second).wait(LIMIT)
    assert buffer.to_numpy(np.float32, timeout=LIMIT).tolist() == [-4, -8, -12, -16, -10, -12, -14, -16]


@pytest.mark.rules("M16", "M32")
def test_an_unknown_function_name_is_not_found_and_the_known_ones_are_listed(
    device: tg.Device, kernels: ModuleType, subject: Subject
) -> None:
    with compiler_or_skip():
        executable = device.load(kernels.TWO_ENTRY_POINTS[subject.language])
    with pytest.raises(tg.NotFoundError, match=r"thrice.*(negate.*twice|twice.*negate)"):
        executable["thrice"]


@pytest.mark.rules("M16", "M32")
def test_a_source_that_does_not_compile_raises_with_the_compilers_log(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, subject: Subject
) -> None:
    with compiler_or_skip(), pytest.raises(tg.CompileError) as caught:
        device.load(kernels.DOES_NOT_COMPILE[subject.language])
    assert "an_undeclared_name" in caught.value.log
    queue.barrier().wait(LIMIT)


@pytest.mark.rules("M16", "M32")
@pytest.mark.parametrize("source", [None, 17, 2.5, object()], ids=["None", "int", "float", "object"])
def test_what_is_no_source_is_refused(device: tg.Device, source: Any) -> None:
    with pytest.raises((TypeError, tg.UnsupportedError)):
        device.load(source)


@pytest.mark.rules("M32")
def test_a_kernel_without_an_implementation_for_this_driver_is_unsupported(device: tg.Device) -> None:
    nowhere = tg.Kernel("nowhere", bindings=1, elsewhere="source for a driver of another package")
    with pytest.raises(tg.UnsupportedError, match="nowhere"):
        device.load(nowhere)


@pytest.mark.rules("M18", "M32")
def test_a_function_outlives_its_executable(device: tg.Device, queue: tg.Queue, kernels: ModuleType) -> None:
    increment = kernels.load(device, kernels.increment)
    counters = device.upload(np.zeros(N, np.uint32))
    queue.dispatch(increment, increment.workgroups_for(N), bindings=[counters], constants=[N]).wait(LIMIT)
    assert set(words(counters).tolist()) == {1}


@pytest.mark.needs("fault")
@pytest.mark.rules("M16", "M17", "M32")
def test_a_kernel_that_faults_fails_its_signals_and_what_follows_and_nothing_else(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    fault = kernels.load(device, kernels.fault)
    buffer = floats(device)
    done = tg.Semaphore()
    faulty = queue.dispatch(fault, (1, 1, 1), signal=done.at(1))
    behind = queue.fill(buffer, 1, wait=done.at(1))
    beside = queue.barrier()
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        behind.wait(LIMIT)
    with pytest.raises(tg.SemaphoreFailedError):
        faulty.wait(LIMIT)
    assert caught.value.__cause__ is faulty.error
    assert done.failure is faulty.error
    beside.wait(LIMIT)
    increment = kernels.load(device, kernels.increment)
    counters = device.upload(np.zeros(N, np.uint32))
    queue.dispatch(increment, increment.workgroups_for(N), bindings=[counters], constants=[N]).wait(LIMIT)
    assert set(words(counters).tolist()) == {1}


@pytest.mark.needs("fault")
@pytest.mark.rules("M17", "M29", "M32")
def test_a_kernel_that_faults_in_a_command_buffer_fails_its_submission(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    fault = kernels.load(device, kernels.fault)
    with device.record() as commands:
        commands.fill(floats(device), 1)
        commands.barrier()
        commands.dispatch(fault, (1, 1, 1))
        commands.barrier()
        commands.fill(floats(device), 2)
    done = tg.Semaphore()
    run = queue.execute(commands, signal=done.at(1))
    with pytest.raises(tg.SemaphoreFailedError):
        run.wait(LIMIT)
    assert done.failure is run.error
    queue.barrier().wait(LIMIT)
