"""Who keeps what, and for how long.

"Released" is watched with `weakref.finalize` and an event: what a retiring thread drops last may be a moment behind
the signal that a test waited for.
"""

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .subjects import Subject

N = 1000

pytestmark = pytest.mark.rules("M18")


def watch(thing: object) -> threading.Event:
    """An event that is set when the thing is gone."""
    released = threading.Event()
    weakref.finalize(thing, released.set)
    return released


def assert_released(released: threading.Event) -> None:
    gc.collect()
    assert released.wait(LIMIT)


def eventually(queue: tg.Queue, condition: Callable[[], bool], what: Callable[[], object] = str) -> None:
    """Retiring threads signal first and release afterwards: let other threads run until the condition holds.

    `what` tells what is wrong if it never does.
    """
    for _ in range(int(LIMIT * 30)):
        if condition():
            return
        gc.collect()
        queue.host_call(lambda: None).wait(LIMIT)
    assert condition(), what()


def churn(device: tg.Device, queue: tg.Queue, nbytes: int, rounds: int = 10) -> None:
    """Allocate and scribble over whatever memory of that size is free to be handed out."""
    for _ in range(rounds):
        other = device.allocate(nbytes)
        queue.fill(other, 0xEE).wait(LIMIT)
        other.close()


# Dropped and closed by the caller


@pytest.mark.needs("work")
@pytest.mark.rules("M12", "M18")
def test_everything_the_caller_drops_while_it_waits_still_serves(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    """Buffers, table, command buffer, function, semaphores in between and handles: all dropped but the last handle."""
    gate = tg.Semaphore()

    def submit() -> tg.Submission:
        x = device.upload(np.arange(N, dtype=np.float32))
        y = device.upload(np.zeros(N, np.float32))
        function = kernels.load(device, kernels.scale_offset)
        with device.record() as commands:
            commands.dispatch(
                function, function.workgroups_for(N), bindings=[tg.slot(0), tg.slot(1)], constants=[2, 1, N]
            )
        middle, end = tg.Semaphore(), tg.Semaphore()
        queue.execute(commands, bindings=[x, y], wait=gate.at(1), signal=middle.at(1))
        queue.dispatch(
            function,
            function.workgroups_for(N),
            bindings=[y, x],
            constants=[10, 5, N],
            wait=middle.at(1),
            signal=end.at(1),
        )
        return queue.download(x, dtype=np.float32, wait=end.at(1))

    last = submit()
    gc.collect()
    churn(device, queue, 4 * N)
    gate.signal(1)
    assert np.array_equal(last.result(LIMIT), np.arange(N, dtype=np.float32) * 20 + 15)


@pytest.mark.needs("work", "latch")
@pytest.mark.rules("M12", "M18")
def test_everything_the_caller_drops_behind_a_running_kernel_still_serves(
    device: tg.Device, queue: tg.Queue, latch: Latch
) -> None:
    def submit() -> tg.Submission:
        started = tg.Semaphore()
        latch.block(queue, signal=started.at(1))
        source = device.upload(np.full(N, 7, np.uint8))
        target = queue.allocate(N, wait=started.at(1))
        copied = queue.copy(source, target, wait=target.ready)
        return queue.download(target, wait=copied)

    last = submit()
    latch.wait_until_running()
    gc.collect()
    latch.open()
    assert set(last.result(LIMIT).tolist()) == {7}


@pytest.mark.needs("work")
def test_a_buffer_closed_while_work_waits_for_it_still_serves_that_work(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    source = device.upload(np.full(65536, 1, np.uint8))
    middle = device.upload(np.full(65536, 2, np.uint8))
    copied = queue.copy(source, middle, wait=gate.at(1))
    result = queue.download(middle, wait=copied)
    source.close()
    middle.close()
    with pytest.raises(tg.ClosedError):
        queue.fill(source, 9)
    churn(device, queue, 65536)
    gate.signal(1)
    assert set(result.result(LIMIT).tolist()) == {1}


@pytest.mark.needs("work")
def test_closing_a_buffer_takes_effect_when_its_last_use_ends(device: tg.Device, queue: tg.Queue) -> None:
    nbytes = 2**20
    before = device.statistics().allocated_bytes
    gates = [tg.Semaphore(), tg.Semaphore()]
    buffer = device.allocate(nbytes)
    uses = [queue.fill(buffer, 1, wait=gate.at(1)) for gate in gates]
    buffer.close()
    assert device.statistics().allocated_bytes >= before + nbytes
    for gate, use in zip(gates, uses, strict=True):
        assert device.statistics().allocated_bytes >= before + nbytes
        gate.signal(1)
        use.wait(LIMIT)
    del uses
    eventually(queue, lambda: device.statistics().allocated_bytes == before)


@pytest.mark.needs("work")
def test_a_parent_dropped_or_closed_leaves_its_subspans_to_the_work_that_has_them(
    device: tg.Device, queue: tg.Queue
) -> None:
    gate = tg.Semaphore()
    buffer = device.upload(np.arange(200, dtype=np.uint8))
    result = queue.download(buffer.subspan(50, 10), wait=gate.at(1))
    buffer.close()
    del buffer
    gc.collect()
    churn(device, queue, 200)
    gate.signal(1)
    assert result.result(LIMIT).tolist() == list(range(50, 60))


@pytest.mark.needs("work")
def test_a_subspan_keeps_the_storage_of_a_dropped_parent(device: tg.Device, queue: tg.Queue) -> None:
    span = device.upload(np.arange(200, dtype=np.uint8)).subspan(50, 10)
    gc.collect()
    churn(device, queue, 200)
    assert span.read(timeout=LIMIT) == bytes(range(50, 60))


@pytest.mark.needs("work")
def test_a_download_array_dropped_while_it_is_held_harms_nobody(device: tg.Device, queue: tg.Queue) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    buffer = device.upload(np.full(65536, 1, np.uint8))
    out = np.zeros(65536, np.uint8)
    released = watch(out)
    queue.download(buffer, out, wait=gate.at(1), signal=done.at(1))
    del out
    gc.collect()
    assert not released.is_set()
    gate.signal(1)
    done.wait(1, LIMIT)
    assert_released(released)


@pytest.mark.needs("work")
@pytest.mark.rules("M12", "M18")
def test_a_dropped_device_finishes_what_it_was_given(subject: Subject) -> None:
    gate = tg.Semaphore()

    def submit() -> tg.Submission:
        device = subject.open_device()
        queue = device.queue()
        buffer = device.upload(np.zeros(N, np.uint8))
        return queue.download(buffer, wait=queue.fill(buffer, 3, wait=gate.at(1)))

    result = submit()
    gc.collect()
    gate.signal(1)
    assert set(result.result(LIMIT).tolist()) == {3}


# Scribbled over after the call


@pytest.mark.needs("work")
@pytest.mark.rules("M18", "M27")
@pytest.mark.parametrize("nbytes", [1, 100, 16 * 1024 + 1, 200_000])
@pytest.mark.parametrize("kind", [bytearray, memoryview, np.array])
def test_the_source_of_an_update_may_be_overwritten_after_the_call(
    device: tg.Device, queue: tg.Queue, kind: Callable[..., object], nbytes: int
) -> None:
    gate = tg.Semaphore()
    memory = np.full(nbytes, 1, np.uint8)
    data = memory if kind is np.array else kind(memory) if kind is bytearray else kind(memory.data)
    target = device.upload(np.zeros(nbytes, np.uint8))
    updated = queue.update(target, data, wait=gate.at(1))
    memory[:] = 2
    if isinstance(data, bytearray):
        data[:] = b"\x02" * nbytes
        data.clear()
    gate.signal(1)
    updated.wait(LIMIT)
    assert set(target.to_numpy(np.uint8, timeout=LIMIT).tolist()) == {1}


@pytest.mark.rules("M14", "M18")
def test_the_lists_of_waits_and_signals_may_be_changed_after_the_call(queue: tg.Queue) -> None:
    gate, never, first, second = (tg.Semaphore() for _ in range(4))
    waits: list[tg.Timepoint | tg.Submission] = [gate.at(1)]
    signals = [first.at(1), second.at(1)]
    barrier = queue.barrier(wait=waits, signal=signals)
    waits[0] = never.at(1)
    waits.append(never.at(2))
    signals.pop()
    assert not barrier.done
    gate.signal(1)
    barrier.wait(LIMIT)
    assert (first.value, second.value) == (1, 1)


@pytest.mark.rules("M14", "M18")
def test_waits_and_signals_may_come_from_a_generator(queue: tg.Queue) -> None:
    gates = [tg.Semaphore() for _ in range(5)]
    done = [tg.Semaphore() for _ in range(5)]
    barrier = queue.barrier(wait=(gate.at(1) for gate in gates), signal=(end.at(1) for end in done))
    for gate in gates:
        assert not barrier.done
        gate.signal(1)
    barrier.wait(LIMIT)
    assert [end.value for end in done] == [1] * 5


# The collector


@contextmanager
def frantic_collector() -> Iterator[None]:
    """The collector runs at nearly every allocation of an object."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@pytest.mark.needs("work")
@pytest.mark.rules("M12", "M18")
def test_a_collector_that_runs_all_the_time_takes_nothing_that_is_needed(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    with frantic_collector():
        previous: tg.Submission = queue.barrier(wait=gate.at(1))
        for step in range(20):
            scratch = queue.allocate(64, wait=previous)
            filled = queue.fill(scratch, step, wait=scratch.ready)
            previous = queue.download(scratch, wait=filled)
        gate.signal(1)
        assert set(previous.result(LIMIT).tolist()) == {19}


@pytest.mark.needs("work", "latch")
@pytest.mark.rules("M12", "M18")
def test_a_collection_forced_while_the_device_runs_takes_nothing_that_is_needed(
    device: tg.Device, queue: tg.Queue, latch: Latch
) -> None:
    buffers = [device.upload(np.full(N, i, np.uint8)) for i in range(20)]
    running = latch.block(queue)
    results = [queue.download(buffer, wait=running) for buffer in buffers]
    del buffers
    latch.wait_until_running()
    gc.collect()
    churn_threads = [threading.Thread(target=gc.collect, daemon=True) for _ in range(4)]
    for thread in churn_threads:
        thread.start()
    latch.open()
    for thread in churn_threads:
        thread.join(LIMIT)
    for i, result in enumerate(results):
        assert set(result.result(LIMIT).tolist()) == {i}


@pytest.mark.rules("M12", "M18")
def test_of_what_it_waits_for_a_submission_keeps_only_the_state(queue: tg.Queue) -> None:
    """Nobody is left who could signal: the submission fails instead of being held for ever."""
    gate, done = tg.Semaphore(), tg.Semaphore()
    held = queue.barrier(wait=gate.at(1), signal=done.at(1))
    del gate
    gc.collect()
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        held.wait(LIMIT)
    assert isinstance(caught.value.__cause__, tg.AbortedError)
    with pytest.raises(tg.SemaphoreFailedError):
        done.wait(1, LIMIT)


@pytest.mark.rules("M12", "M18")
def test_what_it_signals_a_submission_keeps_whole_and_no_longer_than_it_takes(queue: tg.Queue) -> None:
    gate, done = tg.Semaphore(), tg.Semaphore()
    released = watch(done)
    first = queue.barrier(wait=gate.at(1), signal=done.at(1))
    second = queue.barrier(wait=done.at(1))
    del done
    gc.collect()
    assert not released.is_set()
    gate.signal(1)
    second.wait(LIMIT)
    first.wait(LIMIT)
    assert_released(released)


@pytest.mark.rules("M12", "M18")
def test_held_submissions_that_only_wait_for_one_another_end_when_nobody_else_holds_them(
    device: tg.Device, queue: tg.Queue
) -> None:
    first, second = tg.Semaphore(), tg.Semaphore()
    data = np.zeros(16, np.uint8)
    released = watch(data)
    buffer = device.upload(np.zeros(16, np.uint8))
    queue.upload(data, buffer, wait=first.at(1), signal=second.at(1))
    queue.barrier(wait=second.at(1), signal=first.at(1))
    del data, first, second
    assert_released(released)


@pytest.mark.needs("work")
@pytest.mark.parametrize("operation", ["fill", "copy", "upload", "download", "execute", "dispatch", "free"])
def test_work_that_is_over_keeps_nothing_even_if_its_handle_lives(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType, operation: str
) -> None:
    increment = kernels.load(device, kernels.increment)

    def submit() -> tuple[tg.Submission, list[threading.Event]]:
        buffer = queue.allocate(4 * N)
        other = device.allocate(4 * N)
        data = np.zeros(N, np.uint32)
        with device.record() as commands:
            commands.fill(tg.slot(0), 1)
        wait, groups = buffer.ready, increment.workgroups_for(N)
        submission = {
            "fill": lambda: queue.fill(buffer, 1, wait=wait),
            "copy": lambda: queue.copy(buffer, other, wait=wait),
            "upload": lambda: queue.upload(data, buffer, wait=wait),
            "download": lambda: queue.download(buffer, wait=wait),
            "execute": lambda: queue.execute(commands, bindings=[buffer], wait=wait),
            "dispatch": lambda: queue.dispatch(increment, groups, bindings=[buffer], constants=[N], wait=wait),
            "free": lambda: queue.free(buffer, wait=wait),
        }[operation]()
        return submission, [watch(thing) for thing in (buffer, other, data, commands)]

    submission, released = submit()
    submission.wait(LIMIT)
    for event in released:
        assert_released(event)
    assert submission.done


@pytest.mark.rules("M18", "M21")
def test_a_submission_that_failed_keeps_nothing_either(device: tg.Device, queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    buffer = device.allocate(64)
    data = np.zeros(64, np.uint8)
    released = [watch(buffer), watch(data)]
    failed = queue.upload(data, buffer, wait=gate.at(1))
    cancelled = queue.upload(data, buffer, wait=gate.at(1))
    assert cancelled.cancel()
    gate.fail(ValueError("no"))
    with pytest.raises(tg.SemaphoreFailedError):
        failed.wait(LIMIT)
    del buffer, data
    for event in released:
        assert_released(event)


def test_work_runs_although_nobody_keeps_its_handle(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    called = threading.Event()
    queue.host_call(called.set, wait=gate.at(1))
    gc.collect()
    gate.signal(1)
    assert called.wait(LIMIT)


# Leaks


def living() -> Counter[str]:
    """How many objects of Tidegate's own types there are, by type, and how many threads."""
    gc.collect()
    count = Counter(
        f"{type(thing).__module__}.{type(thing).__qualname__}"
        for thing in gc.get_objects()
        if str(type(thing).__module__).partition(".")[0] == "tidegate"
    )
    count["threads"] = threading.active_count()
    return count


def grown(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """What there is more of than chance explains: a pool that grew by a thread, a submission about to retire."""
    return {name: count - before[name] for name, count in after.items() if count - before[name] > 20}


@pytest.mark.slow
@pytest.mark.rules("M18", "M24")
def test_ten_thousand_submissions_leave_nothing_behind(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.upload(np.zeros(4096, np.uint8))
    with device.record() as commands:
        commands.fill(tg.slot(0), 1, length=64)

    def work(rounds: int) -> None:
        timeline = tg.Semaphore()
        for _ in range(rounds):
            gate, done = tg.Semaphore(), tg.Semaphore()
            held = queue.fill(buffer, 1, wait=gate.at(1), signal=done.at(1))
            scratch = queue.allocate(4096, wait=done.at(1))
            copied = queue.copy(buffer, scratch, wait=scratch.ready)
            freed = queue.free(scratch, wait=copied)
            run = queue.execute(commands, bindings=[buffer], wait=freed, signal=timeline.next())
            cancelled = queue.barrier(wait=gate.at(2))
            failed = queue.barrier(wait=gate.at(3))
            ended = queue.download(buffer, wait=run)
            assert cancelled.cancel()
            gate.signal(1)
            gate.fail(ValueError("on purpose"))
            tg.wait_all([held, ended], LIMIT)
            assert failed.error is not None

    work(50)
    eventually(queue, lambda: device.statistics().submitted == device.statistics().retired)
    device.trim()
    before, statistics = living(), device.statistics()

    def more() -> dict[str, int]:
        device.trim()  # a pool keeps as much as was needed at once, and that depends on how far the host is ahead
        return grown(before, living())

    work(1250)
    eventually(queue, lambda: not more(), lambda: f"there is more of: {more()}")
    now = device.statistics()
    assert (now.held, now.issued) == (0, 0)
    assert now.submitted - statistics.submitted >= 10_000
    assert now.allocated_bytes == statistics.allocated_bytes
    assert now.reserved_bytes <= statistics.reserved_bytes + 4 * 4096
