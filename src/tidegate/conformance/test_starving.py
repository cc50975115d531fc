"""Allocations that starve: memory is full when their turn comes, and something in flight may give some back.

However the help comes, and whoever waits for what follows, the one learns of the other. Every wait has a limit, so that
a hang is a failure. Where no help is left, see `test_starving_in_vain`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import tidegate as tg

from .buffers import MIB, contents, ready
from .latches import LIMIT
from .scarcity import FOLLOW, LEARN, NBYTES, Follow, Give, Learn, Scene, a_chain, by_a_wait
from .threads import background
from .witnesses import Told

pytestmark = [pytest.mark.rules("M22"), pytest.mark.needs("budget", "work")]


# How help comes: each takes the memory, and returns what lets it come back --------------------------------------------


def free_that_is_held(scene: Scene) -> Give:
    gate = tg.Semaphore()
    scene.queue.free(scene.full(), wait=gate.at(1))
    return lambda: gate.signal(1)


def free_of_another_queue(scene: Scene) -> Give:
    gate = tg.Semaphore()
    scene.second.free(scene.full(), wait=gate.at(1))
    return lambda: gate.signal(1)


def free_of_a_lane(scene: Scene) -> Give:
    gate, lane = tg.Semaphore(), scene.device.lane()
    lane.barrier(wait=gate.at(1))
    lane.free(scene.full())
    return lambda: gate.signal(1)


def free_some_steps_behind_a_gate(scene: Scene) -> Give:
    gate, first = tg.Semaphore(), scene.full()
    filled = scene.second.fill(first, 1, wait=gate.at(1))
    scene.queue.free(first, wait=[scene.kernel(first, wait=filled), filled])
    return lambda: gate.signal(1)


def free_behind_a_running_kernel(scene: Scene) -> Give:
    over, latch = scene.running()
    first = scene.full()
    scene.queue.free(first, wait=[over, scene.queue.fill(first, 1, wait=over)])
    return latch.open


def free_behind_work_behind_a_running_kernel(scene: Scene) -> Give:
    over, latch = scene.running()
    first = scene.full()
    scene.second.free(first, wait=scene.kernel(first, wait=over))
    return latch.open


def free_in_a_running_host_call(scene: Scene) -> Give:
    gate, begun, first = tg.Semaphore(), threading.Event(), scene.full()

    def call() -> None:
        begun.set()
        gate.wait(1, LIMIT)
        scene.queue.free(first)

    scene.kept.append(scene.queue.host_call(call))
    assert begun.wait(LIMIT)
    return lambda: gate.signal(1)


def close_under_a_held_fill(scene: Scene) -> Give:
    gate, first = tg.Semaphore(), scene.full()
    scene.queue.fill(first, 1, wait=gate.at(1))
    first.close()
    return lambda: gate.signal(1)


def close_under_a_held_kernel(scene: Scene) -> Give:
    gate, first = tg.Semaphore(), scene.full()
    scene.kernel(first, wait=gate.at(1))
    first.close()
    return lambda: gate.signal(1)


def close_under_work_behind_a_running_kernel(scene: Scene) -> Give:
    over, latch = scene.running()
    first = scene.full()
    scene.kernel(first, wait=over)
    first.close()
    return latch.open


def close_under_a_host_call_s_work(scene: Scene) -> Give:
    """A download into rows that lie apart is done by a host thread."""
    gate, first, rows = tg.Semaphore(), scene.full(), np.zeros((4, 8), np.uint8)[:, ::2]
    scene.queue.download(first, rows, wait=gate.at(1))
    first.close()
    return lambda: gate.signal(1)


def drop_under_a_held_kernel(scene: Scene) -> Give:
    gate = tg.Semaphore()
    scene.kernel(scene.full(), wait=gate.at(1))
    return lambda: gate.signal(1)


def drop_under_work_behind_a_running_kernel(scene: Scene) -> Give:
    over, latch = scene.running()
    scene.kernel(scene.full(), wait=over)
    return latch.open


def close_under_held_work_whose_wait_fails(scene: Scene) -> Give:
    gate, first = tg.Semaphore(), scene.full()
    scene.kernel(first, wait=gate.at(1), signal=tg.Semaphore().at(1))
    first.close()
    return lambda: gate.fail(ValueError("no gate"))


def close_under_held_work_that_is_cancelled(scene: Scene) -> Give:
    gate, first = tg.Semaphore(), scene.full()
    held = scene.kernel(first, wait=gate.at(1))
    scene.kept.append(gate)
    first.close()
    return held.cancel


def close_under_work_behind_a_kernel_that_fails(scene: Scene) -> Give:
    gate, first = tg.Semaphore(), scene.full()
    broken = scene.fault(wait=gate.at(1), signal=tg.Semaphore().at(1))
    scene.kernel(first, wait=broken, signal=tg.Semaphore().at(1))
    first.close()
    return lambda: gate.signal(1)


def free_beside_a_kernel_that_fails(scene: Scene) -> Give:
    gate = tg.Semaphore()
    scene.fault(wait=gate.at(1), signal=tg.Semaphore().at(1))
    scene.queue.free(scene.full(), wait=gate.at(1))
    return lambda: gate.signal(1)


def _hope(scene: Scene) -> None:
    """A free that is held for the whole scene, of too little to help."""
    small, gate = scene.device.allocate(MIB // 2), tg.Semaphore()
    scene.queue.free(small, wait=gate.at(1))
    scene.kept.append(gate)


def close_while_there_is_other_hope(scene: Scene) -> Give:
    _hope(scene)
    return scene.full().close


def drop_while_there_is_other_hope(scene: Scene) -> Give:
    _hope(scene)
    buffers = [scene.full()]
    return buffers.clear


_LATCH, _FAULT = pytest.mark.needs("latch"), pytest.mark.needs("fault")

HELP = (
    free_that_is_held,
    free_of_another_queue,
    free_of_a_lane,
    free_some_steps_behind_a_gate,
    pytest.param(free_behind_a_running_kernel, marks=_LATCH),
    pytest.param(free_behind_work_behind_a_running_kernel, marks=_LATCH),
    free_in_a_running_host_call,
    close_under_a_held_fill,
    close_under_a_held_kernel,
    pytest.param(close_under_work_behind_a_running_kernel, marks=_LATCH),
    close_under_a_host_call_s_work,
    drop_under_a_held_kernel,
    pytest.param(drop_under_work_behind_a_running_kernel, marks=_LATCH),
    close_under_held_work_whose_wait_fails,
    close_under_held_work_that_is_cancelled,
    pytest.param(close_under_work_behind_a_kernel_that_fails, marks=_FAULT),
    pytest.param(free_beside_a_kernel_that_fails, marks=_FAULT),
    close_while_there_is_other_hope,
    drop_while_there_is_other_hope,
)


# Help that comes ----------------------------------------------------------------------------------------------------


@pytest.mark.rules("M22", "M10", "M11", "M40")
@pytest.mark.slow
@pytest.mark.parametrize("learn", LEARN)
@pytest.mark.parametrize("help_comes", HELP)
def test_whoever_waits_for_what_starves_learns_of_help_that_comes_later(
    scene: Scene, help_comes: Callable[[Scene], Give], learn: Learn
) -> None:
    for follow in FOLLOW:
        give = help_comes(scene)
        done = tg.Semaphore()
        starving = scene.queue.allocate(NBYTES, signal=done.at(1))
        work, point = follow(scene, starving, done.at(1))
        assert not ready(starving).done, f"there was room before {follow.__name__}"
        assert (done.value, done.failure) == (0, None)
        error = learn(scene, work, point, give)
        assert error is None, f"{follow.__name__}: {error}"
        assert ready(starving).error is None
        assert done.value == 1
        if follow is not a_chain:
            scene.queue.fill(starving, 7)
            assert contents(starving)[-1] == 7
        starving.close()
        del give, starving, work
        scene.give_all_back()
    assert (scene.device.statistics().peak_bytes or 0) <= 4 * MIB


@pytest.mark.rules("M22", "M24", "M38")
@pytest.mark.slow
@pytest.mark.usefixtures("switch_often")
def test_work_that_is_over_keeps_no_memory_from_an_allocation_behind_it(scene: Scene) -> None:
    """Not even for a moment, in some thread that has given it to the device and got no turn since."""
    stop = threading.Event()

    def is_in_the_way() -> None:
        while not stop.is_set():
            pass

    busy = [background(is_in_the_way) for _ in range(2)]
    try:
        for _ in range(100):
            give = free_that_is_held(scene)
            done = tg.Semaphore()
            starving = scene.queue.allocate(NBYTES, signal=done.at(1))
            work, point = a_chain(scene, starving, done.at(1))
            assert by_a_wait(scene, work, point, give) is None
            scene.kept.pop().close()
    finally:
        stop.set()
    for each in busy:
        each.result()


@pytest.mark.rules("M22", "M10", "M40")
@pytest.mark.needs("latch", "beside")
@pytest.mark.parametrize("follow", FOLLOW)
@pytest.mark.parametrize("way", ["free", "close"])
def test_help_is_noticed_though_work_behind_it_runs_on(scene: Scene, way: str, follow: Follow) -> None:
    """What follows it may go right behind it into the same native queue, be much, and be at work for long."""
    over, latch = scene.running()
    behind, done, told = scene.latch(), tg.Semaphore(), Told()
    first, other = scene.full(), scene.device.allocate(64)
    last = scene.kernel(first, wait=over)
    if way == "free":
        last = scene.queue.free(first, wait=last)
    first.close()
    last = behind.block(scene.queue, wait=last)
    for _ in range(10):
        last = scene.kernel(other, wait=last)
    starving = scene.queue.allocate(NBYTES, signal=done.at(1))
    _, point = follow(scene, starving, done.at(1))
    point.add_callback(told)
    latch.open()
    behind.wait_until_running()
    told.assert_once()
    assert not last.done
    behind.open()
    last.wait(LIMIT)
    starving.close()


@pytest.mark.rules("M22", "M10", "M40")
@pytest.mark.needs("latch")
def test_an_allocation_and_the_free_that_helps_it_may_wait_for_the_same_kernel(scene: Scene) -> None:
    """Which of the two has its turn first does not matter."""
    for _ in range(5):
        over, latch = scene.running()
        done, told = tg.Semaphore(), Told()
        first = scene.full()
        used = scene.kernel(first, wait=over)
        before = scene.queue.allocate(NBYTES, wait=used, signal=done.at(1))
        scene.second.free(first, wait=used)
        scene.second.fill(before, 1, wait=before.ready, signal=done.at(2))
        done.at(2).add_callback(told)
        latch.open()
        told.assert_once()
        before.close()
        scene.give_all_back()


@pytest.mark.rules("M22", "M10", "M40")
def test_frees_one_by_one_serve_waiting_allocations_one_by_one(small_device: tg.Device) -> None:
    """All of them listen, and nobody looks."""
    queue = small_device.queue()
    for _ in range(10):
        first = [queue.allocate(MIB) for _ in range(4)]
        tg.wait_all([ready(buffer) for buffer in first], LIMIT)
        gates = [tg.Semaphore() for _ in first]
        for buffer, gate in zip(first, gates, strict=True):
            queue.free(buffer, wait=gate.at(1))
        served = threading.Semaphore(0)
        second = []
        for _ in range(4):
            done = tg.Semaphore()
            second.append(queue.allocate(MIB, signal=done.at(1)))
            done.at(1).add_callback(lambda *_: served.release())
        for gate in gates:
            gate.signal(1)
            assert served.acquire(timeout=LIMIT)
        assert not served.acquire(blocking=False)
        tg.wait_all([queue.free(buffer) for buffer in second], LIMIT)


@pytest.mark.rules("M22", "M24", "M10", "M40")
@pytest.mark.slow
@pytest.mark.parametrize("begin", ["gate", pytest.param("kernel", marks=pytest.mark.needs("latch"))])
def test_cycles_that_share_what_memory_there_is_run_to_the_end_though_nobody_looks(scene: Scene, begin: str) -> None:
    """Each asks for a third of the memory, uses it and gives it back; only their common end is listened to."""
    gate, end, told = tg.Semaphore(), tg.Semaphore(), Told()
    over, latch = scene.running() if begin == "kernel" else (gate.at(1), None)
    frees = []
    for number in range(60):
        queue = (scene.queue, scene.second)[number % 2]
        buffer = queue.allocate(MIB + MIB // 4, wait=over)
        used = scene.kernel(buffer, wait=buffer.ready) if number % 3 else queue.fill(buffer, 1, wait=buffer.ready)
        if number % 5:
            frees.append(queue.free(buffer, wait=used))
        else:
            frees.append(used)
            buffer.close()
    scene.queue.barrier(wait=frees, signal=end.at(1))
    end.at(1).add_callback(told)
    if latch is None:
        gate.signal(1)
    else:
        latch.open()
    told.assert_once()
    assert (scene.device.statistics().peak_bytes or 0) <= 4 * MIB


@pytest.mark.rules("M15", "M22", "M24", "M40")
def test_a_lane_goes_on_when_its_starving_allocation_is_helped(scene: Scene) -> None:
    for _ in range(5):
        gate, told = tg.Semaphore(), Told()
        scene.queue.free(scene.full(), wait=gate.at(1))
        lane = scene.device.lane()
        buffer = lane.allocate(NBYTES)
        lane.fill(buffer, 3)
        out = np.zeros(NBYTES, np.uint8)
        lane.download(buffer, out)
        lane.free(buffer)
        lane.tail.add_callback(told)
        assert not ready(buffer).done
        gate.signal(1)
        told.assert_once()
        assert set(out[::4096].tolist()) == {3}
        scene.give_all_back()
