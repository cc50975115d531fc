"""Every call into Metal, one function per selector; nothing else in this driver names one.

PyObjC spells a selector with underscores for its colons and returns result arguments as members of a tuple. `load`
imports it, once somebody asks for a device, into one namespace that is handed around, so that a simulated Metal can
stand in for it. Numbers are plain ints: PyObjC converts NumPy's, but slowly, and the simulation refuses them. Whatever
makes an object may return nil, which is None: see `_errors.given`.

The enumerators are written out because the driver is read and tested where there is no Metal; a test compares them with
Apple's. Structs are tuples: MTLSize is three counts, NSRange a location and a length.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import starmap
from types import SimpleNamespace
from typing import Any, Protocol

Object = Any
"""An Objective-C object, as PyObjC or the simulation shows it."""
Size = tuple[int, int, int]

MTLBarrierScopeBuffers = 1
MTLCommandBufferErrorAccessRevoked = 4
MTLCommandBufferErrorDeviceRemoved = 11
MTLCommandBufferErrorInternal = 1
MTLCommandBufferErrorInvalidResource = 9
MTLCommandBufferErrorMemoryless = 10
MTLCommandBufferErrorNotPermitted = 7
MTLCommandBufferErrorOutOfMemory = 8
MTLCommandBufferErrorPageFault = 3
MTLCommandBufferErrorStackOverflow = 12
MTLCommandBufferErrorTimeout = 2
MTLCommandBufferStatusCompleted = 4
MTLCommandBufferStatusError = 5
MTLCommandBufferStatusNotEnqueued = 0
MTLDispatchTypeConcurrent = 1
MTLFunctionTypeKernel = 3
MTLResourceCPUCacheModeWriteCombined = 1
MTLResourceHazardTrackingModeTracked = 512
MTLResourceStorageModePrivate = 32
MTLResourceStorageModeShared = 0


class Native(Protocol):
    """What the driver needs of the frameworks; everything else is reached through the objects these return."""

    autorelease_pool: Callable[[], AbstractContextManager[Any]]
    MTLCopyAllDevices: Callable[[], Any]
    MTLCompileOptions: Object
    MTLFunctionConstantValues: Object
    MTLHeapDescriptor: Object
    MTLSharedEventListener: Object
    dispatch_data_create: Callable[[bytes, int, None, None], Object]
    dispatch_queue_create: Callable[[bytes, None], Object]


class AutoreleasePool:
    """A pool for what Metal autoreleases, by the two functions that compilers use.

    `objc.autorelease_pool` ends with an object, so one that an interrupt kept alive is drained out of order, which ends
    the process. Here a pool that was never left ends with the one around it.
    """

    __slots__ = ("_pop", "_push", "_token")

    def __init__(self, push: Callable[[], Any], pop: Callable[[Any], Any]) -> None:
        self._push = push
        self._pop = pop

    def __enter__(self) -> None:
        self._token = self._push()

    def __exit__(self, *_exception: object) -> None:
        self._pop(self._token)


def load() -> Native:
    """Import PyObjC's frameworks and return what the driver uses of them.

    Raises:
        ImportError: PyObjC or one of the frameworks is not installed, or this is no Mac.

    """
    import libdispatch  # type: ignore[import-not-found,unused-ignore]
    import Metal  # type: ignore[import-not-found,unused-ignore]

    runtime = ctypes.CDLL(None)  # with Metal loaded, the Objective-C runtime is in the process
    push, pop = runtime.objc_autoreleasePoolPush, runtime.objc_autoreleasePoolPop
    push.restype, pop.restype = ctypes.c_void_p, None
    push.argtypes, pop.argtypes = [], [ctypes.c_void_p]
    return SimpleNamespace(
        autorelease_pool=partial(AutoreleasePool, push, pop),
        MTLCopyAllDevices=Metal.MTLCopyAllDevices,
        MTLCompileOptions=Metal.MTLCompileOptions,
        MTLFunctionConstantValues=Metal.MTLFunctionConstantValues,
        MTLHeapDescriptor=Metal.MTLHeapDescriptor,
        MTLSharedEventListener=Metal.MTLSharedEventListener,
        dispatch_data_create=libdispatch.dispatch_data_create,
        dispatch_queue_create=libdispatch.dispatch_queue_create,
    )


def keep_for_ever(thing: object) -> None:
    """Have an object outlive the interpreter: the GPU may still use it while everything else is torn down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _own(new: Object, *arguments: Any) -> Any:
    """Call a selector that begins with `new`, and hold what it made once.

    Such an object belongs to its caller. PyObjC up to 12.2.2 knows that of class methods only: it holds what an
    instance makes once more, and never lets go. So where its metadata does not say so, one reference is given back.
    """
    result = new(*arguments)
    made = result[0] if isinstance(result, tuple) else result
    if made is not None and not new.__metadata__()["retval"].get("already_retained", False):
        made.release()
    return result


# Devices ------------------------------------------------------------------------------------------------------------


def all_devices(native: Native) -> list[Object]:
    return list(native.MTLCopyAllDevices() or ())


def device_name(device: Object) -> str:
    return str(device.name())


def registry_id(device: Object) -> int:
    return int(device.registryID())


def working_set_bytes(device: Object) -> int:
    return int(device.recommendedMaxWorkingSetSize())


def max_buffer_bytes(device: Object) -> int:
    return int(device.maxBufferLength())


def has_unified_memory(device: Object) -> bool:
    return bool(device.hasUnifiedMemory())


def max_threads(device: Object) -> Size:
    width, height, depth = device.maxThreadsPerThreadgroup()
    return int(width), int(height), int(depth)


def max_threadgroup_bytes(device: Object) -> int:
    return int(device.maxThreadgroupMemoryLength())


# Queues and command buffers -----------------------------------------------------------------------------------------


def new_queue(device: Object, capacity: int, label: str) -> Object | None:
    """Return a command queue that takes `capacity` uncompleted command buffers before it blocks."""
    queue = _own(device.newCommandQueueWithMaxCommandBufferCount_, capacity)
    if queue is not None:
        queue.setLabel_(label)
    return queue


def new_commands(queue: Object, label: str) -> Object | None:
    """Return a command buffer that retains nothing. Blocks if the queue is full: the caller sees to that."""
    commands = queue.commandBufferWithUnretainedReferences()
    if commands is not None and label:
        commands.setLabel_(label)
    return commands


def commit(commands: Object) -> None:
    commands.commit()


def status(commands: Object) -> int:
    return int(commands.status())


def error_of(commands: Object) -> Object:
    return commands.error()


def wait_until_completed(commands: Object) -> None:
    """Block until a committed command buffer is over; PyObjC gives the GIL up meanwhile."""
    commands.waitUntilCompleted()


def encode_wait(commands: Object, event: Object, value: int) -> None:
    commands.encodeWaitForEvent_value_(event, value)


def encode_signal(commands: Object, event: Object, value: int) -> None:
    commands.encodeSignalEvent_value_(event, value)


# Encoders -----------------------------------------------------------------------------------------------------------
#
# Metal aborts the process if an encoder is released open, or ended twice. So what opens and closes one notes it in a
# list, and `extend` over a foreign call does both in one step: CPython lets no interrupt in between.


def blit_encoder(commands: Object, made: list[Object]) -> None:
    made.extend(starmap(commands.blitCommandEncoder, ((),)))


def compute_encoder(commands: Object, made: list[Object]) -> None:
    """Make an encoder whose dispatches may run at the same time, but for barriers."""
    made.extend(map(commands.computeCommandEncoderWithDispatchType_, (MTLDispatchTypeConcurrent,)))


def end_encoding(encoder: Object, ended: list[None]) -> None:
    ended.extend(starmap(encoder.endEncoding, ((),)))


def push_group(encoder: Object, name: str, pushed: list[None]) -> None:
    pushed.extend(map(encoder.pushDebugGroup_, (name,)))


def pop_group(encoder: Object, popped: list[None]) -> None:
    popped.extend(starmap(encoder.popDebugGroup, ((),)))


def fill(encoder: Object, buffer: Object, start: int, length: int, value: int) -> None:
    """Fill with a byte. PyObjC has the value as a signed char."""
    encoder.fillBuffer_range_value_(buffer, (start, length), value - 256 if value > 127 else value)


def copy(encoder: Object, source: Object, start: int, target: Object, to: int, length: int) -> None:
    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(source, start, target, to, length)


def set_pipeline(encoder: Object, pipeline: Object) -> None:
    encoder.setComputePipelineState_(pipeline)


def set_buffer(encoder: Object, buffer: Object, offset: int, index: int) -> None:
    encoder.setBuffer_offset_atIndex_(buffer, offset, index)


def set_bytes(encoder: Object, data: bytes, index: int) -> None:
    encoder.setBytes_length_atIndex_(data, len(data), index)


def set_threadgroup_bytes(encoder: Object, length: int) -> None:
    encoder.setThreadgroupMemoryLength_atIndex_(length, 0)


def dispatch(encoder: Object, groups: Size, threads: Size) -> None:
    encoder.dispatchThreadgroups_threadsPerThreadgroup_(groups, threads)


def dispatch_indirect(encoder: Object, counts: Object, offset: int, threads: Size) -> None:
    encoder.dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup_(counts, offset, threads)


def barrier(encoder: Object) -> None:
    """Order what follows in a compute encoder behind what precedes, for all buffers."""
    encoder.memoryBarrierWithScope_(MTLBarrierScopeBuffers)


# Memory -------------------------------------------------------------------------------------------------------------


def new_buffer(owner: Object, length: int, options: int) -> Object | None:
    """Return a buffer of a device or of a heap; None if there is no room."""
    return _own(owner.newBufferWithLength_options_, length, options)


def import_memory(device: Object, array: Any, length: int) -> Object | None:
    """Return a buffer over whole pages of host memory, without a copy; None if the device refuses."""
    return _own(
        device.newBufferWithBytesNoCopy_length_options_deallocator_, array, length, MTLResourceStorageModeShared, None
    )


def contents(buffer: Object, length: int) -> memoryview:
    """Return the bytes of a shared buffer. They are gone with it."""
    return memoryview(buffer.contents().as_buffer(length))


def new_heap(native: Native, device: Object, size: int, options: int) -> Object | None:
    """Return a heap whose buffers have `options`; None if there is no room."""
    descriptor = native.MTLHeapDescriptor.alloc().init()
    descriptor.setSize_(size)
    descriptor.setResourceOptions_(options)
    return _own(device.newHeapWithDescriptor_, descriptor)


def heap_demand(device: Object, length: int, options: int) -> tuple[int, int]:
    """Return how many bytes of a heap a buffer needs, and at which alignment."""
    size, alignment = device.heapBufferSizeAndAlignWithLength_options_(length, options)
    return int(size), int(alignment)


def heap_room(heap: Object, alignment: int) -> int:
    return int(heap.maxAvailableSizeWithAlignment_(alignment))


def heap_used(heap: Object) -> int:
    return int(heap.usedSize())


# Shared events ------------------------------------------------------------------------------------------------------


def new_event(device: Object) -> Object | None:
    return _own(device.newSharedEvent)


def event_value(event: Object) -> int:
    return int(event.signaledValue())


def set_event_value(event: Object, value: int) -> None:
    event.setSignaledValue_(value)


def new_listener(native: Native, label: bytes) -> Object:
    """Return a listener whose blocks run on a serial dispatch queue of its own."""
    queue = native.dispatch_queue_create(label, None)
    return native.MTLSharedEventListener.alloc().initWithDispatchQueue_(queue)


def notify(event: Object, listener: Object, value: int, block: Callable[[Object, int], None]) -> None:
    event.notifyListener_atValue_block_(listener, value, block)


# Executables --------------------------------------------------------------------------------------------------------


def compile_source(device: Object, source: str, options: Object) -> tuple[Object | None, Object | None]:
    """Return the library and the error; either may be None, and a library may come with warnings."""
    return _own(device.newLibraryWithSource_options_error_, source, options, None)  # type: ignore[no-any-return]


def compile_options(native: Native, macros: dict[str, str]) -> Object:
    options = native.MTLCompileOptions.alloc().init()
    if macros:
        options.setPreprocessorMacros_(macros)
    return options


def load_library(native: Native, device: Object, data: bytes) -> tuple[Object | None, Object | None]:
    """Return the library in a metallib, and the error."""
    held = native.dispatch_data_create(data, len(data), None, None)
    return _own(device.newLibraryWithData_error_, held, None)  # type: ignore[no-any-return]


def function_names(library: Object) -> list[str]:
    return [str(name) for name in library.functionNames()]


def find_function(library: Object, name: str) -> Object | None:
    return _own(library.newFunctionWithName_, name)


def specialise(library: Object, name: str, values: Object) -> tuple[Object | None, Object | None]:
    """Return a function with its constants set, and the error."""
    return _own(library.newFunctionWithName_constantValues_error_, name, values, None)  # type: ignore[no-any-return]


def is_kernel(function: Object) -> bool:
    return int(function.functionType()) == MTLFunctionTypeKernel


def function_constants(function: Object) -> dict[str, int]:
    """Return the function's constants by name, with their MTLDataType."""
    found = function.functionConstantsDictionary() or {}
    return {str(name): int(found[name].type()) for name in found}


def constant_values(native: Native) -> Object:
    return native.MTLFunctionConstantValues.alloc().init()


def set_constant(values: Object, data: bytes, kind: int, name: str) -> None:
    """Set a function constant. PyObjC has no metadata for this pointer: it takes an address, and refuses bytes."""
    held = ctypes.create_string_buffer(data, len(data))
    values.setConstantValue_type_withName_(ctypes.addressof(held), kind, name)


def new_pipeline(device: Object, function: Object) -> tuple[Object | None, Object | None]:
    """Return the compute pipeline of a function, and the error."""
    return _own(device.newComputePipelineStateWithFunction_error_, function, None)  # type: ignore[no-any-return]


def pipeline_threads(pipeline: Object) -> int:
    return int(pipeline.maxTotalThreadsPerThreadgroup())


def pipeline_width(pipeline: Object) -> int:
    return int(pipeline.threadExecutionWidth())


def pipeline_local_bytes(pipeline: Object) -> int:
    return int(pipeline.staticThreadgroupMemoryLength())


# Errors -------------------------------------------------------------------------------------------------------------


def error_facts(error: Object) -> tuple[str, int, str]:
    """Return domain, code and text of an NSError."""
    return str(error.domain()), int(error.code()), str(error.localizedDescription())
