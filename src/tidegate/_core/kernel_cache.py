"""Compiled kernels, kept between processes by what they were made from.

An entry is two files: a library named by its own digest and, written last, a record that names it. Both arrive by
rename, so that any number of processes may write the same entry and a reader sees a whole one or none. A library is
code that will be loaded, so nothing is taken from a directory that somebody else could have written to, and nothing is
loaded whose digest is not the recorded one: a truncated or scribbled file is built again.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Built:
    """What a build left in its scratch directory: a library, JSON-able notes, and the files it depends on."""

    library: Path
    notes: Any
    dependencies: Sequence[str] = ()


class Cache:
    """The entries in one private directory. Any thread may use it; other processes may use the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, key: str) -> tuple[Path, Any] | None:
        """Return the library and the notes of an entry that is whole and whose dependencies are unchanged."""
        try:
            record = json.loads(self._record(key).read_bytes())
            library = self.directory / record["library"]
            whole = digest_of(library) == record["digest"] and library.parent == self.directory
            fresh = all(digest_of(path) == digest for path, digest in record["dependencies"].items())
            return (library, record["notes"]) if whole and fresh else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # absent, damaged or of another form: all mean that it has to be built

    def get(self, key: str, build: Callable[[Path], Built]) -> tuple[Path, Any]:
        """Return the entry, having `build` make it in a scratch directory if it is not there.

        Threads that want the same key wait for the one that builds it; processes may build it twice.
        """
        with _building(key):
            found = self.find(key)
            if found is None:
                with tempfile.TemporaryDirectory(dir=self.directory, prefix="build-") as scratch:
                    found = self._store(key, build(Path(scratch)))
        return found

    def _store(self, key: str, built: Built) -> tuple[Path, Any]:
        digest = digest_of(built.library)
        library = self.directory / f"{key[:32]}-{digest[:16]}{built.library.suffix}"
        record = {
            "library": library.name,
            "digest": digest,
            "dependencies": {path: digest_of(path) for path in built.dependencies},
            "notes": built.notes,
        }
        draft = built.library.with_suffix(".json")
        draft.write_text(json.dumps(record))
        os.replace(built.library, library)
        os.replace(draft, self._record(key))
        return library, built.notes

    def _record(self, key: str) -> Path:
        return self.directory / f"{key}.json"


def open_cache(driver: str) -> Cache:
    """Return the user's cache for a driver, or one that ends with the process if that is unusable (and warns)."""
    directory = wanted_directory(driver)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = directory.resolve()
        reason = _unsafe(directory)
    except OSError as error:
        reason = str(error)
    if reason is None:
        return Cache(directory)
    fallback = _temporary(os.getpid())
    warnings.warn(f"compiled kernels are not kept: cache {directory} cannot be used: {reason}", stacklevel=4)
    return Cache(fallback)


def key_of(*parts: str) -> str:
    """Return the key of an entry made from these texts."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(encoded)}:".encode() + encoded)
    return digest.hexdigest()


def digest_of(path: str | Path) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wanted_directory(driver: str) -> Path:
    """Return where the user's cache for a driver lies, if it can be used."""
    named = os.environ.get("TIDEGATE_CACHE_DIR")
    if named:
        return Path(named).expanduser() / driver
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The base directory specification says to ignore a relative one.
    home = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / ".cache"
    return home / "tidegate" / driver


def _unsafe(directory: Path) -> str | None:
    """Say why code from this directory must not be loaded, or that it cannot be written; None if all is well."""
    if not hasattr(os, "getuid"):
        return None  # permissions are not told by mode bits here
    found = directory.stat()
    if found.st_uid != os.getuid():
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE:
        return "others may write to it"
    for parent in directory.parents:
        above = parent.stat()
        if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            return f"others may replace it, for they may write to {parent}"
        if above.st_uid not in (0, os.getuid()):
            return f"user {above.st_uid} may replace it, being the owner of {parent}"
    return None if os.access(directory, os.W_OK | os.X_OK) else "it cannot be written to"


@lru_cache(maxsize=1)
def _temporary(owner: int) -> Path:
    """Make this process's own directory, removed at its exit (not at the exit of a forked child)."""
    directory = Path(tempfile.mkdtemp(prefix="tidegate-cache-"))

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


# A fixed set of locks, shared by the keys that fall on the same one: it needs no clearing up, and two different
# kernels that share a lock only wait for one another's compiler.
_LOCKS = tuple(threading.Lock() for _ in range(16))


def _building(key: str) -> threading.Lock:
    return _LOCKS[int(key[:8], 16) % len(_LOCKS)]
