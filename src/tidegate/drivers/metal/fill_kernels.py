"""Fills and copies off the 4-byte grid: small kernels of our own, compiled when a device first needs one.

Fills whose pattern is more than one byte repeated come here as well. Where the range is on the grid a thread writes
four bytes, else one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tidegate.drivers.metal import _native
from tidegate.drivers.metal._native import Object
from tidegate.drivers.metal.executable import MetalFunction, compile_library, make_function

if TYPE_CHECKING:
    from tidegate.drivers.metal.device import MetalDevice
    from tidegate.drivers.metal.direct_command_buffer import Encoder

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void tidegate_fill_words(device uint *target [[buffer(0)]], constant uint &pattern [[buffer(1)]],
    constant uint &count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < count) target[i] = pattern;
}

kernel void tidegate_fill_bytes(device uchar *target [[buffer(0)]], constant uint &pattern [[buffer(1)]],
    constant uint &count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < count) target[i] = uchar(pattern >> (8 * (i % 4)));
}

kernel void tidegate_copy_bytes(device const uchar *source [[buffer(0)]], device uchar *target [[buffer(1)]],
    constant uint &count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < count) target[i] = source[i];
}
"""
WIDTH = 256
CHUNK = 2**30
"""The most bytes of one dispatch: counts and positions are 32-bit numbers, and this is a multiple of every pattern."""


class FillKernels:
    """The kernels of one device."""

    def __init__(self, device: MetalDevice) -> None:
        self._device = device
        self._lock = threading.RLock()
        self._functions: dict[str, MetalFunction] = {}

    def fill(self, encoder: Encoder, target: Object, start: int, length: int, pattern: bytes) -> None:
        """Repeat a pattern of 1, 2 or 4 bytes over any range."""
        words = start % 4 == 0 and length % 4 == 0
        function = self._function("tidegate_fill_words" if words else "tidegate_fill_bytes")
        repeated = pattern * (4 // len(pattern))
        for begin in range(0, length, CHUNK):
            count = min(CHUNK, length - begin) // (4 if words else 1)
            native = encoder.set_function(function, (), (), 0, ())
            _native.set_buffer(native, target, start + begin, 0)
            _native.set_bytes(native, repeated, 1)
            self._run(native, function, count)

    def copy(self, encoder: Encoder, source: Object, start: int, target: Object, to: int, length: int) -> None:
        """Copy between any ranges that do not overlap."""
        function = self._function("tidegate_copy_bytes")
        for begin in range(0, length, CHUNK):
            native = encoder.set_function(function, (), (), 0, ())
            _native.set_buffer(native, source, start + begin, 0)
            _native.set_buffer(native, target, to + begin, 1)
            self._run(native, function, min(CHUNK, length - begin))

    def _run(self, native: Object, function: MetalFunction, count: int) -> None:
        _native.set_bytes(native, count.to_bytes(4, "little"), 2)
        width = function.workgroup[0]
        _native.dispatch(native, (-(-count // width), 1, 1), function.workgroup)

    def _function(self, name: str) -> MetalFunction:
        if name not in self._functions:
            with self._lock:
                library = compile_library(self._device, SOURCE, {})
                function = make_function(self._device, library, name, {})
                function.workgroup = (min(WIDTH, function.threads), 1, 1)
                self._functions[name] = function
        return self._functions[name]
