"""Work that the host does on the spot: barriers, memory, and small transfers within memory that it sees (M34)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.driver import Allocate, Barrier, Copy, Download, Fill, Free, Span, Update, Upload, Work
from tidegate.drivers.metal.memory import Bytes

if TYPE_CHECKING:
    from tidegate.drivers.metal.device import MetalDevice

IN_PLACE = 16 * 1024
"""Built-in transfers up to so many bytes run where they become ready."""


def run_in_place(device: MetalDevice, work: Work) -> bool:
    """Do the work now, if the host can and may. Returns whether it is done."""
    if work.cost is None or work.cost > IN_PLACE:
        return False
    run = _RUN.get(type(work))
    return run is not None and run(device, work)


def visible(span: Any) -> Bytes | None:
    """Return the bytes of a range, if the host sees them."""
    place: Span = span.bind(())
    storage, offset = place.locate()
    whole = storage.host()
    return None if whole is None else whole[offset : offset + place.nbytes]


def _barrier(_device: MetalDevice, _work: Barrier) -> bool:
    return True


def _allocate(device: MetalDevice, work: Allocate) -> bool:
    work.commit(device.allocate(work.nbytes, work.memory, work.pool))
    return True


def _free(_device: MetalDevice, work: Free) -> bool:
    work.release()  # command buffers that still use it hold the storage themselves
    return True


def _fill(_device: MetalDevice, work: Fill) -> bool:
    target = visible(work.target)
    if target is not None:
        repeated = np.frombuffer(work.pattern, np.uint8)
        target.reshape(-1, repeated.size)[:] = repeated
    return target is not None


def _update(_device: MetalDevice, work: Update) -> bool:
    return _copied(np.frombuffer(work.data, np.uint8), visible(work.target))


def _upload(_device: MetalDevice, work: Upload) -> bool:
    return _copied(work.array, visible(work.target))


def _download(_device: MetalDevice, work: Download) -> bool:
    return _copied(visible(work.source), work.array)


def _copy(_device: MetalDevice, work: Copy) -> bool:
    return _copied(visible(work.source), visible(work.target))


def _copied(source: Bytes | None, target: Bytes | None) -> bool:
    if source is None or target is None:
        return False
    np.copyto(target[: source.nbytes], source)
    return True


_RUN: dict[type[Work], Callable[[Any, Any], bool]] = {
    Barrier: _barrier,
    Allocate: _allocate,
    Free: _free,
    Fill: _fill,
    Update: _update,
    Upload: _upload,
    Download: _download,
    Copy: _copy,
}
