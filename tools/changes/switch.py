"""Which of the changes that are built in here is on, and which have been reached.

This file is put into a copy of the package as `tidegate/_switch.py`: see `tools/changes/building.py`.
"""

import builtins
import ctypes
import mmap
import os

COUNT = 0
"""How many there are; they are numbered from 1."""
ON = "TIDEGATE_CHANGE"
REACHED = "TIDEGATE_CHANGES_REACHED"

on = ctypes.c_int(int(os.environ.get(ON, "0")))
"""The number of the one that is on, or 0."""


def _reached() -> mmap.mmap:
    """A byte for each, shared with the processes that are forked, or started with this file in the environment."""
    if path := os.environ.get(REACHED):
        with open(path, "r+b") as file:
            return mmap.mmap(file.fileno(), COUNT + 1)
    return mmap.mmap(-1, COUNT + 1)


reached = _reached()
addresses = ctypes.addressof(on), ctypes.addressof(ctypes.c_char.from_buffer(reached))
"""For compiled code, which asks a function of its own."""


for _needed in (on, reached):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_needed))  # also by what goes after all modules


def change_at(number: int, reached: mmap.mmap = reached, on: ctypes.c_int = on) -> bool:
    """Whether the program runs with this change."""
    reached[number] = 1
    return number == on.value


def switch_on(number: int) -> None:
    """Go on with a change, and have the processes started from here begin with it."""
    os.environ[ON] = str(number)
    on.value = number


def take_reached() -> list[int]:
    """Return the numbers of those that were reached since the last call."""
    found = [number for number in range(1, COUNT + 1) if reached[number]]
    reached[:] = bytes(COUNT + 1)
    return found


setattr(builtins, change_at.__name__, change_at)
