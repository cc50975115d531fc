"""Loading code waits for a moment of rest, and holds up nothing that this moment might depend on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate._core.device import Device
from tidegate.conformance.threads import background
from tidegate.driver import DeviceRequest
from tidegate.drivers.cuda import CudaDriver, _prototypes, code, page_locked
from tidegate.testing import cuda_simulated

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedBench]:
    monkeypatch.setattr(code, "_PATIENCE", 0.01)
    with bench() as made:
        yield made


def _loading(found: SimulatedBench) -> Any:
    """Begin to load new code while a kernel runs; return when new work is kept back for that."""
    loading = background(lambda: found.device.load(TOUCH))
    until(lambda: found.driver.quiet)
    return loading


def test_what_is_submitted_while_code_waits_to_be_loaded_goes_down_although_a_kernel_runs(
    found: SimulatedBench,
) -> None:
    """The kernel may be waiting for just that."""
    latch, _ = found.latch()
    loading = _loading(found)
    found.queue.fill(found.shared(), 1).wait(LIMIT)
    assert loading.running
    latch.open()
    loading.result()


def test_a_foreign_stream_that_is_followed_meanwhile_keeps_nobody_waiting(found: SimulatedBench) -> None:
    """It has a stream lent, which is not at rest before its work is issued."""
    latch, _ = found.latch()
    with found.foreign_stream() as stream:
        loading = _loading(found)
        point = lowlevel.from_cuda_stream(found.device, stream)
        latch.open()
        point.wait(LIMIT)
        loading.result()


def test_code_is_loaded_although_there_is_always_more_to_do(found: SimulatedBench) -> None:
    stop, queue, target = threading.Event(), found.queue, found.shared()

    def flood() -> None:
        last: list[tg.Submission] = []
        while not stop.is_set():
            last = [*last[-8:], queue.fill(target, 1)]
            if len(last) > 8:
                last[0].wait(LIMIT)

    flooding = background(flood)
    try:
        found.device.load(TOUCH)
    finally:
        stop.set()
    flooding.result()


def test_an_interrupted_load_keeps_nothing_back(found: SimulatedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    latch, _ = found.latch()

    def interrupted(seconds: float) -> None:
        if found.driver.quiet:
            raise KeyboardInterrupt
        time.sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(code, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
        with pytest.raises(KeyboardInterrupt):
            found.device.load(TOUCH)
    until(lambda: not found.driver.quiet)
    found.queue.fill(found.shared(), 1).wait(LIMIT)
    latch.open()


def test_a_load_that_fails_keeps_nothing_back(found: SimulatedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    latch, _ = found.latch()
    loading = _loading(found)

    def broken(kernel: int) -> int:
        raise RuntimeError("broken")

    monkeypatch.setattr(found.native, "function", broken)
    latch.open()
    with pytest.raises(RuntimeError, match="broken"):
        loading.result()
    until(lambda: not found.driver.quiet)


def test_a_device_that_is_opened_while_code_is_loaded_waits_for_that(
    found: SimulatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it began in that moment would be waited for, with a lock of CUDA's held."""
    inside, go_on, function = threading.Event(), threading.Event(), found.native.function

    def slow(kernel: int) -> int:
        inside.set()
        assert go_on.wait(LIMIT)
        return function(kernel)

    monkeypatch.setattr(found.native, "function", slow)
    loading = background(lambda: found.device.load(TOUCH))
    assert inside.wait(LIMIT)
    opening = background(found.open)
    joined = len(page_locked._open)
    go_on.set()
    loading.result()
    opening.result()
    assert len(page_locked._open) == joined + 1


def _other_way(found: SimulatedBench) -> Device:
    """Open a device on the same card by a second way to CUDA, as `gil=release` is one."""

    class Other:
        def __getattr__(self, name: str) -> Any:
            return getattr(found.native, name)

    native: Any = Other()
    driver = CudaDriver(lambda release_gil: native, cuda_simulated.SimulatedNvrtc)
    return Device(driver, driver.open(DeviceRequest("cuda", "cuda", "", {})), "cuda", "")


def test_closing_takes_no_code_away_while_another_way_to_the_same_card_has_work(found: SimulatedBench) -> None:
    other = _other_way(found)
    touch = other.load(TOUCH)["touch"]
    other.queue().dispatch(touch, (1, 1, 1), bindings=[other.allocate(64)]).wait(LIMIT)
    latch, _ = found.latch()
    libraries = found.native.counts["libraries"]
    closing = background(lambda: other.close(LIMIT))
    closing.result()
    assert found.native.counts["libraries"] == libraries
    latch.open()


def test_the_last_device_takes_its_code_away() -> None:
    with bench() as found:
        found.device.load(TOUCH)
        assert found.native.counts["libraries"] == 1
    assert found.native.counts["libraries"] == 0


def test_nothing_is_brought_onto_the_gpu_while_a_kernel_runs(
    found: SimulatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these calls does that: it waits for the kernel, and meanwhile holds everybody up."""
    latch, blocked = found.latch()
    early: list[str] = []

    def watched(name: str) -> None:
        call = getattr(found.native, name)

        def called(*arguments: Any) -> Any:
            if not blocked.done:
                early.append(name)
            return call(*arguments)

        monkeypatch.setattr(found.native, name, called)

    for name in ("kernel_parameters", "function", "module"):
        watched(name)
    named = background(lambda: found.device.load(TOUCH))
    all_of_it = background(lambda: found.device.load('extern "C" __global__ void one(unsigned *x) { x[0] = 1; }'))
    broken = background(lambda: found.device.load(".version 8.0\n.entry broken()\n{\nno_such_instruction;\n}\n"))
    until(lambda: len(found.driver.quiet) == 3)
    latch.open()
    assert list(named.result().functions) == ["touch"]
    assert list(all_of_it.result().functions) == ["one"]
    with pytest.raises(tg.CompileError):
        broken.result()
    assert early == []
    assert found.native.violations == []


def test_all_functions_of_code_are_loaded_in_one_moment_of_rest(
    found: SimulatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments, at_rest = [], code.at_rest

    def counted(then: Callable[[], None]) -> bool:
        moments.append(then)
        return at_rest(then)

    monkeypatch.setattr(code, "at_rest", counted)
    source = "".join(f'extern "C" __global__ void each_{n}(unsigned *x) {{ x[0] = {n}; }}\n' for n in range(5))
    assert len(found.device.load(source).functions) == 5
    assert len(moments) == 1
    found.device.load(source)
    assert len(moments) == 1, "it is there already"


def test_every_call_about_code_gives_the_gil_away() -> None:
    about_code = {
        name for name in _prototypes.PROTOTYPES if name.startswith(("cuLibrary", "cuKernel", "cuFunc", "cuModule"))
    }
    assert "cuKernelGetParamInfo" in about_code
    assert about_code <= _prototypes.BLOCKING


def test_two_loads_at_once_both_end(found: SimulatedBench) -> None:
    latch, _ = found.latch()
    other = tg.Kernel("other", cuda='extern "C" __global__ void other(unsigned *x) { x[0] = 2; }', bindings=1)
    loads: list[Callable[[], object]] = [lambda: found.device.load(TOUCH), lambda: found.device.load(other)]
    loading = [background(load) for load in loads]
    until(lambda: len(found.driver.quiet) == 2)
    latch.open()
    for each in loading:
        each.result()
    until(lambda: not found.driver.quiet)
