"""Arrays, streams and events shared with PyTorch, CuPy and plain CUDA: without a copy, and in order without a wait.

In most tests their stream is made to wait for a kernel of ours that ends when the host says so. Then nothing depends on
how long anything takes: what comes too early is seen to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate.conformance.latches import Latch

from .libraries import LENGTH, LIBRARIES, as_pointer, wait_for_event
from .programs import LIMIT, REAL, SIMULATED, function, until

pytestmark = pytest.mark.rules("M39")

add_one = tg.Kernel(
    "add_one",
    cuda="""
extern "C" __global__ void add_one(int *x, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}""",
    bindings=1,
    constants=[np.uint32],
    workgroup=(256, 1, 1),
)


@pytest.fixture(params=[(REAL, "torch"), (REAL, "cupy"), (REAL, "raw"), (SIMULATED, "raw")], ids="-".join)
def driver(request: pytest.FixtureRequest) -> str:
    name, library = request.param
    if name == REAL:
        request.getfixturevalue("card")
    else:
        from tidegate.testing import register_cuda_simulated

        register_cuda_simulated()
    request.node.library = LIBRARIES[library]
    return str(name)


@pytest.fixture
def library(request: pytest.FixtureRequest, device: tg.Device) -> Iterator[Any]:
    """The library, which has used everything once: its first use of a kernel waits for whatever runs."""
    device.load(add_one)
    made = request.node.library(device)
    array = made.array(1)
    made.fill(array, 2)
    made.add(array, 1)
    view = made.into_tidegate(array, device)
    device.queue().fill(view.buffer, 0, wait=view.ready).wait(LIMIT)
    back = made.from_dlpack(view)
    made.from_interface(view)
    made.event()
    made.run_long(1000)
    assert made.numpy(back).tolist() == [0] * LENGTH
    yield made
    made.close()


@pytest.fixture
def hold(device: tg.Device, latch: Latch) -> Callable[[], tg.Timepoint]:
    """Starts a kernel that runs until the latch is open; gives the moment at which it is over."""

    def begin() -> tg.Timepoint:
        done = tg.Semaphore()
        latch.block(device.queue(), signal=done.at(1))
        latch.wait_until_running(LIMIT)
        return done.at(1)

    return begin


def values(buffer: tg.Buffer, wait: Any = None) -> set[int]:
    found = buffer.device.queue().download(buffer, dtype=np.int32, wait=wait).result(LIMIT)
    return set(found.tolist())


def dispatch_add_one(device: tg.Device, lane: Any, buffer: tg.Buffer, **options: Any) -> tg.Submission:
    made: tg.Submission = lane.dispatch(
        function(device, add_one), LENGTH // 256, bindings=[buffer], constants=[LENGTH], **options
    )
    return made


def test_an_array_comes_in_where_it_lies(device: tg.Device, library: Any) -> None:
    array = library.array(5)
    view = library.into_tidegate(array, device)
    assert (view.dtype, view.shape) == (np.dtype(np.int32), (LENGTH,))
    assert view.buffer.device is device
    assert as_pointer(view.buffer) == library.pointer(array)
    assert values(view.buffer, view.ready) == {5}
    dispatch_add_one(device, device.queue(), view.buffer, wait=view.ready).wait(LIMIT)
    assert set(library.numpy(array).tolist()) == {6}


def test_a_buffer_goes_out_where_it_lies(device: tg.Device, library: Any) -> None:
    buffer = device.upload(np.arange(LENGTH, dtype=np.int32))
    array = library.from_dlpack(buffer.view(np.int32))
    assert library.pointer(array) == as_pointer(buffer)
    assert library.numpy(array).tolist() == list(range(LENGTH))
    library.fill(array, 9)
    library.numpy(array)
    assert values(buffer) == {9}


def test_a_part_of_a_buffer_goes_out_where_it_lies(device: tg.Device, library: Any) -> None:
    buffer = device.upload(np.arange(4 * LENGTH, dtype=np.int32))
    array = library.from_dlpack(buffer.subspan(8 * LENGTH, 4 * LENGTH).view(np.int32))
    assert library.pointer(array) == as_pointer(buffer) + 8 * LENGTH
    assert library.numpy(array).tolist() == list(range(2 * LENGTH, 3 * LENGTH))


def test_the_array_interface_names_the_memory(device: tg.Device, library: Any, hold: Any, latch: Latch) -> None:
    buffer = device.upload(np.zeros(LENGTH, np.int32))
    device.queue().fill(buffer, b"\x07\0\0\0").wait(LIMIT)
    array = library.from_interface(buffer.view(np.int32))
    assert library.pointer(array) == as_pointer(buffer)
    assert set(library.numpy(array).tolist()) == {7}


def test_what_comes_in_is_ready_when_its_producer_is(device: tg.Device, library: Any, hold: Any, latch: Latch) -> None:
    array, out = library.array(1), device.allocate(4 * LENGTH)
    lowlevel.cuda_stream_wait(device, library.stream, hold())
    library.fill(array, 3)
    view = library.into_tidegate(array, device)
    copied = device.queue().copy(view.buffer, out, wait=view.ready)
    assert not view.ready.done
    assert not copied.done
    latch.open()
    assert values(out, copied) == {3}


def test_a_consumer_comes_behind_the_last_write(device: tg.Device, library: Any, hold: Any, latch: Latch) -> None:
    buffer = device.upload(np.zeros(LENGTH, np.int32))
    device.queue().fill(buffer, b"\x0b\0\0\0", wait=hold())
    array = library.from_dlpack(buffer.view(np.int32))
    assert not library.idle()
    latch.open()
    assert set(library.numpy(array).tolist()) == {11}


def test_a_long_kernel_of_theirs_is_waited_for_by_the_device(device: tg.Device, library: Any) -> None:
    array = library.array(1)
    library.run_long()
    library.fill(array, 4)
    view = library.into_tidegate(array, device)
    early = view.ready.done
    dispatch_add_one(device, device.queue(), view.buffer, wait=view.ready).wait(LIMIT)
    assert set(library.numpy(array).tolist()) == {5}
    assert not early, "the host waited, or their kernel was short"


def test_back_and_forth_many_times(device: tg.Device, library: Any) -> None:
    array = library.array(0)
    view = library.into_tidegate(array, device)
    ready: Any = view.ready
    for _ in range(50):
        done = tg.Semaphore()
        dispatch_add_one(device, device.queue(), view.buffer, wait=ready, signal=done.at(1))
        lowlevel.cuda_stream_wait(device, library.stream, done.at(1))
        library.add(array, 1)
        ready = lowlevel.from_cuda_stream(device, library.stream)
    ready.wait(LIMIT)
    assert set(library.numpy(array).tolist()) == {100}


def test_memory_of_theirs_is_kept_while_a_buffer_is_made_of_it(device: tg.Device, library: Any) -> None:
    array = library.array(8)
    view = library.into_tidegate(array, device)
    where = library.pointer(array)
    del array
    others = [library.array(0) for _ in range(8)]
    assert where not in [library.pointer(other) for other in others]
    assert values(view.buffer, view.ready) == {8}


def test_memory_of_ours_is_kept_while_they_have_it(device: tg.Device, library: Any) -> None:
    buffer = device.upload(np.full(LENGTH, 8, np.int32))
    where = as_pointer(buffer)
    array = library.from_dlpack(buffer.view(np.int32))
    del buffer
    others = [device.upload(np.zeros(LENGTH, np.int32)) for _ in range(8)]
    assert where not in [as_pointer(other) for other in others]
    assert set(library.numpy(array).tolist()) == {8}


def test_a_lane_on_their_stream_comes_between_their_own_work(
    device: tg.Device, library: Any, hold: Any, latch: Latch
) -> None:
    array = library.array(0)
    view = library.into_tidegate(array, device)
    view.ready.wait(LIMIT)
    lane = device.lane(stream=library.stream)
    lowlevel.cuda_stream_wait(device, library.stream, hold())
    library.fill(array, 10)
    dispatch_add_one(device, lane, view.buffer)
    dispatch_add_one(device, lane, view.buffer)
    latch.open()
    library.add(array, 5)
    last = dispatch_add_one(device, lane, view.buffer)
    last.wait(LIMIT)
    assert set(library.numpy(array).tolist()) == {18}


def test_their_stream_waits_for_a_timepoint(device: tg.Device, library: Any, hold: Any, latch: Latch) -> None:
    point = hold()
    lowlevel.cuda_stream_wait(device, library.stream, point)
    assert not library.idle()
    latch.open()
    until(library.idle)
    assert point.reached
    lowlevel.cuda_stream_wait(device, library.stream, point)
    until(library.idle)


def test_an_event_of_ours_follows_a_timepoint(device: tg.Device, library: Any, hold: Any, latch: Latch) -> None:
    point = hold()
    event = lowlevel.cuda_event(device, point)
    wait_for_event(device, library.handle, event)
    assert not library.idle()
    latch.open()
    until(library.idle)
    assert point.reached


def test_a_timepoint_follows_their_event(device: tg.Device, library: Any, hold: Any, latch: Latch) -> None:
    array, out = library.array(0), device.allocate(4 * LENGTH)
    view = library.into_tidegate(array, device)
    view.ready.wait(LIMIT)
    lowlevel.cuda_stream_wait(device, library.stream, hold())
    library.fill(array, 6)
    point = lowlevel.from_cuda_event(device, library.event())
    copied = device.queue().copy(view.buffer, out, wait=point)
    assert not point.reached
    assert not copied.done
    latch.open()
    point.wait(LIMIT)
    assert values(out, copied) == {6}


def test_a_timepoint_follows_their_stream(device: tg.Device, library: Any, hold: Any, latch: Latch) -> None:
    array, out = library.array(0), device.allocate(4 * LENGTH)
    view = library.into_tidegate(array, device)
    view.ready.wait(LIMIT)
    lowlevel.cuda_stream_wait(device, library.stream, hold())
    library.fill(array, 6)
    point = lowlevel.from_cuda_stream(device, library.stream)
    copied = device.queue().copy(view.buffer, out, wait=point)
    assert not point.reached
    latch.open()
    assert values(out, copied) == {6}


def test_what_is_not_issued_can_be_followed_by_nothing(device: tg.Device, library: Any) -> None:
    point = tg.Semaphore().at(1)
    with pytest.raises(tg.FailedPreconditionError, match="not issued"):
        lowlevel.cuda_event(device, point)
    with pytest.raises(tg.FailedPreconditionError, match="not issued"):
        lowlevel.cuda_stream_wait(device, library.stream, point)


def test_an_array_with_gaps_is_refused(device: tg.Device, library: Any) -> None:
    if not hasattr(library.array(0), "__getitem__"):
        pytest.skip("plain memory has no slices")
    with pytest.raises(tg.UnsupportedError, match="contiguous"):
        library.into_tidegate(library.array(0)[::2], device)
    device.queue().fill(device.allocate(64), 1).wait(LIMIT)
