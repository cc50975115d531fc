"""Awaits: how often a loop is woken, and what is said where there is none (M11)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg
from tidegate.conformance.threads import background

LIMIT = 30.0
TEXT = r"^await needs a running asyncio or trio loop; use wait\(\) elsewhere$"


def test_an_await_outside_of_a_loop_says_what_it_needs() -> None:
    for awaitable in (tg.when_all([tg.Semaphore().at(1)]), tg.Semaphore().at(1).__await__()):
        with pytest.raises(tg.FailedPreconditionError, match=TEXT):
            awaitable.send(None)


def test_it_says_so_also_where_no_loop_was_ever_imported() -> None:
    program = (
        "import sys, tidegate as tg\n"
        "try:\n    tg.Semaphore().at(1).__await__().send(None)\n"
        "except tg.FailedPreconditionError as error:\n    print(error, 'asyncio' in sys.modules, 'trio' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert told.stdout == "await needs a running asyncio or trio loop; use wait() elsewhere False False\n"


def test_what_is_reached_needs_no_loop() -> None:
    coroutine = tg.when_any([tg.Semaphore().at(1), point := tg.Semaphore(1).at(1)])
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value is point


def count_wake_ups(loop: asyncio.AbstractEventLoop) -> list[Callable[..., object]]:
    """Note what other threads post to a loop."""
    posted: list[Callable[..., object]] = []
    post = loop.call_soon_threadsafe

    def noting(callback: Any, *arguments: Any, **options: Any) -> Any:
        posted.append(callback)
        return post(callback, *arguments, **options)

    loop.call_soon_threadsafe = noting  # type: ignore[method-assign]
    return posted


async def one(point: tg.Timepoint) -> None:
    await point


def test_many_awaits_that_are_decided_before_the_loop_wakes_are_one_wake_up() -> None:
    async def main() -> list[int]:
        counts = []
        posted = count_wake_ups(asyncio.get_running_loop())
        for turn in range(2):
            semaphores = [tg.Semaphore() for _ in range(100)]
            tasks = [asyncio.ensure_future(one(semaphore.at(1))) for semaphore in semaphores]
            await asyncio.sleep(0)
            for semaphore in semaphores:
                semaphore.signal(1)
            await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
            counts.append(len(posted) - sum(counts))
        return counts

    assert asyncio.run(main()) == [1, 1]


def test_a_loop_that_ran_once_and_was_closed_disturbs_no_signal(unraisable: list[Any]) -> None:
    semaphore, kept = tg.Semaphore(), []

    async def main() -> None:
        kept.append(asyncio.ensure_future(one(semaphore.at(1))))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    semaphore.signal(1)
    assert unraisable == []


@pytest.mark.parametrize("tasks_waiting", [1, 3])
def test_an_interrupt_as_the_loop_is_woken_wakes_it_all_the_same(tasks_waiting: int) -> None:
    """The interrupt is the signaller's; whoever waits is not left asleep."""
    semaphore = tg.Semaphore()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        post, problems = loop.call_soon_threadsafe, [KeyboardInterrupt()]

        def interrupted(*arguments: Any, **options: Any) -> Any:
            if problems:
                raise problems.pop()
            return post(*arguments, **options)

        tasks = [asyncio.ensure_future(one(semaphore.at(1))) for _ in range(tasks_waiting)]
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = interrupted  # type: ignore[method-assign]

        def signal() -> None:
            with pytest.raises(KeyboardInterrupt):
                semaphore.signal(1)

        background(signal).result()
        await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)

    asyncio.run(main())
