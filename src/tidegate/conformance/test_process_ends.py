"""The ends of a process with work in flight: exit and fork."""

import os
import subprocess
import sys
import textwrap

import pytest

from .subjects import Subject

pytestmark = pytest.mark.rules("M37")


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
    import asyncio, logging
    from tidegate.conformance import kernels

    logging.disable(logging.WARNING)  # where no compiler is, the log says that Python serves instead
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
        with tg.open_device("null") as own:
            uses = {
                "wait": dict(wait=gate.at(1)),
                "second wait": dict(wait=[fresh.at(1), gate.at(1)]),
                "wait for a submission": dict(wait=held),
                "signal": dict(signal=gate.at(1)),
                "second signal": dict(signal=[fresh.at(3), gate.at(1)]),
            }
            for name, points in uses.items():
                try:
                    own.queue().barrier(**points)
                except tg.FailedPreconditionError as error:
                    print(name, "forked" in str(error))
            own.queue().barrier(wait=fresh.at(1), signal=fresh.at(3)).wait(10)
            print("own", own.statistics().submitted)

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
    refused = ("wait", "second wait", "wait for a submission", "signal", "second signal")
    lines = ["child 0 2 False", *(f"{use} True" for use in refused), "own 1", "parent 5"]
    assert ended.stdout.splitlines() == lines
    assert ended.returncode == 0


OPENED_IN_CHILD = """
    queue.fill(buffer, 1).wait(20)

    def in_child():
        infos = {info.name: info for info in tg.list_drivers()}
        info = infos[device.info.driver]
        try:
            own = subject.open_device()
        except tg.TidegateError as error:
            assert not info.available, info
            print(type(error).__name__, "forked" in str(error), "spawn" in str(error), "forked" in info.reason)
            with tg.open_device("cpu") as other:
                other.queue().barrier().wait(20)
            return
        assert info.available, info
        for _ in range(3):
            target = own.upload(np.zeros(1000, np.uint8))
            own.queue().fill(target, 7).wait(20)
            assert "work" in subject.lacks or target.read(timeout=20) == bytes([7]) * 1000
        own.close(20)
        print("opened")

    child = os.fork()
    if child == 0:
        signal.alarm(15)
        in_child()
        sys.exit(5)

    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    queue.fill(buffer, 2).wait(20)
    with subject.open_device() as second:
        second.queue().barrier().wait(20)
    print("parent", status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.rules("M37")
def test_a_forked_child_opens_a_device_of_its_own_or_is_told_why_not_and_what_to_do(
    subject: Subject, pytestconfig: pytest.Config
) -> None:
    ended = run_script(pytestconfig, OPENED_IN_CHILD)
    child, _, parent = ended.stdout.partition("\n")
    assert ended.stderr == ""
    assert child in ("opened", "DriverUnavailableError True True True", "FailedPreconditionError True True True")
    assert parent == "parent 5\n"
    assert ended.returncode == 0
