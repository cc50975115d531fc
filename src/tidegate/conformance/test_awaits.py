"""Awaiting timepoints and submissions, under asyncio and under trio."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .loops import Asyncio, Loop, Trio
from .threads import all_at_once, background

pytestmark = pytest.mark.rules("M11")


@pytest.fixture(params=["asyncio", "trio"])
def loop(request: pytest.FixtureRequest) -> Loop:
    return Asyncio() if request.param == "asyncio" else Trio()


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was raised where nobody could catch it."""
    caught: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", caught.append)
    return caught


# Timepoints ---------------------------------------------------------------------------------------------------------


def test_awaiting_what_is_reached_goes_straight_on(loop: Loop) -> None:
    sem = tg.Semaphore(3)

    async def main() -> None:
        await sem.at(3)
        await sem.at(1)

    loop.run(main)


@pytest.mark.rules("M5", "M11")
def test_an_await_is_woken_by_a_signal_from_another_thread(loop: Loop) -> None:
    sem, begun = tg.Semaphore(), threading.Event()

    def signal() -> None:
        assert begun.wait(LIMIT)
        sem.signal(5)

    async def main() -> None:
        begun.set()
        await sem.at(3)
        assert sem.value == 5

    signaller = background(signal)
    loop.run(main)
    signaller.result()


def test_an_await_is_woken_by_another_task_of_the_same_loop(loop: Loop) -> None:
    one, other = tg.Semaphore(), tg.Semaphore()

    async def ping() -> None:
        for value in range(1, 51):
            one.signal(value)
            await other.at(value)

    async def pong() -> None:
        for value in range(1, 51):
            await one.at(value)
            other.signal(value)

    loop.run(lambda: loop.together(ping, pong))
    assert (one.value, other.value) == (50, 50)


@pytest.mark.rules("M7", "M11")
def test_a_failure_raises_at_the_await_with_its_cause(loop: Loop) -> None:
    sem = tg.Semaphore()
    error = ValueError("broken")

    async def waits() -> None:
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            await sem.at(1)
        assert caught.value.__cause__ is error
        assert caught.value.timepoint == sem.at(1)

    async def fails() -> None:
        await loop.settle()
        sem.fail(error)

    async def main() -> None:
        await loop.together(waits, fails)
        await waits()  # the failure stays

    loop.run(main)


@pytest.mark.rules("M7", "M11")
def test_awaiting_the_past_of_a_failed_semaphore_succeeds(loop: Loop) -> None:
    sem = tg.Semaphore(2)
    sem.fail(ValueError("broken"))

    async def main() -> None:
        await sem.at(2)

    loop.run(main)


@pytest.mark.rules("M11", "M12")
def test_a_task_in_an_await_keeps_its_semaphore(loop: Loop) -> None:
    async def main() -> None:
        sem = tg.Semaphore()
        signal = sem.signal

        async def waits(point: tg.Timepoint = sem.at(1)) -> None:
            await point

        async def signals() -> None:
            await loop.settle()
            gc.collect()
            signal(1)

        del sem
        await loop.together(waits, signals)

    loop.run(main)


# Cancellation -------------------------------------------------------------------------------------------------------


def test_cancelling_one_await_of_many_leaves_the_others_waiting(loop: Loop) -> None:
    sem = tg.Semaphore()
    woken: list[int] = []

    async def waits(index: int) -> None:
        await sem.at(1)
        woken.append(index)

    async def cancels() -> None:
        assert await loop.give_up(lambda: waits(99), meanwhile=lambda: None)
        sem.signal(1)

    loop.run(lambda: loop.together(*(lambda index=index: waits(index) for index in range(5)), cancels))
    assert sorted(woken) == [0, 1, 2, 3, 4]
    assert sem.value == 1


def test_a_cancelled_await_changes_nothing_and_the_signal_may_come_later(loop: Loop, unraisable: list[Any]) -> None:
    sem = tg.Semaphore()

    async def waits() -> None:
        await sem.at(1)

    async def main() -> None:
        for _ in range(20):
            assert await loop.give_up(waits, meanwhile=lambda: None)
        assert (sem.value, sem.failure) == (0, None)
        sem.signal(1)
        await waits()

    loop.run(main)
    assert unraisable == []


def test_an_await_may_be_cancelled_just_when_it_is_signalled(loop: Loop, unraisable: list[Any]) -> None:
    """Either outcome is right; nothing may be left over and nothing may break."""

    async def main() -> None:
        for _ in range(20):
            sem = tg.Semaphore()
            await loop.give_up(partial(_awaited, sem.at(1)), meanwhile=partial(sem.signal, 1))
            await sem.at(1)

    loop.run(main)
    assert unraisable == []


@pytest.mark.rules("M9", "M11")
def test_when_any_and_when_all_may_be_cancelled(loop: Loop, unraisable: list[Any]) -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    points = [one.at(1), other.at(1)]

    async def main() -> None:
        assert await loop.give_up(lambda: _awaited(tg.when_any(points)), meanwhile=lambda: None)
        assert await loop.give_up(lambda: _awaited(tg.when_all(points)), meanwhile=lambda: one.signal(1))
        other.signal(1)
        await tg.when_all(points)

    loop.run(main)
    assert unraisable == []


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def test_a_loop_that_was_closed_meanwhile_does_not_disturb_the_signaller(unraisable: list[Any]) -> None:
    sem = tg.Semaphore()
    told: list[tg.Outcome] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)

    async def abandon() -> asyncio.Task[Any]:
        task = asyncio.ensure_future(_awaited(sem.at(1)))
        await Asyncio().settle()
        return task

    task = loop.run_until_complete(abandon())
    loop.close()
    sem.at(1).add_callback(lambda point, outcome, error: told.append(outcome))
    sem.signal(1)
    assert told == [tg.Outcome.REACHED]
    assert not task.done()
    del task
    gc.collect()
    assert unraisable == []


def test_a_loop_that_ends_by_an_error_leaves_nothing_behind(loop: Loop, unraisable: list[Any]) -> None:
    sem = tg.Semaphore()

    class Stop(Exception):
        pass

    async def waits() -> None:
        await sem.at(1)

    async def stops() -> None:
        await loop.settle()
        raise Stop

    with pytest.raises(BaseExceptionGroup):
        loop.run(lambda: loop.together(waits, waits, stops))
    sem.signal(1)
    assert unraisable == []


# Several loops ------------------------------------------------------------------------------------------------------


def test_two_loops_on_two_threads_await_the_same_timepoint(loop: Loop) -> None:
    sem = tg.Semaphore()
    arrived = threading.Barrier(3)

    async def main() -> int:
        arrived.wait(LIMIT)
        await sem.at(1)
        return sem.value

    def signal() -> int:
        arrived.wait(LIMIT)
        sem.signal(1)
        return sem.value

    actions: list[Callable[[], Any]] = [lambda: loop.run(main), lambda: loop.run(main), signal]
    assert all_at_once(3, lambda index: actions[index]()) == [1, 1, 1]


def test_asyncio_and_trio_in_one_process_wake_each_other() -> None:
    pytest.importorskip("trio")
    ping, pong = tg.Semaphore(), tg.Semaphore()

    async def serves() -> None:
        for value in range(1, 21):
            ping.signal(value)
            await pong.at(value)

    async def returns() -> None:
        for value in range(1, 21):
            await ping.at(value)
            pong.signal(value)

    other = background(Trio().run, returns)
    Asyncio().run(serves)
    other.result()


# All and any --------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M9", "M11")
def test_when_all_and_when_any_of_nothing_go_straight_on(loop: Loop) -> None:
    async def main() -> None:
        await tg.when_all([])
        assert await tg.when_any([]) is None

    loop.run(main)


@pytest.mark.rules("M9", "M11")
def test_when_any_gives_the_very_object_that_is_reached(loop: Loop) -> None:
    one, other = tg.Semaphore(), tg.Semaphore()
    points = [one.at(1), other.at(1)]

    async def waits() -> None:
        assert await tg.when_any(points) is points[1]
        assert await tg.when_any(points) is points[1]

    async def signals() -> None:
        await loop.settle()
        other.signal(1)

    loop.run(lambda: loop.together(waits, signals))
    assert one.value == 0


@pytest.mark.rules("M9", "M11")
def test_when_all_waits_for_the_last(loop: Loop) -> None:
    sems = [tg.Semaphore() for _ in range(3)]
    order: list[str] = []

    async def waits() -> None:
        await tg.when_all([sem.at(1) for sem in sems])
        order.append("woken")

    async def signals() -> None:
        for index, sem in enumerate(sems):
            await loop.settle()
            order.append(f"signal {index}")
            sem.signal(1)

    loop.run(lambda: loop.together(waits, signals))
    assert order == ["signal 0", "signal 1", "signal 2", "woken"]


@pytest.mark.rules("M9", "M11")
def test_a_failure_ends_when_all_and_when_any_and_leaves_the_others_alone(loop: Loop) -> None:
    broken, sound = tg.Semaphore(), tg.Semaphore()
    error = ValueError("broken")

    async def waits(wait: Callable[[list[tg.Timepoint]], Awaitable[Any]]) -> None:
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            await wait([sound.at(1), broken.at(1)])
        assert caught.value.__cause__ is error

    async def fails() -> None:
        await loop.settle()
        broken.fail(error)

    loop.run(lambda: loop.together(lambda: waits(tg.when_all), lambda: waits(tg.when_any), fails))
    assert sound.failure is None
    sound.signal(1)


@pytest.mark.rules("M9", "M11")
def test_in_when_any_what_is_reached_wins_over_what_has_failed(loop: Loop) -> None:
    broken, sound = tg.Semaphore(), tg.Semaphore(1)
    broken.fail(ValueError("broken"))
    reached = sound.at(1)

    async def main() -> None:
        assert await tg.when_any([broken.at(1), reached]) is reached

    loop.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1000])
def test_a_thousand_awaits_are_woken_by_one_signal(loop: Loop, count: int) -> None:
    sem = tg.Semaphore()
    woken: list[int] = []

    async def waits(index: int) -> None:
        await sem.at(1 + index % 7)
        woken.append(index)

    async def signals() -> None:
        await loop.settle()
        background(sem.signal, 7).result()

    # On a thread of its own: a loop that was woken in a wrong way may never end.
    tasks = [lambda index=index: waits(index) for index in range(count)]
    background(loop.run, lambda: loop.together(*tasks, signals)).result(timeout=2 * LIMIT)
    assert sorted(woken) == list(range(count))


# Submissions --------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M11", "M21")
def test_a_submission_can_be_awaited(loop: Loop, queue: tg.Queue) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()

    async def waits() -> None:
        work = queue.barrier(wait=gate.at(1), signal=done.at(1))
        await work
        assert work.done
        assert done.value == 1
        await work

    async def opens() -> None:
        await loop.settle()
        gate.signal(1)

    loop.run(lambda: loop.together(waits, opens))


@pytest.mark.rules("M4", "M11")
def test_an_await_is_woken_by_a_running_device_that_nobody_looks_at(loop: Loop, queue: tg.Queue, latch: Latch) -> None:
    work = latch.block(queue)
    latch.wait_until_running()

    async def waits() -> None:
        await work

    async def opens() -> None:
        await loop.settle()
        latch.open()

    loop.run(lambda: loop.together(waits, opens))


@pytest.mark.rules("M11", "M21")
def test_awaiting_a_host_call_gives_its_result(loop: Loop, queue: tg.Queue) -> None:
    async def main() -> object:
        return await queue.host_call(lambda: "answer")

    assert loop.run(main) == "answer"


@pytest.mark.rules("M11", "M21")
def test_awaiting_a_failed_submission_raises_with_the_work_s_error_as_cause(loop: Loop, queue: tg.Queue) -> None:
    error = ValueError("from the call")

    def broken() -> None:
        raise error

    async def main() -> None:
        work = queue.host_call(broken)
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            await work
        assert caught.value.__cause__ is error

    loop.run(main)


@pytest.mark.rules("M11", "M9", "M21")
def test_submissions_and_timepoints_are_awaited_together(loop: Loop, queue: tg.Queue) -> None:
    gate, sem = tg.Semaphore(), tg.Semaphore()

    async def waits() -> None:
        work = queue.barrier(wait=gate.at(1))
        assert await tg.when_any([work, sem.at(1)]) == sem.at(1)
        gate.signal(1)
        await tg.when_all([work, sem.at(1)])
        assert await tg.when_any([work]) is work

    async def signals() -> None:
        await loop.settle()
        sem.signal(1)

    loop.run(lambda: loop.together(waits, signals))


@pytest.mark.rules("M11", "M21")
def test_cancelling_an_await_does_not_cancel_the_submission(loop: Loop, queue: tg.Queue) -> None:
    gate = tg.Semaphore()

    async def main() -> None:
        work = queue.barrier(wait=gate.at(1))
        assert await loop.give_up(lambda: _awaited(work), meanwhile=lambda: None)
        assert not work.done
        gate.signal(1)
        await work

    loop.run(main)


@pytest.mark.rules("M11", "M14")
def test_many_tasks_submit_and_await_each_their_own_work(loop: Loop, queue: tg.Queue) -> None:
    results: list[int] = []

    async def works(index: int) -> None:
        gate = tg.Semaphore()
        call = queue.host_call(int, index, wait=gate.at(1))
        await loop.settle()
        gate.signal(1)
        results.append(await call)

    loop.run(lambda: loop.together(*(lambda index=index: works(index) for index in range(20))))
    assert sorted(results) == list(range(20))


@pytest.mark.rules("M11")
def test_an_await_runs_the_task_only_on_its_own_thread(loop: Loop, queue: tg.Queue) -> None:
    threads: set[int] = set()

    async def main() -> None:
        for _ in range(5):
            await queue.host_call(lambda: None)
            threads.add(threading.get_ident())

    loop.run(main)
    assert threads == {threading.get_ident()}


@pytest.mark.rules("M11", "M38")
@pytest.mark.slow
def test_no_await_misses_a_signal_that_races_with_it(loop: Loop, switch_often: None) -> None:
    sems = [tg.Semaphore() for _ in range(300)]
    begun = threading.Event()

    def signals() -> None:
        assert begun.wait(LIMIT)
        for sem in sems:
            sem.signal(1)

    async def main() -> None:
        begun.set()
        for sem in sems:
            await sem.at(1)

    signaller = background(signals)
    loop.run(main)
    signaller.result()
