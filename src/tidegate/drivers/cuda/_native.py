"""Every call into CUDA, and nothing else: the driver API and, in `_nvrtc`, the compiler.

Two ways of calling the same library. `ctypes.PyDLL` keeps the GIL: for everything that returns at once. A call that
gave it away would queue up behind every busy Python thread to get it back, 5 ms a time, three times a submission;
that, not the GPU, is what makes launches slow in a process that does other things. `ctypes.CDLL` releases it: for the
calls that block, or may (`BLOCKING`). Keeping the GIL in a driver call is safe as long as no Python runs on the
driver's own threads: Tidegate never asks for that, and for processes in which somebody else does there is
`cuda?gil=release`, which takes the second way for all calls.

Handles are ints. A call that fails raises `NativeError` with CUDA's code; what that means for a program is decided in
`_errors`. `counts` says how many native objects exist, for those who look for leaks.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Iterable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, NamedTuple

from ._prototypes import BLOCKING, LATER, PROTOTYPES, PoolAttribute
from ._structs import (
    KernelNodeParams,
    LaunchAttribute,
    LaunchConfig,
    as_pointer,
    linear_copy,
    memory_pool_props,
    memset_params,
)

SUCCESS = 0
NOT_READY = 600

_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_LOG_BYTES = 16384
"""Options of loading, and how much of a log is read."""

NODES = {
    "kernel": ("cuGraphAddKernelNode_v2", "cuGraphExecKernelNodeSetParams_v2"),
    "fill": ("cuGraphAddMemsetNode", "cuGraphExecMemsetNodeSetParams"),
    "copy": ("cuGraphAddMemcpyNode", "cuGraphExecMemcpyNodeSetParams"),
}
"""How to add and to change the kinds of nodes: `KernelNodeParams`, `MemsetNodeParams` and `Memcpy3D` describe them."""


class NativeError(Exception):
    """A call into CUDA that did not succeed.

    Attributes:
        call: the name of the function.
        code: CUDA's number for what happened.
        name: CUDA's name for it.
        text: CUDA's sentence on it.

    """

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({code}): {text}")
        self.call = call
        self.code = code
        self.name = name
        self.text = text


class Launch(NamedTuple):
    """A kernel, how many of it, and where its arguments lie.

    `params` is the address of an array of addresses, one for each argument; `keep` holds what lies there.
    """

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    params: int
    keep: Any = None
    cooperative: bool = False
    cluster: tuple[int, int, int] | None = None


class Native:
    """The CUDA driver API of this process.

    Args:
        release_gil: whether even short calls give the GIL away.

    Raises:
        OSError: the library is not there.
        AttributeError: it is older than CUDA 12.

    """

    def __init__(self, release_gil: bool = False) -> None:
        keeping = _library(ctypes.CDLL if release_gil else ctypes.PyDLL)
        releasing = _library(ctypes.CDLL)
        self.counts: Counter[str] = Counter()
        self._calls: dict[str, Any] = {}
        for name, types in PROTOTYPES.items():
            function = getattr(releasing if name in BLOCKING else keeping, name, None)
            if function is None:
                if name in LATER:
                    continue
                raise AttributeError(f"the CUDA driver has no {name}: it is older than CUDA 12")
            function.argtypes = types
            function.restype = c_int
            self._calls[name] = function
            setattr(self, "_" + name, function)

    def address(self, name: str) -> int:
        """Return where a function of the driver lies, for callers in C."""
        return ctypes.cast(self._calls[name], c_void_p).value or 0

    def has(self, name: str) -> bool:
        """Whether the driver has a function that came with a later version."""
        return name in self._calls

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._calls[name](*arguments)
        if code:
            raise self.error(name, code)

    def _get(self, kind: Any, name: str, *arguments: Any) -> Any:
        """Call a function whose first argument takes the result."""
        result = kind()
        code = self._calls[name](byref(result), *arguments)
        if code:
            raise self.error(name, code)
        return result.value

    def error(self, call: str, code: int) -> NativeError:
        """Return the error for a code."""
        words = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            self._calls[name](code, byref(text))
            words.append((text.value or b"unknown").decode())
        return NativeError(call, code, words[0], words[1])

    # Devices and contexts -------------------------------------------------------------------------------------------

    def init(self) -> None:
        """Start CUDA in this process."""
        self._call("cuInit", 0)

    def driver_version(self) -> int:
        """Return the newest CUDA the driver knows, as 1000 * major + 10 * minor."""
        return int(self._get(c_int, "cuDriverGetVersion"))

    def device_count(self) -> int:
        """Return how many devices there are."""
        return int(self._get(c_int, "cuDeviceGetCount"))

    def device(self, index: int) -> int:
        """Return a device by its number."""
        return int(self._get(c_int, "cuDeviceGet", index))

    def device_name(self, device: int) -> str:
        """Return its name."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, device)
        return text.value.decode()

    def device_memory(self, device: int) -> int:
        """Return the size of its memory."""
        return int(self._get(c_size_t, "cuDeviceTotalMem_v2", device))

    def device_attribute(self, attribute: int, device: int) -> int:
        """Return one of its attributes."""
        return int(self._get(c_int, "cuDeviceGetAttribute", attribute, device))

    def primary_context(self, device: int) -> int:
        """Retain the context that all libraries of the process share."""
        return int(self._get(c_void_p, "cuDevicePrimaryCtxRetain", device))

    def release_primary_context(self, device: int) -> None:
        """Let go of it."""
        self._call("cuDevicePrimaryCtxRelease_v2", device)

    def current_context(self) -> int:
        """Return the context of this thread, or 0."""
        return int(self._get(c_void_p, "cuCtxGetCurrent") or 0)

    def push_context(self, context: int) -> None:
        """Make a context this thread's, until it is popped."""
        self._call("cuCtxPushCurrent_v2", context)

    def pop_context(self) -> int:
        """Take the last pushed context off."""
        return int(self._get(c_void_p, "cuCtxPopCurrent_v2") or 0)

    def priority_range(self) -> tuple[int, int]:
        """Return the least and the greatest priority of streams; lower numbers are more urgent."""
        least, greatest = c_int(), c_int()
        self._call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
        return least.value, greatest.value

    # Streams and events ---------------------------------------------------------------------------------------------

    def create_stream(self, priority: int = 0) -> int:
        """Create a stream that does not wait for the legacy default stream."""
        stream = int(self._get(c_void_p, "cuStreamCreateWithPriority", 1, priority))
        self.counts["streams"] += 1
        return stream

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; what is on it still runs."""
        self._call("cuStreamDestroy_v2", stream)
        self.counts["streams"] -= 1

    def stream_idle(self, stream: int) -> bool:
        """Whether everything on a stream is over."""
        return self._ready("cuStreamQuery", stream)

    def synchronize_stream(self, stream: int) -> None:
        """Block until everything on a stream is over."""
        self._call("cuStreamSynchronize", stream)

    def wait_event(self, stream: int, event: int) -> None:
        """Have a stream wait for what an event was last recorded behind."""
        code = self._cuStreamWaitEvent(stream, event, 0)  # type: ignore[attr-defined]
        if code:
            raise self.error("cuStreamWaitEvent", code)

    def write_value(self, stream: int, address: int, value: int) -> None:
        """Have a stream store 64 bits, visible after everything before it."""
        code = self._cuStreamWriteValue64_v2(stream, address, value, 0)  # type: ignore[attr-defined]
        if code:
            raise self.error("cuStreamWriteValue64", code)

    def wait_value(self, stream: int, address: int, value: int) -> None:
        """Have a stream wait until 64 bits are at least `value`, compared cyclically."""
        self._call("cuStreamWaitValue64_v2", stream, address, value, 0)

    def create_event(self, blocking: bool = True) -> int:
        """Create an event without timing; `blocking`: who synchronises with it sleeps instead of spinning.

        Of those, unlike the others, a stream takes 56 records behind running work; the next one blocks its caller.
        """
        event = int(self._get(c_void_p, "cuEventCreate", 2 | blocking))
        self.counts["events"] += 1
        return event

    def destroy_event(self, event: int) -> None:
        """Destroy an event; harmless to streams that wait for it."""
        self._call("cuEventDestroy_v2", event)
        self.counts["events"] -= 1

    def record_event(self, event: int, stream: int) -> None:
        """Set an event behind what is on a stream now."""
        code = self._cuEventRecord(event, stream)  # type: ignore[attr-defined]
        if code:
            raise self.error("cuEventRecord", code)

    def record_context(self, event: int, context: int) -> None:
        """Set an event behind what is on all streams of a context now, also on those that were destroyed."""
        self._call("cuCtxRecordEvent", context, event)

    def event_over(self, event: int) -> bool:
        """Whether an event has happened."""
        return self._ready("cuEventQuery", event)

    def synchronize_event(self, event: int) -> None:
        """Block until an event has happened."""
        self._call("cuEventSynchronize", event)

    def _ready(self, name: str, handle: int) -> bool:
        code = self._calls[name](handle)
        if code in (SUCCESS, NOT_READY):
            return bool(code == SUCCESS)
        raise self.error(name, code)

    # Memory ---------------------------------------------------------------------------------------------------------

    def create_pool(self, device: int, max_size: int = 0) -> int:
        """Create a pool of stream-ordered memory; 0: as much as the device has."""
        props = memory_pool_props(device, max_size)
        pool = int(self._get(c_void_p, "cuMemPoolCreate", as_pointer(props)))
        self.counts["pools"] += 1
        return pool

    def destroy_pool(self, pool: int) -> None:
        """Destroy a pool; its memory goes when what was allocated from it is freed."""
        self._call("cuMemPoolDestroy", pool)
        self.counts["pools"] -= 1

    def set_pool(self, pool: int, attribute: int, value: int) -> None:
        """Set an attribute of a pool."""
        kind = c_int if attribute <= PoolAttribute.INTERNAL_DEPENDENCIES else c_uint64
        self._call("cuMemPoolSetAttribute", pool, attribute, byref(kind(value)))

    def pool_attribute(self, pool: int, attribute: int) -> int:
        """Return an attribute of a pool."""
        kind: Any = c_int if attribute <= PoolAttribute.INTERNAL_DEPENDENCIES else c_uint64
        value = kind()
        self._call("cuMemPoolGetAttribute", pool, attribute, byref(value))
        return int(value.value)

    def trim_pool(self, pool: int, keep: int = 0) -> None:
        """Give back what a pool keeps beyond `keep` bytes."""
        self._call("cuMemPoolTrimTo", pool, keep)

    def allocate(self, nbytes: int, pool: int, stream: int) -> int:
        """Allocate in stream order."""
        address = int(self._get(c_uint64, "cuMemAllocFromPoolAsync", nbytes, pool, stream))
        self.counts["allocations"] += 1
        return address

    def free(self, address: int, stream: int) -> None:
        """Free in stream order."""
        self._call("cuMemFreeAsync", address, stream)
        self.counts["allocations"] -= 1

    def allocate_host(self, nbytes: int, write_combined: bool = False) -> int:
        """Allocate page-locked host memory that every device sees at the same address. May block."""
        address = int(self._get(c_void_p, "cuMemHostAlloc", nbytes, 1 | 2 | (4 if write_combined else 0)) or 0)
        self.counts["pinned"] += 1
        return address

    def free_host(self, address: int) -> None:
        """Free page-locked memory. Blocks while work runs."""
        self._call("cuMemFreeHost", address)
        self.counts["pinned"] -= 1

    def register_host(self, address: int, nbytes: int) -> None:
        """Page-lock memory of somebody else. Slow."""
        self._call("cuMemHostRegister_v2", address, nbytes, 1 | 2)
        self.counts["registered"] += 1

    def unregister_host(self, address: int) -> None:
        """Undo that."""
        self._call("cuMemHostUnregister", address)
        self.counts["registered"] -= 1

    def pointer_device(self, address: int) -> int:
        """Return the number of the device that an address belongs to."""
        return int(self._get(c_int, "cuPointerGetAttribute", 9, address))

    def is_page_locked(self, address: int) -> bool:
        """Whether a host address is known to CUDA."""
        kind = c_int()
        code = self._calls["cuPointerGetAttribute"](byref(kind), 2, address)
        return code == SUCCESS and kind.value == 1

    def fill(self, address: int, value: int, element: int, count: int, stream: int) -> None:
        """Store an element of 1, 2 or 4 bytes `count` times."""
        name = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}[element]
        code = self._calls[name](address, value, count, stream)
        if code:
            raise self.error(name, code)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two addresses that CUDA knows. From or to other host memory it may block."""
        code = self._cuMemcpyAsync(target, source, nbytes, stream)  # type: ignore[attr-defined]
        if code:
            raise self.error("cuMemcpyAsync", code)

    # Code -----------------------------------------------------------------------------------------------------------

    def load_library(self, image: bytes) -> int:
        """Load PTX (ended by a zero), a cubin or a fatbin. Does not wait for work."""
        library = int(self._get(c_void_p, "cuLibraryLoadData", image, None, None, 0, None, None, 0))
        self.counts["libraries"] += 1
        return library

    def unload_library(self, library: int) -> None:
        """Unload it."""
        self._call("cuLibraryUnload", library)
        self.counts["libraries"] -= 1

    def kernel(self, library: int, name: str) -> int:
        """Return a kernel by its name."""
        return int(self._get(c_void_p, "cuLibraryGetKernel", library, name.encode()))

    def kernels(self, library: int) -> dict[str, int]:
        """Return all kernels by name. Empty where the driver cannot tell."""
        if not self.has("cuKernelGetName") or not self.has("cuLibraryEnumerateKernels"):
            return {}
        count = self._get(c_uint, "cuLibraryGetKernelCount", library)
        handles = (c_void_p * count)()
        self._call("cuLibraryEnumerateKernels", handles, count, library)
        return {self._get(c_char_p, "cuKernelGetName", kernel).decode(): int(kernel or 0) for kernel in handles}

    def module(self, library: int) -> int:
        """Have all of a library brought into the context; what is wrong with it is told here. May block."""
        return int(self._get(c_void_p, "cuLibraryGetModule", library))

    def load_log(self, image: bytes) -> str:
        """Return what CUDA says about code that it does not take; nothing about other code, which it waits to load."""
        text = ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(text), _LOG_BYTES)
        module = c_void_p()
        if self._calls["cuModuleLoadDataEx"](byref(module), image, 2, options, values) == SUCCESS:
            self._call("cuModuleUnload", module)
        return text.value.decode(errors="replace").strip()

    def kernel_parameters(self, kernel: int) -> list[tuple[int, int]] | None:
        """Return offset and size of each parameter; None where the driver cannot tell.

        Of code that is not on the GPU yet it brings it there, which blocks while work runs.
        """
        if not self.has("cuKernelGetParamInfo"):
            return None
        found: list[tuple[int, int]] = []
        offset, size = c_size_t(), c_size_t()
        while self._calls["cuKernelGetParamInfo"](kernel, len(found), byref(offset), byref(size)) == SUCCESS:
            found.append((offset.value, size.value))
        return found

    def function(self, kernel: int) -> int:
        """Return what `launch` takes, loaded onto the device, so that the first launch need not."""
        function = int(self._get(c_void_p, "cuKernelGetFunction", kernel))
        self._call("cuFuncLoad", function)
        return function

    def function_attribute(self, function: int, attribute: int) -> int:
        """Return an attribute of a function."""
        return int(self._get(c_int, "cuFuncGetAttribute", attribute, function))

    def set_function_attribute(self, function: int, attribute: int, value: int) -> None:
        """Set an attribute of a function."""
        self._call("cuFuncSetAttribute", function, attribute, value)

    def launch(self, launch: Launch, stream: int) -> None:
        """Launch a kernel."""
        if launch.cooperative or launch.cluster is not None:
            self._launch_with_attributes(launch, stream)
            return
        code = self._cuLaunchKernel(  # type: ignore[attr-defined]
            launch.function, *launch.grid, *launch.block, launch.shared, stream, launch.params, None
        )
        if code:
            raise self.error("cuLaunchKernel", code)

    def _launch_with_attributes(self, launch: Launch, stream: int) -> None:
        attributes = (LaunchAttribute * 2)()
        count = 0
        if launch.cooperative:
            attributes[count].kind = 2
            attributes[count].value[0] = 1
            count += 1
        if launch.cluster is not None:
            attributes[count].kind = 4
            attributes[count].value[0:3] = launch.cluster
            count += 1
        config = LaunchConfig(
            launch.grid,
            launch.block,
            launch.shared,
            stream,
            ctypes.cast(attributes, ctypes.POINTER(LaunchAttribute)),
            count,
        )
        self._call("cuLaunchKernelEx", as_pointer(config), launch.function, launch.params, None)

    # Graphs ---------------------------------------------------------------------------------------------------------

    def create_graph(self) -> int:
        """Create an empty graph."""
        graph = int(self._get(c_void_p, "cuGraphCreate", 0))
        self.counts["graphs"] += 1
        return graph

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph; its instances live on."""
        self._call("cuGraphDestroy", graph)
        self.counts["graphs"] -= 1

    def add_kernel_node(self, graph: int, after: list[int], launch: Launch) -> int:
        """Add a kernel. Its arguments are copied."""
        params = _kernel_node(launch)
        node = self._add("cuGraphAddKernelNode_v2", graph, after, as_pointer(params))
        if launch.cooperative:
            self._call("cuGraphKernelNodeSetAttribute", node, 2, (c_uint * 16)(1))
        if launch.cluster is not None:
            self._call("cuGraphKernelNodeSetAttribute", node, 4, (c_uint * 16)(*launch.cluster))
        return node

    def add_fill_node(
        self, graph: int, after: list[int], address: int, value: int, element: int, count: int, context: int
    ) -> int:
        """Add a fill."""
        params = memset_params(address, value, element, count)
        return self._add("cuGraphAddMemsetNode", graph, after, as_pointer(params), context)

    def add_copy_node(self, graph: int, after: list[int], target: int, source: int, nbytes: int, context: int) -> int:
        """Add a copy."""
        params = linear_copy(target, source, nbytes)
        return self._add("cuGraphAddMemcpyNode", graph, after, as_pointer(params), context)

    def add_empty_node(self, graph: int, after: list[int]) -> int:
        """Add a node that only joins others."""
        return self._add("cuGraphAddEmptyNode", graph, after)

    def add_node(self, kind: str, graph: int, after: list[int], params: int, context: int) -> int:
        """Add a node of a kind in `NODES` from the structure at an address, which is copied."""
        rest = (params,) if kind == "kernel" else (params, context)
        return self._add(NODES[kind][0], graph, after, *rest)

    def _add(self, name: str, graph: int, after: list[int], *rest: Any) -> int:
        nodes = (c_void_p * len(after))(*after)
        return int(self._get(c_void_p, name, graph, nodes, len(after), *rest))

    def instantiate_graph(self, graph: int) -> int:
        """Make an instance that can be launched. Takes microseconds per node."""
        instance = int(self._get(c_void_p, "cuGraphInstantiateWithFlags", graph, 0))
        self.counts["graph instances"] += 1
        return instance

    def destroy_graph_instance(self, instance: int) -> None:
        """Destroy an instance; one that runs goes when it is over."""
        self._call("cuGraphExecDestroy", instance)
        self.counts["graph instances"] -= 1

    def set_kernel_node(self, instance: int, node: int, launch: Launch) -> None:
        """Change a kernel's arguments and grid in an instance, for launches to come."""
        params = _kernel_node(launch)
        self._call("cuGraphExecKernelNodeSetParams_v2", instance, node, as_pointer(params))

    def set_fill_node(
        self, instance: int, node: int, address: int, value: int, element: int, count: int, context: int
    ) -> None:
        """Change a fill in an instance."""
        params = memset_params(address, value, element, count)
        self._call("cuGraphExecMemsetNodeSetParams", instance, node, as_pointer(params), context)

    def set_copy_node(self, instance: int, node: int, target: int, source: int, nbytes: int, context: int) -> None:
        """Change a copy in an instance."""
        params = linear_copy(target, source, nbytes)
        self._call("cuGraphExecMemcpyNodeSetParams", instance, node, as_pointer(params), context)

    def set_nodes(self, kind: str, instance: int, nodes: Iterable[tuple[int, int]], context: int) -> None:
        """Change many nodes of one kind in an instance: pairs of a node and the address of its structure.

        A call for each, and next to nothing around it: what is bound anew is paid per binding.
        """
        name = NODES[kind][1]
        change = self._calls[name]
        rest = () if kind == "kernel" else (context,)
        for node, params in nodes:
            code = change(instance, node, params, *rest)
            if code:
                raise self.error(name, code)

    def enable_node(self, instance: int, node: int, enabled: bool) -> None:
        """Switch a node of an instance on or off."""
        self._call("cuGraphNodeSetEnabled", instance, node, int(enabled))

    def launch_graph(self, instance: int, stream: int) -> None:
        """Run an instance once; behind an earlier run of the same instance."""
        self._call("cuGraphLaunch", instance, stream)


def _library(kind: Any) -> Any:
    return kind("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _kernel_node(launch: Launch) -> KernelNodeParams:
    return KernelNodeParams(
        function=launch.function,
        grid=launch.grid,
        block=launch.block,
        shared=launch.shared,
        params=launch.params,
    )
