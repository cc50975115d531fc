"""The built-in work of the CPU device, over NumPy views. Copies of any size release the GIL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tidegate.driver import Allocate, Barrier, Copy, Download, Fill, Free, Span, Update, Upload
from tidegate.drivers.cpu.memory import CpuStorage, WrappedStorage

if TYPE_CHECKING:
    from tidegate.drivers.cpu.device import CpuDevice

Bytes = npt.NDArray[np.uint8]
Step = Callable[[], object]
_WIDE = {2: np.uint16, 4: np.uint32}


def bytes_of(span: Span) -> Bytes:
    """Return a range as an array that keeps its storage."""
    storage, offset = span.locate()
    assert isinstance(storage, (CpuStorage, WrappedStorage))
    return storage.bytes()[offset : offset + span.nbytes]


def plan_nothing(_device: CpuDevice, _work: Barrier, _table: Sequence[Span]) -> Step:
    return _nothing


def plan_allocate(device: CpuDevice, work: Allocate, _table: Sequence[Span]) -> Step:
    storage = device.allocate(work.nbytes, work.memory, work.pool)
    work.commit(storage)
    return _nothing


def plan_free(_device: CpuDevice, work: Free, _table: Sequence[Span]) -> Step:
    work.release()
    return _nothing


def plan_fill(_device: CpuDevice, work: Fill, table: Sequence[Span]) -> Step:
    target = bytes_of(work.target.bind(table))
    pattern = work.pattern
    if len(pattern) == 1:
        return lambda: target.fill(pattern[0])
    wide: Any = _WIDE[len(pattern)]
    value = np.frombuffer(pattern, wide)[0]
    if target.ctypes.data % len(pattern) == 0:
        return lambda: target.view(wide).fill(value)
    # A wrapped array may begin anywhere; NumPy's views of wider types want alignment for speed, not for sense.
    return lambda: np.copyto(target, np.tile(np.frombuffer(pattern, np.uint8), target.nbytes // len(pattern)))


def plan_update(_device: CpuDevice, work: Update, table: Sequence[Span]) -> Step:
    target = bytes_of(work.target.bind(table))
    source = np.frombuffer(work.data, np.uint8)
    return lambda: np.copyto(target, source)


def plan_upload(_device: CpuDevice, work: Upload, _table: Sequence[Span]) -> Step:
    target = bytes_of(work.target)
    source = work.array
    return lambda: np.copyto(target, source)


def plan_download(_device: CpuDevice, work: Download, _table: Sequence[Span]) -> Step:
    source = bytes_of(work.source)
    target = work.array
    return lambda: np.copyto(target, source)


def plan_copy(_device: CpuDevice, work: Copy, table: Sequence[Span]) -> Step:
    source = bytes_of(work.source.bind(table))
    target = bytes_of(work.target.bind(table))[: source.nbytes]  # behind a slot there may be more room than needed
    return lambda: np.copyto(target, source)


def _nothing() -> None:
    return None
