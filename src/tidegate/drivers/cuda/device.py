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
from collections.abc import Callable, Mapping, Sequence
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
from .executable import Loader
from .graph_instance import Instance
from .interop import CudaInterop
from .memory_pools import CudaPool, wrap
from .native.compiled import DeviceState, Event, QueueState
from .page_locked import LockedBlock, forget, join, reserve_of
from .queue import CudaQueue
from .retire import Sleepers
from .staging import StagingRing, TransferEngine
from .stream import Stream

STREAMS = 24
FOREIGN = 40
_OTHER_STREAMS = 8
"""For memory, staging and sleeping; and what other libraries have."""
_WORD = 8
"""64 bytes apart: each word has a cache line of its own."""


class CudaDevice(DeviceState, DriverDevice):
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
        super().__init__(native, releases=options["gil"] == "release")
        self.info = info
        self.ordinal = ordinal
        self.options = options
        self.graphs: WeakSet[Instance] = WeakSet()
        self.counts: dict[str, int] = {}
        self._loader = loader
        self.most_streams = max(4, min(STREAMS, connections - _OTHER_STREAMS))
        self._streams: list[Stream] = []
        self._foreign: dict[int, Stream] = {}
        self._import_stream = 0
        self._spare = QueueState(self, 0, takes_all=False)
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
            ctypes.memset(block.address, 0, block.nbytes)
            self.memory_stream = native.create_stream()
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

    # Streams ---------------------------------------------------------------------------------------------------------

    def queue(self, kind: str, priority: int) -> DriverQueue:
        return CudaQueue(self, max(self._greatest, min(self._least, -priority)))

    def make_stream(self, priority: int) -> None:
        """Have one more stream of our own. The caller holds the lock."""
        stream = self._timeline(self.native.create_stream(priority), priority)
        self._streams.append(stream)
        self.add_stream(stream.state)  # not before: what is chosen must be kept

    def foreign_stream(self, handle: int) -> Stream:
        """Return the timeline of somebody else's stream; the same one each time. The caller holds the lock."""
        found = self._foreign.get(handle)
        if found is None:
            if len(self._foreign) == FOREIGN:
                raise ResourceExhaustedError(f"device {self.info.uri!r}: {FOREIGN} foreign streams are in use already")
            found = self._foreign[handle] = self._timeline(handle, None)
            self.add_stream(found.state)
        return found

    def _timeline(self, handle: int, priority: int | None) -> Stream:
        block = self._words_block
        assert block is not None, "it is not closed"
        number = len(self._streams) + len(self._foreign)
        word = 0 if self.options["epochs"] == "events" else block.address + 8 * _WORD * number
        return Stream(self, handle, word, priority)

    def spare_stream(self) -> Stream | None:
        """Return an empty stream that may be lent; None if there is none now. The caller holds the lock."""
        if not self.may_park():
            return None
        found = self._spare.empty_stream()
        if found is None:
            self.make_stream(0)
            found = self._spare.empty_stream()
        return found.timeline if found else None

    def import_stream(self) -> int:
        """Return the stream for imports that get none for themselves. The caller holds the lock."""
        if not self._import_stream:
            self._import_stream = self.native.create_stream()
        return self._import_stream

    def return_stream(self, stream: Stream) -> None:
        """Give a stream back that was lent."""
        stream.state.lent = False
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
            self.garbage.pop(0)()

    def trim(self) -> None:
        with translated(f"device {self.info.uri!r}"), self.entered():
            with self.lock:
                for stream in self.all_streams():
                    stream.tidy()
                self.sweep()
            self._pool.trim()
            self._trim_events()

    def _trim_events(self) -> None:
        """Destroy the events that nobody uses."""
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
        for stream in self.all_streams():
            stream.end()
        self.forget_streams()
        self._foreign.clear()
        while self._streams:
            self.native.destroy_stream(self._streams.pop().handle)
