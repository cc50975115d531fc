"""The simulation has the surface of the real native layer."""

from __future__ import annotations

import _thread
import ctypes
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg
from tidegate.drivers.cuda._native import Native, NativeError
from tidegate.drivers.cuda._nvrtc import Nvrtc
from tidegate.testing import cuda_simulated, register_cuda_simulated


def public_methods(kind: type) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}


@pytest.mark.parametrize("name", public_methods(Native))
def test_every_method_of_the_native_layer_exists_with_the_same_signature(name: str) -> None:
    simulated = getattr(cuda_simulated.SimulatedNative, name)
    assert inspect.signature(simulated) == inspect.signature(getattr(Native, name))


@pytest.mark.parametrize("name", public_methods(Nvrtc))
def test_every_method_of_the_compiler_exists_with_the_same_signature(name: str) -> None:
    simulated = getattr(cuda_simulated.SimulatedNvrtc, name)
    assert inspect.signature(simulated) == inspect.signature(getattr(Nvrtc, name))


def test_nothing_works_before_the_start_but_asking_for_the_version() -> None:
    native = cuda_simulated.native()
    assert native.driver_version() == 13000
    with pytest.raises(NativeError, match="CUDA_ERROR_NOT_INITIALIZED") as caught:
        native.device_count()
    assert (caught.value.call, caught.value.code) == ("cuDeviceGetCount", 3)


def test_a_strict_machine_wants_a_context_for_every_handle(make_bench: Callable[..., Any], on_a_thread: Any) -> None:
    codes: dict[bool, int] = {}
    for strict in (False, True):
        bench = make_bench(strict=strict)
        stream = bench.stream()

        def ask(strict: bool = strict, bench: Any = bench, stream: int = stream) -> None:
            try:
                bench.native.stream_idle(stream)
                codes[strict] = 0
            except NativeError as error:
                codes[strict] = error.code

        on_a_thread(ask).join(30)
    assert codes == {False: 0, True: 201}


def test_each_card_has_memory_contexts_and_faults_of_its_own(make_bench: Callable[..., Any]) -> None:
    bench = make_bench(devices=2)
    native = bench.native
    stream = bench.stream()
    native.push_context(native.primary_context(1))
    other = native.create_stream()
    native.fault_next_launch()
    bench.native.pop_context()
    bench.launch(stream, "nothing")
    with pytest.raises(NativeError, match="700"):
        native.synchronize_stream(stream)
    native.push_context(native.primary_context(1))
    assert native.stream_idle(other)
    native.destroy_stream(other)
    native.pop_context()


def test_an_older_driver_can_be_asked_for() -> None:
    native = cuda_simulated.native(without=["cuKernelGetParamInfo", "cuKernelGetName"])
    assert native.has("cuLaunchKernel")
    assert not native.has("cuKernelGetParamInfo")


def test_the_simulated_driver_is_listed_under_a_name_of_its_own() -> None:
    register_cuda_simulated()
    (simulated,) = [info for info in tg.list_drivers() if info.name == "cuda-simulated"]
    uris = [device.uri for device in simulated.devices]
    assert uris == ["cuda-simulated", "cuda-simulated:1"]
    for uri in uris:
        with tg.open_device(uri) as device:
            assert (device.info.uri, device.info.driver) == (uri, "cuda-simulated")


def test_code_in_c_can_call_it(bench: Any) -> None:
    words, stream = bench.words(1), bench.stream()
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint)
    write = prototype(bench.native.address("cuStreamWriteValue64_v2"))
    assert write(stream, ctypes.addressof(words), 5, 0) == 0
    bench.native.synchronize_stream(stream)
    assert words[0] == 5
    assert write(stream, 1, 5, 0) == 1


def test_objects_are_counted(bench: Any) -> None:
    native = bench.native
    before = native.counts.copy()
    event, graph = native.create_event(), native.create_graph()
    assert native.counts - before == {"events": 1, "graphs": 1}
    native.destroy_event(event)
    native.destroy_graph(graph)
    assert native.counts == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_no_cuda(bench: Any) -> None:
    child = os.fork()
    if not child:
        try:
            bench.native.device_count()
        except NativeError as error:
            os._exit(error.code)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_threads_of_destroyed_streams_end(bench: Any) -> None:
    streams = [bench.native.create_stream() for _ in range(8)]
    gates = [bench.gate(stream) for stream in streams]
    busy = _thread._count()
    for stream, gate in zip(streams, gates, strict=True):
        gate.open()
        bench.native.destroy_stream(stream)
    bench.until(lambda: _thread._count() <= busy - len(streams))
