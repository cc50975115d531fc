"""What the demo does: an array goes through a device in chunks, several of them in flight, and comes back changed.

Each chunk is uploaded, mixed by a kernel and downloaded; the three steps are ordered by handing each the submission
before it. A chunk waits for the one that used its buffers before, and for nothing else: everything is submitted at
once, and the device finds out what can run at the same time. With a depth of 1 there is one set of buffers, and so
one chunk at a time, by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tidegate import Device, Function

Words = NDArray[np.uint32]
Advance = Callable[[int], None]
"""Told of bytes that are done."""

LARGEST_CHUNK = {"cpu": 2 * 2**20}
"""By driver. On the CPU the chunks in flight should stay in its caches, which host and device share."""
USUAL_CHUNK = 8 * 2**20

# Integers, so that every device gives the very same bits; mixed well, so that no bit can be wrong unnoticed.
_STEP = "x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; x ^= x >> 16;"
_C = f"""
tidegate_kernel void mix(const uint32_t *source, uint32_t *target, uint32_t n) {{
    tidegate_for(i, n) {{ uint32_t x = source[i]; {_STEP} target[i] = x; }}
}}
"""
_CUDA = f"""
extern "C" __global__ void mix(const unsigned *source, unsigned *target, unsigned n) {{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{ unsigned x = source[i]; {_STEP} target[i] = x; }}
}}
"""
_METAL = f"""
#include <metal_stdlib>
kernel void mix(device const uint *source [[buffer(0)]], device uint *target [[buffer(1)]],
                constant uint &n [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
    if (i < n) {{ uint x = source[i]; {_STEP} target[i] = x; }}
}}
"""


def mix(words: Words) -> Words:
    """Return what the kernel makes of `words`, by NumPy."""
    x = words ^ (words >> np.uint32(16))
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def _mix_in_python(_workgroups: object, bindings: Any, constants: Any) -> None:
    count = int(constants[0])
    source, target = (binding.view(np.uint32)[:count] for binding in bindings)
    target[:] = mix(source)


def load_mix(device: Device) -> Function:
    """Return the kernel for this device."""
    import tidegate as tg

    workgroup = (16384, 1, 1) if device.info.driver == "cpu" else (256, 1, 1)
    kernel = tg.Kernel(
        "mix",
        cpu=[_C, _mix_in_python],
        cuda=_CUDA,
        metal=_METAL,
        bindings=2,
        constants=[np.uint32],
        workgroup=workgroup,
    )
    return device.load(kernel)["mix"]


def make_source(nbytes: int) -> Words:
    """Return words that differ from one another."""
    words = np.arange(nbytes // 4, dtype=np.uint32)
    words *= np.uint32(2654435761)
    return words


def chunk_bytes(nbytes: int, depth: int, driver: str) -> int:
    """Return a chunk's size: large enough to be worth a submission, small enough to fill the pipeline many times."""
    largest = LARGEST_CHUNK.get(driver, USUAL_CHUNK)
    return min(largest, max(64 * 1024, nbytes // (4 * depth) // 4096 * 4096))


def stream(
    device: Device, function: Function, source: Words, target: Words, depth: int, chunk: int, advance: Advance
) -> None:
    """Send `source` through the device into `target`, with `depth` chunks in flight."""
    queue = device.queue()
    slots = [(device.allocate(chunk), device.allocate(chunk)) for _ in range(depth)]
    before: list[Any] = [None] * depth
    downloads = []
    for number, part in enumerate(_parts(source.size, chunk // 4)):
        words, slot = source[part], number % depth
        fresh, mixed = slots[slot]
        uploaded = queue.upload(words, fresh, wait=before[slot])
        done = queue.dispatch(
            function,
            function.workgroups_for(words.size),
            bindings=[fresh, mixed],
            constants=[np.uint32(words.size)],
            wait=uploaded,
        )
        before[slot] = queue.download(mixed, target[part], length=words.nbytes, wait=done)
        downloads.append((before[slot], words.nbytes))
    for download, nbytes in downloads:
        download.wait()
        advance(nbytes)
    for buffers in slots:
        for buffer in buffers:
            buffer.close()


def mix_all(source: Words, advance: Advance) -> Words:
    """Return what NumPy makes of the whole array, in parts that stay in the caches."""
    expected = np.empty_like(source)
    for part in _parts(source.size, 2**18):
        expected[part] = mix(source[part])
        advance(source[part].nbytes)
    return expected


def find_wrong(expected: Words, target: Words) -> int | None:
    """Return the index of the first element that differs, or None."""
    for part in _parts(expected.size, 2**20):
        wrong = expected[part] != target[part]
        if wrong.any():
            return int(part.start) + int(wrong.argmax())
    return None


def _parts(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))
