"""Arguments at their very edges: ranges, shapes, patterns, constants, workgroups and declarations (M16, M27)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.testing import ManualDevice

from .raising import refused

# Ranges ------------------------------------------------------------------------------------------------------------


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
def test_ranges_that_lie_within_are_taken(
    manual: ManualDevice, offset: Any, length: Any, found: tuple[int, int]
) -> None:
    buffer = manual.device.allocate(16)
    part = buffer.subspan(offset, length)
    assert (part.offset, part.nbytes) == found
    assert [type(number) for number in (part.offset, part.nbytes)] == [int, int]
    manual.queue.fill(buffer, 0, offset=offset, length=length)
    target: Any = manual.issued[0].work.target  # type: ignore[attr-defined]
    assert (target.locate()[1], target.nbytes) == found


@pytest.mark.parametrize(
    ("offset", "length", "told"),
    [(0, 17, "0..17"), (16, 1, "16..17"), (17, None, "17..16"), (17, 0, "17..17"), (-1, 4, "-1..3"), (4, -1, "4..3")],
)
def test_ranges_one_byte_outside_are_refused(manual: ManualDevice, offset: int, length: int | None, told: str) -> None:
    buffer = manual.device.allocate(16, label="b")
    for call in (
        lambda: buffer.subspan(offset, length),
        lambda: manual.queue.fill(buffer, 0, offset=offset, length=length),
        lambda: manual.queue.copy(buffer, manual.buffer, source_offset=offset, length=length),
    ):
        with refused(tg.OutOfRangeError, f"buffer 'b' of 16 bytes: the range {told} does not lie within its 16 bytes"):
            call()


@pytest.mark.parametrize(("value", "name"), [(True, "bool"), (1.0, "float"), ("1", "str"), (None, "NoneType")])
def test_integers_are_not_made_of_other_things(manual: ManualDevice, value: Any, name: str) -> None:
    with refused(TypeError, f"the size must be an int, not {name}"):
        manual.device.allocate(value)


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
def test_shapes_that_fit_are_taken(manual: ManualDevice, dtype: Any, shape: Any, dims: tuple[int, ...]) -> None:
    view = manual.device.allocate(16).view(dtype, shape)
    assert (view.dtype, view.shape) == (np.dtype(dtype), dims)


@pytest.mark.parametrize(
    ("nbytes", "dtype", "shape", "error", "text"),
    [
        (16, "f4", 5, tg.OutOfRangeError, "an array (5,) of float32 needs 20 bytes, and there are 16"),
        (16, "u1", 17, tg.OutOfRangeError, "an array (17,) of uint8 needs 17 bytes, and there are 16"),
        (15, "u1", (4, 4), tg.OutOfRangeError, "an array (4, 4) of uint8 needs 16 bytes, and there are 15"),
        (3, "f4", (), tg.OutOfRangeError, "an array () of float32 needs 4 bytes, and there are 3"),
        (16, "u1", (-1, 0), tg.InvalidArgumentError, "the shape (-1, 0) has a negative length"),
        (15, "f4", None, tg.InvalidArgumentError, "15 bytes are not a multiple of float32, which has 4"),
        (16, "V0", None, tg.InvalidArgumentError, "16 bytes are not a multiple of |V0, which has 0"),
        (16, "O", 1, tg.InvalidArgumentError, "dtype object holds Python objects"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    manual: ManualDevice, nbytes: int, dtype: str, shape: Any, error: type[BaseException], text: str
) -> None:
    buffer = manual.device.allocate(nbytes, label="b")
    with refused(error, f"buffer 'b' of {nbytes} bytes: {text}"):
        buffer.view(dtype, shape)


def test_a_subspan_of_a_subspan_is_measured_from_the_buffer_and_bounded_by_its_parent() -> None:
    with tg.open_device("cpu?workers=1") as device:
        outer = device.allocate(64).subspan(16, 32)
        inner = outer.subspan(8)
        assert (inner.offset, inner.nbytes) == (24, 24)
        assert (outer.subspan(32).offset, outer.subspan(32).nbytes) == (48, 0)
        with pytest.raises(tg.OutOfRangeError):
            outer.subspan(8, 25)


@pytest.mark.parametrize(("first", "second"), [(0, 4), (4, 0)])
def test_copies_that_touch_are_taken_and_copies_that_share_a_byte_are_refused(
    manual: ManualDevice, first: int, second: int
) -> None:
    def copy(length: int, target: tg.Buffer) -> None:
        manual.queue.copy(buffer, target, source_offset=first, target_offset=second, length=length)

    buffer = manual.device.allocate(16, label="b")
    copy(4, buffer)
    copy(5, manual.buffer)
    text = f"copy within buffer 'b' of 16 bytes: the ranges at {first} and {second} of 5 bytes overlap"
    with refused(tg.InvalidArgumentError, text):
        copy(5, buffer)


@pytest.mark.parametrize(
    ("pattern", "data"),
    [(0, b"\0"), (255, b"\xff"), (b"ab", b"ab"), (bytearray(b"abcd"), b"abcd"), (np.uint8(9), b"\t")],
)
def test_fill_patterns_at_their_edges_are_taken(manual: ManualDevice, pattern: Any, data: bytes) -> None:
    manual.queue.fill(manual.buffer, pattern)
    assert manual.issued[0].work.pattern == data  # type: ignore[attr-defined]


@pytest.mark.parametrize("pattern", [-1, 256, b"", b"abc", b"abcde"])
def test_fill_patterns_just_outside_are_refused(manual: ManualDevice, pattern: Any) -> None:
    with pytest.raises(tg.InvalidArgumentError):
        manual.queue.fill(manual.buffer, pattern)


@pytest.mark.parametrize(("offset", "nbytes", "fits"), [(0, 0, True), (4, 8, True), (2, 8, False), (4, 6, False)])
def test_fills_are_aligned_in_offset_and_length(manual: ManualDevice, offset: int, nbytes: int, fits: bool) -> None:
    manual.queue.fill(manual.buffer, b"ab", offset=offset, length=nbytes)
    if fits:
        manual.queue.fill(manual.buffer, b"abcd", offset=offset, length=nbytes)
        return
    with pytest.raises(tg.InvalidArgumentError, match=f"offset {offset} and length {nbytes}"):
        manual.queue.fill(manual.buffer, b"abcd", offset=offset, length=nbytes)


def test_host_data_is_taken_in_c_order_without_a_copy_where_it_is_contiguous(manual: ManualDevice) -> None:
    def uploaded(source: Any) -> Any:
        manual.queue.upload(source, manual.buffer)
        return manual.issued[-1].work.array  # type: ignore[attr-defined]

    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert np.shares_memory(uploaded(array), array)
    assert uploaded(array.T).tobytes() == array.T.tobytes()
    assert uploaded(b"abc").tobytes() == b"abc"
    assert uploaded(np.float32(1)).tobytes() == np.float32(1).tobytes()
    with refused(TypeError, "upload takes an array or another object with a buffer, not int"):
        uploaded(3)
    with refused(TypeError, "upload: the array holds Python objects, not numbers"):
        uploaded(np.array([None]))


# Constants ---------------------------------------------------------------------------------------------------------


def function_with(device: tg.Device, *constants: Any, bindings: int = 0, workgroup: Any = 1) -> tg.Function:
    kernel = tg.Kernel("f", cpu=len, bindings=bindings, constants=constants, workgroup=workgroup)
    return device.load(kernel)["f"]


def convert(kind: Any, value: Any) -> Any:
    """Return a constant as a driver gets it."""
    with ManualDevice() as manual:
        manual.queue.dispatch(function_with(manual.device, kind), 1, constants=[value])
        (found,) = manual.issued[0].work.constants  # type: ignore[attr-defined]
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


def test_the_number_of_constants_is_checked_and_each_is_named_by_its_place(manual: ManualDevice) -> None:
    function = function_with(manual.device, "i4", "i4")
    for given in ([], [1], [1, 2, 3]):
        with refused(tg.InvalidArgumentError, f"function 'f' takes 2 constants, and {len(given)} were given"):
            manual.queue.dispatch(function, 1, constants=given)
    with pytest.raises(TypeError, match="constant 1 must be int32, not str"):
        manual.queue.dispatch(function, 1, constants=[1, "2"])
    undeclared = manual.device.load(len)["len"]
    manual.queue.dispatch(undeclared, 1, constants=[1, "as it is"])
    assert manual.issued[0].work.constants == (1, "as it is")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (0, (0, 1, 1)),
        (5, (5, 1, 1)),
        ((2, 3), (2, 3, 1)),
        ([1, 2, 3], (1, 2, 3)),
        (2**31 - 1, (2**31 - 1, 1, 1)),
        (np.array([4]), (4, 1, 1)),
    ],
)
def test_one_to_three_workgroup_counts_become_three(
    manual: ManualDevice, value: Any, counts: tuple[int, int, int]
) -> None:
    manual.queue.dispatch(function_with(manual.device), value)
    assert manual.issued[0].work.workgroups == counts  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((), "0 counts were given, and one to three are needed"),
        ((1, 1, 1, 1), "4 counts were given, and one to three are needed"),
        (-1, "the count -1 must be in 0..2**32-1"),
        (2**32, "the count 4294967296 must be in 0..2**32-1"),
        ((1, 1, -1), "the count -1 must be in 0..2**32-1"),
    ],
)
def test_other_workgroup_counts_are_refused(manual: ManualDevice, value: Any, text: str) -> None:
    with refused(tg.InvalidArgumentError, f"function 'f': workgroups: {text}"):
        manual.queue.dispatch(function_with(manual.device), value)


@pytest.mark.parametrize(("items", "groups"), [(0, 0), (1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_workgroups_cover_the_items_and_no_more(manual: ManualDevice, items: int, groups: int) -> None:
    function = function_with(manual.device, workgroup=(64, 2, 1))
    assert function.workgroups_for(items) == (groups, 1, 1)
    assert function.workgroups_for((items, 3)) == (groups, 2, 1)


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


def test_the_number_of_bindings_is_checked_where_it_is_known(manual: ManualDevice) -> None:
    function = function_with(manual.device, bindings=2)
    for count in (0, 1, 3):
        with refused(tg.InvalidArgumentError, f"function 'f' takes 2 bindings, and {count} were given"):
            manual.queue.dispatch(function, 1, bindings=[manual.buffer] * count)
    manual.queue.dispatch(function, 1, bindings=[manual.buffer] * 2)
    manual.queue.dispatch(manual.device.load(len)["len"], 1, bindings=[manual.buffer] * 9)
    assert [len(piece.work.bindings) for piece in manual.issued] == [2, 9]  # type: ignore[attr-defined]
