"""Command buffers as CUDA graphs: one call launches all, and bindings change in place.

Each has a few instances. An execution takes one that is free on its stream, which is one that does not run or runs on
the same stream, where it would wait for itself anyway; of those the one bound most alike, so that little has to change.
If all are busy elsewhere there is one more, because work that may run at the same time must be able to (M15); it goes
again when it is not needed. There are never more than streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.driver import Copy, Recording, SlotSpan, Span

from ._errors import is_loss
from ._native import NativeError
from .encoding import NOTHING, Encoded
from .graph_instance import Instance, StaleError
from .graph_node import Bound, Table, spans_of
from .graph_order import Place, weave
from .native.compiled import GraphState
from .recorded_data import RecordedData

if TYPE_CHECKING:
    from .device import CudaDevice
    from .stream import Stream

_new = tuple.__new__

INSTANCES = 4
"""So many are kept."""


class EncodedGraph(Encoded):
    """One launch of an instance."""

    __slots__ = ("instance",)

    def __init__(self, instance: Instance) -> None:
        super().__init__()
        self.instance = instance

    def run(self, stream: Stream) -> None:
        self.instance.launch(stream)


class GraphCommandBuffer:
    """A recording as a graph. Nothing native exists before its first use.

    Args:
        device: the device.
        recording: what was recorded; without indirect dispatches.

    """

    def __init__(self, device: CudaDevice, recording: Recording) -> None:
        self._device = device
        self._commands = recording.commands
        self._slots = recording.slots
        self._data = RecordedData(device, recording.commands)
        self._places: list[Place] | None = None
        self._used: tuple[int, ...] = ()
        self._copied: tuple[int, ...] = ()
        self._direct: list[Span] = []
        self._instances: list[Instance] = []
        self._state = GraphState(INSTANCES)
        self.native = self._state.native

    @property
    def cold(self) -> bool:
        """Whether there is something to make before it can run."""
        return not self._instances

    def warm(self, table: Sequence[Span]) -> None:
        """Make the first instance. The context is current; the device's lock is better not held: it takes a while."""
        if not self._plan():
            return
        instance = self._make(self._resolve(table))
        with self._device.lock:
            self._keep([*self._instances, instance])

    def encode(self, table: Sequence[Span], stream: Any) -> Encoded:
        """Return one execution. Under the device's lock, with the context current."""
        if not self._plan():
            return NOTHING
        return EncodedGraph(self._ready(self._resolve(table), stream))

    # What is in it ---------------------------------------------------------------------------------------------------

    def _plan(self) -> list[Place]:
        """Return the nodes and their order, found out once; an empty list means that there is nothing to do."""
        if self._places is None:
            places = weave(self._commands)
            works = [self._commands[place.command].work for place in places]
            spans = [span for work in works for span in spans_of(work)]
            copies = [span for work in works if isinstance(work, Copy) for span in spans_of(work)]
            self._used = _slots_of(spans)
            self._copied = _slots_of(copies)
            self._direct = [span for span in spans if not isinstance(span, SlotSpan)]
            self._state.use(self._used)
            self._places = places  # last: who sees it sees the rest
        return self._places

    def _resolve(self, table: Sequence[Span]) -> list[Bound | None]:
        """Return what stands in each slot.

        Raises:
            FailedPreconditionError: memory that is named directly or in the table is not there (any more).

        """
        for span in self._direct:
            span.locate()
        found: list[Bound | None] = [None] * self._slots
        for slot in self._used:
            entry = table[slot]
            storage, offset = entry.locate()
            # As `Bound(...)`, in a third of the time.
            found[slot] = _new(Bound, (storage.address + offset, entry.nbytes, storage.memory != "device"))
        return found

    # Its instances ---------------------------------------------------------------------------------------------------

    def _keep(self, instances: list[Instance]) -> None:
        self._instances = instances
        self._state.instances[:] = [instance.state for instance in instances]

    def _ready(self, table: Table, stream: Any) -> Instance:
        """Return an instance that is free on a stream, bound to a table."""
        if len(self._instances) <= INSTANCES:
            for instance in self._instances:
                if instance.table == table and (instance.state.holder is stream or instance.idle):
                    return instance
        free = [instance for instance in self._instances if instance.state.holder is stream or instance.idle]
        alike = [instance for instance in free if self._alike(instance, table)]
        if alike:
            return self._bound(self._nearest(alike, table), table)
        if free and len(self._instances) >= INSTANCES:
            return self._replaced(free[0], table)
        self._drop_spare(free)
        instance = self._make(table)
        self._keep([*self._instances, instance])
        return instance

    def _nearest(self, instances: list[Instance], table: Table) -> Instance:
        found = instances[0] if len(instances) == 1 else min(instances, key=lambda instance: instance.distance(table))
        if len(self._instances) > INSTANCES:
            self._drop_spare([instance for instance in instances if instance is not found])
        return found

    def _alike(self, instance: Instance, table: Table) -> bool:
        """Whether copies go between the same kinds of memory: the one thing that CUDA changes in no instance."""
        mine = instance.table
        return all(mine[slot] is None or mine[slot].host == table[slot].host for slot in self._copied)  # type: ignore[union-attr]

    def _bound(self, instance: Instance, table: Table) -> Instance:
        try:
            instance.bind(table)
        except StaleError:
            return self._replaced(instance, table)
        except NativeError as error:
            if is_loss(error):
                raise
            return self._replaced(instance, table)
        return instance

    def _replaced(self, instance: Instance, table: Table) -> Instance:
        counts = self._device.counts
        counts["reinstantiated"] = counts.get("reinstantiated", 0) + 1
        made = self._make(table)
        self._keep([made if each is instance else each for each in self._instances])
        return made

    def _drop_spare(self, free: list[Instance]) -> None:
        """Let go of what is beyond the number that is kept, and does not run."""
        for instance in free:
            if len(self._instances) > INSTANCES and instance.idle:
                self._keep([each for each in self._instances if each is not instance])

    def _make(self, table: Table) -> Instance:
        instance = Instance(self._device, self._commands, self._plan(), table, self._used, self._data.address)
        self._direct = _one_per_storage(self._direct)
        return instance


def _one_per_storage(spans: Sequence[Span]) -> list[Span]:
    """Return a range for each block of memory: what is asked of them later is only whether that is still there."""
    located = [(span.locate()[0], span) for span in spans]  # holds every storage, so that no id comes twice
    return list({id(storage): span for storage, span in located}.values())


def _slots_of(spans: Sequence[Any]) -> tuple[int, ...]:
    return tuple(sorted({span.index for span in spans if isinstance(span, SlotSpan)}))
