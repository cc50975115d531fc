"""The threads of host calls: how many there are, who is woken, and when they end."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import host_calls, process
from tidegate._core.background import reaper
from tidegate._core.host_calls import HostCallPool

from .hand_driver import LIMIT, catch_up

ORDINARY_SIZE = host_calls.SIZE


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

    parking = pool._parked = Parking()
    monkeypatch.setattr(host_calls, "allocate_lock", Gate)
    run(pool, lambda: None)
    assert done.wait(LIMIT)
    for _ in range(2):
        assert parking.somebody.acquire(timeout=LIMIT)
    again = threading.Event()
    run(pool, again.set)
    assert again.wait(LIMIT)
    assert len(gates) == 2


def test_the_pool_has_a_few_more_threads_than_cores_and_not_too_many(pool: HostCallPool) -> None:
    import os

    pool._staff()
    assert min(32, (os.cpu_count() or 1) + 4) == ORDINARY_SIZE
