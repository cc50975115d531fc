"""The trampoline of a thread: what a signal frees runs there, up to a share, and the rest elsewhere."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import thread_state
from tidegate._core.background import reaper, runner
from tidegate._core.thread_state import SHARE, drain, hand_over, run_unlimited

from .hand_driver import LIMIT, catch_up


class Entry:
    """Something on a trampoline that tells who ran it."""

    def __init__(self, log: list[Entry], is_work: bool, then: Callable[[], object] | None = None) -> None:
        self.log = log
        self.is_work = is_work
        self.then = then
        self.ran = 0
        self.thread = ""

    def fire(self) -> None:
        self.ran += 1
        self.thread = threading.current_thread().name
        self.log.append(self)
        if self.then is not None:
            self.then()


def give(entries: list[Any]) -> None:
    thread_state.thread_state.queue.extend(entries)
    drain()


HERE = threading.current_thread().name


@pytest.fixture
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the number of submissions ends a share."""
    monkeypatch.setattr(thread_state, "SHARE_SECONDS", 3600.0)


@pytest.mark.parametrize("count", [1, SHARE - 1, SHARE, SHARE + 1, 3 * SHARE])
@pytest.mark.usefixtures("no_hurry")
def test_a_thread_runs_256_submissions_and_the_runner_takes_the_rest_in_order(count: int) -> None:
    log: list[Entry] = []
    entries = [Entry(log, is_work=True) for _ in range(count)]
    give(entries)
    catch_up(runner)
    assert log == entries
    assert [entry.thread == HERE for entry in entries] == [True] * min(count, 256) + [False] * max(0, count - 256)
    assert {entry.thread for entry in entries[256:]} <= {"tidegate-runner"}


@pytest.mark.usefixtures("no_hurry")
def test_callbacks_stay_on_their_thread_and_do_not_count_for_the_share() -> None:
    log: list[Entry] = []
    entries = [Entry(log, is_work=index % 3 == 0) for index in range(3 * 300)]
    give(entries)
    catch_up(runner)
    works = [entry for entry in entries if entry.is_work]
    callbacks = [entry for entry in entries if not entry.is_work]
    assert {entry.thread for entry in callbacks} == {HERE}
    assert [entry.thread for entry in works] == [HERE] * 256 + ["tidegate-runner"] * 44
    assert [entry for entry in log if not entry.is_work] == callbacks
    assert [entry for entry in log if entry.is_work] == works
    assert all(entry.ran == 1 for entry in entries)


def test_callbacks_alone_are_never_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_state, "SHARE_SECONDS", -1.0)
    log: list[Entry] = []
    give([Entry(log, is_work=False) for _ in range(1000)])
    assert [entry.thread for entry in log] == [HERE] * 1000


def test_a_share_ends_early_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_state, "SHARE_SECONDS", -1.0)
    log: list[Entry] = []
    entries = [Entry(log, is_work=True) for _ in range(40)]
    give(entries)
    catch_up(runner)
    assert [entry.thread == HERE for entry in entries] == [True] * 15 + [False] * 25


@pytest.mark.usefixtures("no_hurry")
def test_what_is_freed_after_the_share_was_used_up_goes_to_the_runner_too() -> None:
    log: list[Entry] = []
    late = Entry(log, is_work=True)
    callback = Entry(log, is_work=False, then=lambda: thread_state.thread_state.queue.append(late))
    give([*[Entry(log, is_work=True) for _ in range(257)], callback])
    catch_up(runner)
    assert (late.ran, late.thread) == (1, "tidegate-runner")
    assert callback.thread == HERE


@pytest.mark.usefixtures("no_hurry")
def test_background_threads_have_no_share() -> None:
    log: list[Entry] = []
    entries = [Entry(log, is_work=True) for _ in range(3 * SHARE)]
    reaper.ensure()
    reaper.leave(run_unlimited, entries)
    catch_up(reaper)
    assert log == entries
    assert {entry.thread for entry in entries} == {"tidegate-reaper"}


def test_an_entry_added_by_another_runs_after_it_and_not_inside() -> None:
    log: list[str] = []

    def first() -> None:
        log.append("first begins")
        thread_state.thread_state.queue.append(SimpleNamespace(is_work=False, fire=lambda: log.append("second")))
        drain()
        log.append("first ends")

    give([SimpleNamespace(is_work=False, fire=first)])
    assert log == ["first begins", "first ends", "second"]
    assert not thread_state.thread_state.running


def test_after_an_interrupt_the_reaper_fires_the_entry_and_all_behind_it() -> None:
    log: list[Entry] = []

    def interrupted() -> None:
        if threading.current_thread().name == HERE:
            raise KeyboardInterrupt

    entries = [
        Entry(log, is_work=True),
        Entry(log, is_work=False, then=interrupted),
        Entry(log, is_work=False),
        Entry(log, is_work=True),
    ]
    with pytest.raises(KeyboardInterrupt):
        give(entries)
    assert not thread_state.thread_state.queue
    assert not thread_state.thread_state.running
    catch_up(reaper)
    assert [entry.ran for entry in entries] == [1, 2, 1, 1]
    assert [entry.thread for entry in entries] == [HERE, *["tidegate-reaper"] * 3]


def test_handing_over_moves_everything_to_the_reaper_and_nothing_leaves_no_note() -> None:
    log: list[Entry] = []
    queue: deque[Any] = deque([Entry(log, is_work=False), Entry(log, is_work=True)])
    expected = list(queue)
    hand_over(queue)
    assert not queue
    catch_up(reaper)
    assert log == expected
    hand_over(queue)
    catch_up(reaper)
    assert log == expected


def test_one_signal_that_frees_1000_submissions_leaves_those_beyond_its_share_to_the_runner(
    monkeypatch: pytest.MonkeyPatch, no_hurry: None
) -> None:
    from tidegate._core import submission as module

    threads: list[str] = []
    fire = module.Submission.fire

    def noting(self: tg.Submission) -> None:
        threads.append(threading.current_thread().name)
        fire(self)

    monkeypatch.setattr(module.Submission, "fire", noting)
    with tg.open_device("cpu?workers=1") as device:
        gate, queue = tg.Semaphore(), device.queue()
        held = [queue.barrier(wait=gate.at(1)) for _ in range(1000)]
        gate.signal(1)
        tg.wait_all(held, LIMIT)
        catch_up(runner)
    assert threads.count(HERE) == 256
    assert threads.count("tidegate-runner") == 744


def test_the_time_of_a_share_begins_with_its_second_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(thread_state, "SHARE_SECONDS", 10.0)
    monkeypatch.setattr(thread_state, "monotonic", lambda: clock[0])
    for late, here in ((0, 40), (1, 15), (2, 15)):
        clock[0] = 0.0
        log: list[Entry] = []
        entries = [Entry(log, is_work=True) for _ in range(40)]
        entries[late].then = lambda: clock.__setitem__(0, clock[0] + 11.0)
        give(entries)
        catch_up(runner)
        assert sum(entry.thread == HERE for entry in entries) == here


def test_a_signal_runs_256_submissions_for_a_millisecond_on_its_own_thread() -> None:
    drain()
    assert (thread_state.SHARE, thread_state.SHARE_SECONDS) == (256, 0.001)


def test_a_thread_begins_idle_and_limited() -> None:
    seen: list[Any] = []

    def look() -> None:
        state = thread_state.thread_state
        seen.append((list(state.queue), state.running, state.unlimited, state.pool, state.host_call_device))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(LIMIT)
    assert seen == [([], False, False, None, None)]


@pytest.mark.usefixtures("no_hurry")
def test_what_a_handler_adds_while_a_thread_gives_its_share_away_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Entry] = []
    entries = [Entry(log, is_work=count != SHARE + 3) for count in range(SHARE + 6)]
    late = [Entry(log, is_work=False), Entry(log, is_work=True)]

    class Adding:
        """The runner, and a signal handler that comes when it is asked."""

        @staticmethod
        def ensure() -> None:
            ensured.append(1)

        @staticmethod
        def leave(*note: Any) -> None:
            thread_state.thread_state.queue.extend(late)
            late_given.extend(late)
            late.clear()
            runner.leave(*note)

    late_given: list[Entry] = []
    ensured: list[int] = []
    runner.ensure()
    monkeypatch.setattr(thread_state, "runner", Adding)
    give(entries)
    catch_up(runner)
    assert [entry.ran for entry in (*entries, *late_given)] == [1] * (SHARE + 8)
    assert all(entry.thread == HERE for entry in (*entries, *late_given) if not entry.is_work)
    assert ensured


@pytest.mark.parametrize("handler", ["adds", "runs all"])
def test_what_a_handler_does_while_the_queue_is_handed_over_stands(
    monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    log: list[Entry] = []
    entries: list[Any] = [Entry(log, is_work=False) for _ in range(3)]
    late = Entry(log, is_work=False)
    queue: deque[Any] = deque(entries)
    left: list[object] = []

    def leave(_function: object, firings: list[Any]) -> None:
        left.extend(firings)
        if handler == "runs all":
            queue.clear()
        queue.append(late)

    monkeypatch.setattr(thread_state, "reaper", SimpleNamespace(leave=leave))
    hand_over(queue)
    assert left == entries
    assert list(queue) == [late]


@pytest.mark.parametrize("added", [0, 1])
def test_an_entry_that_gives_the_queue_away_takes_no_other_with_it(added: int) -> None:
    log: list[Entry] = []
    queue = thread_state.thread_state.queue
    late: list[Any] = [Entry(log, is_work=False) for _ in range(added)]

    def give_away() -> None:
        hand_over(queue)
        queue.extend(late)

    give([Entry(log, is_work=False, then=give_away)])
    assert [entry.ran for entry in late] == [1] * added
    assert not queue
    catch_up(reaper)
