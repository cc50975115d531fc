"""Staging buffers: ranges in a circle, the gaps between them, and when they come back."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate.lowlevel import StagingBuffer

from .hand_driver import LIMIT, catch_up


def test_a_staging_buffer_has_its_device_and_a_size_above_nothing(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    assert (staging.device, staging.capacity, staging.free_bytes) == (device, 64, 64)
    assert repr(staging) == "<tidegate.lowlevel.StagingBuffer 64 of 64 bytes free>"
    assert StagingBuffer(device).capacity == 128 * 1024
    assert StagingBuffer(device, 1).free_bytes == 1
    for capacity in (0, -1):
        with pytest.raises(
            tg.InvalidArgumentError, match=f"^staging buffer: the capacity is {capacity}, and must be above 0$"
        ):
            StagingBuffer(device, capacity)


def test_staging_ranges_are_handed_out_in_a_circle(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    ranges = [staging.reserve(16) for _ in range(4)]
    assert [one.offset for one in ranges] == [0, 16, 32, 48]
    assert repr(ranges[1]) == "<tidegate.lowlevel.StagingRange 16..32>"
    assert staging._gaps == []
    for index in (0, 2):
        ranges[index].release()
        ranges[index].release()
    assert staging._gaps == [(0, 16), (32, 48)]
    assert staging._next == 64
    assert staging.reserve(8).offset == 0
    assert staging.reserve(16).offset == 32
    assert staging.reserve(8, 8).offset == 8
    with pytest.raises(
        tg.ResourceExhaustedError, match=r"^staging buffer: no 1 bytes are free now; its capacity is 64$"
    ):
        staging.reserve(1)
    assert staging.reserve(0).nbytes == 0


def test_the_search_goes_on_behind_the_last_range_and_then_from_the_start(device: tg.Device) -> None:
    staging = StagingBuffer(device, 80)
    ranges = [staging.reserve(16) for _ in range(5)]
    for index in (0, 1, 3):
        ranges[index].release()
    assert staging._gaps == [(0, 32), (48, 64)]
    staging._next = 40
    assert staging.reserve(8).offset == 48
    assert (staging._next, staging._gaps) == (56, [(0, 32), (56, 64)])
    assert staging.reserve(16).offset == 0  # the piece behind is too small
    assert (staging._next, staging._gaps) == (16, [(16, 32), (56, 64)])
    assert staging.reserve(8, 1).offset == 16
    assert staging.reserve(8, 1).offset == 24
    assert staging.reserve(8, 1).offset == 56
    staging._gaps, staging._next = [(0, 8), (16, 24), (32, 40)], 20
    assert staging.reserve(8, 8).offset == 16
    assert staging.reserve(8, 8).offset == 32
    assert staging.reserve(8, 8).offset == 0


def test_gaps_merge_with_both_neighbours_and_only_where_they_touch(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    ranges = [staging.reserve(8, 8) for _ in range(8)]
    for index, gaps in (
        (3, [(24, 32)]),
        (5, [(24, 32), (40, 48)]),
        (4, [(24, 48)]),
        (0, [(0, 8), (24, 48)]),
        (6, [(0, 8), (24, 56)]),
        (2, [(0, 8), (16, 56)]),
        (7, [(0, 8), (16, 64)]),
        (1, [(0, 64)]),
    ):
        ranges[index].release()
        assert staging._gaps == gaps


def test_alignment_cuts_a_gap_in_two(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    staging.reserve(4, 1)
    assert staging.reserve(8, 16).offset == 16
    assert staging._gaps == [(4, 16), (24, 64)]
    for alignment in (0, -2, 3, 12):
        with pytest.raises(tg.InvalidArgumentError, match="must be a power of two"):
            staging.reserve(1, alignment)
    with pytest.raises(tg.InvalidArgumentError, match="must be 0 or more"):
        staging.reserve(-1)
    with pytest.raises(tg.OutOfRangeError, match=r"^staging buffer: 65 bytes are more than its capacity of 64$"):
        staging.reserve(65)


def test_inside_a_reservation_a_finalizer_may_give_back_later_but_not_reserve(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    one = staging.reserve(16)
    with staging._lock:
        with pytest.raises(
            tg.ResourceExhaustedError, match="a finalizer or signal handler cannot reserve in a reservation"
        ):
            staging.reserve(1)
        one.release()
        assert staging.free_bytes == 48
    catch_up()
    assert staging.free_bytes == 64


def test_a_staging_range_comes_back_when_its_submission_is_over(device: tg.Device) -> None:
    staging, gate = StagingBuffer(device, 64), tg.Semaphore()
    one = staging.reserve(4)
    one.array[:] = 7
    assert (one.buffer.nbytes, one.buffer.offset) == (4, 0)
    target = device.allocate(4)
    copy = device.queue().copy(one.buffer, target, wait=gate.at(1))
    one.release_after(copy)
    assert staging.free_bytes == 60
    gate.signal(1)
    copy.wait(LIMIT)
    assert staging.free_bytes == 64
    assert target.read() == b"\x07" * 4
    staging.close()
    with pytest.raises(tg.ClosedError, match=r"^the staging buffer is closed$"):
        staging.reserve(1)


def test_the_search_for_staging_begins_behind_the_last_range_and_goes_forward(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    staging._gaps, staging._next = [(0, 16), (32, 48)], 16
    assert staging._take(8, 8) == 32
    staging._gaps, staging._next = [(0, 8), (16, 20), (32, 40)], 18
    assert staging._take(8, 8) == 32
    staging._gaps, staging._next = [(0, 8)], 8
    staging.reserve(0).release()
    assert staging._gaps == [(0, 8)]
    assert staging._take(0, 16) == 0
    staging._gaps = [(0, 8), (16, 24)]
    staging._give_back(12, 0)
    assert staging._gaps == [(0, 8), (16, 24)]
    staging._gaps = []
    assert staging._take(0, 16) == 0
    assert staging._take(1, 1) is None


def test_ranges_of_no_size_cut_nothing_into_pieces() -> None:
    with tg.open_device("cpu") as device:
        staging = tg.lowlevel.StagingBuffer(device, 1024)
        first = staging.reserve(100)
        for alignment in (1, 64, 256):
            staging.reserve(0, alignment).release()
        staging.reserve(1024 - 112).release()
        first.release()
        staging.reserve(1024).release()
