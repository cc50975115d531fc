"""Submissions on a GPU: with a host wait, chained, and what one costs its caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns

from .contestants import Contestants
from .cuda_barriers import HOLD_NS, barriers, held_barriers
from .cuda_launchers import Launcher, MakeLauncher, kernels
from .cuda_sides import BINDINGS, IREE
from .goals import Below, Goal, Ratio
from .model import Case, Condition, Sampler, Side
from .own_code import own_code

BOTH: tuple[Condition, ...] = ("idle", "busy")
LIMIT_NS = 60_000_000
"""A sample ends after that long: beside a busy thread some sides take milliseconds for each submission."""

LEAST = 3

Measure = Callable[[Launcher, int], list[float]]


def round_trips(launcher: Launcher, count: int) -> list[float]:
    """Time each submission with its wait."""
    submit, wait = launcher.submit, launcher.wait
    launcher.ready(count)
    samples: list[float] = []
    end = perf_counter_ns() + LIMIT_NS
    for _ in range(count):
        start = perf_counter_ns()
        submit()
        wait()
        stop = perf_counter_ns()
        samples.append(float(stop - start))
        if stop > end and len(samples) >= LEAST:
            break
    return samples


def host_costs(launcher: Launcher, count: int) -> list[float]:
    """Time each submission alone; what they do is waited for afterwards."""
    submit = launcher.submit
    launcher.ready(count)
    samples: list[float] = []
    end = perf_counter_ns() + LIMIT_NS
    for _ in range(count):
        start = perf_counter_ns()
        submit()
        stop = perf_counter_ns()
        samples.append(float(stop - start))
        if stop > end and len(samples) >= LEAST:
            break
    launcher.wait()
    return samples


def chain_total(launcher: Launcher, count: int) -> list[float]:
    """Time a number of submissions until the last is over, for each of them."""
    submit = launcher.submit
    launcher.ready(count)
    start = perf_counter_ns()
    end = start + LIMIT_NS
    done = 0
    for _ in range(count):
        submit()
        done += 1
        if done % 8 == 0 and perf_counter_ns() > end:
            break
    launcher.wait()
    return [(perf_counter_ns() - start) / done]


@contextmanager
def _side(make: MakeLauncher, measure: Measure, count: int, contestants: Contestants) -> Iterator[Sampler]:
    with make(contestants) as launcher:
        yield partial(own_code(measure), launcher, count)


def _sides(makers: dict[str, MakeLauncher], measure: Measure, count: int) -> dict[str, Side]:
    return {side: partial(_side, make, measure, count) for side, make in makers.items()}


def _case(name: str, title: str, sides: dict[str, Side], goals: tuple[Goal, ...]) -> Case:
    return Case(name, title, {"": sides}, goals, rounds=40, conditions=BOTH)


def cases(quick: bool) -> list[Case]:
    """Return the cases of this group."""
    few, many = (20, 50) if quick else (100, 300)
    hold_ns = HOLD_NS // 20 if quick else HOLD_NS
    chained = {
        "": _sides(barriers(True), chain_total, many),
        "behind a kernel": _sides(held_barriers(hold_ns), host_costs, few),
    }
    chain_goals = (Below(4e3), Below(4e3, variant="behind a kernel"))
    busy = (Below(12e3), Below(5.5e6, condition="busy"), Ratio(1.0, IREE), Ratio(1.05, IREE, "busy"))
    return [
        _case("barrier-wait", "barrier + host wait", _sides(barriers(False), round_trips, few), (Below(9e3),)),
        Case("barrier-chain", "chained barriers, each", chained, chain_goals, rounds=20, conditions=BOTH),
        _case("kernel-wait", "kernel + host wait", _sides(kernels(False), round_trips, few), busy),
        _case(
            "kernel-submit",
            "submitting a kernel: cost to the caller",
            _sides(kernels(True), host_costs, few),
            (Below(10e3, condition="busy"), Ratio(0.01, BINDINGS, "busy")),
        ),
        _case("kernel-chain", "chained kernels, each", _sides(kernels(True), chain_total, many), (Below(8e3),)),
    ]
