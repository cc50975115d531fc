"""The calls underneath, by NVIDIA's cuda-bindings: as a careful program would make them by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from .contestants import Contestants
from .cuda_kernels import cubin
from .cuda_sides import real_device

BLOCKING_EVENT, UNTIMED_EVENT, NON_BLOCKING_STREAM = 1, 2, 1


class Raw:
    """CUDA by cuda-bindings, on the device and in the context that Tidegate uses.

    Attributes:
        driver: the module `cuda.bindings.driver`.

    """

    def __init__(self, contestants: Contestants) -> None:
        device = real_device(contestants)
        from .cuda_sides import imported

        self.driver = imported("cuda.bindings.driver", "cuda-bindings")
        self._architecture = device.architecture
        self._owned: list[tuple[Callable[..., Any], Any]] = []
        self.call("cuInit", 0)
        handle = self.call("cuDeviceGet", device.ordinal)
        self.context = self.call("cuDevicePrimaryCtxRetain", handle)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function; return what it gives besides the code, or raise."""
        code, *results = getattr(self.driver, name)(*arguments)
        check(code)
        return results[0] if len(results) == 1 else results

    def own(self, release: str, thing: Any) -> Any:
        """Note what is to be released at the end, and how."""
        self._owned.append((getattr(self.driver, release), thing))
        return thing

    def stream(self) -> Any:
        """Return a new stream."""
        return self.own("cuStreamDestroy", self.call("cuStreamCreate", NON_BLOCKING_STREAM))

    def event(self, blocking: bool = False) -> Any:
        """Return a new event without timing."""
        flags = UNTIMED_EVENT | (BLOCKING_EVENT if blocking else 0)
        return self.own("cuEventDestroy", self.call("cuEventCreate", flags))

    def memory(self, nbytes: int) -> int:
        """Return the address of new memory of the device."""
        return int(self.own("cuMemFree", self.call("cuMemAlloc", nbytes)))

    def host_memory(self, nbytes: int) -> int:
        """Return the address of new page-locked memory."""
        portable, mapped = 1, 2
        address = self.call("cuMemHostAlloc", nbytes, portable | mapped)
        self.own("cuMemFreeHost", address)
        return int(address)

    def function(self, name: str, source: str) -> Any:
        """Return a kernel, loaded."""
        library = self.call("cuLibraryLoadData", cubin(source, self._architecture), [], [], 0, [], [], 0)
        return self.call("cuKernelGetFunction", self.call("cuLibraryGetKernel", library, name.encode()))

    def close(self) -> None:
        """Release everything, as far as that goes."""
        with suppress(Exception):
            self.driver.cuCtxSynchronize()
        for release, thing in reversed(self._owned):
            with suppress(Exception):
                release(thing)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Arguments:
    """Arguments of a kernel, packed once; `address` is what `cuLaunchKernel` takes fastest."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)
        pointers = [ctypes.addressof(value) for value in self.values]
        self._pointers = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
        self.address = ctypes.addressof(self._pointers)


def check(code: Any) -> None:
    """Raise for everything but success."""
    if code:
        raise RuntimeError(f"cuda-bindings: {code!r}")
