"""Encoding: blits and kernels, order within a recording, bindings, constants and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.conformance import kernels
from tidegate.drivers.metal import _native, fill_kernels

from .driver_bench import LIMIT, DriverBench, words

WORDS = "device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]]"


class Calls:
    """What the driver asked of Metal, by function of `_native`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.made: list[str] = []
        for name in names:
            monkeypatch.setattr(_native, name, self._watched(name, getattr(_native, name)))

    def _watched(self, name: str, real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.made.append(name)
            return real(*arguments)

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch, "fill", "copy", "dispatch", "barrier", "blit_encoder", "compute_encoder", "end_encoding")


@pytest.mark.parametrize(("offset", "length", "native"), [(0, 64, True), (4, 60, True), (1, 3, False), (0, 63, False)])
def test_fills_on_the_grid_are_blits_and_the_rest_kernels(
    metal: DriverBench, calls: Calls, offset: int, length: int, native: bool
) -> None:
    buffer = metal.device.upload(np.zeros(64, np.uint8))
    calls.made.clear()
    metal.queue.fill(buffer, 200, offset=offset, length=length).wait(LIMIT)
    assert ("fill" in calls.made, "dispatch" in calls.made) == (native, not native)
    expected = bytearray(64)
    expected[offset : offset + length] = bytes([200]) * length
    assert buffer.read(timeout=LIMIT) == expected


@pytest.mark.parametrize("pattern", [b"\x01\x02", b"\x01\x02\x03\x04", b"\x05\x05"])
@pytest.mark.parametrize("offset", [0, 4, 8])
def test_patterns_of_several_bytes_are_kernels_unless_all_bytes_are_the_same(
    metal: DriverBench, calls: Calls, pattern: bytes, offset: int
) -> None:
    buffer = metal.device.upload(np.zeros(64, np.uint8))
    calls.made.clear()
    metal.queue.fill(buffer, pattern, offset=offset, length=24).wait(LIMIT)
    assert ("fill" in calls.made) == (len(set(pattern)) == 1)
    assert buffer.read(timeout=LIMIT)[offset : offset + 24] == pattern * (24 // len(pattern))


def test_a_two_byte_pattern_off_the_grid_keeps_its_phase(metal: DriverBench) -> None:
    buffer = metal.device.upload(np.zeros(32, np.uint8))
    metal.queue.fill(buffer, b"ab", offset=2, length=10).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == b"\0\0" + b"ab" * 5 + bytes(20)


@pytest.mark.parametrize(("start", "to", "length", "native"), [(0, 4, 8, True), (1, 4, 8, False), (0, 4, 7, False)])
def test_copies_on_the_grid_are_blits_and_the_rest_kernels(
    metal: DriverBench, calls: Calls, start: int, to: int, length: int, native: bool
) -> None:
    data = np.arange(32, dtype=np.uint8)
    source, target = metal.device.upload(data), metal.device.upload(np.zeros(32, np.uint8))
    calls.made.clear()
    metal.queue.copy(source, target, source_offset=start, target_offset=to, length=length).wait(LIMIT)
    assert ("copy" in calls.made, "dispatch" in calls.made) == (native, not native)
    assert target.read(timeout=LIMIT)[to : to + length] == data[start : start + length].tobytes()


def test_long_ranges_off_the_grid_are_cut_into_dispatches_with_32_bit_counts(
    metal: DriverBench, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill_kernels, "CHUNK", 1024)
    source = metal.device.upload(np.arange(4001, dtype=np.uint16).view(np.uint8))
    target = metal.device.allocate(8002)
    calls.made.clear()
    metal.queue.copy(source, target).wait(LIMIT)
    assert calls.made.count("dispatch") == 8
    assert target.read(timeout=LIMIT) == source.read(timeout=LIMIT)
    calls.made.clear()
    metal.queue.fill(target, b"xyzw", length=8000).wait(LIMIT)
    assert calls.made.count("dispatch") == 8
    assert target.read(timeout=LIMIT)[:8000] == b"xyzw" * 2000


def test_commands_without_an_order_have_no_barrier_between_them(metal: DriverBench, calls: Calls) -> None:
    increment = kernels.load(metal.device, kernels.increment)
    buffers = [metal.upload() for _ in range(3)]
    with metal.device.record() as commands:
        for buffer in buffers:
            commands.dispatch(increment, 1, bindings=[buffer], constants=[64])
    metal.queue.execute(commands).wait(LIMIT)
    assert (calls.made.count("compute_encoder"), calls.made.count("barrier")) == (1, 0)
    assert [words(buffer)[0] for buffer in buffers] == [1, 1, 1]


def test_barriers_and_edges_become_memory_barriers_within_one_encoder(metal: DriverBench, calls: Calls) -> None:
    increment = kernels.load(metal.device, kernels.increment)
    buffer = metal.upload()
    with metal.device.record() as commands:
        first = commands.dispatch(increment, 1, bindings=[buffer], constants=[64])
        second = commands.dispatch(increment, 1, bindings=[buffer], constants=[64], after=[first])
        commands.barrier()
        commands.dispatch(increment, 1, bindings=[buffer], constants=[64])
        commands.dispatch(increment, 1, bindings=[metal.upload()], constants=[64], after=[second])
    metal.queue.execute(commands).wait(LIMIT)
    assert (calls.made.count("compute_encoder"), calls.made.count("barrier")) == (1, 2)
    assert words(buffer)[:3] == [3, 4, 5]


def test_a_command_that_another_waits_for_is_ordered_although_a_barrier_stood_before_it(
    metal: DriverBench, calls: Calls
) -> None:
    increment = kernels.load(metal.device, kernels.increment)
    buffer = metal.upload()
    with metal.device.record() as commands:
        commands.dispatch(increment, 1, bindings=[metal.upload()], constants=[64])
        commands.barrier()
        first = commands.dispatch(increment, 1, bindings=[buffer], constants=[64])
        commands.dispatch(increment, 1, bindings=[buffer], constants=[64], after=[first])
    metal.queue.execute(commands).wait(LIMIT)
    assert calls.made.count("barrier") == 2
    assert words(buffer)[0] == 2


def test_a_barrier_between_blits_ends_their_encoder(metal: DriverBench, calls: Calls) -> None:
    buffer = metal.device.allocate(64)
    with metal.device.record() as commands:
        commands.fill(buffer, 1)
        commands.fill(metal.device.allocate(64), 1)
        commands.barrier()
        commands.fill(buffer, 2)
    metal.queue.execute(commands).wait(LIMIT)
    assert (calls.made.count("blit_encoder"), calls.made.count("end_encoding")) == (2, 2)
    assert buffer.read(timeout=LIMIT) == bytes([2]) * 64


def test_debug_groups_are_balanced_over_encoders(metal: DriverBench) -> None:
    increment = kernels.load(metal.device, kernels.increment)
    buffer = metal.upload()
    with metal.device.record() as commands:
        with commands.group("outer"):
            commands.fill(buffer, 0)
            with commands.group("inner"):
                commands.barrier()
                commands.dispatch(increment, 1, bindings=[buffer], constants=[64])
            commands.barrier()
            commands.dispatch(increment, 1, bindings=[buffer], constants=[64])
        with commands.group("other"):
            commands.barrier()
            commands.dispatch(increment, 1, bindings=[buffer], constants=[64])
    metal.queue.execute(commands).wait(LIMIT)
    assert words(buffer)[0] == 3


def test_large_constants_are_staged(metal: DriverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.dtype([("entries", np.uint32, (2048,))])
    found: list[int] = []

    def look(_workgroups: Any, _bindings: Any, constants: Any) -> None:
        found.append(int(np.frombuffer(constants[0].tobytes(), np.uint32).sum()))

    source = "struct table { uint entries[2048]; };\nkernel void look(constant table &t [[buffer(0)]]) { }"
    metal.native.register("look", look)
    kernel = tg.Kernel("look", metal=source, bindings=0, constants=[table])
    function = metal.device.load(kernel)["look"]
    value = np.zeros((), table)
    value["entries"] = np.arange(2048)
    metal.queue.dispatch(function, 1, constants=[value[()]]).wait(LIMIT)
    assert found == [2048 * 2047 // 2]
    assert metal.inner.staging.ranges.free_bytes == metal.inner.staging.ranges.capacity


def test_local_memory_is_rounded_up_and_limited(metal: DriverBench) -> None:
    kernel = metal.host_kernel(lambda *_: None, "threadgroup float *scratch [[threadgroup(0)]]")
    metal.queue.dispatch(kernel, 1, local_memory=100).wait(LIMIT)
    with pytest.raises(tg.InvalidArgumentError, match="65536 bytes of local memory"):
        metal.queue.dispatch(kernel, 1, local_memory=64 << 10)


def test_indirect_counts_are_read_by_the_gpu_itself(metal: DriverBench) -> None:
    """The counts are written by the command before, so the host could not have known them."""
    write_ids = kernels.load(metal.device, kernels.write_ids)
    counts, out = metal.device.upload(np.zeros(3, np.uint32)), metal.device.upload(np.full(8, 99, np.uint32))
    with metal.device.record() as commands:
        commands.update(counts, np.array([2, 3, 1], np.uint32))
        commands.barrier()
        commands.dispatch_indirect(write_ids, counts=counts, bindings=[out])
    metal.queue.execute(commands).wait(LIMIT)
    assert words(out) == [0, 1, 2, 3, 4, 5, 99, 99]


def test_an_empty_range_may_begin_at_the_end_of_its_buffer(metal: DriverBench) -> None:
    buffer = metal.device.allocate(256)
    kernel = metal.host_kernel(lambda *_: None, "device uchar *x [[buffer(0)]]", bindings=1)
    metal.queue.dispatch(kernel, 1, bindings=[buffer.subspan(256, 0)]).wait(LIMIT)


def test_a_recording_that_cannot_be_encoded_leaves_no_encoder_open(metal: DriverBench) -> None:
    """The simulation records an encoder that is released open; here the second command has lost its buffer."""
    buffer = metal.device.allocate(64)
    with metal.device.record() as commands:
        commands.fill(metal.device.allocate(64), 1)
        commands.fill(buffer, 1)
    gate = tg.Semaphore()
    late = metal.queue.execute(commands, wait=gate.at(1))
    metal.queue.free(buffer).wait(LIMIT)
    gate.signal(1)
    with pytest.raises(tg.SemaphoreFailedError):
        late.wait(LIMIT)
    metal.queue.fill(metal.device.allocate(64), 1).wait(LIMIT)
    assert not metal.native.violations
