"""The CPU driver's queue: who runs a piece of work, and how its end is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.drivers.cpu import queue as cpu_queue


class Crew:
    def __init__(self) -> None:
        self.put_here: list[Any] = []
        self.hinted: list[Any] = []
        self.put = self.put_here.append
        self.hint = self.hinted.append


@pytest.mark.parametrize(
    ("cost", "where"),
    [
        (0, "in place"),
        (16 * 1024, "in place"),
        (16 * 1024 + 1, "small"),
        (256 * 1024, "small"),
        (256 * 1024 + 1, "large"),
        (None, "large"),
    ],
)
def test_small_work_runs_in_place_larger_by_waiters_and_the_rest_by_workers(
    cost: int | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    crew, ended = Crew(), []
    device = SimpleNamespace(workers=crew, sink=SimpleNamespace(finished=lambda *given: ended.append(given)))
    work = SimpleNamespace(cost=cost)
    monkeypatch.setattr(cpu_queue, "PLANS", {SimpleNamespace: lambda *_given: lambda: steps.append("step")})
    ticket = SimpleNamespace(taken=False)
    assert cpu_queue.CpuQueue(device).issue(ticket, work, ())  # type: ignore[arg-type]
    if where == "in place":
        assert (steps, ended, crew.put_here, ticket.taken) == (["step"], [(ticket,)], [], False)
        return
    (task,) = crew.put_here
    assert (steps, ended, ticket.taken) == ([], [], True)
    assert crew.hinted == ([task] if where == "small" else [])
    assert task.run()
    assert not task.run()
    assert (steps, ended) == (["step"], [(ticket, None)])


def test_an_error_of_a_step_is_told_and_only_an_interrupt_goes_on_to_the_worker() -> None:
    for error in (ValueError("x"), KeyboardInterrupt()):
        ended: list[Any] = []

        def step(error: BaseException = error) -> None:
            raise error

        task = cpu_queue._Task("ticket", step, lambda *given, ended=ended: ended.append(given))  # type: ignore[arg-type]
        if isinstance(error, Exception):
            task()
        else:
            with pytest.raises(KeyboardInterrupt):
                task()
        assert ended == [("ticket", error)]


def test_a_step_is_dropped_before_its_end_is_told() -> None:
    import weakref

    class Step:
        def __call__(self) -> None:
            pass

    step, gone = Step(), []
    ref = weakref.ref(step)
    task = cpu_queue._Task("ticket", step, lambda *_given: gone.append(ref() is None))  # type: ignore[arg-type]
    del step
    task()
    assert gone == [True]
