"""The few structures of the CUDA driver API that Tidegate passes by pointer, as `cuda.h` lays them out."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p


class MemPoolProps(Structure):
    """CUmemPoolProps."""

    _fields_ = (
        ("alloc_type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("security", c_void_p),
        ("max_size", c_size_t),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 54),
    )


class KernelNodeParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("params", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


class MemsetNodeParams(Structure):
    """CUDA_MEMSET_NODE_PARAMS_v1."""

    _fields_ = (
        ("target", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    )


class _Side(Structure):
    _fields_ = (
        ("x", c_size_t),
        ("y", c_size_t),
        ("z", c_size_t),
        ("lod", c_size_t),
        ("kind", c_int),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("reserved", c_void_p),
        ("pitch", c_size_t),
        ("height", c_size_t),
    )


class Memcpy3D(Structure):
    """CUDA_MEMCPY3D_v2, whose two sides are alike."""

    _fields_ = (
        ("source", _Side),
        ("target", _Side),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


class LaunchAttribute(Structure):
    """CUlaunchAttribute; the value is a union of 64 bytes."""

    _fields_ = (("kind", c_int), ("padding", c_int), ("value", c_uint * 16))


class LaunchConfig(Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("count", c_uint),
    )


UNIFIED = 4
"""CU_MEMORYTYPE_UNIFIED: the address tells where it is."""


def linear_copy(target: int, source: int, nbytes: int) -> Memcpy3D:
    """Return a copy of consecutive bytes."""
    copy = Memcpy3D(width=nbytes, height=1, depth=1)
    copy.source.kind = copy.target.kind = UNIFIED
    copy.source.device, copy.target.device = source, target
    return copy


def memset_params(target: int, value: int, element: int, count: int) -> MemsetNodeParams:
    """Return a fill of `count` elements of 1, 2 or 4 bytes."""
    return MemsetNodeParams(target=target, pitch=0, value=value, element=element, width=count, height=1)


def memory_pool_props(device: int, max_size: int) -> MemPoolProps:
    """Return a pool of ordinary memory of one device; a maximum of 0 is the device's own."""
    pinned, on_device = 1, 1
    return MemPoolProps(alloc_type=pinned, location_type=on_device, location_id=device, max_size=max_size)


def as_pointer(structure: Structure) -> int:
    """Return the address of a structure. The caller keeps the structure."""
    return ctypes.addressof(structure)
