"""How Tidegate is built: setuptools with Cython, and a C compiler that the build brings itself where there is none.

The hooks are those of `setuptools.build_meta`. Two things are added before anything is compiled. Where the headers of
this Python are missing, the build ends with one line that says what to install. Where no C compiler works, it asks for
the package `ziglang`, which is one, and `BuildExtensions` compiles with that. On Windows it always does: the core uses
atomics and thread-locals in the form of GCC and Clang.

`CC` and `CFLAGS` from the environment are heeded; what `CFLAGS` says comes last.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.build_ext import build_ext

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ZIG = "ziglang>=0.14"
ROOM = Path("src/tidegate/_core")
"""Where included files are looked for."""
# The casts between objects and pointers that link them are no aliases that a compiler may assume away. -O1 makes a
# submission 8 % slower and the build 3 s shorter, -O3 makes none faster, and debug information takes 3 s.
FLAGS = ["-O2", "-g0", "-fno-strict-aliasing"]


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return what the build needs beside what pyproject.toml says."""
    return [*_compiler_required(), *build_meta.get_requires_for_build_wheel(config_settings)]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Return what the build needs beside what pyproject.toml says."""
    return [*_compiler_required(), *build_meta.get_requires_for_build_editable(config_settings)]


def _compiler_required() -> list[str]:
    demand_headers()
    return [] if find_compiler() else [ZIG]


def demand_headers() -> None:
    """End the build in one line if the headers of this Python are missing."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        version = "python{}.{}".format(*sys.version_info)
        raise SystemExit(
            f"tidegate: the headers of this Python are missing ({header}): install them, on Debian and Ubuntu by"
            f" `apt install {version}-dev`, on Fedora by `dnf install {version}-devel`"
        )


def find_compiler() -> str | None:
    """Return the command of a C compiler that setuptools can work with, None if there is none."""
    if sys.platform == "win32":
        return None
    if os.environ.get("CC"):
        return os.environ["CC"]
    if sys.platform == "darwin" and not _succeeds(["xcode-select", "-p"]):
        return None  # `cc` is there all the same, and would open a window that offers to install it
    own = sysconfig.get_config_var("CC") or "cc"
    return next((command for command in (own, "cc", "gcc", "clang") if _works(command)), None)


def _works(command: str) -> bool:
    """Whether a compiler is there, with the headers of the C library."""
    return _succeeds([*shlex.split(command), "-x", "c", "-fsyntax-only", "-"], "#include <stdlib.h>\n")


def _succeeds(command: list[str], text: str = "") -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, input=text, text=True, capture_output=True, check=False).returncode == 0


def extension(name: str) -> Extension:
    """Return the module that is made of the `.pyx` of that name and of the files that it includes."""
    source = Path("src", *name.split(".")).with_suffix(".pyx")
    included = {path for folder in (source.parent, ROOM) for end in ("pxi", "h") for path in folder.glob(f"**/*.{end}")}
    return Extension(
        name,
        [source.as_posix()],
        include_dirs=[ROOM.as_posix()],
        depends=sorted(path.as_posix() for path in included),
    )


class BuildExtensions(build_ext):
    """Translates by Cython, and compiles by the compiler that was found or by ziglang."""

    def run(self) -> None:
        """See setuptools."""
        demand_headers()
        self._compiler = find_compiler()
        if self._compiler:
            os.environ["CC"] = self._compiler
        elif importlib.util.find_spec("ziglang") is None:
            raise SystemExit("tidegate: there is no C compiler: install one, or the package ziglang")
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """See setuptools."""
        from Cython.Build import cythonize

        [translated] = cythonize(
            [ext], include_path=[ROOM.as_posix()], build_dir=self.build_temp, force=self.force, quiet=True
        )
        ext.sources = translated.sources
        ext.extra_compile_args = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
        if self._compiler:
            super().build_extension(ext)
        else:
            self._build_by_zig(ext)

    def _build_by_zig(self, ext: Extension) -> None:
        """Compile and link in one go; the flags of the interpreter's own build are another compiler's."""
        built = Path(self.get_ext_fullpath(ext.name)).absolute()
        built.parent.mkdir(parents=True, exist_ok=True)
        folders = [*ext.include_dirs, sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
        command = [
            *(sys.executable, "-m", "ziglang", "cc", "-shared", "-s", "-fPIC", "-fwrapv", "-DNDEBUG"),
            # For this kind of machine, not for this very one; and nothing that traps.
            *("-mcpu=baseline", "-fno-sanitize=undefined"),
            *ext.extra_compile_args,
            *(f"-I{Path(folder).absolute()}" for folder in dict.fromkeys(folders)),
            *(str(Path(source).absolute()) for source in ext.sources),
            *("-o", str(built)),
            *_linking(),
        ]
        # What it leaves lying about goes into the temporary folder, like what it keeps for the next time.
        folder = Path(self.build_temp).absolute()
        caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(folder))
        if subprocess.run(command, cwd=folder, env={**os.environ, **caches}, check=False).returncode:
            raise SystemExit("tidegate: the C compiler of ziglang failed: see above")


def _linking() -> list[str]:
    """Return how a module finds the symbols of the interpreter."""
    if sys.platform == "darwin":
        return ["-Wl,-undefined,dynamic_lookup"]
    if sys.platform == "win32":
        machine = {"win-amd64": "x86_64", "win-arm64": "aarch64", "win32": "x86"}[sysconfig.get_platform()]
        library = "python{}{}{}".format(
            *sys.version_info[:2], "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
        )
        return ["-target", f"{machine}-windows-gnu", f"-L{Path(sys.base_prefix, 'libs')}", f"-l{library}"]
    return []
