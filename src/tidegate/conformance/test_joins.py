"""Joins: one submission that waits for several others, whatever kind of work each is and wherever it goes.

When a join is over, all that it waited for is over too, and done: on the host, which can look at once, and in memory.
Where joins fail, see `test_joins_that_fail`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import tidegate as tg

from .buffers import contents
from .latches import LIMIT, Latch
from .witnesses import Told
from .works import COUNT, EVERY_KIND, IN_PLACE, LARGE, ON_THE_DEVICE, SMALL, Piece, Place, Works, places_of

pytestmark = pytest.mark.rules("M3", "M17")

#: What joins in these tests: all kinds of work, but one way of each size is enough of the transfers.
JOINING = (
    *("fill-small", "fill-large", "copy-large", "upload-small", "upload-large", "download-small", "download-large"),
    *("kernel", "execute", "host-call", "barrier", "allocation"),
)

COUNTS = (2, 3, 10)

#: When the join is submitted: behind producers that are ready; behind held ones; before any of them.
WAYS = ("straight", "held", "ahead")

#: Who sees the end of the join first.
LOOKS = ("submission", "signal", "nobody")


class Join:
    """Producers of the given kinds, each on the next of the places, and a submission that waits for all of them."""

    def __init__(
        self, works: Works, producers: Sequence[str], joiner: str, places: Sequence[Place], way: str, watched: bool
    ) -> None:
        self.ends = [tg.Semaphore() for _ in producers]
        self.end = tg.Semaphore()
        self.told = [Told() for _ in producers] if watched else []
        for end, told in zip(self.ends, self.told, strict=False):
            end.at(1).add_callback(told)
        gate = tg.Semaphore() if way == "held" else None
        place = places[len(producers) % len(places)]
        if way == "ahead":
            if isinstance(place, tg.Lane):
                place = place.queue  # in the lane the producers would come behind the join
            self.join = works.make(joiner, place, wait=[end.at(1) for end in self.ends], signal=self.end.at(1))
        self.pieces = [
            works.make(kind, where, wait=None if gate is None else gate.at(1), signal=end.at(1))
            for kind, where, end in zip(producers, itertools.cycle(places), self.ends, strict=False)
        ]
        if way != "ahead":
            submissions = [piece.submission for piece in self.pieces]
            waits = [self.ends[index].at(1) if index % 2 else work for index, work in enumerate(submissions)]
            self.join = works.make(joiner, place, wait=waits, signal=self.end.at(1))
        if gate is not None:
            gate.signal(1)

    def wait(self, look: str) -> None:
        """Wait for the end of the join, and look at nothing else."""
        if look == "submission":
            self.join.submission.wait(LIMIT)
        elif look == "signal":
            self.end.wait(1, LIMIT)
        else:
            over = Told()
            self.end.at(1).add_callback(over)
            over.wait()

    def assert_done(self, *, memory: bool = True) -> None:
        """All of it is over and done. What the host can see comes first: it must be there without a further look."""
        pieces = (*self.pieces, self.join)
        for piece in pieces:
            piece.assert_told()
        assert [end.value for end in self.ends] == [1] * len(self.ends)
        for piece in pieces:
            assert piece.submission.done, f"{piece.kind} is not over"
            assert piece.submission.error is None
        for told in self.told:
            told.assert_once()
        for piece in pieces if memory else ():
            piece.assert_written()


def rounds(device: tg.Device, draw: random.Random) -> list[tuple[int, str, list[Place], str]]:
    """How many producers, when the join comes, where they go and who looks: a third of all combinations."""
    cases = draw.sample(list(itertools.product(COUNTS, WAYS, (1, 4))), 6)
    return [(count, way, places_of(device)[:several], draw.choice(LOOKS)) for count, way, several in cases]


# Work of one kind, and of all ---------------------------------------------------------------------------------------


@pytest.mark.rules("M3", "M5", "M10", "M17")
@pytest.mark.slow
@pytest.mark.parametrize("producer", EVERY_KIND)
def test_when_a_join_is_over_all_that_it_waited_for_is_done(works: Works, producer: str) -> None:
    draw = random.Random(producer)
    for joiner in [kind for kind in JOINING if kind in works.kinds]:
        for count, way, places, look in rounds(works.device, draw):
            join = Join(works, [producer] * count, joiner, places, way, watched=count == 3)
            join.wait(look)
            join.assert_done(memory=count == 3)


@pytest.mark.rules("M3", "M5", "M10", "M17")
@pytest.mark.slow
def test_a_join_may_wait_for_work_of_every_kind_at_once(works: Works) -> None:
    draw = random.Random(5)
    for joiner in [kind for kind in JOINING if kind in works.kinds]:
        for count, way, places, look in rounds(works.device, draw):
            draw.shuffle(places)
            join = Join(works, draw.choices(works.kinds, k=count), joiner, places, way, watched=draw.random() < 0.5)
            join.wait(look)
            join.assert_done()


@pytest.mark.rules("M3", "M27")
@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("beside", ["fill-large", "kernel", "upload-large", "host-call"])
@pytest.mark.needs("work")
def test_an_array_is_filled_before_a_join_behind_the_download_is_over(works: Works, beside: str, size: str) -> None:
    """The other thing that is waited for keeps the join from going right behind the download."""
    for number, joiner in enumerate(("fill-large", "kernel", "copy-large", "execute", "barrier", "fill-small") * 5):
        places = places_of(works.device)
        producers = [beside, f"download-{size}"][:: 1 if number % 2 else -1]
        join = Join(works, producers, joiner, places, "straight", watched=False)
        join.wait(LOOKS[number % 3])
        join.assert_done(memory=False)


@pytest.mark.needs("latch")
@pytest.mark.rules("M3", "M10")
@pytest.mark.parametrize("joiner", JOINING)
def test_a_join_that_nobody_looked_at_ends_after_all_that_it_waited_for(
    works: Works, queue: tg.Queue, second_queue: tg.Queue, latch: Latch, joiner: str
) -> None:
    ends, end, over = [tg.Semaphore(), tg.Semaphore()], tg.Semaphore(), Told()
    latch.block(queue, signal=ends[0].at(1))
    beside = works.make("fill-large", second_queue, signal=ends[1].at(1))
    join = works.make(joiner, second_queue, wait=[each.at(1) for each in ends], signal=end.at(1))
    end.at(1).add_callback(over)
    latch.wait_until_running()
    latch.open()
    over.wait()
    assert [each.value for each in ends] == [1, 1]
    join.assert_told()
    over.assert_once()
    for piece in (beside, join):
        piece.assert_written()


# What a join reads --------------------------------------------------------------------------------------------------

PART = 4 * COUNT


def written_in_parts(works: Works, target: tg.Buffer) -> tuple[list[tg.Submission], bytes]:
    """Have a buffer written by a piece of work of each kind, each elsewhere; what it holds afterwards."""
    places = itertools.cycle(places_of(works.device))
    parts = [target.subspan(offset, PART) for offset in range(0, target.nbytes, PART)]
    number, offset = works.next_number(), works.next_offset()
    data = works.data[offset : offset + PART]
    source = works.source.subspan(offset, PART)
    between = works.device.allocate(2 * PART)
    submissions = [
        next(places).fill(parts[0], number),
        next(places).upload(data, parts[1]),
        next(places).copy(source, parts[2]),
        next(places).dispatch(**works.mixing(source, source, parts[3], 5)),
        next(places).execute(works.commands, bindings=[source, between, parts[4]]),
        next(places).update(parts[5], data.tobytes()),
    ]
    words = data.view(np.uint32)
    first = works.data[:PART].view(np.uint32) * np.uint32(3)
    expected = [bytes([number]) * PART, data, data, words * np.uint32(6), first + words, data]
    return submissions, b"".join(bytes(part) for part in expected)


def read_by(
    works: Works, joiner: str, place: Place, target: tg.Buffer, wait: list[tg.Submission]
) -> Callable[[], bytes]:
    """Submit a join that reads a buffer; returns what gives the bytes that it read."""
    if joiner == "download":
        download = place.download(target, wait=wait)
        return lambda: bytes(download.result(LIMIT))
    if joiner == "host-call":
        call = place.host_call(target.read, wait=wait)
        return lambda: bytes(call.result(LIMIT))
    out = works.device.allocate(target.nbytes)
    if joiner == "copy":
        place.copy(target, out, wait=wait)
    else:
        with works.device.record() as commands:
            commands.copy(target, out)
        place.execute(commands, wait=wait)
    return lambda: bytes(contents(out))


@pytest.mark.needs("work")
@pytest.mark.rules("M3", "M15", "M27")
@pytest.mark.slow
@pytest.mark.parametrize("joiner", ["download", "host-call", "copy", "execute"])
def test_a_join_reads_what_all_that_it_waited_for_wrote(works: Works, joiner: str) -> None:
    target = works.device.allocate(6 * PART, memory="shared")
    free: list[tg.Submission] = []
    for number in range(20):
        for work in free:
            work.wait(LIMIT)
        submissions, expected = written_in_parts(works, target)
        place = places_of(works.device)[number % 4]
        assert read_by(works, joiner, place, target, submissions)() == expected
        free = submissions


@pytest.mark.needs("work")
@pytest.mark.rules("M3", "M15", "M27")
@pytest.mark.slow
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("between", ["kernel", "execute", "fill-large", "fill-small", "barrier", "host-call"])
def test_an_upload_takes_what_a_download_some_steps_before_it_wrote_into_the_array(
    works: Works, between: str, size: int
) -> None:
    """The work in between has nothing to do with the array, and may go down before the array is written."""
    for number in range(20):
        first, second, third, fourth = places_of(works.device)
        offset = works.next_offset()
        out = np.zeros(size, np.uint8)
        target = works.device.allocate(size)
        download = first.download(works.source, out, offset=offset)
        waits: list[tg.Submission] = [download]
        if number % 2:
            waits.append(third.fill(works.device.allocate(LARGE), 1))
        step = works.make(between, second, wait=waits).submission
        if number % 4 > 1:
            step = works.make("fill-large", third, wait=step).submission
        upload = fourth.upload(out, target, wait=step)
        upload.wait(LIMIT)
        assert np.array_equal(contents(target), works.data[offset : offset + size])


# One after the other on one semaphore ---------------------------------------------------------------------------------


def chain(works: Works, kinds: Sequence[str], sem: tg.Semaphore, way: str, between: int = 0) -> list[Piece]:
    """Each waits for the value that the one before it signals, on another place."""
    links = list(zip(kinds, itertools.cycle(places_of(works.device)[:3]), itertools.count(1), strict=False))
    pieces = []
    for kind, place, value in reversed(links) if way == "ahead" else links:
        pieces.append(works.make(kind, place, wait=sem.at(value), signal=sem.at(value + 1)))
        for _ in range(between):
            works.make("fill-small", place)
    return pieces


@pytest.mark.rules("M3", "M5", "M6", "M34")
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_chain_of_work_of_all_kinds_takes_a_semaphore_up_step_by_step(works: Works, way: str) -> None:
    draw = random.Random(7)
    for _ in range(30):
        sem = tg.Semaphore(0 if way == "held" else 1)
        kinds = draw.choices(works.kinds, k=8)
        pieces = chain(works, kinds, sem, way)
        if way == "held":
            sem.signal(1)
        tg.wait_all([sem.at(9)], LIMIT)
        for piece in pieces:
            piece.assert_told()
            assert piece.submission.error is None, kinds
        assert (sem.value, sem.failure) == (9, None)


@pytest.mark.rules("M3", "M6", "M34")
@pytest.mark.slow
@pytest.mark.needs("work")
@pytest.mark.parametrize("second", [*IN_PLACE, "host-call", "upload-large"])
def test_work_that_is_done_at_once_signals_after_what_it_follows_from(works: Works, second: str) -> None:
    """The first is over, or about to be, and perhaps nobody has looked yet."""
    for number, first in enumerate(ON_THE_DEVICE * 6):
        sem = tg.Semaphore(1)
        pieces = chain(works, (first, second), sem, "straight", between=number % 8)
        sem.wait(3, LIMIT)
        for piece in pieces:
            piece.assert_told()
            assert piece.submission.error is None, (first, second)
        assert sem.failure is None


@pytest.mark.needs("latch", "beside")
@pytest.mark.rules("M3", "M6", "M34")
@pytest.mark.parametrize("second", [*IN_PLACE, "host-call", "upload-large", "download-small"])
def test_work_that_follows_from_what_is_over_and_was_not_looked_at_signals_after_it(
    works: Works, queue: tg.Queue, second_queue: tg.Queue, latch: Latch, second: str
) -> None:
    """The second latch tells, past the semaphore, that the device is through with the first."""
    sem, behind = tg.Semaphore(), latch()
    latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    last = behind.block(queue, wait=sem.at(1))
    latch.open()
    behind.wait_until_running()
    for _ in range(16):
        second_queue.fill(works.device.allocate(LARGE), 1)  # where they go a driver looks for, and may see the end
    piece = works.make(second, second_queue, wait=sem.at(1), signal=sem.at(2))
    sem.wait(2, LIMIT)
    piece.assert_told()
    behind.open()
    last.wait(LIMIT)
    assert (piece.submission.error, sem.failure) == (None, None)
    piece.assert_written()
