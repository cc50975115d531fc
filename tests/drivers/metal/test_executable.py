"""Executables: source, metallibs, function constants, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance import kernels
from tidegate.drivers.metal.msl_reflect import reflect

from .driver_bench import LIMIT, DriverBench, words

TWO = kernels.TWO_ENTRY_POINTS["metal"]


def test_source_that_does_not_compile_carries_the_log(metal: DriverBench) -> None:
    with pytest.raises(tg.CompileError) as caught:
        metal.device.load(kernels.DOES_NOT_COMPILE["metal"])
    assert "an_undeclared_name" in caught.value.log
    assert caught.value.native_code is not None


def test_a_metallib_loads_from_bytes_and_from_a_file(metal: DriverBench, tmp_path: Path) -> None:
    data = metal.native.metallib(TWO)
    path = tmp_path / "two.metallib"
    path.write_bytes(data)
    for source in (data, bytearray(data), path):
        executable = metal.device.load(source)
        assert sorted(executable.functions) == ["negate", "twice"]
        assert executable["twice"].bindings is None
        buffer = metal.device.upload(np.ones(8, np.float32))
        metal.queue.dispatch(executable["twice"], 1, bindings=[buffer], constants=[np.uint32(8)]).wait(LIMIT)
        assert buffer.to_numpy(np.float32, timeout=LIMIT).tolist() == [2] * 8


def test_a_constant_without_a_type_is_refused_where_nothing_tells_it(metal: DriverBench) -> None:
    twice = metal.device.load(metal.native.metallib(TWO))["twice"]
    call = metal.queue.dispatch(twice, 1, bindings=[metal.upload()], constants=[8])
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        call.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.InvalidArgumentError)
    assert "np.float32" in str(caught.value.__cause__)


def test_source_loads_from_a_file(metal: DriverBench, tmp_path: Path) -> None:
    path = tmp_path / "two.metal"
    path.write_text(TWO)
    assert sorted(metal.device.load(path).functions) == ["negate", "twice"]


def test_what_is_no_metallib_is_a_compile_error(metal: DriverBench) -> None:
    with pytest.raises(tg.CompileError, match="metallib"):
        metal.device.load(b"nothing of the kind")


@pytest.mark.parametrize("options", [("fast",), ("workgroup=0",), ("workgroup=1,2,3,4",), ("-D2x",), ("constant:a",)])
def test_unknown_and_wrong_options_are_refused(metal: DriverBench, options: tuple[str, ...]) -> None:
    with pytest.raises(tg.InvalidArgumentError, match=r"workgroup|known ones"):
        metal.device.load(TWO, options=options)


@pytest.mark.parametrize(("source", "format"), [(TWO, "spirv"), (TWO, "metallib"), (b"x", "msl")])
def test_a_format_that_does_not_fit_is_refused(metal: DriverBench, source: Any, format: str) -> None:
    with pytest.raises((tg.InvalidArgumentError, tg.UnsupportedError)):
        metal.device.load(source, format=format)


def test_the_workgroup_comes_from_the_declaration_the_option_or_the_pipeline() -> None:
    bench = DriverBench(max_threads=64)
    assert bench.device.load(TWO)["twice"].workgroup == (64, 1, 1)
    assert bench.device.load(TWO, options=("workgroup=8,2",))["twice"].workgroup == (8, 2, 1)
    with pytest.raises(tg.InvalidArgumentError, match="256 threads, and its pipeline takes at most 64"):
        kernels.load(bench.device, kernels.increment)
    assert bench.device.load(kernels.increment, options=("workgroup=32",))["increment"].workgroup == (32, 1, 1)
    bench.close()


def test_a_kernel_of_another_name_than_declared_is_not_found(metal: DriverBench) -> None:
    with pytest.raises(tg.NotFoundError, match=r"thrice.*negate"):
        metal.device.load(tg.Kernel("thrice", metal=TWO, bindings=1))


def test_a_pipeline_that_metal_refuses_is_a_compile_error(metal: DriverBench) -> None:
    metal.native.fault("pipeline", text="too many registers")
    with pytest.raises(tg.CompileError, match="too many registers"):
        kernels.load(metal.device, kernels.increment)


def test_macros_reach_the_preprocessor(metal: DriverBench) -> None:
    kernel = "#ifdef ASKED\nkernel void asked() { }\n#endif\nkernel void always() { }"
    metal.native.register("asked", lambda *_: None)
    metal.native.register("always", lambda *_: None)
    assert sorted(metal.device.load(kernel, options=("-DASKED=1",)).functions) == ["always", "asked"]


CONSTANTS = """
constant uint add [[function_constant(0)]];
kernel void adds(device uint *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += add; }
"""


def test_function_constants_are_set_by_name(metal: DriverBench) -> None:
    def adds(_workgroups: Any, bindings: Any, _constants: Any, chosen: Any) -> None:
        bindings[0].view(np.uint32)[:4] += np.uint32(next(iter(chosen.values())))

    metal.native.register("adds", adds)
    buffer = metal.upload(4)
    for value in ("5", "0x10"):
        function = metal.device.load(CONSTANTS, options=(f"constant:add={value}",))["adds"]
        metal.queue.dispatch(function, 1, bindings=[buffer]).wait(LIMIT)
    assert words(buffer) == [21, 22, 23, 24]
    with pytest.raises(tg.InvalidArgumentError, match="uint32"):
        metal.device.load(CONSTANTS, options=("constant:add=much",))


def test_a_function_outlives_what_it_was_loaded_from(metal: DriverBench) -> None:
    latch = metal.latch()
    buffer = metal.upload()
    done = metal.queue.dispatch(
        kernels.load(metal.device, kernels.increment),
        1,
        bindings=[buffer],
        constants=[64],
        wait=latch.block(metal.queue),
    )
    latch.open()
    done.wait(LIMIT)
    assert words(buffer)[0] == 1


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("device float *x [[buffer(0)]], constant uint &n [[buffer(1)]]", (1, (np.dtype(np.uint32),))),
        ("const device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]", (1, ())),
        (
            "constant float &a [[ buffer( 0 ) ]], constant half &b [[buffer(1)]]",
            (0, tuple(map(np.dtype, ("f4", "f2")))),
        ),
        ("device float *x [[buffer(0)]], constant table &t [[buffer(1)]]", (1, None)),
        ("constant uint &n [[buffer(0)]], device float *x [[buffer(1)]]", (None, None)),
        ("device float *x", (None, None)),
        ("threadgroup float *x [[threadgroup(0)]]", (0, ())),
        ("", (0, ())),
    ],
)
def test_arguments_are_read_from_the_source(parameters: str, expected: Any) -> None:
    assert reflect(f"// kernel void no(int)\nkernel void k({parameters}) {{ }}") == {"k": expected}


def test_a_kernel_head_that_never_ends_is_left_to_the_compiler() -> None:
    assert reflect("kernel void k(device float *x") == {}
    assert reflect("[[kernel]] void k() { }") == {"k": (0, ())}


def test_a_call_with_more_arguments_than_metal_passes_is_refused(metal: DriverBench) -> None:
    buffer = metal.upload()
    names = ", ".join(f"device uint *x{index} [[buffer({index})]]" for index in range(31))
    full = metal.host_kernel(lambda *_arguments: None, names, bindings=31)
    metal.queue.dispatch(full, 1, bindings=[buffer] * 31).wait(LIMIT)
    twice = metal.device.load(metal.native.metallib(TWO))["twice"]
    call = metal.queue.dispatch(twice, 1, bindings=[buffer] * 31, constants=[np.uint32(1)])
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        call.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.InvalidArgumentError)
    assert "31 bindings and 1 constants" in str(caught.value.__cause__)


def test_functions_that_are_no_kernels_are_left_out(metal: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metal's validation ends the process if a pipeline is made of one."""
    from tidegate.drivers.metal import _native

    monkeypatch.setattr(_native, "is_kernel", lambda function: function.name() == "twice")
    assert list(metal.device.load(TWO)) == ["twice"]
    monkeypatch.setattr(_native, "is_kernel", lambda _function: False)
    with pytest.raises(tg.CompileError, match="is no kernel"):
        metal.device.load(TWO)
