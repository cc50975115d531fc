"""Streams and events of the simulation."""

from __future__ import annotations

import ctypes

from . import memory
from .calls import Calls, call
from .codes import INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, STREAM_CAPTURE_UNSUPPORTED, Refusal
from .op import Event, Op
from .stream import Stream


class StreamCalls(Calls):
    """As in `Native`."""

    @call("cuStreamCreateWithPriority", "context")
    def create_stream(self, priority: int = 0) -> int:
        """Create a stream that does not wait for the legacy default stream."""
        self._card.check_room()
        stream = self.machine.add(Stream(self._card, next(self._numbers)))
        self.counts["streams"] += 1
        return stream

    @call("cuStreamDestroy_v2", "handle")
    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; what is on it still runs."""
        self._stream(stream)
        self.machine.remove(Stream, stream).destroy()
        self.counts["streams"] -= 1

    @call("cuStreamQuery", "handle")
    def stream_idle(self, stream: int) -> bool:
        """Whether everything on a stream is over."""
        return self._stream(stream).idle

    @call("cuStreamSynchronize", "handle")
    def synchronize_stream(self, stream: int) -> None:
        """Block until everything on a stream is over."""
        found = self._stream(stream)
        if found.last is not None:
            self._synchronise(found.last)

    def _synchronise(self, op: Op) -> None:
        """Sleep until an operation is over. Pools give back what they hold beyond their threshold whenever one does."""
        op.sleep()
        self._check_fault(op.stream.card)
        with self.machine.lock:
            op.stream.synchronised = max(op.number, op.stream.synchronised)
            op.stream.card.shrink_pools()

    @call("cuStreamWaitEvent", "handle")
    def wait_event(self, stream: int, event: int) -> None:
        """Have a stream wait for what an event was last recorded behind."""
        found = self._stream(stream)
        for op in self.machine.find(Event, event).ops:
            found.wait(op)

    @call("cuStreamWriteValue64", "handle")
    def write_value(self, stream: int, address: int, value: int) -> None:
        """Have a stream store 64 bits, visible after everything before it."""
        found = self._stream(stream)
        self._check_word(address)
        word = ctypes.c_uint64.from_address(address)
        machine = self.machine

        def store() -> None:
            memory.touch(found.card, address, 8, "a value write", False)
            word.value = value
            with machine.lock:
                pass  # a fence: whoever sees the word sees what was stored before it

        found.put(store, 1)

    @call("cuStreamWaitValue64_v2", "handle")
    def wait_value(self, stream: int, address: int, value: int) -> None:
        """Have a stream wait until 64 bits are at least `value`, compared cyclically."""
        found = self._stream(stream)
        self._check_word(address)
        found.wait_value(address, value)

    def _check_word(self, address: int) -> None:
        """Words for memory operations are aligned and page-locked; pool memory is refused (measured)."""
        if address % 8 or memory.check_range(self.machine, address, 8) != "pinned":
            raise Refusal(INVALID_VALUE)

    @call("cuEventCreate", "context")
    def create_event(self, blocking: bool = True) -> int:
        """Create an event without timing; `blocking`: who synchronises with it sleeps instead of spinning."""
        self._card.check_room()
        event = self.machine.add(Event(self._card, blocking))
        self.counts["events"] += 1
        return event

    @call("cuEventDestroy_v2", "handle")
    def destroy_event(self, event: int) -> None:
        """Destroy an event; harmless to streams that wait for it."""
        self._check_fault(self.machine.find(Event, event).card)
        self.machine.remove(Event, event)
        self.counts["events"] -= 1

    @call("cuEventRecord", "handle")
    def record_event(self, event: int, stream: int) -> None:
        """Set an event behind what is on a stream now."""
        found, place = self.machine.find(Event, event), self._stream(stream)
        if found.card is not place.card:
            raise Refusal(INVALID_HANDLE)
        self._queue_up(place.card)
        found.ops = (place.put(records=int(found.blocking)),)

    @call("cuCtxRecordEvent", "handle")
    def record_context(self, event: int, context: int) -> None:
        """Set an event behind what is on all streams of a context now, also on those that were destroyed."""
        found, card = self.machine.find(Event, event), self._contexts.get(context)
        if card is None:
            raise Refusal(INVALID_CONTEXT)
        if card is not found.card:
            raise Refusal(INVALID_HANDLE)
        if card.capturing:
            raise Refusal(STREAM_CAPTURE_UNSUPPORTED)
        self._check_fault(card)
        self._queue_up(card)
        last = [stream.last for stream in list(card.streams)]
        found.ops = tuple(op for op in last if op is not None and not op.over)

    @call("cuEventQuery", "handle")
    def event_over(self, event: int) -> bool:
        """Whether an event has happened."""
        return all(op.over for op in self._recorded(event))

    @call("cuEventSynchronize", "handle")
    def synchronize_event(self, event: int) -> None:
        """Block until an event has happened."""
        for op in self._recorded(event):
            self._synchronise(op)

    def _recorded(self, event: int) -> tuple[Op, ...]:
        found = self.machine.find(Event, event)
        self._check_fault(found.card)
        ops: tuple[Op, ...] = found.ops
        return ops
