"""What a device has no room for is put off, and goes down when there is room, each kind of work alone (M15, M20)."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest

import tidegate as tg
from tidegate.conformance.threads import background
from tidegate.testing import ManualDevice, ManualPiece

LIMIT = 30.0


def fill(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.queue.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def taken(manual: ManualDevice, *submissions: tg.Submission) -> list[bool]:
    return [any(piece.taken for piece in manual.tries_of(submission)) for submission in submissions]


def test_what_was_put_off_goes_down_in_order_when_something_ends(either: ManualDevice) -> None:
    fill(either)
    either.full = True
    late = [fill(either) for _ in range(3)]
    assert taken(either, *late) == [False] * 3
    assert late[0].explain().endswith("ready, waiting for room on the device")
    assert either.device.statistics().issued == 1
    either.full = False
    either.issued[0].finish()
    assert [piece.submission for piece in either.issued] == late


@pytest.mark.parametrize(
    ("count", "asked"), [(1, [1]), (2, [2]), (3, [2, 3]), (4, [3, 4]), (5, [3, 5]), (6, [4, 6]), (9, [5, 9])]
)
def test_a_full_device_is_asked_to_tell_when_it_is_half_done_and_when_it_is_done(
    counting: ManualDevice, count: int, asked: list[int]
) -> None:
    for _ in range(count):
        fill(counting)
    counting.full = True
    fill(counting)
    assert [piece.submission.epoch for piece in counting.issued if piece.wake_up_requested] == asked


def test_room_that_the_device_tells_of_is_used(either: ManualDevice) -> None:
    either.full = True
    late = fill(either)
    either.full = False
    either.automatic = True
    either.room()
    late.wait(LIMIT)


def test_what_was_put_off_stays_first_when_there_is_still_no_room(either: ManualDevice) -> None:
    either.full = True
    late = [fill(either) for _ in range(2)]
    latest = fill(either)
    either.full = False
    either.automatic = True
    either.room()
    tg.wait_all([*late, latest], LIMIT)
    assert [piece.submission for piece in either.tries if piece.taken] == [*late, latest]


def test_one_that_was_put_off_and_is_lost_meanwhile_is_not_tried_again(either: ManualDevice) -> None:
    either.full = True
    gone = fill(either)
    either.lose(OSError("unplugged"))
    tries = len(either.tries_of(gone))
    either.full = False
    either.room()
    assert isinstance(gone.error, tg.DeviceLostError)
    either.device.close(LIMIT)
    assert len(either.tries_of(gone)) == tries


def test_what_one_kind_of_work_lacks_another_does_not_wait_for(either: ManualDevice) -> None:
    either.full = True
    late = [fill(either) for _ in range(2)]
    other = either.transfer.fill(either.buffer, 0)
    either.before_taking = lambda piece: setattr(either, "full", piece.queue == "compute")
    before = len(either.tries_of(late[1]))
    either.automatic = True
    either.room()
    other.wait(LIMIT)
    assert taken(either, *late) == [False, False]
    assert len(either.tries_of(late[1])) == before, "of a kind that was refused just now"


def test_room_that_comes_while_one_is_tried_is_not_overlooked(either: ManualDevice) -> None:
    either.full = True
    late = [fill(either) for _ in range(2)]

    def room(_piece: ManualPiece) -> None:
        either.before_taking = lambda _piece: setattr(either, "full", False)
        background(either.room).result()

    either.before_taking = room
    either.automatic = True
    either.room()
    tg.wait_all(late, LIMIT)


def test_closing_waits_for_what_was_put_off(either: ManualDevice) -> None:
    either.full = True
    late = fill(either)
    with pytest.raises(tg.DeadlineExceededError, match="1 submissions still run: fill on"):
        either.device.close(0)
    either.full = False
    either.automatic = True
    either.room()
    either.device.close(LIMIT)
    assert late.error is None


@pytest.mark.parametrize("end", [KeyboardInterrupt(), ValueError("no")])
def test_an_exception_as_one_is_tried_again_fails_that_one_and_keeps_the_next(
    either: ManualDevice, end: BaseException, unraisable: list[object]
) -> None:
    fill(either)
    either.full = True
    done = tg.Semaphore()
    late = [fill(either, signal=done.at(1)), fill(either)]
    either.full = False

    def broken(_piece: ManualPiece) -> None:
        either.before_taking = None
        raise end

    either.before_taking = broken
    either.automatic = True
    with suppress(KeyboardInterrupt):
        either.issued[0].finish()
    either.room()
    late[1].wait(LIMIT)
    assert done.failure is end


@pytest.mark.parametrize("way", ["refused", "no memory", "taken"])
def test_what_is_lost_while_it_is_issued_stays_lost(either: ManualDevice, way: str) -> None:
    def lose(_piece: ManualPiece) -> None:
        either.before_taking = None
        either.lose(ValueError("gone"))
        either.full = way == "refused"
        if way == "no memory":
            raise tg.ResourceExhaustedError("none")

    either.before_taking = lose
    done = tg.Semaphore()
    call = (lambda **to: either.queue.allocate(4, **to).ready) if way == "no memory" else partial(fill, either)
    work = call(signal=done.at(1))
    assert work.done
    assert isinstance(work.error, tg.DeviceLostError)
    assert done.failure is work.error
    statistics = either.device.statistics()
    assert (statistics.held, statistics.issued, statistics.submitted) == (0, 0, statistics.retired)
