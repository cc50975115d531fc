"""The compiler of the simulation: CUDA C++ in, an image of host code out.

The source is compiled as it stands, behind `prelude.h`, by the system's C++ compiler. What that cannot stand for is
refused in words rather than run wrongly. Without a C++ compiler there are kernels in Python, by name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from pathlib import Path

from ...drivers.cuda._nvrtc import CompilerError
from .kernels import ARCHITECTURE, known, load_image, make_image
from .python_kernels import make_python_image

_HERE = Path(__file__).parent
_FLAGS = ("-O1", "-std=c++17", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-fno-strict-aliasing")
_CHECKS = (
    "-fno-delete-null-pointer-checks",
)  # a kernel that goes through a null pointer faults; it is not "undefined"
_ENTRY = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\(\s*(\d+)[^)]*\)\s*)?(\w+)\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DYNAMIC_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w\s]+?)\s*(\w+)\s*\[\s*\]\s*;")
_SHARED = re.compile(r"__shared__\s+([\w\s]+?)\s+\w+\s*((?:\[\s*\d+\s*\]\s*)*);")
_SIZES = {"char": 1, "unsigned char": 1, "short": 2, "int": 4, "unsigned": 4, "unsigned int": 4, "float": 4,
          "double": 8, "long long": 8, "unsigned long long": 8}  # fmt: skip
_TIMER = re.compile(r'asm\s*(?:volatile)?\s*\(\s*"mov\.u64\s+%0,\s*%%?globaltimer;"\s*:\s*"=l"\s*\((\w+)\)\s*\)')
_ASM = re.compile(r"\b(?:asm|__asm__)\b")
_PLAIN_OPTIONS = frozenset({
    "-lineinfo", "--generate-line-info", "-G", "--device-debug", "-use_fast_math", "--use_fast_math", "-w",
    "--disable-warnings", "-default-device", "--device-as-default-execution-space", "-ewp",
    "--extra-device-vectorization", "-restrict", "--restrict",
})  # fmt: skip
_VALUED_OPTIONS = ("-std=", "--std=", "-fmad=", "--fmad=", "-maxrregcount=", "--maxrregcount=", "-ftz=", "--ftz=")
_NAMED = re.compile(r"(?:-arch|--gpu-architecture)=(\w+)")


class SimulatedNvrtc:
    """What `Nvrtc` is to the real machine.

    Args:
        compiler: the C++ compiler; None finds one, "" does without.

    """

    def __init__(self, compiler: str | None = None) -> None:
        self._compiler = find_compiler() if compiler is None else compiler

    def version(self) -> tuple[int, int]:
        """Return its version: none that NVRTC has, and another one whenever the simulation changes."""
        return 13, _revision()

    def compile(self, source: str, name: str, options: Sequence[str]) -> bytes:
        """Return the image of a source.

        Raises:
            CompilerError: it does not compile.

        """
        architecture, passed = _read_options(options)
        if self._compiler:
            image = _compile(self._compiler, source, name or "default_program", architecture, passed)
        else:
            image = make_python_image(_COMMENT.sub(" ", source), architecture)
        if not architecture.startswith("sm_"):
            return b""  # a virtual architecture gives PTX only
        if architecture == ARCHITECTURE and self._compiler:
            known.update(load_image(image))
        return image


@lru_cache(maxsize=1)
def _revision() -> int:
    texts = (_HERE / name for name in ("prelude.h", "runtime.cpp", "kernels.py", "nvrtc.py"))
    return 1000 + zlib.crc32(b"".join(path.read_bytes() for path in texts)) % 1_000_000


def find_compiler() -> str:
    """Return the C++ compiler of this machine, or an empty string."""
    named = os.environ.get("CXX", "")
    found = next((path for name in (named, "c++", "g++", "clang++") if name and (path := shutil.which(name))), None)
    return found or ""


def _read_options(options: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    architecture = "compute_75"
    passed: list[str] = []
    for option in options:
        if match := _NAMED.fullmatch(option):
            architecture = match[1]
        elif option.startswith(("-D", "-U", "-I")) and len(option) > 2:
            passed.append(option)
        elif option.startswith(("--define-macro=", "--include-path=")):
            passed.append(("-D" if option.startswith("--d") else "-I") + option.partition("=")[2])
        elif option not in _PLAIN_OPTIONS and not option.startswith(_VALUED_OPTIONS):
            raise CompilerError(f"nvrtc: error: unrecognized option {option} found")
    return architecture, tuple(passed)


def translate(source: str, name: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """Return what the host's compiler is given, and for each kernel its most threads and its static shared memory."""
    bare = _COMMENT.sub(" ", source)
    if _ASM.search(_TIMER.sub("", bare)):
        raise CompilerError(f"{name}: error: inline PTX is not in the simulation")
    found = list(_ENTRY.finditer(bare))
    ends = [*(match.start() for match in found[1:]), len(bare)][: len(found)]
    entries = {
        match[2]: (int(match[1] or 1024), _shared(bare[match.end() : end]))
        for match, end in zip(found, ends, strict=True)
    }
    body = _DYNAMIC_SHARED.sub(r"\1 *\2 = (\1 *)tidegate_launch->shared;", source)
    body = _TIMER.sub(r"(\1 = __globaltimer())", body)
    barriers = "true" if "__syncthreads" in bare else "false"
    rows = "".join(
        f"    {{(const void *)&{entry}, [](const TidegateLaunch *l) {{ tidegate_run({entry}, l, {barriers}); }},\n"
        f"     tidegate_arity({entry}), tidegate_parameters({entry})}},\n"
        for entry in entries
    )
    tail = (
        f'extern "C" __global__ const TidegateKernel tidegate_kernels[] = {{\n{rows}    {{}}}};\n'
        f'extern "C" __global__ const unsigned tidegate_kernel_count = {len(entries)};\n'
    ).replace("__global__", '__attribute__((visibility("default")))')
    text = f'#include "prelude.h"\n#line 1 "{name}"\n{body}\n#line 1 "kernels"\n{tail}'
    return text, entries


def _shared(body: str) -> int:
    """Return how much shared memory a kernel declares, as far as that is told in numbers."""
    total = 0
    for kind, dimensions in _SHARED.findall(_DYNAMIC_SHARED.sub(" ", body)):
        total += _SIZES.get(" ".join(kind.split()), 0) * prod(int(number) for number in re.findall(r"\d+", dimensions))
    return total


@lru_cache(maxsize=256)
def _compile(compiler: str, source: str, name: str, architecture: str, options: tuple[str, ...]) -> bytes:
    text, limits = translate(source, name)
    with tempfile.TemporaryDirectory(prefix="tidegate-simulated-") as scratch:
        kernel, library = Path(scratch, "kernel.cpp"), Path(scratch, "kernel.so")
        kernel.write_text(text, encoding="utf-8")
        inputs = [f"-I{_HERE}", str(kernel), str(_HERE / "runtime.cpp"), "-o", str(library), "-lm", "-ldl"]
        command = [compiler, *_FLAGS, *_CHECKS, "-Wl,-Bsymbolic", *options, *inputs]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, errors="replace")
        if done.returncode:
            raise CompilerError(done.stderr or done.stdout)
        return make_image(architecture, limits, library.read_bytes())
