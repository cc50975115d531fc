"""The operations of queues and lanes. Nothing here blocks (M14), and only waits make order (M15)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError
from ..types import MEMORY_KINDS, MemoryKind
from .buffer import Buffer
from .checks import LARGEST, checked_int
from .compiled import Allocate, Dispatch, Free, HostWork, Memory, Span, WorkTarget, target_range
from .files import FileRead, FileWrite, bytes_of
from .kernel import Function, checked_workgroups

if TYPE_CHECKING:
    from .compiled import Submission, Timepoint
    from .device import Device
    from .files import FileLike
    from .pool import Pool
    from .queue import Queue

    Wait: TypeAlias = Timepoint | Submission | Iterable[Timepoint | Submission] | None
    Signal: TypeAlias = Timepoint | Iterable[Timepoint] | None


class Operations(WorkTarget):
    """What may be given to a queue, directly or by a lane.

    Every operation takes `wait=` (what must be reached first) and `signal=` (what it reaches when it is over), returns
    a Submission at once and may be called from any thread. What is wrong at the call raises and submits nothing (M16).
    """

    # Memory --------------------------------------------------------------------------------------------------------

    def allocate(
        self,
        nbytes: int,
        *,
        memory: MemoryKind = "device",
        pool: Pool | None = None,
        label: str = "",
        wait: Wait = None,
        signal: Signal = None,
    ) -> Buffer:
        """Return a buffer at once; its storage is committed when the waits are met.

        Out of memory is tried again as memory comes back; when nothing in flight can help, the signals fail with
        ResourceExhaustedError (M22). Fresh memory is undefined.

        Raises:
            InvalidArgumentError: a negative size or an unknown kind of memory.

        """
        block = new_memory(self._device, nbytes, memory, label)
        work = Allocate(block, None if pool is None else pool._checked(self._device))
        block.ready = submission = self._prepared(work)
        buffer = Buffer(block, 0, block.nbytes, root=True)
        self._take_in(submission, wait, signal)
        return buffer

    def free(self, buffer: Buffer, *, wait: Wait = None, signal: Signal = None) -> Submission:
        """Give a buffer's storage back when the waits are met; later use is FailedPreconditionError (M23)."""
        target_range(self._device, buffer, 0, None, "free")
        memory = buffer._memory
        if not buffer._root:
            raise InvalidArgumentError(f"free takes a whole buffer, not a subspan of {memory.describe()}")
        accesses = memory.accessed()
        if accesses:
            wait = [*_listed(wait), *accesses]
        return self._submit(Free(memory), wait, signal)

    # Files ---------------------------------------------------------------------------------------------------------

    def read_file(
        self,
        file: FileLike,
        target: Buffer,
        *,
        file_offset: int = 0,
        offset: int = 0,
        length: int | None = None,
        wait: Wait = None,
        signal: Signal = None,
    ) -> Submission:
        """Read from a file, given as a path or an object, when the waits are met.

        Without a length, the rest of the file from `file_offset`, which must fit. A file that is too short fails the
        submission with OutOfRangeError. A path is opened when the waits are met; a file object with a descriptor may
        be closed once the call has returned, any other must stay open until the submission retires. Two operations on
        one object never mix their seeks and reads.

        Raises:
            FileNotFoundError: there is no file at the path, and no `write_file` submitted before will make one.
            IsADirectoryError: there is a folder.
            PermissionError: it may not be read.

        """
        span = target_range(self._device, target, offset, length, "read_file")
        work = HostWork("read_file", FileRead(self._queue, file, span, file_offset, length))
        return self._submit(work, wait, signal, (span._memory,), 0)

    def write_file(
        self,
        source: Buffer,
        file: FileLike,
        *,
        offset: int = 0,
        file_offset: int = 0,
        length: int | None = None,
        wait: Wait = None,
        signal: Signal = None,
    ) -> Submission:
        """Write to a file, given as a path or an object, when the waits are met.

        The file at a path is made then, if need be, and never truncated; work that is refused or cancelled leaves none.
        For file objects see `read_file`.

        Raises:
            FileNotFoundError: there is no folder in which the file could be made.
            IsADirectoryError: there is a folder at the path.
            PermissionError: it may not be written.

        """
        span = target_range(self._device, source, offset, length, "write_file")
        work = HostWork("write_file", FileWrite(self._queue, file, span, file_offset))
        return self._submit(work, wait, signal, (span._memory,))

    # Host calls and what the compiled operations leave to Python ---------------------------------------------------

    def host_call(
        self, function: Callable[..., Any], *args: Any, wait: Wait = None, signal: Signal = None
    ) -> Submission:
        """Run `function(*args)` on a host thread when the waits are met; `result()` returns what it returned.

        It may submit, signal and wait. What it raises fails the signals (M33).
        """
        if not callable(function):
            raise TypeError(f"host_call takes a function, not {type(function).__name__}")
        return self._submit(HostWork("host_call", _HostCall(function, args)), wait, signal)

    def _checked_dispatch(
        self,
        function: Any,
        workgroups: int | Sequence[int],
        bindings: tuple[Any, ...],
        constants: Sequence[Any],
        local_memory: int,
    ) -> Dispatch:
        """Return the work of a dispatch whose arguments the compiled core leaves to Python, or raise what is wrong."""
        if not isinstance(function, Function):
            raise TypeError(f"dispatch takes a function of an executable, not {type(function).__name__}")
        device = self._device
        if function.device is not device:
            raise InvalidArgumentError(
                f"function {function.name!r} belongs to {function.device.describe()}, not to {device.describe()}"
            )
        spans = tuple([target_range(device, binding, 0, None, "dispatch") for binding in bindings])
        function.check_bindings(len(spans))
        local = checked_int(local_memory, "local memory")
        if local < 0:
            raise InvalidArgumentError(
                f"function {function.name!r}: the local memory is {local}, and must be 0 or more"
            )
        counts = checked_workgroups(workgroups, f"function {function.name!r}: workgroups")
        function.check_launch(counts, local)
        return Dispatch(function._function, counts, spans, function.convert_constants(constants), local)

    def _download_scattered(self, span: Span, out: npt.NDArray[Any], wait: Wait, signal: Signal) -> Submission:
        """Read into an array that is not contiguous: through a contiguous one."""
        work = HostWork("download", _scatter(self._queue, span, out))
        return self._submit(work, wait, signal, (span._memory,), result=out)

    def flush(self) -> None:
        """Send down what the driver may have gathered. Never needed for progress."""
        self._device._refuse_closed()
        self._queue._port.flush()


class _HostCall:
    __slots__ = ("_arguments", "_function")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function = function
        self._arguments = arguments

    def __call__(self) -> Any:
        return self._function(*self._arguments)


def _listed(wait: Wait) -> Iterable[Any]:
    return () if wait is None else wait if isinstance(wait, Iterable) else (wait,)


def _scatter(queue: Queue, span: Span, out: npt.NDArray[Any]) -> Callable[[], Any]:
    def run() -> Any:
        flat = bytes_of(queue, span, "download")
        np.copyto(out, flat.view(out.dtype).reshape(out.shape))
        return out

    return run


def new_memory(device: Device, nbytes: Any, kind: Any, label: str) -> Memory:
    """Return memory without storage, after checking what was asked for."""
    size = checked_int(nbytes, "size")
    if size < 0:
        raise InvalidArgumentError(f"allocate on {device.describe()}: the size is {size}, and must be 0 or more")
    if kind not in MEMORY_KINDS:
        raise InvalidArgumentError(
            f"allocate on {device.describe()}: memory is {kind!r}, and must be one of {', '.join(MEMORY_KINDS)}"
        )
    if size > LARGEST:
        raise InvalidArgumentError(
            f"allocate on {device.describe()}: the size is {size}, and no memory has more than 2**62 bytes"
        )
    return Memory(device, size, kind, label)
