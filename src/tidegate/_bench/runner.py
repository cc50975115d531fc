"""Takes the samples: in every round each side has its turn, in an order that rotates."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from time import perf_counter
from typing import Any

from ..errors import DriverUnavailableError
from . import (
    awaits,
    bandwidth,
    crowds,
    cuda_awaits,
    cuda_graphs,
    cuda_independence,
    cuda_submissions,
    cuda_transfers,
    executions,
    semaphores,
)
from .busy import busy_thread
from .contestants import Contestants
from .machine import OtherWork
from .model import Case, Condition, Key, Missing, Result, Sampler, Samples

LEAST_ROUNDS = 3
GROUPS: tuple[Any, ...] = (semaphores, executions, awaits, crowds, bandwidth)
GPU_GROUPS: tuple[Any, ...] = (cuda_submissions, cuda_graphs, cuda_transfers, cuda_awaits, cuda_independence)

Turn = tuple[str, str]
"""Which side, in which variant."""


def all_cases(quick: bool, driver: str = "cpu") -> list[Case]:
    """Return every case for a driver, in the order of the table."""
    groups = GPU_GROUPS if driver == "cuda" else GROUPS
    return [case for group in groups for case in group.cases(quick)]


def run_case(case: Case, contestants: Contestants, *, seconds: float, advance: Callable[[float], None]) -> Result:
    """Measure one case.

    Args:
        case: what to measure.
        contestants: the devices.
        seconds: after that long a condition ends, once it has had its least number of rounds.
        advance: told after each round which share of the case is done.

    """
    result = Result(case)
    with ExitStack() as stack, OtherWork() as other_work:
        samplers = _prepare(case, contestants, stack, result)
        for index, condition in enumerate(case.conditions):

            def report(share: float, index: int = index) -> None:
                advance((index + share) / len(case.conditions))

            with _company(condition):
                _measure(result, samplers, condition, seconds, report)
    result.others = other_work.cores
    return result


def _company(condition: Condition) -> AbstractContextManager[None]:
    return busy_thread() if condition == "busy" else nullcontext()


def _prepare(case: Case, contestants: Contestants, stack: ExitStack, result: Result) -> dict[Turn, Sampler]:
    samplers: dict[Turn, Sampler] = {}
    for variant, sides in case.sides.items():
        for name, side in sides.items():
            try:
                samplers[name, variant] = stack.enter_context(side(contestants))
            except (Missing, DriverUnavailableError) as reason:
                result.missing[name, variant] = str(reason)
            except Exception as error:  # one side that cannot start must not take the table with it
                result.failed[name, variant] = _describe(error)
    return samplers


def _measure(
    result: Result, samplers: dict[Turn, Sampler], condition: Condition, seconds: float, report: Callable[[float], None]
) -> None:
    rounds = result.case.rounds
    for turn in list(samplers):
        _take(result, samplers, turn, condition, keep=False)
    end = perf_counter() + seconds
    for number in range(rounds):
        turns = list(samplers)
        for turn in turns[number % len(turns) :] + turns[: number % len(turns)] if turns else ():
            _take(result, samplers, turn, condition, keep=True)
        left = end - perf_counter()
        report(max((number + 1) / rounds, 1 - max(left, 0) / seconds))
        if left <= 0 and number + 1 >= LEAST_ROUNDS:
            break


def _take(result: Result, samplers: dict[Turn, Sampler], turn: Turn, condition: Condition, *, keep: bool) -> None:
    if result.case.crowded:
        gc.collect()
    try:
        samples = samplers[turn]()
    except (Missing, DriverUnavailableError) as reason:
        result.missing[turn] = str(reason)
        del samplers[turn]
        return
    except Exception as error:  # as in _prepare
        result.failed[turn] = _describe(error)
        del samplers[turn]
        return
    if keep:
        result.samples.setdefault(Key(*turn, condition), Samples()).rounds.append(list(samples))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
