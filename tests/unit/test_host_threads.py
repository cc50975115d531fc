"""The threads of host calls where the system gives no more of them (M33)."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tidegate.testing import Latch, ManualDevice

LIMIT = 30.0

NO_THREADS = """
import threading
import tidegate as tg

start = threading.Thread.start

def refusing(thread):
    if thread.name.startswith("tidegate-host"):
        raise RuntimeError("can't start new thread")
    start(thread)

end = tg.Semaphore()
with tg.open_device("null") as device:
    threading.Thread.start = refusing
    for call in [device.queue().host_call(print, "never", signal=end.at(1)), device.queue().host_call(print, "never")]:
        try:
            call.wait(30)
        except tg.SemaphoreFailedError as failed:
            print(repr(failed.__cause__), type(failed.__cause__.__cause__).__name__)
    threading.Thread.start = start
    print(end.failure is not None, device.queue().host_call(lambda: "again").result(30))
"""


def test_where_no_thread_can_be_had_host_calls_fail_instead_of_waiting() -> None:
    told = subprocess.run([sys.executable, "-c", NO_THREADS], capture_output=True, text=True, timeout=LIMIT, check=True)
    failed = (
        'ResourceExhaustedError("no thread could be started for a host call: can\'t start new thread") RuntimeError\n'
    )
    assert told.stdout == 2 * failed + "True again\n"


def test_where_no_more_threads_can_be_had_those_that_are_there_do_the_work(
    manual: ManualDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    latch = Latch()
    running = manual.queue.host_call(latch.wait, LIMIT)
    latch.wait_for_arrival(LIMIT)
    start = threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        if thread.name.startswith("tidegate-host"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refusing)
        waiting = [manual.queue.host_call(lambda: "done") for _ in range(3)]
        latch.open()
        assert [call.result(LIMIT) for call in waiting] == ["done"] * 3
    running.wait(LIMIT)


def test_a_host_call_that_is_over_is_dropped_before_its_thread_sleeps(manual: ManualDevice) -> None:
    gone = threading.Event()

    class Call:
        def __call__(self) -> None:
            pass

        def __del__(self) -> None:
            gone.set()

    manual.queue.host_call(Call())
    assert gone.wait(LIMIT)
