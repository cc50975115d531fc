"""The seam: what a driver provides, and what it may count on.

Everything above this file is the same for all hardware: semaphores, waiters, held submissions, promises, retirement,
lifetimes, recording, argument checks. A driver is thin. It opens devices, owns memory, compiles executables, and has
queues. It never sees a semaphore, a user's value or a failure of other work (M2).

The life of a submission, seen from a driver
--------------------------------------------
The core calls `DriverQueue.issue(ticket, work, waits)` when the work may go down. Every wait has been reached by then,
except those in `waits`, which are epochs of the same device: the driver orders the work behind them natively. `issue`
returns True when the work was taken, and False for "not now" (no room, or a wait that would hold up independent work,
M15): then nothing has happened, and the core keeps the submission and comes again. It must not block.

When the work is over the driver says so, in one of two ways:

- A device without an order of its own (the CPU) reports each submission: `sink.finished(ticket, error)`.
- A device that counts (a CUDA stream, a Metal queue) has an `EpochTimeline` per native queue. `issue` takes the next
  epoch (`timeline.begin(ticket)`) and has the hardware raise a word to it behind the work. Whoever wants to know calls
  `timeline.advance()`, and the core then retires, in order, what `timeline.reached` tells to be over. When somebody is
  about to sleep, the core calls `timeline.arm(epoch)` once: a request for a wake-up. The driver then calls
  `sink.wake(timeline)` from a thread of its own when that epoch is over. Work without a request costs no thread and no
  wake-up. A queue may spread its work over several timelines. An epoch is over only when its work is, the host's part
  of it included (a download that the host copies), and when every epoch is over that it was issued behind.

Work that was issued with `waits` is never reported by `finished`: only an epoch tells that what it follows was well.
Both ways tell the host. What the device itself waits for is the native timeline.

A driver of a device that counts may be compiled. Then its queues have the address of a C structure, `native`, and the
core gives them most work in plain numbers, without Python. The header `_core/native.h` is that seam. `issue` is still
there for the rest.

Threads
-------
Every method may be called from any thread, several at once; a driver locks what is its own. The core holds no lock
while it calls a driver, and a driver must not hold a lock of its own while it calls the sink: the sink runs callbacks
that wait, and issues further work. No method may block except `load`, `close` and `allocate` (which may run a little
maintenance, but never waits for user work).

Interrupts (M19)
----------------
A KeyboardInterrupt may come out of any method. A driver sets `ticket.taken = True` immediately before the step that
hands the work over; `timeline.begin` does so itself. If an exception leaves `issue` with `taken` set, the core waits
for the end to be reported, and fails the signals then. If it is not set, the core takes the work as never issued.

A thread does not enter a driver twice. A signal handler or a finalizer that interrupts a driver may signal and submit;
the callbacks and the work that follow are put off to a thread of the core's. On a thread of its own a driver says by
`call_driver(function)` that it is inside; what it tells the sink there is the core's again.

Memory
------
`Storage` objects are reference counted by Python: the core keeps a storage as long as a buffer, a mapped array or an
unretired submission needs it. When the last reference goes, its finalizer only notes the block in a queue of the
driver's pool, which takes it back at the next allocation or trim. A storage the host can see gives its bytes as a
NumPy array whose base is the storage itself.

Errors
------
A driver raises the errors of `tidegate.errors` and nothing else; foreign errors are translated in the driver's
`_errors.py`. What `issue` raises fails that submission only. `ResourceExhaustedError` from an `Allocate` is tried again
as memory comes back (M22). `sink.lost(error)` takes the whole device down (M36).
"""

from __future__ import annotations

from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ._core.compiled import (
    Allocate,
    Barrier,
    Copy,
    Dispatch,
    DispatchIndirect,
    Download,
    Epochs,
    Execute,
    Fill,
    Free,
    Mark,
    Update,
    Upload,
    Work,
    call_driver,
)
from ._core.slots import SlotSpan
from .errors import InvalidArgumentError, UnsupportedError
from .types import DeviceInfo, DriverInfo, Limits, MemoryKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "Allocate",
    "Barrier",
    "Binding",
    "Command",
    "Copy",
    "DeviceRequest",
    "Dispatch",
    "DispatchIndirect",
    "Download",
    "Driver",
    "DriverDevice",
    "DriverFunction",
    "DriverPool",
    "DriverQueue",
    "EpochTimeline",
    "Execute",
    "Fill",
    "Free",
    "Interop",
    "Mark",
    "Recording",
    "Signature",
    "Sink",
    "SlotSpan",
    "Span",
    "Storage",
    "Ticket",
    "Update",
    "Upload",
    "Work",
    "call_driver",
]


# What there is to do ------------------------------------------------------------------------------------------------


class Storage(ABC):
    """A block of memory of a device."""

    nbytes: int
    memory: MemoryKind
    address: int = 0
    """Where it lies for the queues of compiled drivers; 0 where they must not use it, or not yet."""

    def host(self) -> npt.NDArray[np.uint8] | None:
        """Return the bytes as an array whose base keeps this storage alive; None where the host cannot see them."""
        return None


class Span(Protocol):
    """A range of a buffer. The storage behind it exists from the moment the work is issued."""

    @property
    def nbytes(self) -> int:
        """The length of the range."""

    def locate(self) -> tuple[Storage, int]:
        """Return the storage and the offset of the range in it.

        Raises:
            FailedPreconditionError: there is no storage: not committed yet, or freed.

        """

    def bind(self, table: Sequence[Span]) -> Span:
        """Return itself: only a slot looks into the binding table."""


Binding = Span | SlotSpan


@dataclass(frozen=True, slots=True)
class Command:
    """One recorded step. `after` names the commands, by index, that must be over before it; barriers are in it too."""

    work: Work
    after: tuple[int, ...]
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recording:
    """A finished command buffer. The order of `commands` satisfies every `after`."""

    commands: tuple[Command, ...]
    slots: int
    """How many entries a binding table needs."""
    label: str = ""
    one_shot: bool = False
    """Whether it runs once at most: a form that costs more to make than to run does not pay."""


# What a driver provides ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """What a `tg.Kernel` declares of its function."""

    name: str
    bindings: int
    constants: tuple[np.dtype[Any], ...]
    workgroup: tuple[int, int, int]


@dataclass(frozen=True)
class DeviceRequest:
    """A URI taken apart: `cpu:0?workers=4` is driver `cpu`, path `0`, options `{"workers": "4"}`."""

    uri: str
    driver: str
    path: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


class Driver(ABC):
    """Finds and opens devices of one kind. Made by the entry point in group `tidegate.drivers`, on first use."""

    name: str

    @abstractmethod
    def describe(self) -> DriverInfo:
        """Tell whether devices can be opened and which; never raises because something is absent."""

    @abstractmethod
    def open(self, request: DeviceRequest) -> DriverDevice:
        """Open a device.

        Raises:
            DriverUnavailableError: hardware or library are absent; says what to install.
            InvalidArgumentError: an unknown or wrong option; names the known ones.

        """


class Interop(ABC):
    """How memory and order of a device meet other libraries; for devices whose memory the host cannot see."""

    dlpack_device: tuple[int, int]
    """The kind and number of the device, as DLPack counts."""

    @abstractmethod
    def address(self, storage: Storage) -> int:
        """Return where a storage lies, as the other library shall see it."""

    @abstractmethod
    def exported(self, storage: Storage, stream: object) -> None:
        """A storage was given to a user of a foreign stream: it must outlive that user's work on the stream."""

    @abstractmethod
    def follow(self, stream: object, timeline: EpochTimeline, epoch: int) -> None:
        """Have a foreign stream wait for an issued epoch. DLPack's and other libraries' ways to name a stream."""

    @abstractmethod
    def adopt(self, address: int, nbytes: int, keep: object) -> Storage:
        """Return storage over memory of another library, which `keep` keeps alive."""

    @abstractmethod
    def stream_queue(self, stream: object = None) -> DriverQueue:
        """Return a queue whose work goes onto one stream: a foreign one, or an empty one of the device's own.

        Its attribute `stream` is the native handle.

        Raises:
            ResourceExhaustedError: no stream of the device is empty now.

        """


class DriverDevice(ABC):
    """An open device."""

    info: DeviceInfo
    promises: bool = False
    """Whether `issue` takes waits on epochs of this device."""
    queue_kinds: tuple[str, ...] = ("compute", "transfer")
    interop: Interop | None = None
    """For memory that other libraries can use where it lies."""
    events: Any = None
    """What shows semaphores to the outside as native events, where there is such a thing: see `lowlevel.export_event`.

    It has `export(timepoint)`, `follow(event, label)` and `barrier(signals, waits)`, which returns work for a queue.
    """

    @abstractmethod
    def connect(self, sink: Sink) -> None:
        """Take the sink to report to. Called once, before anything else."""

    @abstractmethod
    def queue(self, kind: str, priority: int) -> DriverQueue:
        """Return the queue of a kind in `queue_kinds`."""

    @abstractmethod
    def allocate(self, nbytes: int, memory: MemoryKind, pool: DriverPool | None = None) -> Storage:
        """Return storage now.

        Raises:
            ResourceExhaustedError: no room.

        """

    @abstractmethod
    def wrap(self, array: npt.NDArray[np.uint8]) -> Storage:
        """Return storage over host memory without a copy; the array is kept.

        Raises:
            UnsupportedError: this device cannot use host memory it did not allocate.

        """

    @abstractmethod
    def create_pool(self, budget: int | None) -> DriverPool:
        """Return a pool of its own, with its own budget in bytes."""

    @property
    @abstractmethod
    def default_pool(self) -> DriverPool:
        """The pool that serves what names none."""

    @abstractmethod
    def load(
        self, source: object, *, signature: Signature | None, format: str | None, options: Sequence[str]
    ) -> dict[str, DriverFunction]:
        """Compile or load functions. May block; never waits for work of the device.

        Raises:
            CompileError: the source does not compile; has the log.
            UnsupportedError: not a kind of source this device runs.

        """

    def prepare(self, recording: Recording) -> Any:
        """Return what `Execute.prepared` shall be: the native form of a finished recording, or None."""
        return None

    def poll(self) -> bool:
        """Make a little progress on the calling thread (M34); return whether there was any."""
        return False

    @abstractmethod
    def trim(self) -> None:
        """Give back memory that is kept for reuse."""

    @abstractmethod
    def close(self) -> None:
        """End. No submission is in flight, unless the device is lost. Must not block for long.

        It is called again, perhaps on another thread, if an interrupt cut it short.
        """

    def abandon(self) -> None:  # noqa: B027 - most drivers have nothing to do here
        """The interpreter exits with work in flight: stop what would crash it; do not wait."""


class DriverQueue(ABC):
    """Where work is issued.

    Attributes:
        native: the address of the `TidegateQueue` of a compiled driver (`_core/native.h`); 0 if it has none. The core
            reads it once, when the queue is made.

    """

    native: int = 0

    @abstractmethod
    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        """Take the work, or say "not now": see the head of this file."""

    def flush(self) -> None:  # noqa: B027 - work is issued at once, unless a driver gathers it
        """Send down what was gathered."""


class EpochTimeline(Epochs, metaclass=ABCMeta):
    """The native timeline of an in-order queue: epochs 1, 2, 3... (M2).

    The core keeps the submissions in flight, one for each epoch; the driver tells which epochs are over. The driver
    sets `sink` when its device is connected. It calls `begin` in the order in which it issues, under its own lock.
    `begin` is one step, which also sets `ticket.taken`. An interrupt may come right behind it: the driver must issue
    the work then, too.
    """

    def advance(self) -> None:
        """Somebody looks: have the core retire what is over. A driver that has more to look at overrides this."""
        if self.sink is not None and self.oldest is not None:
            self.sink.advance(self)

    @property
    @abstractmethod
    def reached(self) -> int:
        """The last epoch that is over. Reading it makes no foreign call, and it never falls."""

    @abstractmethod
    def outcome(self, epoch: int) -> BaseException | None:
        """Return why the work of an epoch that is over failed, or None if it went well."""

    def failed(self, epoch: int, call: int, code: int) -> None:
        """A native call of a compiled driver failed for this epoch, which was taken: see `_core/native.h`.

        `outcome` shall return the error when the epoch is over.
        """
        raise NotImplementedError

    @abstractmethod
    def arm(self, epoch: int) -> None:
        """Request a wake-up: call `sink.wake(self)` once `epoch` is over, also if it is already. Twice is fine."""


class DriverFunction(ABC):
    """An entry point of an executable.

    Attributes:
        name: as the source has it.
        bindings: how many, or None where the format does not tell.
        constants: their types, or None where the format does not tell.
        workgroup: the size of a workgroup.
        native: what the queues of a compiled driver know it by; 0 where they do not.

    """

    name: str
    native: int = 0
    bindings: int | None = None
    constants: tuple[np.dtype[Any], ...] | None = None
    workgroup: tuple[int, int, int] = (1, 1, 1)
    limits: Limits = Limits()


class DriverPool(ABC):
    """Memory kept for reuse, with a budget."""

    @abstractmethod
    def statistics(self) -> Mapping[str, int | None]:
        """Return `allocated_bytes`, `pooled_bytes`, `peak_bytes`, `budget_bytes`, `allocations`, `reuses`."""

    @abstractmethod
    def trim(self) -> None:
        """Give back what is kept for reuse."""


# What a driver may count on -----------------------------------------------------------------------------------------


class Ticket(Protocol):
    """A submission, as far as a driver may know it."""

    taken: bool

    @property
    def timeline(self) -> EpochTimeline | None:
        """The native timeline that counts it: set by `begin`, as `epoch` is."""

    @property
    def epoch(self) -> int:
        """Its number there."""


class Sink(Protocol):
    """Where a driver reports to."""

    def finished(self, ticket: Ticket, error: BaseException | None = None) -> None:
        """Work that was taken is over."""

    def wake(self, timeline: EpochTimeline) -> None:
        """An epoch is over for which a wake-up was requested."""

    def advance(self, timeline: EpochTimeline) -> None:
        """Somebody looks: retire what is over."""

    def room(self) -> None:
        """What was refused with "not now" may be tried again, or memory came back."""

    def lost(self, error: BaseException) -> None:
        """The device is gone."""


def refuse_source(driver: str, source: object, takes: str) -> UnsupportedError:
    """Return the error for a source that a driver cannot run."""
    return UnsupportedError(f"driver {driver!r} cannot load {type(source).__name__}: it takes {takes}")


_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(uri: str, text: str | None) -> int | None:
    """Return a size option in bytes: a number, or one with B, KiB, MiB or GiB."""
    if text is None:
        return None
    digits = text.rstrip("BKMGIbkmgi")
    unit = text[len(digits) :].upper()
    if not digits.isascii() or not digits.isdigit() or unit not in _UNITS:
        raise InvalidArgumentError(
            f"device {uri!r}: memory is {text!r}, and must be a size as 64MiB or a number of bytes"
        )
    return int(digits) * _UNITS[unit]
