"""A CUDA device: its context, its streams, and what they share.

Locks
-----
In the order in which a thread may take them; one that has one of them takes only such as stand below it.

1. `page_locked._table`: which devices are open. Held while code is loaded or page-locked memory is given back.
2. `CudaDevice.lock`, of several devices in the order of their ids: streams, events, the order of issuing.
3. `Stream._over_lock`: what is to be done on the host when an epoch is over. Not together with 2.
4. `Code._lock`, `CudaPool._lock`, `StagingRing._lock`, `Sleepers._lock`, `TransferEngine._lock`.
5. `PageLocked._lock`.

The sink is called with none of them.

A thread that waits for one of these has given the GIL up. So one that holds them may be in a call into CUDA that takes
a while, but not in one that waits for work which needs the host: see `_native` for which those are, and `page_locked`
for when they are made. Finalizers take no lock at all: they leave a note.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from tidegate.driver import DriverDevice, DriverPool, DriverQueue, Recording, Signature, Sink, Storage
from tidegate.errors import InvalidArgumentError, ResourceExhaustedError
from tidegate.types import DeviceInfo, MemoryKind

from . import transfers as _transfers  # noqa: F401 - adds its encoders
from ._errors import translate, translated
from ._native import Native, NativeError
from ._prototypes import Attribute
from .code import code_of
from .command_buffer import prepare
from .event_pool import Event, EventPool
from .executable import Loader
from .graph_instance import Instance
from .interop import CudaInterop
from .memory_pools import CudaPool, wrap
from .page_locked import LockedBlock, forget, join, reserve_of
from .queue import CudaQueue
from .retire import Sleepers
from .staging import StagingRing, TransferEngine
from .stream import EventStream, Stream
from .submit import Submit
from .timepoint_pool import TimepointPool

STREAMS = 24
FOREIGN = 40
_OTHER_STREAMS = 8
"""For memory, staging and sleeping; and what other libraries have."""
_WORD = 8
"""64 bytes apart: each word has a cache line of its own."""


class Entered:
    """Makes a context current for a block, and the caller's current again behind it."""

    __slots__ = ("_context", "_pushed", "_submit")

    def __init__(self, submit: Submit, context: int) -> None:
        self._submit = submit
        self._context = context
        self._pushed = False

    def __enter__(self) -> None:
        self._pushed = self._submit.enter(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pushed:
            self._submit.leave()


class CudaDevice(DriverDevice):
    """An open device. `lock` guards the streams and what is on them; it is never held while the core is called.

    Args:
        native: the way to CUDA.
        loader: makes functions of sources.
        info: what it is.
        ordinal: its number.
        connections: how many hardware queues the process has.
        options: the options of the URI, checked: `commands`, `epochs`, and `memory` as a number or None.

    """

    promises = True
    queue_kinds = ("compute", "upload", "download")
    sink: Sink

    def __init__(
        self,
        native: Native,
        loader: Loader,
        info: DeviceInfo,
        ordinal: int,
        connections: int,
        options: Mapping[str, Any],
    ) -> None:
        self.native = native
        self.submit = Submit(native)
        self.info = info
        self.ordinal = ordinal
        self.options = options
        self.lock = threading.RLock()
        self.doomed: NativeError | None = None
        self.garbage: deque[Callable[[], None]] = deque()
        self.graphs: WeakSet[Instance] = WeakSet()
        self.counts: dict[str, int] = {}
        self.quiet: set[object] = set()
        """Who wants new work to stay on the host for a while: see `code`."""
        self.peers = 1
        """How many devices are open on this GPU."""
        self._loader = loader
        self._max_streams = max(4, min(STREAMS, connections - _OTHER_STREAMS))
        self._streams: dict[int, list[Stream]] = {}
        self._foreign: dict[int, Stream] = {}
        self._made = 0
        self._timelines = 0
        self._import_stream = 0
        self.handle = native.device(ordinal)
        self.context = native.primary_context(self.handle)
        major, minor = (native.device_attribute(what, self.handle) for what in (Attribute.MAJOR, Attribute.MINOR))
        self.architecture = f"{major}{minor}"
        self.max_shared = native.device_attribute(Attribute.MAX_SHARED_OPTIN, self.handle)
        with self.entered():
            self._least, self._greatest = native.priority_range()
            self._page_locked = reserve_of(self)
            # Each priority has one stream at least, however many there are of others.
            block = self._page_locked.take(_WORD * 8 * (STREAMS + 1 + self._least - self._greatest + FOREIGN))
            self._words_block: LockedBlock | None = block
            self.words_address = block.address
            self.words = _words(block.address, block.nbytes)
            self.memory_stream = native.create_stream()
        self.event_pool = EventPool(native, self.lock)
        self.sleep_events = EventPool(native, self.lock, blocking=True)
        self.timepoints = TimepointPool(self.event_pool, self.lock)
        self.sleepers = Sleepers(self)
        self._pool = CudaPool(self, options.get("memory"))
        self._pools: WeakSet[CudaPool] = WeakSet()
        self.staging = StagingRing(self)
        self.transfers = TransferEngine(self)
        self.interop = CudaInterop(self)
        self.code = code_of(self)
        self.code.join(self)
        join(self)
        self._closed = False

    def connect(self, sink: Sink) -> None:
        self.sink = sink

    def entered(self) -> Entered:
        """Return a block in which the context is current."""
        return Entered(self.submit, self.context)

    # Streams ---------------------------------------------------------------------------------------------------------

    def queue(self, kind: str, priority: int) -> DriverQueue:
        return CudaQueue(self, max(self._greatest, min(self._least, -priority)))

    def streams_of(self, priority: int) -> list[Stream]:
        """Return the streams of a priority. The caller holds the lock."""
        return self._streams.setdefault(priority, [])

    def empty_stream(self, priority: int) -> Stream | None:
        """Return a stream with nothing on it, a new one while there may be more; None if all are busy."""
        streams = self.streams_of(priority)
        for stream in streams:
            if stream.reached == stream.issued and not stream.lent:
                return stream
        if self._made >= self._max_streams and streams:
            return None
        return self._make_stream(priority)

    def _make_stream(self, priority: int) -> Stream:
        stream = self._timeline(self.native.create_stream(priority), priority)
        self._made += 1
        self._streams[priority].append(stream)
        return stream

    def foreign_stream(self, handle: int) -> Stream:
        """Return the timeline of somebody else's stream; the same one each time. The caller holds the lock."""
        found = self._foreign.get(handle)
        if found is None:
            if len(self._foreign) == FOREIGN:
                raise ResourceExhaustedError(f"device {self.info.uri!r}: {FOREIGN} foreign streams are in use already")
            found = self._foreign[handle] = self._timeline(handle, None)
        return found

    def _timeline(self, handle: int, priority: int | None) -> Stream:
        kind = EventStream if self.options["epochs"] == "events" else Stream
        number, self._timelines = self._timelines, self._timelines + 1
        return kind(self, handle, self.words, _WORD * number, priority)

    def all_streams(self) -> list[Stream]:
        """Return every stream that this device puts work on. The caller holds the lock."""
        return [*(stream for streams in self._streams.values() for stream in streams), *self._foreign.values()]

    def may_park(self) -> bool:
        """Whether one more stream may be lent or wait for another. The caller holds the lock.

        Never more than half of them: there must be some left for what is independent of all that (M15). Devices that
        are open on one GPU share its hardware queues, and so that half.
        """
        taken = sum(stream.lent or stream.parked for stream in self.all_streams())
        return taken < max(1, self._max_streams // (2 * self.peers))

    def spare_stream(self) -> Stream | None:
        """Return an empty stream that may be lent; None if there is none now. The caller holds the lock."""
        return self.empty_stream(0) if self.may_park() else None

    def import_stream(self) -> int:
        """Return the stream for imports that get none for themselves. The caller holds the lock."""
        if not self._import_stream:
            self._import_stream = self.native.create_stream()
        return self._import_stream

    def return_stream(self, stream: Stream) -> None:
        """Give a stream back that was lent."""
        stream.lent = False
        self.sink.room()

    def settle(self, stream: Stream) -> None:
        """Give a stream back that was lent, and on which somebody may have put something that is in no accounts."""
        if self._closed or self.doomed is not None:
            return
        with translated(), self.entered(), self.lock:
            if stream not in self.all_streams():
                return  # the device is being closed
            event = self.sleep_events.take()
            self.native.record_event(event.handle, stream.handle)
            self.after_event(event, lambda: self.return_stream(stream))

    def after_event(self, event: Event, then: Callable[[], None]) -> None:
        """Run `then` on a thread of the driver when a recorded event is over; takes over one use of the event."""
        self.sleepers.after(event, then)

    # Memory and programs ---------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, memory: MemoryKind, pool: DriverPool | None = None) -> Storage:
        chosen = self._pool if pool is None else pool
        if not isinstance(chosen, CudaPool):
            raise InvalidArgumentError(f"device {self.info.uri!r}: the pool is not one of this device")
        with translated(f"device {self.info.uri!r}"), self.entered():
            return chosen.allocate(nbytes, memory)

    def wrap(self, array: npt.NDArray[np.uint8]) -> Storage:
        with self.entered():
            return wrap(self, array)

    def create_pool(self, budget: int | None) -> CudaPool:
        with translated(f"device {self.info.uri!r}"), self.entered():
            pool = CudaPool(self, budget)
        self._pools.add(pool)
        return pool

    @property
    def default_pool(self) -> CudaPool:
        return self._pool

    def load(
        self, source: object, *, signature: Signature | None, format: str | None, options: Sequence[str]
    ) -> dict[str, Any]:
        with self.entered():
            return self._loader.load(self, source, signature, format, options)

    def prepare(self, recording: Recording) -> Any:
        return prepare(self, recording)

    def sweep(self) -> None:
        """Destroy what finalizers left. Under the lock, with the context current."""
        while self.garbage:
            self.garbage.popleft()()

    def trim(self) -> None:
        with translated(f"device {self.info.uri!r}"), self.entered():
            with self.lock:
                for stream in self.all_streams():
                    stream.tidy()
                self.sweep()
            self.staging.tidy()
            self._pool.trim()
            self._trim_events()

    def _trim_events(self) -> None:
        """Destroy the events that nobody uses."""
        self.timepoints.trim()
        self.event_pool.trim()
        self.sleep_events.trim()

    # Its end ---------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed, and its streams are gone."""
        return self._closed

    def doom(self, error: NativeError) -> None:
        """Note, under the lock, that the device is gone; who holds it tells the core when it has let go."""
        if self.doomed is None:
            self.doomed = error

    def lose(self, error: NativeError) -> None:
        """The device is gone. Not under the lock."""
        self.doom(error)
        self.sink.lost(translate(error, f"device {self.info.uri!r} is lost"))

    def close(self) -> None:
        """End, in steps that each may be repeated or find nothing left to do, for an interrupt may come between."""
        self.sleepers.stop()
        self.transfers.stop()
        if self.doomed is not None or self._closed:
            forget(self)
            return  # of a lost device every call would fail; the memory goes with the process
        try:
            with self.entered():
                self._release()
            self._closed = True
            if self.sleepers.awake():  # those who still sleep, for foreign work, do so in this context
                self.native.release_primary_context(self.handle)
        except NativeError as error:
            self.doom(error)

    def abandon(self) -> None:
        # Threads that are inside of CUDA stay there: they are daemons, and the process ends without them. What they
        # must not do is take the end of CUDA for a lost device, or begin something new.
        self.sleepers.abandon()

    def _release(self) -> None:
        for graph in tuple(self.graphs):
            graph.release()  # of command buffers that outlive the device
        with self.lock:
            self.sweep()
        self.code.leave(self)
        with self.lock:
            if self._words_block is not None:
                self._destroy_streams()
        self.sleepers.close()
        self.staging.close()
        block, self._words_block = self._words_block, None
        if block is not None:
            self._page_locked.give(block)
        for pool in (*self._pools, self._pool):
            pool.close()
        self._trim_events()
        for name in ("_import_stream", "memory_stream"):
            stream = getattr(self, name)
            if stream:
                setattr(self, name, 0)
                self.native.destroy_stream(stream)

    def _destroy_streams(self) -> None:
        last = memoryview(array("Q", self.words))
        for stream in self.all_streams():
            stream.end(last)
        for streams in self._streams.values():
            while streams:
                self.native.destroy_stream(streams.pop().handle)


def _words(address: int, nbytes: int) -> memoryview:
    view = memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B").cast("Q")
    for index in range(len(view)):
        view[index] = 0
    return view
