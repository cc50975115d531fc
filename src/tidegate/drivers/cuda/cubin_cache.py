"""Compiled CUDA C++, kept between processes by what it was made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidegate._core.kernel_cache import Built, key_of, open_cache


def cached(parts: tuple[str, ...], build: Callable[[], bytes]) -> bytes:
    """Return the bytes that were made from these texts before, else have them made."""

    def make(scratch: Path) -> Built:
        library = scratch / "kernel.cubin"
        library.write_bytes(build())
        return Built(library, None)

    library, _ = open_cache("cuda").get(key_of(*parts), make)
    return library.read_bytes()
