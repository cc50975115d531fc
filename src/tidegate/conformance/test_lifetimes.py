"""Who keeps what, and for how long; the ends of a process with work in flight.

"Released" is watched with `weakref.finalize` and an event: what a retiring thread drops last may be a moment behind
the signal that a test waited for.
"""

import gc
import os
import subprocess
import sys
import textwrap
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

pytestmark = pytest.mark.rules("M18")

N = 1000


def watch(thing: object) -> threading.Event:
    """An event that is set when the thing is gone."""
    released = threading.Event()
    weakref.finalize(thing, released.set)
    return released


def assert_released(released: threading.Event) -> None:
    gc.collect()
    assert released.wait(LIMIT)


def eventually(queue: tg.Queue, condition: Callable[[], bool]) -> None:
    """Retiring threads signal first and release afterwards: let other threads run until the condition holds."""
    for _ in range(int(LIMIT * 30)):
        if condition():
            return
        gc.collect()
        queue.host_call(lambda: None).wait(LIMIT)
    assert condition()


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
    before, statistics = living(), device.statistics()
    work(1250)
    eventually(queue, lambda: not grown(before, living()))
    now = device.statistics()
    assert (now.held, now.issued) == (0, 0)
    assert now.submitted - statistics.submitted >= 10_000
    assert now.allocated_bytes == statistics.allocated_bytes
    assert now.reserved_bytes <= statistics.reserved_bytes + 4 * 4096


# The ends of a process

HEAD = """
import gc, os, signal, sys, threading
import numpy as np
import tidegate as tg
from tidegate.conformance import subjects
from tidegate.conformance.latches import Latch, block_by_python_kernel

subject = subjects.find({driver!r})
around = subject.around()
around.__enter__()
device = subject.open_device()
queue = device.queue()
buffer = device.upload(np.zeros(1000, np.uint8))
gate = tg.Semaphore()
"""

# Less than the limit of a latch: a process that waits for its work at exit is found out.
EXIT_LIMIT = 25


def run_script(config: pytest.Config, body: str) -> subprocess.CompletedProcess[str]:
    script = HEAD.format(driver=config.getoption("--tidegate-driver")) + textwrap.dedent(body)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=EXIT_LIMIT, check=False)


IN_FLIGHT = {
    "held submissions": """
        held = [queue.fill(buffer, 1, wait=gate.at(1)) for _ in range(100)]
        queue.allocate(4096, wait=gate.at(1))
        out = queue.download(buffer, wait=held)
    """,
    "a running kernel and what waits for it": """
        latch = Latch(subject.blocker or block_by_python_kernel)
        running = latch.block(queue)
        behind = [queue.fill(buffer, 1, wait=running) for _ in range(10)]
        latch.wait_until_running()
    """,
    "host calls that never return": """
        inside = threading.Event()
        def blocked():
            inside.set()
            threading.Event().wait()
        queue.host_call(blocked)
        queue.host_call(gate.wait, 1)
        behind = queue.host_call(blocked, wait=queue.host_call(gate.wait, 2))
        inside.wait(20)
    """,
    "blocked waiters": """
        arrived = threading.Barrier(4)
        def wait(call, *arguments):
            arrived.wait(20)
            call(*arguments)
        held = queue.barrier(wait=gate.at(1))
        for call, *arguments in ((gate.wait, 1), (held.wait,), (tg.wait_any, [gate.at(1), held])):
            threading.Thread(target=wait, args=(call, *arguments), daemon=True).start()
        arrived.wait(20)
    """,
    "large transfers": """
        large = device.allocate(2**24)
        fills = [queue.fill(large, i) for i in range(8)]
        copies = [queue.upload(np.zeros(2**22, np.uint8), large, wait=fills) for _ in range(4)]
    """,
    "a thread that keeps submitting": """
        enough = threading.Event()
        def submit():
            for i in range(10**9):
                queue.barrier(signal=tg.Semaphore().at(1))
                queue.fill(buffer, 1)
                queue.host_call(lambda: None)
                if i == 200:
                    enough.set()
        threading.Thread(target=submit, daemon=True).start()
        enough.wait(20)
    """,
    "callbacks and a cycle": """
        seen = []
        subscription = gate.at(1).add_callback(lambda *event: seen.append((subscription, device)))
        cycle = []
        cycle.append((cycle, buffer, gate, queue, subscription))
    """,
    "an open recording, a map and a staging range": """
        from tidegate import lowlevel
        commands = device.record().__enter__()
        commands.fill(buffer, 1)
        mapping = device.allocate(64, memory="shared").map("rw")
        mapped = mapping.__enter__()
        part = lowlevel.StagingBuffer(device).reserve(64)
        part.release_after(queue.barrier(wait=gate.at(1)))
    """,
}


@pytest.mark.rules("M37")
@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.needs("work")] if "map" in what else []) for what in IN_FLIGHT]
)
def test_an_interpreter_exits_with_work_in_flight(subject: Subject, pytestconfig: pytest.Config, what: str) -> None:
    ended = run_script(pytestconfig, textwrap.dedent(IN_FLIGHT[what]) + "\nprint('the end')\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the end\n", "")


@pytest.mark.rules("M37")
def test_an_interpreter_that_ends_by_an_exit_code_keeps_it(subject: Subject, pytestconfig: pytest.Config) -> None:
    ended = run_script(pytestconfig, "held = queue.barrier(wait=gate.at(1))\nsys.exit(7)\n")
    assert (ended.returncode, ended.stderr) == (7, "")


@pytest.mark.rules("M37")
def test_an_interpreter_exits_after_its_devices_are_closed_too(subject: Subject, pytestconfig: pytest.Config) -> None:
    ended = run_script(pytestconfig, "queue.fill(buffer, 1).wait(20)\ndevice.close(20)\n")
    assert (ended.returncode, ended.stderr) == (0, "")


FORKED = """
    import asyncio
    from tidegate.conformance import kernels

    work = "work" not in subject.lacks
    increment = kernels.load(device, kernels.increment) if work else None
    counters = device.upload(np.zeros(8, np.uint32))
    done = tg.Semaphore()
    held = queue.fill(buffer, 1, wait=gate.at(1), signal=done.at(1))
    commands = device.record()
    waiter = threading.Thread(target=gate.wait, args=(1, 20))
    waiter.start()

    async def awaited(awaitable):
        return await awaitable

    USES = {
        "signal": lambda: gate.signal(1),
        "fail": lambda: gate.fail(ValueError()),
        "query": lambda: gate.query(),
        "wait": lambda: gate.wait(1, 1),
        "timepoint": lambda: gate.at(1).wait(1),
        "callback": lambda: gate.at(1).add_callback(print),
        "wait_all": lambda: tg.wait_all([gate.at(1)], 1),
        "wait_any": lambda: tg.wait_any([gate.at(1), held], 1),
        "await": lambda: asyncio.run(awaited(gate.at(1))),
        "submission": lambda: held.wait(1),
        "cancel": lambda: held.cancel(),
        "barrier": lambda: queue.barrier(),
        "barrier on a fresh semaphore": lambda: queue.barrier(signal=tg.Semaphore().at(1)),
        "fill": lambda: queue.fill(buffer, 2),
        "host call": lambda: queue.host_call(print),
        "queue.allocate": lambda: queue.allocate(16),
        "allocate": lambda: device.allocate(16),
        "upload": lambda: device.upload(np.zeros(4)),
        "record": lambda: device.record(),
        "read": lambda: buffer.read(timeout=1),
        "write": lambda: buffer.write(b"x"),
        "load": lambda: device.load(kernels.increment),
    }

    def in_child():
        for name, use in USES.items():
            try:
                use()
            except tg.FailedPreconditionError:
                continue
            except BaseException as error:
                print(name, "raised", repr(error))
            else:
                print(name, "was not refused")
        fresh = tg.Semaphore()
        other = threading.Thread(target=fresh.wait, args=(2, 10))
        other.start()
        fresh.signal(1)
        fresh.signal(2)
        other.join(10)
        print("child", gate.value, fresh.value, other.is_alive())

    child = os.fork()
    if child == 0:
        signal.alarm(15)
        in_child()
        del device, queue, buffer, gate, held, done, commands, increment, counters, USES
        gc.collect()
        sys.exit(5)

    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    gate.signal(1)
    done.wait(1, 20)
    held.wait(20)
    waiter.join(20)
    if work:
        assert buffer.read(timeout=20) == b"\\x01" * 1000
        queue.dispatch(increment, (1, 1, 1), bindings=[counters], constants=[8]).wait(20)
        assert counters.to_numpy(np.uint32, timeout=20).tolist() == [1] * 8
        kernels.load(device, kernels.saxpy)
    print("parent", status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.rules("M37")
def test_a_forked_child_is_refused_what_its_parent_made_and_takes_nothing_away(
    subject: Subject, pytestconfig: pytest.Config
) -> None:
    """The child flushes what it printed at its own exit, before the parent goes on."""
    ended = run_script(pytestconfig, FORKED)
    assert ended.stderr == ""
    assert ended.stdout == "child 0 2 False\nparent 5\n"
    assert ended.returncode == 0
