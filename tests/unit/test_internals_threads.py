"""The trampoline of a thread, the two background threads, and the pool of host-call threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import background, host_calls, process, thread_state
from tidegate._core.background import Background, reaper, report_unraisable, runner
from tidegate._core.host_calls import HostCallPool
from tidegate._core.lock import core_lock, interrupted_here
from tidegate._core.thread_state import SHARE, drain, hand_over, run_unlimited

LIMIT = 30.0
ORDINARY_SIZE = host_calls.SIZE


def catch_up(*threads: Background) -> None:
    for thread in threads or (reaper, runner):
        done = threading.Event()
        thread.ensure()
        thread.leave(done.set)
        assert done.wait(LIMIT)


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


# The trampoline ----------------------------------------------------------------------------------------------------


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


# Background threads ------------------------------------------------------------------------------------------------


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    caught: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", caught.append)
    yield caught
    caught.clear()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Background:
    monkeypatch.setattr(process, "_child_hooks", [])
    return Background("tidegate-test")


def test_notes_are_done_in_the_order_left_also_those_left_before_the_thread_began(worker: Background) -> None:
    done: list[tuple[int, str]] = []
    for number in range(100):
        worker.leave(lambda n=number: done.append((n, threading.current_thread().name)))
    assert done == []
    catch_up(worker)
    assert done == [(number, "tidegate-test") for number in range(100)]


def test_ensuring_twice_starts_one_daemon_thread(worker: Background) -> None:
    before = set(threading.enumerate())
    worker.ensure()
    worker.ensure()
    (started,) = set(threading.enumerate()) - before
    assert (started.name, started.daemon) == ("tidegate-test", True)


def test_a_note_that_raises_is_reported_and_the_next_is_done(worker: Background, unraisable: list[Any]) -> None:
    done: list[int] = []

    def fails(value: int) -> None:
        raise SystemExit(value)

    worker.leave(fails, 3)
    worker.leave(done.append, 1)
    catch_up(worker)
    assert done == [1]
    (report,) = unraisable
    assert (report.exc_type, report.exc_value.code, report.object) == (SystemExit, 3, fails)
    assert report.exc_traceback is report.exc_value.__traceback__
    assert report.err_msg == "exception ignored in"


def test_a_note_is_dropped_before_the_thread_sleeps(worker: Background) -> None:
    class Thing:
        def use(self, other: object) -> None:
            pass

    gone = [threading.Event(), threading.Event()]
    things = [Thing(), Thing()]
    for thing, event in zip(things, gone, strict=True):
        weakref.finalize(thing, event.set)
    worker.ensure()
    worker.leave(things[0].use, things[1])
    del thing
    things.clear()
    assert all(event.wait(LIMIT) for event in gone)


def test_a_hook_that_raises_is_the_end_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(_report: object) -> None:
        raise RuntimeError("the hook itself")

    monkeypatch.setattr(sys, "unraisablehook", hook)
    report_unraisable(ValueError(), None)


@pytest.mark.parametrize("exiting", [True, False])
def test_a_thread_that_cannot_start_is_an_error_unless_the_interpreter_exits(
    worker: Background, monkeypatch: pytest.MonkeyPatch, exiting: bool
) -> None:
    class Refusing:
        def __init__(self, *_args: object, **_names: object) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(process.here, "exiting", exiting)
    with monkeypatch.context() as patched:
        patched.setattr(background.threading, "Thread", Refusing)
        if exiting:
            worker.ensure()
        else:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                worker.ensure()
    catch_up(worker)  # it is not held for started


def test_a_semaphore_collected_inside_a_core_section_fails_its_waiters_from_the_reaper() -> None:
    told: list[tuple[str, tg.Outcome, BaseException | None]] = []
    semaphore = tg.Semaphore(3, label="dropped")
    semaphore.at(4).add_callback(
        lambda _p, outcome, error: told.append((threading.current_thread().name, outcome, error))
    )
    with core_lock:
        assert interrupted_here()
        del semaphore
        gc.collect()
        assert told == []
    catch_up(reaper)
    ((thread, outcome, error),) = told
    assert (thread, outcome) == ("tidegate-reaper", tg.Outcome.FAILED)
    assert isinstance(error, tg.AbortedError)
    assert str(error) == "semaphore 'dropped' was dropped at 3: nobody is left who could signal"


def test_signal_fail_submit_and_cancel_inside_a_core_section_are_done_by_the_reaper() -> None:
    signalled, failed, calls = tg.Semaphore(), tg.Semaphore(), []
    signalled.at(2).add_callback(lambda *_told: calls.append("signalled"))
    failed.at(1).add_callback(lambda *_told: calls.append("failed"))
    kept = tg.Semaphore()
    subscription = kept.at(1).add_callback(lambda *_told: calls.append("never"))
    with tg.open_device("cpu?workers=1") as device:
        with core_lock:
            signalled.signal(2)
            failed.fail(ValueError("inside"))
            done = device.queue().barrier(signal=kept.at(1))
            assert subscription.cancel()
            assert (signalled.value, failed._state.failure, kept.value) == (0, None, 0)
        catch_up(reaper)
        assert done.done
    assert (signalled.value, str(failed.failure), kept.value) == (2, "inside", 1)
    assert calls == ["signalled", "failed"]


def test_a_refused_submission_inside_a_core_section_fails_instead_of_raising() -> None:
    semaphore = tg.Semaphore(5)
    with tg.open_device("cpu?workers=1") as device:
        with core_lock:
            late = device.queue().barrier(signal=semaphore.at(5))
        catch_up(reaper)
        assert isinstance(late.error, tg.InvalidArgumentError)


def test_blocking_inside_a_core_section_is_refused() -> None:
    semaphore = tg.Semaphore(label="far")
    with core_lock, pytest.raises(tg.FailedPreconditionError, match="cannot block for semaphore 'far' to reach 1"):
        semaphore.wait(1, LIMIT)


# Host-call threads -------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> HostCallPool:
    monkeypatch.setattr(process, "_child_hooks", [])
    monkeypatch.setattr(host_calls, "SIZE", 2)
    return HostCallPool()


class Ticket:
    taken = False


def run(pool: HostCallPool, task: Callable[[], object]) -> Ticket:
    ticket = Ticket()
    pool.run(task, ticket)  # type: ignore[arg-type]
    return ticket


def test_no_more_threads_than_the_size_run_tasks_that_block_elsewhere(pool: HostCallPool) -> None:
    go, done = threading.Event(), threading.Semaphore(0)

    def task() -> None:
        assert go.wait(LIMIT)
        done.release()

    tickets = [run(pool, task) for _ in range(5)]
    assert all(ticket.taken for ticket in tickets)
    assert pool._threads == 2
    go.set()
    for _ in range(5):
        assert done.acquire(timeout=LIMIT)
    assert pool._threads == 2


def test_the_pool_grows_while_its_workers_block_in_a_wait(pool: HostCallPool) -> None:
    chain, count, threads = tg.Semaphore(), 12, set()

    def link(number: int) -> None:
        threads.add(threading.get_ident())
        chain.wait(number, LIMIT)
        chain.signal(number + 1)

    for number in range(count, 0, -1):
        run(pool, lambda number=number: link(number))
    run(pool, lambda: chain.signal(1))
    chain.wait(count + 1, LIMIT)
    assert len(threads) == count  # the signal is the last task: all links wait at once before it
    quiet = threading.Event()
    run(pool, quiet.set)
    assert quiet.wait(LIMIT)


def test_a_worker_that_blocks_makes_room_for_one_and_gives_it_up_when_it_wakes(pool: HostCallPool) -> None:
    go = threading.Event()
    for _ in range(3):
        run(pool, lambda: go.wait(LIMIT))
    assert (pool._threads, pool._blocked) == (2, 0)
    pool.worker_blocks()
    assert (pool._threads, pool._blocked) == (3, 1)
    pool.worker_resumes()
    assert (pool._threads, pool._blocked) == (3, 0)
    run(pool, lambda: go.wait(LIMIT))
    assert pool._threads == 3
    go.set()


class Parking(deque):  # type: ignore[type-arg]
    """Tells when somebody parks."""

    def __init__(self) -> None:
        super().__init__()
        self.somebody = threading.Semaphore(0)

    def append(self, gate: Any) -> None:
        super().append(gate)
        self.somebody.release()


def test_an_idle_worker_is_used_again(pool: HostCallPool) -> None:
    parking = pool._parked = Parking()
    threads: list[threading.Thread] = []
    for _ in range(5):
        run(pool, lambda: threads.append(threading.current_thread()))
        assert parking.somebody.acquire(timeout=LIMIT)
    assert len(threads) == 5
    assert len(set(threads)) == pool._threads == 1
    assert threads[0].name == "tidegate-host-call"
    assert threads[0].daemon


def test_tasks_are_begun_in_the_order_given(pool: HostCallPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_calls, "SIZE", 1)
    begun: list[int] = []
    done = threading.Event()
    for number in range(50):
        run(pool, lambda number=number: begun.append(number))
    run(pool, done.set)
    assert done.wait(LIMIT)
    assert begun == list(range(50))


def test_an_idle_worker_ends_after_a_while_and_a_new_one_comes(
    pool: HostCallPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_calls, "_IDLE_SECONDS", 0.001)
    for _ in range(2):
        threads: list[threading.Thread] = []
        began = threading.Event()
        run(pool, lambda: (threads.append(threading.current_thread()), began.set()))
        assert began.wait(LIMIT)
        threads[0].join(LIMIT)
        assert not threads[0].is_alive()
        assert (pool._threads, list(pool._parked)) == (0, [])


def test_a_worker_chosen_to_wake_in_the_moment_it_would_end_stays(pool: HostCallPool) -> None:
    gate, stranger = threading.Lock(), threading.Lock()
    pool._threads = 1
    pool._parked.append(gate)
    assert not pool._ends(stranger)
    assert (pool._threads, list(pool._parked)) == (1, [gate])
    assert pool._ends(gate)
    assert (pool._threads, list(pool._parked)) == (0, [])


def test_a_task_that_raises_is_reported_and_its_worker_goes_on(pool: HostCallPool, unraisable: list[Any]) -> None:
    def fails() -> None:
        raise SystemExit("a task")

    done = threading.Event()
    run(pool, fails)
    run(pool, done.set)
    assert done.wait(LIMIT)
    catch_up(reaper)
    deadline = threading.Event()
    run(pool, deadline.set)
    assert deadline.wait(LIMIT)
    assert [report.object for report in unraisable] == [fails]


def test_where_no_thread_can_start_the_caller_is_told_only_if_nobody_is_there(
    pool: HostCallPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, *_args: object, **_names: object) -> None:
            raise RuntimeError("can't start new thread")

    done, notes = threading.Event(), []
    with monkeypatch.context() as patched:
        patched.setattr(host_calls.threading, "Thread", Refusing)
        patched.setattr(host_calls, "reaper", SimpleNamespace(leave=notes.append))
        ticket = Ticket()
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.run(done.set, ticket)  # type: ignore[arg-type]
        assert ticket.taken
        assert pool._threads == 0
        assert notes == [pool._staff]
        pool._threads = 1
        run(pool, lambda: None)
        assert pool._threads == 1
        pool._threads = 0
    pool._staff()
    assert done.wait(LIMIT)


def test_nobody_is_woken_or_started_without_a_task(pool: HostCallPool) -> None:
    pool._staff()
    assert pool._threads == 0


def test_a_thread_that_was_started_meanwhile_is_not_started_again(
    worker: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late:
        def __enter__(self) -> None:
            worker._started = True  # another thread was faster

        def __exit__(self, *_exc: object) -> None:
            pass

    monkeypatch.setattr(worker, "_starting", Late())
    monkeypatch.setattr(background.threading, "Thread", None)
    worker.ensure()
    worker.ensure()


def test_a_thread_begins_idle_and_limited() -> None:
    seen: list[Any] = []

    def look() -> None:
        state = thread_state.thread_state
        seen.append((list(state.queue), state.running, state.unlimited, state.pool, state.host_call_device))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(LIMIT)
    assert seen == [([], False, False, None, None)]


def test_a_signal_runs_256_submissions_for_a_millisecond_on_its_own_thread() -> None:
    drain()
    assert (thread_state.SHARE, thread_state.SHARE_SECONDS) == (256, 0.001)


def test_a_task_is_dropped_before_its_worker_sleeps(pool: HostCallPool) -> None:
    class Task:
        def __call__(self) -> None:
            pass

    task, gone = Task(), threading.Event()
    weakref.finalize(task, gone.set)
    run(pool, task)
    del task
    assert gone.wait(LIMIT)


def test_a_worker_chosen_to_wake_as_its_patience_ends_takes_the_task_and_parks_at_a_new_gate(
    pool: HostCallPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[Any] = []
    done = threading.Event()

    class Gate:
        """Its first sleep ends without a wake, just as somebody has chosen it."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            gates.append(self)

        def acquire(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return self.lock.acquire()
            if len(gates) == 1:
                with pool._lock:
                    pool._parked.remove(self)  # type: ignore[arg-type]
                    pool._tasks.append(done.set)
                return False
            return self.lock.acquire(timeout=LIMIT)

        def release(self) -> None:
            self.lock.release()

    monkeypatch.setattr(host_calls, "allocate_lock", Gate)
    run(pool, lambda: None)
    assert done.wait(LIMIT)
    again = threading.Event()
    run(pool, again.set)
    assert again.wait(LIMIT)
    assert len(gates) == 2


def test_the_pool_has_a_few_more_threads_than_cores_and_not_too_many(pool: HostCallPool) -> None:
    import os

    pool._staff()
    assert min(32, (os.cpu_count() or 1) + 4) == ORDINARY_SIZE


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
