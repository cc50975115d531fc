"""An open device, as the user holds it: its queues, memory and programs, and its end (M35)."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..driver import Driver, DriverDevice
from ..errors import (
    AbortedError,
    ClosedError,
    DeviceLostError,
    FailedPreconditionError,
    InvalidArgumentError,
    SemaphoreFailedError,
    UnsupportedError,
)
from ..types import Compatibility, DeviceInfo, Health, MemoryKind, Statistics
from . import compiled, process
from .background import deferred, runner
from .buffer import Buffer
from .checks import host_bytes_of
from .compiled import Semaphore, Submission, abort_submission, call_driver, checked_timeout, new_semaphore
from .failures import brief
from .kernel import Executable, Kernel
from .lane import Lane
from .operations import new_memory
from .pool import Pool, memory_counts
from .queue import Queue
from .recording import CommandBuffer
from .thread_state import thread_state
from .workload import Poller, Workload, closed_error, forked_error

_TOLD = 8
"""How many failures the text of one error tells."""


class Device(Workload):
    """An open device. A context manager; everything may be used from any thread."""

    def __init__(self, driver: Driver, device: DriverDevice, uri: str, label: str) -> None:
        super().__init__(device)
        self._driver_name = driver.name
        self._uri = uri
        self._label = label
        self._closing = False
        self._closed = False
        self._to_abort: list[Submission] = []
        self._queues: dict[tuple[str, int], Queue] = {}
        compiled.pollers.append(self._poller)
        _open_devices.add(self)
        deferred.ensure()
        runner.ensure()
        for kind in device.queue_kinds:
            self.queue(kind)
        self._host_port = self._host_queue()._port

    def __repr__(self) -> str:
        return f"<tidegate.Device {self.describe()} {self.health.value}>"

    def describe(self) -> str:
        """Return how texts name it."""
        return f"device {self._label!r}" if self._label else f"device {self._uri!r}"

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._process.forked or self._process.exiting:
            return
        deferred.leave(_close_dropped, self._driver, self._poller, self._uri)

    # What it is ----------------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The name given to it."""
        return self._label

    @property
    def info(self) -> DeviceInfo:
        """What it is and what it allows."""
        return self._driver.info

    @property
    def health(self) -> Health:
        """Whether it works, is closed, or is lost."""
        if self._lost is not None:
            return Health.LOST
        return Health.CLOSED if self._closed or self._closing else Health.OK

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queues that have been asked for so far, and one of each kind; none of a closed device."""
        return (*self._queues.values(),)

    def queue(self, kind: str = "compute", priority: int = 0) -> Queue:
        """Return the queue of a kind and priority; the same object each time.

        Raises:
            InvalidArgumentError: an unknown kind; the message lists the known ones.

        """
        self._refuse_closed()
        found = self._queues.get((kind, priority))
        if found is not None:
            return found
        kinds = self._driver.queue_kinds
        if kind not in kinds:
            raise InvalidArgumentError(f"{self.describe()} has no queue {kind!r}: it has {', '.join(kinds)}")
        if not isinstance(priority, int):
            raise TypeError(f"the priority must be an int, not {type(priority).__name__}")
        queue = Queue(self, call_driver(self._driver.queue, kind, priority), kind, priority)
        return self._queues.setdefault((kind, priority), queue)

    def _host_queue(self) -> Queue:
        """The queue for transfers that host reads and writes need."""
        kind = self._driver.queue_kinds[-1]
        return self._queues.get((kind, 0)) or Queue(self, self._host_port, kind, 0)

    def lane(self, queue: Queue | None = None, label: str = "", *, stream: Any = None) -> Lane:
        """Return a new lane: the operations of a queue, in order.

        Args:
            queue: where its work goes; None is `queue()`.
            label: its name.
            stream: on CUDA, a stream of another library; the lane's work goes onto that, between that library's own.

        Raises:
            UnsupportedError: the device has no such streams.

        """
        self._refuse_closed()
        if stream is not None:
            return Lane(self._stream_queue(queue, stream), label)
        if queue is not None and queue.device is not self:
            raise InvalidArgumentError(f"{queue.describe()} does not belong to {self.describe()}")
        return Lane(self.queue() if queue is None else queue, label)

    def _stream_queue(self, queue: Queue | None, stream: Any) -> Queue:
        if queue is not None:
            raise InvalidArgumentError("lane: it goes to a queue or onto a stream, not both")
        interop = self._driver.interop
        if interop is None:
            raise UnsupportedError(f"{self.describe()} has no streams that other libraries share")
        return Queue(self, call_driver(interop.stream_queue, stream), "stream", 0)

    def create_semaphore(self, initial_value: int = 0, label: str = "") -> Semaphore:
        """Return a semaphore with the device's name in its label. It belongs to no device all the same."""
        name = self._label or self._uri
        return new_semaphore(initial_value, f"{name}/{label}" if label else "", 1)

    def semaphore_compatibility(self, semaphore: Semaphore) -> Compatibility:
        """Tell how this device waits for and signals a semaphore.

        Every semaphore works with every device. Work of this device that waits for other work of it is ordered
        natively where the driver can; everything else passes through the host.
        """
        if not isinstance(semaphore, Semaphore):
            raise TypeError(f"semaphore_compatibility takes a semaphore, not {type(semaphore).__name__}")
        everything = (
            Compatibility.HOST_WAIT
            | Compatibility.HOST_SIGNAL
            | Compatibility.DEVICE_WAIT
            | Compatibility.DEVICE_SIGNAL
        )
        return everything | Compatibility.THROUGH_HOST

    # Memory and programs -------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, *, memory: MemoryKind = "device", label: str = "") -> Buffer:
        """Return a buffer with storage, now. Fresh memory is undefined. Never waits for work.

        Raises:
            ResourceExhaustedError: there is no room.

        """
        self._refuse_closed()
        block = new_memory(self, nbytes, memory, label)
        block.commit(self._allocate_now(block.nbytes, memory))
        return Buffer(block, 0, block.nbytes, root=True)

    def upload(self, array: Any, *, memory: MemoryKind = "device", label: str = "") -> Buffer:
        """Return a buffer that holds a copy of a host array, now."""
        source = host_bytes_of(array, "upload")
        buffer = self.allocate(source.nbytes, memory=memory, label=label)
        target = buffer._visible()
        if target is None:
            self._host_queue().upload(source, buffer).wait()
        else:
            np.copyto(target, source)
        return buffer

    def create_pool(self, budget: int | None = None, label: str = "") -> Pool:
        """Return a pool of memory with a budget of its own, for `queue.allocate(pool=...)`."""
        self._refuse_closed()
        return Pool(self, call_driver(self._driver.create_pool, budget), label)

    def load(self, source: Any, *, format: str | None = None, options: Sequence[str] = ()) -> Executable:
        """Compile or load what the device can run. May block for a compiler, never for work.

        Args:
            source: a `Kernel`, or what the driver takes: on the CPU a Python function or C source.
            format: names the kind of source where it cannot be told.
            options: for the compiler.

        Raises:
            CompileError: it does not compile; has the `log`.
            UnsupportedError: not a source for this device.

        """
        self._refuse_closed()
        if isinstance(source, Kernel):
            implementation = source.source_for(self._driver_name)
            functions = self._driver.load(
                implementation, signature=source.signature, format=format, options=tuple(options)
            )
        else:
            functions = self._driver.load(source, signature=None, format=format, options=tuple(options))
        return Executable(self, functions)

    def record(self, *, one_shot: bool = False, label: str = "") -> CommandBuffer:
        """Return a command buffer to record: `with device.record() as commands: ...`."""
        self._refuse_closed()
        return CommandBuffer(self, one_shot, label)

    def statistics(self) -> Statistics:
        """Return a snapshot of the device's counts."""
        self._poller()
        memory = memory_counts(self._driver.default_pool)
        return Statistics(
            **memory,  # type: ignore[arg-type]
            held=len(self._held_submissions()),
            issued=self._issued_count - len(self._backlog) - len(self._starving),
            submitted=self._submitted,
            retired=self._retired,
        )

    def trim(self) -> None:
        """Give memory back that is kept for reuse."""
        self._refuse_closed()
        call_driver(self._driver.trim)

    # Its end -------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None, *, strict: bool = False) -> None:
        """End: refuse new work, drain what is issued and what follows from it alone, abort the rest (M35).

        Closing twice is fine. Failures of its work that nobody has looked at by now are logged, each once (M21).

        Args:
            timeout: seconds for the work that still runs; None waits as long as it takes.
            strict: raise such failures, once the device is closed, instead of logging them; also those that were logged
                before, because nobody was left who could look at them.

        Raises:
            DeadlineExceededError: work still runs; the text names it. Call again to go on waiting.
            SemaphoreFailedError: only if strict; `__cause__` is the first error that nobody has looked at.
            FailedPreconditionError: called from a host call of this device.

        """
        timeout = checked_timeout(timeout)
        process.refuse_forked(self._process, self.describe())
        if thread_state.host_call_device is self:
            raise FailedPreconditionError(
                f"{self.describe()} cannot be closed from its own host call: it would wait for itself"
            )
        if self._closed:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._closing:
            # Only at the first call: at the next one, the issued work that others follow may be over, and they would
            # look as if they followed nothing.
            if self._takes_work:
                self._refuse(closed_error, closing=True)
            self._to_abort = self._submissions_to_abort()
            self._closing = True
        for submission in self._to_abort:
            abort_submission(
                submission, AbortedError(f"{submission.describe()} was given up: {self.describe()} is closed")
            )
        self._drain(deadline)
        self._to_abort = []
        self._end()
        self._tell_failures(strict)

    def _tell_failures(self, strict: bool) -> None:
        """Tell of the failures that nobody has looked at."""
        records = [record for record in self._failures if not record.seen]
        if not strict:
            for record in records:
                record.report()
            return
        for record in records:
            record.seen = True
        failures = [*self._dropped_failures, *((record.text, record.error) for record in records)]
        self._dropped_failures.clear()
        if failures:
            told = "; ".join(f"{text}: {brief(error)}" for text, error in failures[:_TOLD])
            raise SemaphoreFailedError(
                f"{self.describe()} is closed; of its work, {len(failures)} failures were never looked at: {told}"
            ) from failures[0][1]

    def _end(self) -> None:
        try:
            if self._closed:
                return
            self._closed = True
            self._forget()
            call_driver(self._driver.close)
            self._queues.clear()  # they refer to the device, which must not need the collector to go
        except BaseException:
            deferred.leave(call_driver, self._driver.close)  # nobody else will call this again
            raise

    def _forget(self) -> None:
        _open_devices.discard(self)
        if self._poller in compiled.pollers:
            compiled.pollers.remove(self._poller)

    def _refuse_closed(self) -> None:
        process.refuse_forked(self._process, self.describe())
        if self._lost is not None:
            raise DeviceLostError(f"{self.describe()} is lost") from self._lost
        if self._closing or self._closed:
            raise ClosedError(f"{self.describe()} is closed")


_open_devices: weakref.WeakSet[Device] = weakref.WeakSet()


def open_devices() -> list[Device]:
    """Return the devices that are open in this process."""
    return list(_open_devices)


def _close_dropped(driver: DriverDevice, poller: Poller, uri: str) -> None:
    if poller in compiled.pollers:
        compiled.pollers.remove(poller)
    driver.close()
    warnings.warn(f"device {uri!r} was dropped without close()", ResourceWarning, stacklevel=2)


def _forget_in_child() -> None:
    for device in open_devices():
        device._refuse(forked_error)
    _open_devices.clear()


process.in_child(_forget_in_child)
