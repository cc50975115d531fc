"""The cache of compiled kernels: what counts as a whole entry, and which directories code may come from."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate._core import kernel_cache
from tidegate._core.kernel_cache import Built, Cache, digest_of, key_of, open_cache, wanted_directory

LIMIT = 30.0


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def building(content: bytes, notes: Any = None, *dependencies: Path) -> Callable[[Path], Built]:
    def build(scratch: Path) -> Built:
        library = scratch / "made.so"
        library.write_bytes(content)
        return Built(library, notes, [str(path) for path in dependencies])

    return build


def never(_scratch: Path) -> Built:
    raise AssertionError("it is there already")


KEY = key_of("a", "kernel")


def test_an_entry_is_built_once_and_found_again_with_its_notes(cache: Cache) -> None:
    assert cache.find(KEY) is None
    library, notes = cache.get(KEY, building(b"code", {"n": 1}))
    assert library.read_bytes() == b"code"
    assert library.name == f"{KEY[:32]}-{digest_of(library)[:16]}.so"
    assert library.parent == cache.directory
    assert notes == {"n": 1}
    assert cache.get(KEY, never) == cache.find(KEY) == (library, {"n": 1})
    assert sorted(path.name for path in cache.directory.iterdir()) == sorted([library.name, f"{KEY}.json"])


def test_a_damaged_or_foreign_entry_is_built_again(cache: Cache, tmp_path: Path) -> None:
    library, _ = cache.get(KEY, building(b"code"))
    record = cache._record(KEY)
    good = json.loads(record.read_text())
    elsewhere = tmp_path.parent / "elsewhere.so"
    elsewhere.write_bytes(b"code")
    for damage in (
        lambda: library.write_bytes(b"scribbled"),
        lambda: library.unlink(),
        lambda: record.write_text("{"),
        lambda: record.write_text("[]"),
        lambda: record.write_text(json.dumps({**good, "library": str(elsewhere)})),
        lambda: record.write_text(json.dumps({**good, "digest": "0"})),
        lambda: record.write_text(json.dumps({key: good[key] for key in good if key != "notes"})),
    ):
        damage()
        assert cache.find(KEY) is None
        assert cache.get(KEY, building(b"code"))[0] == library
        assert cache.find(KEY) is not None


def test_an_entry_whose_dependencies_changed_is_built_again(cache: Cache, tmp_path: Path) -> None:
    header, other = tmp_path / "header.h", tmp_path / "other.h"
    header.write_text("one")
    other.write_text("same")
    cache.get(KEY, building(b"code", 1, header, other))
    assert cache.find(KEY) is not None
    header.write_text("two")
    assert cache.find(KEY) is None
    assert cache.get(KEY, building(b"new code", 2, header, other))[1] == 2
    header.unlink()
    assert cache.find(KEY) is None


def test_keys_differ_where_any_part_does_and_parts_do_not_run_together() -> None:
    keys = [key_of(*parts) for parts in ((), ("",), ("a",), ("a", ""), ("ab", "c"), ("a", "bc"), ("a\udcff",))]
    assert len(set(keys)) == len(keys)
    assert key_of("ab", "c") == key_of("ab", "c")


def test_threads_that_want_one_key_wait_for_the_one_that_builds_it(cache: Cache) -> None:
    began, go, built = threading.Event(), threading.Event(), []

    def slow(scratch: Path) -> Built:
        began.set()
        assert go.wait(LIMIT)
        built.append(1)
        return building(b"code")(scratch)

    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get(KEY, slow))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert began.wait(LIMIT)
    assert kernel_cache._building(KEY).locked()
    go.set()
    for thread in threads:
        thread.join(LIMIT)
    assert (built, len(found)) == ([1], 3)
    assert kernel_cache._building("0000000f" + KEY) is kernel_cache._LOCKS[15]
    assert kernel_cache._building("00000010" + KEY) is kernel_cache._LOCKS[0]


# Where it lies -----------------------------------------------------------------------------------------------------


def test_the_directory_is_the_one_named_or_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", "~/named")
    assert wanted_directory("cpu") == tmp_path / "named" / "cpu"
    monkeypatch.delenv("TIDEGATE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert wanted_directory("cpu") == tmp_path / "xdg" / "tidegate" / "cpu"
    for base in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert wanted_directory("cpu") == tmp_path / ".cache" / "tidegate" / "cpu"


def test_a_usable_directory_is_made_for_its_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_cache, "_unsafe", lambda _directory: None)
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path / "link" / "deep" / "deeper"))
    for _ in range(2):
        cache = open_cache("cpu")
        assert cache.directory == (tmp_path / "deep" / "deeper" / "cpu").resolve()
        assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700


def test_an_unusable_directory_is_told_and_one_of_the_process_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel_cache._temporary.cache_clear()
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_unsafe", lambda _directory: "it is haunted")
    text = r"^compiled kernels are not kept: cache .*cpu cannot be used: it is haunted$"
    with pytest.warns(UserWarning, match=text):
        first = open_cache("cpu")
    assert first.directory.is_dir()
    assert first.directory != (tmp_path / "cpu").resolve()
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(blocked))
    with pytest.warns(UserWarning, match="cannot be used: .*[Nn]ot a directory"):
        assert open_cache("cpu").directory == first.directory
    kernel_cache._temporary.cache_clear()
    kernel_cache.shutil.rmtree(first.directory)


def test_the_directory_of_a_process_is_removed_at_its_own_exit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(kernel_cache.atexit, "register", ends.append)
    make = kernel_cache._temporary.__wrapped__
    mine, theirs = make(os.getpid()), make(-1)
    assert mine.is_dir()
    for end in ends:
        end()
        end()
    assert (mine.exists(), theirs.exists()) == (False, True)
    theirs.rmdir()


class Place:
    """A directory as `_unsafe` looks at one."""

    def __init__(self, mode: int, owner: int, *parents: Place) -> None:
        self.parents = parents
        self._found = SimpleNamespace(st_mode=mode, st_uid=owner)

    def stat(self) -> Any:
        return self._found

    def __str__(self) -> str:
        return "above"


ME, ROOT, STRANGER = 7, 0, 8


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (Place(0o700, ME, Place(0o755, ME), Place(0o755, ROOT)), None),
        (Place(0o700, ME, Place(0o1777, ROOT)), None),
        (Place(0o700, STRANGER), "it belongs to user 8"),
        (Place(0o720, ME), "others may write to it"),
        (Place(0o702, ME), "others may write to it"),
        (Place(0o700, ME, Place(0o777, ROOT)), "others may replace it, for they may write to above"),
        (Place(0o700, ME, Place(0o755, STRANGER)), "user 8 may replace it, being the owner of above"),
        (Place(0o700, ME, Place(0o755, ME), Place(0o755, 1)), "user 1 may replace it, being the owner of above"),
    ],
)
def test_code_comes_from_no_directory_that_somebody_else_could_write_to(
    monkeypatch: pytest.MonkeyPatch, place: Place, reason: str | None
) -> None:
    monkeypatch.setattr(kernel_cache.os, "getuid", lambda: ME)
    asked: list[int] = []
    monkeypatch.setattr(kernel_cache.os, "access", lambda _path, mode: asked.append(mode) or True)
    assert kernel_cache._unsafe(place) == reason  # type: ignore[arg-type]
    if reason is None:
        assert asked == [os.W_OK | os.X_OK]
        monkeypatch.setattr(kernel_cache.os, "access", lambda _path, _mode: False)
        assert kernel_cache._unsafe(place) == "it cannot be written to"  # type: ignore[arg-type]
        monkeypatch.delattr(kernel_cache.os, "getuid")
        assert kernel_cache._unsafe(Place(0o777, STRANGER)) is None  # type: ignore[arg-type]
