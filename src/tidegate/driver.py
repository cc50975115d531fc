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
  epoch (`timeline.begin(ticket)`) and has the hardware raise the timeline's word to it behind the work. The core reads
  `timeline.reached` when somebody looks; when somebody sleeps it calls `timeline.arm(epoch)` once, and the driver then
  calls `sink.wake(timeline)` from a thread of its own when that epoch is over. Unarmed work costs no thread and no
  wake-up. A queue may spread its work over several timelines. An epoch is over only when its work is, the host's part
  of it included (a download that the host copies), and when every epoch is over that it was issued behind.

What was issued with `waits` is never reported by `finished`: only an epoch tells that what it follows was well. Both
ways are truth for the host only; what a driver's own devices wait for is the native timeline.

Threads
-------
Every method may be called from any thread, several at once; a driver locks what is its own. The core never calls a
driver from inside one of its own locked sections, and a driver must not hold a lock of its own while it calls the
sink: the sink runs waiting callbacks and issues further work. Calls that may block do not exist here except `load`,
`close` and `allocate` (which may run a little maintenance, but never waits for user work).

Interrupts (M19)
----------------
A KeyboardInterrupt may come out of any method. A driver sets `ticket.taken = True` immediately before the step that
hands the work over; if an exception leaves `issue` with `taken` set, the core waits for the end to be reported, and
fails the signals then. Without it, the core takes the work as never issued.

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

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .errors import InvalidArgumentError, OutOfRangeError, UnsupportedError
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
]


# What there is to do ------------------------------------------------------------------------------------------------


class Storage(ABC):
    """A block of memory of a device."""

    nbytes: int
    memory: MemoryKind

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


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """A range of whatever stands in entry `index` of the binding table; without a length, the rest of it."""

    index: int
    offset: int = 0
    length: int | None = None

    def bind(self, table: Sequence[Any]) -> Span:
        """Return the range of the table's entry.

        Raises:
            OutOfRangeError: the entry is missing or too short.

        """
        if self.index >= len(table):
            raise OutOfRangeError(
                f"slot {self.index} has no entry: the binding table has {len(table)}", slot=self.index, table=len(table)
            )
        entry = table[self.index]
        if self.offset == 0 and self.length is None:
            return entry  # type: ignore[no-any-return]
        return entry.subspan(self.offset, entry.nbytes - self.offset if self.length is None else self.length)  # type: ignore[no-any-return]


Binding = Span | SlotSpan


class Work:
    """What a submission does. One class per kind; the fields are public and frozen by habit."""

    __slots__ = ()
    kind = "work"
    cost: int | None = None
    """Bytes moved by built-in work, or None where user code runs. Drivers decide by it what may run in place (M34)."""
    empty = False
    """The core's: whether there is nothing to do but wait and signal."""
    on_failure: Any = None
    """The core's: what to undo, `on_failure(error)`, if the work fails or never runs."""


class Barrier(Work):
    """Nothing: only waits and signals."""

    __slots__ = ()
    kind = "barrier"
    cost = 0
    empty = True


class Mark(Work):
    """Nothing, but on the device: its end is a moment in the order of a native queue."""

    __slots__ = ()
    kind = "mark"
    cost = 0


class Allocate(Work):
    """Commit the storage of a buffer."""

    __slots__ = ("commit", "memory", "nbytes", "on_failure", "pool")
    kind = "allocate"
    cost = 0

    def __init__(
        self, nbytes: int, memory: MemoryKind, pool: DriverPool | None, commit: Any, on_failure: Any = None
    ) -> None:
        self.on_failure = on_failure
        self.nbytes = nbytes
        self.memory = memory
        self.pool = pool
        self.commit = commit
        """`commit(storage)`, to be called during `issue`."""


class Free(Work):
    """Give the storage of a buffer back, in queue order."""

    __slots__ = ("on_failure", "release")
    kind = "free"
    cost = 0

    def __init__(self, release: Any, on_failure: Any = None) -> None:
        self.on_failure = on_failure
        self.release = release
        """`release() -> Storage`, to be called during `issue`: the buffer no longer refers to it afterwards."""


class Fill(Work):
    """Repeat a pattern of 1, 2 or 4 bytes; offset and length are multiples of it."""

    __slots__ = ("cost", "pattern", "target")
    kind = "fill"

    def __init__(self, target: Binding, pattern: bytes) -> None:
        self.target = target
        self.pattern = pattern
        self.cost = target.nbytes if not isinstance(target, SlotSpan) else None


class Update(Work):
    """Write small host data that was captured at the call."""

    __slots__ = ("cost", "data", "target")
    kind = "update"

    def __init__(self, target: Binding, data: bytes) -> None:
        self.target = target
        self.data = data
        self.cost = len(data)


class Upload(Work):
    """Write host data, one-dimensional contiguous bytes, borrowed until the work is over."""

    __slots__ = ("array", "cost", "target")
    kind = "upload"

    def __init__(self, array: npt.NDArray[np.uint8], target: Span) -> None:
        self.array = array
        self.target = target
        self.cost = target.nbytes


class Download(Work):
    """Read into host memory, one-dimensional contiguous bytes, borrowed until the work is over."""

    __slots__ = ("array", "cost", "source")
    kind = "download"

    def __init__(self, source: Span, array: npt.NDArray[np.uint8]) -> None:
        self.source = source
        self.array = array
        self.cost = source.nbytes


class Copy(Work):
    """Copy between ranges of equal length that do not overlap."""

    __slots__ = ("cost", "source", "target")
    kind = "copy"

    def __init__(self, source: Binding, target: Binding) -> None:
        self.source = source
        self.target = target
        self.cost = source.nbytes if not isinstance(source, SlotSpan) else None


class Dispatch(Work):
    """Run a function over workgroups. A zero among them means: do nothing."""

    __slots__ = ("bindings", "constants", "function", "local_memory", "workgroups")
    kind = "dispatch"

    def __init__(
        self,
        function: DriverFunction,
        workgroups: tuple[int, int, int],
        bindings: tuple[Binding, ...],
        constants: tuple[Any, ...],
        local_memory: int,
    ) -> None:
        self.function = function
        self.workgroups = workgroups
        self.bindings = bindings
        self.constants = constants
        self.local_memory = local_memory


class DispatchIndirect(Work):
    """As Dispatch, with three u32 counts read from memory when the command runs."""

    __slots__ = ("bindings", "constants", "counts", "function", "local_memory")
    kind = "dispatch_indirect"

    def __init__(
        self,
        function: DriverFunction,
        counts: Binding,
        bindings: tuple[Binding, ...],
        constants: tuple[Any, ...],
        local_memory: int,
    ) -> None:
        self.function = function
        self.counts = counts
        self.bindings = bindings
        self.constants = constants
        self.local_memory = local_memory


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


class Execute(Work):
    """Run a recording; `table` fills its slots, captured at the call."""

    __slots__ = ("cost", "empty", "prepared", "recording", "table")
    kind = "execute"

    def __init__(self, recording: Recording, prepared: Any, table: tuple[Span, ...], cost: int | None) -> None:
        self.recording = recording
        self.prepared = prepared
        """What `DriverDevice.prepare` made of the recording."""
        self.table = table
        self.cost = cost
        self.empty = not recording.commands


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
        """A storage was given to a user of a foreign stream: it must outlive what that has there when it lets go."""

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

        Called again, perhaps on another thread, if an interrupt cut it short.
        """

    def abandon(self) -> None:  # noqa: B027 - most drivers have nothing to do here
        """The interpreter exits with work in flight: stop what would crash it; do not wait."""


class DriverQueue(ABC):
    """Where work is issued.

    Attributes:
        express: an object of a C module by which plain work goes down without a Python function in between, or None;
            see `_core/_express.h`. What it takes must be what `issue` would do.

    """

    express: Any = None

    @abstractmethod
    def issue(self, ticket: Ticket, work: Work, waits: Sequence[tuple[EpochTimeline, int]]) -> bool:
        """Take the work, or say "not now": see the head of this file."""

    def flush(self) -> None:  # noqa: B027 - work is issued at once, unless a driver gathers it
        """Send down what was gathered."""


class EpochTimeline(ABC):
    """The native timeline of an in-order queue: epochs 1, 2, 3... (M2).

    The driver calls `begin` in the order in which it issues, under its own lock; the rest belongs to the core. An
    exception out of `begin` with `ticket.taken` set means that the epoch is taken: the driver must then issue it still.
    """

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.in_flight: deque[Ticket] = deque()
        self.issued = 0

    def begin(self, ticket: Ticket) -> int:
        """Take the next epoch for `ticket`."""
        epoch = ticket.epoch = self.issued = self.issued + 1
        ticket.timeline = self  # after the epoch: who sees the timeline may arm
        ticket.taken = True
        self.in_flight.append(ticket)  # last, as the only call: an interrupt comes before all of it or after
        return epoch

    def advance(self) -> None:
        """Have the core retire what is over."""
        if self.sink is not None and self.in_flight:
            self.sink.advance(self)

    def watch(self, epoch: int) -> bool:
        """Whether an epoch is over, or will be within the time that a thread may well spin before it sleeps."""
        return self.reached >= epoch

    @property
    @abstractmethod
    def reached(self) -> int:
        """The last epoch that is over, without a foreign call."""

    @abstractmethod
    def outcome(self, epoch: int) -> BaseException | None:
        """Return why the work of an epoch that is over failed, or None."""

    @abstractmethod
    def arm(self, epoch: int) -> None:
        """Call `sink.wake(self)` once `epoch` is over, also if it is already. Asking twice is fine."""


class DriverFunction(ABC):
    """An entry point of an executable.

    Attributes:
        name: as the source has it.
        bindings: how many, or None where the format does not tell.
        constants: their types, or None where the format does not tell.
        workgroup: the size of a workgroup.

    """

    name: str
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
    timeline: EpochTimeline | None
    epoch: int


class Sink(Protocol):
    """Where a driver reports to."""

    def finished(self, ticket: Ticket, error: BaseException | None = None) -> None:
        """Work that was taken is over."""

    def wake(self, timeline: EpochTimeline) -> None:
        """An armed epoch is over."""

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
