"""A device with in-order streams, on the CPU: the seam as a GPU uses it, without a GPU.

Each stream is a thread that runs what it is given in order, waits for epochs of other streams, and counts its own.
"device" memory cannot be mapped. Work for which no wake-up is requested wakes nobody. A stream takes a bounded number
of entries, and a wait for another stream goes only onto an empty one, so that nothing independent queues up behind it
(M15). It exists to prove that what stands above the seam needs no change for such hardware, and it runs the
conformance suite.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tidegate._core.background import report_unraisable
from tidegate.driver import DeviceRequest, Driver, DriverQueue, EpochTimeline, Sink, Ticket, Work, parse_size
from tidegate.drivers.cpu.command_buffer import PLANS
from tidegate.drivers.cpu.device import CpuDevice
from tidegate.drivers.cpu.memory import Block, CpuPool, CpuStorage
from tidegate.errors import InvalidArgumentError
from tidegate.types import DeviceInfo, DriverInfo

STREAMS = 8
ENTRIES = 64
"""How much a stream takes before it says "not now"."""


class _OpaqueStorage(CpuStorage):
    """Memory of which the host sees only the kinds made for it."""

    def host(self) -> Block | None:
        return None if self.memory == "device" else self.bytes()


class _Pool(CpuPool):
    storage = _OpaqueStorage


class Stream(EpochTimeline):
    """An in-order queue of entries, run by one thread; another, the retirement thread, sleeps for armed epochs."""

    def __init__(self, device: StreamsDevice, index: int) -> None:
        super().__init__()
        self.device = device
        self._word = np.zeros(1, np.uint64)
        self._changed = device.changed
        self._entries: deque[tuple[list[tuple[EpochTimeline, int]], Callable[[], object], int]] = deque()
        self._failures: dict[int, BaseException] = {}
        self._armed = 0
        for target in (self._run, self._retire):
            threading.Thread(target=target, name=f"tidegate-stream-{index}", daemon=True).start()

    @property
    def reached(self) -> int:
        return int(self._word[0])

    @property
    def idle(self) -> bool:
        """Whether everything issued is over."""
        return self.reached == self.issued

    def outcome(self, epoch: int) -> BaseException | None:
        return self._failures.get(epoch)  # two threads may ask

    def arm(self, epoch: int) -> None:
        with self.device.lock:
            self._armed = max(self._armed, epoch)
            self._changed.notify_all()

    def push(self, ticket: Ticket, step: Callable[[], object], waits: list[tuple[EpochTimeline, int]]) -> None:
        """Issue. The caller holds the device's lock."""
        entry = (waits, step, self.issued + 1)
        try:
            self.begin(ticket)
        finally:
            if ticket.taken:
                self._entries.append(entry)
                self._changed.notify_all()
            del entry, step  # they keep memory, and this thread may get no turn before the work is over

    def _run(self) -> None:
        while True:
            with self.device.lock:
                self._changed.wait_for(lambda: self._entries or self.device.stopped)
                if not self._entries:
                    return
                waits, step, epoch = self._entries.popleft()
                self._changed.wait_for(lambda: self._over(waits) or self.device.stopped)  # noqa: B023 - called here
            try:
                step()
            except BaseException as error:
                self._failures[epoch] = error
            del step
            with self.device.lock:
                self._word[0] = epoch
                self._changed.notify_all()

    @staticmethod
    def _over(waits: list[tuple[EpochTimeline, int]]) -> bool:
        return all(timeline.reached >= epoch for timeline, epoch in waits)

    def _retire(self) -> None:
        told = 0
        while True:
            with self.device.lock:
                self._changed.wait_for(lambda: told < min(self._armed, self.reached) or self.device.stopped)  # noqa: B023
                if self.device.stopped:
                    return
                told = self.reached
            try:
                self.device.sink.wake(self)
            except BaseException as error:
                report_unraisable(error, self)


class StreamQueue(DriverQueue):
    """Chooses a stream for each submission."""

    def __init__(self, device: StreamsDevice) -> None:
        self._device = device

    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        device = self._device
        with device.lock:
            chosen = self._choose(list(waits))
            if chosen is None:
                return False
            # Nothing that could block or call back happens under the lock: plans only look up memory.
            stream, native = chosen
            stream.push(ticket, PLANS[type(work)](device, work, ()), native)
        return True

    def _choose(self, waits: list[tuple[EpochTimeline, int]]) -> tuple[Stream, list[tuple[EpochTimeline, int]]] | None:
        open_waits = [(timeline, epoch) for timeline, epoch in waits if timeline.reached < epoch]
        if len(open_waits) == 1:
            # Behind its producer in the same stream it needs no wait, if nothing but the producer is in its way.
            timeline, epoch = open_waits[0]
            assert isinstance(timeline, Stream)
            if epoch == timeline.issued and timeline.issued - timeline.reached < ENTRIES:
                return timeline, []
        idle = [stream for stream in self._device.streams if stream.idle]
        # Half of the streams never carry a wait, so that independent work always finds one (M15).
        if len(idle) <= (STREAMS // 2 if open_waits else 0):
            return None
        return idle[0], open_waits


class StreamsDevice(CpuDevice):
    """Streams over the CPU driver's memory and kernels."""

    promises = True
    make_pool = _Pool

    def __init__(self, info: DeviceInfo, budget: int | None) -> None:
        super().__init__(info, workers=1, budget=budget)
        # Entered by the lock: the condition's own way in is Python code, and an interrupt in it would leave it locked.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.stopped = False
        self.streams = [Stream(self, index) for index in range(STREAMS)]

    def connect(self, sink: Sink) -> None:
        super().connect(sink)
        for stream in self.streams:
            stream.sink = sink

    def queue(self, kind: str, priority: int) -> DriverQueue:
        return StreamQueue(self)

    def poll(self) -> bool:
        # What a stream runs is the stream's: a waiter does nothing of it.
        return False

    def close(self) -> None:
        with self.lock:
            self.stopped = True
            self.changed.notify_all()
        super().close()


class StreamsDriver(Driver):
    """Opens devices with in-order streams. Kernels are those of the CPU."""

    name = "cpu"

    def describe(self) -> DriverInfo:
        return DriverInfo("streams", available=True, devices=(self._info("streams"),))

    def open(self, request: DeviceRequest) -> StreamsDevice:
        options: Mapping[str, str] = request.options
        if set(options) - {"memory"}:
            raise InvalidArgumentError(f"device {request.uri!r}: unknown option; the known one is memory")
        return StreamsDevice(self._info(request.uri), parse_size(request.uri, options.get("memory")))

    def _info(self, uri: str) -> DeviceInfo:
        return DeviceInfo(uri, f"{STREAMS} in-order streams on the CPU", "streams", memory_bytes=0)


driver = StreamsDriver()
