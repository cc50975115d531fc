"""Buffers for tests: full of a guard byte, so that a transfer that strays shows up at its edges."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import tidegate as tg

from .latches import LIMIT

GUARD = 0xCD

MIB = 2**20


def guarded(device: tg.Device, nbytes: int) -> tg.Buffer:
    """A buffer full of the guard byte: fresh memory is undefined."""
    return device.upload(np.full(nbytes, GUARD, np.uint8))


def numbered(nbytes: int, seed: int = 1) -> npt.NDArray[np.uint8]:
    """Bytes of which no two neighbourhoods are alike."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def contents(buffer: tg.Buffer) -> npt.NDArray[np.uint8]:
    """What is in a buffer after the last write that was submitted."""
    return buffer.to_numpy(np.uint8, timeout=LIMIT)


def words(buffer: tg.Buffer) -> npt.NDArray[np.uint32]:
    """The same, as 32-bit words."""
    return buffer.to_numpy(np.uint32, timeout=LIMIT)


def downloaded(queue: tg.Queue, buffer: tg.Buffer, wait: tg.Submission | None = None) -> npt.NDArray[np.uint8]:
    """What is in a buffer, by way of a queue and after `wait`."""
    out = np.zeros(buffer.nbytes, np.uint8)
    queue.download(buffer, out, wait=wait).wait(LIMIT)
    return out


def ready(array: tg.Buffer | tg.BufferView) -> tg.Submission:
    """The submission that commits a queue-ordered buffer."""
    assert array.ready is not None
    return array.ready
