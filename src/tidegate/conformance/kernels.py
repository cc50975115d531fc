"""The kernels of the suite, each in every language a driver may speak.

The attributes are `tidegate.Kernel` objects; `load(device, kernel)` gives the function to dispatch:

    increment = kernels.load(device, kernels.increment)
    queue.dispatch(increment, increment.workgroups_for(n), bindings=[counters], constants=[np.uint32(n)])

| kernel | bindings | constants | does |
| --- | --- | --- | --- |
| scale_offset | f32 x, f32 y | f32 scale, f32 offset, u32 n | y[i] = x[i] * scale + offset |
| affine | f32 x, f32 y | struct {f32 scale, offset}, u32 n | the same, constants in one struct (`AFFINE`) |
| saxpy | f32 x, f32 y | f32 a, u32 n | y[i] += a * x[i] |
| add | f32 a, f32 b, f32 out | u32 n | out[i] = a[i] + b[i] |
| increment | u32 x | u32 n | x[i] += 1 |
| mix | u32 a, u32 b, u32 out | u32 factor, u32 n | out[i] = a[i] * factor + b[i], modulo 2**32 |
| write_ids | u32 out | none | out[g] = g, g the linear index of the workgroup |
| copy_counts | u32 source, u32 counts | none | copies three counts, for indirect dispatch |
| fault | none | none | fails; only for subjects with the capability "fault" |

Workgroups are 256 wide for the kernels that take `n`, and one item for the others. On the CPU each carries C with a
Python fallback, so the suite runs with and without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import tidegate as tg

WIDTH = 256

AFFINE = np.dtype([("scale", np.float32), ("offset", np.float32)])

Bindings = Any
PythonKernel = Callable[[Any, Bindings, tuple[Any, ...]], None]


class KernelFault(Exception):
    """What the kernel `fault` raises on the CPU."""


def _reach(workgroups: Any, n: Any) -> int:
    """How many of n items the given workgroups cover."""
    return min(int(n), int(workgroups[0]) * WIDTH)


def _floats(binding: Any) -> npt.NDArray[np.float32]:
    view: npt.NDArray[np.float32] = binding.view(np.float32)
    return view


def _words(binding: Any) -> npt.NDArray[np.uint32]:
    view: npt.NDArray[np.uint32] = binding.view(np.uint32)
    return view


def _scale_offset(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    scale, offset, n = constants
    count = _reach(workgroups, n)
    _floats(bindings[1])[:count] = _floats(bindings[0])[:count] * np.float32(scale) + np.float32(offset)


def _affine(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    parameters, n = constants
    _scale_offset(workgroups, bindings, (parameters["scale"], parameters["offset"], n))


def _saxpy(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    a, n = constants
    count = _reach(workgroups, n)
    _floats(bindings[1])[:count] += np.float32(a) * _floats(bindings[0])[:count]


def _add(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    count = _reach(workgroups, constants[0])
    np.add(_floats(bindings[0])[:count], _floats(bindings[1])[:count], out=_floats(bindings[2])[:count])


def _increment(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    _words(bindings[0])[: _reach(workgroups, constants[0])] += np.uint32(1)


def _mix(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    factor, n = constants
    count = _reach(workgroups, n)
    a, b, out = (_words(binding)[:count] for binding in bindings)
    out[:] = a * np.uint32(factor) + b


def _write_ids(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    count = int(np.prod([int(extent) for extent in workgroups]))
    _words(bindings[0])[:count] = np.arange(count, dtype=np.uint32)


def _copy_counts(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    _words(bindings[1])[:3] = _words(bindings[0])[:3]


def _twice(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    _floats(bindings[0])[: _reach(workgroups, constants[0])] *= np.float32(2)


def _negate(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    _floats(bindings[0])[: _reach(workgroups, constants[0])] *= np.float32(-1)


def _fault(workgroups: Any, bindings: Bindings, constants: tuple[Any, ...]) -> None:
    raise KernelFault("this kernel always fails")


_C = {
    "scale_offset": """
tidegate_kernel void scale_offset(const float *x, float *y, float scale, float offset, uint32_t n) {
    tidegate_for(i, n) y[i] = x[i] * scale + offset;
}""",
    "affine": """
struct affine_parameters { float scale; float offset; };
tidegate_kernel void affine(const float *x, float *y, struct affine_parameters p, uint32_t n) {
    tidegate_for(i, n) y[i] = x[i] * p.scale + p.offset;
}""",
    "saxpy": """
tidegate_kernel void saxpy(const float *x, float *y, float a, uint32_t n) {
    tidegate_for(i, n) y[i] += a * x[i];
}""",
    "add": """
tidegate_kernel void add(const float *a, const float *b, float *out, uint32_t n) {
    tidegate_for(i, n) out[i] = a[i] + b[i];
}""",
    "increment": """
tidegate_kernel void increment(uint32_t *x, uint32_t n) {
    tidegate_for(i, n) x[i] += 1;
}""",
    "mix": """
tidegate_kernel void mix(const uint32_t *a, const uint32_t *b, uint32_t *out, uint32_t factor, uint32_t n) {
    tidegate_for(i, n) out[i] = a[i] * factor + b[i];
}""",
    "write_ids": """
tidegate_kernel void write_ids(uint32_t *out) {
    uint32_t g = tidegate_group.id[0]
        + tidegate_group.count[0] * (tidegate_group.id[1] + tidegate_group.count[1] * tidegate_group.id[2]);
    out[g] = g;
}""",
    "copy_counts": """
tidegate_kernel void copy_counts(const uint32_t *source, uint32_t *counts) {
    for (int i = 0; i < 3; ++i) counts[i] = source[i];
}""",
}

_CUDA_ITEM = "unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n)"
_CUDA_GROUP = "blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)"

_CUDA = {
    "scale_offset": f"""
extern "C" __global__ void scale_offset(const float *x, float *y, float scale, float offset, unsigned n) {{
    {_CUDA_ITEM} y[i] = x[i] * scale + offset;
}}""",
    "affine": f"""
struct affine_parameters {{ float scale; float offset; }};
extern "C" __global__ void affine(const float *x, float *y, affine_parameters p, unsigned n) {{
    {_CUDA_ITEM} y[i] = x[i] * p.scale + p.offset;
}}""",
    "saxpy": f"""
extern "C" __global__ void saxpy(const float *x, float *y, float a, unsigned n) {{
    {_CUDA_ITEM} y[i] += a * x[i];
}}""",
    "add": f"""
extern "C" __global__ void add(const float *a, const float *b, float *out, unsigned n) {{
    {_CUDA_ITEM} out[i] = a[i] + b[i];
}}""",
    "increment": f"""
extern "C" __global__ void increment(unsigned *x, unsigned n) {{
    {_CUDA_ITEM} x[i] += 1;
}}""",
    "mix": f"""
extern "C" __global__ void mix(const unsigned *a, const unsigned *b, unsigned *out, unsigned factor, unsigned n) {{
    {_CUDA_ITEM} out[i] = a[i] * factor + b[i];
}}""",
    "write_ids": f"""
extern "C" __global__ void write_ids(unsigned *out) {{
    unsigned g = {_CUDA_GROUP};
    out[g] = g;
}}""",
    "copy_counts": """
extern "C" __global__ void copy_counts(const unsigned *source, unsigned *counts) {
    for (int i = 0; i < 3; ++i) counts[i] = source[i];
}""",
}

_METAL_HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
_METAL_ITEM = "uint i [[thread_position_in_grid]]"

_METAL = {
    "scale_offset": f"""{_METAL_HEAD}
kernel void scale_offset(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
    constant float &scale [[buffer(2)]], constant float &offset [[buffer(3)]], constant uint &n [[buffer(4)]],
    {_METAL_ITEM}) {{ if (i < n) y[i] = x[i] * scale + offset; }}""",
    "affine": f"""{_METAL_HEAD}
struct affine_parameters {{ float scale; float offset; }};
kernel void affine(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
    constant affine_parameters &p [[buffer(2)]], constant uint &n [[buffer(3)]],
    {_METAL_ITEM}) {{ if (i < n) y[i] = x[i] * p.scale + p.offset; }}""",
    "saxpy": f"""{_METAL_HEAD}
kernel void saxpy(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
    constant float &a [[buffer(2)]], constant uint &n [[buffer(3)]],
    {_METAL_ITEM}) {{ if (i < n) y[i] += a * x[i]; }}""",
    "add": f"""{_METAL_HEAD}
kernel void add(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],
    device float *out [[buffer(2)]], constant uint &n [[buffer(3)]],
    {_METAL_ITEM}) {{ if (i < n) out[i] = a[i] + b[i]; }}""",
    "increment": f"""{_METAL_HEAD}
kernel void increment(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]],
    {_METAL_ITEM}) {{ if (i < n) x[i] += 1; }}""",
    "mix": f"""{_METAL_HEAD}
kernel void mix(device const uint *a [[buffer(0)]], device const uint *b [[buffer(1)]],
    device uint *out [[buffer(2)]], constant uint &factor [[buffer(3)]], constant uint &n [[buffer(4)]],
    {_METAL_ITEM}) {{ if (i < n) out[i] = a[i] * factor + b[i]; }}""",
    "write_ids": f"""{_METAL_HEAD}
kernel void write_ids(device uint *out [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint3 count [[threadgroups_per_grid]]) {{
    uint g = group.x + count.x * (group.y + count.y * group.z);
    out[g] = g;
}}""",
    "copy_counts": f"""{_METAL_HEAD}
kernel void copy_counts(device const uint *source [[buffer(0)]], device uint *counts [[buffer(1)]]) {{
    for (int i = 0; i < 3; ++i) counts[i] = source[i];
}}""",
}


def _kernel(name: str, python: PythonKernel, bindings: int, constants: list[Any], width: int) -> tg.Kernel:
    return tg.Kernel(
        name,
        cpu=[_C[name], python],
        cuda=_CUDA[name],
        metal=_METAL[name],
        bindings=bindings,
        constants=constants,
        workgroup=(width, 1, 1),
    )


scale_offset = _kernel("scale_offset", _scale_offset, 2, [np.float32, np.float32, np.uint32], WIDTH)
affine = _kernel("affine", _affine, 2, [AFFINE, np.uint32], WIDTH)
saxpy = _kernel("saxpy", _saxpy, 2, [np.float32, np.uint32], WIDTH)
add = _kernel("add", _add, 3, [np.uint32], WIDTH)
increment = _kernel("increment", _increment, 1, [np.uint32], WIDTH)
mix = _kernel("mix", _mix, 3, [np.uint32, np.uint32], WIDTH)
write_ids = _kernel("write_ids", _write_ids, 1, [], 1)
copy_counts = _kernel("copy_counts", _copy_counts, 2, [], 1)
#: On a real GPU it would take more than its own submission with it; only the simulated Metal runs that source.
fault = tg.Kernel(
    "fault",
    cpu=_fault,
    metal=f"{_METAL_HEAD}\nkernel void fault() {{ }}",
    bindings=0,
    constants=[],
    workgroup=(1, 1, 1),
)

#: Source text with two entry points, `twice` and `negate` (f32 x in place; u32 n), by language.
TWO_ENTRY_POINTS: Mapping[str, str] = {
    "cpu": """
tidegate_kernel void twice(float *x, uint32_t n) { tidegate_for(i, n) x[i] *= 2; }
tidegate_kernel void negate(float *x, uint32_t n) { tidegate_for(i, n) x[i] = -x[i]; }""",
    "cuda": f"""
extern "C" __global__ void twice(float *x, unsigned n) {{ {_CUDA_ITEM} x[i] *= 2; }}
extern "C" __global__ void negate(float *x, unsigned n) {{ {_CUDA_ITEM} x[i] = -x[i]; }}""",
    "metal": f"""{_METAL_HEAD}
kernel void twice(device float *x [[buffer(0)]], constant uint &n [[buffer(1)]], {_METAL_ITEM}) {{
    if (i < n) x[i] *= 2; }}
kernel void negate(device float *x [[buffer(0)]], constant uint &n [[buffer(1)]], {_METAL_ITEM}) {{
    if (i < n) x[i] = -x[i]; }}""",
}

#: What the entry points of `TWO_ENTRY_POINTS` do, in Python, by name: for simulated devices.
HOST_FUNCTIONS: Mapping[str, PythonKernel] = {"twice": _twice, "negate": _negate}

#: Source text that does not compile, by language; the undeclared name is to be found in the log.
DOES_NOT_COMPILE: Mapping[str, str] = {
    "cpu": "tidegate_kernel void broken(float *x) { x[0] = an_undeclared_name; }",
    "cuda": 'extern "C" __global__ void broken(float *x) { x[0] = an_undeclared_name; }',
    "metal": "kernel void broken(device float *x [[buffer(0)]]) { x[0] = an_undeclared_name; }",
}


#: Every kernel of this module.
ALL = (scale_offset, affine, saxpy, add, increment, mix, write_ids, copy_counts, fault)


def load(device: tg.Device, kernel: tg.Kernel) -> tg.Function:
    """Load a kernel of this module on a device and give its function."""
    return device.load(kernel)[kernel.name]
