"""C kernels for the CPU: the compiler, missing, broken and well."""

import numpy as np
import pytest

from tidegate.drivers.cpu import c_compiler, c_source
from tidegate.drivers.cpu.c_source import compile_source
from tidegate.errors import (
    CompileError,
    DriverUnavailableError,
)

from .c_kernels import SAXPY, run, script

pytestmark = pytest.mark.usefixtures("compiler_present", "cache_directory")


def test_no_compiler_is_an_error_that_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DriverUnavailableError, match="install gcc or clang"):
        compile_source(SAXPY)


def test_a_named_compiler_that_is_missing_is_not_replaced_by_another(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(DriverUnavailableError, match="no-such-compiler"):
        compile_source(SAXPY)


def test_a_compiler_that_does_not_work_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", script(tmp_path / "broken", "echo is broken >&2; exit 3"))
    with pytest.raises(DriverUnavailableError, match="is broken"):
        compile_source(SAXPY)


def test_a_compiler_may_be_named_with_arguments(monkeypatch):
    real = c_compiler.find_compiler().command[0]
    monkeypatch.setenv("CC", f"{real} -DFROM_CC=5")
    library = compile_source("tidegate_kernel void f(int *x) { *x = FROM_CC; }")
    x = np.zeros(1, dtype=np.int32)
    run(library.functions["f"], [x])
    assert x[0] == 5


def test_a_compiler_without_native_code_is_used_without_it(monkeypatch, tmp_path):
    real = c_compiler.find_compiler().command[0]
    refuse = 'for a in "$@"; do [ "$a" = -march=native ] && { echo "error: bad value for -march=" >&2; exit 1; }; done'
    monkeypatch.setenv("CC", script(tmp_path / "old", f'{refuse}\nexec {real} "$@"'))
    assert compile_source(SAXPY).functions


@pytest.mark.parametrize("step", ["version", "compiling"])
def test_a_compiler_that_does_not_end_is_given_up(step, monkeypatch, tmp_path):
    answer = "" if step == "version" else '[ "$1" = --version ] && exit 0\n'
    monkeypatch.setenv("CC", script(tmp_path / "endless", f"{answer}exec sleep 60"))
    monkeypatch.setattr(c_compiler, "_TIME_LIMIT_S", 0.1)
    with pytest.raises(CompileError, match="did not end within"):
        compile_source(SAXPY)


def test_a_compiler_that_cannot_be_started_is_told(monkeypatch, tmp_path):
    path = tmp_path / "empty"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    with pytest.raises(DriverUnavailableError, match="cannot be started as a C compiler"):
        compile_source(SAXPY)


def test_a_library_that_cannot_be_loaded_is_a_compile_error(tmp_path):
    (tmp_path / "junk.so").write_bytes(b"junk")
    with pytest.raises(CompileError, match="cannot be loaded"):
        c_source._load(tmp_path / "junk.so", [])
