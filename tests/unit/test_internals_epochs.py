"""The end of epochs: retirement in their order, who notices it, and room for what was put off (M3)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import issuing, workload
from tidegate._core.lock import core_lock
from tidegate._core.submission import ISSUED, READY, RETIRED

from .hand_driver import LIMIT, Bench, catch_up
from .raising import once

# The end of epochs -------------------------------------------------------------------------------------------------


def test_what_is_over_is_retired_in_order_and_the_rest_stays(bench: Bench) -> None:
    works = [bench.work() for _ in range(4)]
    bench.one.over(2)
    assert [work._stage for work in works] == [ISSUED] * 4
    bench.one.advance()
    assert [work._stage for work in works] == [RETIRED, RETIRED, ISSUED, ISSUED]
    assert list(bench.one.in_flight) == works[2:]
    bench.one.over(4)
    bench.one.advance()
    bench.one.advance()
    assert list(bench.one.in_flight) == []
    assert bench.device.statistics().retired == 4


def test_what_was_promised_is_retired_before_what_followed_it(bench: Bench) -> None:
    semaphore, order = tg.Semaphore(), []
    first = bench.work(signal=semaphore.at(1))
    second = bench.work(bench.other, wait=semaphore.at(1), signal=semaphore.at(2))
    third = bench.work(wait=semaphore.at(2), signal=semaphore.at(3))
    for value in (1, 2, 3):
        semaphore.at(value).add_callback(lambda point, outcome, error: order.append((point.value, outcome)))
    bench.one.word, bench.two.word = 2, 1
    bench.two.advance()
    assert [work._stage for work in (first, second, third)] == [RETIRED, RETIRED, ISSUED]
    assert semaphore.value == 3
    assert order == [(value, tg.Outcome.REACHED) for value in (1, 2, 3)]


def test_a_failed_epoch_fails_its_followers_although_they_ran(bench: Bench) -> None:
    semaphore, other, problem = tg.Semaphore(), tg.Semaphore(), ZeroDivisionError("epoch 1")
    first = bench.work(signal=semaphore.at(1))
    second = bench.work(wait=semaphore.at(1), signal=other.at(1))
    third = bench.work(wait=other.at(1))
    bench.one.failures[1] = problem
    bench.one.over(3)
    assert third.error is problem
    assert second.error is problem
    assert first.error is problem
    assert (semaphore.value, other.value) == (0, 0)
    assert other.failure is problem


def test_the_reason_given_first_wins_over_what_the_device_says(bench: Bench) -> None:
    work, mine, theirs = bench.work(), ValueError("mine"), KeyError("theirs")
    work._doom = mine
    bench.one.failures[1] = theirs
    bench.one.over(1)
    assert work.error is mine


def test_a_follower_of_something_reached_before_it_failed_is_well(bench: Bench) -> None:
    semaphore, done = tg.Semaphore(), tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    follower = bench.work(wait=semaphore.at(1), signal=done.at(1))
    bench.one.word = 1
    bench.one.advance()
    semaphore.fail(ValueError("afterwards"))
    bench.one.over(2)
    assert follower.error is None
    assert done.value == 1


def test_a_poll_of_the_device_retires_what_is_over(bench: Bench) -> None:
    work = bench.work()
    bench.one.over(1)
    assert not bench.device._poller()
    assert bench.hand.polled == 1
    assert work._stage == RETIRED
    bench.hand.poll_answers = [True]
    assert bench.device._poller()


def test_looking_at_a_timeline_retires_what_is_over_on_it(bench: Bench) -> None:
    looks = [
        lambda semaphore: semaphore.value,
        lambda semaphore: semaphore.query(),
        lambda semaphore: semaphore.at(1).reached,
        lambda semaphore: semaphore.wait(1, 0),
        lambda semaphore: semaphore.failure,
        lambda semaphore: tg.wait_any([semaphore.at(1)], 0),
    ]
    for look in looks:
        semaphore = tg.Semaphore()
        bench.work(signal=semaphore.at(1))
        bench.one.over(bench.one.issued)
        assert semaphore._state.payload == 0
        look(semaphore)
        assert semaphore._state.payload == 1


def test_looking_inside_a_core_section_retires_nothing(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    bench.one.over(1)
    with core_lock:
        assert semaphore.value == 0
    assert semaphore.value == 1


def test_failing_a_semaphore_looks_first_whether_it_was_reached(bench: Bench) -> None:
    semaphore = tg.Semaphore()
    work = bench.work(signal=semaphore.at(1))
    bench.one.over(1)
    semaphore.fail(ValueError("too late for 1"))
    assert (semaphore.value, work.error) == (1, None)


def test_a_sleeping_wait_arms_what_it_waits_for(bench: Bench) -> None:
    from tidegate.conformance.threads import background

    semaphore = tg.Semaphore()
    bench.work(signal=semaphore.at(1))
    armed = threading.Event()
    arm_epoch = bench.one.arm
    bench.one.arm = lambda epoch: (arm_epoch(epoch), armed.set())  # type: ignore[method-assign]
    waiting = background(semaphore.wait, 1, LIMIT)
    assert armed.wait(LIMIT)
    bench.one.over(1, wake=True)
    waiting.result()
    assert bench.one.armed == [1]


def test_an_epoch_that_another_thread_retires_meanwhile_is_passed_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate._core import retirement

    bench.work()
    bench.one.over(1)
    retire_counted = retirement._retire_counted

    def faster(submission: Any) -> None:
        retire_counted(submission)
        bench.one.in_flight.clear()

    with monkeypatch.context() as patched:
        patched.setattr(retirement, "_retire_counted", faster)
        bench.one.advance()

    class Emptied:
        """Empty between the look and the grasp."""

        def __bool__(self) -> bool:
            return True

        def __getitem__(self, _index: int) -> Any:
            raise IndexError

    in_flight, bench.one.in_flight = bench.one.in_flight, Emptied()  # type: ignore[assignment]
    bench.one.advance()
    bench.one.in_flight = in_flight


def test_the_end_found_by_asking_for_the_error_is_not_reported_as_unseen(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    import gc

    gc.collect()
    catch_up()
    caplog.clear()
    work = bench.work()
    bench.one.failures[1] = ValueError("looked at")
    bench.one.over(1)
    assert isinstance(work.error, ValueError)
    del work
    gc.collect()
    catch_up()
    assert "looked at" not in caplog.text


# No room -----------------------------------------------------------------------------------------------------------


def test_what_the_device_has_no_room_for_is_put_off_and_goes_down_in_order(bench: Bench) -> None:
    first = bench.work()
    bench.hand.full = True
    late = [bench.work() for _ in range(3)]
    assert [work._stage for work in late] == [READY] * 3
    assert list(bench.device._backlog) == late
    assert list(bench.device._issued) == [first]
    assert bench.device._attention
    assert late[0].explain().endswith("ready, waiting for room on the device")
    bench.hand.full = False
    bench.one.over(1, wake=True)
    assert [work._stage for work in late] == [ISSUED] * 3
    assert [work.epoch for work in late] == [2, 3, 4]
    assert not bench.device._attention
    assert list(bench.device._issued) == late


def test_room_that_the_driver_tells_of_is_used_by_the_reaper_if_something_waits_for_it(bench: Bench) -> None:
    bench.hand.full = True
    late = bench.work()
    bench.hand.full = False
    bench.hand.sink.room()
    catch_up()
    assert late._stage == ISSUED
    assert not bench.device._attention


def test_what_was_put_off_stays_first_when_there_is_still_no_room(bench: Bench) -> None:
    bench.hand.full = True
    late = [bench.work() for _ in range(2)]
    bench.device._after_retirement()
    assert list(bench.device._backlog) == late
    assert bench.device._issued == {}
    assert bench.device._attention


@pytest.mark.parametrize(
    ("count", "armed"),
    [(1, [1]), (2, [2]), (3, [2, 3]), (4, [3, 4]), (5, [3, 5]), (6, [4, 6]), (9, [5, 9])],
)
def test_no_room_arms_the_middle_and_the_last_of_what_is_in_flight(bench: Bench, count: int, armed: list[int]) -> None:
    for _ in range(count):
        bench.work()
    bench.hand.full = True
    bench.work()
    assert bench.one.armed == armed


def test_one_that_was_put_off_and_is_over_meanwhile_is_passed_over(bench: Bench) -> None:
    bench.hand.full = True
    gone, next_one = bench.work(), bench.work()
    tries = bench.times(gone)
    issuing.retire(gone, ValueError("given up"))
    bench.hand.full = False
    bench.device._after_retirement()
    assert (bench.times(gone), next_one._stage) == (tries, ISSUED)
    assert list(bench.device._backlog) == []


def test_an_interrupt_while_one_that_was_put_off_is_tried_fails_it_and_keeps_the_next(bench: Bench) -> None:
    bench.hand.full = True
    done = tg.Semaphore()
    late = [bench.work(signal=done.at(1)), bench.work()]
    bench.hand.full = False
    bench.hand.before_issue = once(lambda _ticket: None, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bench.device._after_retirement()
    assert isinstance(done.failure, KeyboardInterrupt)
    catch_up()
    assert late[1]._stage in (READY, ISSUED)
    assert (late[1]._stage == ISSUED) is not (late[1] in bench.device._backlog)


def test_an_interrupt_around_the_try_puts_it_back_in_its_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.hand.full = True
    late = [bench.work(), bench.work()]
    with monkeypatch.context() as patched:
        patched.setattr(workload, "issue", once(issuing.issue, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            bench.device._issue_next()
    assert list(bench.device._backlog) == late
    catch_up()
    assert list(bench.device._backlog) == late
    assert bench.device._issue_next() is False


def test_what_is_being_tried_is_in_sight_and_others_leave_it_alone(bench: Bench) -> None:
    bench.hand.full = True
    late = [bench.work(), bench.work()]
    seen: list[object] = []

    def look(ticket: object) -> None:
        bench.hand.before_issue = None
        with core_lock:
            seen.append(set(bench.device._under_way_locked()))
        tries = bench.times(late[0])
        bench.device._after_retirement()  # as another thread that comes meanwhile
        seen.append(bench.times(late[0]) - tries)

    bench.hand.before_issue = look
    bench.device._issue_next()
    assert seen == [set(late), 0]
    assert list(bench.device._backlog) == late
    assert bench.device._tried == {}


def test_room_that_comes_while_one_is_tried_has_it_tried_again(bench: Bench) -> None:
    bench.hand.full = True
    late = bench.work()
    tries = bench.times(late)

    def room(ticket: object) -> None:
        bench.hand.before_issue = None
        bench.hand.sink.room()
        catch_up()

    bench.hand.before_issue = room
    assert bench.device._issue_next() is True
    assert bench.times(late) == tries + 1
    assert bench.device._attention
    assert bench.device._issue_next() is False


@pytest.mark.parametrize("way", ["refused", "no memory", "taken"])
def test_what_is_lost_while_it_is_issued_stays_lost(bench: Bench, way: str) -> None:
    def lose(ticket: object) -> None:
        bench.hand.before_issue = None
        bench.hand.sink.lost(ValueError("gone"))
        bench.hand.full = way == "refused"
        if way == "no memory":
            raise tg.ResourceExhaustedError("none")

    bench.hand.before_issue = lose
    done = tg.Semaphore()
    if way == "no memory":
        work = bench.device.queue().allocate(4, signal=done.at(1)).ready
    else:
        work = bench.work(signal=done.at(1))
    assert work.done
    assert isinstance(work.error, tg.DeviceLostError)
    assert done.failure is work.error
    assert bench.device._issued == {}
    assert not bench.device._backlog
    assert not bench.device._starvation
    bench.device._issue_next()
    assert work.done


def test_what_is_lost_before_it_is_issued_never_reaches_the_driver(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(submission: tg.Submission, waits: object) -> bool:
        bench.hand.sink.lost(ValueError("gone"))
        return issue(submission, ())

    issue = issuing.issue
    monkeypatch.setattr(issuing, "issue", lost)
    work = bench.work()
    assert isinstance(work.error, tg.DeviceLostError)
    assert bench.times(work) == 0


@pytest.mark.parametrize("taken", [False, True])
def test_an_interrupt_at_the_end_of_a_try_is_made_good_by_the_reaper(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    bench.hand.full = True
    late = bench.work()
    bench.hand.full = not taken
    end = bench.device._end_try
    monkeypatch.setattr(bench.device, "_end_try", once(end, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        bench.device._issue_next()
    bench.hand.full = False
    catch_up()
    assert bench.device._tried == {}
    assert list(bench.device._backlog) == []
    assert late._stage == ISSUED
    assert list(bench.one.in_flight) == [late]


def test_a_try_that_is_ended_once_more_leaves_the_next_try_alone(bench: Bench) -> None:
    bench.hand.full = True
    late = bench.work()
    mine, theirs = object(), object()
    bench.device._tried[late] = theirs
    bench.device._end_try(late, mine, taken=True)
    assert bench.device._tried == {late: theirs}
    assert list(bench.device._backlog) == [late]
    bench.device._end_try(late, theirs, taken=False)
    assert bench.device._tried == {}


def test_what_an_interrupt_leaves_to_two_threads_is_issued_once(bench: Bench) -> None:
    work = bench.work()
    assert issuing.issue(work, ()) is True
    assert bench.times(work) == 1
    assert list(bench.one.in_flight) == [work]


def refuse_the_first(bench: Bench) -> tuple[tg.Submission, tg.Submission, tg.Submission]:
    """Two of one kind and one of another are put off; the device has room for the last one only."""
    bench.hand.full = True
    late = bench.work(), bench.work(), bench.work(bench.other)

    def choose(ticket: object) -> None:
        bench.hand.full = ticket is not late[2]

    bench.hand.before_issue = choose
    return late


def test_what_one_kind_of_work_lacks_another_does_not_wait_for(bench: Bench) -> None:
    first, second, other = refuse_the_first(bench)
    tries = bench.times(second)
    bench.device._after_retirement()
    assert other._stage == ISSUED
    assert list(bench.device._backlog) == [first, second]
    assert bench.times(second) == tries, "of a kind that was refused just now"


def test_room_that_comes_while_another_kind_is_tried_has_all_kinds_tried_again(bench: Bench) -> None:
    first, second, other = refuse_the_first(bench)

    def room(ticket: object) -> None:
        bench.hand.full = True
        if ticket is other:
            bench.hand.before_issue = lambda _ticket: setattr(bench.hand, "full", False)
            bench.hand.sink.room()
            bench.device._visits += 1  # as the reaper does, who finds nothing that is not tried already

    bench.hand.before_issue = room
    bench.device._after_retirement()
    assert [work._stage for work in (first, second, other)] == [ISSUED] * 3


def test_what_is_lost_as_it_goes_down_on_a_promise_waits_nowhere(bench: Bench) -> None:
    first = bench.work(signal=(done := tg.Semaphore()).at(1))

    def lose(ticket: object) -> None:
        bench.hand.before_issue = None
        bench.hand.full = True
        bench.hand.sink.lost(ValueError("gone"))

    bench.hand.before_issue = lose
    second = bench.work(wait=done.at(1))
    assert isinstance(second.error, tg.DeviceLostError)
    assert isinstance(first.error, tg.DeviceLostError)
    assert second._stage == RETIRED
    assert second._pending is None
    assert bench.device._held == {}
    assert done._state.waiters == {}


def test_nobody_looks_for_the_device_inside_a_section(bench: Bench) -> None:
    work = bench.work()
    bench.one.over(1)
    with core_lock:
        assert bench.device._poller() is False
        assert not work.done
    assert work.done
