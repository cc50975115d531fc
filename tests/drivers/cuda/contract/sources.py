"""The kernels of the facts, in CUDA C++.

All parameters are 64 bits wide, so that one way of packing arguments serves them all. No kernel needs a header.
"""

from __future__ import annotations

KERNELS = """
extern "C" __global__ void nothing() {}

extern "C" __global__ void latch(volatile unsigned long long *opened, volatile unsigned long long *arrived,
                                 unsigned long long limit) {
    *arrived += 1;
    __threadfence_system();
    unsigned long long begun = clock64();
    while (*opened == 0 && clock64() - begun < limit) __nanosleep(200);
}

extern "C" __global__ void meet(volatile unsigned long long *mine, volatile unsigned long long *other,
                                unsigned long long *met, unsigned long long limit) {
    *mine = 1;
    __threadfence_system();
    unsigned long long begun = clock64();
    while (*other == 0 && clock64() - begun < limit) __nanosleep(200);
    *met = *other;
}

extern "C" __global__ void store(unsigned long long *target, unsigned long long value) {
    *target = value;
}

extern "C" __global__ void add(unsigned long long *target, unsigned long long value) {
    *target += value;
}

extern "C" __global__ void append(unsigned long long *log, unsigned long long value) {
    log[0] += 1;
    log[log[0]] = value;
}

extern "C" __global__ void store_all(unsigned *target, unsigned long long value, unsigned long long count) {
    unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) target[i] = (unsigned)value;
}

extern "C" __global__ void write_groups(unsigned long long *target) {
    target[blockIdx.x] = blockIdx.x + 1;
}

extern "C" __global__ void use_shared(unsigned long long *target, unsigned long long nbytes) {
    extern __shared__ unsigned char bytes[];
    bytes[nbytes - 1] = 7;
    *target = bytes[nbytes - 1];
}

extern "C" __global__ void static_shared(unsigned long long *target) {
    __shared__ unsigned long long cells[16];
    cells[threadIdx.x & 15] = 3;
    *target = cells[threadIdx.x & 15];
}

extern "C" __global__ void __launch_bounds__(64) few_threads(unsigned long long *target) {
    *target = 1;
}
"""

NAMES = (
    "nothing",
    "latch",
    "meet",
    "store",
    "add",
    "append",
    "store_all",
    "write_groups",
    "use_shared",
    "static_shared",
    "few_threads",
)

TRAP = """
extern "C" __global__ void trapped() { __trap(); }
"""

ASSERTIONS = (
    """
extern "C" __global__ void assertion(unsigned long long value) { assert(value); }
""",
    """
#include <cassert>
extern "C" __global__ void assertion(unsigned long long value) { assert(value); }
""",
    """
extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);
extern "C" __global__ void assertion(unsigned long long value) {
    if (!value) __assertfail("value", "contract.cu", 1, "assertion", 1);
}
""",
)
"""Compilers differ in what they know without a header: the first that compiles is taken."""

ONE_KERNEL = """
extern "C" __global__ void only(unsigned long long *target) { *target = 11; }
"""

PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry from_text() {
    ret;
}
\0"""

BAD_PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry broken() {
    no_such_instruction;
    ret;
}
\0"""
