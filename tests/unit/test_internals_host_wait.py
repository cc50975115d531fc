"""Waiting host threads, look by look: what decides, how long they spin, what they leave behind (M8, M9, M34)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from threading import TIMEOUT_MAX
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import host_wait
from tidegate._core.host_wait import (
    GroupWaiter,
    _HostWaiter,
    _Spin,
    breathe,
    checked_timeout,
    decided,
    spin_for,
    target_of,
    targets_of,
    wait_targets,
)
from tidegate._core.lock import core_lock
from tidegate._core.thread_state import thread_state
from tidegate._core.timeline import TimelineState
from tidegate.conformance.threads import background

LIMIT = 30.0


def state_at(payload: int = 0) -> TimelineState:
    return TimelineState(payload, "it", None)


# What is given -----------------------------------------------------------------------------------------------------


def test_things_that_cannot_be_waited_for_are_named() -> None:
    with pytest.raises(TypeError, match=r"^wait takes timepoints and submissions, not int$"):
        target_of(3)
    with pytest.raises(
        TypeError, match=r"^wait_all takes an iterable of timepoints and submissions, not int$"
    ) as caught:
        tg.wait_all(3)  # type: ignore[arg-type]
    assert caught.value.__suppress_context__
    with pytest.raises(TypeError, match=r"^wait_any takes timepoints and submissions, not str$"):
        tg.wait_any(["x"])  # type: ignore[list-item]


def test_points_are_taken_from_any_iterable_once() -> None:
    semaphore = tg.Semaphore()
    points = [semaphore.at(1), semaphore.at(2)]
    listed, targets = targets_of(iter(points), "wait_all")
    assert listed == points
    assert targets == [(semaphore._state, 1), (semaphore._state, 2)]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, None),
        (0, 0),
        (0.0, 0.0),
        (1, 1),
        (TIMEOUT_MAX, TIMEOUT_MAX),
        (TIMEOUT_MAX * 2, None),
        (float("inf"), None),
    ],
)
def test_timeouts_up_to_what_a_lock_can_wait_are_taken_and_longer_ones_are_for_ever(given: Any, taken: Any) -> None:
    assert checked_timeout(given) == taken


def test_a_timeout_may_be_anything_that_is_a_number() -> None:
    from fractions import Fraction

    assert checked_timeout(Fraction(1, 2)) == 0.5  # type: ignore[arg-type]
    for wrong in ("soon", [], object()):
        with pytest.raises(TypeError, match=f"^a timeout is None or seconds, not {type(wrong).__name__}$") as caught:
            checked_timeout(wrong)  # type: ignore[arg-type]
        assert caught.value.__suppress_context__


@pytest.mark.parametrize("given", [-1, -1e-9, float("nan"), float("-inf")])
def test_negative_timeouts_are_refused_also_where_nothing_need_be_waited_for(given: float) -> None:
    with pytest.raises(tg.InvalidArgumentError, match="must be 0 or more seconds") as caught:
        checked_timeout(given)
    assert caught.value.timeout is given  # type: ignore[attr-defined]
    for call in (tg.wait_all, tg.wait_any):
        with pytest.raises(tg.InvalidArgumentError):
            call([], given)
        with pytest.raises(tg.InvalidArgumentError):
            call([tg.Semaphore(1).at(1)], given)
    with pytest.raises(tg.InvalidArgumentError):
        tg.Semaphore(1).wait(1, given)


def test_nothing_to_wait_for_is_over_at_once() -> None:
    assert tg.wait_all([]) is None
    assert tg.wait_any([]) is None


# What decides ------------------------------------------------------------------------------------------------------


def test_any_is_decided_by_the_first_that_is_reached_and_all_by_the_last() -> None:
    reached, open_one = state_at(2), state_at(1)
    both = [(open_one, 2), (reached, 2)]
    assert decided(both, True) == 1
    assert decided(both, False) is None
    assert decided([(reached, 2), (reached, 1)], True) == 0
    assert decided([(reached, 2), (reached, 1)], False) == 0
    assert decided([(open_one, 2)], True) is None


def test_any_prefers_one_reached_to_one_failed_and_all_fails_with_the_first_failure() -> None:
    reached, failed, second = state_at(1), state_at(0), state_at(0)
    failed.failure, second.failure = ValueError("first"), ValueError("second")
    targets = [(failed, 1), (second, 1), (reached, 1)]
    assert decided(targets, True) == 2
    with pytest.raises(tg.SemaphoreFailedError, match="first"):
        decided(targets, False)
    with pytest.raises(tg.SemaphoreFailedError, match="first"):
        decided(targets[:2], True)
    failed.payload = 1
    assert decided([(failed, 1)], False) == 0  # what is reached stays reached


def test_one_that_rises_between_the_two_looks_counts_as_reached() -> None:
    class Rising:
        """Below the value at the first look, and not from then on."""

        failure = ValueError("late")
        looks = 0

        @property
        def payload(self) -> int:
            self.looks += 1
            return 0 if self.looks == 1 else 1

    assert decided([(Rising(), 1)], True) == 0  # type: ignore[list-item]
    assert decided([(Rising(), 1)], False) == 0  # type: ignore[list-item]


# Waiters of several timelines --------------------------------------------------------------------------------------


class Told(GroupWaiter):
    def __init__(self, targets: Any, any_of_them: bool) -> None:
        super().__init__(targets, any_of_them)
        self.fired = 0

    def fire(self) -> None:
        self.fired += 1


def test_all_waits_for_the_highest_value_of_a_timeline_and_any_for_the_lowest() -> None:
    one, two = state_at(), state_at()
    targets = [(one, 2), (two, 1), (one, 5), (one, 3)]
    assert GroupWaiter(targets, False)._registered == {one: 5, two: 1}
    assert GroupWaiter(targets, True)._registered == {one: 2, two: 1}


def test_a_waiter_for_all_joins_when_the_last_is_due_and_once() -> None:
    one, two, out = state_at(), state_at(), deque[Any]()
    waiter = Told([(one, 1), (two, 1)], False)
    waiter.due(one, None, out)
    waiter.due(one, None, out)
    assert not out
    waiter.due(two, None, out)
    waiter.due(two, None, out)
    assert list(out) == [waiter]


def test_a_waiter_for_any_joins_at_the_first_and_one_for_all_at_a_failure() -> None:
    one, two = state_at(), state_at()
    for any_of_them, error in ((True, None), (False, ValueError())):
        out = deque[Any]()
        waiter = Told([(one, 1), (two, 1)], any_of_them)
        waiter.due(one, error, out)
        waiter.due(two, error, out)
        assert list(out) == [waiter]


def test_a_plain_group_waiter_has_nothing_to_fire() -> None:
    with pytest.raises(NotImplementedError):
        GroupWaiter([(state_at(), 1)], True).fire()
    assert not GroupWaiter.is_work


def waiting_at(*states: TimelineState) -> list[int]:
    return [sum(map(len, state.waiters.values())) for state in states]


def test_registering_tells_whether_it_is_decided_already() -> None:
    reached, one, two, failed = state_at(1), state_at(), state_at(), state_at()
    failed.failure = ValueError()
    for targets, any_of_them, joins in [
        ([(one, 1), (two, 1)], False, True),
        ([(one, 1), (reached, 1)], True, False),
        ([(reached, 1), (one, 1)], False, True),
        ([(reached, 1)], False, False),
        ([(one, 1), (failed, 1)], False, False),
        ([(one, 1), (failed, 1)], True, False),
    ]:
        waiter = Told(targets, any_of_them)
        assert waiter.register() is joins
        waiter.unregister()
        assert waiting_at(reached, one, two, failed) == [0, 0, 0, 0]


def test_a_waiter_of_what_is_partly_reached_is_told_by_the_rest_alone() -> None:
    reached, semaphore = state_at(1), tg.Semaphore()
    waiter = Told([(reached, 1), (semaphore._state, 1)], False)
    assert waiter.register()
    assert waiting_at(semaphore._state) == [1]
    semaphore.signal(1)
    assert waiter.fired == 1
    waiter.unregister()


def test_a_sleeper_wakes_when_fired_once_or_twice_and_tells_when_time_is_over() -> None:
    waiter = _HostWaiter([(state_at(), 1)], False)
    assert not waiter.sleep(0.0)
    waiter.fire()
    waiter.fire()
    assert waiter.sleep(None)
    assert not waiter.sleep(0.0)


def test_a_sleeper_sleeps_until_its_deadline_and_not_for_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Gate:
        def acquire(self, **options: Any) -> bool:
            asked.append(options)
            return True

    waiter = _HostWaiter([(state_at(), 1)], False)
    waiter._gate = Gate()  # type: ignore[assignment]
    monkeypatch.setattr(host_wait, "monotonic", lambda: 100.0)
    for deadline in (None, 103.0, 99.0, 100.0 + 4 * TIMEOUT_MAX):
        waiter.sleep(deadline)
    assert asked == [{}, {"timeout": 3.0}, {"timeout": 0.0}, {"timeout": TIMEOUT_MAX}]


# The spin ----------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only where a test says so; breaths and polls are counted."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.breath = 0.0
        self.breaths = 0
        self.polls = 0
        self.progress: Callable[[int], bool] = lambda _number: False
        self.after: dict[int, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.now

    def crc32(self, data: bytes) -> int:
        assert len(data) > 5 * 1024, "zlib keeps the GIL for shorter ones"
        self.breaths += 1
        self.now += self.breath
        self.after.pop(self.breaths, lambda: None)()
        return 0

    def poll_devices(self) -> bool:
        self.polls += 1
        return self.progress(self.polls)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for name in ("monotonic", "crc32", "poll_devices"):
        monkeypatch.setattr(host_wait, name, getattr(clock, name))
    monkeypatch.setattr(_Spin, "looks", 16)
    return clock


def test_a_breath_is_short_unless_another_thread_kept_the_gil(clock: Clock) -> None:
    assert breathe()
    assert clock.breaths == 1
    clock.breath = 0.0005
    assert breathe()
    clock.breath = 0.002
    assert not breathe()


def test_a_spin_for_one_ends_with_its_budget_and_halves_the_next(clock: Clock) -> None:
    state = state_at()
    for budget, rest in ((16, 8), (8, 4), (1, 1), (3, 1), (5, 2)):
        _Spin.looks = budget
        before = clock.breaths
        assert spin_for(state, 1) is False
        assert (clock.breaths - before, _Spin.looks) == (budget, rest)


@pytest.mark.parametrize(("budget", "doubled"), [(1, 2), (16, 32), (32, 64), (64, 64), (40, 64)])
def test_a_spin_for_one_that_succeeds_doubles_the_next_up_to_64(clock: Clock, budget: int, doubled: int) -> None:
    state = state_at()
    _Spin.looks = budget
    clock.after[1] = lambda: setattr(state, "payload", 1)
    assert spin_for(state, 1) is True
    assert (clock.breaths, _Spin.looks) == (1, doubled)


def test_a_spin_for_one_looks_after_every_breath(clock: Clock) -> None:
    state = state_at()
    clock.after[5] = lambda: setattr(state, "payload", 7)
    assert spin_for(state, 7) is True
    assert clock.breaths == 5
    assert spin_for(state, 8) is False


def test_a_spin_for_one_ends_when_four_looks_took_too_long(clock: Clock) -> None:
    clock.breath = 0.0003
    assert spin_for(state_at(), 1) is False
    assert (clock.breaths, _Spin.looks) == (4, 8)
    clock.breath = 0.0002
    _Spin.looks = 16
    assert spin_for(state_at(), 1) is False
    assert clock.breaths == 4 + 16


def test_slow_turns_count_by_four_and_not_since_the_beginning(clock: Clock) -> None:
    _Spin.looks = 15
    clock.breath = 0.0003
    clock.after[3] = lambda: setattr(clock, "breath", 0.0)
    # 15 looks: the clock is read when 12 are left, after three breaths that took 0.9 ms; what came later was quick.
    assert spin_for(state_at(), 1) is False
    assert clock.breaths == 15


def test_no_spin_for_one_inside_a_callback_or_where_there_are_promises_or_progress(clock: Clock) -> None:
    reached, open_one = state_at(1), state_at()
    open_one.promises[1] = object()  # type: ignore[assignment]
    assert spin_for(open_one, 1) is False
    open_one.promises.clear()
    clock.progress = lambda _number: True
    assert spin_for(open_one, 1) is False
    assert spin_for(reached, 1) is True
    clock.progress = lambda _number: False
    thread_state.running = True
    try:
        assert spin_for(open_one, 1) is False
    finally:
        thread_state.running = False
    assert clock.breaths == 0


def spin(targets: Any, deadline: float | None = None, any_of_them: bool = False) -> int | None:
    return host_wait._spin(targets, any_of_them, deadline)


def test_a_spin_for_several_looks_as_often_as_its_budget_and_halves_the_next(clock: Clock) -> None:
    targets = [(state_at(), 1)]
    for budget, rest in ((16, 8), (1, 1), (5, 2), (0, 1)):
        _Spin.looks = budget
        before = clock.breaths
        assert spin(targets) is None
        assert (clock.breaths - before, _Spin.looks) == (budget, rest)


@pytest.mark.parametrize(("budget", "doubled"), [(1, 2), (16, 32), (40, 64), (64, 64)])
def test_a_spin_for_several_that_succeeds_doubles_the_next_up_to_64(clock: Clock, budget: int, doubled: int) -> None:
    state = state_at()
    _Spin.looks = budget
    clock.after[1] = lambda: setattr(state, "payload", 1)
    assert spin([(state_at(1), 1), (state, 1)]) == 0
    assert (clock.breaths, _Spin.looks) == (1, doubled)


def test_more_than_four_are_not_spun_for(clock: Clock) -> None:
    assert spin([(state_at(), 1)] * 4) is None
    assert clock.breaths == 16
    assert spin([(state_at(), 1)] * 5) is None
    assert (clock.breaths, _Spin.looks) == (16, 1)


def test_a_spin_for_several_ends_at_the_first_slow_breath(clock: Clock) -> None:
    clock.breath = 0.002
    assert spin([(state_at(), 1)]) is None
    assert (clock.breaths, _Spin.looks) == (1, 8)


def test_a_waiter_that_makes_progress_for_a_device_does_not_use_up_its_looks(clock: Clock) -> None:
    state = state_at()

    def progress(number: int) -> bool:
        if number == 100:
            state.payload = 1
        return number <= 100

    clock.progress = progress
    assert spin([(state, 1)]) == 0
    assert (clock.polls, clock.breaths) == (100, 0)


def test_a_waiter_that_makes_progress_stops_at_its_deadline(clock: Clock) -> None:
    clock.progress = lambda _number: bool(setattr(clock, "now", clock.now + 1.0)) or True
    assert spin([(state_at(), 1)], deadline=1003.0) is None
    assert clock.polls == 3


# The whole wait ----------------------------------------------------------------------------------------------------


def test_a_poll_lets_the_devices_progress_once_and_looks_again(clock: Clock) -> None:
    semaphore = tg.Semaphore()

    def progress(_number: int) -> bool:
        semaphore._state.payload = 1
        return True

    with pytest.raises(tg.DeadlineExceededError):
        semaphore.wait(1, 0)
    assert clock.polls == 1
    clock.progress = progress
    semaphore.wait(1, 0)
    assert clock.polls == 2
    other, point = tg.Semaphore(), semaphore.at(2)
    clock.progress = lambda _number: semaphore._state.__setattr__("payload", 2) or True
    assert tg.wait_any([other.at(1), point], 0) is point


def test_a_poll_inside_a_callback_or_a_core_section_touches_no_device(clock: Clock) -> None:
    semaphore, outcomes = tg.Semaphore(), []

    def callback(*_told: object) -> None:
        try:
            semaphore.wait(5, 0)
        except tg.DeadlineExceededError as error:
            outcomes.append(error)

    tg.Semaphore(1).at(1).add_callback(callback)
    with core_lock:
        callback()
    assert len(outcomes) == 2
    assert clock.polls == 0


def test_blocking_inside_a_callback_is_refused_and_looking_is_not() -> None:
    semaphore, outcomes = tg.Semaphore(1, label="far"), []

    def callback(*_told: object) -> None:
        semaphore.wait(1, LIMIT)
        try:
            tg.wait_all([semaphore.at(2)], LIMIT)
        except tg.FailedPreconditionError as error:
            outcomes.append(str(error))

    tg.Semaphore(1).at(1).add_callback(callback)
    assert outcomes == [
        "cannot block for semaphore 'far' to reach 2 inside a callback, a finalizer or a signal handler"
        " that interrupted the core: poll with timeout=0, or wait elsewhere"
    ]


def test_a_wait_that_the_spin_decides_does_not_sleep(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_wait, "_sleep", lambda *_arguments: pytest.fail("slept"))
    state, other = state_at(), state_at()
    clock.after[2] = lambda: setattr(state, "payload", 1)
    assert wait_targets([(other, 1), (state, 1)], any_of_them=True, timeout=None) == 1


def test_a_wait_sleeps_until_the_deadline_that_its_timeout_gives(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[Any] = []
    monkeypatch.setattr(host_wait, "_sleep", lambda *arguments: slept.append(arguments[2:]) or 7)
    targets = [(state_at(), 1)]
    assert wait_targets(targets, any_of_them=False, timeout=2.5) == 7
    assert wait_targets(targets, any_of_them=False, timeout=None) == 7
    assert slept == [(1002.5, 2.5), (None, None)]


def test_a_host_call_thread_that_sleeps_gives_its_place_away_and_takes_it_back() -> None:
    calls: list[str] = []
    thread_state.pool = SimpleNamespace(  # type: ignore[assignment]
        worker_blocks=lambda: calls.append("blocks"), worker_resumes=lambda: calls.append("resumes")
    )
    semaphore = tg.Semaphore()
    try:
        with pytest.raises(tg.DeadlineExceededError):
            semaphore.wait(1, 0.002)
        assert calls == ["blocks", "resumes"]
        with pytest.raises(tg.DeadlineExceededError):
            semaphore.wait(1, 0)
        semaphore.signal(1)
        semaphore.wait(1, LIMIT)
        assert calls == ["blocks", "resumes"]
    finally:
        thread_state.pool = None
    assert semaphore._state.waiters == {}


def test_what_is_decided_between_the_spin_and_the_sleep_is_not_slept_for(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphore, other = tg.Semaphore(), tg.Semaphore()
    monkeypatch.setattr(host_wait, "_spin", lambda *_arguments: semaphore._state.__setattr__("payload", 1))
    monkeypatch.setattr(_HostWaiter, "sleep", lambda *_arguments: pytest.fail("slept"))
    assert tg.wait_any([other.at(1), semaphore.at(1)], LIMIT) == semaphore.at(1)
    assert (other._state.waiters, semaphore._state.waiters) == ({}, {})


def test_a_wait_interrupted_in_its_sleep_leaves_no_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> bool:
        raise KeyboardInterrupt

    semaphore = tg.Semaphore()
    monkeypatch.setattr(_HostWaiter, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        semaphore.wait(1)
    assert (semaphore._state.waiters, semaphore._state.calm) == ({}, True)


def test_the_text_of_a_poll_that_found_nothing_is_made_when_read() -> None:
    semaphore, reached = tg.Semaphore(label="s"), tg.Semaphore(1, label="r")
    with pytest.raises(tg.DeadlineExceededError) as caught:
        tg.wait_all([reached.at(1), semaphore.at(1)], 0)
    semaphore.signal(1)
    text = str(caught.value)
    assert text.startswith("not reached within 0 s\nsemaphore 's' has reached 1")
    assert "'r'" not in text
    assert caught.value.timeout == 0
    late = tg.Semaphore(label="late")
    with pytest.raises(tg.DeadlineExceededError) as caught:
        late.wait(1, 0.001)
    late.signal(1)
    assert "nobody has promised this signal" in str(caught.value)
    assert caught.value.timeout == 0.001


def test_any_gives_the_very_object_and_all_waits_for_all() -> None:
    one, two = tg.Semaphore(), tg.Semaphore()
    points = [one.at(1), two.at(1)]
    ends: list[Any] = []
    waiting = background(lambda: ends.append(tg.wait_all(points, LIMIT)))
    two.signal(1)
    assert tg.wait_any(points, LIMIT) is points[1]
    assert tg.wait_any(points, 0) is points[1]
    one.signal(1)
    waiting.result()
    assert ends == [None]
    assert tg.wait_any(points, 0) is points[0]


def test_threads_that_wait_for_one_another_make_progress_without_a_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_wait, "_MOST_LOOKS", 1)
    monkeypatch.setattr(_Spin, "looks", 1)
    semaphore, turns = tg.Semaphore(), 40

    def player(index: int) -> None:
        for turn in range(index, turns, 2):
            semaphore.wait(turn, LIMIT)
            semaphore.signal(turn + 1)

    threads = [background(player, index) for index in range(2)]
    for thread in threads:
        thread.result()
    assert semaphore.value == turns
    assert not threading.current_thread().name.startswith("tidegate")
