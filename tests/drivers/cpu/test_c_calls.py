"""C kernels for the CPU: how they are called."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from tidegate.drivers.cpu.c_source import compile_source
from tidegate.errors import (
    InvalidArgumentError,
    OutOfRangeError,
)

from .c_kernels import SAXPY, run

pytestmark = pytest.mark.usefixtures("compiler_present", "cache_directory")


def test_a_kernel_computes_over_its_bindings_and_constants():
    saxpy = compile_source(SAXPY).functions["saxpy"]
    x = np.arange(1000, dtype=np.float32)
    y = np.ones(1000, dtype=np.float32)
    run(saxpy, [x, y], [np.float32(2), np.uint32(1000)], count=(4, 1, 1), size=(256, 1, 1))
    np.testing.assert_array_equal(y, 2 * x + 1)


def test_workgroups_run_only_in_the_given_range():
    saxpy = compile_source(SAXPY).functions["saxpy"]
    x = np.ones(40, dtype=np.float32)
    y = np.zeros(40, dtype=np.float32)
    run(saxpy, [x, y], [np.float32(1), np.uint32(38)], count=(4, 1, 1), size=(10, 1, 1), span=(1, 4))
    assert y.tolist() == [0] * 10 + [1] * 28 + [0] * 2


def test_an_empty_range_runs_nothing():
    saxpy = compile_source(SAXPY).functions["saxpy"]
    y = np.zeros(4, dtype=np.float32)
    for count in [(0, 1, 1), (4, 0, 1), (4, 1, 1)]:
        run(saxpy, [y, y], [np.float32(1), np.uint32(4)], count=count, span=(0, 0))
    assert not y.any()


@pytest.mark.parametrize("split", [0, 1, 5, 11, 23, 24])
def test_the_flat_index_counts_x_fastest_wherever_a_range_begins(split):
    ids = compile_source(
        """
        tidegate_kernel void ids(uint32_t *out) {
            uint32_t *id = tidegate_group.id, *count = tidegate_group.count, *size = tidegate_group.size;
            uint32_t flat = id[0] + count[0] * (id[1] + count[1] * id[2]);
            for (int i = 0; i < 3; ++i) out[6 * flat + i] = id[i], out[6 * flat + 3 + i] = size[i];
        }"""
    ).functions["ids"]
    out = np.zeros((4, 3, 2, 6), dtype=np.uint32)
    for span in [(split, 24), (0, split)]:
        run(ids, [out], count=(2, 3, 4), size=(7, 8, 9), span=span)
    for z, y, x in np.ndindex(4, 3, 2):
        assert out[z, y, x].tolist() == [x, y, z, 7, 8, 9]


def test_flat_indices_beyond_32_bits_are_told_right():
    where = compile_source(
        "tidegate_kernel void where(uint32_t *out) { for (int i = 0; i < 3; ++i) out[i] = tidegate_group.id[i]; }"
    ).functions["where"]
    out = np.zeros(3, dtype=np.uint32)
    first = 5 + 2**31 * (1 + 3 * 6)
    run(where, [out], count=(2**31, 3, 7), span=(first, first + 1))
    assert out.tolist() == [5, 1, 6]


def test_shares_of_negative_and_uneven_counts_are_cut_off():
    marks = compile_source(
        "tidegate_kernel void mark(uint8_t *out, int n) { tidegate_for(i, n) tidegate_for(j, 1) out[i]++; }"
    ).functions["mark"]
    for n, expected in [(-5, 0), (0, 0), (1, 1), (7, 7), (8, 8)]:
        out = np.zeros(8, dtype=np.uint8)
        run(marks, [out], [np.int32(n)], count=(3, 1, 1), size=(8, 1, 1))
        assert out.tolist() == [1] * expected + [0] * (8 - expected)


def test_local_memory_is_aligned_writable_and_absent_when_not_asked_for():
    probe = compile_source(
        """
        #include <string.h>
        tidegate_kernel void probe(uint64_t *out) {
            out[0] = (uintptr_t)tidegate_group.local % 64;
            out[1] = tidegate_group.local_bytes;
            out[2] = tidegate_group.local != NULL;
            if (tidegate_group.local) memset(tidegate_group.local, 1, tidegate_group.local_bytes);
        }"""
    ).functions["probe"]
    out = np.full(3, 99, dtype=np.uint64)
    for local_bytes in [1, 63, 64, 100_000, 0]:
        run(probe, [out], local_bytes=local_bytes)
        assert out.tolist() == [0, local_bytes, local_bytes > 0]


def test_no_room_for_local_memory_is_told_and_runs_nothing():
    # Under a limit on address space, in a process of its own, asking for almost 4 GiB must fail.
    program = f"""
import resource
import numpy as np
from tidegate.drivers.cpu.c_source import compile_source
from tidegate.errors import ResourceExhaustedError
saxpy = compile_source({SAXPY!r}).functions["saxpy"]
y = np.zeros(4, dtype=np.float32)
prepared = saxpy.prepare([y.ctypes.data] * 2, [np.float32(1), np.uint32(4)])
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
try:
    saxpy.run(*prepared, (4, 1, 1), (1, 1, 1), 2**32 - 1, 0, 4)
except ResourceExhaustedError as error:
    print(error, y.any())
"""
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "saxpy: no memory for 4294967295 bytes of local memory False"


def test_threads_run_at_once_each_with_its_own_workgroup():
    # Each call waits inside C for the other: this ends only if the foreign call lets other threads run.
    meet = compile_source(
        """
        tidegate_kernel void meet(uint32_t *arrived, uint32_t *out, uint32_t me) {
            __atomic_add_fetch(arrived, 1, __ATOMIC_SEQ_CST);
            for (long spins = 0; __atomic_load_n(arrived, __ATOMIC_SEQ_CST) < 2 && spins < 4000000000; ++spins) {}
            out[me] = tidegate_group.id[0] + 100 * tidegate_group.local_bytes;
        }"""
    ).functions["meet"]
    arrived, out = np.zeros(1, dtype=np.uint32), np.zeros(2, dtype=np.uint32)
    threads = [
        threading.Thread(
            target=run,
            args=(meet, [arrived, out], [np.uint32(me)]),
            kwargs={"count": (9, 1, 1), "span": (me + 3, me + 4), "local_bytes": me + 1},
            daemon=True,
        )
        for me in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert out.tolist() == [103, 204]


def test_counts_that_do_not_fit_are_refused():
    saxpy = compile_source(SAXPY).functions["saxpy"]
    prepared = saxpy.prepare([0, 0], [np.float32(0), np.uint32(0)])
    for count, local_bytes in [((2**32, 1, 1), 0), ((1, -1, 1), 0), ((1, 1, 1), 2**32)]:
        with pytest.raises(OutOfRangeError, match="32 bits"):
            saxpy.run(*prepared, count, (1, 1, 1), local_bytes, 0, 0)


def test_prepared_constants_are_copies_that_live_as_long_as_what_points_at_them():
    store = compile_source("tidegate_kernel void store(double *out, double v) { *out = v; }").functions["store"]
    out = np.zeros(1)
    value = np.full(1, 4.5)
    prepared = store.prepare([out.ctypes.data], [value])
    value[0] = 0
    del value
    store.run(*prepared, (1, 1, 1), (1, 1, 1), 0, 0, 1)
    assert out[0] == 4.5


def test_wrong_numbers_of_bindings_and_sizes_of_constants_are_refused():
    saxpy = compile_source(SAXPY).functions["saxpy"]
    with pytest.raises(InvalidArgumentError, match="saxpy takes 2 bindings, got 1"):
        saxpy.prepare([0], [np.float32(0), np.uint32(0)])
    with pytest.raises(InvalidArgumentError, match=r"\[4, 4\] bytes, got \[8, 4\]"):
        saxpy.prepare([0, 0], [np.float64(0), np.uint32(0)])
    with pytest.raises(InvalidArgumentError, match=r"got \[4\]"):
        saxpy.prepare([0, 0], [np.float32(0)])
