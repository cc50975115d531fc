"""CUDA streams and events of other libraries in the process: following them, and having them follow us.

The driver does the work. This module only finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from .kernel import Function

if TYPE_CHECKING:
    from .compiled import Timepoint
    from .device import Device

_CUDA = 2
"""As DLPack counts."""


def cuda_event(device: Device, point: Timepoint) -> Any:
    """Return a CUDA event that is over when a timepoint is reached; its `handle` is the CUevent.

    Keep the object as long as something may be made to wait for it.

    Raises:
        FailedPreconditionError: what will signal the timepoint is not issued on this device yet, or has failed.
        UnsupportedError: not a CUDA device.

    """
    return _interop(device).event_of(point)


def cuda_stream_wait(device: Device, stream: Any, point: Timepoint) -> None:
    """Have a CUDA stream of another library wait for a timepoint. Returns at once.

    Args:
        device: the device that issued the work.
        stream: a handle, or an object with `__cuda_stream__`, or one of PyTorch or CuPy.
        point: what to wait for; reached already is fine.

    Raises:
        FailedPreconditionError: what will signal the timepoint is not issued on this device yet, or has failed.
        UnsupportedError: not a CUDA device.

    """
    _interop(device).follow_point(stream, point)


def from_cuda_event(device: Device, event: Any) -> Timepoint:
    """Return a timepoint that is reached when a recorded CUDA event of another library is over.

    Args:
        device: the device the event belongs to.
        event: a handle, or an object of PyTorch, CuPy or cuda.core; kept until then.

    """
    return _interop(device).timepoint_of(device, event)  # type: ignore[no-any-return]


def from_cuda_stream(device: Device, stream: Any) -> Timepoint:
    """Return a timepoint that is reached when what another library has on a stream now is over."""
    return _interop(device).position_of(device, stream)  # type: ignore[no-any-return]


def with_parameters(function: Function, order: str) -> Function:
    """Return a CUDA function that was made elsewhere, with its parameters in the order it has.

    Tidegate's own convention is all bindings, then all constants. Compilers such as Triton mix them.

    Args:
        function: as `device.load` gave it.
        order: a letter for each parameter: `b` takes the next binding, `c` the next constant.

    Raises:
        InvalidArgumentError: the letters do not fit the function's parameters.

    """
    in_order = getattr(function._function, "in_order", None)
    if in_order is None:
        raise UnsupportedError(f"function {function.name!r} is not one of CUDA: its parameters are in order already")
    return Function(function.device, in_order(order))


def _interop(device: Device) -> Any:
    interop = device._driver.interop
    if interop is None or interop.dlpack_device[0] != _CUDA:
        raise UnsupportedError(f"{device.describe()} has no CUDA streams and events")
    return interop
