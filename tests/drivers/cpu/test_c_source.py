"""C kernels for the CPU: what is found in a source, how it is called, and what is kept of it."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tidegate._core import kernel_cache
from tidegate.drivers.cpu import c_cache, c_compiler, c_source
from tidegate.drivers.cpu.c_reflect import find_entries
from tidegate.drivers.cpu.c_source import CFunction, compile_source
from tidegate.errors import (
    CompileError,
    DriverUnavailableError,
    InvalidArgumentError,
    OutOfRangeError,
)

SAXPY = """
tidegate_kernel void saxpy(const float *x, float *y, float a, uint32_t n) {
    tidegate_for(i, n) y[i] += a * x[i];
}
"""


@pytest.fixture(autouse=True, scope="module")
def compiler_present():
    try:
        c_compiler.find_compiler()
    except DriverUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def cache_directory(tmp_path_factory, monkeypatch):
    """A cache of this test's own, in a directory nobody else may write to."""
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(directory))
    monkeypatch.delenv("CC", raising=False)
    return directory / "cpu"


def run(function: CFunction, arrays, constants=(), count=(1, 1, 1), size=(1, 1, 1), local_bytes=0, span=None):
    prepared = function.prepare([array.ctypes.data for array in arrays], constants)
    begin, end = span or (0, count[0] * count[1] * count[2])
    function.run(*prepared, count, size, local_bytes, begin, end)


def count_compilations(monkeypatch):
    calls = []
    original = c_compiler.Compiler.build

    def build(self, *arguments):
        calls.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(c_compiler.Compiler, "build", build)
    return calls


def records(directory: Path):
    return sorted(directory.glob("*.json"))


# What is called


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


# What is found in a source


def test_the_compiler_tells_the_type_of_each_constant():
    library = compile_source(
        """
        typedef float real; typedef uint16_t small; enum colour { RED };
        #define REAL double
        tidegate_kernel void kinds(
            bool a, char b, signed char c, unsigned char d, short e, unsigned short int f, int g, unsigned h, long i,
            unsigned long j, long long k, size_t l, float m, REAL n, real o, const small p, enum colour q, int8_t r,
            float _Complex s, ptrdiff_t t, volatile uint64_t const u) {}"""
    )
    expected = "?1 i1 i1 u1 i2 u2 i4 u4 i8 u8 i8 u8 f4 f8 f4 u2 u4 i1 c8 i8 u8".split()  # noqa: SIM905
    function = library.functions["kinds"]
    assert function.bindings == 0
    assert [f"{t.kind if t.kind != 'b' else '?'}{t.itemsize}" for t in function.constants] == expected
    assert function.constant_sizes == tuple(int(word[1:]) for word in expected)


def test_structs_pass_by_value_and_tell_their_size():
    library = compile_source(
        """
        typedef struct { float scale; double offset; } pair_t;
        struct odd { char text[3]; };
        tidegate_kernel void apply(double *out, pair_t p, const struct odd o, uint8_t last) {
            out[0] = p.scale, out[1] = p.offset, out[2] = o.text[2], out[3] = last;
        }"""
    )
    apply = library.functions["apply"]
    assert apply.constants == (None, None, np.dtype(np.uint8))
    assert apply.constant_sizes == (16, 3, 1)
    pair = np.array((2.5, 0.125), dtype=np.dtype([("scale", "f4"), ("offset", "f8")], align=True))
    out = np.zeros(4)
    run(apply, [out], [pair, b"\1\2\3", np.uint8(200)])
    assert out.tolist() == [2.5, 0.125, 3, 200]


def test_every_form_of_pointer_is_a_binding():
    library = compile_source(
        """
        struct item { int a; };
        tidegate_kernel void
        many(const float *restrict a, float* b, void *c, struct item *d, int e[], const int f[4],
             volatile uint8_t * const g, char **h, uint32_t n) { (void)a; }"""
    )
    assert (library.functions["many"].bindings, library.functions["many"].constant_sizes) == (8, (4,))


def test_several_entry_points_of_one_source_are_told_in_order():
    library = compile_source(
        """
        static float twice(float v) { return 2 * v; }
        tidegate_kernel void second(float *y);
        tidegate_kernel void first(float *y) { y[0] = twice(y[0]); }
        tidegate_kernel void second(float *y) { y[0] += 1; }
        tidegate_kernel void nothing(void) {}
        tidegate_kernel void less() {}
        """
    )
    assert list(library.functions) == ["first", "second", "nothing", "less"]
    y = np.full(1, 5, dtype=np.float32)
    run(library.functions["first"], [y])
    run(library.functions["second"], [y])
    run(library.functions["nothing"], [])
    assert y[0] == 11


def test_entry_points_come_from_what_the_preprocessor_leaves():
    library = compile_source(
        """
        // tidegate_kernel void commented(int *x) {}
        /* tidegate_kernel void blocked(float a, int *x) {} */
        static const char *text = "tidegate_kernel void quoted(int *x) {} \\" '";
        static char quote = '"';
        #if 0
        tidegate_kernel void absent(float a, int *x) {}
        #endif
        #ifdef WANTED
        tidegate_kernel void wanted(int *x) { *x = WANTED; }
        #endif
        #define MAKE(T) tidegate_kernel void add_##T(T *x) { *x += sizeof(T) + (text[0] == quote); }
        MAKE(int16_t)
        MAKE(double)
        """,
        options=["-DWANTED=7"],
    )
    assert list(library.functions) == ["wanted", "add_int16_t", "add_double"]
    x = np.zeros(1, dtype=np.int32)
    run(library.functions["wanted"], [x])
    assert x[0] == 7


def test_names_and_macros_of_the_source_do_not_meet_the_generated_code():
    library = compile_source(
        """
        #define count 3
        #define size error here
        #define local error here
        tidegate_kernel void bindings(int *constants, int block) { *constants = block + count; }
        tidegate_kernel void end(int *x) { *x = 1; }
        """
    )
    x = np.zeros(1, dtype=np.int32)
    run(library.functions["bindings"], [x], [np.int32(4)])
    assert x[0] == 7
    run(library.functions["end"], [x])
    assert x[0] == 1


def test_a_source_may_include_the_header_by_name_as_well():
    assert "saxpy" in compile_source(f'#include "tidegate_kernel.h"\n{SAXPY}').functions


def test_products_are_rounded_as_numpy_rounds_them():
    source = "tidegate_kernel void fma(const float *x, float *y, float a) { y[0] = a * x[0] + y[0]; }"
    source = source.replace("fma", "axpy")
    a, x, y = np.float32(1 + 2**-12), np.full(1, 1 + 2**-12, np.float32), np.full(1, -1, np.float32)
    expected = a * x + y
    run(compile_source(source).functions["axpy"], [x, y], [a])
    assert y[0] == expected[0]


# What is refused


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "no entry point"),
        ("int f(void) { return 1; }", "no entry point"),
        ("tidegate_kernel void f(int);", "no entry point"),
        ("tidegate_kernel int f(int *x) { return 1; }", "must be followed by 'void name"),
        ("tidegate_kernel static void f(int *x) {}", "must be followed by 'void name"),
        ("tidegate_kernel void f(int n, float *x) {}", "pointers must come first"),
        ("tidegate_kernel void f(int (*g)(int)) {}", "neither a plain pointer nor a plain value"),
        ("tidegate_kernel void f(struct { int a; } s) {}", "neither a plain pointer nor a plain value"),
        ("tidegate_kernel void f(int n, ...) {}", "neither a plain pointer nor a plain value"),
        ("tidegate_kernel void f(unsigned int) {}", "needs a type and a name"),
        ("tidegate_kernel void f(float) {}", "needs a type and a name"),
        ("tidegate_kernel void f(int *x", "not closed"),
        ("tidegate_kernel void f(int *x) {}\ntidegate_kernel void f(int *x) {}", "defined twice"),
        ("typedef float *floats; tidegate_kernel void f(floats x) {}", "'floats' hides a pointer"),
        ("tidegate_kernel void f(int *x) { *x = y; }", "undeclared"),
        ("tidegate_kernel void f(int *x) { *x = missing(); }", "missing"),
        ("int missing(void); tidegate_kernel void f(int *x) { *x = missing(); }", "missing"),
        ("#include <no/such/header.h>\ntidegate_kernel void f(int *x) {}", "no/such/header.h"),
    ],
)
def test_a_source_that_cannot_be_used_is_a_compile_error_with_its_log(source, message, cache_directory):
    with pytest.raises(CompileError, match=r"^my kernel: ") as caught:
        compile_source(source, label="my kernel")
    assert message in str(caught.value) or message in caught.value.log
    assert caught.value.log
    assert list(cache_directory.iterdir()) == []


def test_the_log_has_the_line_numbers_of_the_source():
    with pytest.raises(CompileError) as caught:
        compile_source("\n\ntidegate_kernel void f(int *x) {\n  *x = wrong;\n}\n")
    assert "kernel.c:4:" in caught.value.log
    assert "kernel.c:4:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_warnings_do_not_fail():
    assert compile_source("tidegate_kernel void f(int *x) { int unused; char *p = x; }", options=["-Wall"]).functions


@pytest.mark.parametrize(
    "option", ["-o/tmp/x", "fast", "", "@file", "--help", "-c", "-E", "-x", "workgroup=4", "-shared"]
)
def test_an_option_of_no_known_kind_is_refused(option):
    with pytest.raises(InvalidArgumentError, match="unknown option"):
        compile_source(SAXPY, options=[option])


@pytest.mark.parametrize("option", ["-fno-such-flag", "-mno-such-machine", "-std=klingon", "-march=abacus"])
def test_an_option_that_the_compiler_refuses_is_named(option):
    with pytest.raises(InvalidArgumentError, match=option):
        compile_source(SAXPY, options=[option])


def test_an_option_must_be_a_string():
    with pytest.raises(TypeError):
        compile_source(SAXPY, options=[3])


def test_fast_math_does_not_reach_the_rest_of_the_process():
    tiny = np.full(1, 1e-310)
    compile_source(SAXPY, options=["-ffast-math", "-Ofast"])
    assert (tiny / 2)[0] > 0


# The compiler


def test_no_compiler_is_an_error_that_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DriverUnavailableError, match="install gcc or clang"):
        compile_source(SAXPY)


def test_a_named_compiler_that_is_missing_is_not_replaced_by_another(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(DriverUnavailableError, match="no-such-compiler"):
        compile_source(SAXPY)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_that_does_not_work_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", script(tmp_path / "broken", "echo is broken >&2; exit 3"))
    with pytest.raises(DriverUnavailableError, match="is broken"):
        compile_source(SAXPY)


def test_a_compiler_may_be_named_with_arguments(monkeypatch):
    real = c_compiler.find_compiler().command[0]
    monkeypatch.setenv("CC", f"{real} -DFROM_CC=5")
    library = compile_source("tidegate_kernel void f(int *x) { *x = FROM_CC; }")
    x = np.zeros(1, dtype=np.int32)
    run(library.functions["f"], [x])
    assert x[0] == 5


def test_a_compiler_without_native_code_is_used_without_it(monkeypatch, tmp_path):
    real = c_compiler.find_compiler().command[0]
    refuse = 'for a in "$@"; do [ "$a" = -march=native ] && { echo "error: bad value for -march=" >&2; exit 1; }; done'
    monkeypatch.setenv("CC", script(tmp_path / "old", f'{refuse}\nexec {real} "$@"'))
    assert compile_source(SAXPY).functions


@pytest.mark.parametrize("step", ["version", "compiling"])
def test_a_compiler_that_does_not_end_is_given_up(step, monkeypatch, tmp_path):
    answer = "" if step == "version" else '[ "$1" = --version ] && exit 0\n'
    monkeypatch.setenv("CC", script(tmp_path / "endless", f"{answer}exec sleep 60"))
    monkeypatch.setattr(c_compiler, "_TIME_LIMIT_S", 0.1)
    with pytest.raises(CompileError, match="did not end within"):
        compile_source(SAXPY)


def test_a_compiler_that_cannot_be_started_is_told(monkeypatch, tmp_path):
    path = tmp_path / "empty"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    with pytest.raises(DriverUnavailableError, match="cannot be started as a C compiler"):
        compile_source(SAXPY)


def test_a_library_that_cannot_be_loaded_is_a_compile_error(tmp_path):
    (tmp_path / "junk.so").write_bytes(b"junk")
    with pytest.raises(CompileError, match="cannot be loaded"):
        c_source._load(tmp_path / "junk.so", [])


# What is kept


def test_the_same_source_is_compiled_once(monkeypatch):
    calls = count_compilations(monkeypatch)
    first, second = compile_source(SAXPY), compile_source(SAXPY)
    assert (len(calls), first.path) == (1, second.path)


@pytest.mark.slow
def test_another_process_finds_what_this_one_compiled(cache_directory):
    path = compile_source(SAXPY).path
    written = {file: file.stat().st_mtime_ns for file in cache_directory.iterdir()}
    program = f"from tidegate.drivers.cpu.c_source import compile_source; print(compile_source({SAXPY!r}).path)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(path)
    assert {file: file.stat().st_mtime_ns for file in cache_directory.iterdir()} == written


@pytest.mark.slow
def test_source_options_compiler_and_cpu_each_make_another_entry(monkeypatch, cache_directory, tmp_path):
    compile_source(SAXPY)
    compile_source(SAXPY + "\n")
    compile_source(SAXPY, options=["-DX"])
    monkeypatch.setenv("CPATH", str(tmp_path))
    compile_source(SAXPY)
    monkeypatch.delenv("CPATH")
    real = c_compiler.find_compiler().command[0]
    monkeypatch.setenv("CC", script(tmp_path / "other", f'exec {real} "$@"'))
    compile_source(SAXPY)
    monkeypatch.delenv("CC")
    monkeypatch.setattr(c_cache, "cpu_features", lambda: "abacus")
    compile_source(SAXPY)
    assert len(records(cache_directory)) == 6


def test_parts_of_a_key_do_not_run_into_one_another():
    assert c_cache.key_of("ab", "c") != c_cache.key_of("a", "bc")


def test_a_changed_include_is_compiled_again(tmp_path):
    include = tmp_path / "with space.h"
    source = '#include "with space.h"\ntidegate_kernel void f(int *x) { *x = NUMBER; }'
    x = np.zeros(1, dtype=np.int32)
    for number in (1, 2):
        include.write_text(f"#define NUMBER {number}")
        run(compile_source(source, options=[f"-I{tmp_path}"]).functions["f"], [x])
        assert x[0] == number
    include.unlink()
    with pytest.raises(CompileError):
        compile_source(source, options=[f"-I{tmp_path}"])


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"not a library", None])
def test_a_damaged_library_is_built_again(damage, monkeypatch):
    # Damaged before it is loaded: in the processes of this test each library is at a path of its own.
    monkeypatch.setattr(c_cache, "cpu_features", lambda: f"damage {damage!r}")
    program = f"""
from tidegate.drivers.cpu import c_cache
c_cache.cpu_features = lambda: {f"damage {damage!r}"!r}
from tidegate.drivers.cpu.c_source import compile_source
print(compile_source({SAXPY!r}).path)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    path = Path(done.stdout.strip())
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    calls = count_compilations(monkeypatch)
    y = np.zeros(1, dtype=np.float32)
    run(compile_source(SAXPY).functions["saxpy"], [y, y], [np.float32(1), np.uint32(1)])
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["", "[]", "{}", "\0", '{"library": 3}', '{"library": "../x.so", "digest": ""}'])
def test_a_damaged_record_is_built_again(damage, monkeypatch, cache_directory):
    compile_source(SAXPY)
    (record,) = records(cache_directory)
    record.write_text(damage)
    calls = count_compilations(monkeypatch)
    assert compile_source(SAXPY).functions
    assert len(calls) == 1
    assert json.loads(record.read_text())["digest"]


def test_a_record_cannot_name_a_library_outside_of_the_cache(monkeypatch, cache_directory, tmp_path):
    library = compile_source(SAXPY)
    (record,) = records(cache_directory)
    outside = tmp_path / "outside.so"
    outside.write_bytes(library.path.read_bytes())
    fields = json.loads(record.read_text())
    record.write_text(json.dumps({**fields, "library": str(outside)}))
    calls = count_compilations(monkeypatch)
    assert compile_source(SAXPY).path == library.path
    assert len(calls) == 1


def test_threads_that_want_the_same_source_compile_it_once(monkeypatch):
    calls = count_compilations(monkeypatch)
    paths = []
    start = threading.Barrier(8)

    def load():
        start.wait(30)
        paths.append(compile_source(SAXPY).path)

    threads = [threading.Thread(target=load, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(paths) == 8
    assert (len(set(paths)), len(calls)) == (1, 1)


@pytest.mark.slow
def test_processes_that_want_the_same_source_all_get_it(cache_directory):
    program = f"""
from tidegate.drivers.cpu.c_source import compile_source
print(sorted(compile_source({SAXPY!r}).functions))
"""
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["['saxpy']"] * 4
    assert len(records(cache_directory)) == 1
    assert not list(cache_directory.glob("build-*"))


def test_the_cache_is_private(cache_directory):
    old = os.umask(0)
    try:
        compile_source(SAXPY)
    finally:
        os.umask(old)
    assert stat.S_IMODE(cache_directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_cache_that_others_may_write_to_is_not_used(mode, cache_directory):
    cache_directory.mkdir(parents=True)
    cache_directory.chmod(mode)
    with pytest.warns(UserWarning, match="others may write to it") as warned:
        path = compile_source(SAXPY).path
    assert warned[0].filename == __file__
    assert cache_directory not in path.parents
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(cache_directory.iterdir()) == []


def test_a_cache_that_others_may_replace_is_not_used(cache_directory):
    cache_directory.parent.chmod(0o777)
    with pytest.warns(UserWarning, match="others may replace it"):
        assert cache_directory not in compile_source(SAXPY).path.parents


def test_a_link_to_a_cache_that_others_may_replace_is_not_used(cache_directory, tmp_path):
    (tmp_path / "open" / "cpu").mkdir(parents=True, mode=0o700)
    (tmp_path / "open").chmod(0o777)
    cache_directory.symlink_to(tmp_path / "open" / "cpu")
    with pytest.warns(UserWarning, match="others may replace it"):
        compile_source(SAXPY)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root may give a directory away")
def test_a_cache_in_a_directory_of_somebody_else_is_not_used(cache_directory):
    os.chown(cache_directory.parent, 12345, -1)
    with pytest.warns(UserWarning, match="user 12345 may replace it"):
        compile_source(SAXPY)


def test_missing_directories_of_the_cache_are_made(monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b" / "cpu") in compile_source(SAXPY).path.parents


def test_what_linux_says_of_the_first_cpu_counts_without_what_changes():
    lines = ["processor\t: 0\n", "flags\t\t: avx avx2\n", "cpu MHz\t\t: 2400.1\n", "\n", "processor\t: 1\n"]
    assert list(c_cache.read_cpuinfo(lines)) == ["processor=0", "flags=avx avx2"]


def test_a_cache_of_somebody_else_is_not_used(cache_directory, monkeypatch):
    compile_source(SAXPY)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.warns(UserWarning, match="it belongs to user"):
        assert cache_directory not in compile_source(SAXPY).path.parents


def test_a_cache_that_cannot_be_made_is_done_without(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="compiled kernels are not kept"):
        assert compile_source(SAXPY).functions


@pytest.mark.slow
def test_a_temporary_cache_goes_with_its_process_and_not_with_a_forked_child(tmp_path):
    (tmp_path / "file").write_text("in the way")
    program = f"""
import os, warnings
warnings.simplefilter("ignore")
from tidegate.drivers.cpu.c_source import compile_source
path = compile_source({SAXPY!r}).path
child = os.fork()
if child == 0:
    raise SystemExit
os.waitpid(child, 0)
print(path.exists(), path)
"""
    environment = {**os.environ, "TIDEGATE_CACHE_DIR": str(tmp_path / "file")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    there, path = done.stdout.split()
    assert there == "True"
    assert not Path(path).parent.exists()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TIDEGATE_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a/cpu"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/tidegate/cpu"),
        ({"XDG_CACHE_HOME": "b", "HOME": "/c"}, "/c/.cache/tidegate/cpu"),
        ({"TIDEGATE_CACHE_DIR": "", "HOME": "/c"}, "/c/.cache/tidegate/cpu"),
    ],
)
def test_the_cache_is_where_the_environment_says(variables, expected, monkeypatch):
    for name in ("TIDEGATE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(kernel_cache.wanted_directory("cpu")) == expected


def test_comments_and_strings_hide_nothing_that_follows_them():
    text = 'char q = \'"\'; char *s = "\\"//"; tidegate_kernel void f(int *x /* first */, int n // last\n) {}'
    (entry,) = find_entries(text)
    assert (entry.name, entry.bindings, entry.constants) == ("f", 1, ("int",))
