"""Fill, update and copy: the bytes asked for move, and no others.

Fresh memory is undefined, so every buffer starts out full of a guard byte, and every sweep
compares the whole buffer afterwards: a transfer that strays shows up at its edges.
"""

import array
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .buffers import GUARD, downloaded, guarded, numbered
from .latches import LIMIT
from .witnesses import assert_still_claimable, failure_of

SHORT_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 28, 31, 32, 33, 63, 64, 100, 255, 256, 1000, 1023, 4096)
LONG_LENGTHS = (16384, 16388, 65532, 65535, 65536)

pytestmark = [pytest.mark.rules("M27"), pytest.mark.needs("work")]


# Fill


PATTERNS = pytest.mark.parametrize("pattern", [b"\xa5", b"\xa5\x5a", b"\x01\x02\x03\x04"], ids=["1", "2", "4"])


def check_fills(
    device: tg.Device, queue: tg.Queue, pattern: bytes, offsets: Iterable[int], lengths: Sequence[int]
) -> None:
    """Fill every range of these that the pattern divides, and look at all of the buffer."""
    size = len(pattern)
    buffer = guarded(device, 31 + max(lengths) + 32)
    for offset in (n for n in offsets if n % size == 0):
        for length in (n for n in lengths if n % size == 0):
            reset = queue.fill(buffer, GUARD)
            filled = queue.fill(buffer, pattern, offset=offset, length=length, wait=reset)
            expected = np.full(buffer.nbytes, GUARD, np.uint8)
            expected[offset : offset + length] = np.frombuffer(pattern * (length // size), np.uint8)
            assert np.array_equal(downloaded(queue, buffer, filled), expected), (offset, length)


@PATTERNS
def test_a_short_fill_writes_its_range_and_leaves_the_edges_alone(
    device: tg.Device, queue: tg.Queue, pattern: bytes
) -> None:
    check_fills(device, queue, pattern, range(32), SHORT_LENGTHS)


@PATTERNS
def test_a_long_fill_writes_its_range_and_leaves_the_edges_alone(
    device: tg.Device, queue: tg.Queue, pattern: bytes
) -> None:
    check_fills(device, queue, pattern, (0, 1, 2, 4, 7, 16, 28, 30, 31), LONG_LENGTHS)


def test_a_fill_takes_an_integer_for_a_byte(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 64)
    for value in (0, 1, 127, 128, 255):
        assert downloaded(queue, buffer, queue.fill(buffer, value)).tolist() == [value] * 64


def test_a_fill_without_a_length_runs_to_the_end(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 40)
    found = downloaded(queue, buffer, queue.fill(buffer, b"\x01\x02", offset=6))
    assert found.tolist() == [GUARD] * 6 + [1, 2] * 17


def test_a_fill_of_a_subspan_counts_from_its_start_and_stays_inside(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 64)
    found = downloaded(queue, buffer, queue.fill(buffer.subspan(16, 32), 7, offset=4))
    assert found.tolist() == [GUARD] * 20 + [7] * 28 + [GUARD] * 16


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        (b"", {}),
        (b"abc", {}),
        (b"abcde", {}),
        (256, {}),
        (-1, {}),
        (b"ab", {"offset": 1, "length": 2}),
        (b"ab", {"length": 3}),
        (b"abcd", {"offset": 2, "length": 4}),
        (b"abcd", {"length": 6}),
    ],
)
def test_a_fill_with_a_wrong_pattern_or_alignment_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, pattern: bytes | int, options: dict[str, Any]
) -> None:
    buffer = guarded(device, 64)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError):
        queue.fill(buffer, pattern, signal=semaphore.at(1), **options)
    assert_still_claimable(queue, semaphore.at(1))
    assert downloaded(queue, buffer).tolist() == [GUARD] * 64


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(("offset", "length"), [(0, 65), (64, 1), (65, None), (65, 0), (60, 8), (2**63, 4)])
def test_a_fill_past_the_end_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, offset: int, length: int | None
) -> None:
    buffer = guarded(device, 64)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.OutOfRangeError):
        queue.fill(buffer, 1, offset=offset, length=length, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


# Update


def test_an_update_replaces_a_whole_buffer(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(1000)
    buffer = guarded(device, 1000)
    assert np.array_equal(downloaded(queue, buffer, queue.update(buffer, data)), data)


def test_an_update_of_any_length_and_offset_leaves_the_edges_alone(device: tg.Device, queue: tg.Queue) -> None:
    buffer = guarded(device, 1100)
    for offset, length in itertools.product((0, 1, 2, 3, 5, 8, 13, 31), (0, 1, 2, 3, 5, 7, 11, 64, 127, 999, 1024)):
        data = numbered(length, seed=offset + length)
        reset = queue.fill(buffer, GUARD)
        expected = np.full(buffer.nbytes, GUARD, np.uint8)
        expected[offset : offset + length] = data
        found = downloaded(queue, buffer, queue.update(buffer, data, offset=offset, wait=reset))
        assert np.array_equal(found, expected), (offset, length)


@pytest.mark.parametrize("length", [65535, 65536, 65537, 2 * 65536 + 1, 3 * 65536 + 17])
def test_an_update_through_a_queue_may_be_larger_than_a_recorded_one(
    device: tg.Device, queue: tg.Queue, length: int
) -> None:
    data = numbered(length)
    buffer = guarded(device, length + 16)
    found = downloaded(queue, buffer, queue.update(buffer, data, offset=3))
    assert np.array_equal(found[3 : 3 + length], data)
    assert set(found[:3].tolist()) == set(found[3 + length :].tolist()) == {GUARD}


@pytest.mark.parametrize(
    "data",
    [
        b"abcdefgh",
        bytearray(b"abcdefgh"),
        memoryview(b"abcdefgh"),
        memoryview(b"-a-b-c-d-e-f-g-h")[1::2],
        array.array("H", [1, 2, 300, 4]),
        np.arange(2, dtype=np.float32),
        np.arange(4, dtype=np.int16).reshape(2, 2).T,
        np.arange(16, dtype=np.uint8)[::-2],
        np.array(1.5),
    ],
    ids=["bytes", "bytearray", "memoryview", "strided-memoryview", "array", "float32", "transposed", "reversed", "0-d"],
)
def test_an_update_takes_any_buffer_object_in_c_order(device: tg.Device, queue: tg.Queue, data: object) -> None:
    buffer = guarded(device, 8)
    expected = memoryview(data).tobytes()  # type: ignore[arg-type]
    assert downloaded(queue, buffer, queue.update(buffer, data)).tobytes() == expected


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(("offset", "length"), [(0, 65), (64, 1), (65, 0), (1, 64)])
def test_an_update_past_the_end_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, offset: int, length: int
) -> None:
    buffer = guarded(device, 64)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.OutOfRangeError):
        queue.update(buffer, bytes(length), offset=offset, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))


def test_held_updates_of_one_scratch_array_each_carry_what_it_held_at_their_call(
    device: tg.Device, queue: tg.Queue
) -> None:
    gate = tg.Semaphore()
    buffer = guarded(device, 64 * 16)
    scratch = np.zeros(16, np.uint8)
    updates = []
    for i in range(64):
        scratch[:] = i
        updates.append(queue.update(buffer, scratch, offset=16 * i, wait=gate.at(1)))
    scratch[:] = 255
    gate.signal(1)
    tg.wait_all(updates, LIMIT)
    assert np.array_equal(downloaded(queue, buffer), np.repeat(np.arange(64, dtype=np.uint8), 16))


# Copy


def test_a_copy_moves_a_whole_buffer(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(4099)
    target = guarded(device, 4099)
    assert np.array_equal(downloaded(queue, target, queue.copy(device.upload(data), target)), data)


def test_a_copy_between_any_offsets_leaves_the_edges_alone(device: tg.Device, queue: tg.Queue) -> None:
    data = numbered(600)
    source = device.upload(data)
    target = guarded(device, 600)
    offsets = (0, 1, 2, 3, 4, 7, 16, 31)
    for start, stop, length in itertools.product(offsets, offsets, (0, 1, 3, 4, 8, 33, 256, 513)):
        reset = queue.fill(target, GUARD)
        copied = queue.copy(source, target, source_offset=start, target_offset=stop, length=length, wait=reset)
        expected = np.full(600, GUARD, np.uint8)
        expected[stop : stop + length] = data[start : start + length]
        assert np.array_equal(downloaded(queue, target, copied), expected), (start, stop, length)


def test_a_copy_without_a_length_takes_the_rest_of_the_source(device: tg.Device, queue: tg.Queue) -> None:
    source = device.upload(np.arange(10, dtype=np.uint8))
    target = guarded(device, 16)
    found = downloaded(queue, target, queue.copy(source, target, source_offset=4, target_offset=2))
    assert found.tolist() == [GUARD] * 2 + [4, 5, 6, 7, 8, 9] + [GUARD] * 8


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"source_offset": 4, "target_offset": 11},
        {"length": 11, "source_offset": 6},
        {"length": 11},
        {"source_offset": 17, "length": 0},
        {"target_offset": 11, "length": 0},
    ],
)
def test_a_copy_that_does_not_fit_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, options: dict[str, Any]
) -> None:
    source, target = guarded(device, 16), guarded(device, 10)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.OutOfRangeError):
        queue.copy(source, target, signal=semaphore.at(1), **options)
    assert_still_claimable(queue, semaphore.at(1))


def test_a_large_copy_is_exact(device: tg.Device, queue: tg.Queue) -> None:
    nbytes = 8 * 2**20 + 3
    data = numbered(nbytes)
    target = guarded(device, nbytes)
    assert np.array_equal(downloaded(queue, target, queue.copy(device.upload(data), target)), data)


def test_a_copy_inside_one_buffer_is_legal_when_the_ranges_do_not_overlap(device: tg.Device, queue: tg.Queue) -> None:
    for start, stop, length in ((0, 32, 32), (32, 0, 32), (0, 63, 1), (8, 20, 12), (20, 8, 12), (5, 5, 0)):
        expected = np.arange(64, dtype=np.uint8)
        buffer = device.upload(expected)
        copied = queue.copy(buffer, buffer, source_offset=start, target_offset=stop, length=length)
        expected[stop : stop + length] = expected[start : start + length].copy()
        assert np.array_equal(downloaded(queue, buffer, copied), expected), (start, stop, length)


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize(("start", "stop", "length"), [(0, 0, 1), (0, 0, 64), (0, 31, 32), (31, 0, 32), (10, 12, 4)])
def test_an_overlapping_copy_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, start: int, stop: int, length: int
) -> None:
    data = np.arange(64, dtype=np.uint8)
    buffer = device.upload(data)
    semaphore = tg.Semaphore()
    with pytest.raises(tg.InvalidArgumentError):
        queue.copy(buffer, buffer, source_offset=start, target_offset=stop, length=length, signal=semaphore.at(1))
    assert_still_claimable(queue, semaphore.at(1))
    assert np.array_equal(downloaded(queue, buffer), data)


@pytest.mark.rules("M16", "M27")
def test_an_overlap_is_seen_through_subspans(device: tg.Device, queue: tg.Queue) -> None:
    data = np.arange(64, dtype=np.uint8)
    buffer = device.upload(data)
    with pytest.raises(tg.InvalidArgumentError):
        queue.copy(buffer.subspan(0, 32), buffer.subspan(31, 32))
    expected = data.copy()
    expected[32:] = data[:32]
    copied = queue.copy(buffer.subspan(0, 32), buffer.subspan(32, 32))
    assert np.array_equal(downloaded(queue, buffer, copied), expected)


@pytest.mark.rules("M15", "M20", "M27")
def test_a_burst_of_64_by_64_copies_lands_where_it_belongs(device: tg.Device, queue: tg.Queue) -> None:
    block, side = 4096, 64
    data = numbered(side * block).reshape(side, block)
    source = device.upload(data)
    target = guarded(device, side * side * block)
    copies = [
        queue.copy(
            source,
            target,
            source_offset=(row ^ column) * block,
            target_offset=(row * side + column) * block,
            length=block,
        )
        for row in range(side)
        for column in range(side)
    ]
    tg.wait_all(copies, LIMIT)
    found = downloaded(queue, target).reshape(side, side, block)
    picks = np.arange(side)[:, None] ^ np.arange(side)[None, :]
    assert np.array_equal(found, data[picks])


@pytest.mark.rules("M5", "M15", "M27")
def test_a_chain_of_fills_and_copies_submitted_backwards_runs_forwards(device: tg.Device, queue: tg.Queue) -> None:
    steps, block = 32, 512
    scratch = guarded(device, block)
    target = guarded(device, steps * block)
    timeline = tg.Semaphore()
    submissions = []
    for step in reversed(range(steps)):
        submissions.append(
            queue.copy(
                scratch,
                target,
                target_offset=step * block,
                wait=timeline.at(2 * step + 2),
                signal=timeline.at(2 * step + 3),
            )
        )
        submissions.append(queue.fill(scratch, step, wait=timeline.at(2 * step + 1), signal=timeline.at(2 * step + 2)))
    timeline.signal(1)
    tg.wait_all(submissions, LIMIT)
    assert np.array_equal(downloaded(queue, target), np.repeat(np.arange(steps, dtype=np.uint8), block))


@pytest.mark.rules("M15", "M27")
def test_fill_copy_fill_across_two_queues_keeps_the_order_the_waits_give(
    device: tg.Device, queue: tg.Queue, second_queue: tg.Queue
) -> None:
    first, second = guarded(device, 70_000), guarded(device, 70_000)
    a = queue.fill(first, 1)
    b = second_queue.copy(first, second, wait=a)
    c = queue.fill(first, 2, wait=b)
    d = second_queue.copy(first, second, source_offset=35_000, target_offset=35_000, wait=c)
    found = downloaded(queue, second, d)
    assert set(found[:35_000].tolist()) == {1}
    assert set(found[35_000:].tolist()) == {2}
    assert set(downloaded(queue, first).tolist()) == {2}


# Zero lengths


def test_zero_lengths_and_zero_size_buffers_are_legal_everywhere(device: tg.Device, queue: tg.Queue) -> None:
    empty = device.allocate(0)
    full = guarded(device, 8)
    nothing = np.zeros(0, np.uint8)
    for target in (empty, full.subspan(8, 0)):
        done = [tg.Semaphore() for _ in range(6)]
        points = [semaphore.at(1) for semaphore in done]
        queue.fill(target, 1, signal=points[0])
        queue.fill(target, b"abcd", signal=points[1])
        queue.update(target, b"", signal=points[2])
        queue.upload(nothing, target, signal=points[3])
        queue.copy(empty, target, signal=points[4])
        out = queue.download(target, signal=points[5]).result(LIMIT)
        assert np.asarray(out).nbytes == 0
        tg.wait_all(points, LIMIT)
        assert target.read(timeout=LIMIT) == b""
    queue.copy(full, full, length=0).wait(LIMIT)
    assert full.read(timeout=LIMIT) == bytes([GUARD]) * 8


# Beyond all memory


HUGE = (2**31 + 1, 2**32 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 + 1, 2**200, 10**5000)
NEGATIVE = (-1, -(2**31), -(2**63), -(2**63) - 1, -(2**64), -(10**5000))


def in_powers_of_two(number: int) -> str:
    """Name a test by a number that may be too long to print."""
    sign, size = ("-", -number) if number < 0 else ("", number)
    power = size.bit_length() - (size & (size + 1) != 0)  # the nearest one where it is near at all
    beyond = size - 2**power
    more = "" if beyond == 0 else f"{beyond if number > 0 else -beyond:+}" if abs(beyond) < 1000 else " and more"
    return f"{sign}2**{power}{more}"


def ranged(device: tg.Device, queue: tg.Queue) -> dict[str, Callable[[int], object]]:
    """Every call that takes an offset, a length or a shape."""
    buffer, other = guarded(device, 64), guarded(device, 64)
    lane, commands, one = device.lane(), device.record(), np.zeros(1, np.uint8)
    return {
        "fill offset": lambda n: queue.fill(buffer, 1, offset=n),
        "fill length": lambda n: queue.fill(buffer, 1, length=n),
        "fill both": lambda n: lane.fill(buffer, 1, offset=n, length=n),
        "fill beyond": lambda n: queue.fill(buffer, 1, offset=n, length=-n),
        "update": lambda n: queue.update(buffer, b"x", offset=n),
        "upload": lambda n: lane.upload(one, buffer, offset=n),
        "download offset": lambda n: queue.download(buffer, offset=n),
        "download length": lambda n: queue.download(buffer, length=n),
        "download shape": lambda n: lane.download(buffer, shape=n),
        "download shapes": lambda n: queue.download(buffer, dtype=np.float64, shape=(n, n)),
        "copy source": lambda n: queue.copy(buffer, other, source_offset=n),
        "copy target": lambda n: lane.copy(buffer, other, target_offset=n),
        "copy length": lambda n: queue.copy(buffer, other, length=n),
        "recorded fill offset": lambda n: commands.fill(buffer, 1, offset=n),
        "recorded fill length": lambda n: commands.fill(buffer, 1, length=n),
        "recorded update": lambda n: commands.update(buffer, b"x", offset=n),
        "recorded copy": lambda n: commands.copy(buffer, other, source_offset=n, length=n),
        "subspan offset": lambda n: buffer.subspan(n),
        "subspan length": lambda n: buffer.subspan(0, n),
        "subspan both": lambda n: buffer.subspan(n, n),
        "write": lambda n: buffer.write(b"x", n),
        "to_numpy": lambda n: buffer.to_numpy(np.uint8, n, timeout=LIMIT),
        "to_numpy shapes": lambda n: buffer.to_numpy(np.uint8, (n, n), timeout=LIMIT),
        "view": lambda n: buffer.view(np.uint8, n),
        "view shapes": lambda n: buffer.view(np.float64, (1, n)),
    }


@pytest.mark.rules("M16", "M27")
@pytest.mark.parametrize("value", [*HUGE, *NEGATIVE], ids=in_powers_of_two)
def test_offsets_lengths_and_shapes_beyond_all_memory_are_refused(
    device: tg.Device, queue: tg.Queue, value: int
) -> None:
    for name, call in ranged(device, queue).items():
        with pytest.raises((tg.OutOfRangeError, tg.InvalidArgumentError)) as caught:
            call(value)
        assert str(caught.value), name


@pytest.mark.rules("M16", "M29", "M31")
@pytest.mark.parametrize("value", HUGE, ids=in_powers_of_two)
def test_ranges_of_slots_beyond_all_memory_are_refused(device: tg.Device, queue: tg.Queue, value: int) -> None:
    table = [guarded(device, 64), guarded(device, 64)]
    records: list[Callable[[tg.CommandBuffer], object]] = [
        lambda commands: commands.fill(tg.slot(0), 1, offset=value),
        lambda commands: commands.fill(tg.slot(0), 1, length=value),
        lambda commands: commands.update(tg.slot(0), b"x", offset=value),
        lambda commands: commands.copy(tg.slot(0), tg.slot(1), source_offset=value),
        lambda commands: commands.copy(tg.slot(0), tg.slot(1), target_offset=value),
        lambda commands: commands.copy(tg.slot(0), tg.slot(1), length=value),
    ]
    for record in records:
        with pytest.raises(tg.OutOfRangeError), device.record() as commands:
            record(commands)
            commands.end()
            queue.execute(commands, bindings=table)


@pytest.mark.rules("M16", "M22")
@pytest.mark.parametrize("kind", ["device", "host", "shared"])
@pytest.mark.parametrize("size", [2**56, *HUGE[2:]], ids=in_powers_of_two)
def test_sizes_beyond_all_memory_are_refused_by_name(
    open_device: Callable[..., tg.Device], kind: Any, size: int
) -> None:
    """Where a device might have as much, in the end of the work."""
    device = open_device(label="small")
    queue, done = device.queue(), tg.Semaphore()
    refusals = (tg.ResourceExhaustedError, tg.InvalidArgumentError, tg.OutOfRangeError)
    with pytest.raises(refusals):
        device.allocate(size, memory=kind)
    with pytest.raises(refusals):
        tg.lowlevel.StagingBuffer(device, size)
    try:
        queue.allocate(size, memory=kind, signal=done.at(1))
    except refusals:
        assert_still_claimable(queue, done.at(1))
    else:
        assert isinstance(failure_of(done.at(1)), tg.ResourceExhaustedError)
    queue.fill(device.allocate(16, memory=kind), 1).wait(LIMIT)
