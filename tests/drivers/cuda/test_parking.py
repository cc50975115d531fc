"""A driver that parks or fills streams hangs on the simulation as on the card, and is found out in a second.

By the rules of streams and events it does nothing wrong; the card has fewer connections and places than they promise.
`FAULTS` has three such drivers (`native_streams`), and the named test of the suite catches each. Here: that it is
the recorded limits that make them hang, and not the time that a test allows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import tidegate as tg
from tidegate._core.device import Device
from tidegate.conformance.latches import Latch, block_by_watched_memory
from tidegate.conformance.threads import background
from tidegate.driver import DeviceRequest
from tidegate.drivers.cuda import CudaDriver
from tidegate.testing import cuda_simulated
from tidegate.testing.faulty import FAULTS

from ..conformance_runs import Run

LIMIT = 30.0
WAITING = 40
"""More than the 32 streams that the card lets wait."""


class Bench:
    """A device over a machine of its own, and a kernel that runs until the latch is open."""

    def __init__(self, native: Any) -> None:
        driver = CudaDriver(lambda release_gil: native, cuda_simulated.SimulatedNvrtc)
        self.native = native
        self.device = Device(driver, driver.open(DeviceRequest("cuda", "cuda")), "cuda", "")
        self.queue = self.device.queue()
        self.buffer = self.device.allocate(256, memory="shared")
        self.latch = Latch(block_by_watched_memory)
        self.blocked = self.latch.block(self.queue)
        self.latch.wait_until_running(LIMIT)

    def fill(self, wait: object = None) -> tg.Submission:
        return self.queue.fill(self.buffer, 1, wait=wait)

    def stalls(self) -> bool:
        """Whether work could run if there were a connection for it."""
        return bool(self.native.machine.cards[0].stalling)

    def close(self) -> None:
        self.latch.open_all()
        self.device.close(LIMIT)


@pytest.fixture
def open_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    monkeypatch.setitem(os.environ, "CUDA_DEVICE_MAX_CONNECTIONS", "32")
    with ExitStack() as ends:

        def made(fault: str | None = None) -> Bench:
            if fault is not None:
                ends.enter_context(FAULTS[fault].apply())
            bench = Bench(cuda_simulated.native())
            ends.callback(bench.close)
            return bench

        yield made


def until(condition: Callable[[], bool]) -> None:
    """Give other threads their turn until something holds, or for as long as anything may take."""
    turn, limit = threading.Event(), LIMIT
    while not condition():
        turn.wait(0.001)
        limit -= 0.001
        assert limit > 0


def test_what_is_ready_runs_beside_more_waits_than_the_card_has_connections(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench()
    waiting = [bench.fill(wait=bench.blocked) for _ in range(WAITING)]
    bench.fill().wait(LIMIT)
    assert not any(work.done for work in waiting)
    assert not bench.stalls()
    assert bench.native.violations == []


def test_with_a_stream_for_every_wait_there_is_no_connection_left_for_what_is_ready(
    open_bench: Callable[..., Bench],
) -> None:
    bench = open_bench("parks-a-stream-for-every-wait")
    waiting = [bench.fill(wait=bench.blocked) for _ in range(WAITING)]
    ready = bench.fill()
    until(bench.stalls)
    assert not ready.done
    assert len(bench.native.machine.cards[0].held) >= 32
    bench.latch.open()
    tg.wait_all([ready, *waiting], LIMIT)


def test_a_long_chain_leaves_room_on_its_stream(open_bench: Callable[..., Bench]) -> None:
    bench, last = open_bench(), None
    for _ in range(1100):
        last = bench.fill(wait=last or bench.blocked)
    assert not bench.blocked.done
    assert bench.native.violations == []


def test_who_fills_a_stream_blocks_until_the_kernel_is_over(open_bench: Callable[..., Bench]) -> None:
    bench = open_bench("fills-streams")

    def chain() -> tg.Submission:
        last = bench.blocked
        for _ in range(1100):
            last = bench.fill(wait=last)
        return last

    caller = background(chain)
    until(lambda: any("a stream was filled" in text for text in bench.native.violations))
    assert caller.running  # and with it whoever else would look at the device
    bench.latch.open()
    caller.result().wait(LIMIT)


@pytest.mark.slow
def test_the_suite_ends_and_tells_which_work_is_stuck() -> None:
    fault = FAULTS["parks-a-stream-for-every-wait"]
    test = fault.killed_by.partition("::")[2]
    result = Run(f"faulty-{fault.name}", test, (("TIDEGATE_CONFORMANCE_LIMIT", "1"),)).result()
    assert "1 failed" in result.stdout
    assert "DeadlineExceededError" in result.stdout
    assert "issued and not over yet" in result.stdout
