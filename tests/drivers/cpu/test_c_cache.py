"""C kernels for the CPU: what is kept of them, where, and when it is trusted."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tidegate._core import kernel_cache
from tidegate.drivers.cpu import c_cache, c_compiler
from tidegate.drivers.cpu.c_source import compile_source
from tidegate.errors import (
    CompileError,
)

from .c_kernels import SAXPY, run, script

pytestmark = pytest.mark.usefixtures("compiler_present", "cache_directory")


def count_compilations(monkeypatch):
    calls = []
    original = c_compiler.Compiler.build

    def build(self, *arguments):
        calls.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(c_compiler.Compiler, "build", build)
    return calls


def records(directory: Path):
    return sorted(directory.glob("*.json"))


# What is kept --------------------------------------------------------------------------------------------------------


def test_the_same_source_is_compiled_once(monkeypatch):
    calls = count_compilations(monkeypatch)
    first, second = compile_source(SAXPY), compile_source(SAXPY)
    assert (len(calls), first.path) == (1, second.path)


@pytest.mark.slow
def test_another_process_finds_what_this_one_compiled(cache_directory):
    path = compile_source(SAXPY).path
    written = {file: file.stat().st_mtime_ns for file in cache_directory.iterdir()}
    program = f"from tidegate.drivers.cpu.c_source import compile_source; print(compile_source({SAXPY!r}).path)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(path)
    assert {file: file.stat().st_mtime_ns for file in cache_directory.iterdir()} == written


@pytest.mark.slow
def test_source_options_compiler_and_cpu_each_make_another_entry(monkeypatch, cache_directory, tmp_path):
    compile_source(SAXPY)
    compile_source(SAXPY + "\n")
    compile_source(SAXPY, options=["-DX"])
    monkeypatch.setenv("CPATH", str(tmp_path))
    compile_source(SAXPY)
    monkeypatch.delenv("CPATH")
    real = c_compiler.find_compiler().command[0]
    monkeypatch.setenv("CC", script(tmp_path / "other", f'exec {real} "$@"'))
    compile_source(SAXPY)
    monkeypatch.delenv("CC")
    monkeypatch.setattr(c_cache, "cpu_features", lambda: "abacus")
    compile_source(SAXPY)
    assert len(records(cache_directory)) == 6


def test_parts_of_a_key_do_not_run_into_one_another():
    assert c_cache.key_of("ab", "c") != c_cache.key_of("a", "bc")


def test_a_changed_include_is_compiled_again(tmp_path):
    include = tmp_path / "with space.h"
    source = '#include "with space.h"\ntidegate_kernel void f(int *x) { *x = NUMBER; }'
    x = np.zeros(1, dtype=np.int32)
    for number in (1, 2):
        include.write_text(f"#define NUMBER {number}")
        run(compile_source(source, options=[f"-I{tmp_path}"]).functions["f"], [x])
        assert x[0] == number
    include.unlink()
    with pytest.raises(CompileError):
        compile_source(source, options=[f"-I{tmp_path}"])


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"not a library", None])
def test_a_damaged_library_is_built_again(damage, monkeypatch):
    # Damaged before it is loaded: in the processes of this test each library is at a path of its own.
    monkeypatch.setattr(c_cache, "cpu_features", lambda: f"damage {damage!r}")
    program = f"""
from tidegate.drivers.cpu import c_cache
c_cache.cpu_features = lambda: {f"damage {damage!r}"!r}
from tidegate.drivers.cpu.c_source import compile_source
print(compile_source({SAXPY!r}).path)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    path = Path(done.stdout.strip())
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    calls = count_compilations(monkeypatch)
    y = np.zeros(1, dtype=np.float32)
    run(compile_source(SAXPY).functions["saxpy"], [y, y], [np.float32(1), np.uint32(1)])
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["", "[]", "{}", "\0", '{"library": 3}', '{"library": "../x.so", "digest": ""}'])
def test_a_damaged_record_is_built_again(damage, monkeypatch, cache_directory):
    compile_source(SAXPY)
    (record,) = records(cache_directory)
    record.write_text(damage)
    calls = count_compilations(monkeypatch)
    assert compile_source(SAXPY).functions
    assert len(calls) == 1
    assert json.loads(record.read_text())["digest"]


def test_a_record_cannot_name_a_library_outside_of_the_cache(monkeypatch, cache_directory, tmp_path):
    library = compile_source(SAXPY)
    (record,) = records(cache_directory)
    outside = tmp_path / "outside.so"
    outside.write_bytes(library.path.read_bytes())
    fields = json.loads(record.read_text())
    record.write_text(json.dumps({**fields, "library": str(outside)}))
    calls = count_compilations(monkeypatch)
    assert compile_source(SAXPY).path == library.path
    assert len(calls) == 1


def test_threads_that_want_the_same_source_compile_it_once(monkeypatch):
    calls = count_compilations(monkeypatch)
    paths = []
    start = threading.Barrier(8)

    def load():
        start.wait(30)
        paths.append(compile_source(SAXPY).path)

    threads = [threading.Thread(target=load, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(paths) == 8
    assert (len(set(paths)), len(calls)) == (1, 1)


@pytest.mark.slow
def test_processes_that_want_the_same_source_all_get_it(cache_directory):
    program = f"""
from tidegate.drivers.cpu.c_source import compile_source
print(sorted(compile_source({SAXPY!r}).functions))
"""
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["['saxpy']"] * 4
    assert len(records(cache_directory)) == 1
    assert not list(cache_directory.glob("build-*"))


# Whose it is ---------------------------------------------------------------------------------------------------------


def test_the_cache_is_private(cache_directory):
    old = os.umask(0)
    try:
        compile_source(SAXPY)
    finally:
        os.umask(old)
    assert stat.S_IMODE(cache_directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_cache_that_others_may_write_to_is_not_used(mode, cache_directory):
    cache_directory.mkdir(parents=True)
    cache_directory.chmod(mode)
    with pytest.warns(UserWarning, match="others may write to it") as warned:
        path = compile_source(SAXPY).path
    assert warned[0].filename == __file__
    assert cache_directory not in path.parents
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(cache_directory.iterdir()) == []


def test_a_cache_that_others_may_replace_is_not_used(cache_directory):
    cache_directory.parent.chmod(0o777)
    with pytest.warns(UserWarning, match="others may replace it"):
        assert cache_directory not in compile_source(SAXPY).path.parents


def test_a_link_to_a_cache_that_others_may_replace_is_not_used(cache_directory, tmp_path):
    (tmp_path / "open" / "cpu").mkdir(parents=True, mode=0o700)
    (tmp_path / "open").chmod(0o777)
    cache_directory.symlink_to(tmp_path / "open" / "cpu")
    with pytest.warns(UserWarning, match="others may replace it"):
        compile_source(SAXPY)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root may give a directory away")
def test_a_cache_in_a_directory_of_somebody_else_is_not_used(cache_directory):
    os.chown(cache_directory.parent, 12345, -1)
    with pytest.warns(UserWarning, match="user 12345 may replace it"):
        compile_source(SAXPY)


def test_a_cache_of_somebody_else_is_not_used(cache_directory, monkeypatch):
    compile_source(SAXPY)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.warns(UserWarning, match="it belongs to user"):
        assert cache_directory not in compile_source(SAXPY).path.parents


# Where it is ---------------------------------------------------------------------------------------------------------


def test_missing_directories_of_the_cache_are_made(monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b" / "cpu") in compile_source(SAXPY).path.parents


def test_a_cache_that_cannot_be_made_is_done_without(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TIDEGATE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="compiled kernels are not kept"):
        assert compile_source(SAXPY).functions


@pytest.mark.slow
def test_a_temporary_cache_goes_with_its_process_and_not_with_a_forked_child(tmp_path):
    (tmp_path / "file").write_text("in the way")
    program = f"""
import os, warnings
warnings.simplefilter("ignore")
from tidegate.drivers.cpu.c_source import compile_source
path = compile_source({SAXPY!r}).path
child = os.fork()
if child == 0:
    raise SystemExit
os.waitpid(child, 0)
print(path.exists(), path)
"""
    environment = {**os.environ, "TIDEGATE_CACHE_DIR": str(tmp_path / "file")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    there, path = done.stdout.split()
    assert there == "True"
    assert not Path(path).parent.exists()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TIDEGATE_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a/cpu"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/tidegate/cpu"),
        ({"XDG_CACHE_HOME": "b", "HOME": "/c"}, "/c/.cache/tidegate/cpu"),
        ({"TIDEGATE_CACHE_DIR": "", "HOME": "/c"}, "/c/.cache/tidegate/cpu"),
    ],
)
def test_the_cache_is_where_the_environment_says(variables, expected, monkeypatch):
    for name in ("TIDEGATE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(kernel_cache.wanted_directory("cpu")) == expected


def test_what_linux_says_of_the_first_cpu_counts_without_what_changes():
    lines = ["processor\t: 0\n", "flags\t\t: avx avx2\n", "cpu MHz\t\t: 2400.1\n", "\n", "processor\t: 1\n"]
    assert list(c_cache.read_cpuinfo(lines)) == ["processor=0", "flags=avx avx2"]
