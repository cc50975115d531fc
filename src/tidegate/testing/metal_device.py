"""The driver `metal-simulated`: the Metal driver over a simulated Metal, so that it runs without a Mac.

Kernels are host functions found by the names in the source: `native.register("name", fn)`, with `fn` as the CPU driver
takes it. What Apple's documentation leaves open is drawn from the seed in `TIDEGATE_METAL_SEED`; with an even one
PyObjC is one of those that hold new objects twice.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tidegate.drivers.metal import MetalDriver
from tidegate.testing import metal_simulated

_seed = int(os.environ.get("TIDEGATE_METAL_SEED", "0"))
native: Any = metal_simulated.native(seed=_seed, owns_new=_seed % 2 == 1)
driver = MetalDriver(native, scheme="metal-simulated")


def register_fill_kernels(simulated: Any) -> None:
    """Give a simulation the driver's own kernels."""
    simulated.register("tidegate_fill_words", _fill_words)
    simulated.register("tidegate_fill_bytes", _fill_bytes)
    simulated.register("tidegate_copy_bytes", _copy_bytes)


def _fill_words(_workgroups: Any, bindings: Any, constants: tuple[Any, ...]) -> None:
    pattern, count = constants
    bindings[0][: 4 * int(count)].view(np.uint32)[:] = pattern


def _fill_bytes(_workgroups: Any, bindings: Any, constants: tuple[Any, ...]) -> None:
    pattern, count = int(constants[0]), int(constants[1])
    bindings[0][:count] = np.resize(np.frombuffer(pattern.to_bytes(4, "little"), np.uint8), count)


def _copy_bytes(_workgroups: Any, bindings: Any, constants: tuple[Any, ...]) -> None:
    count = int(constants[0])
    bindings[1][:count] = bindings[0][:count]


register_fill_kernels(native)
