"""The staging buffer: small host data on its way to a device, reserved from many threads at once."""

import threading
from itertools import chain, pairwise

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel

from .latches import LIMIT
from .threads import all_at_once

pytestmark = [pytest.mark.rules("M28"), pytest.mark.needs("work")]


@pytest.fixture
def staging(device: tg.Device) -> lowlevel.StagingBuffer:
    return lowlevel.StagingBuffer(device, capacity=4096)


def assert_apart(ranges: list[lowlevel.StagingRange]) -> None:
    """No two ranges share a byte."""
    spans = sorted((taken.offset, taken.offset + taken.nbytes) for taken in ranges if taken.nbytes)
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start, spans


def reserved_soon(queue: tg.Queue, staging: lowlevel.StagingBuffer, nbytes: int) -> lowlevel.StagingRange:
    """Reserve what comes back with the end of a submission: whoever ends it tells that first."""
    for _ in range(int(LIMIT * 30)):
        try:
            return staging.reserve(nbytes)
        except tg.ResourceExhaustedError:
            queue.host_call(lambda: None).wait(LIMIT)
    return staging.reserve(nbytes)


def fill_up(staging: lowlevel.StagingBuffer, nbytes: int) -> list[lowlevel.StagingRange]:
    taken: list[lowlevel.StagingRange] = []
    while True:
        try:
            taken.append(staging.reserve(nbytes))
        except tg.ResourceExhaustedError:
            return taken


def test_the_capacity_is_what_was_asked_for_and_all_of_it_is_free(device: tg.Device) -> None:
    assert lowlevel.StagingBuffer(device).capacity == 128 * 1024
    small = lowlevel.StagingBuffer(device, capacity=1000)
    assert small.capacity == 1000
    assert small.free_bytes == 1000


def test_a_range_is_host_memory_of_the_size_asked_for(staging: lowlevel.StagingBuffer) -> None:
    taken = staging.reserve(100)
    assert taken.nbytes == 100
    assert taken.array.dtype == np.uint8
    assert taken.array.shape == (100,)
    assert taken.array.flags.writeable
    assert taken.buffer.nbytes == 100
    assert 0 <= taken.offset <= staging.capacity - 100
    taken.array[:] = 5
    assert set(taken.array.tolist()) == {5}


@pytest.mark.needs("work")
def test_what_the_host_writes_into_a_range_reaches_the_device(
    device: tg.Device, queue: tg.Queue, staging: lowlevel.StagingBuffer
) -> None:
    target = device.upload(np.zeros(64, np.uint8))
    taken = [staging.reserve(16) for _ in range(4)]
    for i, part in enumerate(taken):
        part.array[:] = i + 1
        copied = queue.copy(part.buffer, target, target_offset=16 * i)
        part.release_after(copied)
        copied.wait(LIMIT)
    assert np.array_equal(target.to_numpy(np.uint8, timeout=LIMIT), np.repeat(np.arange(1, 5), 16))


def test_reservations_are_aligned(staging: lowlevel.StagingBuffer) -> None:
    taken = []
    for alignment in (1, 2, 4, 8, 16, 32, 64, 256):
        taken.append(staging.reserve(1, alignment=1))
        part = staging.reserve(3, alignment=alignment)
        assert part.offset % alignment == 0
        taken.append(part)
    default = staging.reserve(5)
    assert default.offset % 16 == 0
    assert_apart([*taken, default])


@pytest.mark.parametrize("alignment", [0, -16, 3, 24])
def test_an_alignment_that_is_no_power_of_two_is_refused(staging: lowlevel.StagingBuffer, alignment: int) -> None:
    with pytest.raises(tg.InvalidArgumentError):
        staging.reserve(16, alignment=alignment)
    assert staging.free_bytes == staging.capacity


def test_more_than_the_capacity_is_out_of_range(staging: lowlevel.StagingBuffer) -> None:
    with pytest.raises(tg.OutOfRangeError):
        staging.reserve(4097)
    taken = staging.reserve(4096)
    with pytest.raises(tg.OutOfRangeError):
        staging.reserve(4097)
    taken.release()


def test_a_negative_size_is_refused(staging: lowlevel.StagingBuffer) -> None:
    with pytest.raises((tg.InvalidArgumentError, tg.OutOfRangeError)):
        staging.reserve(-1)
    assert staging.free_bytes == staging.capacity


def test_no_room_now_is_resource_exhausted_and_passes(staging: lowlevel.StagingBuffer) -> None:
    taken = fill_up(staging, 1024)
    assert len(taken) == 4
    assert_apart(taken)
    with pytest.raises(tg.ResourceExhaustedError):
        staging.reserve(1)
    for part in taken:
        part.release()
    assert staging.free_bytes == staging.capacity
    staging.reserve(4096).release()


def test_a_range_of_no_bytes_is_legal_even_when_there_is_no_room(staging: lowlevel.StagingBuffer) -> None:
    whole = staging.reserve(4096)
    empty = staging.reserve(0)
    assert empty.nbytes == 0
    assert empty.array.size == 0
    empty.release()
    whole.release()


def test_releasing_twice_gives_the_space_back_once(staging: lowlevel.StagingBuffer) -> None:
    first = staging.reserve(1024)
    first.release()
    second = staging.reserve(1024)
    first.release()
    rest = fill_up(staging, 1024)
    assert_apart([second, *rest])


@pytest.mark.parametrize("order", ["first", "last", "middle"])
def test_space_comes_back_while_others_are_still_in_flight(
    queue: tg.Queue, staging: lowlevel.StagingBuffer, order: str
) -> None:
    """Four ranges behind four gates: each gate that opens gives back a quarter, in whatever order."""
    gates = [tg.Semaphore() for _ in range(4)]
    taken = fill_up(staging, 1024)
    held = [queue.barrier(wait=gate.at(1)) for gate in gates]
    for part, submission in zip(taken, held, strict=True):
        part.release_after(submission)
    with pytest.raises(tg.ResourceExhaustedError):
        staging.reserve(16)
    for index in {"first": (0, 1, 2, 3), "last": (3, 2, 1, 0), "middle": (2, 0, 3, 1)}[order]:
        gates[index].signal(1)
        held[index].wait(LIMIT)
        again = reserved_soon(queue, staging, 1024)
        assert again.offset == taken[index].offset
        again.release()
        taken[index] = staging.reserve(1024)
        assert_apart(taken)


def test_a_range_can_be_released_after_a_timepoint(staging: lowlevel.StagingBuffer) -> None:
    gate = tg.Semaphore()
    taken = staging.reserve(4096)
    taken.release_after(gate.at(2))
    gate.signal(1)
    with pytest.raises(tg.ResourceExhaustedError):
        staging.reserve(16)
    gate.signal(2)
    staging.reserve(4096).release()


def test_a_range_to_be_released_after_something_already_over_is_released_now(
    queue: tg.Queue, staging: lowlevel.StagingBuffer
) -> None:
    done = queue.barrier()
    done.wait(LIMIT)
    staging.reserve(4096).release_after(done)
    staging.reserve(4096).release()


def test_a_failed_submission_gives_the_space_back_too(queue: tg.Queue, staging: lowlevel.StagingBuffer) -> None:
    gate = tg.Semaphore()
    held = queue.barrier(wait=gate.at(1))
    staging.reserve(4096).release_after(held)
    gate.fail(ValueError("no"))
    with pytest.raises(tg.SemaphoreFailedError):
        held.wait(LIMIT)
    reserved_soon(queue, staging, 4096).release()


def test_a_cancelled_submission_gives_the_space_back_too(queue: tg.Queue, staging: lowlevel.StagingBuffer) -> None:
    gate = tg.Semaphore()
    held = queue.barrier(wait=gate.at(1))
    staging.reserve(4096).release_after(held)
    assert held.cancel()
    staging.reserve(4096).release()


@pytest.mark.needs("work")
def test_space_released_after_its_copy_is_not_reused_before_the_copy_has_run(
    device: tg.Device, queue: tg.Queue, staging: lowlevel.StagingBuffer
) -> None:
    gate = tg.Semaphore()
    targets = [device.upload(np.zeros(512, np.uint8)) for _ in range(8)]
    copies = []
    for i, target in enumerate(targets):
        part = staging.reserve(512)
        part.array[:] = i + 1
        copies.append(queue.copy(part.buffer, target, wait=gate.at(1)))
        part.release_after(copies[-1])
        del part
    with pytest.raises(tg.ResourceExhaustedError):
        staging.reserve(512)
    gate.signal(1)
    tg.wait_all(copies, LIMIT)
    for i, target in enumerate(targets):
        assert set(target.to_numpy(np.uint8, timeout=LIMIT).tolist()) == {i + 1}


def test_ranges_of_every_size_fit_together_without_overlap(staging: lowlevel.StagingBuffer) -> None:
    """A long random walk of reserving and releasing against the simplest model: a list."""
    random = np.random.default_rng(11)
    living: list[tuple[lowlevel.StagingRange, int]] = []
    for step in range(2000):
        if living and random.random() < 0.5:
            part, mark = living.pop(int(random.integers(len(living))))
            assert set(part.array.tolist()) <= {mark}
            part.release()
            continue
        try:
            part = staging.reserve(int(random.integers(1, 700)), alignment=int(2 ** random.integers(0, 7)))
        except tg.ResourceExhaustedError:
            continue
        part.array[:] = step % 251
        living.append((part, step % 251))
        assert_apart([taken for taken, _ in living])
    for part, mark in living:
        assert set(part.array.tolist()) <= {mark}
        part.release()
    assert staging.free_bytes == staging.capacity


def test_eight_threads_reserve_at_once_and_no_two_ranges_overlap(staging: lowlevel.StagingBuffer) -> None:
    """Each thread marks its ranges and finds its own marks again, and all living ranges are disjoint."""
    guard = threading.Lock()
    living: dict[int, lowlevel.StagingRange] = {}

    def hammer(thread: int) -> int:
        random = np.random.default_rng(thread)
        served = 0
        while served < 300:
            try:
                part = staging.reserve(int(random.integers(1, 400)))
            except tg.ResourceExhaustedError:
                continue
            part.array[:] = thread
            with guard:
                living[id(part)] = part
                assert_apart(list(living.values()))
            assert set(part.array.tolist()) == {thread}
            with guard:
                del living[id(part)]
            part.release()
            served += 1
        return served

    assert all_at_once(8, hammer) == [300] * 8
    assert staging.free_bytes == staging.capacity


def test_eight_threads_release_after_submissions_and_all_space_comes_back(
    queue: tg.Queue, staging: lowlevel.StagingBuffer
) -> None:
    def hammer(thread: int) -> list[tg.Submission]:
        barriers: list[tg.Submission] = []
        while len(barriers) < 100:
            try:
                part = staging.reserve(300)
            except tg.ResourceExhaustedError:
                tg.wait_all(barriers, LIMIT)
                continue
            barriers.append(queue.barrier())
            part.release_after(barriers[-1])
        return barriers

    tg.wait_all(list(chain(*all_at_once(8, hammer))), LIMIT)
    staging.reserve(4096).release()


@pytest.mark.rules("M28", "M35")
def test_a_closed_staging_buffer_refuses_and_closing_twice_is_fine(staging: lowlevel.StagingBuffer) -> None:
    staging.close()
    staging.close()
    with pytest.raises(tg.ClosedError):
        staging.reserve(16)


@pytest.mark.needs("work")
@pytest.mark.rules("M18", "M28")
def test_a_staging_buffer_closed_in_flight_still_serves_the_work(
    device: tg.Device, queue: tg.Queue, staging: lowlevel.StagingBuffer
) -> None:
    gate = tg.Semaphore()
    target = device.upload(np.zeros(512, np.uint8))
    part = staging.reserve(512)
    part.array[:] = 9
    copied = queue.copy(part.buffer, target, wait=gate.at(1))
    part.release_after(copied)
    staging.close()
    del part, staging
    for _ in range(8):
        device.allocate(4096, memory="host").close()
    gate.signal(1)
    copied.wait(LIMIT)
    assert set(target.to_numpy(np.uint8, timeout=LIMIT).tolist()) == {9}


@pytest.mark.needs("work")
@pytest.mark.rules("M20", "M27", "M28")
def test_whatever_stages_inside_tidegate_spills_instead_of_failing(device: tg.Device, queue: tg.Queue) -> None:
    """Far more held update data than any staging buffer has room for, from several threads."""
    gate = tg.Semaphore()
    blocks, size = 64, 60_000
    target = device.upload(np.zeros(blocks * size, np.uint8))

    def submit(index: int) -> list[tg.Submission]:
        own = range(index, blocks, 4)
        return [queue.update(target, bytes([i + 1]) * size, offset=i * size, wait=gate.at(1)) for i in own]

    updates = list(chain(*all_at_once(4, submit)))
    gate.signal(1)
    tg.wait_all(updates, LIMIT)
    found = target.to_numpy(np.uint8, timeout=LIMIT).reshape(blocks, size)
    assert np.array_equal(found, np.repeat(np.arange(1, blocks + 1, dtype=np.uint8)[:, None], size, axis=1))
