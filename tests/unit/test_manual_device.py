"""The device that is moved by hand: what it takes, refuses and ends, and in which order."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate.testing import ManualDevice, ManualPiece

LIMIT = 30.0


def work(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.queue.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def test_nothing_is_over_until_it_is_finished(either: ManualDevice) -> None:
    submission = work(either)
    (piece,) = either.issued
    assert (piece.submission, piece.work.kind, piece.queue, piece.taken, piece.over) == (
        submission,
        "fill",
        "compute",
        True,
        False,
    )
    assert not submission.done
    piece.finish()
    assert submission.done
    assert piece.over
    assert either.issued == []


def test_a_piece_may_fail(either: ManualDevice) -> None:
    submission, problem = work(either), OSError("unplugged")
    either.issued[0].fail(problem)
    assert submission.error is problem


def test_a_plain_device_ends_its_pieces_in_any_order(manual: ManualDevice) -> None:
    submissions = [work(manual) for _ in range(3)]
    manual.issued[1].finish()
    assert [one.done for one in submissions] == [False, True, False]


def test_a_counting_device_ends_its_pieces_in_the_order_of_each_queue(counting: ManualDevice) -> None:
    first, second = work(counting), work(counting)
    beside = counting.transfer.fill(counting.buffer, 0)
    assert [piece.submission.epoch for piece in counting.issued] == [1, 2, 1]
    counting.issued[1].finish()
    assert [one.done for one in (first, second, beside)] == [True, True, False]
    assert [piece.submission for piece in counting.issued] == [beside]


def test_a_counting_device_tells_only_those_who_asked(counting: ManualDevice) -> None:
    alone, heard, told = tg.Semaphore(), tg.Semaphore(), []
    work(counting, signal=alone.at(1))
    work(counting, signal=heard.at(1))
    heard.at(1).add_callback(lambda *_told: told.append(1))
    assert [piece.wake_up_requested for piece in counting.issued] == [False, True]
    counting.issued[1].finish(tell=False)
    assert told == []
    assert alone.value == 1  # a look retires all that is over
    assert told == [1]


def test_asking_for_what_is_over_is_answered_at_once(counting: ManualDevice) -> None:
    done, told = tg.Semaphore(), []
    work(counting, signal=done.at(1))
    counting.issued[0].finish()
    done.at(1).add_callback(lambda *_told: told.append(1))
    assert told == [1]


def test_what_is_refused_is_tried_again_when_there_is_room(either: ManualDevice) -> None:
    either.full = True
    submission = work(either)
    assert {piece.taken for piece in either.tries_of(submission)} == {False}
    with pytest.raises(tg.FailedPreconditionError, match="'compute', refused>: what was not taken does not end"):
        either.tries[0].finish()
    either.full = False
    either.automatic = True
    either.room()
    submission.wait(LIMIT)


def test_what_was_issued_behind_another_does_not_end_before_it(counting: ManualDevice) -> None:
    done = tg.Semaphore()
    work(counting, signal=done.at(1))
    counting.transfer.fill(counting.buffer, 0, wait=done.at(1))
    with pytest.raises(tg.FailedPreconditionError, match="what it was issued behind is not over"):
        counting.issued[1].finish()
    counting.issued[0].finish()
    counting.issued[0].finish()
    assert counting.issued == []


def test_the_hooks_see_each_piece_before_and_after_it_is_taken(either: ManualDevice) -> None:
    seen: list[tuple[str, bool]] = []

    def note(name: str) -> object:
        return lambda piece: seen.append((name, piece.taken))

    either.before_taking, either.after_taking = note("before"), note("after")  # type: ignore[assignment]
    work(either)
    assert seen == [("before", False), ("after", True)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_hook_raises_fails_the_work(either: ManualDevice, when: str) -> None:
    problem = ValueError("broken")

    def broken(_piece: ManualPiece) -> None:
        raise problem

    setattr(either, f"{when}_taking", broken)
    submission = work(either)
    assert submission.done is (when == "before")
    either.finish_all()
    assert submission.error is problem


def test_memory_comes_and_goes_as_it_is_issued(either: ManualDevice) -> None:
    buffer = either.queue.allocate(16)
    either.finish_all()
    assert buffer.ready.done
    either.queue.free(buffer)
    either.finish_all()
    with pytest.raises(tg.FailedPreconditionError, match="is freed"):
        work_on = either.queue.fill(buffer, 0)
        assert work_on


def test_closing_lets_everything_end_that_follows(either: ManualDevice) -> None:
    done = tg.Semaphore()
    either.full = True
    first = work(either, signal=done.at(1))
    second = either.transfer.fill(either.buffer, 0, wait=done.at(1), signal=done.at(2))
    third = either.queue.host_call(int, wait=done.at(2))
    either.close()
    assert [one.error for one in (first, second, third)] == [None] * 3
    assert either.device.health is tg.Health.CLOSED


def test_kernels_for_the_cpu_can_be_loaded_and_never_run(manual: ManualDevice) -> None:
    kernel = tg.Kernel("never", cpu=lambda *_given: pytest.fail("it ran"), bindings=1)
    dispatched = manual.queue.dispatch(manual.device.load(kernel)["never"], 1, bindings=[manual.buffer])
    manual.finish_all()
    assert dispatched.error is None
