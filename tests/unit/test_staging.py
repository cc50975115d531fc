"""Staging buffers: ranges in a circle, the gaps between them, and when they come back (M28)."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate.lowlevel import StagingBuffer, StagingRange


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


def test_ranges_are_handed_out_in_a_circle(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    ranges = [staging.reserve(16) for _ in range(4)]
    assert [one.offset for one in ranges] == [0, 16, 32, 48]
    assert repr(ranges[1]) == "<tidegate.lowlevel.StagingRange 16..32>"
    for index in (0, 2):
        ranges[index].release()
        ranges[index].release()
    assert staging.free_bytes == 32
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
    # Free are 0..32 and 48..64; the last range ended at 80, so the search begins anew.
    found: list[StagingRange] = [staging.reserve(8) for _ in range(3)]
    assert [one.offset for one in found] == [0, 16, 48]
    found[0].release()
    # Behind 56 there are 8 bytes; what does not fit there is looked for from the start.
    assert staging.reserve(16, 1).offset == 0
    assert staging.reserve(8, 1).offset == 24
    assert staging.reserve(8, 1).offset == 56


def test_gaps_merge_with_both_neighbours_and_only_where_they_touch(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    ranges = [staging.reserve(8, 8) for _ in range(8)]
    for index, largest in ((3, 8), (5, 8), (4, 24), (0, 24), (6, 32), (2, 40), (7, 48), (1, 64)):
        ranges[index].release()
        with pytest.raises((tg.ResourceExhaustedError, tg.OutOfRangeError)):
            staging.reserve(largest + 8, 1)
        staging.reserve(largest, 1).release()


def test_alignment_cuts_a_gap_in_two(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    staging.reserve(4, 1)
    assert staging.reserve(8, 16).offset == 16
    assert staging.reserve(40, 1).offset == 24
    assert staging.reserve(12, 1).offset == 4
    assert staging.free_bytes == 0
    for alignment in (0, -2, 3, 12):
        with pytest.raises(tg.InvalidArgumentError, match="must be a power of two"):
            staging.reserve(1, alignment)
    with pytest.raises(tg.InvalidArgumentError, match="must be 0 or more"):
        staging.reserve(-1)
    with pytest.raises(tg.OutOfRangeError, match=r"^staging buffer: 65 bytes are more than its capacity of 64$"):
        staging.reserve(65)


def test_ranges_of_no_size_cut_nothing_into_pieces(device: tg.Device) -> None:
    staging = StagingBuffer(device, 1024)
    first = staging.reserve(100)
    for alignment in (1, 64, 256):
        staging.reserve(0, alignment).release()
    staging.reserve(1024 - 112).release()
    first.release()
    staging.reserve(1024).release()


def test_a_closed_staging_buffer_says_so(device: tg.Device) -> None:
    staging = StagingBuffer(device, 64)
    staging.close()
    with pytest.raises(tg.ClosedError, match=r"^the staging buffer is closed$"):
        staging.reserve(1)
