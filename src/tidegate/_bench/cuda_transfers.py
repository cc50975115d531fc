"""Moving data: a large upload from ordinary memory, and a pipeline of upload, kernel and download."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from .contestants import Contestants, iree_runtime
from .cuda_bindings import Arguments, Raw
from .cuda_kernels import STAGE, STAGE_GROUPS, STAGE_THREADS, load_stage
from .cuda_sides import BINDINGS, CUPY, IREE, TIMEOUT, TORCH, imported, iree_device, real_device
from .goals import Bandwidth, Moves, Ratio
from .model import TIDEGATE, Case, Sampler, Side

PAGE_LOCKED = "cuda-bindings, page-locked"
ALONE = "slowest stage alone"
DEPTH = 3


def _moving(nbytes: int, move: Callable[[], object]) -> Sampler:
    def sample() -> list[float]:
        start = perf_counter_ns()
        move()
        return [(perf_counter_ns() - start) / nbytes]

    return sample


def _ordinary(nbytes: int) -> Any:
    return np.ones(nbytes, np.uint8)


@contextmanager
def _upload(nbytes: int, contestants: Contestants) -> Iterator[Sampler]:
    device = contestants.device
    queue, array, target = device.queue("upload"), _ordinary(nbytes), device.allocate(nbytes)
    try:
        yield _moving(nbytes, lambda: queue.upload(array, target).wait(TIMEOUT))
    finally:
        target.close()


@contextmanager
def _raw_upload(nbytes: int, contestants: Contestants) -> Iterator[Sampler]:
    with Raw(contestants) as raw:
        target, array = raw.memory(nbytes), _ordinary(nbytes)
        yield _moving(nbytes, lambda: raw.call("cuMemcpyHtoD", target, array.ctypes.data, nbytes))


@contextmanager
def _raw_page_locked(nbytes: int, contestants: Contestants) -> Iterator[Sampler]:
    with Raw(contestants) as raw:
        target, source, stream = raw.memory(nbytes), raw.host_memory(nbytes), raw.stream()
        ctypes.memset(source, 1, nbytes)

        def move() -> None:
            raw.call("cuMemcpyHtoDAsync", target, source, nbytes, stream)
            raw.call("cuStreamSynchronize", stream)

        yield _moving(nbytes, move)


@contextmanager
def _cupy_upload(nbytes: int, contestants: Contestants) -> Iterator[Sampler]:
    ordinal = real_device(contestants).ordinal
    cupy = imported("cupy", "cupy")
    with cupy.cuda.Device(ordinal):
        target, array, stream = cupy.empty(nbytes, cupy.uint8), _ordinary(nbytes), cupy.cuda.get_current_stream()

        def move() -> None:
            target.set(array)
            stream.synchronize()

        yield _moving(nbytes, move)


@contextmanager
def _torch_upload(nbytes: int, contestants: Contestants) -> Iterator[Sampler]:
    ordinal = real_device(contestants).ordinal
    torch = imported("torch", "torch")
    source = torch.from_numpy(_ordinary(nbytes))
    target = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{ordinal}")

    def move() -> None:
        target.copy_(source)
        torch.cuda.current_stream().synchronize()

    yield _moving(nbytes, move)


@contextmanager
def _iree_upload(nbytes: int, contestants: Contestants) -> Iterator[Sampler]:
    """Make a buffer of an array, which allocates too: the bindings have no other way."""
    runtime, device, array = iree_runtime(), iree_device(contestants), _ordinary(nbytes)
    kind, usage = runtime.MemoryType.DEVICE_LOCAL, runtime.BufferUsage.DEFAULT
    yield _moving(nbytes, lambda: device.allocator.allocate_buffer_copy(kind, usage, device, array))


def groups_for(chunk: int) -> tuple[int, int, int]:
    """Return the workgroups of a stage: what fills the card, or what a small chunk needs."""
    return (max(1, min(STAGE_GROUPS, chunk // 4 // STAGE_THREADS // 32)), 1, 1)


class Pipeline:
    """Chunks of page-locked memory that go up, through a kernel, and down again, `DEPTH` of them at a time."""

    def __init__(self, device: Any, chunk: int, count: int, kernel_ns: int) -> None:
        import tidegate as tg

        self.elements, self.count = chunk // 4, count
        self.up, self.down, self.compute = device.queue("upload"), device.queue("download"), device.queue()
        self.function = load_stage(device)
        self.groups = groups_for(chunk)
        self.constants = (np.uint32(self.elements), np.uint64(kernel_ns))
        self.sources = [tg.pinned_empty(self.elements, np.uint32, device) for _ in range(DEPTH)]
        self.targets = [tg.pinned_empty(self.elements, np.uint32, device) for _ in range(DEPTH)]
        self.buffers = [device.allocate(chunk) for _ in range(DEPTH)]
        for index, source in enumerate(self.sources):
            source[:] = index

    def upload(self, slot: int, wait: Any) -> Any:
        return self.up.upload(self.sources[slot], self.buffers[slot], wait=wait)

    def kernel(self, slot: int, wait: Any) -> Any:
        buffers = [self.buffers[slot]]
        return self.compute.dispatch(self.function, self.groups, bindings=buffers, constants=self.constants, wait=wait)

    def download(self, slot: int, wait: Any) -> Any:
        return self.down.download(self.buffers[slot], self.targets[slot], wait=wait)

    def run(self) -> None:
        """Send all chunks through."""
        last: list[Any] = [None] * DEPTH
        for number in range(self.count):
            slot = number % DEPTH
            step = self.upload(slot, last[slot])
            last[slot] = self.download(slot, self.kernel(slot, step))
        for one in last:
            one.wait(TIMEOUT)

    def check(self) -> None:
        """See that what came down is what the kernel made."""
        for index, target in enumerate(self.targets):
            if not (target == index + 1).all():
                raise RuntimeError("the pipeline gave wrong numbers")

    def alone(self, stage: Callable[[int, Any], Any]) -> float:
        """Return what one stage takes for each chunk, with nothing else."""
        start, last = perf_counter_ns(), None
        for number in range(self.count):
            last = stage(number % DEPTH, last)
        last.wait(TIMEOUT)  # type: ignore[union-attr]
        return (perf_counter_ns() - start) / self.count

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()


@contextmanager
def _pipeline(chunk: int, count: int, kernel_ns: int, contestants: Contestants) -> Iterator[Sampler]:
    pipeline = Pipeline(contestants.device, chunk, count, kernel_ns)
    pipeline.run()
    pipeline.check()

    def sample() -> list[float]:
        start = perf_counter_ns()
        pipeline.run()
        return [(perf_counter_ns() - start) / count]

    try:
        yield sample
    finally:
        pipeline.close()


@contextmanager
def _alone(chunk: int, count: int, kernel_ns: int, contestants: Contestants) -> Iterator[Sampler]:
    pipeline = Pipeline(contestants.device, chunk, count, kernel_ns)
    stages = (pipeline.upload, pipeline.kernel, pipeline.download)
    try:
        yield lambda: [max(pipeline.alone(stage) for stage in stages)]
    finally:
        pipeline.close()


class RawPipeline:
    """The same by hand: three streams, two events for each slot."""

    def __init__(self, raw: Raw, chunk: int, kernel_ns: int) -> None:
        self.raw, self.chunk = raw, chunk
        self.up, self.compute, self.down = raw.stream(), raw.stream(), raw.stream()
        self.function = raw.function("stage", STAGE)
        self.buffers = [raw.memory(chunk) for _ in range(DEPTH)]
        self.sources = [raw.host_memory(chunk) for _ in range(DEPTH)]
        self.targets = [raw.host_memory(chunk) for _ in range(DEPTH)]
        self.events = [[raw.event() for _ in range(3)] for _ in range(DEPTH)]
        self.arguments = [
            Arguments([ctypes.c_void_p(buffer), ctypes.c_uint32(chunk // 4), ctypes.c_uint64(kernel_ns)])
            for buffer in self.buffers
        ]

    def run(self, count: int) -> None:
        """Send all chunks through."""
        for number in range(count):
            self._step(number % DEPTH, first=number < DEPTH)
        self.raw.call("cuStreamSynchronize", self.down)

    def _step(self, slot: int, first: bool) -> None:
        call, (uploaded, computed, downloaded) = self.raw.call, self.events[slot]
        if not first:
            call("cuStreamWaitEvent", self.up, downloaded, 0)
        call("cuMemcpyHtoDAsync", self.buffers[slot], self.sources[slot], self.chunk, self.up)
        call("cuEventRecord", uploaded, self.up)
        call("cuStreamWaitEvent", self.compute, uploaded, 0)
        shape = (*groups_for(self.chunk), STAGE_THREADS, 1, 1, 0)
        call("cuLaunchKernel", self.function, *shape, self.compute, self.arguments[slot].address, 0)
        call("cuEventRecord", computed, self.compute)
        call("cuStreamWaitEvent", self.down, computed, 0)
        call("cuMemcpyDtoHAsync", self.targets[slot], self.buffers[slot], self.chunk, self.down)
        call("cuEventRecord", downloaded, self.down)


@contextmanager
def _raw_pipeline(chunk: int, count: int, kernel_ns: int, contestants: Contestants) -> Iterator[Sampler]:
    with Raw(contestants) as raw:
        pipeline = RawPipeline(raw, chunk, kernel_ns)

        def sample() -> list[float]:
            start = perf_counter_ns()
            pipeline.run(count)
            return [(perf_counter_ns() - start) / count]

        yield sample


def _pipeline_sides(chunk: int, count: int, kernel_ns: int) -> dict[str, Side]:
    makers = {TIDEGATE: _pipeline, ALONE: _alone, BINDINGS: _raw_pipeline}
    return {side: partial(make, chunk, count, kernel_ns) for side, make in makers.items()}


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    size, chunk, count, kernel_ns = (2**22, 2**18, 4, 50_000) if quick else (2**28, 2**25, 18, 1_200_000)
    uploads: dict[str, Side] = {
        TIDEGATE: partial(_upload, size),
        PAGE_LOCKED: partial(_raw_page_locked, size),
        BINDINGS: partial(_raw_upload, size),
        CUPY: partial(_cupy_upload, size),
        TORCH: partial(_torch_upload, size),
        IREE: partial(_iree_upload, size),
    }
    slow, fast = "the kernel is slowest", "the copies are slowest"
    variants = {slow: _pipeline_sides(chunk, count, kernel_ns), fast: _pipeline_sides(chunk, count, 0)}
    goals = (Bandwidth(0.95, ALONE, slow), Ratio(1.05, BINDINGS, variant=fast))
    return [
        Case(
            "upload",
            f"upload of {size >> 20} MiB from ordinary memory",
            {"": uploads},
            (Moves(30.0),),
            rounds=10,
            conditions=("idle", "busy"),
            unit="bandwidth",
        ),
        Case("pipeline", f"upload, kernel, download, {DEPTH} deep, each chunk", variants, goals, rounds=12),
    ]
