"""Faults of fill, update, copy, upload, download and files: bytes that go astray, and data taken at the wrong time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate import driver
from tidegate._core import checks, files
from tidegate.drivers.cpu import transfers
from tidegate.drivers.cpu.transfers import bytes_of

from .fault import Patch, fault, planted

# Bytes --------------------------------------------------------------------------------------------------------------


@fault("M27", killed_by="test_transfer::test_a_short_fill_writes_its_range_and_leaves_the_edges_alone")
def fills_without_the_tail(patch: Patch) -> None:
    """A fill goes by 16 bytes at a time and forgets the rest."""

    def plan_fill(_device: Any, work: Any, table: Any) -> Any:
        target = bytes_of(work.target.bind(table))
        blocks = target.nbytes // 16
        whole = np.frombuffer(work.pattern * (16 // len(work.pattern)) * blocks, np.uint8)
        return lambda: np.copyto(target[: 16 * blocks], whole)

    patch.function(transfers.plan_fill, plan_fill)


@fault("M27", killed_by="test_transfer::test_a_short_fill_writes_its_range_and_leaves_the_edges_alone")
def fills_whole_words(patch: Patch) -> None:
    """A fill writes words of 4 bytes, and so up to 3 bytes too many."""

    def plan_fill(_device: Any, work: Any, table: Any) -> Any:
        span = work.target.bind(table)
        storage, offset = span.locate()
        target = storage.bytes()[offset : offset + -(-span.nbytes // 4) * 4]
        data = np.frombuffer(work.pattern * target.nbytes, np.uint8)[: target.nbytes]
        return lambda: np.copyto(target, data)

    patch.function(transfers.plan_fill, plan_fill)


@fault("M27", killed_by="test_transfer::test_a_fill_without_a_length_runs_to_the_end")
def fills_with_one_byte(patch: Patch) -> None:
    """A fill repeats the first byte of its pattern, however wide that is."""
    real = transfers.plan_fill
    patch.function(real, lambda device, work, table: real(device, driver.Fill(work.target, work.pattern[:1]), table))


@fault("M27", killed_by="test_transfer::test_a_copy_moves_a_whole_buffer")
def copies_one_byte_too_few(patch: Patch) -> None:
    """A copy leaves its last byte."""

    def plan_copy(_device: Any, work: Any, table: Any) -> Any:
        source, target = bytes_of(work.source.bind(table)), bytes_of(work.target.bind(table))
        count = max(0, source.nbytes - 1)
        return lambda: np.copyto(target[:count], source[:count])

    patch.function(transfers.plan_copy, plan_copy)


@fault("M27", "M31", killed_by="test_transfer::test_a_fill_of_a_subspan_counts_from_its_start_and_stays_inside")
def ignores_the_offset_of_a_subspan(patch: Patch) -> None:
    """Work on a part of a buffer begins where the buffer begins."""

    def from_the_start(span: Any) -> Any:
        storage, _ = span.locate()
        return storage.bytes()[: span.nbytes]

    patch.function(bytes_of, from_the_start)


@fault("M27", "M16", killed_by="test_transfer::test_an_overlapping_copy_is_refused_at_the_call")
def copies_over_itself(patch: Patch) -> None:
    """Copies that overlap are taken."""
    patch.function(checks.check_copy, lambda source, target: None)


@fault("M27", "M16", killed_by="test_transfer::test_a_fill_with_a_wrong_pattern_or_alignment_is_refused_at_the_call")
def takes_misaligned_fills(patch: Patch) -> None:
    """A fill whose range is no multiple of its pattern is taken, and goes wrong later."""
    patch.function(checks.check_fill, lambda span, pattern: None)


# Time ---------------------------------------------------------------------------------------------------------------


@fault(
    "M27",
    "M18",
    killed_by="test_transfer::test_held_updates_of_one_scratch_array_each_carry_what_it_held_at_their_call",
)
def captures_an_update_late(patch: Patch) -> None:
    """An update refers to its source, and reads it when it runs."""
    real = checks.update_data
    sources: dict[int, Any] = {}

    def update_data(data: Any) -> bytes:
        captured = real(data)
        sources[id(captured)] = checks.host_bytes_of(data, "update")
        return captured

    def plan_update(_device: Any, work: Any, table: Any) -> Any:
        target = bytes_of(work.target.bind(table))
        source = sources.get(id(work.data), np.frombuffer(work.data, np.uint8))
        return lambda: np.copyto(target, source)

    patch.function(real, update_data)
    patch.function(transfers.plan_update, plan_update)


_BORROWED = 'aim(work, self.device_, target, offset, <object>nbytes, "upload")'

planted(
    "copies-what-it-should-borrow",
    "An upload takes a copy of its array at the call.",
    "M27",
    killed_by="test_upload_download::test_an_upload_borrows_its_array_and_holds_no_copy",
    room="work/operations.pxi",
    before=_BORROWED,
    after=f"""
        work.host = None
        work.borrow_flat(host_bytes_of(array, "upload").copy())
        {_BORROWED}
    """,
)

planted(
    "gives-a-borrowed-array-back-early",
    "An upload keeps the address of its array, and not the array.",
    "M27",
    "M18",
    killed_by="test_upload_download::test_an_upload_keeps_its_array_until_it_retires_and_no_longer",
    room="work/operations.pxi",
    before=_BORROWED,
    after=f"""
        import ctypes, numpy
        flat = host_bytes_of(array, "upload")
        work.host = None
        work.borrow_flat(numpy.frombuffer((ctypes.c_uint8 * len(flat)).from_address(flat.ctypes.data), numpy.uint8))
        {_BORROWED}
    """,
)

planted(
    "keeps-what-it-used",
    "Work that is over stays in a list, with the arrays and buffers it used.",
    "M18",
    killed_by="test_lifetimes::test_work_that_is_over_keeps_nothing_even_if_its_handle_lives",
    room="work/retirement.pxi",
    before="work = one.work_",
    after="""
        work = one.work_
        globals().setdefault("kept", []).append(work)
    """,
)


@fault("M27", "M14", killed_by="test_files::test_a_file_is_not_touched_before_the_wait_is_met")
def writes_a_file_at_the_call(patch: Patch) -> None:
    """A file is written when the work is submitted; only the signal waits."""
    real = files.FileWrite.__init__

    def init(self: Any, queue: Any, file: Any, source: Any, file_offset: Any) -> None:
        real(self, queue, file, source, file_offset)
        self()

    patch.method(files.FileWrite, "__init__", init)
