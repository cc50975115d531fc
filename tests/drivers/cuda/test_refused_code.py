"""Code that CUDA does not take is a CompileError at `load`, whichever call CUDA tells it by: loading checks nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate.drivers.cuda._native import NativeError
from tidegate.testing import cuda_simulated
from tidegate.testing.cuda_simulated.codes import native_error

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench

PTX = ".version 8.0\n.target sm_90\n.visible .entry {name}()\n{{\n{body}\n}}\n"
NO_KERNELS = ".version 8.0\n.target sm_90\n"
SOURCE = 'extern "C" __global__ void only(unsigned *x) { x[0] = 11; }'

Load = Callable[[SimulatedBench], object]

LOADS: dict[str, Load] = {
    "all of it": lambda found: found.device.load(SOURCE),
    "a kernel": lambda found: found.device.load(TOUCH),
}

STEPS = [
    *((load, step) for load in LOADS for step in ("load_library", "function", "kernel_parameters")),
    ("all of it", "kernels"),
    ("a kernel", "kernel"),
]
"""Any of these calls may be the one that tells."""

CODES = [200, 209, 218, 221, 222, 223, 300]


@pytest.fixture
def found() -> Iterator[SimulatedBench]:
    with bench() as made:
        yield made
    assert made.native.violations == []


def _refusing(code: int) -> Callable[..., Any]:
    def refused(*_: Any) -> Any:
        raise native_error("cuLibrary", code)

    return refused


def _goes_on(found: SimulatedBench) -> None:
    found.queue.fill(found.device.allocate(64), 1).wait(LIMIT)
    assert not found.driver.quiet
    assert found.device.health is tg.Health.OK


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("load", "step"), STEPS)
def test_whichever_call_refuses_the_code_it_is_a_compile_error(
    found: SimulatedBench, monkeypatch: pytest.MonkeyPatch, load: str, step: str, code: int
) -> None:
    monkeypatch.setattr(found.native, step, _refusing(code))
    monkeypatch.setattr(found.native, "load_log", lambda image: "line 5: what is this?")
    with pytest.raises(tg.CompileError) as caught:
        LOADS[load](found)
    assert caught.value.native_code == code
    assert caught.value.log == "line 5: what is this?"
    assert isinstance(caught.value.__cause__, NativeError)
    _goes_on(found)


@pytest.mark.parametrize("load", LOADS)
def test_code_that_is_said_to_have_no_kernels_is_looked_at_as_a_whole(
    found: SimulatedBench, monkeypatch: pytest.MonkeyPatch, load: str
) -> None:
    monkeypatch.setattr(found.native, "kernels", lambda library: {})
    monkeypatch.setattr(found.native, "kernel", _refusing(500))
    monkeypatch.setattr(found.native, "module", _refusing(209))
    with pytest.raises(tg.CompileError) as caught:
        LOADS[load](found)
    assert caught.value.native_code == 209
    _goes_on(found)


def test_broken_ptx_is_told_with_the_compilers_words(found: SimulatedBench) -> None:
    with pytest.raises(tg.CompileError) as caught:
        found.device.load(PTX.format(name="broken", body="no_such_instruction;"))
    assert (caught.value.native_code, "ptxas" in caught.value.log) == (218, True)
    _goes_on(found)


@pytest.mark.slow
def test_a_cubin_for_another_card_is_told(found: SimulatedBench) -> None:
    image = cuda_simulated.SimulatedNvrtc().compile(SOURCE, "other.cu", ["--gpu-architecture=sm_80"])
    with pytest.raises(tg.CompileError) as caught:
        found.device.load(image, format="cubin")
    assert caught.value.native_code == 209


def test_a_kernel_in_broken_code_is_told_although_another_one_runs(found: SimulatedBench) -> None:
    """To find it needs nothing of the GPU, so nobody has to wait for a moment of rest."""
    latch, blocked = found.latch()
    broken = PTX.format(name="broken", body="no_such_instruction;")
    with pytest.raises(tg.CompileError) as caught:
        found.device.load(tg.Kernel("broken", cuda=broken, bindings=0))
    assert caught.value.native_code == 218
    assert not blocked.done
    latch.open()


def test_ptx_without_kernels_says_that_it_has_none(found: SimulatedBench) -> None:
    with pytest.raises(tg.CompileError, match="no kernels"):
        found.device.load(NO_KERNELS)
    _goes_on(found)


def test_a_kernel_that_is_not_in_its_code_names_those_that_are(found: SimulatedBench) -> None:
    misnamed = tg.Kernel("other", cuda=SOURCE, bindings=1)
    with pytest.raises(
        tg.CompileError, match=r"'other': the code has no such entry point; it has only\. In CUDA C\+\+"
    ):
        found.device.load(misnamed)
    _goes_on(found)


@pytest.mark.parametrize("missing", ["cuLibraryEnumerateKernels", "cuKernelGetName"])
def test_an_older_driver_takes_kernels_only(missing: str) -> None:
    with bench(without=[missing]) as found:
        with pytest.raises(tg.UnsupportedError, match=r"tg\.Kernel"):
            found.device.load(SOURCE)
        assert list(found.device.load(TOUCH).functions) == ["touch"]


def test_a_device_that_is_lost_meanwhile_is_no_bad_code(found: SimulatedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found.native, "function", _refusing(700))
    with pytest.raises(tg.DeviceLostError):
        found.device.load(TOUCH)


def test_a_log_that_cannot_be_had_hides_nothing(found: SimulatedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found.native, "module", _refusing(218))
    monkeypatch.setattr(found.native, "load_log", _refusing(2))
    with pytest.raises(tg.CompileError) as caught:
        found.device.load(NO_KERNELS)
    assert (caught.value.native_code, caught.value.log) == (218, "")
