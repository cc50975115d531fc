"""A range of addresses to allocate from: real memory, committed when touched.

What the simulated device calls an address is an address of this process, so that kernels compiled for the host and
NumPy work on it. All of it lies in a few large reservations: whatever is inside one and not allocated is known to be
wrong, whoever uses it.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from bisect import bisect_left, bisect_right, insort

ALIGNMENT = 512
_GUARD = 64
_GUARD_BYTES = b"\xf5" * _GUARD
_POISONED = 1 << 16
FRESH, FREED = 0xA5, 0xDB

_COMMON = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64", "riscv64")
_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if _COMMON else 0)
"""Python names it from 3.13 on. Without it a process with several machines is too large to be forked."""


class Arena:
    """One reservation. The caller locks.

    A gap follows each allocation; a pattern in it tells at the end whether anybody wrote past the allocation.
    """

    def __init__(self, nbytes: int) -> None:
        self._wanted = 2 * nbytes + (64 << 20)
        self._memory: mmap.mmap | None = None
        self.base = 0
        self.end = 0
        self._free: list[tuple[int, int]] = []
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def _reserve(self) -> None:
        self._memory = mmap.mmap(-1, self._wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.end = self.base + self._wanted
        self._free = [(self.base, self._wanted)]

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.end

    def allocate(self, nbytes: int) -> int | None:
        """Return the address of so many bytes, or None. Their first 64 KiB hold rubbish."""
        if self._memory is None:
            self._reserve()
        room = _room(nbytes)
        for index, (start, free) in enumerate(self._free):
            if free >= room:
                self._free[index : index + 1] = [(start + room, free - room)] if free > room else []
                insort(self._starts, start)
                self._sizes[start] = nbytes
                renew(start, nbytes)
                return start
        return None

    def release(self, start: int) -> bool:
        """Take an allocation back; returns whether what follows it is untouched."""
        nbytes = self._sizes.pop(start)
        whole = is_whole(start, nbytes)
        poison(start, nbytes)
        self._give_back(start, nbytes)
        del self._starts[bisect_left(self._starts, start)]
        room = _room(nbytes)
        insort(self._free, (start, room))
        self._join(bisect_left(self._free, (start, room)))
        return whole

    def find(self, address: int) -> tuple[int, int] | None:
        """Return start and size of the allocation that an address belongs to; its gap counts as the allocation's."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        start = self._starts[index]
        nbytes = self._sizes[start]
        return (start, nbytes) if address < start + _room(nbytes) else None

    def size(self, start: int) -> int | None:
        """Return the size of the allocation that starts there."""
        return self._sizes.get(start)

    def _give_back(self, start: int, nbytes: int) -> None:
        """Let the system have the inner pages of a large allocation."""
        first = -(-(start - self.base + _POISONED) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start - self.base + nbytes - _POISONED) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _join(self, index: int) -> None:
        for left in (index, index - 1):
            if 0 <= left < len(self._free) - 1:
                (start, size), (after, more) = self._free[left], self._free[left + 1]
                if start + size == after:
                    self._free[left : left + 2] = [(start, size + more)]


def _room(nbytes: int) -> int:
    return -(-(nbytes + _GUARD) // ALIGNMENT) * ALIGNMENT


def renew(start: int, nbytes: int) -> None:
    """Fill with rubbish what nobody may rely on, and set the guard."""
    ctypes.memset(start, FRESH, min(nbytes, _POISONED))
    ctypes.memmove(start + nbytes, _GUARD_BYTES, _GUARD)


def is_whole(start: int, nbytes: int) -> bool:
    """Whether the guard stands."""
    return ctypes.string_at(start + nbytes, _GUARD) == _GUARD_BYTES


def poison(start: int, nbytes: int) -> None:
    """Make freed memory look like it: its beginning and its end."""
    ctypes.memset(start, FREED, min(nbytes, _POISONED))
    if nbytes > _POISONED:
        tail = min(nbytes - _POISONED, _POISONED)
        ctypes.memset(start + nbytes - tail, FREED, tail)
