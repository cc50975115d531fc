"""CUDA's error codes, as far as the simulation speaks them."""

from __future__ import annotations

from ...drivers.cuda._native import NativeError

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_IMAGE = 200
INVALID_CONTEXT = 201
NO_BINARY_FOR_GPU = 209
INVALID_PTX = 218
INVALID_HANDLE = 400
NOT_FOUND = 500
ILLEGAL_ADDRESS = 700
HOST_MEMORY_ALREADY_REGISTERED = 712
HOST_MEMORY_NOT_REGISTERED = 713
ASSERT = 710
MISALIGNED_ADDRESS = 716
LAUNCH_FAILED = 719
COOPERATIVE_LAUNCH_TOO_LARGE = 720
NOT_SUPPORTED = 801
STREAM_CAPTURE_UNSUPPORTED = 900
INVALID_CLUSTER_SIZE = 912
UNKNOWN = 999

_WORDS = {
    0: ("CUDA_SUCCESS", "no error"),
    INVALID_VALUE: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    OUT_OF_MEMORY: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    NOT_INITIALIZED: ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    NO_DEVICE: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    INVALID_DEVICE: ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    INVALID_IMAGE: ("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    INVALID_CONTEXT: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    NO_BINARY_FOR_GPU: ("CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"),
    INVALID_PTX: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    INVALID_HANDLE: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    NOT_FOUND: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    600: ("CUDA_ERROR_NOT_READY", "device not ready"),
    ILLEGAL_ADDRESS: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    ASSERT: ("CUDA_ERROR_ASSERT", "device-side assert triggered"),
    HOST_MEMORY_ALREADY_REGISTERED: (
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "part or all of the requested memory range is already mapped",
    ),
    HOST_MEMORY_NOT_REGISTERED: (
        "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        "pointer does not correspond to a registered memory region",
    ),
    MISALIGNED_ADDRESS: ("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"),
    LAUNCH_FAILED: ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
    COOPERATIVE_LAUNCH_TOO_LARGE: (
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "too many blocks in cooperative launch",
    ),
    NOT_SUPPORTED: ("CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
    STREAM_CAPTURE_UNSUPPORTED: (
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "operation not permitted when stream is capturing",
    ),
    INVALID_CLUSTER_SIZE: ("CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size"),
}


def native_error(call: str, code: int) -> NativeError:
    """Return the error that the real layer would raise for a code."""
    name, text = _WORDS.get(code, ("unknown", "unknown"))
    return NativeError(call, code, name, text)


class Refusal(Exception):
    """A call that CUDA refuses at once; nothing has happened."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Fault(Exception):
    """Work that goes wrong on the device: its context is dead from then on."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class SimulatedDeadlockError(Exception):
    """A call blocked its caller for longer than the simulation is willing to wait."""


class SimulatedCrashError(AssertionError):
    """A call with a handle of something that was destroyed: CUDA does not check those, and the process dies."""
