"""A C kernel to compile, a way to run any, and programs that stand in for the compiler."""

from pathlib import Path

from tidegate.drivers.cpu.c_source import CFunction

SAXPY = """
tidegate_kernel void saxpy(const float *x, float *y, float a, uint32_t n) {
    tidegate_for(i, n) y[i] += a * x[i];
}
"""


def run(function: CFunction, arrays, constants=(), count=(1, 1, 1), size=(1, 1, 1), local_bytes=0, span=None):
    prepared = function.prepare([array.ctypes.data for array in arrays], constants)
    begin, end = span or (0, count[0] * count[1] * count[2])
    function.run(*prepared, count, size, local_bytes, begin, end)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)
