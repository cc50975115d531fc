"""Host calls: Python functions in queue order, on threads that cannot starve one another."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest

import tidegate as tg
from tidegate.lowlevel import set_host_threads

from .latches import LIMIT, Latch
from .witnesses import failure_of

pytestmark = pytest.mark.rules("M33")


@pytest.fixture
def two_threads() -> Iterator[None]:
    """No more than two host calls are at work at once, those in a wait not counted."""
    before = set_host_threads(2)
    yield
    set_host_threads(before)


def test_a_host_call_gives_back_what_its_function_returned(queue: tg.Queue) -> None:
    assert queue.host_call(lambda: "done").result(LIMIT) == "done"
    assert queue.host_call(divmod, 17, 5).result(LIMIT) == (3, 2)
    assert queue.host_call(lambda: None).result(LIMIT) is None


def test_a_host_call_signals_after_its_function_has_returned(queue: tg.Queue) -> None:
    done = tg.Semaphore()
    seen = []
    queue.host_call(lambda: seen.append(done.value), signal=done.at(1))
    done.wait(1, LIMIT)
    assert seen == [0]


@pytest.mark.rules("M14", "M33")
def test_a_host_call_does_not_run_before_its_wait_is_met(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    seen: list[int] = []
    call = queue.host_call(lambda: seen.append(gate.value), wait=gate.at(2))
    gate.signal(1)
    queue.host_call(lambda: None).wait(LIMIT)
    assert not call.done
    gate.signal(2)
    call.wait(LIMIT)
    assert seen == [2]


@pytest.mark.rules("M5", "M33")
def test_host_calls_chained_by_waits_run_in_order(queue: tg.Queue, second_queue: tg.Queue) -> None:
    """Submitted backwards, on two queues."""
    timeline = tg.Semaphore()
    order: list[int] = []
    calls = [
        (queue, second_queue)[i % 2].host_call(order.append, i, wait=timeline.at(i + 1), signal=timeline.at(i + 2))
        for i in reversed(range(200))
    ]
    timeline.signal(1)
    tg.wait_all(calls, LIMIT)
    assert order == list(range(200))


@pytest.mark.slow
@pytest.mark.rules("M33", "M40")
def test_a_thousand_host_calls_may_wait_for_one_another(queue: tg.Queue) -> None:
    """Each but the last waits, inside, for the one submitted after it: all must be running at once."""
    count = 1000
    links = [tg.Semaphore() for _ in range(count + 1)]

    def link(i: int) -> int:
        links[i + 1].wait(1, LIMIT)
        links[i].signal(1)
        return i

    calls = [queue.host_call(link, i) for i in range(count)]
    queue.host_call(links[count].signal, 1)
    tg.wait_all(calls, LIMIT)
    assert [call.result(LIMIT) for call in calls] == list(range(count))


@pytest.mark.rules("M33", "M40")
@pytest.mark.parametrize(
    "kind", ["timepoint", "all", "any", "submission", "result", pytest.param("map", marks=pytest.mark.needs("work"))]
)
def test_every_kind_of_wait_inside_host_calls_makes_room_for_others(
    device: tg.Device, queue: tg.Queue, two_threads: None, kind: str
) -> None:
    """More calls block, each in its kind of wait, than may be at work at once; the last one frees them all."""
    gate = tg.Semaphore()
    barrier = queue.barrier(wait=gate.at(1))
    buffer = device.allocate(16, memory="shared")
    wait: Callable[[], object] = {
        "timepoint": lambda: gate.wait(1, LIMIT),
        "all": lambda: tg.wait_all([gate.at(1), barrier], LIMIT),
        "any": lambda: tg.wait_any([gate.at(1), barrier], LIMIT),
        "submission": lambda: barrier.wait(LIMIT),
        "result": lambda: barrier.result(LIMIT),
        "map": lambda: buffer.map("r", wait=gate.at(1), timeout=LIMIT).__enter__().size,
    }[kind]
    calls = [queue.host_call(wait) for _ in range(100)]
    queue.host_call(gate.signal, 1)
    tg.wait_all([*calls, barrier], LIMIT)


@pytest.mark.rules("M16", "M33")
def test_an_exception_fails_the_signals_with_that_very_exception(queue: tg.Queue) -> None:
    first, second = tg.Semaphore(), tg.Semaphore()
    error = ValueError("my mistake")

    def fail() -> None:
        raise error

    call = queue.host_call(fail, signal=[first.at(1), second.at(5)])
    dependent = queue.host_call(lambda: None, wait=first.at(1))
    for wait in (call.wait, call.result, dependent.wait):
        with pytest.raises(tg.SemaphoreFailedError) as caught:
            wait(LIMIT)
        assert caught.value.__cause__ is error
    assert call.error is error
    assert first.failure is error
    assert second.failure is error
    assert queue.host_call(lambda: "still here").result(LIMIT) == "still here"


@pytest.mark.rules("M16", "M33")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exception_that_would_end_a_thread_fails_the_signals_too(queue: tg.Queue, kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind()

    for _ in range(20):
        call = queue.host_call(fail)
        assert isinstance(failure_of(call), kind)
    assert queue.host_call(lambda: "still here").result(LIMIT) == "still here"


@pytest.mark.rules("M17", "M33")
def test_a_host_call_whose_wait_fails_is_never_made(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    called = threading.Event()
    call = queue.host_call(called.set, wait=gate.at(1))
    gate.fail(ValueError("no"))
    with pytest.raises(tg.SemaphoreFailedError):
        call.wait(LIMIT)
    queue.host_call(lambda: None).wait(LIMIT)
    assert not called.is_set()


@pytest.mark.rules("M21", "M33")
def test_a_cancelled_host_call_is_never_made(queue: tg.Queue) -> None:
    gate = tg.Semaphore()
    called = threading.Event()
    call = queue.host_call(called.set, wait=gate.at(1))
    assert call.cancel()
    gate.signal(1)
    queue.host_call(lambda: None).wait(LIMIT)
    assert not called.is_set()
    assert isinstance(call.error, tg.AbortedError)


@pytest.mark.needs("work")
def test_a_host_call_may_submit_more_work_and_wait_for_it(device: tg.Device, queue: tg.Queue) -> None:
    buffer = device.upload(np.zeros(32, np.uint8))

    def inside() -> bytes:
        filled = queue.fill(buffer, 3)
        queue.update(buffer, b"abc", wait=filled).wait(LIMIT)
        return buffer.read(timeout=LIMIT)

    assert queue.host_call(inside).result(LIMIT) == b"abc" + b"\x03" * 29


def test_a_host_call_may_submit_host_calls_that_wait_for_its_own_signal(queue: tg.Queue) -> None:
    done = tg.Semaphore()
    inner: list[tg.Submission] = []
    outer = queue.host_call(
        lambda: inner.append(queue.host_call(lambda: done.value, wait=done.at(1))), signal=done.at(1)
    )
    outer.wait(LIMIT)
    assert inner[0].result(LIMIT) == 1


def test_a_host_call_may_signal_and_fail_semaphores(queue: tg.Queue) -> None:
    good, bad = tg.Semaphore(), tg.Semaphore()
    error = ValueError("told you")
    waiting = queue.barrier(wait=good.at(7))
    doomed = queue.barrier(wait=bad.at(7))
    queue.host_call(good.signal, 7).wait(LIMIT)
    queue.host_call(bad.fail, error).wait(LIMIT)
    waiting.wait(LIMIT)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        doomed.wait(LIMIT)
    assert caught.value.__cause__ is error


@pytest.mark.rules("M6", "M33")
def test_a_host_call_that_signals_over_its_own_claim_fails_that_semaphore(queue: tg.Queue) -> None:
    """Whoever waited for the claimed value was released before the work was over."""
    done = tg.Semaphore()
    queue.host_call(done.signal, 5, signal=done.at(3))
    done.wait(3, LIMIT)
    with pytest.raises(tg.SemaphoreFailedError) as caught:
        done.wait(6, LIMIT)
    assert done.value == 5
    assert done.failure is caught.value.__cause__


@pytest.mark.rules("M33", "M34")
def test_host_calls_run_on_daemon_threads_and_never_on_a_thread_of_the_caller(queue: tg.Queue) -> None:
    """Ready at the call, at the signal, and while the caller waits: always elsewhere."""
    gate = tg.Semaphore()

    def where() -> tuple[int, bool]:
        return threading.get_ident(), threading.current_thread().daemon

    calls = [queue.host_call(where) for _ in range(20)]
    calls += [queue.host_call(where, wait=gate.at(1)) for _ in range(20)]
    gate.signal(1)
    for call in calls:
        ident, daemon = call.result(LIMIT)
        assert ident != threading.get_ident()
        assert daemon


@pytest.mark.needs("work")
@pytest.mark.rules("M34")
def test_a_kernel_never_runs_on_a_thread_of_the_caller(queue: tg.Queue, latch: Latch) -> None:
    """A kernel that blocks until the host opens it, ready at the call, then at a signal: both calls return."""
    gate = tg.Semaphore()
    at_call = latch.block(queue)
    at_signal = latch.block(queue, wait=gate.at(1))
    gate.signal(1)
    with pytest.raises(tg.DeadlineExceededError):
        at_call.wait(0)
    latch.open()
    tg.wait_all([at_call, at_signal], LIMIT)


@pytest.mark.needs("work")
@pytest.mark.rules("M34")
def test_small_and_large_transfers_end_whoever_runs_them(device: tg.Device, queue: tg.Queue) -> None:
    """Around the sizes at which the place where a transfer may run changes."""
    gate = tg.Semaphore()
    sizes = (1, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 256 * 1024, 256 * 1024 + 1, 2**20)
    buffers = [device.upload(np.zeros(size, np.uint8)) for size in sizes]
    fills = [queue.fill(buffer, 1, wait=gate.at(1)) for buffer in buffers]
    gate.signal(1)
    for fill, buffer in zip(fills, buffers, strict=True):
        fill.wait(LIMIT)
        assert buffer.read(timeout=LIMIT) == b"\x01" * buffer.nbytes


@pytest.mark.rules("M18", "M33")
def test_a_host_call_keeps_its_function_and_arguments_until_it_has_run_and_no_longer(queue: tg.Queue) -> None:
    class Thing:
        pass

    gate = tg.Semaphore()
    thing = Thing()
    released = threading.Event()
    weakref.finalize(thing, released.set)
    call = queue.host_call(lambda *things: len(things), thing, thing, wait=gate.at(1))
    del thing
    gc.collect()
    assert not released.is_set()
    gate.signal(1)
    assert call.result(LIMIT) == 2
    gc.collect()
    assert released.wait(LIMIT)


@pytest.mark.rules("M16", "M33")
def test_something_that_cannot_be_called_is_a_type_error_at_the_call(queue: tg.Queue) -> None:
    semaphore = tg.Semaphore()
    with pytest.raises(TypeError):
        queue.host_call("not a function", signal=semaphore.at(1))  # type: ignore[arg-type]
    assert semaphore.value == 0
    queue.barrier(signal=semaphore.at(1)).wait(LIMIT)


@pytest.mark.needs("work")
@pytest.mark.rules("M33")
def test_host_calls_stand_in_a_pipeline_between_device_work(
    device: tg.Device, queue: tg.Queue, kernels: ModuleType
) -> None:
    n = 1000
    increment = kernels.load(device, kernels.increment)
    buffer = device.upload(np.zeros(n, np.uint32))
    groups = increment.workgroups_for(n)
    seen: list[int] = []
    previous: tg.Submission | None = None
    for _ in range(10):
        work = queue.dispatch(increment, groups, bindings=[buffer], constants=[np.uint32(n)], wait=previous)
        previous = queue.host_call(lambda: seen.append(int(buffer.to_numpy(np.uint32, timeout=LIMIT).sum())), wait=work)
    assert previous is not None
    previous.wait(LIMIT)
    assert seen == [n * (i + 1) for i in range(10)]
