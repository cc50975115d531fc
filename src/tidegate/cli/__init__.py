"""The command line: `tidegate`, or `python -m tidegate`."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for a failure, 2 for wrong use.

    Args:
        arguments: what stands after the program's name; None: those of this process.

    """
    # Imported here so that importing this package costs nothing: entry points are looked up by name only.
    from ._application import run

    return run(arguments)
