"""The threads of host calls: how many there are, who is woken, who watches, and when they end."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import weakref
from _thread import LockType
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import host_calls, process, workload
from tidegate._core.background import reaper
from tidegate._core.host_calls import HostCallPool
from tidegate.conformance.interrupts import calls_at, interrupted_at, unless_stuck

from .hand_driver import LIMIT, catch_up

ORDINARY_SIZE = host_calls.SIZE


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> HostCallPool:
    monkeypatch.setattr(process, "_child_hooks", [])
    monkeypatch.setattr(host_calls, "SIZE", 2)
    reaper.ensure()
    return HostCallPool()


class Patience:
    """The time of those who watch, in the hands of the test."""

    def __init__(self) -> None:
        self.asleep = threading.Semaphore(0)
        self._turns = threading.Semaphore(0)

    def sleep(self, seconds: float) -> None:
        assert seconds == host_calls._PATIENCE
        self.asleep.release()
        assert self._turns.acquire(timeout=LIMIT)

    def wait_until_asleep(self) -> None:
        assert self.asleep.acquire(timeout=LIMIT)

    def ends(self) -> None:
        self._turns.release()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    made = Patience()
    monkeypatch.setattr(host_calls, "time", made)
    return made


class Blocking:
    """A task that blocks by other means than a wait, in any number of copies."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)

    def __call__(self) -> None:
        self.began.release()
        assert self.go.acquire(timeout=LIMIT)
        self.ended.release()

    def wait_until_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.began.acquire(timeout=LIMIT)

    def end(self, count: int) -> None:
        for _ in range(count):
            self.go.release()
        for _ in range(count):
            assert self.ended.acquire(timeout=LIMIT)


class Ticket:
    taken = False


def run(pool: HostCallPool, task: Callable[[], object]) -> Ticket:
    ticket = Ticket()
    pool.run(task, ticket)  # type: ignore[arg-type]
    return ticket


def watchers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "tidegate-host-watch" and one.is_alive()]


def wait_until_nobody_watches() -> None:
    catch_up(reaper)
    for thread in watchers():
        thread.join(LIMIT)
        assert not thread.is_alive()


# How many there are -------------------------------------------------------------------------------------------------


def test_no_more_threads_than_the_size_are_started_without_hesitation(pool: HostCallPool, patience: Patience) -> None:
    task = Blocking()
    tickets = [run(pool, task) for _ in range(5)]
    assert all(ticket.taken for ticket in tickets)
    task.wait_until_begun(2)
    catch_up(reaper)
    assert (pool._threads, len(pool._tasks)) == (2, 3)
    patience.wait_until_asleep()
    task.end(5)
    patience.ends()
    wait_until_nobody_watches()
    assert pool._threads == 2


def test_while_nobody_comes_back_more_are_started_each_time(pool: HostCallPool, patience: Patience) -> None:
    task = Blocking()
    for _ in range(20):
        run(pool, task)
    task.wait_until_begun(2)
    for threads, more in ((2, 1), (3, 2), (5, 3), (8, 4), (12, 5), (17, 3)):
        patience.wait_until_asleep()
        assert pool._threads == threads
        patience.ends()
        task.wait_until_begun(more)  # never more than there are tasks
    wait_until_nobody_watches()
    assert pool._threads == 20
    assert not pool._watched
    task.end(20)


def test_as_soon_as_one_comes_back_no_more_are_started(pool: HostCallPool, patience: Patience) -> None:
    task = Blocking()
    for _ in range(12):
        run(pool, task)
    patience.wait_until_asleep()
    patience.ends()
    patience.wait_until_asleep()
    patience.ends()
    patience.wait_until_asleep()
    assert pool._threads == 5
    task.wait_until_begun(5)
    task.end(1)
    task.wait_until_begun(1)
    patience.ends()
    patience.wait_until_asleep()
    assert pool._threads == 5
    patience.ends()
    patience.wait_until_asleep()
    assert pool._threads == 6  # one, as at the beginning
    task.end(11)
    patience.ends()
    wait_until_nobody_watches()


def test_there_is_one_watcher_and_another_one_for_the_next_time(pool: HostCallPool, patience: Patience) -> None:
    for _ in range(3):
        task = Blocking()
        for _ in range(5):
            run(pool, task)
        patience.wait_until_asleep()
        run(pool, task)
        catch_up(reaper)
        assert len(watchers()) == 1
        task.end(6)
        patience.ends()
        wait_until_nobody_watches()


def test_at_the_limit_nobody_watches_and_nobody_is_started(pool: HostCallPool, patience: Patience) -> None:
    pool._limit = 3
    task = Blocking()
    for _ in range(5):
        run(pool, task)
    patience.wait_until_asleep()
    patience.ends()
    task.wait_until_begun(3)
    wait_until_nobody_watches()
    run(pool, task)
    catch_up(reaper)
    assert (pool._threads, len(pool._tasks), watchers()) == (3, 3, [])
    assert pool.why_waiting() == "ready, but waiting for a free host thread: 3 of 3 are busy"
    task.end(6)
    assert pool._threads == 3


def test_a_limit_below_the_size_counts(pool: HostCallPool, patience: Patience) -> None:
    pool._limit = 1
    task = Blocking()
    for _ in range(3):
        run(pool, task)
    catch_up(reaper)
    assert (pool._threads, watchers()) == (1, [])
    task.end(3)


def test_a_lower_limit_ends_idle_threads_at_once_and_a_higher_one_starts_more(pool: HostCallPool) -> None:
    task = Blocking()
    for _ in range(2):
        run(pool, task)
    task.wait_until_begun(2)
    task.end(2)
    assert pool.set_limit(1) == host_calls._LIMIT
    for _ in range(2):
        run(pool, task)
    task.wait_until_begun(1)
    catch_up(reaper)
    assert (pool._threads, len(pool._tasks)) == (1, 1)
    assert pool.set_limit(2) == 1
    task.wait_until_begun(1)
    task.end(2)


def test_the_pool_grows_while_its_workers_block_in_a_wait(pool: HostCallPool, patience: Patience) -> None:
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
    patience.ends()
    wait_until_nobody_watches()


def test_a_worker_that_blocks_makes_room_for_one_and_gives_it_up_when_it_wakes(
    pool: HostCallPool, patience: Patience
) -> None:
    task = Blocking()
    for _ in range(3):
        run(pool, task)
    task.wait_until_begun(2)
    catch_up(reaper)
    assert (pool._threads, pool._busy()) == (2, 2)
    pool.worker_blocks()
    task.wait_until_begun(1)
    assert (pool._threads, pool._busy()) == (3, 2)
    pool.worker_resumes()
    assert (pool._threads, pool._busy()) == (3, 3)
    run(pool, task)
    catch_up(reaper)
    assert pool._threads == 3
    patience.ends()
    task.end(4)
    patience.ends()
    wait_until_nobody_watches()


def test_who_resumes_in_a_child_of_a_fork_was_never_counted(pool: HostCallPool) -> None:
    pool.worker_blocks()
    pool._renew()
    pool.worker_resumes()
    assert pool._busy() == 0


def test_the_pool_has_a_few_more_threads_than_cores_and_not_too_many() -> None:
    assert min(32, (os.cpu_count() or 1) + 4) == ORDINARY_SIZE


@pytest.mark.parametrize(("asked", "limit"), [("", 1024), (" ", 1024), ("1", 1), (" 64 ", 64)])
def test_the_environment_may_ask_for_a_limit(monkeypatch: pytest.MonkeyPatch, asked: str, limit: int) -> None:
    monkeypatch.setenv("TIDEGATE_HOST_THREADS", asked)
    assert host_calls._limit_asked_for() == limit
    monkeypatch.delenv("TIDEGATE_HOST_THREADS")
    assert host_calls._limit_asked_for() == 1024


@pytest.mark.parametrize("asked", ["0", "-1", "1.0", "all", "1e3", "²"])
def test_a_limit_of_the_environment_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("TIDEGATE_HOST_THREADS", asked)
    with pytest.raises(tg.InvalidArgumentError, match="TIDEGATE_HOST_THREADS is"):
        host_calls._limit_asked_for()


# Who is woken -------------------------------------------------------------------------------------------------------


class Parking(deque):  # type: ignore[type-arg]
    """Tells when somebody parks."""

    def __init__(self) -> None:
        super().__init__()
        self.somebody = threading.Semaphore(0)

    def append(self, gate: Any) -> None:
        super().append(gate)
        self.somebody.release()


@pytest.fixture
def parking(pool: HostCallPool, monkeypatch: pytest.MonkeyPatch) -> Parking:
    made = Parking()
    with monkeypatch.context() as patched:
        patched.setattr(host_calls, "deque", lambda: made)
        pool._renew()
    pool._tasks, pool._blocked = deque(), deque()
    assert pool._parked is made
    return made


def test_an_idle_worker_is_used_again(pool: HostCallPool, parking: Parking) -> None:
    threads: list[threading.Thread] = []
    for _ in range(5):
        run(pool, lambda: threads.append(threading.current_thread()))
        assert parking.somebody.acquire(timeout=LIMIT)
    assert len(threads) == 5
    assert len(set(threads)) == pool._threads == 1
    assert threads[0].name == "tidegate-host-call"
    assert threads[0].daemon


def test_the_worker_that_parked_last_is_woken_so_that_the_others_may_end(pool: HostCallPool, parking: Parking) -> None:
    task = Blocking()
    run(pool, task)
    run(pool, task)
    task.wait_until_begun(2)
    task.end(2)
    for _ in range(2):
        assert parking.somebody.acquire(timeout=LIMIT)
    first, last = parking
    run(pool, task)
    task.wait_until_begun(1)
    assert list(parking) == [first]
    task.end(1)
    assert parking.somebody.acquire(timeout=LIMIT)
    assert list(parking) == [first, last]


def test_tasks_are_begun_in_the_order_given(pool: HostCallPool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.set_limit(1)
    begun: list[int] = []
    done = threading.Event()
    for number in range(50):
        run(pool, lambda number=number: begun.append(number))
    run(pool, done.set)
    assert done.wait(LIMIT)
    assert begun == list(range(50))


def test_a_task_that_comes_as_its_worker_parks_is_seen(pool: HostCallPool) -> None:
    """Between the look at the tasks and the parking: nobody was there to be woken."""
    done = threading.Event()

    class Late(deque):  # type: ignore[type-arg]
        def append(self, gate: Any) -> None:
            if not done.is_set():
                pool._tasks.append((done.set, Ticket()))  # type: ignore[arg-type]
            super().append(gate)

    pool._parked = Late()
    pool._wakes = map(LockType.release, iter(pool._parked.pop, None))
    run(pool, lambda: None)
    assert done.wait(LIMIT)


def test_nobody_is_woken_or_started_without_a_task(pool: HostCallPool) -> None:
    pool._staff()
    assert (pool._threads, pool._watched) == (0, False)


def test_who_waits_for_a_thread_is_known(pool: HostCallPool, patience: Patience) -> None:
    task = Blocking()
    tickets = [run(pool, task) for _ in range(3)]
    task.wait_until_begun(2)
    assert pool.waiting() == {tickets[2]}
    assert pool.why_waiting() == "ready, waiting for a host thread"
    task.end(3)
    assert pool.waiting() == set()
    patience.ends()
    wait_until_nobody_watches()


# Their ends ---------------------------------------------------------------------------------------------------------


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


def test_a_task_that_chose_a_worker_whose_patience_has_just_ended_gets_another(
    monkeypatch: pytest.MonkeyPatch, pool: HostCallPool
) -> None:
    threads: list[threading.Thread] = []
    done = threading.Event()

    def task() -> None:
        threads.append(threading.current_thread())
        if len(threads) == 2:
            done.set()

    class Ends(HostCallPool):
        def _park(self, gate: Any) -> bool:
            if done.is_set():
                return super()._park(gate)
            self._parked.append(gate)
            run(self, task)
            assert not gate.locked()
            return False

    ending = Ends()
    run(ending, task)
    assert done.wait(LIMIT)
    assert threads[0] is not threads[1]
    threads[0].join(LIMIT)
    assert ending._threads == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_something_ends_is_counted_out_and_its_place_taken(pool: HostCallPool) -> None:
    """As `PyThreadState_SetAsyncExc` may."""
    threads: list[threading.Thread] = []
    done = threading.Event()

    class Mortal(HostCallPool):
        def _park(self, gate: Any) -> bool:
            if done.is_set():
                return super()._park(gate)
            threads.append(threading.current_thread())
            self._parked.append(gate)
            raise SystemExit

    mortal = Mortal()
    run(mortal, lambda: None)
    while not threads:
        catch_up(reaper)
    threads[0].join(LIMIT)
    assert (mortal._threads, list(mortal._parked)) == (0, [])
    run(mortal, done.set)
    assert done.wait(LIMIT)


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


def test_a_task_is_dropped_before_its_worker_sleeps(pool: HostCallPool) -> None:
    class Task:
        def __call__(self) -> None:
            pass

    task, gone = Task(), threading.Event()
    weakref.finalize(task, gone.set)
    run(pool, task)
    del task
    assert gone.wait(LIMIT)


# No thread to be had ------------------------------------------------------------------------------------------------


def refusing(*_args: object, **_names: object) -> Any:
    raise RuntimeError("can't start new thread")


def test_where_no_thread_can_be_had_host_calls_fail_instead_of_waiting(
    device: tg.Device, pool: HostCallPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "host_pool", pool)
    end = tg.Semaphore()
    with monkeypatch.context() as patched:
        patched.setattr(host_calls, "threading", SimpleNamespace(Thread=refusing, Lock=threading.Lock))
        calls = [device.queue().host_call(pytest.fail, signal=end.at(1)), device.queue().host_call(pytest.fail)]
        for call in calls:
            with pytest.raises(tg.SemaphoreFailedError) as caught:
                call.wait(LIMIT)
            cause = caught.value.__cause__
            assert isinstance(cause, tg.ResourceExhaustedError)
            assert str(cause) == "no thread could be started for a host call: can't start new thread"
            assert isinstance(cause.__cause__, RuntimeError)
        assert end.failure is calls[0].error
        assert (pool._threads, pool._watched) == (0, False)
    assert device.queue().host_call(lambda: "again").result(LIMIT) == "again"


def test_where_no_more_threads_can_be_had_those_that_are_there_do_the_work(
    device: tg.Device, pool: HostCallPool, monkeypatch: pytest.MonkeyPatch, patience: Patience
) -> None:
    monkeypatch.setattr(workload, "host_pool", pool)
    task = Blocking()
    running = device.queue().host_call(task)
    task.wait_until_begun(1)
    with monkeypatch.context() as patched:
        patched.setattr(host_calls, "threading", SimpleNamespace(Thread=refusing, Lock=threading.Lock))
        waiting = [device.queue().host_call(lambda: "done") for _ in range(3)]
        catch_up(reaper)
        assert (pool._threads, pool._watched) == (1, False)
    task.end(1)
    assert [call.result(LIMIT) for call in waiting] == ["done"] * 3
    running.wait(LIMIT)


# What may come between ----------------------------------------------------------------------------------------------


def test_an_interrupt_loses_no_task_and_no_worker(pool: HostCallPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is all there may be, and it never gives up: were it not woken, nothing would run."""
    monkeypatch.setattr(host_calls, "_IDLE_SECONDS", 10 * LIMIT)
    pool.set_limit(1)
    threads: list[threading.Thread] = []
    for step in itertools.count(1):
        done, after = threading.Event(), threading.Event()
        ticket = Ticket()
        with interrupted_at(step) as what:
            pool.run(lambda: (threads.append(threading.current_thread()), done.set()), ticket)  # type: ignore[arg-type]
        assert what.raised == what.fired
        if ticket.taken:
            assert done.wait(LIMIT), f"lost by the {what}"
        run(pool, after.set)
        assert after.wait(LIMIT), f"a worker was lost by the {what}"
        if not what.fired:
            break
    assert step > 5
    assert len(threads) >= step - 3
    assert len(set(threads)) == pool._threads == 1


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
@pytest.mark.parametrize("busy", [0, 1, 2])
def test_a_task_may_be_given_by_a_handler_at_any_step_of_giving_one(
    pool: HostCallPool, patience: Patience, busy: int
) -> None:
    for step in itertools.count(1):
        ran: deque[int] = deque()
        both = threading.Semaphore(0)
        blocking = Blocking()
        for _ in range(busy):
            run(pool, blocking)
        blocking.wait_until_begun(busy)

        def task(number: int, ran: deque[int] = ran, both: threading.Semaphore = both) -> None:
            ran.append(number)
            both.release()

        with (
            unless_stuck(LIMIT),
            calls_at(step, lambda task=task: run(pool, lambda: task(2))) as what,  # type: ignore[misc]
        ):
            run(pool, lambda task=task: task(1))
        if not what.fired:
            run(pool, lambda task=task: task(2))
        blocking.end(busy)
        patience.ends()
        for _ in range(2):
            assert both.acquire(timeout=LIMIT), f"lost at the {what}"
        assert sorted(ran) == [1, 2]
        if not what.fired:
            break
    catch_up(reaper)
    patience.ends()
    wait_until_nobody_watches()
    assert step > 5
