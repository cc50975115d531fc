"""What is wrong at the call is said at the call (M16): the checks that queues and recordings share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..driver import SlotSpan
from ..errors import InvalidArgumentError
from .buffer import Buffer, checked_int, checked_range, host_bytes_of

if TYPE_CHECKING:
    from .device import Device


def checked_target(device: Device, buffer: Any, offset: Any, length: Any, what: str) -> Buffer:
    """Return the range of a buffer that an operation names."""
    if not isinstance(buffer, Buffer):
        raise TypeError(f"{what} takes a buffer, not {type(buffer).__name__}")
    memory = buffer._memory
    if memory.device is not device:
        raise InvalidArgumentError(
            f"{what}: {memory.describe()} belongs to {memory.device.describe()}, not to {device.describe()}"
        )
    memory.refuse_unusable()
    if offset == 0 and length is None:
        # Never the user's own object: whether that was dropped tells starving allocations what may come back.
        return Buffer(memory, buffer._offset, buffer._nbytes, root=False)
    start, size = checked_range(buffer, offset, length)
    return Buffer(memory, buffer._offset + start, size, root=False)


def checked_pattern(pattern: Any) -> bytes:
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


def checked_fill(span: Any, pattern: bytes) -> None:
    """Refuse a range that is not aligned to the pattern."""
    unit = len(pattern)
    if span._offset % unit or span.nbytes % unit:
        raise InvalidArgumentError(
            f"fill of {span._memory.describe()}: offset {span._offset} and length {span.nbytes} must be multiples of"
            f" the pattern's {unit} bytes"
        )


def checked_copy(source: Any, target: Any) -> None:
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
