"""CUDA without a GPU: a native layer that behaves as an H200 was measured to behave.

    native = cuda_simulated.native(seed=1)
    driver = CudaDriver(lambda release_gil: native, cuda_simulated.SimulatedNvrtc)
    ...
    assert not native.violations

It stands where `Native` stands: the same methods, handles and error codes. What makes it worth running is what it
shares with the hardware that a mock would not:

- Streams run in order, each by itself; an event wait holds what the event meant at the call.
- A stream holds 1,021 entries, and 56 records of events made for blocking; the next call blocks its caller, and others.
- Only so many streams can be held up, by a wait or by what they run; work given to any other after that stalls.
- Device memory is real memory with two lives, the host's and the device's; work that touches it outside the second is
  a fault or a violation, freed memory is poisoned, and what is written past the end is noticed.
- A fault is for good: nothing that was behind it happens, and nearly every call reports it.
- A handle of something that was destroyed is not refused: the call is a crash, and a violation.
- Calls that wait for all running work do: freeing page-locked memory, the first use of a library, unloading one. Who
  launches a kernel or records an event meanwhile waits with them.
- Kernels are the CUDA C++ sources, compiled for the host, run without the GIL.
- Graph nodes run in any order that their edges allow, and streams hesitate, by a seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .codes import SimulatedCrashError, SimulatedDeadlockError
from .machine import Machine
from .native import SimulatedNative
from .nvrtc import SimulatedNvrtc, find_compiler
from .python_kernels import python_kernel

__all__ = [
    "SimulatedCrashError",
    "SimulatedDeadlockError",
    "SimulatedNative",
    "SimulatedNvrtc",
    "find_compiler",
    "native",
    "python_kernel",
]


def native(
    seed: int = 0,
    devices: int = 1,
    *,
    memory: int = 2 << 30,
    limit: float = 20.0,
    shake: float = 0.1,
    strict: bool = False,
    without: Iterable[str] = (),
) -> SimulatedNative:
    """Make a machine.

    Args:
        seed: of all that is left to chance.
        devices: how many cards it has.
        memory: of each card, in bytes; the page-locked memory is limited to as much.
        limit: how many seconds a call may block its caller; then it raises `SimulatedDeadlockError`.
        shake: how often, of 1, a stream hesitates before it goes on.
        strict: whether even calls that need no current context, on this driver, want one.
        without: names of functions that an older driver does not have.

    """
    return SimulatedNative(Machine(seed, devices, memory, limit, shake), strict, frozenset(without))


def __getattr__(name: str) -> Any:
    if name == "driver":  # on demand: the layer below the driver can be used without it
        from .simulated_driver import driver

        return driver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
