"""Code that is not on the GPU yet, which calls bring it there, and which of them tell that no card takes it.

`calls_beside_a_thread_that_loads_a_function` says why it matters: who is inside such a call holds everybody up.
"""

from __future__ import annotations

from collections.abc import Callable

import sources
from calls import Call, Maker
from facts_beside_work import beside
from registry import Fact, register
from rig import Rig, code, outcome

from tidegate.drivers.cuda._prototypes import FunctionAttribute


def _parameters(rig: Rig) -> Call:
    kernel = rig.native.kernel(rig.library(), "store")
    return lambda: rig.native.kernel_parameters(kernel)


def _parameters_of_ptx(rig: Rig) -> Call:
    kernel = rig.native.kernel(rig.library(sources.PTX), "from_text")
    return lambda: rig.native.kernel_parameters(kernel)


def _kernel_of_ptx(rig: Rig) -> Call:
    library = rig.library(sources.PTX)
    return lambda: rig.native.kernel(library, "from_text")


def _kernels_of_ptx(rig: Rig) -> Call:
    library = rig.library(sources.PTX)
    return lambda: rig.native.kernels(library)


def _function_of_ptx(rig: Rig) -> Call:
    kernel = rig.native.kernel(rig.library(sources.PTX), "from_text")
    return lambda: rig.native.function(kernel)


def _module(rig: Rig) -> Call:
    library = rig.library()
    return lambda: rig.native.module(library)


def _module_of_ptx(rig: Rig) -> Call:
    library = rig.library(sources.PTX)
    return lambda: rig.native.module(library)


def _load_log(rig: Rig) -> Call:
    return lambda: rig.native.load_log(sources.BAD_PTX)


UNSEEN: dict[str, Maker] = {
    "kernel_parameters_of_code": _parameters,
    "kernel_parameters_of_ptx": _parameters_of_ptx,
    "kernel_of_ptx": _kernel_of_ptx,
    "kernels_of_ptx": _kernels_of_ptx,
    "function_of_ptx": _function_of_ptx,
    "module_of_code": _module,
    "module_of_ptx": _module_of_ptx,
    "load_log_of_bad_ptx": _load_log,
}

for _name, _maker in UNSEEN.items():
    register(
        Fact(
            f"{_name}_not_on_the_gpu_yet_beside_work",
            f"Does {_name.replace('_', ' ')} that is not on the GPU yet return beside a kernel and a waiting stream?",
            beside(_maker),
        )
    )


def _attribute(rig: Rig) -> Call:
    function = rig.native.function(rig.native.kernel(rig.library(), "store"))
    return lambda: rig.native.function_attribute(function, FunctionAttribute.MAX_THREADS)


def _set_attribute(rig: Rig) -> Call:
    function = rig.native.function(rig.native.kernel(rig.library(), "use_shared"))
    return lambda: rig.native.set_function_attribute(function, FunctionAttribute.MAX_DYNAMIC_SHARED, 65536)


def _parameters_once_loaded(rig: Rig) -> Call:
    kernel = rig.native.kernel(rig.library(), "store")
    rig.native.function(kernel)
    return lambda: rig.native.kernel_parameters(kernel)


LOADED: dict[str, Maker] = {
    "function_attribute": _attribute,
    "set_function_attribute": _set_attribute,
    "kernel_parameters": _parameters_once_loaded,
}

for _name, _maker in LOADED.items():
    register(
        Fact(
            f"{_name}_of_a_function_just_loaded_beside_work",
            f"Does {_name.replace('_', ' ')} of a function that was only loaded return beside running work?",
            beside(_maker),
        )
    )


# Code that no card takes ----------------------------------------------------------------------------------------------

NO_KERNELS = b".version 7.0\n.target sm_80\n.address_size 64\n\0"

Image = Callable[[Rig], bytes]


def _for_another_architecture(rig: Rig) -> bytes:
    image = rig.session.compiler.compile(sources.ONE_KERNEL, "other.cu", ["--gpu-architecture=sm_80"])
    return bytes(image)


IMAGES: dict[str, tuple[Image, str]] = {
    "bad_ptx": (lambda rig: sources.BAD_PTX, "broken"),
    "code_for_another_architecture": (_for_another_architecture, "only"),
    "nonsense": (lambda rig: b"this is not code\0", "nonsense"),
    "ptx_without_kernels": (lambda rig: NO_KERNELS, "nothing"),
}


def _told(make: Image, name: str) -> Callable[[Rig], dict[str, object]]:
    def ask(rig: Rig) -> dict[str, object]:
        image, native = make(rig), rig.native
        if refused := code(lambda: rig.library(image)):
            return {"library": refused, "log": bool(native.load_log(image))}
        # A library for each question: what the first one found out must not be what the next one is told.
        asked = [rig.library(image) for _ in range(3)]
        said, kernels = outcome(lambda: native.kernels(asked[0]))
        return {
            "library": 0,
            "kernels": [said, sorted(kernels or ())],
            "kernel": code(lambda: native.kernel(asked[1], name)),
            "module": code(lambda: native.module(asked[2])),
            "log": bool(native.load_log(image)),
        }

    return ask


for _name, (_image, _kernel) in IMAGES.items():
    register(
        Fact(
            f"what_is_told_of_{_name}",
            f"What do loading {_name.replace('_', ' ')}, its kernels, one of them and its module return, and a log?",
            _told(_image, _kernel),
            alone=True,
        )
    )
