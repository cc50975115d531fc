#!/usr/bin/env python3
"""Runs wrong drivers of `tidegate.testing.faulty` against the conformance tests that must catch them.

    python tools/faulty.py                               all of them
    python tools/faulty.py signals-backwards             one, with what its test said
    python tools/faulty.py --list                        what they do wrong

Builds a copy of the tree first that has the faults of compiled code in it. Exit status: 1 if one is not caught, 2 for
wrong use.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from changes import faults
from rich.console import Console

from tidegate.testing.faulty import FAULTS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="faulty.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a fault (default: all)")
    parser.add_argument("--list", action="store_true", help="print the faults and run none")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(FAULTS):
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; see --list")
    chosen = [FAULTS[name] for name in options.names] or list(FAULTS.values())
    if options.list:
        for fault in chosen:
            print(f"{fault.name}: {fault.description}")
        return 0
    Console(stderr=True).print(f"{len(FAULTS)} faults are built in ...")
    with faults.built() as tree:
        answers = faults.run(tree, chosen)
    missed = 0
    for fault in chosen:
        answer = answers[fault.name]
        caught = answer["ended"] == "failed"
        missed += not caught
        print(f"{fault.name}: {'caught' if caught else 'NOT CAUGHT'} by {fault.killed_by}: {answer['ended']}")
        print(f"  {answer['why']}" if caught else answer["log"] or answer["why"])
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
