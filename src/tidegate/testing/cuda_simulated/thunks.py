"""Calls of the simulation as C functions, for code in C that asks where a function of CUDA lies."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._core.background import report_unraisable
from ...drivers.cuda._native import NOT_READY, Launch, NativeError
from ...drivers.cuda._prototypes import PROTOTYPES
from .codes import UNKNOWN, SimulatedCrashError, SimulatedDeadlockError

if TYPE_CHECKING:
    from .native import SimulatedNative


def thunk(native: SimulatedNative, name: str) -> Any:
    """Return a C function that does what CUDA's function of that name does.

    Raises:
        AttributeError: the simulation has none; only calls of the submit path are made from C.

    """
    makers: dict[str, Callable[..., Any]] = {
        "cuLaunchKernel": lambda f, gx, gy, gz, bx, by, bz, shared, stream, params, _: native.launch(
            Launch(f or 0, (gx, gy, gz), (bx, by, bz), shared, params or 0), stream or 0
        ),
        "cuStreamWaitEvent": lambda stream, event, _: native.wait_event(stream or 0, event or 0),
        "cuStreamWriteValue64_v2": lambda stream, address, value, _: native.write_value(stream or 0, address, value),
        "cuStreamWaitValue64_v2": lambda stream, address, value, _: native.wait_value(stream or 0, address, value),
        "cuEventRecord": lambda event, stream: native.record_event(event or 0, stream or 0),
        "cuEventSynchronize": lambda event: native.synchronize_event(event or 0),
        "cuEventQuery": lambda event: NOT_READY * (not native.event_over(event or 0)),
        "cuStreamQuery": lambda stream: NOT_READY * (not native.stream_idle(stream or 0)),
        "cuMemcpyAsync": lambda target, source, nbytes, stream: native.copy(target, source, nbytes, stream or 0),
        "cuMemsetD8Async": lambda address, value, n, stream: native.fill(address, value, 1, n, stream or 0),
        "cuMemsetD16Async": lambda address, value, n, stream: native.fill(address, value, 2, n, stream or 0),
        "cuMemsetD32Async": lambda address, value, n, stream: native.fill(address, value, 4, n, stream or 0),
        "cuGraphLaunch": lambda instance, stream: native.launch_graph(instance or 0, stream or 0),
        "cuGraphExecKernelNodeSetParams_v2": lambda instance, node, params: native.set_nodes(
            "kernel", instance or 0, ((node or 0, params or 0),), 0
        ),
        "cuGraphExecMemsetNodeSetParams": lambda instance, node, params, context: native.set_nodes(
            "fill", instance or 0, ((node or 0, params or 0),), context or 0
        ),
        "cuGraphExecMemcpyNodeSetParams": lambda instance, node, params, context: native.set_nodes(
            "copy", instance or 0, ((node or 0, params or 0),), context or 0
        ),
        "cuPointerGetAttribute": lambda out, _, address: _store_int(out, int(native.is_page_locked(address or 0))),
        "cuCtxPushCurrent_v2": lambda context: native.push_context(context or 0),
        "cuCtxPopCurrent_v2": lambda out: _store(out, native.pop_context()),
        "cuCtxGetCurrent": lambda out: _store(out, native.current_context()),
    }
    if name not in makers:
        raise AttributeError(f"the simulation has no C function {name}")
    return ctypes.CFUNCTYPE(ctypes.c_int, *PROTOTYPES[name])(_answering(makers[name]))


def _store(out: int | None, value: int) -> None:
    if out:
        ctypes.c_void_p.from_address(out).value = value


def _store_int(out: int | None, value: int) -> None:
    if out:
        ctypes.c_int.from_address(out).value = value


def _answering(function: Callable[..., Any]) -> Callable[..., int]:
    """Answer with a code. Ctrl-C cannot pass through C: it is sent again, for the first Python behind the call.

    What ends a program is told there and then: the code is one of a lost device, which lets nobody go on.
    """

    def answer(*arguments: Any) -> int:
        try:
            return function(*arguments) or 0
        except NativeError as error:
            return error.code
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
            return 0
        except (SimulatedCrashError, SimulatedDeadlockError) as error:
            report_unraisable(error, function)
            return UNKNOWN

    return answer
