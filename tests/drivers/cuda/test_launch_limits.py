"""More workgroups or local memory than a kernel can have are refused at the call, and nothing is submitted (M16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate as tg

from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench

pytestmark = pytest.mark.rules("M16", "M32")

STATIC = tg.Kernel(
    "static_local",
    cuda="""
extern "C" __global__ void static_local(unsigned *x) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 1;
    x[0] = own[threadIdx.x];
}""",
    bindings=1,
)


@pytest.fixture
def found() -> Iterator[SimulatedBench]:
    with bench() as made:
        yield made
    assert made.native.violations == []


def _submitted(found: SimulatedBench, function: tg.Function, workgroups: Any, local: int) -> tg.Submission:
    return found.queue.dispatch(function, workgroups, bindings=[found.shared()], local_memory=local)


def _recorded(found: SimulatedBench, function: tg.Function, workgroups: Any, local: int) -> tg.Submission:
    with found.device.record() as commands:
        commands.dispatch(function, workgroups, bindings=[found.shared()], local_memory=local)
    return found.queue.execute(commands)


def _indirect(found: SimulatedBench, function: tg.Function, workgroups: Any, local: int) -> tg.Submission:
    with found.device.record() as commands:
        commands.dispatch_indirect(function, counts=found.shared(), bindings=[found.shared()], local_memory=local)
    return found.queue.execute(commands)


Submit = Callable[[SimulatedBench, tg.Function, Any, int], tg.Submission]
WAYS: list[Submit] = [_submitted, _recorded]


@pytest.mark.parametrize("submit", WAYS)
@pytest.mark.parametrize("workgroups", [2**31, (1, 65536), (1, 1, 65536), (2**31, 65536, 65536)], ids=str)
def test_more_workgroups_than_a_grid_has_are_refused_at_the_call(
    found: SimulatedBench, submit: Submit, workgroups: Any
) -> None:
    touch = found.device.load(TOUCH)["touch"]
    before = found.device.statistics().submitted
    with pytest.raises(
        tg.InvalidArgumentError, match=r"'touch'.* workgroups are more than \(2147483647, 65535, 65535\)"
    ):
        submit(found, touch, workgroups, 0)
    assert found.device.statistics().submitted == before


@pytest.mark.parametrize("submit", [*WAYS, _indirect])
@pytest.mark.parametrize(("kernel", "static"), [(TOUCH, 0), (STATIC, 1024)], ids=["no own", "own"])
def test_more_local_memory_than_there_is_is_refused_at_the_call(
    found: SimulatedBench, submit: Submit, kernel: tg.Kernel, static: int
) -> None:
    function = found.device.load(kernel)[kernel.name]
    most = (found.device.info.limits.max_local_memory or 0) - static
    before = found.device.statistics().submitted
    with pytest.raises(tg.InvalidArgumentError, match=f"{most + 1} bytes of local memory are more than the {most}"):
        submit(found, function, 1, most + 1)
    assert found.device.statistics().submitted == before
    submit(found, function, 1, most).wait(LIMIT)


@pytest.mark.parametrize("submit", WAYS)
def test_no_workgroups_are_never_too_many(found: SimulatedBench, submit: Submit) -> None:
    touch = found.device.load(TOUCH)["touch"]
    submit(found, touch, (0, 70000, 1), 0).wait(LIMIT)


def test_as_many_as_there_may_be_run(found: SimulatedBench) -> None:
    touch = found.device.load(TOUCH)["touch"]
    _submitted(found, touch, (1, 65535, 1), 0).wait(LIMIT)
