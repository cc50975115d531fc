"""The checks of arguments that queues, buffers and recordings share: what is wrong at the call raises there (M16)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError
from .slots import SlotSpan

if TYPE_CHECKING:
    from .compiled import Span

Bytes = npt.NDArray[np.uint8]

LARGEST = 2**62
"""More bytes than any memory has. A size that is rounded up from less still fits what C and NumPy count in."""
_ABSURD = 2**512
"""Python refuses to write out numbers that are very much larger, so an error text could not name them."""
_MOST_AXES = getattr(np, "MAXDIMS", 64)


def odd_pattern(pattern: Any) -> bytes:
    """Return a fill pattern as 1, 2 or 4 bytes."""
    if isinstance(pattern, (bytes, bytearray, memoryview)):
        data = bytes(pattern)
        if len(data) not in (1, 2, 4):
            raise InvalidArgumentError(f"fill: the pattern has {len(data)} bytes, and must have 1, 2 or 4")
        return data
    if isinstance(pattern, (bool, float)) or not hasattr(pattern, "__index__"):
        raise TypeError(f"fill: the pattern must be an int or bytes, not {type(pattern).__name__}")
    number = checked_int(pattern, "fill pattern")
    if not 0 <= number <= 255:
        raise InvalidArgumentError(f"fill: the pattern {number} must be in 0..255; give wider ones as 2 or 4 bytes")
    return bytes((number,))


def check_fill(span: Any, pattern: bytes) -> None:
    """Refuse a range that is not aligned to the pattern."""
    unit = len(pattern)
    if span._offset % unit or span.nbytes % unit:
        raise InvalidArgumentError(
            f"fill of {span._memory.describe()}: offset {span._offset} and length {span.nbytes} must be multiples of"
            f" the pattern's {unit} bytes"
        )


def check_copy(source: Any, target: Any) -> None:
    """Refuse ranges that overlap."""
    if isinstance(source, SlotSpan) or isinstance(target, SlotSpan) or source._memory is not target._memory:
        return
    if source._offset < target._offset + target.nbytes and target._offset < source._offset + source.nbytes:
        raise InvalidArgumentError(
            f"copy within {source._memory.describe()}: the ranges at {source._offset} and {target._offset} of"
            f" {source.nbytes} bytes overlap"
        )


def checked_counts(offset: int) -> None:
    """Refuse indirect counts that are not aligned."""
    if offset % 4:
        raise InvalidArgumentError(
            f"dispatch_indirect: the counts stand at byte {offset}, which is not a multiple of 4"
        )


def update_data(data: Any) -> bytes:
    """Capture the data of an update."""
    return data if type(data) is bytes else host_bytes_of(data, "update").tobytes()


def checked_range(buffer: Span, offset: Any, nbytes: Any) -> tuple[int, int]:
    """Return offset and length as ints; a length of None is the rest."""
    offset = checked_int(offset, "offset")
    length = buffer.nbytes - offset if nbytes is None else checked_int(nbytes, "length")
    if offset < 0 or length < 0 or offset + length > buffer.nbytes:
        raise OutOfRangeError(
            f"{buffer._memory.describe()}: the range {offset}..{offset + length} does not lie within its"
            f" {buffer.nbytes} bytes",
            offset=offset,
            length=length,
            nbytes=buffer.nbytes,
        )
    return offset, length


def checked_int(value: Any, what: str) -> int:
    """Return an integer argument as an int."""
    if type(value) is int and -_ABSURD < value < _ABSURD:
        return value
    if isinstance(value, (bool, float)) or not hasattr(value, "__index__"):
        raise TypeError(f"the {what} must be an int, not {type(value).__name__}")
    number = int(value.__index__())
    if not -_ABSURD < number < _ABSURD:
        raise OutOfRangeError(f"the {what} is a number of {number.bit_length()} bits, far more than there can be")
    return number


def checked_shape(
    buffer: Span, dtype: npt.DTypeLike, shape: int | Sequence[int] | None
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of an array over a buffer; without a shape, what fits."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise InvalidArgumentError(f"{buffer._memory.describe()}: dtype {kind} holds Python objects")
    if shape is None:
        if kind.itemsize == 0 or buffer.nbytes % kind.itemsize:
            raise InvalidArgumentError(
                f"{buffer._memory.describe()}: {buffer.nbytes} bytes are not a multiple of {kind},"
                f" which has {kind.itemsize}"
            )
        return kind, (buffer.nbytes // kind.itemsize,)
    dims = _lengths(shape, buffer._memory.describe())
    needed = math.prod(dims) * kind.itemsize
    if needed > buffer.nbytes:
        raise OutOfRangeError(
            f"{buffer._memory.describe()}: an array {dims} of {kind} needs {needed} bytes,"
            f" and there are {buffer.nbytes}"
        )
    _check_lengths(dims, kind, buffer._memory.describe())
    return kind, dims


def checked_lengths(shape: int | Sequence[int], kind: np.dtype[Any], what: str) -> tuple[int, ...]:
    """Return the lengths of an array that NumPy can have, memory apart; `what` names it in texts."""
    dims = _lengths(shape, what)
    _check_lengths(dims, kind, what)
    return dims


def _lengths(shape: int | Sequence[int], what: str) -> tuple[int, ...]:
    given = shape if isinstance(shape, Sequence) else (shape,)
    dims = tuple([checked_int(n, "shape") for n in given])
    if any(n < 0 for n in dims):
        raise InvalidArgumentError(f"{what}: the shape {dims} has a negative length")
    return dims


def _check_lengths(dims: tuple[int, ...], kind: np.dtype[Any], what: str) -> None:
    if len(dims) > _MOST_AXES:
        raise InvalidArgumentError(f"{what}: the shape has {len(dims)} lengths, and an array at most {_MOST_AXES}")
    # NumPy counts as if no length were 0, for an array without elements too.
    if math.prod([n or 1 for n in dims]) * (kind.itemsize or 1) > LARGEST:
        raise InvalidArgumentError(f"{what}: an array {dims} of {kind} is larger than any memory")


def new_array(dims: tuple[int, ...], kind: npt.DTypeLike, what: str) -> npt.NDArray[Any]:
    """Return a fresh array of the host, whose contents are undefined; `what` names the reason in texts.

    Raises:
        ResourceExhaustedError: there is no room.

    """
    try:
        return np.empty(dims, kind)
    except MemoryError as error:
        raise ResourceExhaustedError(f"{what}: the host has no room for an array {dims} of {kind}") from error


def host_bytes_of(data: Any, what: str) -> Bytes:
    """Return host data as contiguous bytes, in C order, without a copy where it is contiguous already."""
    if isinstance(data, np.ndarray):
        array = data
    elif any(hasattr(data, name) for name in ("__array__", "__array_interface__", "__array_struct__")):
        array = np.asarray(data)
    else:
        try:
            array = np.asarray(memoryview(data))
        except TypeError:
            raise TypeError(
                f"{what} takes an array or another object with a buffer, not {type(data).__name__}"
            ) from None
    if array.dtype.hasobject:
        raise TypeError(f"{what}: the array holds Python objects, not numbers")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def array_to_fill(span: Any, out: Any, dtype: npt.DTypeLike | None, shape: Any) -> npt.NDArray[Any]:
    """Return the array that a download fills: the one that was given, or a new one."""
    if out is None:
        kind, dims = checked_shape(span, np.uint8 if dtype is None else dtype, shape)
        return new_array(dims, kind, "download")
    if not isinstance(out, np.ndarray):
        raise TypeError(f"download: out must be a NumPy array, not {type(out).__name__}")
    if not out.flags.writeable:
        raise InvalidArgumentError("download: the array given as out is read-only")
    if out.dtype.hasobject:
        raise TypeError("download: the array given as out holds Python objects")
    if dtype is not None and np.dtype(dtype) != out.dtype:
        raise InvalidArgumentError(f"download: out is {out.dtype}, and dtype says {np.dtype(dtype)}")
    if shape is not None and (tuple(shape) if isinstance(shape, Sequence) else (shape,)) != out.shape:
        raise InvalidArgumentError(f"download: out has shape {out.shape}, and shape says {shape}")
    return out


def flat_bytes(array: npt.NDArray[Any]) -> Bytes | None:
    """Return the bytes of an array in one dimension, None if they do not lie one after the other."""
    return array.reshape(-1).view(np.uint8) if array.flags.c_contiguous else None


def refuse_download(span: Any, nbytes: int, length: int | None) -> None:
    """Raise if an array does not go with the range that is read."""
    if nbytes > span.nbytes:
        raise OutOfRangeError(
            f"download: {nbytes} bytes are asked of {span._memory.describe()}, which has {span.nbytes} here"
        )
    if length is not None:
        raise InvalidArgumentError(f"download: the array has {nbytes} bytes, and the length is {span.nbytes}")
