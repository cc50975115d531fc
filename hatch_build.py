"""Builds the optional C form of the fast paths: into the wheel or, for an editable install, in place.

It takes the interpreter's own compiler and flags, and `CC` and `CFLAGS` from the environment where they are set.
Without a compiler, or where it fails, the wheel is pure Python, which does the same more slowly; one line says so.
`TIDEGATE_PURE=1` asks for that.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
MODULES = {
    Path(source): f"{Path(source).stem}{SUFFIX}"
    for source in (
        "src/tidegate/_core/_fast.c",
        "src/tidegate/_core/_express.c",
        "src/tidegate/drivers/cuda/_submit.c",
    )
}


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """See the module."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling what came of it."""
        self._folder = tempfile.mkdtemp(prefix="tidegate-build-")
        for source, name in MODULES.items():
            self._build(source, name, version, build_data)

    def _build(self, source: Path, name: str, version: str, build_data: dict[str, Any]) -> None:
        built = Path(self._folder) / name
        in_place = Path(self.root) / source.with_name(name)
        if version == "editable":
            in_place.unlink(missing_ok=True)  # of an older source, perhaps
        reason = _reason_against() or _compile(Path(self.root) / source, built)
        if reason:
            self.app.display_warning(f"tidegate: {source.name} is left out, Python serves instead: {reason}")
            return
        if version == "editable":
            shutil.copyfile(built, in_place)
        else:
            build_data["force_include"][str(built)] = str(source.with_name(name).relative_to("src"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _reason_against() -> str:
    """Say why not to try, if so."""
    if os.environ.get("TIDEGATE_PURE", "0") not in ("", "0"):
        return "TIDEGATE_PURE is set"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the C form needs CPython with the GIL"
    return ""


def _command(source: Path, built: Path) -> list[str]:
    """Return the one command that compiles and links."""
    known, flags, position, linking = (
        shlex.split(sysconfig.get_config_var(name) or "") for name in ("CC", "CFLAGS", "CCSHARED", "LDSHARED")
    )
    compiler = shlex.split(os.environ.get("CC", ""))
    if not compiler:
        # The interpreter may have been built elsewhere, by a compiler of another name.
        compiler = known if known and shutil.which(known[0]) else ["cc"]
    flags += shlex.split(os.environ.get("CFLAGS", ""))
    include = f"-I{sysconfig.get_path('include')}"
    return [*compiler, *flags, *position, include, str(source), "-o", str(built), *linking[max(1, len(known)) :]]


def _compile(source: Path, built: Path) -> str:
    """Compile; return what went wrong, in one line, or nothing."""
    try:
        ended = subprocess.run(_command(source, built), capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no C compiler ({error})"
    if ended.returncode == 0 and built.exists():
        return ""
    lines = ended.stderr.splitlines()
    said = next((line for line in lines if "error" in line), lines[0] if lines else f"status {ended.returncode}")
    return f"the C compiler failed ({said.strip()})"
