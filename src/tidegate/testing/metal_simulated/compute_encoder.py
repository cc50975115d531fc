"""The compute encoder: argument tables, dispatches, barriers and residency."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from .encoders import Encoder, access
from .execution import Aborted, Reference
from .hazards import Access
from .heaps import Heap
from .library import Pipeline
from .memory import Buffer, Resource

if TYPE_CHECKING:
    from .command_buffer import CommandBuffer
    from .msl import Parameter
    from .simulation import Simulation

__all__ = ["ComputeEncoder", "Dispatch", "resolve"]

ENTRIES = 31
Size = tuple[int, int, int]


class Dispatch:
    """A dispatch with everything it needs, as it was when it was encoded."""

    def __init__(self, encoder: Any, pipeline: Pipeline, groups: Size | None, threads: Size) -> None:
        self.simulation: Simulation = encoder._simulation
        self.reference: Reference = encoder._encoded.reference(pipeline)
        self.groups = groups
        self.threads = threads
        self.counts: tuple[Reference, int] | None = None
        self.buffers: dict[int, tuple[Reference, int]] = dict(encoder._buffers)
        self.bytes: dict[int, bytes] = dict(encoder._bytes)
        self.resident: list[Reference] = encoder._resident

    def __call__(self) -> list[Access]:
        """Run the host function; return what it touched."""
        pipeline = self.reference()
        touched: list[Access] = []
        groups = self.groups if self.groups is not None else self._read_counts(touched)
        bindings, values = self._arguments(pipeline, touched)
        _current.dispatch = self
        try:
            if 0 not in groups:
                pipeline._run(groups, bindings, values)
        finally:
            _current.dispatch = None
        if self.simulation.closed:
            raise Aborted("the simulation was closed while a kernel ran")
        return touched

    def _read_counts(self, touched: list[Access]) -> Size:
        assert self.counts is not None
        reference, offset = self.counts
        buffer = reference()
        touched.append(access(buffer, offset, 12, False, "indirect arguments"))
        x, y, z = buffer._bytes[offset : offset + 12].view(np.uint32)
        return int(x), int(y), int(z)

    def _arguments(self, pipeline: Pipeline, touched: list[Access]) -> tuple[list[Any], tuple[Any, ...]]:
        bindings: list[Any] = []
        values: list[Any] = []
        for parameter in pipeline._kernel.parameters:
            if parameter.kind == "threadgroup":
                continue
            data = self._bytes_of(parameter, pipeline, touched)
            size = parameter.type.itemsize
            if parameter.kind == "value":
                values.append(np.ndarray((), parameter.type, data[:size].tobytes())[()])
            else:
                bindings.append(data[: len(data) // size * size])
        return bindings, tuple(values)

    def _bytes_of(self, parameter: Parameter, pipeline: Pipeline, touched: list[Access]) -> Any:
        if parameter.index in self.bytes:
            return np.frombuffer(self.bytes[parameter.index], np.uint8)
        reference, offset = self.buffers[parameter.index]
        buffer: Buffer = reference()
        what = f"{pipeline._kernel.name}'s {parameter.name}"
        touched.append(access(buffer, offset, parameter.type.itemsize, parameter.writes, what))
        return buffer._bytes[offset:]


class _Current(threading.local):
    dispatch: Dispatch | None = None


_current = _Current()


def resolve(simulation: Simulation, address: int) -> Any:
    """Return the bytes behind a GPU address, inside a kernel: what is behind an entry of an argument buffer.

    Raises:
        ViolationError: there is no buffer, or it was not made resident for this dispatch.

    """
    dispatch = _current.dispatch
    if dispatch is None:
        raise RuntimeError("addresses mean something inside a kernel only")
    for reference in [*dispatch.resident, *(entry[0] for entry in dispatch.buffers.values())]:
        thing = reference()
        if isinstance(thing, Buffer) and thing._address <= address < thing._address + thing._length:
            return thing._bytes[address - thing._address :]
        if isinstance(thing, Heap):
            offset = address - thing._block.address
            if 0 <= offset < thing._size:
                return thing._block.array[offset:]
    simulation.demand(False, "residency", f"nothing resident has the address {address:#x}")
    return None


class ComputeEncoder(Encoder, registered="MTLComputeCommandEncoder"):
    """Dispatches. A concurrent one runs them in any order, but for barriers."""

    _ordering = True

    def __init__(self, commands: CommandBuffer, concurrent: bool) -> None:
        super().__init__(commands)
        self._concurrent = concurrent
        self._pipeline: Reference | None = None
        self._buffers: dict[int, tuple[Reference, int]] = {}
        self._bytes: dict[int, bytes] = {}
        self._local: dict[int, int] = {}
        self._resident: list[Reference] = []
        self._barrier = True

    def endEncoding(self) -> None:
        super().endEncoding()
        self._pipeline = None
        self._buffers.clear()
        self._resident = []

    def dispatchType(self) -> int:
        return int(self._concurrent)

    def setComputePipelineState_(self, pipeline: Pipeline) -> None:
        self._check_open("setComputePipelineState")
        self._pipeline = self._encoded.reference(pipeline)

    def setBuffer_offset_atIndex_(self, buffer: Buffer | None, offset: int, index: int) -> None:
        self._check_open("setBuffer")
        self._check_index(index)
        self._bytes.pop(index, None)
        if buffer is None:
            self._buffers.pop(index, None)
            return
        buffer._check_usable()
        if offset >= buffer._length:
            self._simulation.refuse("bindings", f"{self!r}: offset {offset} of {buffer!r}, which has {buffer._length}")
        self._buffers[index] = (self._encoded.reference(buffer), offset)

    def setBufferOffset_atIndex_(self, offset: int, index: int) -> None:
        self._check_open("setBufferOffset")
        self._simulation.demand(index in self._buffers, "bindings", f"{self!r}: no buffer at index {index}")
        self.setBuffer_offset_atIndex_(self._buffers[index][0](), offset, index)

    def setBuffers_offsets_withRange_(self, buffers: Any, offsets: Any, range: Any) -> None:
        for place, (buffer, offset) in enumerate(zip(buffers, offsets, strict=True)):
            self.setBuffer_offset_atIndex_(buffer, offset, range[0] + place)

    def setBytes_length_atIndex_(self, data: Any, length: int, index: int) -> None:
        self._check_open("setBytes")
        self._check_index(index)
        if not 0 < length <= 4096:
            self._simulation.refuse("set-bytes", f"{self!r}: {length} bytes at index {index}")
        self._buffers.pop(index, None)
        self._bytes[index] = bytes(memoryview(data).cast("B")[:length])

    def setThreadgroupMemoryLength_atIndex_(self, length: int, index: int) -> None:
        self._check_open("setThreadgroupMemoryLength")
        self._local[index] = length
        fits = sum(self._local.values()) <= self._simulation.settings.threadgroup_memory
        self._simulation.demand(length % 16 == 0 and fits, "threadgroup-memory", f"{self!r}: {length} bytes")

    def useResource_usage_(self, resource: Resource, usage: int) -> None:
        self._check_open("useResource")
        resource._check_usable()
        self._resident = [*self._resident, self._encoded.reference(resource)]

    def useResources_count_usage_(self, resources: Any, count: int, usage: int) -> None:
        for resource in resources[:count]:
            self.useResource_usage_(resource, usage)

    def useHeap_(self, heap: Heap) -> None:
        self._check_open("useHeap")
        self._resident = [*self._resident, self._encoded.reference(heap)]

    def useHeaps_count_(self, heaps: Any, count: int) -> None:
        for heap in heaps[:count]:
            self.useHeap_(heap)

    def memoryBarrierWithScope_(self, scope: int) -> None:
        self._check_open("memoryBarrier")
        self._barrier = True

    def memoryBarrierWithResources_count_(self, resources: Any, count: int) -> None:
        self._check_open("memoryBarrier")
        self._barrier = True

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: Any, threads: Any) -> None:
        pipeline = self._check_dispatch(threads)
        self._simulation.demand(0 not in groups, "threadgroup-size", f"{self!r}: an empty grid {groups}")
        self._dispatch(Dispatch(self, pipeline, tuple(groups), threads))

    def dispatchThreads_threadsPerThreadgroup_(self, grid: Any, threads: Any) -> None:
        pipeline = self._check_dispatch(threads)
        self._simulation.demand(0 not in grid, "threadgroup-size", f"{self!r}: an empty grid {grid}")
        x, y, z = (-(-extent // width) for extent, width in zip(grid, threads, strict=True))
        self._dispatch(Dispatch(self, pipeline, (x, y, z), threads))

    def dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup_(
        self, buffer: Buffer, offset: int, threads: Any
    ) -> None:
        pipeline = self._check_dispatch(threads)
        buffer._check_usable()
        inside = offset % 4 == 0 and offset + 12 <= buffer._length
        self._simulation.demand(inside, "indirect-offset", f"{self!r}: counts at {offset} of {buffer!r}")
        dispatch = Dispatch(self, pipeline, None, threads)
        dispatch.counts = (self._encoded.reference(buffer), offset)
        self._dispatch(dispatch)

    def _dispatch(self, dispatch: Dispatch) -> None:
        self._add(dispatch, apart=self._barrier or not self._concurrent)
        self._barrier = False

    def _check_index(self, index: int) -> None:
        if index >= ENTRIES:
            self._simulation.refuse("buffer-index", f"{self!r}: index {index}")

    def _check_dispatch(self, threads: Any) -> Pipeline:
        self._check_open("a dispatch")
        if self._pipeline is None:
            self._simulation.refuse("pipeline-set", f"{self!r}: a dispatch without a pipeline state")
        pipeline: Pipeline = self._pipeline()
        if not 0 < threads[0] * threads[1] * threads[2] <= pipeline._max_threads:
            self._simulation.refuse("threadgroup-size", f"{self!r}: {threads}, at most {pipeline._max_threads}")
        for parameter in pipeline._kernel.parameters:
            self._check_parameter(pipeline._kernel.name, parameter)
        return pipeline

    def _check_parameter(self, name: str, parameter: Parameter) -> None:
        if parameter.kind == "threadgroup":
            wrong = None if self._local.get(parameter.index) else "has no memory"
            rule = "threadgroup-memory"
        else:
            wrong = self._wrong_with(parameter)
            rule = "bindings"
        if wrong is not None:
            self._simulation.refuse(rule, f"{name}: {parameter.name} at index {parameter.index} {wrong}")

    def _wrong_with(self, parameter: Parameter) -> str | None:
        """Return what is wrong with the binding of a buffer or a constant."""
        size, aligned = parameter.type.itemsize, parameter.type.alignment
        if parameter.index in self._bytes:
            if parameter.space != "constant":
                return "is no constant, and got bytes"
            return "has too few bytes" if len(self._bytes[parameter.index]) < size else None
        if parameter.index not in self._buffers:
            return "is not bound"
        reference, offset = self._buffers[parameter.index]
        if parameter.space == "constant":
            aligned = max(aligned, self._simulation.settings.constant_alignment)
        if offset % aligned:
            return f"has the offset {offset}, which is no multiple of {aligned}"
        return "is bound to a buffer that is too small" if reference()._length - offset < size else None
