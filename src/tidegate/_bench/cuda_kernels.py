"""The kernels of the CUDA cases: as Tidegate loads them, and as cubins and sources for the others."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .model import Missing

TOUCH = 'extern "C" __global__ void touch(unsigned *counter) { counter[0] += 1; }'

_TIMER = """
static __device__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}
"""

# A kernel that takes a given time. A card does not mind one thread that spins: the rest of it stays free.
SPIN = f"""{_TIMER}
extern "C" __global__ void spin(unsigned long long nanoseconds) {{
    unsigned long long begin = now();
    while (now() - begin < nanoseconds) __nanosleep(1000);
}}
"""

# A stage of a pipeline: touches every element and takes at least a given time.
STAGE = f"""{_TIMER}
extern "C" __global__ void stage(unsigned *data, unsigned count, unsigned long long nanoseconds) {{
    unsigned long long begin = now();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) data[i] += 1;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        while (now() - begin < nanoseconds) __nanosleep(1000);
}}
"""

# Runs until the host has stored a value, or for ten seconds.
GATE = f"""{_TIMER}
extern "C" __global__ void gate(volatile unsigned *word, unsigned value) {{
    unsigned long long begin = now();
    while (word[0] < value && now() - begin < 10000000000ULL) __nanosleep(100);
}}
"""

STAGE_THREADS = 256
STAGE_GROUPS = 264
"""Two for each multiprocessor of an H200: enough for its bandwidth."""


def load_touch(device: Any) -> Any:
    """Return the kernel that adds one to a counter."""
    return _load(device, "touch", TOUCH, 1, ())


def load_spin(device: Any) -> Any:
    """Return the kernel that takes a given number of nanoseconds."""
    return _load(device, "spin", SPIN, 0, (np.uint64,))


def load_stage(device: Any) -> Any:
    """Return the kernel that touches a chunk and takes a given time."""
    return _load(device, "stage", STAGE, 1, (np.uint32, np.uint64), (STAGE_THREADS, 1, 1))


def load_gate(device: Any) -> Any:
    """Return the kernel that watches a word of the host's."""
    return _load(device, "gate", GATE, 1, (np.uint32,))


def _load(
    device: Any, name: str, source: str, bindings: int, constants: tuple[Any, ...], workgroup: Any = (1, 1, 1)
) -> Any:
    import tidegate as tg

    kernel = tg.Kernel(name, cuda=source, bindings=bindings, constants=list(constants), workgroup=workgroup)
    return device.load(kernel)[name]


@cache
def cubin(source: str, architecture: str) -> bytes:
    """Return compiled code for those who load no source."""
    from ..drivers.cuda._nvrtc import Nvrtc

    try:
        return Nvrtc().compile(source, "bench.cu", [f"--gpu-architecture=sm_{architecture}"])
    except OSError as error:
        raise Missing("NVRTC is not installed") from error
