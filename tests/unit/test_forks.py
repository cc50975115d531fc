"""What a forked child finds: everything of its parent refused, nothing of it running, and room for its own life."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import host_calls, process, progress, registry, thread_state, view
from tidegate._core import semaphore as semaphores
from tidegate._core.background import Background, reaper, runner
from tidegate._core.lock import core_lock
from tidegate._core.timeline import advance

from .hand_driver import LIMIT, catch_up

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


def refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except tg.FailedPreconditionError as error:
        return "before this process was forked" in str(error)
    return False


def test_a_child_knows_that_it_is_one_and_the_parent_that_it_is_not() -> None:
    def look() -> Any:
        before, here = parent, process.here
        return [before.forked, here.forked, here.exiting, before is here, process.checking]

    parent = process.here
    assert in_child(look) == [True, False, False, False, True]
    assert (parent.forked, parent.exiting, process.here is parent, process.checking) == (False, False, True, False)


def test_the_semaphores_of_the_parent_are_refused_in_every_way_and_new_ones_work() -> None:
    old = tg.Semaphore(2, label="old")
    point = old.at(2)

    def child() -> Any:
        calls = [
            old.query,
            lambda: old.signal(3),
            lambda: old.wait(1),
            lambda: old.wait(1, 0),
            lambda: old.fail(ValueError()),
            lambda: point.add_callback(print),
            lambda: tg.wait_all([point]),
            lambda: tg.wait_any([point], 0),
        ]
        new, told = tg.Semaphore(), []
        new.at(1).add_callback(lambda *_told: told.append(1))
        new.signal(1)
        new.wait(1, LIMIT)
        return [[refused(call) for call in calls], old.value, new.query(), told]

    assert in_child(child) == [[True] * 8, 2, 1, [1]]
    assert semaphores.Semaphore.signal is not advance


def test_a_child_puts_the_checking_forms_in_place() -> None:
    def child() -> Any:
        cls = semaphores.Semaphore
        return [cls.query is semaphores._query, cls.signal is advance, cls.wait is semaphores._wait]

    assert in_child(child) == [True, True, True]


def test_the_devices_of_the_parent_are_refused_and_forgotten_and_new_ones_work() -> None:
    with tg.open_device("cpu?workers=1", label="old") as old:
        queue, buffer, done = old.queue(), old.allocate(4), tg.Semaphore(label="parent's")
        held = queue.fill(buffer, 0, wait=done.at(1))

        def child() -> Any:
            with pytest.raises(tg.FailedPreconditionError, match=r"^buffer of 4 bytes was made before this process"):
                buffer.read()
            calls = [
                lambda: queue.barrier(),
                lambda: queue.barrier(signal=tg.Semaphore().at(1)),
                lambda: queue.fill(buffer, 0),
                lambda: buffer.read(),
                lambda: old.close(),
                lambda: old.queue(),
                lambda: held.cancel(),
                lambda: held.wait(0),
            ]
            polled = len(progress.pollers)
            with tg.open_device("cpu?workers=1", label="new") as new:
                assert reaper._started
                fresh = new.allocate(4)
                new.queue().fill(fresh, 7).wait(LIMIT)
                called = new.queue().host_call(lambda: 42).result(LIMIT)
                return [[refused(call) for call in calls], polled, fresh.read().hex(), called]

        assert in_child(child) == [[True] * 8, 0, "07070707", 42]
        held.cancel()


def test_the_background_threads_and_the_pool_begin_anew() -> None:
    catch_up()
    with tg.open_device("cpu?workers=1") as device:
        assert device.queue().host_call(lambda: 1).result(LIMIT) == 1

    def child() -> Any:
        before = [reaper._started, runner._started, host_calls.pool._threads, len(host_calls.pool._parked)]
        catch_up()
        return [before, reaper._started, runner._started]

    assert in_child(child) == [[False, False, 0, 0], True, True]


def test_a_wait_without_any_device_has_a_reaper_to_learn_of_dropped_semaphores() -> None:
    def child() -> Any:
        before = reaper._started
        with pytest.raises(tg.DeadlineExceededError):
            tg.Semaphore().wait(1, 0.002)
        return [before, reaper._started]

    assert in_child(child) == [False, True]


def test_a_callback_without_any_device_has_a_reaper_too() -> None:
    def child() -> Any:
        tg.Semaphore(1).at(1).add_callback(lambda *_told: None)
        return reaper._started

    assert in_child(child) is True


def test_notes_and_locks_of_the_parent_are_not_the_childs() -> None:
    worker = Background("tidegate-test")
    done: list[int] = []
    worker.leave(done.append, 1)

    def child() -> Any:
        finished = threading.Event()
        worker.ensure()
        worker.leave(finished.set)
        return [finished.wait(LIMIT), done]

    assert in_child(child) == [True, []]


@pytest.mark.parametrize("lock", ["core", "registry", "shared", "pool"])
def test_a_lock_that_another_thread_holds_is_free_in_the_child(lock: str) -> None:
    locks: dict[str, Callable[[], Any]] = {
        "core": lambda: core_lock,
        "registry": lambda: registry._lock,
        "shared": lambda: view._shared._lock,
        "pool": lambda: host_calls.pool._lock,
    }
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[lock]():
            held.set()
            go.wait(LIMIT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(LIMIT)
        assert in_child(lambda: locks[lock]().acquire(timeout=5)) is True
        assert in_child(lambda: registry.load_driver("null").name if lock == "registry" else "null") == "null"
    finally:
        go.set()
        thread.join(LIMIT)


def test_a_child_forked_in_a_callback_has_a_trampoline_of_its_own() -> None:
    seen: list[Any] = []

    def child() -> Any:
        state = thread_state.thread_state
        found = [len(state.queue), state.running, state.pool is None, state.host_call_device is None]
        semaphore, told = tg.Semaphore(), []
        semaphore.at(1).add_callback(lambda *_told: told.append(1))
        semaphore.signal(1)
        return [*found, told]

    def callback(*_told: object) -> None:
        state = thread_state.thread_state
        state.pool, state.host_call_device = host_calls.pool, "device"
        try:
            seen.append(in_child(child))
        finally:
            state.pool = state.host_call_device = None

    tg.Semaphore(1).at(1).add_callback(callback)
    assert seen == [[0, False, True, True, [1]]]


def test_the_shared_device_of_the_parent_is_not_the_childs() -> None:
    import numpy as np

    device = view._shared.get()

    def child() -> Any:
        seen = tg.from_dlpack(np.arange(3))
        return [seen.buffer.device is device, np.asarray(seen).tolist()]

    assert in_child(child) == [False, [0, 1, 2]]
    assert view._shared.get() is device


def test_a_semaphore_dropped_in_the_child_fails_nobody() -> None:
    semaphore = tg.Semaphore()
    semaphore.at(1).add_callback(lambda *_told: None)
    box = [semaphore]
    del semaphore

    def child() -> Any:
        state = box[0]._state
        box.clear()
        catch_up()
        return state.failure is None

    assert in_child(child) is True
    box[0].signal(1)


def test_a_forked_process_is_named_in_the_refusal() -> None:
    parent = process.Process()
    process.refuse_forked(parent, "it")
    parent.forked = True
    with pytest.raises(tg.FailedPreconditionError) as caught:
        process.refuse_forked(parent, "it")
    assert str(caught.value) == "it was made before this process was forked: make a new one in the child"
    assert sys.version_info >= (3, 11)


def test_hooks_run_in_the_child_in_the_order_given(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(process, "_child_hooks", list(process._child_hooks))
    process.in_child(lambda: ran.append(1))
    process.in_child(lambda: ran.append(2))
    assert in_child(lambda: ran) == [1, 2]
    assert ran == []
