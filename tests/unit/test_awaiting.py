"""Awaits: who is woken, how often the loop is, and what is left when tasks are cancelled or loops closed (M11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import awaiting
from tidegate._core.awaiting import _LoopPost, _posts, when_all, when_any
from tidegate._core.host_wait import _HostWaiter

from .hand_driver import LIMIT, HandDevice

trio = pytest.importorskip("trio")
pytest.importorskip("trio.testing")


class Loop:
    """A loop that notes what is posted to it."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []
        self.closed = False

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.posted.append(function)


class Future:
    def __init__(self, done: bool = False) -> None:
        self.is_done = done
        self.set = 0

    def done(self) -> bool:
        return self.is_done

    def set_result(self, _result: None) -> None:
        assert not self.is_done, "asyncio would raise"
        self.is_done = True
        self.set += 1


def test_the_posts_of_one_loop_are_gathered_until_it_wakes() -> None:
    loop = Loop()
    post = _LoopPost(loop)  # type: ignore[arg-type]
    futures = [Future(), Future(done=True), Future()]
    for future in futures:
        post.post(future)  # type: ignore[arg-type]
    assert len(loop.posted) == 1
    loop.posted[0]()
    assert [future.set for future in futures] == [1, 0, 1]
    later = Future()
    post.post(later)  # type: ignore[arg-type]
    assert len(loop.posted) == 2
    loop.posted[1]()
    assert later.set == 1


def test_a_post_to_a_closed_or_collected_loop_is_forgotten() -> None:
    loop = Loop()
    post = _LoopPost(loop)  # type: ignore[arg-type]
    loop.closed = True
    for _ in range(2):
        post.post(Future())  # type: ignore[arg-type]
        assert (list(post._futures), post._woken) == ([], False)
    del loop
    post.post(Future())  # type: ignore[arg-type]
    assert (list(post._futures), post._woken) == ([], False)


def test_a_post_that_was_interrupted_can_be_repeated() -> None:
    class Loop:
        interrupted = True

        def call_soon_threadsafe(self, deliver: Any) -> None:
            if self.interrupted:
                self.interrupted = False
                raise KeyboardInterrupt
            deliver()

    loop, futures = Loop(), [Future(), Future()]
    post = _LoopPost(loop)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        post.post(futures[0])  # type: ignore[arg-type]
    post.post(futures[0])  # type: ignore[arg-type]
    post.post(futures[1])  # type: ignore[arg-type]
    assert [future.done() for future in futures] == [True, True]


def run_asyncio(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(main(), LIMIT)

    return asyncio.run(bounded())


def run_trio(main: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        with trio.fail_after(LIMIT):
            return await main()

    return trio.run(bounded)


Run = Callable[[Callable[[], Awaitable[Any]]], Any]
both = pytest.mark.parametrize("run", [run_asyncio, run_trio])


async def turn() -> None:
    """Let the others run."""
    if awaiting._in_trio():
        await trio.testing.wait_all_tasks_blocked()
    else:
        for _ in range(5):
            await asyncio.sleep(0)


@both
def test_what_is_reached_is_not_registered_and_what_is_empty_is_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaiting, "_waiter", lambda *_given: pytest.fail("registered"))
    one, two = tg.Semaphore(1), tg.Semaphore(1)

    async def main() -> Any:
        points = [tg.Semaphore().at(1), two.at(1), one.at(1)]
        await one.at(1)
        await when_all([one.at(1), two.at(1)])
        return [await when_any(iter(points)) is points[1], await when_all([]), await when_any([])]

    assert run(main) == [True, None, None]


@both
def test_an_await_leaves_no_residue_however_it_ends(run: Run) -> None:
    semaphores = [tg.Semaphore() for _ in range(3)]

    async def main() -> None:
        first, second, third = semaphores
        first.at(2).add_callback(lambda *_told: None)
        second.at(9).add_callback(lambda *_told: None)

        async def signal() -> None:
            await turn()
            second.signal(1)

        if awaiting._in_trio():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(signal)
                found = await when_any([first.at(1), second.at(1), third.at(1)])
        else:
            task = asyncio.create_task(signal())
            found = await when_any([first.at(1), second.at(1), third.at(1)])
            await task
        assert found == second.at(1)

    run(main)
    assert [sorted(semaphore._state.waiters) for semaphore in semaphores] == [[2], [9], []]


def test_a_cancelled_task_leaves_no_residue_and_a_late_signal_does_no_harm() -> None:
    semaphore = tg.Semaphore()

    async def in_asyncio() -> None:
        task = asyncio.ensure_future(when_all([semaphore.at(1)]))
        await turn()
        assert semaphore._state.waiters
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_asyncio(in_asyncio)
    assert semaphore._state.waiters == {}

    async def in_trio() -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(when_all, [semaphore.at(1)])
                await turn()
                assert semaphore._state.waiters
                scope.cancel()

    run_trio(in_trio)
    assert semaphore._state.waiters == {}
    semaphore.signal(1)


def test_a_trio_task_that_is_woken_and_cancelled_at_once_is_rescheduled_once() -> None:
    semaphore = tg.Semaphore()

    async def main() -> None:
        waiters: list[Any] = []
        init = awaiting._TrioWaiter.__init__

        def noting(self: Any, *given: Any) -> None:
            init(self, *given)
            waiters.append(self)

        awaiting._TrioWaiter.__init__ = noting  # type: ignore[method-assign]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(when_all, [semaphore.at(1)])
                await turn()
                (waiter,) = waiters
                assert waiter._waiting
                waiter._wake()
                assert not waiter._waiting
                waiter._wake()  # a second reschedule would be an error of trio
                semaphore._state.payload = 1
        finally:
            awaiting._TrioWaiter.__init__ = init  # type: ignore[method-assign]

    run_trio(main)


def test_a_trio_task_that_was_aborted_is_not_woken() -> None:
    async def main() -> None:
        waiter = awaiting._TrioWaiter([(tg.Semaphore()._state, 1)], False)
        assert waiter._abort(None) is trio.lowlevel.Abort.SUCCEEDED
        waiter._wake()  # would be an error of trio: this task is running

    run_trio(main)


def test_a_trio_loop_that_is_over_is_no_error() -> None:
    kept: list[Any] = []

    async def main() -> None:
        kept.append(awaiting._TrioWaiter([(tg.Semaphore()._state, 1)], False))

    run_trio(main)
    kept[0].fire()


def test_waking_a_trio_task_twice_before_it_runs_is_one_wake() -> None:
    async def main() -> None:
        waiter = awaiting._TrioWaiter([(tg.Semaphore()._state, 1)], False)
        calls: list[Any] = []
        waiter._token = type("T", (), {"run_sync_soon": staticmethod(lambda *g, **n: calls.append((g, n)))})()
        waiter.fire()
        assert calls == [((waiter._wake,), {"idempotent": True})]

    run_trio(main)


def test_an_await_outside_of_a_loop_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = r"^await needs a running asyncio or trio loop; use wait\(\) elsewhere$"
    coroutine = when_all([tg.Semaphore().at(1)])
    with pytest.raises(tg.FailedPreconditionError, match=text):
        coroutine.send(None)
    monkeypatch.delitem(awaiting.sys.modules, "asyncio")
    monkeypatch.delitem(awaiting.sys.modules, "trio")
    assert not awaiting._in_trio()
    coroutine = when_all([tg.Semaphore().at(1)])
    with pytest.raises(tg.FailedPreconditionError, match=text):
        coroutine.send(None)


def test_one_loop_has_one_post_and_forgets_it_with_itself() -> None:
    import gc

    async def main() -> int:
        loop = asyncio.get_running_loop()
        first, second = (awaiting._waiter([(tg.Semaphore()._state, 1)], False) for _ in range(2))
        assert first._post is second._post is _posts[loop]  # type: ignore[union-attr]
        return len(_posts)

    before = len(_posts)
    assert run_asyncio(main) >= 1
    gc.collect()
    assert len(_posts) <= before


# On a device that counts -------------------------------------------------------------------------------------------


@both
def test_an_await_looks_at_the_device_before_it_sleeps_and_arms_it_if_it_must(
    run: Run, opened: tuple[tg.Device, HandDevice]
) -> None:
    device, hand = opened
    buffer, semaphore = device.allocate(4), tg.Semaphore()
    device.queue().fill(buffer, 0, signal=semaphore.at(1))
    device.queue().fill(buffer, 0, signal=semaphore.at(2))

    async def main() -> None:
        hand.one.over(1)
        await when_all([semaphore.at(1)])
        assert hand.one.armed == []

        async def end() -> None:
            await turn()
            assert hand.one.armed == [2]
            hand.one.over(2, wake=True)

        if awaiting._in_trio():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end)
                await when_all([semaphore.at(2)])
        else:
            task = asyncio.create_task(end())
            await when_all([semaphore.at(2)])
            await task

    run(main)
    assert semaphore.value == 2


@both
def test_a_loop_that_is_woken_looks_once_more(run: Run, opened: tuple[tg.Device, HandDevice]) -> None:
    device, hand = opened
    buffer, one, two = device.allocate(4), tg.Semaphore(), tg.Semaphore()
    device.queue().fill(buffer, 0, signal=one.at(1))
    device.queue("transfer").fill(buffer, 0, signal=two.at(1))

    async def main() -> Any:
        points = [one.at(1), two.at(1)]

        async def end() -> None:
            await turn()
            hand.two.over(1, wake=True)
            hand.one.over(1)  # over by now, and nobody told us

        if awaiting._in_trio():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end)
                return await when_any(points) is points[0]
        task = asyncio.create_task(end())
        found = await when_any(points)
        await task
        return found is points[0]

    assert run(main) is True


def test_a_thread_that_is_woken_looks_once_more(
    opened: tuple[tg.Device, HandDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, hand = opened
    buffer, one, two = device.allocate(4), tg.Semaphore(), tg.Semaphore()
    device.queue().fill(buffer, 0, signal=one.at(1))
    device.queue("transfer").fill(buffer, 0, signal=two.at(1))

    def wake(*_given: object) -> bool:
        hand.two.over(1, wake=True)
        hand.one.over(1)
        return True

    monkeypatch.setattr(_HostWaiter, "sleep", wake)
    points = [one.at(1), two.at(1)]
    assert tg.wait_any(points, LIMIT) is points[0]


def test_awaiting_something_of_the_parent_is_refused() -> None:
    semaphore = tg.Semaphore()
    semaphore._state.process = type("Parent", (), {"forked": True})()

    async def main() -> None:
        with pytest.raises(tg.FailedPreconditionError, match="before this process was forked"):
            await when_all([semaphore.at(1)])

    run_asyncio(main)
