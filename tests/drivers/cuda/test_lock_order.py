"""The locks of the driver have an order (the head of `device`), and nobody takes them in another one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel
from tidegate.conformance import run
from tidegate.drivers.cuda import code, device, page_locked
from tidegate.drivers.cuda.native.compiled import DeviceState
from tidegate.testing import register_cuda_simulated

if __name__ != "__main__":
    from .simulated_bench import LIMIT, TOUCH, SimulatedBench, bench

RANK = {
    "CudaDriver._lock": 0,
    "page_locked._table": 1,
    "CudaDevice.lock": 2,
    "Stream._over_lock": 3,
    "EventStream._over_lock": 3,
    "code._table": 4,
    "Code._lock": 4,
    "CudaPool._lock": 4,
    "StagingRing._lock": 4,
    "Sleepers._lock": 4,
    "TransferEngine._lock": 5,
    "PageLocked._lock": 5,
}


class WatchedLock:
    """A lock that notes which ones its thread had when it took this one."""

    def __init__(self, watch: LockWatch, name: str, lock: Any) -> None:
        self.name = name
        self.lock = lock
        self._watch = watch

    def __enter__(self) -> bool:
        taken: bool = self.lock.__enter__()
        self._watch.taken(self)
        return taken

    def __exit__(self, *exception: object) -> None:
        self._watch.given(self)
        self.lock.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)


class LockWatch:
    """Has the locks of the driver note what they are taken under."""

    def __init__(self) -> None:
        self.edges: set[tuple[str, str]] = set()
        self.wrong_devices = 0
        self._here = threading.local()

    def taken(self, lock: WatchedLock) -> None:
        held = self._held
        for other in held:
            if other is not lock and lock not in held:
                self.edges.add((other.name, lock.name))
                self.wrong_devices += other.name == lock.name and not self._in_order(other, lock)
        held.append(lock)

    def given(self, lock: WatchedLock) -> None:
        held = self._held
        del held[len(held) - 1 - held[::-1].index(lock)]

    @property
    def _held(self) -> list[WatchedLock]:
        if not hasattr(self._here, "held"):
            self._here.held = []
        held: list[WatchedLock] = self._here.held
        return held

    def _in_order(self, first: WatchedLock, second: WatchedLock) -> bool:
        owners = {id(each.lock): id(each) for each in page_locked.open_devices()}
        return owners.get(id(first), 0) < owners.get(id(second), 0)

    def lock(self, kind: Any) -> Any:
        """Return a lock of a kind, named by the object that makes it and the attribute it is for."""
        frame = sys._getframe(2)
        owner = type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else "?"
        line = Path(frame.f_code.co_filename).read_text("utf-8").splitlines()[frame.f_lineno - 1]
        attribute = line.strip().removeprefix("self.").split()[0].split(":")[0]
        return WatchedLock(self, f"{owner}.{attribute}", kind())

    def disorder(self) -> list[tuple[str, str]]:
        """Return what was taken against the order."""
        return sorted(
            (first, second)
            for first, second in self.edges
            if not (RANK[first] < RANK[second] or first == second == "CudaDevice.lock")
        )


class _Threading:
    """The module `threading`, with locks that are watched."""

    def __init__(self, watch: LockWatch) -> None:
        self._watch = watch

    def RLock(self) -> Any:
        return self._watch.lock(threading.RLock)

    def Lock(self) -> Any:
        return self._watch.lock(threading.Lock)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextmanager
def watched() -> Iterator[LockWatch]:
    """Watch the locks of all devices that are opened in the block."""
    watch = LockWatch()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("tidegate.drivers.cuda") and getattr(module, "threading", None) is threading:
                patch.setattr(module, "threading", _Threading(watch))
        watched_locks: dict[int, WatchedLock] = {}

        def lock_of(found: Any) -> WatchedLock:
            lock = DeviceState.lock.__get__(found)
            return watched_locks.setdefault(id(lock), WatchedLock(watch, "CudaDevice.lock", lock))

        patch.setattr(device.CudaDevice, "lock", property(lock_of))
        for module in (page_locked, code):
            name = f"{module.__name__.rpartition('.')[2]}._table"
            patch.setattr(module, "_table", WatchedLock(watch, name, module._table))
        patch.setattr(page_locked, "_reserves", type(page_locked._reserves)())  # reserves made before are not watched
        yield watch


def _indirect(bench: SimulatedBench, target: tg.Buffer) -> tg.Submission:
    touch = bench.device.load(TOUCH)["touch"]
    counts = bench.shared(12)
    with counts.map("rw") as data:
        data.view(np.uint32)[:] = 1
    with bench.device.record() as commands:
        commands.fill(target, 1)
        commands.dispatch_indirect(touch, counts=counts, bindings=[target])
    return bench.queue.execute(commands)


def _use_everything(bench: SimulatedBench) -> None:
    device, queue = bench.device, bench.queue
    latch, blocked = bench.latch()
    target, big = device.allocate(1 << 20), np.ones(1 << 20, np.uint8)
    chain = [queue.fill(target, 1, wait=blocked) for _ in range(20)]
    waiting = queue.download(target, np.empty(100, np.uint8), wait=chain)
    with bench.foreign_stream() as stream:
        points = [lowlevel.from_cuda_stream(device, stream) for _ in range(20)]
        lane = device.lane(stream=stream)
        lane.upload(big, target)
        lane.wait(LIMIT)
    queue.upload(big, target).wait(LIMIT)
    queue.upload(big[:100], target).wait(LIMIT)
    temporary = queue.allocate(4096)
    queue.free(temporary, wait=queue.fill(temporary, 3))
    del temporary
    latch.open()
    tg.wait_all([waiting, *points, *chain], LIMIT)
    _indirect(bench, target).wait(LIMIT)
    device.load(TOUCH)
    device.create_pool(1 << 20)
    device.upload(big[:64], memory="host")
    device.statistics()
    device.trim()


@pytest.mark.parametrize("options", [{}, {"epochs": "events"}, {"gil": "release"}], ids=str)
def test_locks_are_taken_in_their_order(options: dict[str, str]) -> None:
    with watched() as watch, bench(options) as both:
        both.open(options)
        _use_everything(both)
    assert {name for edge in watch.edges for name in edge} <= RANK.keys()
    assert ("CudaDevice.lock", "PageLocked._lock") in watch.edges, "nothing was watched"
    assert watch.disorder() == []
    assert watch.wrong_devices == 0


def test_a_lock_that_is_taken_out_of_order_is_found() -> None:
    with watched() as watch, bench() as one, one.driver.default_pool._lock, one.driver.lock:
        pass
    assert watch.disorder() == [("CudaPool._lock", "CudaDevice.lock")]


def test_the_order_is_written_down_where_it_is_kept() -> None:
    text = device.__doc__ or ""
    for name in RANK.keys() - {"EventStream._over_lock", "CudaDriver._lock", "code._table"}:
        assert name.partition(".")[2] in text, name


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_suite_takes_locks_in_their_order(tmp_path: Path) -> None:
    found = tmp_path / "edges.json"
    command = [sys.executable, __file__, str(found)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    told = json.loads(found.read_text("utf-8"))
    assert told["disorder"] == []
    assert told["wrong devices"] == 0
    assert len(told["edges"]) > 5
    assert all(RANK[first] <= RANK[second] for first, second in told["edges"])


_SUBSET = "(submission or commands or upload or test_ends or budgets or dispatch or several_devices or queue_order)"
# A watched lock is entered by Python code, where an interrupt would leave it locked; a real one has no such place.
_SUBSET += " and not test_interrupts"


def _run_the_suite(found: str) -> int:
    register_cuda_simulated()
    with watched() as watch:
        status = run("cuda-simulated", arguments=["-q", "-x", "-k", _SUBSET])
    edges = sorted(watch.edges)
    told = {"edges": edges, "disorder": watch.disorder(), "wrong devices": watch.wrong_devices}
    Path(found).write_text(json.dumps(told), "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(_run_the_suite(sys.argv[1]))
