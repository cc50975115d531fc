"""Event loops for tests: asyncio and trio, told apart by nothing but what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

from .latches import LIMIT


class Loop(Protocol):
    """What the tests need of an async library."""

    def run(self, main: Callable[[], Awaitable[Any]]) -> Any:
        """Run `main` in a loop of its own, with a limit."""

    async def together(self, *functions: Callable[[], Awaitable[Any]]) -> None:
        """Run the functions as tasks and wait for all of them."""

    async def settle(self) -> None:
        """Let every other task run until it waits for something."""

    async def give_up(self, function: Callable[[], Awaitable[Any]], meanwhile: Callable[[], object]) -> bool:
        """Start a task, let it wait, do something, cancel it; whether the cancellation came through."""


class Asyncio:
    def run(self, main: Callable[[], Awaitable[Any]]) -> Any:
        async def limited() -> Any:
            async with asyncio.timeout(LIMIT):
                return await main()

        # In debug mode a loop refuses to be woken from a foreign thread in a way that is not safe.
        return asyncio.run(limited(), debug=True)

    async def together(self, *functions: Callable[[], Awaitable[Any]]) -> None:
        async with asyncio.TaskGroup() as group:
            for function in functions:
                group.create_task(_coroutine(function))

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def give_up(self, function: Callable[[], Awaitable[Any]], meanwhile: Callable[[], object]) -> bool:
        task = asyncio.create_task(_coroutine(function))
        await self.settle()
        meanwhile()
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False


async def _coroutine(function: Callable[[], Awaitable[Any]]) -> Any:
    return await function()


class Trio:
    def __init__(self) -> None:
        self._trio = pytest.importorskip("trio")
        pytest.importorskip("trio.testing")

    def run(self, main: Callable[[], Awaitable[Any]]) -> Any:
        async def limited() -> Any:
            with self._trio.fail_after(LIMIT):
                return await main()

        return self._trio.run(limited)

    async def together(self, *functions: Callable[[], Awaitable[Any]]) -> None:
        async with self._trio.open_nursery() as nursery:
            for function in functions:
                nursery.start_soon(function)

    async def settle(self) -> None:
        await self._trio.testing.wait_all_tasks_blocked()

    async def give_up(self, function: Callable[[], Awaitable[Any]], meanwhile: Callable[[], object]) -> bool:
        scope = self._trio.CancelScope()

        async def cancellable() -> None:
            with scope:
                await function()

        async with self._trio.open_nursery() as nursery:
            nursery.start_soon(cancellable)
            await self.settle()
            meanwhile()
            scope.cancel()
        return bool(scope.cancelled_caught)
