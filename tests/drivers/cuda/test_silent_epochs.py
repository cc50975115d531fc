"""Large copies between host and device have no word behind them: their events tell, to everybody who wants to know."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench, until

LARGE = 1 << 20


def _array(found: SimulatedBench, nbytes: int = LARGE) -> Any:
    array = tg.pinned_empty(nbytes, np.uint8, found.device)
    array[:] = 3
    return array


@pytest.mark.parametrize(("nbytes", "silent"), [(LARGE, True), (LARGE - 4096, False)])
def test_only_large_copies_have_no_word(nbytes: int, silent: bool) -> None:
    with bench() as found:
        buffer = found.device.allocate(LARGE)
        up = found.queue.upload(_array(found, nbytes), buffer)
        down = found.queue.download(buffer, _array(found, nbytes), length=nbytes, wait=up)
        down.wait(LIMIT)
        for work in (up, down):
            stream: Any = work.timeline
            assert (stream.state.event_only >= work.epoch) == silent
        stream = down.timeline
        assert (stream.state.word < down.epoch) == silent
        assert stream.reached >= down.epoch


def test_words_go_on_behind_them() -> None:
    with bench() as found:
        touch, buffer = found.device.load(TOUCH)["touch"], found.device.allocate(LARGE)
        array = _array(found)
        array[:4] = 0
        up = found.queue.upload(array, buffer)
        run = found.queue.dispatch(touch, 1, bindings=[buffer], wait=up)
        run.wait(LIMIT)
        stream: Any = run.timeline
        assert up.timeline is stream
        assert up.done
        assert stream.state.word == run.epoch
        again = found.queue.upload(array, buffer, wait=run)
        last = found.queue.dispatch(touch, 1, bindings=[buffer], wait=again)
        down = found.queue.download(buffer, _array(found), wait=last)
        assert down.result(LIMIT)[:4].view(np.uint32)[0] == 1


@pytest.mark.parametrize("how", ["thread", "callback", "await", "held", "done"])
def test_whoever_waits_is_told(how: str) -> None:
    with bench() as found:
        latch, blocked = found.latch()
        timeline, told = tg.Semaphore(), threading.Event()
        up = found.queue.upload(_array(found), found.device.allocate(LARGE), wait=blocked, signal=timeline.at(1))
        if how == "thread":
            threading.Thread(target=lambda: (timeline.wait(1, LIMIT), told.set()), daemon=True).start()
        elif how == "callback":
            timeline.at(1).add_callback(lambda *_: told.set())
        elif how == "held":
            found.queue.host_call(told.set, wait=up)
        latch.open()
        if how == "await":

            async def wait() -> None:
                await asyncio.wait_for(_awaited(up), LIMIT)

            asyncio.run(wait())
        elif how == "done":
            until(lambda: up.done)
        else:
            assert told.wait(LIMIT)


async def _awaited(work: tg.Submission) -> None:
    await work
