"""The key under which compiled C is kept: what it was made from, and the CPU it was made for."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from functools import lru_cache

from tidegate._core import kernel_cache
from tidegate._core.kernel_cache import Built, Cache

__all__ = ["Built", "key_of", "open_cache"]


def open_cache() -> Cache:
    """Return the cache of compiled C."""
    return kernel_cache.open_cache("cpu")


def key_of(*parts: str) -> str:
    """Return the key of an entry made from these texts, on this kind of CPU."""
    return kernel_cache.key_of(*parts, cpu_features())


@lru_cache(maxsize=1)
def cpu_features() -> str:
    """Return words that differ between CPUs for which native code may differ."""
    words = [platform.system(), platform.machine(), platform.processor()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            words += read_cpuinfo(file)
    except OSError:
        pass  # not Linux: the three words above are what there is
    return "\n".join(words)


def read_cpuinfo(lines: Iterable[str]) -> Iterator[str]:
    """Yield what Linux says of the first CPU (the others are like it), without what changes while it runs."""
    for line in lines:
        if not line.strip():
            return
        name, _, value = line.partition(":")
        if name.strip() not in ("cpu MHz", "bogomips", "BogoMIPS", "apicid", "initial apicid", "microcode"):
            yield f"{name.strip()}={value.strip()}"
