"""The two background threads, and what is left to them from inside a core section."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import background, process
from tidegate._core.background import Background, reaper, report_unraisable
from tidegate._core.lock import core_lock, interrupted_here

from .hand_driver import LIMIT, catch_up

# Threads -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Background:
    monkeypatch.setattr(process, "_child_hooks", [])
    return Background("tidegate-test")


def test_notes_are_done_in_the_order_left_also_those_left_before_the_thread_began(worker: Background) -> None:
    done: list[tuple[int, str]] = []
    for number in range(100):
        worker.leave(lambda n=number: done.append((n, threading.current_thread().name)))
    assert done == []
    catch_up(worker)
    assert done == [(number, "tidegate-test") for number in range(100)]


def test_ensuring_twice_starts_one_daemon_thread(worker: Background) -> None:
    before = set(threading.enumerate())
    worker.ensure()
    worker.ensure()
    (started,) = set(threading.enumerate()) - before
    assert (started.name, started.daemon) == ("tidegate-test", True)


def test_a_note_that_raises_is_reported_and_the_next_is_done(worker: Background, unraisable: list[Any]) -> None:
    done: list[int] = []

    def fails(value: int) -> None:
        raise SystemExit(value)

    worker.leave(fails, 3)
    worker.leave(done.append, 1)
    catch_up(worker)
    assert done == [1]
    (report,) = unraisable
    assert (report.exc_type, report.exc_value.code, report.object) == (SystemExit, 3, fails)
    assert report.exc_traceback is report.exc_value.__traceback__
    assert report.err_msg == "exception ignored in"


def test_a_note_is_dropped_before_the_thread_sleeps(worker: Background) -> None:
    class Thing:
        def use(self, other: object) -> None:
            pass

    gone = [threading.Event(), threading.Event()]
    things = [Thing(), Thing()]
    for thing, event in zip(things, gone, strict=True):
        weakref.finalize(thing, event.set)
    worker.ensure()
    worker.leave(things[0].use, things[1])
    del thing
    things.clear()
    assert all(event.wait(LIMIT) for event in gone)


def test_a_hook_that_raises_is_the_end_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(_report: object) -> None:
        raise RuntimeError("the hook itself")

    monkeypatch.setattr(sys, "unraisablehook", hook)
    report_unraisable(ValueError(), None)


@pytest.mark.parametrize("exiting", [True, False])
def test_a_thread_that_cannot_start_is_an_error_unless_the_interpreter_exits(
    worker: Background, monkeypatch: pytest.MonkeyPatch, exiting: bool
) -> None:
    class Refusing:
        def __init__(self, *_args: object, **_names: object) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(process.here, "exiting", exiting)
    with monkeypatch.context() as patched:
        patched.setattr(background.threading, "Thread", Refusing)
        if exiting:
            worker.ensure()
        else:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                worker.ensure()
    catch_up(worker)  # it is not held for started


def test_one_thread_of_two_that_were_started_at_once_ends_at_once(worker: Background) -> None:
    worker.ensure()
    catch_up(worker)
    worker._started = False  # as another thread saw it that was at it too
    before = set(threading.enumerate())
    worker.ensure()
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT)
        assert not thread.is_alive()
    catch_up(worker)


# Core sections -----------------------------------------------------------------------------------------------------


def test_a_semaphore_collected_inside_a_core_section_fails_its_waiters_from_the_reaper() -> None:
    told: list[tuple[str, tg.Outcome, BaseException | None]] = []
    semaphore = tg.Semaphore(3, label="dropped")
    semaphore.at(4).add_callback(
        lambda _p, outcome, error: told.append((threading.current_thread().name, outcome, error))
    )
    with core_lock:
        assert interrupted_here()
        del semaphore
        gc.collect()
        assert told == []
    catch_up(reaper)
    ((thread, outcome, error),) = told
    assert (thread, outcome) == ("tidegate-reaper", tg.Outcome.FAILED)
    assert isinstance(error, tg.AbortedError)
    assert str(error) == "semaphore 'dropped' was dropped at 3: nobody is left who could signal"


def test_signal_fail_submit_and_cancel_inside_a_core_section_are_done_by_the_reaper() -> None:
    signalled, failed, calls = tg.Semaphore(), tg.Semaphore(), []
    signalled.at(2).add_callback(lambda *_told: calls.append("signalled"))
    failed.at(1).add_callback(lambda *_told: calls.append("failed"))
    kept = tg.Semaphore()
    subscription = kept.at(1).add_callback(lambda *_told: calls.append("never"))
    with tg.open_device("cpu?workers=1") as device:
        with core_lock:
            signalled.signal(2)
            failed.fail(ValueError("inside"))
            done = device.queue().barrier(signal=kept.at(1))
            assert subscription.cancel()
            assert (signalled.value, failed._state.failure, kept.value) == (0, None, 0)
        catch_up(reaper)
        assert done.done
    assert (signalled.value, str(failed.failure), kept.value) == (2, "inside", 1)
    assert calls == ["signalled", "failed"]


def test_a_refused_submission_inside_a_core_section_fails_instead_of_raising() -> None:
    semaphore = tg.Semaphore(5)
    with tg.open_device("cpu?workers=1") as device:
        with core_lock:
            late = device.queue().barrier(signal=semaphore.at(5))
        catch_up(reaper)
        assert isinstance(late.error, tg.InvalidArgumentError)


def test_blocking_inside_a_core_section_is_refused() -> None:
    semaphore = tg.Semaphore(label="far")
    with core_lock, pytest.raises(tg.FailedPreconditionError, match="cannot block for semaphore 'far' to reach 1"):
        semaphore.wait(1, LIMIT)
