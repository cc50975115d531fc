"""The threads of host calls: as many as it takes, up to a limit; started by others, so that nothing can come between.

The pool is the process's, not a device's. Its threads bear a name, by which they are counted here.
"""

from __future__ import annotations

import gc
import os
import queue as queues
import signal
import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

import tidegate as tg
from tidegate.lowlevel import set_host_threads

from .interrupts import Interruption, Striker, calls_at, interrupted_at, unless_stuck
from .latches import LIMIT
from .test_interrupts import Told, assert_it_ends, at_every_step

pytestmark = pytest.mark.rules("M33")

#: What comes beyond the threads that are there when a test begins.
MORE = 40

Started = tuple[list[tg.Submission], threading.Event]


def threads(name: str = "tidegate-host-call") -> list[threading.Thread]:
    """The threads of the pool."""
    return [thread for thread in threading.enumerate() if thread.name == name and thread.is_alive()]


@pytest.fixture
def single(queue: tg.Queue) -> Iterator[None]:
    """The pool has one thread at the beginning, and its usual limit."""
    before = set_host_threads(1)
    only = queue.host_call(threading.current_thread).result(LIMIT)
    for thread in threads():
        if thread is not only:
            thread.join(LIMIT)
    set_host_threads(before)
    yield
    set_host_threads(before)


def start_blocked(queue: tg.Queue, count: int) -> Started:
    """Have host calls running that wait for an event of Python's."""
    go, running = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        running.release()
        assert go.wait(LIMIT)

    calls = [queue.host_call(block) for _ in range(count)]
    for _ in calls:
        assert running.acquire(timeout=LIMIT)
    return calls, go


# Growing ------------------------------------------------------------------------------------------------------------


def chain_of_events(queue: tg.Queue, count: int) -> list[tg.Submission]:
    """Each but the last waits for the one submitted after it."""
    events = [threading.Event() for _ in range(count + 1)]

    def link(i: int) -> None:
        assert events[i + 1].wait(LIMIT)
        events[i].set()

    return [queue.host_call(link, i) for i in range(count)] + [queue.host_call(events[count].set)]


def getters_before_putters(queue: tg.Queue, count: int) -> list[tg.Submission]:
    """Nothing is put before all that get are under way."""
    box: queues.Queue[int] = queues.Queue()
    got = [queue.host_call(box.get, True, LIMIT) for _ in range(count)]
    return got + [queue.host_call(box.put, i) for i in range(count)]


def meeting(queue: tg.Queue, count: int) -> list[tg.Submission]:
    """Nobody goes on before everybody is there."""
    barrier = threading.Barrier(count)
    return [queue.host_call(barrier.wait, LIMIT) for _ in range(count)]


def lock_in_hand(queue: tg.Queue, count: int) -> list[tg.Submission]:
    """All want a lock that is given back by the last one."""
    lock = threading.Lock()
    lock.acquire()

    def take() -> None:
        assert lock.acquire(timeout=LIMIT)
        lock.release()

    return [queue.host_call(take) for _ in range(count)] + [queue.host_call(lock.release)]


@pytest.mark.slow
@pytest.mark.rules("M33", "M40")
@pytest.mark.parametrize("submit", [chain_of_events, getters_before_putters, meeting, lock_in_hand])
def test_host_calls_may_wait_for_one_another_by_any_means(
    queue: tg.Queue, single: None, submit: Callable[[tg.Queue, int], list[tg.Submission]]
) -> None:
    tg.wait_all(submit(queue, MORE), LIMIT)


@pytest.mark.slow
@pytest.mark.rules("M33", "M40")
def test_host_calls_that_wait_for_one_another_on_two_devices_share_what_threads_there_are(
    queue: tg.Queue, second_queue: tg.Queue, single: None
) -> None:
    tg.wait_all(chain_of_events(queue, MORE) + chain_of_events(second_queue, MORE), LIMIT)


@pytest.mark.slow
@pytest.mark.rules("M33", "M40")
def test_nobody_watches_when_nothing_waits(queue: tg.Queue, single: None) -> None:
    tg.wait_all(meeting(queue, MORE), LIMIT)
    for watcher in threads("tidegate-host-watch"):
        watcher.join(LIMIT)
        assert not watcher.is_alive()
    queue.host_call(lambda: None).wait(LIMIT)
    assert threads("tidegate-host-watch") == []


@pytest.mark.slow
def test_host_calls_that_are_many_and_short_need_few_threads(queue: tg.Queue, single: None) -> None:
    """As long as somebody comes back, nobody is added: far fewer threads than calls that wait."""
    calls = [queue.host_call(lambda: None) for _ in range(5000)]
    tg.wait_all(calls, LIMIT)
    assert len(threads()) < 200


# The limit ----------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M33", "M40")
def test_at_the_limit_host_calls_wait_and_explain_that_all_threads_are_busy(queue: tg.Queue, single: None) -> None:
    set_host_threads(2)
    calls, go = start_blocked(queue, 2)
    end = tg.Semaphore(label="the end")
    third = queue.host_call(lambda: "run", signal=end.at(1))
    behind = queue.barrier(wait=end.at(1))
    assert "ready, but waiting for a free host thread: 2 of 2 are busy" in third.explain()
    assert "2 of 2 are busy" in behind.explain()
    with pytest.raises(tg.DeadlineExceededError, match="2 of 2 are busy"):
        end.wait(1, 0.001)
    assert "issued and not over yet" in calls[0].explain()
    assert len(threads()) == 2
    go.set()
    assert third.result(LIMIT) == "run"
    tg.wait_all([*calls, behind], LIMIT)


def test_a_higher_limit_frees_what_waited_at_the_lower_one(queue: tg.Queue, single: None) -> None:
    set_host_threads(1)
    calls, go = start_blocked(queue, 1)
    last = queue.host_call(go.set)
    assert set_host_threads(2) == 1
    tg.wait_all([*calls, last], LIMIT)


@pytest.mark.rules("M33", "M40")
def test_host_calls_in_a_wait_of_tidegates_do_not_count(queue: tg.Queue, single: None) -> None:
    set_host_threads(1)
    links = [tg.Semaphore() for _ in range(MORE + 1)]

    def link(i: int) -> None:
        links[i + 1].wait(1, LIMIT)
        links[i].signal(1)

    calls = [queue.host_call(link, i) for i in range(MORE)]
    queue.host_call(links[MORE].signal, 1)
    tg.wait_all(calls, LIMIT)


def test_at_a_limit_of_one_host_calls_run_one_at_a_time_in_order(queue: tg.Queue) -> None:
    tg.wait_all([queue.host_call(lambda: None) for _ in range(50)], LIMIT)
    before = set_host_threads(1)
    try:
        for thread in (calls := start_blocked(queue, 1))[0]:
            assert not thread.done
        calls[1].set()
        inside: list[int] = []
        seen: list[tuple[int, int]] = []

        def one(number: int) -> None:
            inside.append(number)
            seen.append((number, len(inside)))
            inside.remove(number)

        tg.wait_all([queue.host_call(one, number) for number in range(200)], LIMIT)
        assert seen == [(number, 1) for number in range(200)]
    finally:
        set_host_threads(before)


def test_files_and_host_calls_share_the_threads_and_the_limit(
    device: tg.Device, queue: tg.Queue, single: None, tmp_path: object
) -> None:
    set_host_threads(1)
    calls, go = start_blocked(queue, 1)
    buffer = device.upload(bytearray(b"abcd"))
    written = queue.write_file(buffer, os.path.join(str(tmp_path), "file"))
    assert "1 of 1 are busy" in written.explain()
    go.set()
    tg.wait_all([*calls, written], LIMIT)


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_a_limit_that_is_no_number_of_threads_is_refused(limit: int, error: type[Exception]) -> None:
    before = set_host_threads(7)
    with pytest.raises(error):
        set_host_threads(limit)
    assert set_host_threads(before) == 7


SCRIPT = """
    import threading
    import tidegate as tg
    with tg.open_device("cpu") as device:
        queue, go, running = device.queue(), threading.Event(), threading.Semaphore(0)

        def block():
            running.release()
            go.wait(20)

        calls = [queue.host_call(block) for _ in range(4)]
        running.acquire(timeout=20), running.acquire(timeout=20)
        print(calls[3].explain())
        go.set()
        tg.wait_all(calls, 20)
"""


@pytest.mark.slow
def test_the_environment_sets_the_limit() -> None:
    run = run_script("2")
    assert run.returncode == 0, run.stderr
    assert "2 of 2 are busy" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5"])
def test_a_limit_in_the_environment_that_is_none_is_an_error_at_the_import(value: str) -> None:
    run = run_script(value)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        "tidegate.errors.InvalidArgumentError: "
        f"TIDEGATE_HOST_THREADS is {value!r}, and must be a whole number, 1 or more"
    )


def run_script(limit: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TIDEGATE_HOST_THREADS": limit}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)


# What may come between ----------------------------------------------------------------------------------------------


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Keep the collector away: its finalizers would make the steps differ from try to try."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def occupy(queue: tg.Queue, gate: tg.Semaphore) -> list[tg.Submission]:
    """Have every thread there is blocked in a wait: the next host call needs a new one."""
    running = threading.Semaphore(0)

    def block() -> None:
        running.release()
        gate.wait(1, LIMIT)

    calls = [queue.host_call(block) for _ in threads()]
    for _ in calls:
        assert running.acquire(timeout=LIMIT)
    return calls


@pytest.mark.slow
@pytest.mark.rules("M19", "M33")
@pytest.mark.usefixtures("single", "no_collection")
@pytest.mark.parametrize("held", [False, True], ids=["call", "signal"])
def test_an_interrupt_as_a_host_call_needs_a_new_thread_comes_out_and_loses_nothing(
    queue: tg.Queue, held: bool
) -> None:
    swallowed: list[str | None] = []

    def attempt(step: int) -> Interruption:
        others, gate, end = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
        busy = occupy(queue, others)
        told = Told(end.at(1))
        ran: list[int] = []
        if held:
            queue.host_call(ran.append, 1, wait=gate.at(1), signal=end.at(1))
        with interrupted_at(step) as what:
            if held:
                gate.signal(1)
            else:
                queue.host_call(ran.append, 1, signal=end.at(1))
        if what.fired and not what.raised:
            swallowed.append(what.where)
        if held and gate.value == 0:
            gate.signal(1)
        try:
            queue.barrier(signal=end.at(1))
        except tg.InvalidArgumentError:
            pass  # it was submitted, and has claimed it
        outcome = assert_it_ends(end.at(1), what)  # while all others are still blocked
        told.once()
        assert len(ran) <= 1
        assert ran or outcome == "failed" or (what.fired and not held)
        others.signal(1)
        tg.wait_all(busy, LIMIT)
        return what

    assert at_every_step(attempt) > 3
    assert swallowed == []


@pytest.mark.slow
@pytest.mark.rules("M12", "M33", "M40")
@pytest.mark.usefixtures("single", "no_collection")
@pytest.mark.parametrize("idle", [True, False], ids=["threads idle", "threads blocked"])
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
def test_a_handler_at_any_step_of_a_host_call_may_set_others_free(queue: tg.Queue, idle: bool) -> None:
    def attempt(step: int) -> Interruption:
        others, gate = tg.Semaphore(), tg.Semaphore()
        busy = [] if idle else occupy(queue, others)
        ran: list[int] = []
        held = [queue.host_call(ran.append, number, wait=gate.at(1)) for number in range(3)]
        with unless_stuck(LIMIT), calls_at(step, lambda: gate.signal(1)) as what:
            held.append(queue.host_call(ran.append, 3))
        if not what.fired:
            gate.signal(1)
        tg.wait_all(held, LIMIT)
        assert sorted(ran) == [0, 1, 2, 3], f"after the {what}"
        others.signal(1)
        tg.wait_all(busy, LIMIT)
        return what

    assert at_every_step(attempt) > 3


@pytest.mark.slow
@pytest.mark.rules("M12", "M33", "M38")
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
def test_real_signals_that_set_host_calls_free_lose_none_and_run_none_twice(queue: tg.Queue) -> None:
    ran: deque[int] = deque()
    gates: deque[tg.Semaphore] = deque()

    def free(frame: FrameType | None) -> None:
        if gates:
            gates.popleft().signal(1)

    calls = []
    with unless_stuck(LIMIT), Striker(signal.SIGALRM, free):
        for number in range(0, 4000, 2):
            gate = tg.Semaphore()
            calls.append(queue.host_call(ran.append, number, wait=gate.at(1)))
            gates.append(gate)
            calls.append(queue.host_call(ran.append, number + 1))
    for gate in gates:
        gate.signal(1)
    tg.wait_all(calls, LIMIT)
    assert sorted(ran) == list(range(4000))


class Frees:
    """Garbage that signals a semaphore when the collector finds it."""

    def __init__(self, gate: tg.Semaphore) -> None:
        self._gate = gate
        self._itself = self

    def __del__(self) -> None:
        self._gate.signal(1)


@pytest.mark.slow
@pytest.mark.rules("M12", "M33", "M38")
def test_finalizers_that_set_host_calls_free_lose_none_and_run_none_twice(queue: tg.Queue) -> None:
    ran: deque[int] = deque()
    calls = []
    gates = []  # kept: whether garbage that signals what goes with it is in time is another question
    before = gc.get_threshold()
    gc.set_threshold(7, 3, 1000)
    try:
        for number in range(0, 2000, 2):
            gate = tg.Semaphore()
            gates.append(gate)
            calls.append(queue.host_call(ran.append, number, wait=gate.at(1)))
            Frees(gate)
            calls.append(queue.host_call(ran.append, number + 1))
    finally:
        gc.set_threshold(*before)
    gc.collect()
    tg.wait_all(calls, LIMIT)
    assert sorted(ran) == list(range(2000))
