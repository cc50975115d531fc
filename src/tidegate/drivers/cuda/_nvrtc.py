"""The run-time compiler of CUDA C++: source in, cubin out."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class CompilerError(Exception):
    """The source does not compile; `log` is what the compiler says."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.log = log


class Nvrtc:
    """The compiler library.

    Raises:
        OSError: there is none.

    """

    def __init__(self) -> None:
        self._library = _open()
        self._library.nvrtcGetErrorString.restype = c_char_p

    def version(self) -> tuple[int, int]:
        """Return its version."""
        major, minor = c_int(), c_int()
        self._library.nvrtcVersion(byref(major), byref(minor))
        return major.value, minor.value

    def compile(self, source: str, name: str, options: Sequence[str]) -> bytes:
        """Return the cubin of a source, for the one architecture that `options` name.

        Raises:
            CompilerError: it does not compile.

        """
        program = c_void_p()
        self._check(self._library.nvrtcCreateProgram(byref(program), source.encode(), name.encode(), 0, None, None))
        try:
            given = (c_char_p * len(options))(*(option.encode() for option in options))
            code = self._library.nvrtcCompileProgram(program, len(options), given)
            if code:
                raise CompilerError(self._text("ProgramLog", program) or self._describe(code))
            return self._bytes("CUBIN", program)
        finally:
            self._library.nvrtcDestroyProgram(byref(program))

    def _describe(self, code: int) -> str:
        return (self._library.nvrtcGetErrorString(code) or b"unknown error").decode()

    def _check(self, code: int) -> None:
        if code:
            raise CompilerError(self._describe(code))

    def _bytes(self, what: str, program: c_void_p) -> bytes:
        size = c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, byref(size)))
        data = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, data))
        return data.raw

    def _text(self, what: str, program: c_void_p) -> str:
        return self._bytes(what, program).rstrip(b"\0").decode(errors="replace").strip()


def _open() -> Any:
    """Open the library: by its name, from NVIDIA's wheels, or where a toolkit puts it."""
    tried: list[str] = []
    for candidate in _candidates():
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            tried.append(candidate)
    raise OSError(f"no NVRTC: tried {', '.join(tried)}")


def _candidates() -> Iterator[str]:
    names = (
        ("libnvrtc.so.13", "libnvrtc.so.12") if sys.platform != "win32" else ("nvrtc64_130_0.dll", "nvrtc64_120_0.dll")
    )
    yield from names
    yield "libnvrtc.so"
    for package in ("nvidia.cu13", "nvidia.cuda_nvrtc"):
        spec = _spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for name in names:
                yield from (str(path) for path in Path(folder).rglob(name))
    yield from (f"/usr/local/cuda/lib64/{name}" for name in names)


def _spec(package: str) -> Any:
    try:
        return find_spec(package)
    except ModuleNotFoundError:
        return None
