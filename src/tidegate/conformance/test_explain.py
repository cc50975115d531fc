"""Explaining a wait that does not end: who was to signal, down to the missing signal."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg

from .interrupts import Interruption, calls_at, unless_stuck
from .latches import LIMIT, Latch
from .test_interrupts import at_every_step
from .threads import background

pytestmark = pytest.mark.rules("M13")


def line_above() -> str:
    """The line before the caller's, as explanations write it."""
    frame = sys._getframe(1)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno - 1}"


@pytest.mark.rules("M13")
def test_explain_names_the_missing_signal_and_the_line_of_each_link(queue: tg.Queue) -> None:
    gate, middle, end = (tg.Semaphore(label=label) for label in ("the gate", "the middle", "the end"))
    queue.barrier(wait=gate.at(3), signal=middle.at(1))
    first = line_above()
    last = queue.barrier(wait=middle.at(1), signal=end.at(1))
    second = line_above()
    for text in (end.at(1).explain(), tg.explain(end.at(1)), last.explain(), tg.explain(last)):
        assert "the gate" in text
        assert "3" in text
        assert "the middle" in text
        assert first in text
        assert second in text
        assert "the gate" in text.splitlines()[-1]
    gate.signal(3)
    last.wait(timeout=LIMIT)


@pytest.mark.rules("M13", "M8")
def test_a_wait_over_its_time_explains_itself(queue: tg.Queue) -> None:
    gate, end = tg.Semaphore(label="the gate"), tg.Semaphore(label="the end")
    work = queue.barrier(wait=gate.at(1), signal=end.at(1))
    line = line_above()
    other = tg.Semaphore(label="another")
    waits: list[Callable[[float], object]] = [
        lambda timeout: end.wait(1, timeout),
        lambda timeout: end.at(1).wait(timeout),
        lambda timeout: work.wait(timeout),
        lambda timeout: work.result(timeout),
        lambda timeout: tg.wait_all([end.at(1), other.at(1)], timeout),
        lambda timeout: tg.wait_any([other.at(1), end.at(1)], timeout),
    ]
    for wait in waits:
        for timeout in (0, 0.001):
            with pytest.raises(tg.DeadlineExceededError) as caught:
                wait(timeout)
            assert "the gate" in str(caught.value)
            assert line in str(caught.value)
    gate.signal(1)
    work.wait(timeout=LIMIT)


@pytest.mark.rules("M13")
def test_a_signal_that_nobody_has_promised_is_told_as_such() -> None:
    sem = tg.Semaphore(label="nobody's")
    line = line_above()
    text = sem.at(7).explain()
    assert "nobody's" in text
    assert "7" in text
    assert line in text


@pytest.mark.rules("M13")
def test_explain_tells_a_cycle_that_can_never_resolve(queue: tg.Queue) -> None:
    one, other = tg.Semaphore(label="chicken"), tg.Semaphore(label="egg")
    works = [queue.barrier(wait=one.at(1), signal=other.at(1)), queue.barrier(wait=other.at(1), signal=one.at(1))]
    text = one.at(1).explain()
    assert "chicken" in text
    assert "egg" in text
    assert "cycle" in text.lower()
    with pytest.raises(tg.DeadlineExceededError, match="cycle"):
        works[0].wait(timeout=0)
    for work in works:
        work.cancel()


@pytest.mark.rules("M13")
def test_what_is_submitted_behind_makes_no_cycle(queue: tg.Queue, second_queue: tg.Queue) -> None:
    """Chains whose first signal is left to the host, on one timeline and on two in turn: no link is in a circle."""
    steps, ping, pong = (tg.Semaphore(label=label) for label in ("steps", "ping", "pong"))
    points = []
    for value in range(1, 20):
        queue.barrier(wait=steps.at(value), signal=steps.at(value + 1))
        queue.barrier(wait=ping.at(value), signal=pong.at(value))
        second_queue.barrier(wait=pong.at(value), signal=ping.at(value + 1))
        points += [steps.at(value + 1), pong.at(value), ping.at(value + 1)]
    for point in [*points, steps.at(1), ping.at(1)]:
        text = point.explain()
        assert "cycle" not in text
        missing = "steps" if point.semaphore is steps else "ping"
        assert f"semaphore '{missing}' at 1" in text.splitlines()[-1]
        assert "nobody has promised this signal" in text.splitlines()[-1]
    steps.signal(1)
    ping.signal(1)
    tg.wait_all(points, LIMIT)


@pytest.mark.rules("M13")
def test_a_diamond_is_not_taken_for_a_cycle(queue: tg.Queue) -> None:
    gate, left, right, end = (tg.Semaphore(label=label) for label in ("gate", "left", "right", "end"))
    queue.barrier(wait=gate.at(1), signal=left.at(1))
    queue.barrier(wait=gate.at(1), signal=right.at(1))
    queue.barrier(wait=[left.at(1), right.at(1)], signal=end.at(1))
    assert "cycle" not in end.at(1).explain().lower()
    gate.signal(1)
    end.wait(1, timeout=LIMIT)


@pytest.mark.rules("M13")
@pytest.mark.parametrize("count", [3000])
def test_a_long_chain_is_told_without_recursion_elided_and_with_its_last_link(queue: tg.Queue, count: int) -> None:
    gate = tg.Semaphore(label="the far gate")
    chain = [gate] + [tg.Semaphore(label=f"link {index}") for index in range(count)]
    for before, after in itertools.pairwise(chain):
        queue.barrier(wait=before.at(1), signal=after.at(1))
    text = chain[-1].at(1).explain()
    assert len(text.splitlines()) < 200
    assert f"link {count - 1}" in text
    assert "the far gate" in text.splitlines()[-1]
    gate.signal(1)
    chain[-1].wait(1, timeout=LIMIT)


def one_timeline(queue: tg.Queue, gate: tg.Semaphore, count: int) -> list[tg.Timepoint | tg.Submission]:
    """Each link waits for the one before, on one semaphore."""
    steps = tg.Semaphore(label="steps")
    for value in range(count):
        queue.barrier(wait=steps.at(value) if value else gate.at(1), signal=steps.at(value + 1))
    return [steps.at(count)]


def lane(queue: tg.Queue, gate: tg.Semaphore, count: int) -> list[tg.Timepoint | tg.Submission]:
    """Each link waits for the one before, by the order of a lane."""
    ordered = queue.device.lane(queue)
    ordered.barrier(wait=gate.at(1))
    return [[ordered.barrier() for _ in range(count - 1)][-1]]


def submissions(queue: tg.Queue, gate: tg.Semaphore, count: int) -> list[tg.Timepoint | tg.Submission]:
    """Each link waits for the submission before."""
    last = queue.barrier(wait=gate.at(1))
    for _ in range(count - 1):
        last = queue.barrier(wait=last)
    return [last]


def steps_of_ten(queue: tg.Queue, gate: tg.Semaphore, count: int) -> list[tg.Timepoint | tg.Submission]:
    """Each link waits for a value that nobody claims: the next claim above will bring it."""
    steps = tg.Semaphore(label="steps")
    for value in range(10, 10 * count + 10, 10):
        queue.barrier(wait=steps.at(value - 15) if value > 10 else gate.at(1), signal=steps.at(value))
    return [steps.at(10 * count)]


def many_waits(queue: tg.Queue, gate: tg.Semaphore, count: int) -> list[tg.Timepoint | tg.Submission]:
    """One submission waits for all the others, each on a semaphore of its own, and for the gate."""
    ends = [tg.Semaphore(label="an end") for _ in range((count - 1) // 2)]
    for end in ends:
        queue.barrier(wait=gate.at(1), signal=end.at(1))
    return [queue.barrier(wait=[*(end.at(1) for end in ends), gate.at(1)])]


def many_targets(queue: tg.Queue, gate: tg.Semaphore, count: int) -> list[tg.Timepoint | tg.Submission]:
    """Every link of a chain, the first ones first."""
    (last,) = one_timeline(queue, gate, count)
    assert isinstance(last, tg.Timepoint)
    return [last.semaphore.at(value) for value in range(1, count + 1)]


def many_targets_from_the_end(queue: tg.Queue, gate: tg.Semaphore, count: int) -> list[tg.Timepoint | tg.Submission]:
    """Every link of a chain, the last ones first."""
    return many_targets(queue, gate, count)[::-1]


def two_waits_each(queue: tg.Queue, gate: tg.Semaphore, count: int) -> list[tg.Timepoint | tg.Submission]:
    """Each link waits for the one before and for a value between, that nobody claims and that it itself waits for."""
    steps = tg.Semaphore(label="steps")
    queue.barrier(wait=gate.at(1), signal=steps.at(10))
    for value in range(10, 10 * count, 10):
        before = queue.barrier(wait=steps.at(value))
        queue.barrier(wait=[before, steps.at(value + 5)], signal=steps.at(value + 10))
    return [steps.at(10 * count), gate.at(1)]


Shape = Callable[[tg.Queue, tg.Semaphore, int], list[tg.Timepoint | tg.Submission]]
SHAPES: list[Shape] = [
    one_timeline,
    lane,
    submissions,
    steps_of_ten,
    many_waits,
    many_targets,
    many_targets_from_the_end,
    two_waits_each,
]

#: How many lines there are of a count: of the shapes of which this can be said in a word.
LINES: dict[Shape, Callable[[int], int]] = {
    one_timeline: lambda count: count + 1,
    lane: lambda count: count + 1,
    submissions: lambda count: count + 1,
    steps_of_ten: lambda count: count + 1,
    many_waits: lambda count: 2 * ((count - 1) // 2) + 2,
}


@pytest.mark.slow
@pytest.mark.rules("M13")
@pytest.mark.parametrize("shape", SHAPES)
def test_of_very_many_links_few_are_told_and_the_missing_signal_is_among_the_last(
    queue: tg.Queue, shape: Shape
) -> None:
    gate, count = tg.Semaphore(label="the far gate"), 2000
    points = shape(queue, gate, count)
    with pytest.raises(tg.DeadlineExceededError) as caught:
        tg.wait_all(points, 0.001)
    told = str(caught.value).splitlines()[1:]
    assert len(told) == 37
    assert "the far gate" in told[-1]
    assert "nobody has promised" in told[-1]
    assert not any("cycle" in line for line in told)
    if shape in LINES:
        assert told[24] == f"... {LINES[shape](count) - 36} more links ..."
    gate.signal(1)
    for point in points:
        if shape is not two_waits_each:
            point.wait(LIMIT)


def cost_of(call: Callable[[], object]) -> float:
    """What a call costs this thread, at best."""
    costs = []
    for _ in range(5):
        before = time.thread_time()
        call()
        costs.append(time.thread_time() - before)
    return min(costs)


def text_of_a_wait(points: list[tg.Timepoint | tg.Submission]) -> str:
    """The text of a poll is made when it is read."""
    with pytest.raises(tg.DeadlineExceededError) as caught:
        tg.wait_all(points, 0)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.rules("M13")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_cost_of_an_explanation_grows_as_what_there_is_to_explain(queue: tg.Queue, shape: Shape) -> None:
    """Sixteen times the links may not cost much more than sixteen times as much; their square would be 256."""
    gate = tg.Semaphore(label="gate")
    few, many = [shape(queue, gate, count) for count in (500, 8000)]
    gc.collect()
    gc.disable()
    try:
        assert cost_of(lambda: text_of_a_wait(many)) < 64 * cost_of(lambda: text_of_a_wait(few))
    finally:
        gc.enable()


@pytest.mark.rules("M13", "M8")
def test_the_text_of_a_wait_that_ran_over_tells_of_its_deadline_and_that_of_a_poll_of_when_it_is_read(
    queue: tg.Queue,
) -> None:
    gate, end = tg.Semaphore(label="the gate"), tg.Semaphore(label="the end")
    queue.barrier(wait=gate.at(1), signal=end.at(1))
    errors = []
    for timeout in (0.001, 0):
        with pytest.raises(tg.DeadlineExceededError) as caught:
            end.wait(1, timeout)
        errors.append(caught.value)
    gate.signal(1)
    end.wait(1, LIMIT)
    assert "held" in str(errors[0])
    assert "'the gate' at 1 (payload 0): nobody has promised this signal" in str(errors[0])
    assert "has reached 1" in str(errors[1])
    end.fail(ValueError("later"))
    assert "has reached 1" in str(errors[1])


@pytest.mark.rules("M13")
def test_explain_tells_that_work_is_running(queue: tg.Queue, latch: Latch) -> None:
    end = tg.Semaphore(label="the end")
    latch.block(queue, signal=end.at(1))
    latch.wait_until_running()
    assert "latches.py" in end.at(1).explain()
    latch.open()
    end.wait(1, timeout=LIMIT)


@pytest.mark.rules("M13")
def test_explain_of_what_is_over_says_so(queue: tg.Queue) -> None:
    reached, broken = tg.Semaphore(3, label="reached"), tg.Semaphore(label="broken")
    broken.fail(ValueError("the reason"))
    assert "reached" in reached.at(2).explain()
    assert "the reason" in broken.at(1).explain()
    done = queue.barrier()
    done.wait(timeout=LIMIT)
    assert done.explain()


@pytest.mark.rules("M13", "M38")
def test_explain_may_be_called_while_the_graph_changes(queue: tg.Queue, switch_often: None) -> None:
    sem = tg.Semaphore()
    last = 300
    stop = threading.Event()

    def explains() -> None:
        while not stop.is_set():
            assert sem.at(last).explain()

    reader = background(explains)
    for value in range(last, 1, -1):
        queue.barrier(wait=sem.at(value - 1), signal=sem.at(value))
    sem.signal(1)
    sem.wait(last, timeout=LIMIT)
    stop.set()
    reader.result()


@pytest.mark.slow
@pytest.mark.rules("M13", "M38", "M12")
def test_explain_may_be_called_while_work_is_cancelled_and_semaphores_are_dropped(
    queue: tg.Queue, second_queue: tg.Queue, switch_often: None
) -> None:
    root, end = tg.Semaphore(label="root"), tg.Semaphore(label="end")
    queue.barrier(wait=root.at(1), signal=end.at(1000))
    seen: list[tg.Timepoint] = [end.at(500)]
    stop = threading.Event()

    def explains() -> int:
        count = 0
        while not stop.is_set():
            for point in list(seen):
                assert point.explain()
            assert "root" in end.at(999).explain()
            count += 1
        return count

    readers = [background(explains) for _ in range(2)]
    for number in range(150):
        chain, dropped = tg.Semaphore(label="chain"), tg.Semaphore(label="dropped")
        works = [
            (queue, second_queue)[value % 2].barrier(
                wait=[chain.at(3 * value), dropped.at(value + 1)], signal=chain.at(3 * value + 4)
            )
            for value in reversed(range(1, 6))
        ]
        seen[1:] = [chain.at(19), chain.at(2)]
        works[number % 5].cancel()
        del works, dropped
        if number % 3:
            with_reasons = tg.explain(chain.at(19))
            assert "chain" in with_reasons
    stop.set()
    assert all(reader.result() for reader in readers)
    root.signal(1)
    end.wait(1000, LIMIT)


@pytest.mark.slow
@pytest.mark.rules("M13", "M12", "M40")
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
def test_a_signal_handler_may_explain_at_any_step_of_a_submission(queue: tg.Queue) -> None:
    """It takes no lock, and understands what is half done."""

    def attempt(step: int) -> Interruption:
        gate, middle, end = tg.Semaphore(label="gate"), tg.Semaphore(label="middle"), tg.Semaphore(label="end")
        texts: list[str] = []
        first = queue.barrier(wait=gate.at(1), signal=middle.at(2))
        with unless_stuck(LIMIT), calls_at(step, lambda: texts.append(end.at(1).explain())) as what:
            last = queue.barrier(wait=[middle.at(1), first], signal=end.at(1))
            gate.signal(1)
        assert len(texts) == what.fired
        assert all(text.startswith("semaphore 'end'") for text in texts)
        last.wait(LIMIT)
        return what

    assert at_every_step(attempt) > 3


@pytest.mark.rules("M13")
def test_explaining_what_is_no_point_is_a_type_error() -> None:
    point: Any = "a point"
    with pytest.raises(TypeError):
        tg.explain(point)
