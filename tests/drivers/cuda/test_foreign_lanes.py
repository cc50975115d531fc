"""Work among that of other libraries: on their streams, behind their events, in memory that comes from them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate.drivers.cuda.interop import ImportQueue

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until

LARGE = 1 << 20


@pytest.fixture
def found() -> Iterator[SimulatedBench]:
    with bench(strict=True) as made:
        yield made
        assert made.native.violations == []


@pytest.fixture
def stream(found: SimulatedBench) -> Iterator[int]:
    with found.foreign_stream() as made:
        yield made


def _their_copy(found: SimulatedBench, stream: int, source: tg.Buffer) -> tg.Buffer:
    """Copy on a foreign stream what a buffer holds there and then."""
    out = found.shared(source.nbytes)
    with found.driver.entered():
        found.native.copy(out.locate()[0].address, source.locate()[0].address, source.nbytes, stream)
    return out


@pytest.mark.parametrize("nbytes", [100, LARGE])
def test_an_upload_on_a_foreign_stream_comes_before_what_its_owner_puts_there_next(
    found: SimulatedBench, stream: int, nbytes: int
) -> None:
    target = found.device.allocate(nbytes)
    lane = found.device.lane(stream=stream)
    with found.parked(stream):
        work = lane.upload(np.full(nbytes, 7, np.uint8), target)
        seen = _their_copy(found, stream, target)
        assert not work.done
    work.wait(LIMIT)
    with seen.map() as data:
        assert (data == 7).all()


@pytest.mark.parametrize("nbytes", [100, LARGE])
def test_a_download_on_a_foreign_stream_comes_after_what_its_owner_has_put_there(
    found: SimulatedBench, stream: int, nbytes: int
) -> None:
    source = found.device.upload(np.zeros(nbytes, np.uint8))
    into = np.zeros(nbytes, np.uint8)
    lane = found.device.lane(stream=stream)
    with found.parked(stream):
        with found.driver.entered():
            found.native.fill(source.locate()[0].address, 9, 1, nbytes, stream)
        work = lane.download(source, into)
    work.wait(LIMIT)
    assert (into == 9).all()


def test_an_update_on_a_foreign_stream_stays_there(found: SimulatedBench, stream: int) -> None:
    target = found.device.allocate(LARGE)
    lane = found.device.lane(stream=stream)
    with found.parked(stream):
        lane.update(target, bytes([5]) * LARGE)
        seen = _their_copy(found, stream, target)
    lane.wait(LIMIT)
    with seen.map() as data:
        assert (data == 5).all()


def test_an_indirect_dispatch_on_a_foreign_stream_is_refused(found: SimulatedBench, stream: int) -> None:
    touch, counts = found.device.load(TOUCH)["touch"], found.shared(12)
    with found.device.record() as commands:
        commands.dispatch_indirect(touch, counts=counts, bindings=[found.shared()])
    work = found.device.lane(stream=stream).execute(commands)
    with pytest.raises(tg.SemaphoreFailedError) as raised:
        work.wait(LIMIT)
    assert isinstance(raised.value.__cause__, tg.UnsupportedError)


class Tensor:
    """An array of another library whose stream is busy."""

    def __init__(self, found: SimulatedBench, stream: int, view: tg.BufferView) -> None:
        self._found = found
        self._stream = stream
        self._view = view

    def __dlpack_device__(self) -> Any:
        return self._view.__dlpack_device__()

    def __dlpack__(self, *, stream: int, **_options: Any) -> Any:
        with self._found.driver.entered():
            event = self._found.native.create_event(False)
            self._found.native.record_event(event, self._stream)
            self._found.native.wait_event(stream, event)
            self._found.native.destroy_event(event)
        return self._view.__dlpack__(stream=-1)


def test_as_many_tensors_as_one_likes_come_in_while_their_producer_is_busy(found: SimulatedBench, stream: int) -> None:
    with found.parked(stream):
        made = [found.device.upload(np.zeros(64, np.uint8)) for _ in range(30)]
        with found.driver.entered():
            for buffer in made:
                found.native.fill(buffer.locate()[0].address, 4, 1, 64, stream)
        views = [tg.from_dlpack(Tensor(found, stream, buffer.view(np.uint8)), found.device) for buffer in made]
        ready = [view.ready for view in views]
        assert not any(work.done for work in ready)
        found.queue.fill(found.shared(), 1).wait(LIMIT)  # and there are streams left
    tg.wait_all(ready, LIMIT)
    assert all(set(view.buffer.read()) == {4} for view in views)


def test_imports_beyond_those_that_get_a_stream_share_one(found: SimulatedBench, stream: int) -> None:
    with found.parked(stream):
        points = [lowlevel.from_cuda_stream(found.device, stream) for _ in range(20)]
        buffer = found.device.upload(np.zeros(64, np.uint8))
        tensor = Tensor(found, stream, buffer.view(np.uint8))
        views = [tg.from_dlpack(tensor, found.device) for _ in range(3)]
        ports: list[Any] = [view.ready._queue._port for view in views]
        assert all(isinstance(port, ImportQueue) for port in ports)
        assert len({port.stream for port in ports}) == 1
    tg.wait_all([*points, *(view.ready for view in views)], LIMIT)


def test_a_tensor_that_is_refused_leaves_no_wait_for_others(found: SimulatedBench, stream: int) -> None:
    class Refused(Tensor):
        def __dlpack__(self, *, stream: int, **options: Any) -> Any:
            super().__dlpack__(stream=stream, **options)
            raise BufferError("no")

    view = found.device.upload(np.zeros(64, np.uint8)).view(np.uint8)
    target = found.shared()
    with found.parked(stream):
        with pytest.raises(BufferError):
            tg.from_dlpack(Refused(found, stream, view), found.device)
        for _ in range(4):
            found.queue.fill(target, 1).wait(LIMIT)
    until(lambda: not any(each.state.lent for each in found.driver.all_streams()))


def test_a_bad_event_of_somebody_else_does_not_take_the_device_along(found: SimulatedBench, stream: int) -> None:
    with found.parked(stream):
        points = [lowlevel.from_cuda_stream(found.device, stream) for _ in range(20)]
        bad = lowlevel.from_cuda_event(found.device, 12345)
        with pytest.raises(tg.SemaphoreFailedError, match="foreign event failed"):
            bad.wait(LIMIT)
    tg.wait_all(points, LIMIT)
    assert found.device.health is tg.Health.OK


def test_a_stream_is_followed_on_a_thread_without_a_context_although_the_pool_of_events_is_empty(
    found: SimulatedBench, stream: int
) -> None:
    pool = found.driver.event_pool
    with found.driver.lock:
        taken = [pool.take() for _ in range(len(pool))]
    lowlevel.from_cuda_stream(found.device, stream).wait(LIMIT)
    with pytest.raises(tg.TidegateError):
        lowlevel.from_cuda_stream(found.device, 12345)
    for event in taken:
        pool.give(event)


def test_small_data_does_not_wait_for_the_ring_that_others_fill(found: SimulatedBench) -> None:
    """Downloads that wait on the device have all of the staging ring, and what they wait for may need the host."""
    latch, blocked = found.latch()
    source, into = found.device.upload(np.full(65536, 3, np.uint8)), np.zeros((80, 65536), np.uint8)
    waiting = [found.queue.download(source, row, wait=blocked) for row in into]
    target = found.device.allocate(256)
    found.queue.upload(np.full(256, 5, np.uint8), target).wait(LIMIT)
    found.queue.update(target, b"\x06" * 16).wait(LIMIT)
    assert target.read(timeout=LIMIT) == b"\x06" * 16 + b"\x05" * 240
    assert not any(work.done for work in waiting)
    latch.open()
    tg.wait_all(waiting, LIMIT)
    assert (into == 3).all()


def test_memory_of_the_simulation_is_what_these_tests_look_at(found: SimulatedBench, stream: int) -> None:
    """The parked stream really holds its work up: otherwise nothing here could fail."""
    target = found.shared(8)
    with found.parked(stream):
        with found.driver.entered():
            found.native.fill(target.locate()[0].address, 1, 1, 8, stream)
        found.queue.fill(found.shared(), 1).wait(LIMIT)
        assert bytes((ctypes.c_uint8 * 8).from_address(target.locate()[0].address)) == bytes(8)
