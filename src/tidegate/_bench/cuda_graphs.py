"""Command buffers on a GPU: a thousand small dispatches at once, and other buffers for a recording that exists."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from time import perf_counter_ns
from typing import Any

import numpy as np

from .contestants import Contestants, iree_runtime
from .cuda_bindings import Arguments, Raw
from .cuda_kernels import TOUCH, load_touch
from .cuda_launchers import ONE
from .cuda_sides import BINDINGS, CUPY, IREE, TIMEOUT, TORCH, imported, iree_device, real_device
from .goals import Below, Ratio
from .model import TIDEGATE, Case, Missing, Sampler, Side

BY_STREAM = "cuda-bindings, by stream"
TABLES = 64
"""More than there are instances of a graph: each execution finds other buffers bound."""


@contextmanager
def _tidegate(count: int, chained: bool, contestants: Contestants) -> Iterator[Sampler]:
    device = contestants.device
    queue, function = device.queue(), load_touch(device)
    counter = device.upload(np.zeros(1, np.uint32))
    with device.record() as commands:
        before: list[Any] = []
        for _ in range(count):
            node = commands.dispatch(function, ONE, bindings=[counter], after=before)
            before = [node] if chained else []

    def sample() -> list[float]:
        start = perf_counter_ns()
        queue.execute(commands).wait(TIMEOUT)
        return [(perf_counter_ns() - start) / count]

    yield sample


class RawGraph:
    """A graph by cuda-bindings, of one kernel many times."""

    def __init__(self, raw: Raw, count: int, chained: bool) -> None:
        self.raw = raw
        self.stream = raw.stream()
        self.function = raw.function("touch", TOUCH)
        self.arguments = Arguments([ctypes.c_void_p(raw.memory(256 * TABLES))])
        self.graph = raw.own("cuGraphDestroy", raw.call("cuGraphCreate", 0))
        self.params = self._params()
        self.nodes: list[Any] = []
        for _ in range(count):
            before = self.nodes[-1:] if chained else []
            self.nodes.append(raw.call("cuGraphAddKernelNode", self.graph, before, len(before), self.params))
        self.instance = raw.own("cuGraphExecDestroy", raw.call("cuGraphInstantiate", self.graph, 0))

    def _params(self) -> Any:
        params = self.raw.driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = self.function
        params.gridDimX = params.gridDimY = params.gridDimZ = 1
        params.blockDimX = params.blockDimY = params.blockDimZ = 1
        params.sharedMemBytes = 0
        params.kernelParams = self.arguments.address
        params.extra = 0
        return params

    def run(self) -> None:
        """Launch, and wait until it is over."""
        self.raw.call("cuGraphLaunch", self.instance, self.stream)
        self.raw.call("cuStreamSynchronize", self.stream)


@contextmanager
def _bindings(count: int, chained: bool, contestants: Contestants) -> Iterator[Sampler]:
    with Raw(contestants) as raw:
        graph = RawGraph(raw, count, chained)

        def sample() -> list[float]:
            start = perf_counter_ns()
            graph.run()
            return [(perf_counter_ns() - start) / count]

        yield sample


@contextmanager
def _by_stream(count: int, contestants: Contestants) -> Iterator[Sampler]:
    with Raw(contestants) as raw:
        stream, function = raw.stream(), raw.function("touch", TOUCH)
        arguments = Arguments([ctypes.c_void_p(raw.memory(256))])
        launch, params = raw.driver.cuLaunchKernel, arguments.address

        def sample() -> list[float]:
            start = perf_counter_ns()
            for done in range(1, count + 1):
                launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, 0)
                if done % 16 == 0 and perf_counter_ns() - start > 100_000_000:
                    break
            raw.call("cuStreamSynchronize", stream)
            return [(perf_counter_ns() - start) / done]

        yield sample


@contextmanager
def _cupy(count: int, contestants: Contestants) -> Iterator[Sampler]:
    ordinal = real_device(contestants).ordinal
    cupy = imported("cupy", "cupy")
    with cupy.cuda.Device(ordinal):
        kernel, counter = cupy.RawKernel(TOUCH, "touch"), cupy.zeros(1, cupy.uint32)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            kernel((1,), (1,), (counter,))
            stream.synchronize()
            stream.begin_capture()
            for _ in range(count):
                kernel((1,), (1,), (counter,))
            graph = stream.end_capture()

        def sample() -> list[float]:
            start = perf_counter_ns()
            graph.launch(stream)
            stream.synchronize()
            return [(perf_counter_ns() - start) / count]

        yield sample


@contextmanager
def _torch(count: int, contestants: Contestants) -> Iterator[Sampler]:
    ordinal = real_device(contestants).ordinal
    torch = imported("torch", "torch")
    counter = torch.zeros(1, dtype=torch.int32, device=f"cuda:{ordinal}")
    counter.add_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads, ours among them, may call CUDA meanwhile; by default that would spoil the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(count):
            counter.add_(1)

    def sample() -> list[float]:
        start = perf_counter_ns()
        graph.replay()
        torch.cuda.current_stream().synchronize()
        return [(perf_counter_ns() - start) / count]

    yield sample


def _iree_recording(runtime: Any, device: Any, buffer: Any, count: int) -> Any:
    commands = runtime.HalCommandBuffer(device)
    for _ in range(count):
        commands.fill(buffer, np.uint32(1))
    commands.end()
    return commands


@contextmanager
def _iree(count: int, recording: bool, contestants: Contestants) -> Iterator[Sampler]:
    """Execute what was recorded just before: its command buffers serve once. `recording`: time that instead."""
    runtime, device = iree_runtime(), iree_device(contestants)
    kind = runtime.MemoryType.DEVICE_LOCAL
    buffer = device.allocator.allocate_buffer(kind, runtime.BufferUsage.DEFAULT, 4)
    semaphore, value = device.create_semaphore(0), 0

    def sample() -> list[float]:
        nonlocal value
        value += 1
        begin = perf_counter_ns()
        commands = _iree_recording(runtime, device, buffer, count)
        start = perf_counter_ns()
        device.queue_execute(commands, [], [(semaphore, value)])
        if not semaphore.wait(value, timeout=int(TIMEOUT * 1e9)):
            raise TimeoutError("the semaphore did not reach its value")
        return [(start - begin if recording else perf_counter_ns() - start) / count]

    yield sample


@contextmanager
def _rebind(count: int, contestants: Contestants) -> Iterator[Sampler]:
    """Execute with other buffers and again with the same: what the first costs more, for each binding."""
    import tidegate as tg

    device = contestants.device
    queue, function = device.queue(), load_touch(device)
    memory = device.upload(np.zeros(TABLES * 64 * count, np.uint32))
    with device.record() as commands:
        for index in range(count):
            commands.dispatch(function, ONE, bindings=[tg.slot(index)])
    tables = [[memory.subspan(256 * (table * count + index), 256) for index in range(count)] for table in range(TABLES)]
    turns = cycle(tables)

    def timed(table: Any) -> int:
        start = perf_counter_ns()
        submission = queue.execute(commands, bindings=table)
        cost = perf_counter_ns() - start
        submission.wait(TIMEOUT)
        return cost

    def sample() -> list[float]:
        table = next(turns)
        return [(timed(table) - timed(table)) / count]

    yield sample


@contextmanager
def _raw_rebind(count: int, contestants: Contestants) -> Iterator[Sampler]:
    with Raw(contestants) as raw:
        graph = RawGraph(raw, count, False)
        change, params, instance = raw.driver.cuGraphExecKernelNodeSetParams, graph.params, graph.instance
        pointer = graph.arguments.values[0]
        turns = cycle(pointer.value + 256 * table for table in range(TABLES))

        def sample() -> list[float]:
            start = perf_counter_ns()
            pointer.value = next(turns)
            for node in graph.nodes:
                change(instance, node, params)
            cost = perf_counter_ns() - start
            graph.run()
            return [cost / count]

        yield sample


@contextmanager
def _cannot(_contestants: Contestants) -> Iterator[Sampler]:
    raise Missing("cannot: its graphs keep the buffers they were captured with")
    yield


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    count, bound = (100, 16) if quick else (1000, 128)

    def sides(chained: bool) -> dict[str, Side]:
        own: dict[str, Side] = {TIDEGATE: partial(_tidegate, count, chained)}
        own[BINDINGS] = partial(_bindings, count, chained)
        if chained:
            own[BY_STREAM] = partial(_by_stream, count)
            own.update({CUPY: partial(_cupy, count), TORCH: partial(_torch, count), IREE: partial(_iree, count, False)})
        return own

    title = f"command buffer of {count} dispatches + host wait, each"
    variants = {"one after the other": sides(True), "in any order": sides(False)}
    goals = (Below(750.0, variant="one after the other"), Ratio(1.1, BINDINGS, variant="one after the other"))
    rebind: dict[str, Side] = {
        TIDEGATE: partial(_rebind, bound),
        BINDINGS: partial(_raw_rebind, bound),
        CUPY: _cannot,
        TORCH: _cannot,
        IREE: partial(_iree, bound, True),
    }
    return [
        Case("graph", title, variants, goals, rounds=20, conditions=("idle", "busy")),
        Case("rebind", "rebinding a reused command buffer, each binding", {"": rebind}, (Below(1e3),), rounds=40),
    ]
