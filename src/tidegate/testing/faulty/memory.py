"""Faults of memory: allocating and freeing in queue order, pools, budgets, what is kept and for how long."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate._core import operations, scheduling
from tidegate._core.buffer import FREED, Buffer, FreeRequest, Memory
from tidegate._core.retirement import retire
from tidegate._core.starvation import Starvation
from tidegate._core.workload import Workload
from tidegate.drivers.block_pool import BlockPool
from tidegate.drivers.cpu.memory import CpuStorage

from .fault import Patch, fault

# Allocating and freeing ---------------------------------------------------------------------------------------------


@fault("M22", killed_by="test_allocation::test_host_access_before_the_storage_is_committed_is_refused")
def allocates_at_the_call(patch: Patch) -> None:
    """A queue-ordered allocation has its storage at once, whatever it is to wait for."""
    real = operations.new_memory

    def new_memory(device: Any, nbytes: Any, kind: Any, label: str) -> Memory:
        memory = real(device, nbytes, kind, label)
        memory.commit(device._driver.allocate(memory.nbytes, kind))
        return memory

    patch.function(real, new_memory)


@fault("M23", killed_by="test_allocation::test_a_free_takes_effect_when_its_wait_is_met_and_not_before")
def frees_early(patch: Patch) -> None:
    """`free` takes the storage at the call; only its signal waits."""
    real = FreeRequest.__init__

    def init(self: Any, memory: Memory) -> None:
        real(self, memory)
        memory.storage = None

    patch.method(FreeRequest, "__init__", init)


@fault("M23", "M17", killed_by="test_allocation::test_a_free_whose_wait_fails_leaves_the_buffer_there")
def frees_after_a_failed_wait(patch: Patch) -> None:
    """A free whose wait fails takes the buffer all the same."""

    def undo(self: Any, _error: BaseException) -> None:
        self._memory.storage, self._memory.phase = None, FREED

    patch.method(FreeRequest, "undo", undo)


@fault("M23", killed_by="test_allocation::test_a_second_free_while_one_is_held_fails_its_signals_and_the_first_goes_on")
def frees_twice(patch: Patch) -> None:
    """A second free is taken although the first is still held, and takes the storage from under it."""
    real = FreeRequest.release

    def release(self: Any) -> Any:
        self._memory.freed_by = self
        return real(self)

    patch.method(FreeRequest, "release", release)


@fault("M23", killed_by="test_allocation::test_every_use_after_a_free_is_refused")
def takes_work_on_freed_memory(patch: Patch) -> None:
    """A buffer that was freed may be named in new work, which fails some time later."""
    patch.method(Memory, "refuse_unusable", lambda self: None)


@fault("M18", killed_by="test_lifetimes::test_a_buffer_closed_while_work_waits_for_it_still_serves_that_work")
def closes_under_the_work(patch: Patch) -> None:
    """Closing a buffer takes its storage at once, although held work is to use it."""

    def close(self: Memory) -> None:
        self.closed, self.storage = True, None

    patch.method(Memory, "close", close)


@fault("M18", killed_by="test_lifetimes::test_closing_a_buffer_takes_effect_when_its_last_use_ends")
def never_ends_a_use(patch: Patch) -> None:
    """A buffer closed while work used it is never given back."""
    patch.method(Memory, "end_use", lambda self: None)


# Running out --------------------------------------------------------------------------------------------------------


@fault("M22", killed_by="test_budgets::test_an_allocation_that_does_not_fit_now_is_retried_when_a_free_retires")
def gives_up_when_memory_is_short(patch: Patch) -> None:
    """An allocation that finds no room fails at once, although a free is on its way."""
    patch.method(Workload, "_starve", lambda self, submission, error: retire(submission, error))


@fault("M22", "M24", killed_by="test_budgets::test_an_allocation_that_does_not_fit_now_is_retried_when_a_free_retires")
def never_tries_again(patch: Patch) -> None:
    """An allocation that found no room is put aside, and nobody comes back to it."""
    patch.method(Starvation, "retry", lambda self: None)


@fault("M22", "M40", killed_by="test_budgets::test_running_out_of_memory_fails_the_signals_and_nothing_else")
def waits_for_memory_that_will_not_come(patch: Patch) -> None:
    """An allocation that nothing in flight can help waits for ever."""
    patch.method(Starvation, "_help_comes_locked", lambda self: True)


@fault("M22", killed_by="test_budgets::test_running_out_of_memory_fails_the_signals_and_nothing_else")
def takes_out_of_memory_for_the_end(patch: Patch) -> None:
    """Running out of memory takes the whole device down."""
    patch.method(Workload, "_starve", lambda self, submission, error: self._lose(error))


# Pools --------------------------------------------------------------------------------------------------------------


@fault("M24", killed_by="test_memory::test_queue_ordered_and_immediate_memory_come_from_the_same_pools")
def never_reuses(patch: Patch) -> None:
    """A pool keeps what comes back and always makes new blocks."""
    patch.method(BlockPool, "_reuse", lambda self, memory, size: None)


@fault("M24", killed_by="test_memory::test_the_statistics_add_up_and_trim_gives_the_pooled_bytes_back")
def loses_what_comes_back(patch: Patch) -> None:
    """A pool never learns that a block is free again."""
    patch.method(BlockPool, "take_back", lambda self, block, memory: None)


@fault("M22", "M24", killed_by="test_budgets::test_an_immediate_allocation_that_does_not_fit_raises_at_the_call")
def ignores_the_budget(patch: Patch) -> None:
    """A pool hands out whatever the system has."""
    patch.method(BlockPool, "_make_room", lambda self, size, nbytes: None)


@fault("M25", "M18", killed_by="test_memory::test_a_mapped_array_keeps_its_storage_alive")
def reuses_what_is_mapped(patch: Patch) -> None:
    """A mapped array does not keep its storage, and the block is handed out again under it."""
    patch.method(CpuStorage, "bytes", lambda self: self._block[: self.nbytes])


# What the host sees -------------------------------------------------------------------------------------------------


@fault("M26", killed_by="test_host_reads::test_a_host_read_waits_for_a_held_write")
def reads_before_the_write(patch: Patch) -> None:
    """A host read takes what is there, whatever has been submitted."""
    patch.method(Memory, "pending_write", lambda self: None)


@fault(
    "M26",
    killed_by="test_host_reads::test_a_host_read_follows_the_write_submitted_last_and_not_the_one_that_ended_last",
)
def follows_the_first_write(patch: Patch) -> None:
    """A host read is ordered after the oldest write that was still open, not after the last."""
    real = scheduling.submit

    def submit(submission: Any, wait: Any, signal: Any) -> Any:
        before = {memory: memory.last_write for memory in submission._writes}
        made = real(submission, wait, signal)
        for memory, write in before.items():
            if write is not None:
                memory.last_write = write
        return made

    patch.function(real, submit)


@fault("M25", killed_by="test_mapping::test_a_map_for_reading_shows_the_bytes_and_cannot_be_written")
def maps_everything_for_writing(patch: Patch) -> None:
    """A map for reading can be written."""
    real = Buffer._host_bytes

    def host_bytes(self: Any, *, writable: bool, **options: Any) -> np.ndarray[Any, Any]:
        return real(self, writable=True, **options)

    patch.method(Buffer, "_host_bytes", host_bytes)
