"""Faults of host calls and of where work runs."""

from __future__ import annotations

import threading
from typing import Any

from tidegate._core import operations, workload
from tidegate._core.compiled import retire_submission
from tidegate._core.host_calls import HostCallPool
from tidegate._core.operations import Operations
from tidegate._core.thread_state import thread_state
from tidegate.drivers.cpu.command_buffer import PLANS
from tidegate.drivers.cpu.queue import CpuQueue

from .fault import Patch, fault


@fault("M33", "M16", killed_by="test_host_calls::test_an_exception_fails_the_signals_with_that_very_exception")
def swallows_the_exception_of_a_host_call(patch: Patch) -> None:
    """What a host call raises is dropped, and its signals are made."""
    real = operations._HostCall.__call__

    def call(self: Any) -> Any:
        try:
            return real(self)
        except Exception:
            return None

    patch.method(operations._HostCall, "__call__", call)


@fault(
    "M33",
    "M16",
    killed_by="test_host_calls::test_an_exception_that_would_end_a_thread_fails_the_signals_too[SystemExit]",
)
def lets_an_exit_end_the_worker(patch: Patch) -> None:
    """A host call that raises SystemExit ends its worker, and its signals never come."""

    def host_task(submission: Any, work: Any) -> None:
        error: Exception | None = None
        try:
            submission._result = work.run()
        except Exception as raised:
            error = raised
        retire_submission(submission, error)

    patch.function(workload._host_task, host_task)


@fault("M33", "M14", killed_by="test_host_calls::test_a_host_call_does_not_run_before_its_wait_is_met")
def makes_a_host_call_before_its_wait(patch: Patch) -> None:
    """A host call is made at once; only its signal waits."""
    real = Operations.host_call

    def host_call(self: Any, function: Any, *args: Any, **points: Any) -> Any:
        made: list[Any] = []
        caller = threading.Thread(target=lambda: made.append(function(*args)))
        caller.start()
        caller.join()
        return real(self, lambda: made[0], **points)

    patch.method(Operations, "host_call", host_call)


@fault(
    "M33", "M34", killed_by="test_host_calls::test_host_calls_run_on_daemon_threads_and_never_on_a_thread_of_the_caller"
)
def makes_a_host_call_on_the_callers_thread(patch: Patch) -> None:
    """A host call runs right where it becomes ready."""

    def run(self: Any, task: Any, ticket: Any) -> None:
        ticket.taken = True
        task()

    patch.method(HostCallPool, "run", run)


@fault(
    "M33",
    "M40",
    killed_by="test_host_calls::test_every_kind_of_wait_inside_host_calls_makes_room_for_others[timepoint]",
)
def has_a_pool_that_does_not_grow(patch: Patch) -> None:
    """A worker that waits keeps its place, and calls that wait for one another starve."""
    patch.method(HostCallPool, "worker_blocks", lambda self: None)
    patch.method(HostCallPool, "worker_resumes", lambda self: None)


@fault(
    "M33",
    "M40",
    killed_by="test_host_calls_threads::test_host_calls_may_wait_for_one_another_by_any_means[meeting]",
)
def never_looks_whether_host_threads_come_back(patch: Patch) -> None:
    """Calls that wait for one another by means other than Tidegate's starve: no thread is started for want of any."""
    patch.method(HostCallPool, "_watch", lambda self: None)


@fault("M26", "M33", killed_by="test_host_reads::test_a_host_read_inside_a_host_call_waits_for_nothing_by_default")
def forgets_that_it_is_inside_a_host_call(patch: Patch) -> None:
    """A host read inside a host call waits for the last write, which may wait for the call."""
    real = operations._HostCall.__call__

    def call(self: Any) -> Any:
        thread_state.host_call_device = None
        return real(self)

    patch.method(operations._HostCall, "__call__", call)


@fault("M34", "M14", killed_by="test_queue_order::test_flush_never_blocks")
def runs_kernels_on_the_callers_thread(patch: Patch) -> None:
    """A kernel runs right where it becomes ready, so that a call blocks for it."""

    def issue(self: Any, ticket: Any, work: Any, waits: Any) -> bool:
        PLANS[type(work)](self._device, work, ())()
        self._finished(ticket)
        return True

    patch.method(CpuQueue, "issue", issue)
