"""The memory of the CPU device: how blocks are sized, kept for reuse, and counted (M24)."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate.drivers.block_pool import size_class
from tidegate.drivers.cpu.memory import CpuPool


@pytest.mark.parametrize(
    ("nbytes", "size"),
    [
        (0, 256),
        (1, 256),
        (256, 256),
        (257, 320),
        (320, 320),
        (321, 384),
        (1023, 1024),
        (1024, 1024),
        (1025, 1152),
        (1152, 1152),
        (1153, 1280),
        (4097, 4608),
        (2**20, 2**20),
        (2**20 + 1, 2**20 + 2**17),
    ],
)
def test_the_size_of_a_block_is_the_next_step_up(nbytes: int, size: int) -> None:
    assert size_class(nbytes) == size


def test_a_block_wastes_at_most_an_eighth_or_a_cache_line_and_sizes_never_fall() -> None:
    sizes = [size_class(nbytes) for nbytes in range(257, 20_000)]
    assert sizes == sorted(sizes)
    for nbytes, size in zip(range(257, 20_000), sizes, strict=True):
        assert nbytes <= size < nbytes + max(64, nbytes / 8)
        assert size % 64 == 0
        assert size_class(size) == size


def counts(pool: CpuPool) -> tuple[int | None, ...]:
    names = ("allocated_bytes", "pooled_bytes", "peak_bytes", "allocations", "reuses")
    statistics = pool.statistics()
    return tuple(statistics[name] for name in names)


def test_the_counts_of_a_pool_follow_every_allocation_return_reuse_and_trim() -> None:
    pool = CpuPool(None)
    assert counts(pool) == (0, 0, 0, 0, 0)
    first, second = pool.allocate(1000, "device"), pool.allocate(100, "device")
    assert counts(pool) == (1280, 0, 1280, 2, 0)
    assert (first.nbytes, second.nbytes) == (1000, 100)
    del first
    assert counts(pool) == (256, 1024, 1280, 2, 0)
    third = pool.allocate(1024, "host")  # of the same class
    assert counts(pool) == (1280, 0, 1280, 3, 1)
    del second, third
    assert counts(pool) == (0, 1280, 1280, 3, 1)
    pool.trim()
    assert counts(pool) == (0, 0, 1280, 3, 1)
    assert pool.statistics()["budget_bytes"] is None


def test_a_budget_is_met_exactly_and_kept_blocks_make_way() -> None:
    pool = CpuPool(1024)
    first = pool.allocate(512, "device")
    second = pool.allocate(512, "device")
    with pytest.raises(
        tg.ResourceExhaustedError, match=r"^cannot allocate 1 bytes: 1024 of a budget of 1024 are in use$"
    ):
        pool.allocate(1, "device")
    assert counts(pool) == (1024, 0, 1024, 2, 0)
    del first, second
    assert counts(pool) == (0, 1024, 1024, 2, 0)
    whole = pool.allocate(1024, "device")  # the kept ones do not fit and are dropped
    assert counts(pool) == (1024, 0, 1024, 3, 0)
    assert pool.statistics()["budget_bytes"] == 1024
    del whole
    with pytest.raises(tg.ResourceExhaustedError):
        pool.allocate(1025, "device")


def test_blocks_are_aligned_and_a_view_keeps_its_block_from_reuse() -> None:
    pool = CpuPool(None)
    storage = pool.allocate(300, "device")
    view = storage.bytes()
    assert view.nbytes == 300
    assert view.ctypes.data % 64 == 0
    del storage
    assert counts(pool)[0] == 320
    del view
    assert counts(pool)[:2] == (0, 320)


def test_a_pool_takes_no_negative_budget() -> None:
    CpuPool(0)
    with pytest.raises(tg.InvalidArgumentError, match=r"^pool: the budget is -1, and must be 0 or more bytes$"):
        CpuPool(-1)


def test_memory_that_came_back_serves_the_next_allocation_without_anybody_counting_first() -> None:
    pool = CpuPool(1024)
    first = pool.allocate(1024, "device")
    address = first.bytes().ctypes.data
    del first
    second = pool.allocate(1024, "device")
    assert second.bytes().ctypes.data == address
    del second
    pool.trim()
    assert counts(pool) == (0, 0, 1024, 2, 1)
