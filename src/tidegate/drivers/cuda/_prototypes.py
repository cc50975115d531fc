"""What the functions of CUDA that `_native` calls take, which of them may block, and CUDA's numbers for attributes."""

from __future__ import annotations

from ctypes import c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any

_P = c_void_p
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_P,),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, c_int),
    "cuDeviceGetName": (_P, c_int, c_int),
    "cuDeviceTotalMem_v2": (_P, c_int),
    "cuDeviceGetAttribute": (_P, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_P, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_P,),
    "cuCtxGetCurrent": (_P,),
    "cuCtxGetStreamPriorityRange": (_P, _P),
    "cuCtxRecordEvent": (_P, _P),
    "cuStreamCreateWithPriority": (_P, c_uint, c_int),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamQuery": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamWaitEvent": (_P, _P, c_uint),
    "cuStreamWriteValue64_v2": (_P, c_uint64, c_uint64, c_uint),
    "cuStreamWaitValue64_v2": (_P, c_uint64, c_uint64, c_uint),
    "cuEventCreate": (_P, c_uint),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventQuery": (_P,),
    "cuEventSynchronize": (_P,),
    "cuMemPoolCreate": (_P, _P),
    "cuMemPoolDestroy": (_P,),
    "cuMemPoolSetAttribute": (_P, c_int, _P),
    "cuMemPoolGetAttribute": (_P, c_int, _P),
    "cuMemPoolTrimTo": (_P, c_size_t),
    "cuMemAllocFromPoolAsync": (_P, c_size_t, _P, _P),
    "cuMemFreeAsync": (c_uint64, _P),
    "cuMemHostAlloc": (_P, c_size_t, c_uint),
    "cuMemFreeHost": (_P,),
    "cuMemHostRegister_v2": (_P, c_size_t, c_uint),
    "cuMemHostUnregister": (_P,),
    "cuPointerGetAttribute": (_P, c_int, c_uint64),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, _P),
    "cuMemsetD16Async": (c_uint64, c_ushort, c_size_t, _P),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, _P),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, _P),
    "cuLibraryLoadData": (_P, _P, _P, _P, c_uint, _P, _P, c_uint),
    "cuLibraryUnload": (_P,),
    "cuLibraryGetKernel": (_P, _P, c_char_p),
    "cuLibraryGetModule": (_P, _P),
    "cuLibraryGetKernelCount": (_P, _P),
    "cuLibraryEnumerateKernels": (_P, c_uint, _P),
    "cuKernelGetName": (_P, _P),
    "cuKernelGetFunction": (_P, _P),
    "cuKernelGetParamInfo": (_P, c_size_t, _P, _P),
    "cuFuncGetAttribute": (_P, c_int, _P),
    "cuFuncSetAttribute": (_P, c_int, c_int),
    "cuFuncLoad": (_P,),
    "cuModuleLoadDataEx": (_P, _P, c_uint, _P, _P),
    "cuModuleUnload": (_P,),
    "cuLaunchKernel": (_P, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, _P, _P, _P),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
    "cuGraphCreate": (_P, c_uint),
    "cuGraphDestroy": (_P,),
    "cuGraphAddKernelNode_v2": (_P, _P, _P, c_size_t, _P),
    "cuGraphAddMemsetNode": (_P, _P, _P, c_size_t, _P, _P),
    "cuGraphAddMemcpyNode": (_P, _P, _P, c_size_t, _P, _P),
    "cuGraphAddEmptyNode": (_P, _P, _P, c_size_t),
    "cuGraphKernelNodeSetAttribute": (_P, c_int, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, c_uint64),
    "cuGraphExecDestroy": (_P,),
    "cuGraphExecKernelNodeSetParams_v2": (_P, _P, _P),
    "cuGraphExecMemsetNodeSetParams": (_P, _P, _P, _P),
    "cuGraphExecMemcpyNodeSetParams": (_P, _P, _P, _P),
    "cuGraphNodeSetEnabled": (_P, _P, c_uint),
    "cuGraphLaunch": (_P, _P),
    "cuGetErrorName": (c_int, _P),
    "cuGetErrorString": (c_int, _P),
}

# Whatever asks about code may have to compile it, or to bring it onto the GPU, which waits for all that runs there.
BLOCKING = frozenset(
    {
        "cuInit",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease_v2",
        "cuStreamDestroy_v2",
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "cuMemHostRegister_v2",
        "cuMemHostUnregister",
        "cuMemPoolCreate",
        "cuMemPoolDestroy",
        "cuMemPoolTrimTo",
        "cuLibraryLoadData",
        "cuLibraryUnload",
        "cuLibraryGetKernel",
        "cuLibraryGetModule",
        "cuLibraryGetKernelCount",
        "cuLibraryEnumerateKernels",
        "cuKernelGetName",
        "cuKernelGetFunction",
        "cuKernelGetParamInfo",
        "cuFuncGetAttribute",
        "cuFuncSetAttribute",
        "cuFuncLoad",
        "cuModuleLoadDataEx",
        "cuModuleUnload",
        "cuGraphInstantiateWithFlags",
    }
)

LATER = frozenset(
    {
        "cuCtxRecordEvent",
        "cuLibraryGetKernelCount",
        "cuLibraryEnumerateKernels",
        "cuKernelGetName",
        "cuKernelGetParamInfo",
    }
)
"""Came with CUDA 12.4 and 12.5: where they are missing, something else is done or reflection is missing."""


class Attribute:
    """The device attributes that Tidegate asks for, by CUDA's numbers."""

    MAX_BLOCK_X = 2
    MAX_GRID_X = 5
    MAX_GRID_Y = 6
    MAX_GRID_Z = 7
    MAX_THREADS_PER_BLOCK = 1
    MULTIPROCESSORS = 16
    MAJOR = 75
    MINOR = 76
    MEM_OPS_64 = 122
    COOPERATIVE = 95
    MAX_SHARED_OPTIN = 97
    MEMORY_POOLS = 115


class PoolAttribute:
    """CUmemPool_attribute."""

    FOLLOW_EVENTS = 1
    OPPORTUNISTIC = 2
    INTERNAL_DEPENDENCIES = 3
    RELEASE_THRESHOLD = 4
    RESERVED = 5
    RESERVED_HIGH = 6
    USED = 7
    USED_HIGH = 8


class FunctionAttribute:
    """CUfunction_attribute."""

    MAX_THREADS = 0
    SHARED_BYTES = 1
    REGISTERS = 4
    MAX_DYNAMIC_SHARED = 8
    NON_PORTABLE_CLUSTER = 14
