"""`await` for timepoints and submissions, under asyncio and trio (M11).

The waiter is registered like any other. When it is notified, on whatever thread, it only posts to its loop. For
asyncio the posts to one loop are gathered: the first one wakes the loop, and what is posted before the loop has woken
is delivered with it. Nothing polls, and a loop that was closed meanwhile is no error.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import FailedPreconditionError
from .compiled import GroupWaiter, begin_wait, decided, targets_of

if TYPE_CHECKING:
    import asyncio

    from .compiled import Submission, Target, Timepoint

    Point: TypeAlias = Timepoint | Submission


class _LoopPost:
    """Posts to one asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._futures: deque[asyncio.Future[None]] = deque()
        self._woken = False

    def post(self, future: asyncio.Future[None]) -> None:
        """Have the future resolved on its loop. Any thread."""
        self._futures.append(future)
        if self._woken:
            return
        self._woken = True
        try:
            loop = self._loop()
            if loop is not None:
                loop.call_soon_threadsafe(self._deliver)
                return
        except RuntimeError:
            pass  # closed: its tasks are gone, nobody waits
        except BaseException:
            self._woken = False  # an interrupt: the deferred worker posts once more
            raise
        self._futures.clear()
        self._woken = False

    def _deliver(self) -> None:
        self._woken = False
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)


_posts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPost] = weakref.WeakKeyDictionary()


class _AsyncioWaiter(GroupWaiter):
    def __init__(self, targets: Sequence[Target], any_of_them: bool, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(targets, any_of_them)
        self.future: asyncio.Future[None] = loop.create_future()
        post = _posts.get(loop)
        if post is None:
            post = _posts[loop] = _LoopPost(loop)
        self._post = post

    def fire(self) -> None:
        self._post.post(self.future)

    async def suspend(self) -> None:
        await self.future


class _TrioWaiter(GroupWaiter):
    def __init__(self, targets: Sequence[Target], any_of_them: bool) -> None:
        super().__init__(targets, any_of_them)
        trio = sys.modules["trio"]
        self._trio: Any = trio
        self._token = trio.lowlevel.current_trio_token()
        self._task = trio.lowlevel.current_task()
        self._waiting = True

    def fire(self) -> None:
        try:
            self._token.run_sync_soon(self._wake, idempotent=True)
        except self._trio.RunFinishedError:
            pass  # the loop is over and so are its tasks

    def _wake(self) -> None:
        if self._waiting:
            self._waiting = False
            self._trio.lowlevel.reschedule(self._task)

    def _abort(self, _raise_cancel: object) -> Any:
        self._waiting = False
        return self._trio.lowlevel.Abort.SUCCEEDED

    async def suspend(self) -> None:
        await self._trio.lowlevel.wait_task_rescheduled(self._abort)


def _in_trio() -> bool:
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_task())


def _waiter(targets: Sequence[Target], any_of_them: bool) -> _AsyncioWaiter | _TrioWaiter:
    if _in_trio():
        return _TrioWaiter(targets, any_of_them)
    asyncio = sys.modules.get("asyncio")  # importing it costs more than all of Tidegate; a running loop has done so
    try:
        loop = None if asyncio is None else asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None:
        raise FailedPreconditionError("await needs a running asyncio or trio loop; use wait() elsewhere")
    return _AsyncioWaiter(targets, any_of_them, loop)


async def wait_async(points: Iterable[Point], *, any_of_them: bool) -> int | None:
    """Suspend until the points decide; returns the deciding index. The points are kept meanwhile (M12)."""
    listed, targets = targets_of(points, "await")
    if not listed:
        return None
    begin_wait(targets)
    index = decided(targets, any_of_them)
    if index is not None:
        return index
    waiter = _waiter(targets, any_of_them)
    try:
        if waiter.register():
            await waiter.suspend()
    finally:
        waiter.unregister()
    begin_wait(targets)
    index = decided(targets, any_of_them)
    assert index is not None, "a waiter was notified before its targets were decided"
    return index


def await_point(point: Timepoint) -> Generator[Any, Any, None]:
    """`await` for a timepoint."""
    if not point.reached:
        yield from wait_async([point], any_of_them=False).__await__()


def await_submission(submission: Submission) -> Generator[Any, Any, Any]:
    """`await` for a submission."""
    yield from wait_async([submission], any_of_them=False).__await__()
    return submission._result


async def when_all(points: Iterable[Point]) -> None:
    """Suspend until every timepoint and submission is reached: `wait_all` for coroutines."""
    await wait_async(points, any_of_them=False)


async def when_any(points: Iterable[Point]) -> Point | None:
    """Suspend until one is reached and return that very object: `wait_any` for coroutines."""
    listed = list(points)
    index = await wait_async(listed, any_of_them=True)
    return None if index is None else listed[index]
