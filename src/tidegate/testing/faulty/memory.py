"""Faults of memory: allocating and freeing in queue order, pools, budgets, what is kept and for how long."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate._core import operations
from tidegate._core.buffer import Buffer
from tidegate._core.compiled import Memory
from tidegate._core.starvation import Starvation
from tidegate.drivers.block_pool import BlockPool
from tidegate.drivers.cpu.memory import CpuStorage

from .fault import Patch, fault, planted

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


planted(
    "frees-early",
    "`free` takes the storage at the call; only its signal waits.",
    "M23",
    killed_by="test_allocation::test_a_free_takes_effect_when_its_wait_is_met_and_not_before",
    room="work/work.pxi",
    before="block.freed_by = <PyObject *>self",
    after="""
        block.freed_by = <PyObject *>self
        block.storage = None
    """,
)

planted(
    "frees-after-a-failed-wait",
    "A free whose wait fails takes the buffer all the same.",
    "M23",
    "M17",
    killed_by="test_allocation::test_a_free_whose_wait_fails_leaves_the_buffer_there",
    room="work/work.pxi",
    before="work.block.freed_by = NULL",
    after="work.block.phase = FREED",
)

planted(
    "frees-twice",
    "A second free is taken although the first is still held, and takes the storage from under it.",
    "M23",
    killed_by="test_allocation::test_a_second_free_while_one_is_held_fails_its_signals_and_the_first_goes_on",
    room="work/work.pxi",
    before="memory.freed_by != <PyObject *>self or memory.phase == FREED",
    after="memory.phase == FREED",
)

planted(
    "takes-work-on-freed-memory",
    "A buffer that was freed may be named in new work, which fails some time later.",
    "M23",
    killed_by="test_allocation::test_every_use_after_a_free_is_refused",
    room="memory/memory.pxi",
    before="self.phase == FREED",
    after="False",
)

planted(
    "closes-under-the-work",
    "Closing a buffer takes its storage at once, although held work is to use it.",
    "M18",
    killed_by="test_lifetimes::test_a_buffer_closed_while_work_waits_for_it_still_serves_that_work",
    room="memory/memory.pxi",
    before="self.uses == 0",
    after="True",
)

planted(
    "never-ends-a-use",
    "A buffer closed while work used it is never given back.",
    "M18",
    killed_by="test_lifetimes::test_closing_a_buffer_takes_effect_when_its_last_use_ends",
    room="memory/memory.pxi",
    before="memory.uses -= 1",
    after="pass",
)

# Running out --------------------------------------------------------------------------------------------------------


_STARVE = "return starve(one, error) if take_back(one) else 0"

planted(
    "gives-up-when-memory-is-short",
    "An allocation that finds no room fails at once, although a free is on its way.",
    "M22",
    killed_by="test_budgets::test_an_allocation_that_does_not_fit_now_is_retried_when_a_free_retires",
    room="work/issue.pxi",
    before=_STARVE,
    after="return retire(one, error)",
)


@fault("M22", "M24", killed_by="test_budgets::test_an_allocation_that_does_not_fit_now_is_retried_when_a_free_retires")
def never_tries_again(patch: Patch) -> None:
    """An allocation that found no room is put aside, and nobody comes back to it."""
    patch.method(Starvation, "retry", lambda self: None)


@fault("M22", "M40", killed_by="test_budgets::test_running_out_of_memory_fails_the_signals_and_nothing_else")
def waits_for_memory_that_will_not_come(patch: Patch) -> None:
    """An allocation that nothing in flight can help waits for ever."""
    patch.method(Starvation, "_help_comes", lambda self: True)


planted(
    "takes-out-of-memory-for-the-end",
    "Running out of memory takes the whole device down.",
    "M22",
    killed_by="test_budgets::test_running_out_of_memory_fails_the_signals_and_nothing_else",
    room="work/issue.pxi",
    before=_STARVE,
    after="""
        one.workload._lose(error)
        return 0
    """,
)

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


planted(
    "reads-before-the-write",
    "A host read takes what is there, whatever has been submitted.",
    "M26",
    killed_by="test_host_reads::test_a_host_read_waits_for_a_held_write",
    room="memory/memory.pxi",
    before="return None if self.last_write == NULL else <object>self.last_write",
    after="return None",
)

planted(
    "follows-the-first-write",
    "A host read is ordered after the oldest write that was still open, not after the last.",
    "M26",
    killed_by="test_host_reads::test_a_host_read_follows_the_write_submitted_last_and_not_the_one_that_ended_last",
    room="work/admission.pxi",
    before="memory.last_write = <PyObject *>one",
    after="if memory.last_write == NULL: memory.last_write = <PyObject *>one",
)


@fault("M25", killed_by="test_mapping::test_a_map_for_reading_shows_the_bytes_and_cannot_be_written")
def maps_everything_for_writing(patch: Patch) -> None:
    """A map for reading can be written."""
    real = Buffer._host_bytes

    def host_bytes(self: Any, *, writable: bool, **options: Any) -> np.ndarray[Any, Any]:
        return real(self, writable=True, **options)

    patch.method(Buffer, "_host_bytes", host_bytes)
