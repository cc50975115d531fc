"""What the driver says to calls that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import sources
from registry import Fact, fact, register
from rig import Rig, code, outcome

from tidegate.drivers.cuda._nvrtc import CompilerError

LAUNCHES: dict[str, dict[str, Any]] = {
    "no_groups": {"grid": (0, 1, 1)},
    "no_groups_in_y": {"grid": (1, 0, 1)},
    "no_threads": {"block": (0, 1, 1)},
    "more_threads_than_a_block_has": {"block": (1025, 1, 1)},
    "more_threads_than_a_block_has_in_two_directions": {"block": (64, 32, 1)},
    "more_threads_in_z_than_there_may_be": {"block": (1, 1, 65)},
    "more_groups_in_x_than_there_may_be": {"grid": (1 << 31, 1, 1)},
    "more_groups_in_y_than_there_may_be": {"grid": (1, 65536, 1)},
    "more_groups_in_z_than_there_may_be": {"grid": (1, 1, 65536)},
    "more_shared_memory_than_there_is": {"shared": 300_000},
    "more_shared_memory_than_48_kib": {"shared": 49_153},
}


def _refused(shape: dict[str, Any]) -> Callable[[Rig], int]:
    def ask(rig: Rig) -> int:
        stream = rig.stream()
        return code(lambda: rig.launch(stream, "nothing", **shape))

    return ask


for _name, _shape in LAUNCHES.items():
    register(
        Fact(f"launch_with_{_name}", f"What does a launch with {_name.replace('_', ' ')} return?", _refused(_shape))
    )

NULL_HANDLES: dict[str, Callable[[Rig, int], Any]] = {
    "launch": lambda rig, stream: rig.launch(stream, 0),
    "record_event": lambda rig, stream: rig.native.record_event(0, stream),
    "record_context": lambda rig, _: rig.native.record_context(0, rig.context),
    "wait_event": lambda rig, stream: rig.native.wait_event(stream, 0),
    "event_over": lambda rig, _: rig.native.event_over(0),
    "destroy_event": lambda rig, _: rig.native.destroy_event(0),
    "destroy_stream": lambda rig, _: rig.native.destroy_stream(0),
    "launch_graph": lambda rig, stream: rig.native.launch_graph(0, stream),
    "instantiate_graph": lambda rig, _: rig.native.instantiate_graph(0),
    "allocate": lambda rig, stream: rig.native.allocate(256, 0, stream),
    "free": lambda rig, stream: rig.native.free(0, stream),
    "free_host": lambda rig, _: rig.native.free_host(0),
    "kernel": lambda rig, _: rig.native.kernel(0, "store"),
    "push_context": lambda rig, _: rig.native.push_context(0),
}


def _null(call: Callable[[Rig, int], Any]) -> Callable[[Rig], int | None]:
    def ask(rig: Rig) -> int | None:
        stream = rig.stream()
        attempt = rig.attempt(lambda: call(rig, stream))
        attempt.returned()
        return attempt.code

    return ask


for _name, _call in NULL_HANDLES.items():
    register(
        Fact(f"{_name}_of_nothing", f"What does {_name.replace('_', ' ')} return for a handle of zero?", _null(_call))
    )


@fact(alone=True)
def fact_fill_at_an_odd_address(rig: Rig) -> dict[str, int]:
    """What does a fill return at an address that is no multiple of its element?"""
    stream, device = rig.stream(), rig.memory(64)
    return {
        "2 at 1": code(lambda: rig.native.fill(device + 1, 1, 2, 1, stream)),
        "4 at 2": code(lambda: rig.native.fill(device + 2, 1, 4, 1, stream)),
        "1 at 3": code(lambda: rig.native.fill(device + 3, 1, 1, 1, stream)),
    }


@fact(alone=True)
def fact_fill_of_ordinary_memory(rig: Rig) -> list[int]:
    """What do a fill of host memory that is not page-locked, and waiting for it, return?"""
    stream, array = rig.stream(), np.zeros(4096, np.uint8)
    said = code(lambda: rig.native.fill(array.ctypes.data, 1, 1, 4096, stream))
    return [said, code(lambda: rig.synchronize(stream))]


@fact()
def fact_unknown_kernel(rig: Rig) -> int:
    """What does asking for a kernel return that a library does not have?"""
    return code(lambda: rig.native.kernel(rig.session.library, "no_such_kernel"))


@fact()
def fact_image_of_nonsense(rig: Rig) -> int:
    """What does loading text return that is no code?"""
    return code(lambda: rig.native.load_library(b"this is not code\0"))


@fact()
def fact_image_of_bad_ptx(rig: Rig) -> int:
    """What does loading PTX return that has an unknown instruction?"""
    return code(lambda: rig.native.load_library(sources.BAD_PTX))


@fact()
def fact_image_of_ptx(rig: Rig) -> list[int]:
    """What do loading PTX, finding its kernel, loading that, running it and waiting for it return?"""
    stream = rig.stream()
    said, library = outcome(lambda: rig.library(sources.PTX))
    found = [said]
    if library:
        said, kernel = outcome(lambda: rig.native.kernel(library, "from_text"))
        found.append(said)
    if library and kernel:
        said, function = outcome(lambda: rig.native.function(kernel))
        found.append(said)
        found.append(code(lambda: rig.launch(stream, function)) if function else -1)
    return [*found, code(lambda: rig.synchronize(stream))]


@fact()
def fact_image_for_another_architecture(rig: Rig) -> dict[str, int | None]:
    """What do loading code for another architecture, finding its kernel and loading that return?"""
    image = rig.session.compiler.compile(sources.ONE_KERNEL, "other.cu", ["--gpu-architecture=sm_80"])
    found: dict[str, int | None] = {"library": code(lambda: rig.library(image)), "kernel": None, "function": None}
    if found["library"] == 0:
        library = rig.library(image)
        found["kernel"] = code(lambda: rig.native.kernel(library, "only"))
        if found["kernel"] == 0:
            found["function"] = code(lambda: rig.native.function(rig.native.kernel(library, "only")))
    return found


@fact()
def fact_image_of_source_that_does_not_compile(rig: Rig) -> bool:
    """Does the compiler name the unknown word of a source?"""
    source = 'extern "C" __global__ void broken(int *x) { *x = an_undeclared_name; }'
    try:
        rig.session.compile(source)
    except CompilerError as error:
        return "an_undeclared_name" in error.log
    return False


@fact()
def fact_device_that_is_not_there(rig: Rig) -> int:
    """What does asking for the hundredth device return?"""
    return code(lambda: rig.native.device(99))


@fact()
def fact_unknown_device_attribute(rig: Rig) -> int:
    """What does asking for an attribute return that does not exist?"""
    return code(lambda: rig.native.device_attribute(100_000, rig.device))


@fact(raw=True)
def fact_before_initialisation(native: Any, compiler: Any) -> dict[str, int]:
    """What do calls return before CUDA is initialised?"""
    return {
        "device_count": code(native.device_count),
        "device": code(lambda: native.device(0)),
        "current_context": code(native.current_context),
        "driver_version": code(native.driver_version),
    }
