"""A simulated Metal with one queue, and the steps that every test of it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tidegate.testing.metal_simulated import Native, ViolationError, native

LIMIT = 30.0
SHARED, PRIVATE = 0, 32
COMPLETED, ERROR = 4, 5

INCREMENT = """
#include <metal_stdlib>
using namespace metal;
kernel void increment(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]],
    uint i [[thread_position_in_grid]]) { if (i < n) x[i] += 1; }
"""


def increment(workgroups: Any, bindings: Any, constants: Any) -> None:
    bindings[0].view(np.uint32)[: int(constants[0])] += np.uint32(1)


class Gate:
    """A kernel that waits inside until it is opened."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.opened = threading.Event()

    def __call__(self, workgroups: Any, bindings: Any, constants: Any) -> None:
        self.arrived.set()
        assert self.opened.wait(LIMIT)

    def wait_for_arrival(self) -> None:
        assert self.arrived.wait(LIMIT)

    def open(self) -> None:
        self.opened.set()


class Workbench:
    """Objects of a simulated Metal, made with one call each."""

    def __init__(self, **settings: Any) -> None:
        self.metal: Native = native(**settings)
        self.metal.register("increment", increment)
        self.device = self.metal.MTLCreateSystemDefaultDevice()
        self.queue = self.device.newCommandQueue()
        self.expected: set[str] = set()
        self._gates: list[Gate] = []

    def close(self) -> None:
        """End; nothing but the expected rules was broken, and no thread is left."""
        for gate in self._gates:
            gate.open()
        assert self.metal.close(LIMIT)
        broken = [str(each) for each in self.metal.violations if each.rule.name not in self.expected]
        assert not broken

    @contextmanager
    def breaks(self, rule: str) -> Iterator[None]:
        """The block breaks a rule: that is raised, and recorded."""
        self.expected.add(rule)
        before = len(self.metal.violations)
        with pytest.raises(ViolationError):
            yield
        assert [each.rule.name for each in self.metal.violations[before:]] == [rule]

    def broken(self) -> list[str]:
        """The rules that were broken so far; they count as expected."""
        names = [each.rule.name for each in self.metal.violations]
        self.expected.update(names)
        return names

    def commands(self, queue: Any = None, retained: bool = True) -> Any:
        queue = self.queue if queue is None else queue
        with self.metal.autorelease_pool():
            return queue.commandBuffer() if retained else queue.commandBufferWithUnretainedReferences()

    def blit(self, commands: Any) -> Any:
        with self.metal.autorelease_pool():
            return commands.blitCommandEncoder()

    def compute(self, commands: Any, concurrent: bool = False) -> Any:
        with self.metal.autorelease_pool():
            return commands.computeCommandEncoderWithDispatchType_(int(concurrent))

    def buffer(self, length: int, options: int = SHARED) -> Any:
        return self.device.newBufferWithLength_options_(length, options)

    def words(self, buffer: Any) -> Any:
        return np.frombuffer(buffer.contents().as_buffer(buffer.length()), np.uint32)

    def library(self, source: str) -> Any:
        library, error = self.device.newLibraryWithSource_options_error_(source, None, None)
        assert error is None, error.localizedDescription()
        return library

    def pipeline(self, source: str = INCREMENT, name: str = "increment") -> Any:
        function = self.library(source).newFunctionWithName_(name)
        pipeline, error = self.device.newComputePipelineStateWithFunction_error_(function, None)
        assert error is None, error.localizedDescription()
        return pipeline

    def host_pipeline(self, function: Callable[..., None], parameters: str = "") -> Any:
        name, source = self.metal.host_kernel(function, parameters)
        return self.pipeline(source, name)

    def gate(self) -> tuple[Gate, Any]:
        """A gate, and the pipeline that runs into it."""
        gate = Gate()
        self._gates.append(gate)
        return gate, self.host_pipeline(gate)

    def run(self, pipeline: Any, commands: Any = None, buffers: Any = ()) -> Any:
        """Encode one dispatch, commit and return the command buffer."""
        commands = self.commands() if commands is None else commands
        encoder = self.compute(commands)
        encoder.setComputePipelineState_(pipeline)
        for index, buffer in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
        encoder.endEncoding()
        commands.commit()
        return commands

    def block(self, queue: Any = None) -> Gate:
        """Have a queue be busy until the gate is opened."""
        gate, pipeline = self.gate()
        self.run(pipeline, self.commands(queue))
        return gate

    def fill(self, buffer: Any, value: int, commands: Any = None) -> Any:
        """Commit a command buffer that fills a buffer."""
        commands = self.commands() if commands is None else commands
        encoder = self.blit(commands)
        encoder.fillBuffer_range_value_(buffer, (0, buffer.length()), value)
        encoder.endEncoding()
        commands.commit()
        return commands
