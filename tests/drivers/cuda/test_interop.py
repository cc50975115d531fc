"""Memory, streams and events shared with other libraries, over the simulated native layer."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate._core import dlpack
from tidegate.testing import register_cuda_simulated

LIMIT = 30


@pytest.fixture
def device():
    register_cuda_simulated()
    with tg.open_device("cuda-simulated") as opened:
        yield opened


@pytest.fixture
def foreign(device):
    """A stream of somebody else, and the native layer to use it."""
    native = device._driver.native
    with device._driver.entered():
        stream = native.create_stream()
        yield native, stream
        native.destroy_stream(stream)


class Foreign:
    """An array of another library: what a tensor of PyTorch is to us."""

    def __init__(self, device, view):
        self.view = view
        self.streams = []
        self._device = device

    def __dlpack_device__(self):
        return self.view.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **_options):
        self.streams.append(stream)
        return self.view.__dlpack__(stream=-1)


def test_a_capsule_names_the_device_the_address_and_the_shape(device):
    view = device.upload(np.arange(6, dtype=np.float32)).view(np.float32, (2, 3))
    assert view.__dlpack_device__() == (2, 0)
    capsule = view.__dlpack__(stream=-1)
    tensor = dlpack._tensor(capsule)
    storage, _ = view.buffer.locate()
    assert (tensor.data, tensor.device_type, tensor.device_id) == (storage.address, 2, 0)
    assert [tensor.shape[axis] for axis in range(tensor.ndim)] == [2, 3]
    assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)


def test_a_capsule_keeps_the_memory(device):
    buffer = device.upload(np.arange(4, dtype=np.uint32))
    capsule = buffer.view(np.uint32).__dlpack__(stream=-1)
    used = device.statistics().allocated_bytes
    del buffer
    assert device.statistics().allocated_bytes == used
    del capsule
    limit = time.monotonic() + LIMIT
    while device.statistics().allocated_bytes == used and time.monotonic() < limit:
        pass  # what its user may have on a stream is asked for first
    assert device.statistics().allocated_bytes < used


def test_a_consumers_stream_waits_for_the_last_write(device, foreign):
    native, stream = foreign
    gate = tg.Semaphore()
    queue = device.queue()
    buffer = device.allocate(1024)
    queue.fill(buffer, 1).wait(LIMIT)
    queue.fill(buffer, 7, wait=gate.at(1))
    gate.signal(1)
    view = buffer.view(np.uint8)
    capsule = view.__dlpack__(stream=stream)
    out = native.allocate_host(1024)
    with device._driver.entered():
        native.copy(out, dlpack._tensor(capsule).data, 1024, stream)
        native.synchronize_stream(stream)
    assert bytes((ctypes.c_uint8 * 1024).from_address(out)) == b"\x07" * 1024
    with device._driver.entered():
        native.free_host(out)


def test_memory_that_a_consumer_lets_go_of_outlives_what_it_has_submitted(device, foreign):
    native, stream = foreign
    buffer = device.upload(np.full(1024, 9, np.uint8))
    capsule = buffer.view(np.uint8).__dlpack__(stream=stream)
    address = dlpack._tensor(capsule).data
    word = device.allocate(8, memory="host")
    out = device.allocate(1024, memory="host")
    with word.map("rw") as words, device._driver.entered():
        words[:] = 0
        native.wait_value(stream, word.locate()[0].address, 1)
        native.copy(out.locate()[0].address, address, 1024, stream)
        del capsule, buffer
        others = [device.upload(np.zeros(1024, np.uint8)) for _ in range(8)]
        assert all(other.locate()[0].address != address for other in others)
        words.view(np.uint64)[0] = 1
        native.synchronize_stream(stream)
    with out.map() as data:
        assert (data == 9).all()


def test_an_array_of_another_library_comes_in_where_it_lies_and_in_order(device):
    theirs = device.upload(np.arange(8, dtype=np.int32)).view(np.int32, (2, 4))
    tensor = Foreign(device, theirs)
    view = tg.from_dlpack(tensor)
    assert view.buffer.device is device
    assert (view.dtype, view.shape) == (np.dtype(np.int32), (2, 4))
    assert view.buffer.locate()[0].address == theirs.buffer.locate()[0].address
    assert len(tensor.streams) == 1
    assert tensor.streams[0] > 2, "the producer is given a stream of ours to order by"
    device.queue().fill(view.buffer, 0, wait=view.ready).wait(LIMIT)
    assert not np.frombuffer(theirs.buffer.read(), np.int32).any()


def test_an_array_of_a_device_that_is_not_open_is_refused(device):
    class Elsewhere:
        def __dlpack_device__(self):
            return (2, 7)

        def __dlpack__(self, **_options):
            raise AssertionError("asked for")

    with pytest.raises(tg.UnsupportedError, match=r"\(2, 7\)"):
        tg.from_dlpack(Elsewhere())
    with pytest.raises(tg.UnsupportedError, match="is not the one"):
        tg.from_dlpack(Elsewhere(), device)


def test_the_cuda_array_interface_names_the_memory(device):
    view = device.upload(np.arange(6, dtype=np.float32)).view(np.float32, (3, 2))
    interface = view.__cuda_array_interface__
    assert interface["data"] == (view.buffer.locate()[0].address, False)
    assert (interface["shape"], interface["typestr"], interface["version"]) == ((3, 2), "<f4", 3)
    assert not hasattr(device.allocate(16, memory="host").view(np.uint8), "__cuda_array_interface__")
    with tg.open_device("cpu") as cpu:
        assert not hasattr(cpu.upload(np.zeros(4)).view(np.float64), "__cuda_array_interface__")


def test_an_event_follows_an_issued_timepoint(device, foreign):
    native, stream = foreign
    queue = device.queue()
    buffer = device.allocate(64)
    done = tg.Semaphore()
    queue.fill(buffer, 5, signal=done.at(1))
    event = lowlevel.cuda_event(device, done.at(1))
    with device._driver.entered():
        native.wait_event(stream, event.handle)
        native.synchronize_stream(stream)
    assert done.wait(1, LIMIT) is None
    reached = lowlevel.cuda_event(device, done.at(1))
    with device._driver.entered():
        assert native.event_over(int(reached))


def test_what_is_not_issued_has_no_event_and_no_stream_can_wait_for_it(device, foreign):
    _, stream = foreign
    point = tg.Semaphore().at(1)
    with pytest.raises(tg.FailedPreconditionError, match="not issued"):
        lowlevel.cuda_event(device, point)
    with pytest.raises(tg.FailedPreconditionError, match="not issued"):
        lowlevel.cuda_stream_wait(device, stream, point)


def test_a_foreign_stream_waits_for_an_issued_timepoint(device, foreign):
    native, stream = foreign
    done = tg.Semaphore()
    device.queue().fill(device.allocate(64), 5, signal=done.at(1))
    lowlevel.cuda_stream_wait(device, stream, done.at(1))
    with device._driver.entered():
        native.synchronize_stream(stream)
    assert device._driver.native.stream_idle(stream)
    done.wait(1, LIMIT)
    lowlevel.cuda_stream_wait(device, stream, done.at(1))


@pytest.mark.parametrize(
    "spelled",
    [
        pytest.param(lambda handle: handle, id="handle"),
        pytest.param(lambda handle: type("Theirs", (), {"cuda_stream": handle})(), id="object"),
    ],
)
def test_a_timepoint_follows_a_position_of_a_foreign_stream(device, foreign, spelled):
    native, stream = foreign
    word = device.allocate(8, memory="host")
    with word.map("rw") as words, device._driver.entered():
        words[:] = 0
        native.wait_value(stream, word.locate()[0].address, 1)
        point = lowlevel.from_cuda_stream(device, spelled(stream))
        queue = device.queue()
        buffer = device.allocate(64)
        filled = queue.fill(buffer, 3, wait=point)
        assert not filled.done
        words.view(np.uint64)[0] = 1
    filled.wait(LIMIT)
    assert set(buffer.read()) == {3}


def test_a_timepoint_follows_a_foreign_event(device, foreign):
    native, stream = foreign
    with device._driver.entered():
        event = native.create_event()
        native.record_event(event, stream)
    point = lowlevel.from_cuda_event(device, event)
    point.wait(LIMIT)
    with device._driver.entered():
        native.destroy_event(event)


def test_many_foreign_events_are_followed_although_streams_are_few(device, foreign):
    native, stream = foreign
    word = device.allocate(8, memory="host")
    with word.map("rw") as words, device._driver.entered():
        words[:] = 0
        native.wait_value(stream, word.locate()[0].address, 1)
        points = [lowlevel.from_cuda_stream(device, stream) for _ in range(40)]
        independent = device.queue().fill(device.allocate(64), 1)
        independent.wait(LIMIT)
        words.view(np.uint64)[0] = 1
    tg.wait_all(points, LIMIT)


def test_a_lane_on_a_foreign_stream_keeps_its_order(device, foreign):
    native, stream = foreign
    buffer = device.allocate(256)
    lane = device.lane(stream=stream)
    address = buffer.locate()[0].address
    lane.fill(buffer, 1)
    with device._driver.entered():
        native.fill(address, 2, 1, 128, stream)
    lane.fill(buffer, 3, length=64)
    lane.wait(LIMIT)
    data = buffer.read()
    assert data[:64] + data[64:128] + data[128:] == b"\x03" * 64 + b"\x02" * 64 + b"\x01" * 128


def test_a_lane_is_on_a_queue_or_a_stream(device):
    with pytest.raises(tg.InvalidArgumentError, match="not both"):
        device.lane(device.queue(), stream=1)
    with tg.open_device("cpu") as cpu, pytest.raises(tg.UnsupportedError, match="streams"):
        cpu.lane(stream=1)
    with tg.open_device("cpu") as cpu, pytest.raises(tg.UnsupportedError, match="CUDA"):
        lowlevel.from_cuda_stream(cpu, 1)


def test_parameters_may_mix_bindings_and_constants(device):
    source = """
extern "C" __global__ void mixed(unsigned a, unsigned *x, float b, unsigned *y) {
    x[0] = a; y[0] = (unsigned)b;
}"""
    loaded = device.load(source)["mixed"]
    function = lowlevel.with_parameters(loaded, "cbcb")
    x, y = device.upload(np.zeros(1, np.uint32)), device.upload(np.zeros(1, np.uint32))
    device.queue().dispatch(function, 1, bindings=[x, y], constants=[np.uint32(7), np.float32(9)]).wait(LIMIT)
    assert (np.frombuffer(x.read(), np.uint32)[0], np.frombuffer(y.read(), np.uint32)[0]) == (7, 9)
    for order in ("cb", "cbcx", "bbcb"):
        with pytest.raises(tg.InvalidArgumentError, match="mixed"):
            lowlevel.with_parameters(loaded, order)
