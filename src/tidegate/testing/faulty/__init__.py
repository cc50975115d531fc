"""Wrong drivers: each a right one with one fault, as a maintainer or a porter could really make it.

They prove the conformance suite. Each fault names the test that must catch it, and a test of ours applies each, runs
that one test, and sees it fail. To look at one: `tidegate conformance --driver faulty-NAME`.

    from tidegate.testing.faulty import FAULTS

    with FAULTS["signals-early"].apply():
        ...

Much of what a driver inherits lives in the core, so most faults are there: they stand for what a driver with its own
idea of the matter would do. Most are faults of the CPU driver; those of epochs and promises, which it does not have, of
`tidegate.testing.streams`, and those of what hardware has too little of, of the CUDA driver over its simulation. One
module per area; `fault` has the machinery.
"""

from __future__ import annotations

from . import (
    commands,
    ends,
    failures,
    host_calls,
    joins,
    memory,
    native_streams,
    programs,
    promises,
    staging,
    submissions,
    timelines,
    transfers,
    waits,
)
from .fault import FAULTS, Fault, Patch

__all__ = [
    "FAULTS",
    "Fault",
    "Patch",
    "commands",
    "ends",
    "failures",
    "host_calls",
    "joins",
    "memory",
    "native_streams",
    "programs",
    "promises",
    "staging",
    "submissions",
    "timelines",
    "transfers",
    "waits",
]
