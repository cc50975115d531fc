"""Work that goes down on a promise instead of waiting for it, and work that is held after all (M3, M15, M17)."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate.conformance.threads import background
from tidegate.testing import ManualDevice, ManualPiece

LIMIT = 30.0


def fill(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.queue.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def beside(manual: ManualDevice, **options: object) -> tg.Submission:
    return manual.transfer.fill(manual.buffer, 0, **options)  # type: ignore[arg-type]


def issued(manual: ManualDevice, submission: tg.Submission) -> ManualPiece:
    """Return the piece that the device has taken for a submission."""
    (piece,) = (piece for piece in manual.tries_of(submission) if piece.taken)
    return piece


def epochs(manual: ManualDevice, submission: tg.Submission) -> dict[object, int]:
    return dict(issued(manual, submission).waits)


def is_held(manual: ManualDevice, submission: tg.Submission) -> bool:
    return repr(submission).endswith(" held>") and not any(piece.taken for piece in manual.tries_of(submission))


# At the call -------------------------------------------------------------------------------------------------------


def test_work_that_waits_for_issued_work_of_its_device_goes_down_on_the_promise(counting: ManualDevice) -> None:
    done = tg.Semaphore()
    first = fill(counting, signal=done.at(1))
    follower = beside(counting, wait=done.at(1), signal=done.at(2))
    assert epochs(counting, follower) == {first.timeline: 1}
    assert counting.device.statistics().held == 0
    counting.finish_all()
    assert done.value == 2


def test_several_waits_on_one_native_timeline_become_the_last_of_them(counting: ManualDevice) -> None:
    points = [tg.Semaphore().at(1) for _ in range(3)]
    last = [fill(counting, signal=point) for point in points[:2]][-1]
    other = beside(counting, signal=points[2])
    for order in (points, points[::-1]):
        follower = fill(counting, wait=order)
        assert epochs(counting, follower) == {last.timeline: 2, other.timeline: 1}


def test_a_wait_that_is_reached_and_one_that_is_promised_need_one_epoch(counting: ManualDevice) -> None:
    reached, promised = tg.Semaphore(1), tg.Semaphore()
    first = fill(counting, signal=promised.at(1))
    assert epochs(counting, fill(counting, wait=[reached.at(1), promised.at(1)])) == {first.timeline: 1}
    assert epochs(counting, fill(counting, wait=reached.at(1))) == {}


def test_a_promise_covers_what_is_below_it_and_of_several_the_lowest_above_counts(counting: ManualDevice) -> None:
    steps = tg.Semaphore()
    works = {value: fill(counting, signal=steps.at(value)) for value in (6, 4, 9)}
    for value, promised in ((1, 4), (4, 4), (5, 6), (6, 6), (7, 9), (9, 9)):
        assert list(epochs(counting, fill(counting, wait=steps.at(value))).values()) == [works[promised].epoch]
    above = fill(counting, wait=steps.at(10))
    assert is_held(counting, above)
    assert above.cancel()


def test_a_wait_for_what_is_not_issued_keeps_it_held_and_the_device_is_asked_about_the_other(
    counting: ManualDevice,
) -> None:
    promised, free = tg.Semaphore(), tg.Semaphore()
    fill(counting, signal=promised.at(1))
    held = fill(counting, wait=[promised.at(1), free.at(1)])
    assert is_held(counting, held)
    assert counting.issued[0].wake_up_requested
    free.signal(1)
    # What it waits for is promised now, but the device was not asked again: the end of the first sets it free.
    counting.issued[0].finish()
    assert epochs(counting, held) == {}


def test_work_of_another_device_is_not_followed_but_listened_to(counting: ManualDevice) -> None:
    done = tg.Semaphore()
    fill(counting, signal=done.at(1))
    with ManualDevice(counting=True, label="second") as second:
        held = fill(second, wait=done.at(1))
        assert is_held(second, held)
        assert counting.issued[0].wake_up_requested
        counting.issued[0].finish()
        assert epochs(second, held) == {}


@pytest.mark.parametrize("form", [{}, {"counting": True, "promises": False}], ids=["plain", "counting"])
def test_a_device_without_promises_is_never_asked_to_follow(form: dict[str, bool]) -> None:
    done = tg.Semaphore()
    with ManualDevice(**form) as manual:
        early = fill(manual, wait=done.at(1))
        fill(manual, signal=done.at(1))
        late = fill(manual, wait=done.at(1))
        assert manual.tries_of(early) == manual.tries_of(late) == []
        manual.issued[0].finish()
        assert [len(piece.waits) for piece in manual.issued] == [0, 0]


def test_a_host_call_never_goes_down_on_a_promise(counting: ManualDevice) -> None:
    done = tg.Semaphore()
    early = counting.queue.host_call(int, wait=done.at(1))
    fill(counting, signal=done.at(1))
    late = counting.queue.host_call(int, wait=done.at(1))
    assert counting.device.statistics().held == 2
    counting.issued[0].finish()
    tg.wait_all([early, late], LIMIT)


def test_a_device_that_will_not_follow_leaves_it_held_until_the_producer_is_over(counting: ManualDevice) -> None:
    counting.follows = False
    done = tg.Semaphore()
    producer = fill(counting, signal=done.at(1))
    held = fill(counting, wait=done.at(1))
    cancelled = fill(counting, wait=done.at(1))
    assert is_held(counting, held)
    assert counting.device.statistics().held == 2
    assert cancelled.cancel()
    assert isinstance(cancelled.error, tg.AbortedError)
    issued(counting, producer).finish()
    assert epochs(counting, held) == {}


def decide(manual: ManualDevice, semaphore: tg.Semaphore, how: str, problem: Exception) -> None:
    """Have another thread decide what waits for the first work of a device, or not, while it is issued; only once."""
    manual.before_taking = None
    if how == "reached":
        background(manual.issued[0].finish).result()
    elif how == "failed":
        background(semaphore.fail, problem).result()


@pytest.mark.parametrize("order", ["producer first", "follower first"])
@pytest.mark.parametrize("meanwhile", ["nothing", "reached", "failed"])
def test_where_the_device_would_rather_not_follow_nothing_that_is_decided_meanwhile_is_missed(
    counting: ManualDevice, order: str, meanwhile: str
) -> None:
    counting.follows = False
    done, problem = tg.Semaphore(), ValueError("meanwhile")

    def look(piece: ManualPiece) -> None:
        if piece.waits:
            decide(counting, done, meanwhile, problem)

    counting.before_taking = look
    if order == "producer first":
        fill(counting, signal=done.at(1))
    follower = fill(counting, wait=done.at(1))
    if order == "follower first":
        fill(counting, signal=done.at(1))
    if meanwhile == "nothing":
        assert is_held(counting, follower)
        counting.issued[0].finish()
    if meanwhile == "failed":
        assert follower.done
        assert follower.error is problem
        assert len(counting.tries_of(follower)) == 1
    else:
        assert [piece.taken for piece in counting.tries_of(follower)] == [False, True]


# When the producer is issued ---------------------------------------------------------------------------------------


def test_those_who_wait_are_offered_to_follow_when_their_producer_is_issued(counting: ManualDevice) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    exact = fill(counting, wait=done.at(4))
    below = fill(counting, wait=done.at(3))
    above = fill(counting, wait=done.at(5))
    elsewhere = fill(counting, wait=[done.at(4), gate.at(1)])
    producer = fill(counting, signal=done.at(4))
    assert epochs(counting, exact) == epochs(counting, below) == {producer.timeline: producer.epoch}
    assert is_held(counting, above)
    assert is_held(counting, elsewhere)
    above.cancel()
    elsewhere.cancel()


def test_those_who_wait_for_the_submission_itself_are_offered_too(counting: ManualDevice) -> None:
    gate = tg.Semaphore()
    producer = fill(counting, wait=gate.at(1))
    follower = beside(counting, wait=producer)
    assert is_held(counting, follower)
    gate.signal(1)
    assert epochs(counting, follower) == {producer.timeline: 1}


def test_a_chain_given_in_reverse_goes_down_whole_when_its_head_does(counting: ManualDevice) -> None:
    steps = tg.Semaphore()
    chain = [fill(counting, wait=steps.at(value), signal=steps.at(value + 1)) for value in range(20, 0, -1)]
    assert counting.tries == []
    head = fill(counting, signal=steps.at(1))
    assert [piece.submission for piece in counting.issued] == [head, *chain[::-1]]
    counting.finish_all()
    assert steps.value == 21


def test_a_submission_that_will_fail_anyway_does_not_go_down_on_a_promise(counting: ManualDevice) -> None:
    promised, failed, problem = tg.Semaphore(), tg.Semaphore(), ValueError("never")
    failed.fail(problem)
    fill(counting, signal=promised.at(1))
    follower = fill(counting, wait=[promised.at(1), failed.at(1)])
    assert follower.error is problem
    assert counting.tries_of(follower) == []


def test_a_failure_by_the_host_above_a_promise_makes_it_none(counting: ManualDevice) -> None:
    done, problem = tg.Semaphore(), ValueError("by the host")
    fill(counting, signal=done.at(5))
    done.fail(problem)
    late = fill(counting, wait=done.at(5))
    assert late.error is problem
    assert counting.tries_of(late) == []


def test_what_is_lost_as_it_goes_down_on_a_promise_is_lost(counting: ManualDevice) -> None:
    done = tg.Semaphore()
    first = fill(counting, signal=done.at(1))

    def lose(_piece: ManualPiece) -> None:
        counting.before_taking = None
        counting.full = True
        counting.lose(ValueError("gone"))

    counting.before_taking = lose
    second = fill(counting, wait=done.at(1))
    assert isinstance(first.error, tg.DeviceLostError)
    assert isinstance(second.error, tg.DeviceLostError)
    assert counting.device.statistics().held == 0


# Who listens -------------------------------------------------------------------------------------------------------


def listened_to(manual: ManualDevice, *submissions: tg.Submission) -> list[bool]:
    return [issued(manual, submission).wake_up_requested for submission in submissions]


def test_of_a_chain_on_the_device_only_what_somebody_listens_to_wakes_the_host(counting: ManualDevice) -> None:
    steps = tg.Semaphore()
    links = [fill(counting, signal=steps.at(1))]
    links += [fill(counting, wait=steps.at(value), signal=steps.at(value + 1)) for value in range(1, 4)]
    assert listened_to(counting, *links) == [False] * 4
    subscription = steps.at(3).add_callback(lambda *_told: None)
    assert listened_to(counting, *links) == [False, False, True, False]
    assert subscription.cancel()


def test_a_link_that_stood_in_line_before_its_producer_came_wakes_nobody(counting: ManualDevice) -> None:
    steps = tg.Semaphore()
    link = fill(counting, wait=steps.at(1), signal=steps.at(2))
    first = fill(counting, signal=steps.at(1))
    assert not issued(counting, link).wake_up_requested
    issued(counting, first).finish()
    assert not issued(counting, link).wake_up_requested


def test_for_what_nobody_promised_all_that_may_fail_it_is_listened_to(counting: ManualDevice) -> None:
    steps, told = tg.Semaphore(), []
    first = fill(counting, signal=steps.at(1))
    before = fill(counting, wait=steps.at(1), signal=steps.at(2))
    steps.at(9).add_callback(lambda _point, outcome, _error: told.append(outcome))
    after = fill(counting, wait=steps.at(2), signal=steps.at(3))
    assert listened_to(counting, first, before, after) == [True] * 3
    issued(counting, first).fail(ValueError("the first"))
    assert told == [tg.Outcome.FAILED]


@pytest.mark.parametrize("by", ["semaphore", "submission"])
def test_work_that_is_listened_to_before_it_is_issued_is_when_it_is(counting: ManualDevice, by: str) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    held = fill(counting, wait=gate.at(1), signal=done.at(1))
    call = counting.queue.host_call(int, wait=held if by == "submission" else done.at(1))
    gate.signal(1)
    assert listened_to(counting, held) == [True]
    counting.issued[0].finish()
    call.wait(LIMIT)


def test_a_host_call_listens_to_the_submission_it_waits_for(counting: ManualDevice) -> None:
    works = [fill(counting) for _ in range(3)]
    call = counting.queue.host_call(int, wait=works[1])
    assert listened_to(counting, *works) == [False, True, False]
    counting.issued[1].finish()
    call.wait(LIMIT)


def test_every_64th_epoch_is_listened_to_although_nobody_is_there(counting: ManualDevice) -> None:
    works = [fill(counting) for _ in range(130)]
    assert [work.epoch for work in works if issued(counting, work).wake_up_requested] == [64, 128]


def test_a_request_that_an_interrupt_cut_short_is_made_again(
    counting: ManualDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tg.Semaphore()
    work = fill(counting, signal=done.at(1))

    def interrupted(_epoch: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(work.timeline, "arm", interrupted)
        with pytest.raises(KeyboardInterrupt):
            done.at(1).add_callback(lambda *_told: None)
    assert not counting.issued[0].wake_up_requested
    done.at(1).add_callback(lambda *_told: None)
    assert counting.issued[0].wake_up_requested
