"""The pytest plugin behind tools/stress.py: disturbs the test process as the environment says.

TIDEGATE_STRESS is a comma-separated list: `switch` makes threads change at every opportunity, `collect` has the
collector run at points chosen at random, `stall` has threads stop for a while at calls and returns chosen at random.
TIDEGATE_STRESS_SEED seeds the choice.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import tidegate

_SWITCH_INTERVAL_S = 1e-6
_STALLS_S = (0, 2e-5, 2e-4, 2e-3)
_STEPS = 1000
_OURS = tuple(str(Path(tidegate.__file__).parent / name) for name in ("_core", "drivers"))
_MANY = 200
_seen = [0]
"""How many modules there were when the collector was last told to leave them alone."""
_stalling: list[Callable[[FrameType, str, object], None]] = []
"""What has threads stall, if they shall."""


def pytest_configure(config: pytest.Config) -> None:
    wanted = set(filter(None, os.environ.get("TIDEGATE_STRESS", "").split(",")))
    seed = int(os.environ.get("TIDEGATE_STRESS_SEED", "0"))
    if "switch" in wanted:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
    if "collect" in wanted:
        _collect_at_random(random.Random(seed))
    if "stall" in wanted:
        _stall_at_random(random.Random(seed))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Do not stall a thread that is interrupted step by step: the steps of the stalling would count.

    And leave what a large library has brought out of further collections: they would take most of the time.
    """
    if _stalling:
        sys.setprofile(None if "interrupts" in item.nodeid else _stalling[0])
    if "collect" in os.environ.get("TIDEGATE_STRESS", "") and len(sys.modules) > _seen[-1] + _MANY:
        _seen.append(len(sys.modules))
        gc.collect()
        gc.freeze()


def pytest_report_header() -> str:
    return f"stress: {os.environ.get('TIDEGATE_STRESS') or 'none'}, seed {os.environ.get('TIDEGATE_STRESS_SEED', '0')}"


def _collect_at_random(choice: random.Random) -> None:
    """Collect young objects after a random number of allocations, and all objects from a thread now and then.

    The first runs finalizers in the middle of whatever the tested code does on its own threads, the second on a
    thread that has nothing to do with it.
    """

    def after(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            gc.set_threshold(choice.choice((1, 7, 50, 300, 2000)) + choice.randrange(7), 2, 2)

    def everything() -> None:
        pause = threading.Event()
        while not pause.wait(choice.uniform(0.001, 0.1)):
            gc.collect()

    gc.callbacks.append(after)
    gc.set_threshold(1, 2, 2)
    threading.Thread(target=everything, name="stress collector", daemon=True).start()


def _stall_at_random(choice: random.Random) -> None:
    """Have threads stop where Tidegate calls something or returns, also with its lock, while others go on.

    So a machine with few cores sees what else takes many: somebody who looks between two steps of another thread.
    """
    # No globals in the step: the interpreter takes those away before its last threads end.
    ours, stop, stalls, most = _OURS, time.sleep, _STALLS_S, 2 * _STEPS
    left = 1

    def step(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left  # shared by all threads: who counts wrongly stalls elsewhere
        if frame.f_code.co_filename.startswith(ours):
            left -= 1
            if left < 0:
                left = choice.randrange(most)
                stop(choice.choice(stalls))

    _stalling.append(step)
    threading.setprofile(step)
    sys.setprofile(step)
