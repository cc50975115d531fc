"""C kernels for the CPU: what is found in a source, and what is refused."""

import numpy as np
import pytest

from tidegate.drivers.cpu.c_reflect import find_entries
from tidegate.drivers.cpu.c_source import compile_source
from tidegate.errors import (
    CompileError,
    InvalidArgumentError,
)

from .c_kernels import SAXPY, run

pytestmark = pytest.mark.usefixtures("compiler_present", "cache_directory")


# What is found -------------------------------------------------------------------------------------------------------


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


def test_comments_and_strings_hide_nothing_that_follows_them():
    text = 'char q = \'"\'; char *s = "\\"//"; tidegate_kernel void f(int *x /* first */, int n // last\n) {}'
    (entry,) = find_entries(text)
    assert (entry.name, entry.bindings, entry.constants) == ("f", 1, ("int",))


# What is refused -----------------------------------------------------------------------------------------------------


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
