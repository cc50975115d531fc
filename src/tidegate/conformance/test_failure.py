"""Failure reaches exactly the dependents and is reported once; cancelling."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .threads import all_at_once
from .witnesses import Log, Recorder, failure_of

pytestmark = pytest.mark.rules("M17")


# Failure ------------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M16", "M21")
def test_what_goes_wrong_in_the_work_fails_every_signal_with_that_very_error(queue: tg.Queue) -> None:
    ends = [tg.Semaphore() for _ in range(3)]
    error = ValueError("from the work")

    def broken() -> None:
        raise error

    work = queue.host_call(broken, signal=[end.at(1) for end in ends])
    for end in ends:
        assert failure_of(end.at(1)) is error
        assert end.failure is error
    assert failure_of(work) is error
    assert work.error is error
    assert work.done
    with pytest.raises(tg.SemaphoreFailedError):
        work.result(timeout=LIMIT)


@pytest.mark.rules("M17")
def test_a_failed_wait_fails_exactly_the_dependents_and_nothing_else_on_that_queue(queue: tg.Queue, log: Log) -> None:
    gate, sound_gate, middle, end, sound = (tg.Semaphore() for _ in range(5))
    first = log.call(queue, "first", wait=gate.at(1), signal=middle.at(1))
    second = log.call(queue, "second", wait=middle.at(1), signal=end.at(1))
    unrelated = log.call(queue, "unrelated", wait=sound_gate.at(1), signal=sound.at(1))
    error = ValueError("no gate")
    gate.fail(error)
    assert failure_of(first) is error
    assert failure_of(second) is error
    assert failure_of(end.at(1)) is error
    assert (first.error, second.error) == (error, error)
    assert (unrelated.done, unrelated.error) == (False, None)
    sound_gate.signal(1)
    unrelated.wait(timeout=LIMIT)
    assert sound.query() == 1
    log.call(queue, "later").wait(timeout=LIMIT)
    assert log.entries == ["unrelated", "later"]


@pytest.mark.rules("M17")
def test_one_failed_wait_of_several_fails_the_submission_at_once(queue: tg.Queue, log: Log) -> None:
    gates = [tg.Semaphore() for _ in range(3)]
    end = tg.Semaphore()
    work = log.call(queue, "ran", wait=[gate.at(1) for gate in gates], signal=end.at(1))
    error = ValueError("one is enough")
    gates[0].signal(1)
    gates[1].fail(error)
    assert failure_of(end.at(1)) is error
    gates[2].signal(1)
    work_error = failure_of(work)
    assert work_error is error
    assert log.entries == []


@pytest.mark.rules("M7", "M17")
def test_submitting_against_a_failed_wait_never_raises_and_fails_with_the_first_cause(
    queue: tg.Queue, log: Log
) -> None:
    broken, end = tg.Semaphore(3), tg.Semaphore()
    error = ValueError("broken before")
    broken.fail(error)
    work = log.call(queue, "ran", wait=broken.at(4), signal=end.at(1))
    assert failure_of(work) is error
    assert failure_of(end.at(1)) is error
    assert log.entries == []
    log.call(queue, "past", wait=broken.at(3)).wait(timeout=LIMIT)
    assert log.entries == ["past"]


@pytest.mark.rules("M7")
def test_in_signal_a_failed_semaphore_never_raises_the_work_runs_and_the_first_failure_stays(
    queue: tg.Queue, log: Log
) -> None:
    broken, sound = tg.Semaphore(), tg.Semaphore()
    error = ValueError("broken before")
    broken.fail(error)
    log.call(queue, "ran", signal=[broken.at(1), sound.at(1)])
    sound.wait(1, timeout=LIMIT)
    assert log.entries == ["ran"]
    assert broken.failure is error
    assert broken.value == 0


@pytest.mark.rules("M17", "M3", "M7")
def test_a_host_failure_after_issue_fails_the_dependents_at_retirement_and_transitively(
    queue: tg.Queue, second_queue: tg.Queue, latch: Latch
) -> None:
    one, two, three, sound = (tg.Semaphore() for _ in range(4))
    latch.block(queue, signal=[one.at(1), sound.at(1)])
    latch.wait_until_running()
    second = queue.barrier(wait=one.at(1), signal=two.at(1))
    third = second_queue.barrier(wait=two.at(1), signal=three.at(1))
    unrelated = second_queue.barrier(wait=sound.at(1))
    error = ValueError("failed by the host")
    one.fail(error)
    with pytest.raises(tg.SemaphoreFailedError):
        one.wait(1, timeout=0)
    latch.open()
    assert failure_of(two.at(1)) is error
    assert failure_of(three.at(1)) is error
    assert failure_of(second) is error
    assert failure_of(third) is error
    unrelated.wait(timeout=LIMIT)
    assert (one.value, two.value, three.value) == (0, 0, 0)


@pytest.mark.rules("M7")
def test_fail_first_retires_what_the_device_has_finished(queue: tg.Queue, latch: Latch) -> None:
    """What was over before the failure stays reached, although nobody had looked yet.

    The second latch tells, past the semaphore, that the device is through with the first: its work comes behind it.
    """
    sem, behind = tg.Semaphore(), latch()
    finished = latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    dependent = behind.block(queue, wait=sem.at(1))
    latch.open()
    behind.wait_until_running()
    error = ValueError("later")
    sem.fail(error)
    assert sem.value == 1
    sem.wait(1, timeout=0)
    assert finished.error is None
    behind.open()
    dependent.wait(timeout=LIMIT)
    assert failure_of(sem.at(2)) is error


@pytest.mark.rules("M7", "M17", "M40")
def test_a_failure_of_running_work_is_told_to_those_who_wait_for_what_nobody_has_promised(
    queue: tg.Queue, latch: Latch
) -> None:
    one, two, told = tg.Semaphore(), tg.Semaphore(), threading.Event()
    recorder = Recorder()
    latch.block(queue, signal=one.at(1))
    latch.wait_until_running()
    queue.barrier(wait=one.at(1), signal=two.at(1))
    two.at(2).add_callback(recorder)
    two.at(3).add_callback(lambda *_: told.set())
    error = ValueError("failed by the host")
    one.fail(error)
    latch.open()
    assert told.wait(LIMIT)
    assert recorder.calls == [(two.at(2), tg.Outcome.FAILED, error)]


@pytest.mark.rules("M17", "M21")
def test_a_failed_submission_in_wait_passes_its_own_error_on(queue: tg.Queue, second_queue: tg.Queue) -> None:
    error = ValueError("from the work")

    def broken() -> None:
        raise error

    first = queue.host_call(broken)
    second = second_queue.barrier(wait=first)
    third = queue.barrier(wait=[second])
    assert failure_of(third) is error
    assert failure_of(second) is error
    assert failure_of(first) is error
    late = queue.barrier(wait=first)
    assert failure_of(late) is error


@pytest.mark.rules("M17")
def test_a_failure_travels_down_a_long_chain_without_recursion(queue: tg.Queue) -> None:
    count = 1000
    chain = [tg.Semaphore() for _ in range(count + 1)]
    for index in reversed(range(count)):
        queue.barrier(wait=chain[index].at(1), signal=chain[index + 1].at(1))
    error = ValueError("at the very start")
    chain[0].fail(error)
    assert failure_of(chain[-1].at(1)) is error


class Reports(logging.Handler):
    """What is reported for want of somebody to raise it to: by the unraisable hook or by a log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.some = threading.Event()
        monkeypatch.setattr("sys.unraisablehook", lambda report: self.add(f"{report.err_msg} {report.exc_value}"))
        monkeypatch.setattr(logging.getLogger("tidegate"), "handlers", [self])

    def emit(self, record: logging.LogRecord) -> None:
        self.add(self.format(record))

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.some.set()


@pytest.mark.rules("M21")
def test_a_failure_that_nobody_looked_at_is_reported_once_when_it_is_collected(
    queue: tg.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports(monkeypatch)

    def broken() -> None:
        raise ValueError("nobody looks")

    queue.host_call(broken)
    for _ in range(int(LIMIT / 0.05)):
        gc.collect()  # an error and its frames hold each other
        if reports.some.wait(0.05):
            break
    gc.collect()
    queue.host_call(gc.collect).wait(timeout=LIMIT)
    assert len(reports.texts) == 1
    assert "nobody looks" in reports.texts[0]


@pytest.mark.rules("M21")
@pytest.mark.parametrize("look", ["wait", "error", "result", "wait_all", "dependent"])
def test_a_failure_that_somebody_looked_at_is_not_reported(
    queue: tg.Queue, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    reports = Reports(monkeypatch)

    def broken() -> None:
        raise ValueError("somebody looks")

    work = queue.host_call(broken)
    if look == "dependent":
        failure_of(queue.barrier(wait=work))
    elif look == "wait_all":
        with pytest.raises(tg.SemaphoreFailedError):
            tg.wait_all([work], timeout=LIMIT)
    elif look == "result":
        with pytest.raises(tg.SemaphoreFailedError):
            work.result(timeout=LIMIT)
    else:
        failure_of(work)
        assert isinstance(work.error, ValueError)
    del work
    gc.collect()
    queue.host_call(gc.collect).wait(timeout=LIMIT)
    assert reports.texts == []


# Cancelling ---------------------------------------------------------------------------------------------------------


@pytest.mark.rules("M21")
def test_cancelling_a_held_submission_aborts_its_signals_and_dependents(queue: tg.Queue, log: Log) -> None:
    gate, end, after = tg.Semaphore(), tg.Semaphore(), tg.Semaphore()
    work = log.call(queue, "cancelled", wait=gate.at(1), signal=end.at(1))
    dependent = log.call(queue, "dependent", wait=end.at(1), signal=after.at(1))
    neighbour = log.call(queue, "neighbour", wait=gate.at(1))
    assert work.cancel() is True
    work.cancel()
    cause = failure_of(end.at(1))
    assert isinstance(cause, tg.AbortedError)
    assert failure_of(after.at(1)) is cause
    assert failure_of(dependent) is cause
    assert isinstance(work.error, tg.AbortedError)
    assert work.done
    gate.signal(1)
    neighbour.wait(timeout=LIMIT)
    assert log.entries == ["neighbour"]


@pytest.mark.rules("M21")
def test_what_runs_or_is_over_cannot_be_cancelled(queue: tg.Queue, latch: Latch) -> None:
    end = tg.Semaphore()
    work = latch.block(queue, signal=end.at(1))
    latch.wait_until_running()
    assert work.cancel() is False
    latch.open()
    end.wait(1, timeout=LIMIT)
    work.wait(timeout=LIMIT)
    assert work.cancel() is False
    assert work.error is None


@pytest.mark.rules("M21", "M38")
@pytest.mark.slow
def test_cancelling_races_with_the_signal_and_its_answer_is_true(queue: tg.Queue, switch_often: None) -> None:
    for _ in range(200):
        gate, end = tg.Semaphore(), tg.Semaphore()
        ran: list[int] = []
        work = queue.host_call(ran.append, 1, wait=gate.at(1), signal=end.at(1))

        def cancel_or_signal(index: int, gate: tg.Semaphore = gate, work: tg.Submission = work) -> bool | None:
            if index:
                return work.cancel()
            gate.signal(1)
            return None

        _, cancelled = all_at_once(2, cancel_or_signal)
        if cancelled:
            assert isinstance(failure_of(end.at(1)), tg.AbortedError)
            assert ran == []
        else:
            end.wait(1, timeout=LIMIT)
            assert ran == [1]


@pytest.mark.rules("M6", "M21")
def test_cancelling_one_submission_leaves_the_semaphore_of_its_wait_alone(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    assert queue.barrier(wait=gate.at(1)).cancel()
    assert (gate.value, gate.failure) == (0, None)
    other = queue.barrier(wait=gate.at(1))
    gate.signal(1)
    other.wait(timeout=LIMIT)
