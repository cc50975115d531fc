"""Where CUDA's streams, events and memory meet those of other libraries in the process.

A foreign stream is named by its handle, by an object with `__cuda_stream__`, or by what PyTorch and CuPy have. Events
that are handed out are shared with the submission behind which they stand, so they are not recorded anew while somebody
holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate._core import process
from tidegate._core.background import deferred as reaper
from tidegate._core.compiled import Semaphore
from tidegate._core.queue import Queue
from tidegate.driver import (
    DispatchIndirect,
    Download,
    DriverQueue,
    EpochTimeline,
    Interop,
    Mark,
    Storage,
    Ticket,
    Update,
    Upload,
    Work,
)
from tidegate.errors import FailedPreconditionError, UnsupportedError

from ._errors import is_loss, translate, translated
from ._native import NativeError
from .encoding import REPORTED
from .indirect import SplitCommandBuffer
from .queue import CudaQueue
from .storage import ANY
from .stream import BUDGET, Stream

if TYPE_CHECKING:
    from tidegate._core.compiled import Timepoint
    from tidegate._core.device import Device

    from .device import CudaDevice
    from .native.compiled import Event

_CUDA = 2
_LEGACY = 1
_BY_STREAM = (Update, Upload, Download)
"""What of the work of a foreign lane goes by its stream, although threads of the driver would be faster."""


def stream_handle(stream: object) -> int:
    """Return the handle of a stream, however it is given. None is the legacy default stream, as DLPack has it."""
    if stream is None:
        return _LEGACY
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, cuda.core
        found = getattr(stream, name, None)
        if found is not None:
            return int(found)
    raise TypeError(f"a CUDA stream is a handle or an object with __cuda_stream__, not {type(stream).__name__}")


def event_handle(event: object) -> int:
    """Return the handle of an event, however it is given."""
    if isinstance(event, int):
        return event
    for name in ("cuda_event", "ptr", "handle"):  # PyTorch, CuPy, cuda.core and ours
        found = getattr(event, name, None)
        if found is not None:
            return int(found)
    raise TypeError(f"a CUDA event is a handle or an object that has one, not {type(event).__name__}")


class ForeignStorage(Storage):
    """Memory of another library on this device."""

    def __init__(self, address: int, nbytes: int, keep: object) -> None:
        self.address = address
        self.nbytes = nbytes
        self.memory = "device"
        self._keep = keep


class StreamQueue(CudaQueue):
    """A queue that puts all its work on one stream.

    A foreign stream has other users, whose work is in nobody's accounts here, so only a few places of it are taken;
    what the driver's own threads would do elsewhere goes there too, or is refused. One of our own is lent for one
    submission: somebody else has it wait for something foreign first, so nobody else may put anything there before that
    is over.
    """

    def __init__(self, device: CudaDevice, stream: Stream, foreign: bool) -> None:
        super().__init__(device, 0, takes_all=False)
        self._process = process.here
        self._one = stream
        self._budget = BUDGET // 4 if foreign else BUDGET
        self._reported = {kind: take for kind, take in REPORTED.items() if kind not in _BY_STREAM}
        self._lent = stream.state.lent = not foreign

    def __del__(self) -> None:
        if getattr(self, "_lent", False) and not self._process.forked and not self._process.exiting:
            reaper.leave(self._device.settle, self._one)

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        if isinstance(work, DispatchIndirect) or isinstance(getattr(work, "prepared", None), SplitCommandBuffer):
            raise UnsupportedError("an indirect dispatch cannot go onto a stream of another library: use a queue")
        taken = super().issue(ticket, work, waits)
        if taken and self._lent:
            state = self._one.state
            state.parked_until = self._one.issued
            self._lent = state.lent = False
        return taken

    @property
    def stream(self) -> int:
        """The handle of its stream."""
        return self._one.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._one.handle)

    def _choose(self, open_waits: list[tuple[Any, int]]) -> Stream | None:
        state = self._one.state
        state.collect(BUDGET)
        return self._one if state.places < self._budget else None


class ImportQueue(DriverQueue):
    """For an import when no stream can be lent: on one that such imports share, with a thread that sleeps for each.

    A stream for each would take all of the device's hardware queues, and hold up everything. So one import may have to
    wait for those before it.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.stream = device.import_stream()

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        if waits:
            return False
        device = self._device
        with translated(), device.entered():
            event = CudaEvent(device, device.event_pool.take())
            device.native.record_event(event.handle, self.stream)
        follow = _Report(device, event, ticket)
        try:
            ticket.taken = True
            device.sleepers.run(follow)
        except BaseException:
            device.sleepers.run(follow)  # an interrupt may have come before or behind; who reports twice is not heard
            raise
        return True


class CudaInterop(Interop):
    """The meeting place of one device."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.dlpack_device = (_CUDA, device.ordinal)

    def address(self, storage: Storage) -> int:
        return storage.address

    def exported(self, storage: Storage, stream: object) -> None:
        block = getattr(storage, "block", None)
        if block is not None:
            block.exported.add(ANY if stream is None else stream_handle(stream))

    def follow(self, stream: object, timeline: EpochTimeline, epoch: int) -> None:
        assert isinstance(timeline, Stream)
        device = self._device
        with translated("a foreign stream cannot wait"), device.entered(), device.lock:
            if timeline.reached < epoch:
                device.native.wait_event(stream_handle(stream), timeline.event_at(epoch).handle)

    def adopt(self, address: int, nbytes: int, keep: object) -> Storage:
        return ForeignStorage(address, nbytes, keep)

    def stream_queue(self, stream: object = None) -> StreamQueue | ImportQueue:
        device = self._device
        with translated(), device.entered(), device.lock:
            if stream is not None:
                return StreamQueue(device, device.foreign_stream(stream_handle(stream)), foreign=True)
            own = device.spare_stream()
            return ImportQueue(device) if own is None else StreamQueue(device, own, foreign=False)

    # For `tidegate.lowlevel` -----------------------------------------------------------------------------------------

    def event_of(self, point: Timepoint) -> CudaEvent:
        """Return an event that follows an issued timepoint."""
        device = self._device
        timeline, epoch = issued_at(point, device)
        with translated(), device.entered(), device.lock:
            if timeline is None or timeline.reached >= epoch:
                return CudaEvent(device, device.event_pool.take())  # never recorded since: it is over
            return CudaEvent(device, device.event_pool.share(timeline.event_at(epoch)))

    def follow_point(self, stream: object, point: Timepoint) -> None:
        """Have a foreign stream wait for an issued timepoint."""
        timeline, epoch = issued_at(point, self._device)
        if timeline is not None:
            self.follow(stream, timeline, epoch)

    def timepoint_of(self, owner: Device, given: object) -> Timepoint:
        """Return a timepoint that is reached when a foreign event is over."""
        device = self._device
        event = event_handle(given)
        semaphore = Semaphore(label="foreign event")
        with translated("a foreign event cannot be waited for"), device.entered(), device.lock:
            stream = device.spare_stream()
            port = None if stream is None else StreamQueue(device, stream, foreign=False)
            if port is not None:
                device.native.wait_event(port.stream, event)
        if port is not None:
            Queue(owner, port, "imported", 0)._submit(Mark(), None, semaphore.at(1))
        else:
            device.sleepers.run(_Follow(device, event, given, semaphore))
        return semaphore.at(1)

    def position_of(self, owner: Device, stream: object) -> Timepoint:
        """Return a timepoint that is reached when what is on a foreign stream now is over."""
        device = self._device
        with translated("a foreign stream cannot be followed"), device.entered():
            event = CudaEvent(device, device.event_pool.take())
            device.native.record_event(event.handle, stream_handle(stream))
        return self.timepoint_of(owner, event)


class _Follow:
    """Sleeps for a foreign event and signals."""

    def __init__(self, device: CudaDevice, event: int, keep: object, semaphore: Semaphore) -> None:
        self._device = device
        self._event = event
        self._keep = keep
        self._semaphore = semaphore

    def __call__(self) -> None:
        try:
            self._device.sleepers.sleep_for(self._event)
        except NativeError as error:
            self._semaphore.fail(translate(error, "the foreign event failed"))
            if is_loss(error):
                raise
        else:
            self._semaphore.signal(1)


class _Report:
    """Sleeps for an event of ours behind something foreign, and reports."""

    def __init__(self, device: CudaDevice, event: CudaEvent, ticket: Ticket) -> None:
        self._device = device
        self._event = event
        self._ticket = ticket

    def __call__(self) -> None:
        self._device.sleepers.sleep_for(self._event.handle)
        self._device.sink.finished(self._ticket)


class CudaEvent:
    """A native event that follows a timepoint. Keep it as long as something may still be made to wait for it."""

    def __init__(self, device: CudaDevice, event: Event) -> None:
        self._device = device
        self._event = event

    @property
    def handle(self) -> int:
        """The CUevent."""
        return self._event.handle

    def __int__(self) -> int:
        return self._event.handle

    def __del__(self) -> None:
        device = getattr(self, "_device", None)
        if device is not None:
            event = self._event
            device.garbage.append(lambda: device.event_pool.give(event))


def issued_at(point: Timepoint, device: CudaDevice) -> tuple[Stream | None, int]:
    """Return where a timepoint is on the streams of a device; None if it is reached.

    Raises:
        FailedPreconditionError: nobody has issued it yet, or another device has.

    """
    semaphore = point.semaphore
    if semaphore.value >= point.value:
        return None, 0
    if semaphore.failure is not None:
        raise FailedPreconditionError(f"{point!r} has failed") from semaphore.failure
    submission = point._issued_by()
    timeline = None if submission is None else submission.timeline
    if submission is None or not isinstance(timeline, Stream) or timeline.device is not device:
        raise FailedPreconditionError(
            f"{point!r} is not issued on device {device.info.uri!r} yet: a CUDA stream or event can only follow work"
            " that is on the device"
        )
    return timeline, submission.epoch
