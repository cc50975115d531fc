"""What a forked child finds, beyond what the conformance suite asks of every driver (M37)."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tidegate as tg

LIMIT = 30.0

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_child(function: Callable[[], Any]) -> Any:
    """Run a function in a forked child and return what it returned, as JSON can tell it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(LIMIT))  # a child that hangs ends by itself
            os.write(writing, json.dumps({"result": function()}).encode())
        except BaseException:
            os.write(writing, json.dumps({"error": traceback.format_exc()}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told, "the child ended without a word"
    answer = json.loads(told)
    assert "error" not in answer, answer.get("error")
    return answer["result"]


def use_everything() -> list[object]:
    """What a process may do: each of these needs a thread or a lock of ours."""
    semaphore, told = tg.Semaphore(), threading.Event()
    semaphore.at(1).add_callback(lambda *_told: told.set())
    semaphore.signal(1)
    semaphore.wait(1, LIMIT)
    dropped, failed = tg.Semaphore(), threading.Event()
    dropped.at(1).add_callback(lambda *_told: failed.set())
    del dropped
    with tg.open_device("cpu?workers=1") as device:
        buffer = device.allocate(4)
        device.queue().fill(buffer, 7).wait(LIMIT)
        called = device.queue().host_call(lambda: 42).result(LIMIT)
        seen = np.asarray(tg.from_dlpack(np.arange(3))).tolist()
        return [told.is_set(), failed.wait(LIMIT), buffer.read(timeout=LIMIT).hex(), called, seen]


EVERYTHING = [True, True, "07070707", 42, [0, 1, 2]]


def test_what_was_made_before_is_refused_in_these_words() -> None:
    old, point = tg.Semaphore(2, label="old"), tg.Semaphore(2, label="old").at(2)
    with tg.open_device("cpu?workers=1", label="dev") as device:
        queue, buffer = device.queue(), device.allocate(4)
        words = "was made before this process was forked: make a new one in the child"

        def child() -> list[str]:
            told = []
            for call in (
                old.query,
                lambda: old.signal(3),
                lambda: queue.barrier(wait=point),
                lambda: queue.barrier(signal=tg.Semaphore().at(1)),
                buffer.read,
                device.close,
            ):
                with pytest.raises(tg.FailedPreconditionError) as caught:
                    call()
                told.append(str(caught.value))
            return [*told, old.value]

        assert in_child(child) == [
            f"semaphore 'old' {words}",
            f"semaphore 'old' {words}",
            "barrier on queue 'compute' of device 'dev': the device was opened before this process was forked",
            "barrier on queue 'compute' of device 'dev': the device was opened before this process was forked",
            f"buffer of 4 bytes {words}",
            f"device 'dev' {words}",
            2,
        ]


def test_a_child_of_a_process_that_used_everything_can_do_so_too() -> None:
    assert use_everything() == EVERYTHING
    assert in_child(use_everything) == EVERYTHING
    assert in_child(lambda: in_child(use_everything)) == EVERYTHING


def test_a_child_forked_in_a_callback_or_in_a_host_call_can_use_everything() -> None:
    seen: list[object] = []
    tg.Semaphore(1).at(1).add_callback(lambda *_told: seen.append(in_child(use_everything)))
    with tg.open_device("cpu?workers=1") as device:
        seen.append(device.queue().host_call(in_child, use_everything).result(2 * LIMIT))
    assert seen == [EVERYTHING] * 2


@pytest.mark.slow
def test_a_child_forked_while_other_threads_are_busy_finds_no_lock_held() -> None:
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            use_everything()
            tg.list_drivers()
            tg.from_dlpack(np.arange(3)).buffer.device.close(LIMIT)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_child(use_everything) == EVERYTHING
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT)


def test_the_shared_device_of_the_parent_is_not_the_childs() -> None:
    device = tg.from_dlpack(np.arange(3)).buffer.device
    assert in_child(lambda: tg.from_dlpack(np.arange(3)).buffer.device is device) is False
    assert tg.from_dlpack(np.arange(3)).buffer.device is device


def test_a_semaphore_dropped_in_the_child_fails_nobody() -> None:
    told: list[str] = []
    box = [tg.Semaphore()]
    box[0].at(1).add_callback(lambda _point, outcome, _error: told.append(outcome.name))

    def child() -> list[str]:
        box.clear()
        use_everything()  # what was left to a thread of ours is done by now
        return told

    assert in_child(child) == []
    box[0].signal(1)
    assert told == ["REACHED"]
