"""The driver `cuda-simulated`: the CUDA driver over a simulated machine, one for the process, as a real one is.

What the card leaves open is drawn from the seed in `TIDEGATE_CUDA_SEED`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from ...drivers.cuda import CudaDriver
from .machine import Machine
from .native import SimulatedNative
from .nvrtc import SimulatedNvrtc

if TYPE_CHECKING:
    from ...drivers.cuda._native import Native
    from ...drivers.cuda._nvrtc import Nvrtc


class SimulatedCudaDriver(CudaDriver):
    """Opens the devices of one simulated machine.

    Attributes:
        native: the machine; its `violations` are what a test has to look at.

    """

    def __init__(self, native: SimulatedNative) -> None:
        self.native = native
        super().__init__(
            lambda release_gil: cast("Native", native), lambda: cast("Nvrtc", SimulatedNvrtc()), "cuda-simulated"
        )


_seed = int(os.environ.get("TIDEGATE_CUDA_SEED", "0"))

driver = SimulatedCudaDriver(
    SimulatedNative(Machine(seed=_seed, devices=2, memory=2 << 30, limit=20.0, shake=0.1), strict=True)
)
