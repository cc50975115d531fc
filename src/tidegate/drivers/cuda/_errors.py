"""What CUDA's errors mean here. Nothing else in this driver looks at a code."""

from __future__ import annotations

from types import TracebackType

from tidegate.errors import (
    CompileError,
    DeviceLostError,
    DriverUnavailableError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    TidegateError,
    UnsupportedError,
)

from ._native import NativeError

_MEANING: dict[int, type[TidegateError]] = {
    1: InvalidArgumentError,  # INVALID_VALUE
    2: ResourceExhaustedError,  # OUT_OF_MEMORY
    3: DriverUnavailableError,  # NOT_INITIALIZED
    4: DriverUnavailableError,  # DEINITIALIZED: the process is exiting
    34: DriverUnavailableError,  # STUB_LIBRARY
    35: DriverUnavailableError,  # INSUFFICIENT_DRIVER (of the runtime, also seen from wrappers)
    46: DriverUnavailableError,  # DEVICE_UNAVAILABLE
    100: DriverUnavailableError,  # NO_DEVICE
    101: NotFoundError,  # INVALID_DEVICE
    200: CompileError,  # INVALID_IMAGE
    209: CompileError,  # NO_BINARY_FOR_GPU
    218: CompileError,  # INVALID_PTX
    221: CompileError,  # JIT_COMPILER_NOT_FOUND
    222: CompileError,  # UNSUPPORTED_PTX_VERSION
    223: CompileError,  # JIT_COMPILATION_DISABLED
    300: CompileError,  # INVALID_SOURCE
    500: NotFoundError,  # NOT_FOUND
    701: InvalidArgumentError,  # LAUNCH_OUT_OF_RESOURCES
    720: InvalidArgumentError,  # COOPERATIVE_LAUNCH_TOO_LARGE
    801: UnsupportedError,  # NOT_SUPPORTED
    803: DriverUnavailableError,  # SYSTEM_DRIVER_MISMATCH
    804: DriverUnavailableError,  # COMPAT_NOT_SUPPORTED_ON_DEVICE
    910: FailedPreconditionError,  # GRAPH_EXEC_UPDATE_FAILURE
    912: InvalidArgumentError,  # INVALID_CLUSTER_SIZE
}

OUT_OF_MEMORY = 2
_NOT_FOUND = 500
_CAPTURING = range(900, 909)

LOST = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999})
"""After these every call on the context fails, until the process ends: ECC, NVLink, faults, traps, asserts."""


def is_loss(error: NativeError) -> bool:
    """Whether the device is gone for this process."""
    return error.code in LOST


def is_not_found(error: NativeError) -> bool:
    """Whether a name is not in the code that was asked for it."""
    return error.code == _NOT_FOUND


def may_pass(error: NativeError) -> bool:
    """Whether the same call may succeed later: somebody captures a stream at the moment, or there is no memory."""
    return error.code in _CAPTURING or error.code == OUT_OF_MEMORY


def translate(error: NativeError, what: str = "") -> TidegateError:
    """Return the error of ours; the foreign one is its cause."""
    kind = DeviceLostError if is_loss(error) else _MEANING.get(error.code, InternalError)
    hint = "; the process must be restarted to use the device again" if kind is DeviceLostError else ""
    text = f"{what}: {error}" if what else str(error)
    found = kind(text + hint, native_code=error.code, native_name=error.name)
    found.__cause__ = error
    return found


class translated:
    """A block whose native errors leave it as errors of ours."""

    __slots__ = ("_what",)

    def __init__(self, what: str = "") -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, NativeError):
            raise translate(error, self._what) from error
