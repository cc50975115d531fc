"""How the package is built: with the compiler that is there, with one that the build brings, and what a build says.

Builds go through pip, in a process of its own, from the source archive, so that whatever that lacks is missed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NOT_THESE = (".*", "build", "dist", "_build", "__pycache__", "*.egg-info", "*.so", "*.pyd")


@pytest.fixture
def backend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / "build_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive."""
    folder = tmp_path_factory.mktemp("archive")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_THESE))
    code = f"import build_backend; build_backend.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, timeout=100, capture_output=True)
    [made] = folder.glob("tidegate-*.tar.gz")
    return made


@pytest.fixture
def tree(archive: Path, tmp_path: Path) -> Path:
    """What is in the source archive."""
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    [folder] = tmp_path.glob("tidegate-*")
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment with nothing on the path but what a bare system has."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("env", "sh"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    unset = ("CC", "CFLAGS", "LDSHARED", "PYTHONPATH")
    return {**{name: value for name, value in os.environ.items() if name not in unset}, "PATH": str(folder)}


def script(folder: Path, name: str, line: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder on the path."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    return folder


posix = pytest.mark.skipif(os.name != "posix", reason="the compilers are shell scripts")


# Which compiler -------------------------------------------------------------------------------------------------------


def test_without_a_compiler_none_is_found(backend: ModuleType, path: Path) -> None:
    assert backend.find_compiler() is None


@posix
@pytest.mark.parametrize("name", ["cc", "gcc", "clang"])
def test_a_compiler_on_the_path_is_found(
    backend: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sysconfig, "get_config_var", {"CC": "cc-of-another-machine -pthread"}.get)
    script(path, name, "exit 0")
    assert backend.find_compiler() == name


@posix
def test_the_compiler_of_the_interpreter_comes_first(
    backend: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sysconfig, "get_config_var", {"CC": "gcc-12 -pthread"}.get)
    script(path, "gcc-12", "exit 0")
    script(path, "cc", "exit 0")
    assert backend.find_compiler() == "gcc-12 -pthread"


@posix
def test_a_compiler_without_a_c_library_does_not_count(
    backend: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    script(path, "cc", "exit 1")
    assert backend.find_compiler() is None


@posix
def test_a_mac_without_the_command_line_tools_has_no_compiler(
    backend: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    script(path, "xcode-select", "exit 2")
    script(path, "cc", "exit 0")
    assert backend.find_compiler() is None


def test_on_windows_the_build_brings_its_compiler(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("CC", "cl")
    assert backend.find_compiler() is None


@posix
def test_the_compiler_that_the_environment_names_is_taken(
    backend: ModuleType, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("CC", "ccache gcc")
    script(path, "cc", "exit 0")
    assert backend.find_compiler() == "ccache gcc"


# What it says ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["get_requires_for_build_wheel", "get_requires_for_build_editable"])
def test_missing_headers_are_told_in_one_line(hook: str, tmp_path: Path) -> None:
    code = (
        "import sysconfig\n"
        f"sysconfig.get_path = lambda *_: {str(tmp_path)!r}\n"
        "import build_backend\n"
        f"build_backend.{hook}()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert str(tmp_path / "Python.h") in ended.stderr
    assert f"apt install {version}-dev" in ended.stderr


# Whole builds ---------------------------------------------------------------------------------------------------------


def built(source: Path, environment: dict[str, str], folder: Path) -> tuple[Path, str]:
    """Build a wheel by pip; returns it and what pip said."""
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", str(folder), str(source)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [wheel] = folder.glob("*.whl")
    return wheel, ended.stdout + ended.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_without_a_compiler_the_build_brings_one(archive: Path, bare: dict[str, str], tmp_path: Path) -> None:
    wheel, said = built(archive, bare, tmp_path / "wheel")
    assert "ziglang" in said
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "unpacked")
    code = "import tidegate as tg; sem = tg.Semaphore(); sem.signal(3); sem.wait(3); print(sem.value, tg.__file__)"
    environment = {**bare, "PYTHONPATH": str(tmp_path / "unpacked")}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.split() == ["3", str(tmp_path / "unpacked" / "tidegate" / "__init__.py")]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_wheel_has_what_runs_and_types_it_and_no_sources_of_what_is_compiled(archive: Path, tmp_path: Path) -> None:
    wheel, _ = built(archive, dict(os.environ), tmp_path)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    python = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").glob("**/*.py")}
    assert python | {"tidegate/py.typed", "tidegate/_core/compiled.pyi", f"tidegate/_core/compiled{suffix}"} <= names
    assert not [name for name in names if name.endswith((".pyx", ".pxi", ".c"))]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_change_of_an_included_file_is_built(tree: Path) -> None:
    def build() -> int:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(command, cwd=tree, env={**os.environ, "CFLAGS": "-O0"}, check=True, timeout=300)
        [module] = (tree / "src/tidegate/_core").glob(f"compiled{sysconfig.get_config_var('EXT_SUFFIX')}")
        return module.stat().st_mtime_ns

    first = build()
    assert build() == first
    included = tree / "src/tidegate/_core/ground/step.pxi"
    included.write_text(included.read_text(encoding="utf-8") + "\n# Changed.\n", encoding="utf-8")
    assert build() > first
