"""What a random program consists of: resources, steps, and who must come before whom.

The numbers of the steps are an order in which they may be done one after the other; a step depends on earlier ones
only. The order in which they are submitted is another matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    """A range of a buffer (`b`) or of a host array (`h`)."""

    kind: str
    index: int
    offset: int
    length: int

    def overlaps(self, other: Span) -> bool:
        """Whether the two have a byte in common."""
        return (
            (self.kind, self.index) == (other.kind, other.index)
            and self.offset < other.offset + other.length
            and other.offset < self.offset + self.length
        )

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offset + self.length

    @property
    def twin(self) -> str:
        """The same range of what NumPy has in its place."""
        return f"m{self.kind}[{self.index}][{self.offset}:{self.end}]"

    @property
    def undefined(self) -> str:
        """The marks of the bytes of this range that nobody can foresee."""
        return f"u{self.kind}[{self.index}][{self.offset}:{self.end}]"

    @property
    def array(self) -> str:
        """The range of a host array, as the program has it."""
        return f"h[{self.index}][{self.offset}:{self.end}]"

    @property
    def subspan(self) -> str:
        """The range of a buffer, as the program has it."""
        return f"b[{self.index}].subspan({self.offset}, {self.length})"


@dataclass(frozen=True)
class Operation:
    """What a step does.

    Attributes:
        kind: the name of the operation.
        call: the text of the call, without `wait=` and `signal=`.
        model: what NumPy does for it, as statements.
        reads: the ranges it reads.
        writes: the ranges it writes.
        fails: which injected error it ends with, or None.

    """

    kind: str
    call: str
    model: tuple[str, ...] = ()
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()
    fails: int | None = None

    def conflicts(self, other: Operation) -> bool:
        """Whether the order of the two matters."""
        if self.is_about_life or other.is_about_life:
            mine, theirs = ({(span.kind, span.index) for span in (*one.reads, *one.writes)} for one in (self, other))
            return not mine.isdisjoint(theirs)  # memory must be there, also for a range of it without a byte
        return _meet(self.writes, other.writes) or _meet(self.writes, other.reads) or _meet(self.reads, other.writes)

    @property
    def is_about_life(self) -> bool:
        """Whether memory comes or goes by it."""
        return self.kind in ("allocate", "free")


def _meet(spans: Iterable[Span], others: Sequence[Span]) -> bool:
    return any(span.overlaps(other) for span in spans for other in others)


@dataclass
class Step:
    """A piece of work.

    Attributes:
        number: its place in the order of doing them one by one.
        operation: what it does.
        place: where it is submitted: `q[1]` or `lane[0]`.
        thread: by which thread.
        turn: when, among those of its thread.
        after: the steps it waits for.
        gates: values of host-signalled semaphores it waits for: gate and value.
        cancelled: which injected error stands for its being cancelled, or None.
        fixed: whether a smaller program needs it too: it makes memory, and gives it known bytes.

    """

    number: int
    operation: Operation
    place: str
    thread: int = 0
    turn: float = 0.0
    after: set[int] = field(default_factory=set)
    gates: set[tuple[int, int]] = field(default_factory=set)
    cancelled: int | None = None
    fixed: bool = False

    @property
    def in_lane(self) -> bool:
        """Whether a lane orders it."""
        return self.place.startswith("lane")


@dataclass(frozen=True)
class Gate:
    """A signal or failure by the host: gate `index` is taken to `value`, or failed with an injected error."""

    index: int
    value: int
    thread: int
    turn: float
    fails: int | None = None


@dataclass
class Program:
    """A whole program.

    Attributes:
        seed: what it was drawn from.
        threads: how many threads submit.
        buffers: the text that makes each buffer.
        arrays: the size of each host array.
        recordings: the text that records each command buffer, as lines.
        queues: the text that makes each queue.
        lanes: the queue of each lane.
        steps: the work.
        gates: what the host signals and fails.
        errors: how many errors are injected.
        freed: buffers that a step frees.
        allocated: for a buffer that is allocated in queue order, the step that does so.

    """

    seed: int
    threads: int
    buffers: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    arrays: list[int] = field(default_factory=list)
    recordings: list[list[str]] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    errors: int = 0
    freed: dict[int, int] = field(default_factory=dict)
    allocated: dict[int, int] = field(default_factory=dict)

    def step(self, number: int) -> Step:
        """Return a step by its number."""
        return next(step for step in self.steps if step.number == number)

    def producers(self) -> dict[int, set[int]]:
        """Return, for each step, those directly before it: what it waits for, and what is before it in its lane."""
        before = {step.number: set(step.after) for step in self.steps}
        last: dict[str, int] = {}
        for step in self.steps:
            if step.in_lane:
                if step.place in last:
                    before[step.number].add(last[step.place])
                last[step.place] = step.number
        return before

    def ancestors(self) -> dict[int, set[int]]:
        """Return, for each step, all that come before it."""
        found: dict[int, set[int]] = {}
        for number, before in self.producers().items():
            found[number] = before.union(*(found[one] for one in before))
        return found
