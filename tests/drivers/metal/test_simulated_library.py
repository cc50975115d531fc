"""Libraries of the simulated Metal: what compiles, what a kernel's arguments are, and function constants."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidegate.conformance import kernels
from tidegate.testing.metal_simulated.msl import parse

from .workbench import COMPLETED, ERROR, INCREMENT, Workbench


@pytest.fixture(autouse=True)
def pool(bench: Workbench) -> Iterator[None]:
    """Lists and dictionaries of names are autoreleased."""
    with bench.metal.autorelease_pool():
        yield


HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def log_of(bench: Workbench, source: str, options: Any = None) -> str:
    library, error = bench.device.newLibraryWithSource_options_error_(source, options, None)
    assert library is None
    assert error.domain() == "MTLLibraryErrorDomain"
    assert error.code() == 3
    return str(error.localizedDescription())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("#error this is wrong", "this is wrong"),
        ("kernel void f(device float *x [[buffer(0)]]) { ", "never closed"),
        ("kernel void f() { } }", "extraneous"),
        ("kernel void f(device nonsense *x [[buffer(0)]]) { }", "unknown type name 'nonsense'"),
        ("kernel void f(nonsense i [[thread_position_in_grid]]) { }", "unknown type name 'nonsense'"),
        ("kernel void f(uint i) { }", "invalid argument"),
        ("struct s { nonsense a; };", "unknown type name 'nonsense'"),
        ("kernel void f(device float *x [[buffer(0)]]) {\n x[0] = unheard_of; }", "'unheard_of'"),
        (kernels.DOES_NOT_COMPILE["metal"], "an_undeclared_name"),
    ],
)
def test_wrong_source_gives_an_error_with_the_log(bench: Workbench, source: str, said: str) -> None:
    """Rule source."""
    assert said in log_of(bench, source)


@pytest.mark.parametrize("name", sorted(kernels._METAL))
def test_the_kernels_of_the_conformance_suite_compile(bench: Workbench, name: str) -> None:
    kernel = getattr(kernels, name)
    pipeline = bench.pipeline(kernels._METAL[name], name)
    kinds = [each.kind for each in pipeline._kernel.parameters]
    assert kinds == ["buffer"] * kernel.signature.bindings + ["value"] * len(kernel.signature.constants)
    types = [each.type for each in pipeline._kernel.parameters if each.kind == "value"]
    assert [each.itemsize for each in types] == [each.itemsize for each in kernel.signature.constants]


def test_several_kernels_stand_in_one_source(bench: Workbench) -> None:
    library = bench.library(kernels.TWO_ENTRY_POINTS["metal"])
    assert library.functionNames() == ("twice", "negate")
    assert library.newFunctionWithName_("twice").name() == "twice"
    assert library.newFunctionWithName_("thrice") is None


def test_ordinary_source_compiles(bench: Workbench) -> None:
    source = (
        HEAD
        + """
    #define WIDTH 4 // a comment
    constant float table[2] = {1.0, 2.0};
    struct point { float3 place; packed_float3 colour; uint count, more; float rest[4]; };
    inline float square(float value) { return value * value; }
    template <typename T> T twice(T value) { return value + value; }
    /* two kernels */
    kernel void one(device const point *points [[buffer(0)]], device atomic_uint *total [[buffer(1)]],
        constant uint &n [[buffer(2)]], threadgroup float *scratch [[threadgroup(0)]],
        uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
        float sum = 0, other = table[0];
        for (uint k = 0; k < n && k < WIDTH; ++k) { sum += square(points[k].place.x) + twice(other); }
        scratch[lane] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i == 0) atomic_fetch_add_explicit(total, uint(sum), memory_order_relaxed);
        auto result = metal::max(sum, other);
        thread float *where = &result;
        *where = 1.0;
        return;
    }
    kernel void two() { }"""
    )
    library = bench.library(source)
    assert library.functionNames() == ("one", "two")


def test_arguments_without_an_index_are_numbered_in_order() -> None:
    kernel = parse("kernel void f(device float *x, constant uint &n, device int *y [[buffer(1)]]) { }")["f"]
    assert [(each.name, each.index) for each in kernel.parameters] == [("x", 0), ("y", 1), ("n", 2)]


def test_const_memory_is_not_written() -> None:
    kernel = parse("kernel void f(device const float *x, const device float *y, constant int *z, device int *w) { }")
    assert [each.writes for each in kernel["f"].parameters] == [False, False, False, True]


def test_macros_of_the_options_are_defined(bench: Workbench) -> None:
    source = (
        "#ifndef WIDTH\n#error no width\n#endif\n"
        "#if WIDTH >= 8\nkernel void wide() { }\n#else\nkernel void narrow() { }\n#endif"
    )
    assert "no width" in log_of(bench, source)
    options = bench.metal.MTLCompileOptions.alloc().init()
    options.setPreprocessorMacros_({"WIDTH": "8"})
    library, error = bench.device.newLibraryWithSource_options_error_(source, options, None)
    assert (library.functionNames(), error) == (("wide",), None)
    with pytest.raises(TypeError, match="names are strings"):
        options.setPreprocessorMacros_({1: "2"})


def test_a_metallib_comes_as_dispatch_data(bench: Workbench) -> None:
    """Rule library-data."""
    data = bench.metal.metallib(INCREMENT)
    given = bench.metal.dispatch_data_create(data, len(data), None, None)
    library, error = bench.device.newLibraryWithData_error_(given, None)
    assert (library.functionNames(), error) == (("increment",), None)
    for wrong in (data, bench.metal.NSData.dataWithBytes_length_(data, len(data))):
        with bench.breaks("library-data"):
            bench.device.newLibraryWithData_error_(wrong, None)
    junk = bench.metal.dispatch_data_create(b"junk", 4, None, None)
    assert bench.device.newLibraryWithData_error_(junk, None)[1].code() == 1


def test_a_metallib_comes_from_a_file(bench: Workbench, tmp_path: Path) -> None:
    path = tmp_path / "x.metallib"
    path.write_bytes(bench.metal.metallib(INCREMENT))
    url = bench.metal.NSURL.fileURLWithPath_
    library, error = bench.device.newLibraryWithURL_error_(url(str(path)), None)
    assert (library.functionNames(), error) == (("increment",), None)
    assert bench.device.newLibraryWithURL_error_(url(str(tmp_path / "none")), None)[1].code() == 6


CONSTANTS = "constant uint width [[function_constant(0)]];\nconstant bool flag [[function_constant(3)]];\n"
SPECIAL = CONSTANTS + "kernel void special(device uint *x [[buffer(0)]]) { if (flag) x[0] = width; }"


def special(bench: Workbench, values: dict[Any, tuple[bytes, int]]) -> tuple[Any, Any]:
    made = bench.metal.MTLFunctionConstantValues.alloc().init()
    for where, (data, kind) in values.items():
        held = ctypes.create_string_buffer(data, len(data))
        if isinstance(where, str):
            made.setConstantValue_type_withName_(ctypes.addressof(held), kind, where)
        else:
            made.setConstantValue_type_atIndex_(ctypes.addressof(held), kind, where)
    given: tuple[Any, Any] = bench.library(SPECIAL).newFunctionWithName_constantValues_error_("special", made, None)
    return given


def test_a_kernel_gets_the_values_of_its_function_constants(bench: Workbench) -> None:
    """Rule function-constants."""
    seen: list[Any] = []
    bench.metal.register("special", lambda groups, bindings, values, constants: seen.append(constants))
    function, error = special(bench, {"width": (np.uint32(7).tobytes(), 33), 3: (b"\1", 53)})
    assert error is None
    pipeline, error = bench.device.newComputePipelineStateWithFunction_error_(function, None)
    assert error is None
    bench.run(pipeline, buffers=[bench.buffer(16)]).waitUntilCompleted()
    assert seen == [{"width": 7, "flag": True}]


def test_a_function_tells_its_constants(bench: Workbench) -> None:
    found = bench.library(SPECIAL).newFunctionWithName_("special").functionConstantsDictionary()
    assert {name: (each.type(), each.index()) for name, each in found.items()} == {"width": (33, 0), "flag": (53, 3)}


def test_a_missing_constant_makes_no_function_and_no_pipeline(bench: Workbench) -> None:
    """Rule function-constants."""
    function, error = special(bench, {"width": (np.uint32(7).tobytes(), 33)})
    assert function is None
    assert "flag" in error.localizedDescription()
    bare = bench.library(SPECIAL).newFunctionWithName_("special")
    pipeline, error = bench.device.newComputePipelineStateWithFunction_error_(bare, None)
    assert pipeline is None
    assert "width, flag" in error.localizedDescription()


def test_a_constant_of_another_type_is_refused(bench: Workbench) -> None:
    """Rule function-constants."""
    with bench.breaks("function-constants"):
        special(bench, {"width": (np.float32(7).tobytes(), 3), "flag": (b"\1", 53)})
    with bench.breaks("function-constants"):
        special(bench, {"width": (b"7", 58)})


def test_the_value_of_a_constant_is_an_address(bench: Workbench) -> None:
    """PyObjC has no metadata for this pointer, and takes bytes for an error."""
    made = bench.metal.MTLFunctionConstantValues.alloc().init()
    with pytest.raises(TypeError, match="must be an int"):
        made.setConstantValue_type_withName_(b"1234", 33, "width")
    assert bench.broken() == ["argument-type"]


def test_a_function_that_is_not_there_gives_an_error(bench: Workbench) -> None:
    made = bench.metal.MTLFunctionConstantValues.alloc().init()
    function, error = bench.library(SPECIAL).newFunctionWithName_constantValues_error_("none", made, None)
    assert (function, error.code()) == (None, 5)


def test_compiling_and_pipelines_can_be_made_to_fail(bench: Workbench) -> None:
    bench.metal.fault("compile", text="asked for")
    assert log_of(bench, INCREMENT) == "asked for"
    function = bench.library(INCREMENT).newFunctionWithName_("increment")
    bench.metal.fault("pipeline", text="asked for too")
    pipeline, error = bench.device.newComputePipelineStateWithFunction_error_(function, None)
    assert (pipeline, error.localizedDescription()) == (None, "asked for too")


def test_a_kernel_without_a_host_function_fails_when_it_runs(bench: Workbench) -> None:
    commands = bench.run(bench.pipeline("kernel void stranger() { }", "stranger"))
    commands.waitUntilCompleted()
    assert commands.status() == ERROR
    assert "no host function is registered for the kernel stranger" in commands.error().localizedDescription()


def test_python_forms_of_kernels_are_registered(bench: Workbench) -> None:
    bench.metal.register_kernels([kernels.write_ids])
    buffer = bench.buffer(16)
    commands = bench.run(bench.pipeline(kernels._METAL["write_ids"], "write_ids"), buffers=[buffer])
    commands.waitUntilCompleted()
    assert commands.status() == COMPLETED
