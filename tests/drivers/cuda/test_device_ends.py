"""The ends of a CUDA device: closing with sleepers in flight, closing twice, the end of the process, a fork."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate._core import process
from tidegate._core.background import deferred
from tidegate.drivers.cuda import page_locked
from tidegate.drivers.cuda._native import NativeError

from .simulated_bench import LIMIT, bench, until


def test_closing_beside_a_thread_that_sleeps_for_a_foreign_event_keeps_the_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.drivers.cuda.retire._PATIENCE", 0.01)
    with bench() as found, found.foreign_stream() as stream:
        retained = found.native.machine.cards[0].retained
        found.native.primary_context(0)  # the other library's own hold
        with found.parked(stream):
            points = [lowlevel.from_cuda_stream(found.device, stream) for _ in range(20)]
            sleepers = found.driver.sleepers
            until(lambda: not sleepers._sides and sleepers._made and sleepers._threads)
            waiting = [point for point in points if not point.reached]
            assert waiting
            for queue in found.driver.all_streams():
                queue.state.parked_until = 0
            sleepers.stop()
            assert not sleepers.awake()
        until(sleepers.awake)
        assert found.device.health is tg.Health.OK
        assert found.native.machine.cards[0].retained == retained + 1
        found.native.release_primary_context(0)


def test_a_sleeper_that_comes_back_with_an_error_after_the_end_loses_nothing() -> None:
    with bench() as found:
        sleepers, inside, go_on = found.driver.sleepers, threading.Event(), threading.Event()

        def late() -> None:
            inside.set()
            assert go_on.wait(LIMIT)
            raise NativeError("cuEventSynchronize", 4, "CUDA_ERROR_DEINITIALIZED", "the process ends")

        sleepers.run(late)
        assert inside.wait(LIMIT)
        sleepers.abandon()
        go_on.set()
        until(lambda: sleepers._idle == 1)
        assert found.device.health is tg.Health.OK


def test_what_is_to_run_after_the_end_of_the_interpreter_has_begun_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as found:
        ran: list[int] = []

        def refused(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread at interpreter shutdown")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            patch.setattr(process.here, "exiting", True)
            found.driver.sleepers.run(lambda: ran.append(1))
            seen = threading.Event()
            deferred.leave(seen.set)  # behind what is to start the thread
            assert seen.wait(LIMIT)
        found.driver.abandon()
        found.driver.sleepers.run(lambda: ran.append(1))
        assert ran == []


def test_closing_that_was_interrupted_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as found:
        found.queue.fill(found.shared(), 1).wait(LIMIT)
        driver = found.driver
        (stream,) = [each for each in driver.all_streams() if each.issued]
        give, words = driver._page_locked.give, driver._words_block
        with monkeypatch.context() as patch:

            def interrupted(block: object) -> None:
                give(block)
                if block is words:
                    raise KeyboardInterrupt

            patch.setattr(driver._page_locked, "give", interrupted)
            with pytest.raises(KeyboardInterrupt):
                driver.close()
        ctypes.memset(words.address, 77, words.nbytes)  # it is somebody else's now
        driver.close()
        assert stream.reached == stream.issued


_EXIT = """
import numpy as np
import tidegate as tg
from tidegate import lowlevel
from tidegate.conformance.latches import Latch, block_by_watched_memory
from tidegate.testing import register_cuda_simulated

register_cuda_simulated()
device = tg.open_device("cuda-simulated{options}")
latch = Latch(block_by_watched_memory)
blocked = latch.block(device.queue())
latch.wait_until_running(30)
{what}
print("out")
"""

_IN_FLIGHT = {
    "a sleeper": "try:\n    blocked.wait(0.05)\nexcept tg.DeadlineExceededError:\n    pass",
    "a callback": "done = tg.Semaphore()\ndone.at(1).add_callback(lambda *_: None)\n"
    "device.queue().barrier(wait=blocked, signal=done.at(1))",
    "a foreign stream": "points = [lowlevel.from_cuda_stream(device, 1) for _ in range(30)]",
    "a transfer": "device.queue().upload(np.ones(1 << 24, np.uint8), device.allocate(1 << 24))",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", _IN_FLIGHT)
@pytest.mark.parametrize("options", ["", "?epochs=events"])
def test_an_interpreter_exits_beside_threads_that_are_inside_of_cuda(what: str, options: str) -> None:
    script = textwrap.dedent(_EXIT).format(what=_IN_FLIGHT[what], options=options)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "out\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_finds_no_lock_taken_and_leaves_the_parents_memory_alone() -> None:
    """The parent has the locks while it forks; the child's collector gives up what it has of the parent's."""
    with bench() as found:
        latch, _ = found.latch()
        wrapped = found.driver.wrap(np.zeros(8192, np.uint8))
        storage = found.device.allocate(4096)
        found.device._attention = True
        with page_locked._table, found.driver.lock:
            child = os.fork()
            if child == 0:
                ended = 1
                try:
                    process_ended: list[int] = []
                    del wrapped, storage
                    deferred.ensure()
                    deferred.leave(process_ended.append, 1)
                    until(lambda: process_ended)
                    found.cuda.describe()
                    thread = threading.Thread(target=page_locked.open_devices)
                    thread.start()
                    thread.join(LIMIT)
                    ended = 2 if thread.is_alive() else 0
                finally:
                    os._exit(ended)
        found.device._attention = False
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        latch.open()
