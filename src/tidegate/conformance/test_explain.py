"""Explaining a wait that does not end: who was to signal, down to the missing signal."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg

from .latches import LIMIT, Latch
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


@pytest.mark.rules("M13")
def test_explaining_what_is_no_point_is_a_type_error() -> None:
    point: Any = "a point"
    with pytest.raises(TypeError):
        tg.explain(point)
