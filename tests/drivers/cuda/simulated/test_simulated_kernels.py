"""Kernels of the simulation: CUDA C++ compiled for the host, and Python where nothing can be compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tidegate.conformance import kernels
from tidegate.drivers.cuda._nvrtc import CompilerError
from tidegate.drivers.cuda._prototypes import FunctionAttribute
from tidegate.testing import cuda_simulated

ARCHITECTURE = ["--gpu-architecture=sm_90"]


def test_every_thread_of_every_block_runs_once(bench: Any) -> None:
    count = 2 * 3 * 2 * 4 * 2 * 3
    address, stream = bench.memory(4 * count), bench.stream()
    bench.native.fill(address, 0, 4, count, stream)
    bench.launch(stream, "threads", address, grid=(2, 3, 2), block=(4, 2, 3))
    bench.native.synchronize_stream(stream)
    assert set(np.frombuffer(bench.read(address, 4 * count), np.uint32)) == {1}


def test_threads_of_a_block_meet_at_barriers(bench: Any) -> None:
    words, stream = bench.words(256), bench.stream()
    values = np.ctypeslib.as_array(words).view(np.uint32)
    values[:256] = np.arange(256)
    place = ctypes.addressof(words)
    bench.launch(stream, "sum", place, place + 1024, block=(256, 1, 1))
    bench.native.synchronize_stream(stream)
    assert values[256] == sum(range(256))


def test_shared_memory_given_at_the_launch_is_there(bench: Any) -> None:
    words, stream = bench.words(8), bench.stream()
    values = np.ctypeslib.as_array(words).view(np.uint32)
    values[:] = np.arange(16)
    bench.launch(stream, "reverse", ctypes.addressof(words), block=(16, 1, 1), shared=64)
    bench.native.synchronize_stream(stream)
    assert values.tolist() == list(range(15, -1, -1))


def test_atomics_count(bench: Any) -> None:
    words, stream = bench.words(3), bench.stream()
    place = ctypes.addressof(words)
    bench.launch(stream, "atomics", place, place + 8, place + 16, grid=(4, 1, 1), block=(32, 1, 1))
    bench.native.synchronize_stream(stream)
    values = np.ctypeslib.as_array(words)
    assert values[0] == 128
    assert values.view(np.float32)[2] == 64
    assert values[2] == 31


def test_parameters_lie_as_on_the_device(bench: Any) -> None:
    native = bench.native
    parameters = native.kernel_parameters(native.kernel(bench.library, "mixed"))
    assert parameters == [(0, 1), (8, 8), (16, 16), (32, 2), (36, 12)]
    assert native.kernel_parameters(native.kernel(bench.library, "nothing")) == []


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_float), ("b", ctypes.c_double))


def test_arguments_of_all_kinds_arrive(bench: Any) -> None:
    address, stream = bench.memory(8), bench.stream()
    vector = (ctypes.c_float * 3)(0, 0, 5)
    bench.launch(stream, "mixed", ctypes.c_char(1), address, Pair(2, 3), ctypes.c_short(4), vector)
    bench.native.synchronize_stream(stream)
    assert np.frombuffer(bench.read(address, 8), np.float64)[0] == 15


def test_attributes_of_a_function(bench: Any) -> None:
    native, function = bench.native, bench.function("nothing")
    assert native.function_attribute(function, FunctionAttribute.MAX_THREADS) == 1024
    kind = FunctionAttribute.MAX_DYNAMIC_SHARED
    assert native.function_attribute(function, kind) == 48 << 10
    assert bench.code(lambda: native.set_function_attribute(function, kind, (227 << 10) + 1)) == 1
    native.set_function_attribute(function, kind, 227 << 10)
    bench.launch(bench.stream(), "nothing", shared=227 << 10)


def test_unknown_kernels_and_functions_are_refused(bench: Any) -> None:
    assert bench.code(lambda: bench.native.kernel(bench.library, "absent")) == 500
    launch = bench.call("nothing")._replace(function=0)
    assert bench.code(lambda: bench.native.launch(launch, bench.stream())) == 400


def test_the_first_function_of_a_library_waits_for_running_work(
    bench: Any, image: bytes, on_a_thread: Callable[..., Any]
) -> None:
    native, found = bench.native, []
    gate = bench.gate(bench.stream())
    kernel = native.kernel(native.load_library(image), "nothing")  # does not wait

    def ask() -> None:
        native.push_context(bench.context)
        found.append(native.function(kernel))

    thread = on_a_thread(ask)
    thread.join(0.01)
    assert not found
    gate.open()
    thread.join(30)
    assert found


@pytest.mark.parametrize("ask", ["kernel_parameters", "module"])
def test_to_ask_about_code_that_is_not_on_the_card_waits_for_running_work(
    bench: Any, image: bytes, on_a_thread: Callable[..., Any], ask: str
) -> None:
    native, found = bench.native, []
    gate = bench.gate(bench.stream())
    library = native.load_library(image)
    handle = library if ask == "module" else native.kernel(library, "nothing")

    def call() -> None:
        native.push_context(bench.context)
        found.append(getattr(native, ask)(handle))

    thread = on_a_thread(call)
    bench.until(lambda: native.machine.cards[0].draining)
    assert not found
    gate.open()
    thread.join(30)
    assert found
    bench.gate(bench.stream())
    native.function(native.kernel(library, "nothing"))  # it is there now


def test_code_that_no_card_takes_has_no_kernels_and_says_why_to_who_asks(bench: Any) -> None:
    native = bench.native
    library = native.load_library(b".version 8.0\n.entry broken()\n{\nno_such_instruction;\n}\n\0")
    assert native.kernels(library) == {}
    assert bench.code(lambda: native.kernel(library, "broken")) == 218
    assert bench.code(lambda: native.module(library)) == 218
    assert "ptxas" in native.load_log(b".version 8.0\n.entry broken()\n{\nno_such_instruction;\n}\n\0")
    assert native.load_log(b".version 8.0\n.entry empty()\n{\nret;\n}\n\0") == ""


def test_a_source_that_does_not_compile_says_why() -> None:
    with pytest.raises(CompilerError, match="an_undeclared_name"):
        cuda_simulated.SimulatedNvrtc().compile(kernels.DOES_NOT_COMPILE["cuda"], "broken.cu", ARCHITECTURE)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(CompilerError, match="--nonsense"):
        cuda_simulated.SimulatedNvrtc().compile("", "empty.cu", ["--nonsense"])


def test_inline_ptx_is_refused_in_words() -> None:
    source = 'extern "C" __global__ void k() { asm("exit;"); }'
    with pytest.raises(CompilerError, match="not in the simulation"):
        cuda_simulated.SimulatedNvrtc().compile(source, "asm.cu", ARCHITECTURE)


@pytest.mark.slow
def test_code_for_another_card_is_refused_where_a_kernel_is_asked_for(bench: Any) -> None:
    source = 'extern "C" __global__ void k() {}'
    compiler = cuda_simulated.SimulatedNvrtc()
    library = bench.native.load_library(compiler.compile(source, "k.cu", ["--gpu-architecture=sm_100"]))
    assert bench.code(lambda: bench.native.kernel(library, "k")) == 209
    assert compiler.compile(source, "k.cu", []) == b""


def test_ptx_runs_where_its_kernels_are_known(bench: Any) -> None:
    text = b".version 8.0\n.target sm_90\n.visible .entry store(.param .u64 a, .param .u64 b)\n{\nx;\n}\n"
    library, words, stream = bench.native.load_library(text + b"\0"), bench.words(1), bench.stream()
    launch = bench.call("store", ctypes.addressof(words), 3)
    function = bench.native.function(bench.native.kernel(library, "store"))
    bench.native.launch(launch._replace(function=function), stream)
    bench.native.synchronize_stream(stream)
    assert words[0] == 3
    assert not bench.native.violations


def test_ptx_without_an_end_is_a_violation(bench: Any) -> None:
    library = bench.native.load_library(b".version 8.0\n.entry empty()\n{\nret;\n}\n")
    bench.native.kernel(library, "empty")
    assert ["not ended" in text for text in bench.native.violations] == [True]


def test_without_a_compiler_kernels_in_python_stand_in(bench: Any) -> None:
    def scale(workgroups: Any, bindings: Any, constants: Any) -> None:
        (factor, limits), n = constants[0], constants[1]
        bindings[0].view(np.uint32)[: int(n)] *= np.uint32(factor + limits)

    cuda_simulated.python_kernel("scale_in_python", scale)
    source = """
    struct factors { unsigned factor; unsigned limits; };
    extern "C" __global__ void scale_in_python(unsigned *x, factors f, const unsigned n) { anything; }
    """
    image = cuda_simulated.SimulatedNvrtc("").compile(source, "python.cu", ARCHITECTURE)
    native, words, stream = bench.native, bench.words(2), bench.stream()
    values = np.ctypeslib.as_array(words).view(np.uint32)
    values[:] = 1
    kernel = native.kernel(native.load_library(image), "scale_in_python")
    assert native.kernel_parameters(kernel) == [(0, 8), (8, 8), (16, 4)]
    factors = (ctypes.c_uint * 2)(2, 3)
    launch = bench.call("nothing", ctypes.addressof(words), factors, ctypes.c_uint(3))
    native.launch(launch._replace(function=native.function(kernel)), stream)
    native.synchronize_stream(stream)
    assert values.tolist() == [5, 5, 5, 1]


def test_without_a_compiler_an_unknown_kernel_does_not_compile() -> None:
    with pytest.raises(CompilerError, match="an_undeclared_name"):
        cuda_simulated.SimulatedNvrtc("").compile(kernels.DOES_NOT_COMPILE["cuda"], "broken.cu", ARCHITECTURE)


def test_the_version_is_none_of_nvidias() -> None:
    assert cuda_simulated.SimulatedNvrtc().version()[1] >= 1000
