"""Arguments at their very edges: URIs, ranges, shapes, constants, sizes of blocks, and the counts of a pool."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate._core.buffer import checked_int, checked_range, checked_shape, host_bytes_of
from tidegate._core.checks import checked_copy, checked_counts, checked_fill, checked_pattern
from tidegate._core.kernel import Function, checked_workgroups
from tidegate._core.registry import parse_uri
from tidegate._core.timeline import checked_value
from tidegate.drivers.block_pool import size_class
from tidegate.drivers.cpu.memory import CpuPool

from .raising import refused

# URIs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "driver", "path", "options"),
    [
        ("cpu", "cpu", "", {}),
        ("cpu:0", "cpu", "0", {}),
        ("cpu:a:b", "cpu", "a:b", {}),
        ("cpu?", "cpu", "", {}),
        ("cpu:1?workers=4&memory=64MiB", "cpu", "1", {"workers": "4", "memory": "64MiB"}),
        ("cpu?empty=", "cpu", "", {"empty": ""}),
        ("cpu?a=b=c", "cpu", "", {"a": "b=c"}),
        ("cpu?a=b?c", "cpu", "", {"a": "b?c"}),
        ("auto?workers=1", "auto", "", {"workers": "1"}),
    ],
)
def test_a_uri_is_taken_apart(uri: str, driver: str, path: str, options: dict[str, str]) -> None:
    request = parse_uri(uri)
    assert (request.uri, request.driver, request.path, request.options) == (uri, driver, path, options)


@pytest.mark.parametrize(
    ("uri", "error", "text"),
    [
        (7, TypeError, "a device URI is a string, not int"),
        ("", tg.InvalidArgumentError, "the device URI '' names no driver: write 'cpu' or 'cpu?workers=4'"),
        (":0", tg.InvalidArgumentError, "the device URI ':0' names no driver: write 'cpu' or 'cpu?workers=4'"),
        ("?a=1", tg.InvalidArgumentError, "the device URI '?a=1' names no driver: write 'cpu' or 'cpu?workers=4'"),
        (
            "cpu?a",
            tg.InvalidArgumentError,
            "the options of the device URI 'cpu?a' must be name=value pairs, not 'a'",
        ),
        (
            "cpu?=1",
            tg.InvalidArgumentError,
            "the options of the device URI 'cpu?=1' must be name=value pairs, not '=1'",
        ),
        (
            "cpu?a=1&",
            tg.InvalidArgumentError,
            "the options of the device URI 'cpu?a=1&' must be name=value pairs, not ''",
        ),
        ("cpu?a=1&b=2&a=3", tg.InvalidArgumentError, "the device URI 'cpu?a=1&b=2&a=3' gives the option 'a' twice"),
    ],
)
def test_a_bad_uri_is_refused_in_these_words(uri: Any, error: type[BaseException], text: str) -> None:
    with refused(error, text):
        parse_uri(uri)


# Payloads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 2, np.uint64(2**64 - 2), np.int8(3)])
def test_every_payload_up_to_the_top_is_taken_as_an_exact_int(value: Any) -> None:
    found = checked_value(value, "it")
    assert found == value
    assert type(found) is int


@pytest.mark.parametrize("value", [-1, 2**64 - 1])
def test_payloads_just_outside_are_refused(value: int) -> None:
    with refused(tg.InvalidArgumentError, f"it: the value is {value}, and must be in 0..2**64-2"):
        checked_value(value, "it")


@pytest.mark.parametrize(("value", "name"), [(True, "bool"), (1.0, "float"), ("1", "str"), (None, "NoneType")])
def test_payloads_that_are_no_integers_are_refused(value: Any, name: str) -> None:
    with refused(TypeError, f"it: the value must be an int, not {name}"):
        checked_value(value, "it")


# Ranges ------------------------------------------------------------------------------------------------------------


def span(nbytes: int, offset: int = 0, memory: Any = None) -> Any:
    memory = memory or SimpleNamespace(describe=lambda: "it")
    return SimpleNamespace(nbytes=nbytes, _memory=memory, _offset=offset)


@pytest.mark.parametrize(
    ("offset", "length", "found"),
    [
        (0, None, (0, 16)),
        (0, 16, (0, 16)),
        (16, None, (16, 0)),
        (16, 0, (16, 0)),
        (15, 1, (15, 1)),
        (0, 0, (0, 0)),
        (np.int64(4), np.uint8(12), (4, 12)),
    ],
)
def test_ranges_that_lie_within_are_taken(offset: Any, length: Any, found: tuple[int, int]) -> None:
    taken = checked_range(span(16), offset, length)
    assert taken == found
    assert [type(number) for number in taken] == [int, int]


@pytest.mark.parametrize(
    ("offset", "length", "told"),
    [(0, 17, "0..17"), (16, 1, "16..17"), (17, None, "17..16"), (17, 0, "17..17"), (-1, 4, "-1..3"), (4, -1, "4..3")],
)
def test_ranges_one_byte_outside_are_refused(offset: int, length: int | None, told: str) -> None:
    with refused(tg.OutOfRangeError, f"it: the range {told} does not lie within its 16 bytes"):
        checked_range(span(16), offset, length)


@pytest.mark.parametrize(("value", "name"), [(True, "bool"), (1.0, "float"), ("1", "str"), (None, "NoneType")])
def test_integers_are_not_made_of_other_things(value: Any, name: str) -> None:
    with refused(TypeError, f"the size must be an int, not {name}"):
        checked_int(value, "size")


@pytest.mark.parametrize(
    ("dtype", "shape", "dims"),
    [
        (np.float32, None, (4,)),
        (np.uint8, None, (16,)),
        (np.float32, 4, (4,)),
        (np.float32, (2, 2), (2, 2)),
        (np.float32, [1, 3], (1, 3)),
        (np.float32, (), ()),
        (np.float32, 0, (0,)),
        (np.float32, (0, 2**40), (0, 2**40)),
        (np.complex128, 1, (1,)),
    ],
)
def test_shapes_that_fit_are_taken(dtype: Any, shape: Any, dims: tuple[int, ...]) -> None:
    assert checked_shape(span(16), dtype, shape) == (np.dtype(dtype), dims)


@pytest.mark.parametrize(
    ("nbytes", "dtype", "shape", "error", "text"),
    [
        (16, "f4", 5, tg.OutOfRangeError, "it: an array (5,) of float32 needs 20 bytes, and there are 16"),
        (16, "u1", 17, tg.OutOfRangeError, "it: an array (17,) of uint8 needs 17 bytes, and there are 16"),
        (15, "u1", (4, 4), tg.OutOfRangeError, "it: an array (4, 4) of uint8 needs 16 bytes, and there are 15"),
        (3, "f4", (), tg.OutOfRangeError, "it: an array () of float32 needs 4 bytes, and there are 3"),
        (16, "u1", (-1, 0), tg.InvalidArgumentError, "it: the shape (-1, 0) has a negative length"),
        (15, "f4", None, tg.InvalidArgumentError, "it: 15 bytes are not a multiple of float32, which has 4"),
        (16, "V0", None, tg.InvalidArgumentError, "it: 16 bytes are not a multiple of |V0, which has 0"),
        (16, "O", 1, tg.InvalidArgumentError, "it: dtype object holds Python objects"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    nbytes: int, dtype: str, shape: Any, error: type[BaseException], text: str
) -> None:
    with refused(error, text):
        checked_shape(span(nbytes), dtype, shape)


def test_a_subspan_of_a_subspan_is_measured_from_the_buffer_and_bounded_by_its_parent() -> None:
    with tg.open_device("cpu?workers=1") as device:
        outer = device.allocate(64).subspan(16, 32)
        inner = outer.subspan(8)
        assert (inner.offset, inner.nbytes) == (24, 24)
        assert (outer.subspan(32).offset, outer.subspan(32).nbytes) == (48, 0)
        with pytest.raises(tg.OutOfRangeError):
            outer.subspan(8, 25)


@pytest.mark.parametrize(("first", "second"), [(0, 4), (4, 0)])
def test_copies_that_touch_are_taken_and_copies_that_share_a_byte_are_refused(first: int, second: int) -> None:
    memory = SimpleNamespace(describe=lambda: "it")
    checked_copy(span(4, first, memory), span(4, second, memory))
    checked_copy(span(5, first), span(5, second))  # of different buffers
    with refused(tg.InvalidArgumentError, f"copy within it: the ranges at {first} and {second} of 5 bytes overlap"):
        checked_copy(span(5, first, memory), span(5, second, memory))


@pytest.mark.parametrize(
    ("pattern", "data"),
    [(0, b"\0"), (255, b"\xff"), (b"ab", b"ab"), (bytearray(b"abcd"), b"abcd"), (np.uint8(9), b"\t")],
)
def test_fill_patterns_at_their_edges_are_taken(pattern: Any, data: bytes) -> None:
    assert checked_pattern(pattern) == data


@pytest.mark.parametrize("pattern", [-1, 256, b"", b"abc", b"abcde"])
def test_fill_patterns_just_outside_are_refused(pattern: Any) -> None:
    with pytest.raises(tg.InvalidArgumentError):
        checked_pattern(pattern)


@pytest.mark.parametrize(("offset", "nbytes", "fits"), [(0, 0, True), (4, 8, True), (2, 8, False), (4, 6, False)])
def test_fills_are_aligned_in_offset_and_length(offset: int, nbytes: int, fits: bool) -> None:
    if fits:
        checked_fill(span(nbytes, offset), b"abcd")
    else:
        with pytest.raises(tg.InvalidArgumentError, match=f"offset {offset} and length {nbytes}"):
            checked_fill(span(nbytes, offset), b"abcd")
    checked_fill(span(nbytes, offset), b"ab")


def test_indirect_counts_are_aligned_to_four_bytes() -> None:
    checked_counts(0)
    checked_counts(4)
    for offset in (1, 2, 3, 5):
        with pytest.raises(tg.InvalidArgumentError, match=f"at byte {offset},"):
            checked_counts(offset)


def test_host_data_is_taken_in_c_order_without_a_copy_where_it_is_contiguous() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert np.shares_memory(host_bytes_of(array, "it"), array)
    assert host_bytes_of(array.T, "it").tobytes() == array.T.tobytes()
    assert host_bytes_of(b"abc", "it").tobytes() == b"abc"
    assert host_bytes_of(np.float32(1), "it").tobytes() == np.float32(1).tobytes()
    with refused(TypeError, "it takes an array or another object with a buffer, not int"):
        host_bytes_of(3, "it")
    with refused(TypeError, "it: the array holds Python objects, not numbers"):
        host_bytes_of(np.array([None]), "it")


# Constants ---------------------------------------------------------------------------------------------------------


def convert(kind: Any, value: Any) -> Any:
    function = Function(None, SimpleNamespace(name="f", constants=(np.dtype(kind),)))  # type: ignore[arg-type]
    (found,) = function.convert_constants([value])
    return found


INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]


@pytest.mark.parametrize("kind", INTEGERS)
def test_an_integer_constant_takes_both_ends_of_its_type_and_nothing_beyond(kind: str) -> None:
    limits = np.iinfo(kind)
    for edge in (limits.min, limits.max):
        found = convert(kind, edge)
        assert (found, found.dtype) == (edge, np.dtype(kind))
    for beyond in (limits.min - 1, limits.max + 1):
        with refused(
            tg.InvalidArgumentError,
            f"function 'f': constant 0 is {beyond}, which does not fit {np.dtype(kind)}: {limits.min}..{limits.max}",
        ):
            convert(kind, beyond)


@pytest.mark.parametrize("value", [False, True, 0, 1, np.bool_(True), np.int8(1)])
def test_a_boolean_constant_is_zero_or_one(value: Any) -> None:
    found = convert("?", value)
    assert (bool(found), found.dtype) == (bool(value), np.dtype("?"))


@pytest.mark.parametrize("value", [-1, 2])
def test_a_boolean_constant_is_nothing_else(value: int) -> None:
    with refused(tg.InvalidArgumentError, f"function 'f': constant 0 is {value}, which does not fit bool: 0..1"):
        convert("?", value)


@pytest.mark.parametrize("value", [1.0, np.float32(1), "1", None, 1j])
def test_an_integer_constant_is_not_made_of_another_kind_of_thing(value: Any) -> None:
    with refused(TypeError, f"function 'f': constant 0 must be int32, not {type(value).__name__}"):
        convert("i4", value)


def test_numpy_booleans_count_as_integers() -> None:
    assert convert("u1", np.bool_(True)) == 1


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_a_real_constant_takes_its_ends_infinities_and_nan(kind: str) -> None:
    limits = np.finfo(kind)
    for value in (float(limits.min), float(limits.max), 0, -0.0, np.inf, -np.inf, 1, True, np.float32(0.5)):
        found = convert(kind, value)
        assert (found, found.dtype) == (value, np.dtype(kind))
    assert np.isnan(convert(kind, np.nan))


@pytest.mark.parametrize(("kind", "value"), [("f2", 65520.0), ("f2", -65520.0), ("f4", 3.5e38), ("f4", -1e300)])
def test_a_finite_value_that_overflows_a_real_constant_is_refused(kind: str, value: float) -> None:
    with refused(tg.InvalidArgumentError, f"function 'f': constant 0 is {value}, which does not fit {np.dtype(kind)}"):
        convert(kind, value)


def test_the_last_value_that_rounds_into_range_is_taken() -> None:
    assert convert("f2", 65519.99) == np.float16(65504)


@pytest.mark.parametrize("value", ["1", b"2", None, [1.0]])
def test_a_real_constant_is_not_made_of_text_or_lists(value: Any) -> None:
    with refused(TypeError, f"function 'f': constant 0 must be float32, not {type(value).__name__}"):
        convert("f4", value)


def test_a_real_constant_is_single_and_not_complex() -> None:
    with refused(TypeError, "function 'f': constant 0 must be a single float32, not an array of shape (1,)"):
        convert("f4", np.ones(1))
    with pytest.raises(TypeError):
        convert("f4", 1j)
    assert convert("c8", 1 + 2j) == np.complex64(1 + 2j)


PAIR = np.dtype([("a", "i4"), ("b", "f4")])


def test_a_struct_constant_takes_a_tuple_or_its_own_type() -> None:
    assert convert(PAIR, (1, 2.5)).item() == (1, 2.5)
    assert convert(PAIR, np.array((3, 4), PAIR)).item() == (3, 4.0)
    assert convert(PAIR, np.array([(3, 4)], PAIR)[0]).dtype == PAIR


@pytest.mark.parametrize("value", [(1, 2, 3), "text", ("x", 1)])
def test_a_struct_constant_of_the_wrong_shape_is_refused(value: Any) -> None:
    with refused(TypeError, f"function 'f': constant 0 must be {PAIR}, not {value!r}"):
        convert(PAIR, value)


def test_a_struct_constant_of_another_type_or_of_many_is_refused() -> None:
    with refused(TypeError, f"function 'f': constant 0 must be {PAIR}, not int32"):
        convert(PAIR, np.int32(1))
    with refused(TypeError, f"function 'f': constant 0 must be a single {PAIR}, not an array of shape (2,)"):
        convert(PAIR, np.zeros(2, PAIR))


def test_other_types_of_constants_are_not_supported() -> None:
    with refused(tg.InvalidArgumentError, "function 'f': constant 0: constants of type <U3 are not supported"):
        convert("U3", "abc")


def test_the_number_of_constants_is_checked_and_each_is_named_by_its_place() -> None:
    function = Function(None, SimpleNamespace(name="f", constants=(np.dtype("i4"),) * 2))  # type: ignore[arg-type]
    for given in ([], [1], [1, 2, 3]):
        with refused(tg.InvalidArgumentError, f"function 'f' takes 2 constants, and {len(given)} were given"):
            function.convert_constants(given)
    with pytest.raises(TypeError, match="constant 1 must be int32, not str"):
        function.convert_constants([1, "2"])
    unknown = Function(None, SimpleNamespace(name="f", constants=None))  # type: ignore[arg-type]
    assert unknown.convert_constants([1, "as it is"]) == (1, "as it is")


@pytest.mark.parametrize(
    ("value", "counts"),
    [(0, (0, 1, 1)), (5, (5, 1, 1)), ((2, 3), (2, 3, 1)), ([1, 2, 3], (1, 2, 3)), (2**32 - 1, (2**32 - 1, 1, 1))],
)
def test_one_to_three_workgroup_counts_become_three(value: Any, counts: tuple[int, int, int]) -> None:
    assert checked_workgroups(value, "it") == counts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((), "it: 0 counts were given, and one to three are needed"),
        ((1, 1, 1, 1), "it: 4 counts were given, and one to three are needed"),
        (-1, "it: the count -1 must be in 0..2**32-1"),
        (2**32, "it: the count 4294967296 must be in 0..2**32-1"),
        ((1, 1, -1), "it: the count -1 must be in 0..2**32-1"),
    ],
)
def test_other_workgroup_counts_are_refused(value: Any, text: str) -> None:
    with refused(tg.InvalidArgumentError, text):
        checked_workgroups(value, "it")


@pytest.mark.parametrize(("items", "groups"), [(0, 0), (1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_workgroups_cover_the_items_and_no_more(items: int, groups: int) -> None:
    function = Function(None, SimpleNamespace(name="f", workgroup=(64, 2, 1)))  # type: ignore[arg-type]
    assert function.workgroups_for(items) == (groups, 1, 1)
    assert function.workgroups_for((items, 3)) == (groups, 2, 1)


# Blocks and pools --------------------------------------------------------------------------------------------------


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
    with refused(tg.ResourceExhaustedError, "cannot allocate 1 bytes: 1024 of a budget of 1024 are in use"):
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
    with refused(tg.InvalidArgumentError, "pool: the budget is -1, and must be 0 or more bytes"):
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


# Declarations ------------------------------------------------------------------------------------------------------


def test_a_kernel_keeps_what_it_declares() -> None:
    kernel = tg.Kernel("k", bindings=0, constants=["i4"], workgroup=(2, 3), cpu=len, other="source")
    assert (kernel.name, dict(kernel.implementations)) == ("k", {"cpu": len, "other": "source"})
    assert (kernel.signature.bindings, kernel.signature.workgroup) == (0, (2, 3, 1))
    assert kernel.signature.constants == (np.dtype("i4"),)
    assert repr(kernel) == "<tidegate.Kernel 'k' for cpu, other>"
    assert kernel.source_for("other") == "source"
    with refused(tg.UnsupportedError, "kernel 'k' has no implementation for 'cuda': it has cpu, other"):
        kernel.source_for("cuda")


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("a b", {"bindings": 0, "cpu": len}, "kernel 'a b': the name must be an identifier"),
        (3, {"bindings": 0, "cpu": len}, "kernel 3: the name must be an identifier"),
        ("k", {"bindings": -1, "cpu": len}, "kernel 'k': it declares -1 bindings, and must have 0..65536"),
        ("k", {"bindings": 0}, "kernel 'k': it needs an implementation for at least one driver"),
        (
            "k",
            {"bindings": 0, "cpu": len, "workgroup": (1, 0)},
            "kernel 'k': the workgroup (1, 0, 1) has a zero in it",
        ),
    ],
)
def test_a_kernel_that_makes_no_sense_is_refused(name: Any, options: dict[str, Any], text: str) -> None:
    with refused(tg.InvalidArgumentError, text):
        tg.Kernel(name, **options)


def test_the_number_of_bindings_is_checked_where_it_is_known() -> None:
    function = Function(None, SimpleNamespace(name="f", bindings=2))  # type: ignore[arg-type]
    function.check_bindings(2)
    for count in (0, 1, 3):
        with refused(tg.InvalidArgumentError, f"function 'f' takes 2 bindings, and {count} were given"):
            function.check_bindings(count)
    Function(None, SimpleNamespace(name="f", bindings=None)).check_bindings(9)  # type: ignore[arg-type]
