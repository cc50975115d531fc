"""The system's C compiler: where it is, what it is, and how it is called.

Compiling and linking are two calls on purpose. Given `-ffast-math`, several compilers add start-up code to whatever
they *link*, which turns off denormal numbers for every thread of the process that loads it. Options therefore reach
the compiling step, and only those that name libraries or instrument the code reach the linking step too.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import CompileError, DriverUnavailableError, InvalidArgumentError

# Contraction is off so that a*b+c rounds twice, as it does in NumPy and in a kernel's Python form: results do not
# depend on which of the two served. A missing declaration is an error because the undefined symbol it leads to would
# end the process at its first use.
FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Werror=implicit-function-declaration",
)
NATIVE = "-march=native"
_UNDEFINED_IS_AN_ERROR = () if sys.platform == "darwin" else ("-Wl,-z,defs",)

_COMPILE_PREFIXES = ("-D", "-U", "-I", "-O", "-f", "-m", "-W", "-g", "-std=", "-pthread")
_LINK_PREFIXES = ("-l", "-L", "-Wl,", "-fopenmp", "-fsanitize", "-pthread")
_TIME_LIMIT_S = 300.0
# Phrases by which gcc and clang refuse a flag, as against source they refuse.
_REFUSED_OPTION = ("unrecognized command-line option", "unrecognized command line option", "unknown argument",
                   "unrecognized debug output level", "unsupported option", "invalid value", "bad value",
                   "unknown value", "argument to", "arguments to", "unsupported argument")  # fmt: skip


@dataclass(frozen=True)
class Compiler:
    """One compiler: the command that starts it, and words that change when it does."""

    command: tuple[str, ...]
    identity: str

    def preprocess(self, source: Path, options: Sequence[str]) -> str:
        """Return the source after macros and includes, without the mark of an entry point being expanded."""
        reflect = ("-E", "-P", "-w", "-DTIDEGATE_REFLECTION")
        return self._call([*reflect, *FLAGS, *_compiling(options), str(source)], options)

    def build(self, source: Path, target: Path, dependencies: Path, options: Sequence[str]) -> str:
        """Compile and link a shared library; write the headers it read to `dependencies`; return the log."""
        part = target.with_suffix(".o")
        rest = [*_compiling(options), "-MMD", "-MF", str(dependencies), "-c", str(source), "-o", str(part)]
        try:
            log = self._call([*FLAGS, NATIVE, *rest], options)
        except CompileError as error:
            if "march" not in error.log:
                raise
            log = self._call([*FLAGS, *rest], options)
        linking = [option for option in options if option.startswith(_LINK_PREFIXES)]
        return log + self._call(
            ["-shared", str(part), "-o", str(target), *_UNDEFINED_IS_AN_ERROR, *linking, "-lm"], options
        )

    def _call(self, arguments: Sequence[str], options: Sequence[str]) -> str:
        """Run the compiler; return what it printed, or raises with it."""
        done = _run([*self.command, *arguments])
        if done.returncode == 0:
            return done.stdout if "-E" in arguments else done.stderr
        log = done.stderr or done.stdout
        first = next((line for line in log.splitlines() if "error" in line), f"exit status {done.returncode}")
        if any(phrase in first for phrase in _REFUSED_OPTION):
            for option in options:
                if option in first or option.split("=")[0] in first:
                    raise InvalidArgumentError(f"option {option!r} is refused by {self.command[0]}: {first.strip()}")
        raise CompileError(f"the C source does not compile: {first.strip()}", log=log)


def find_compiler() -> Compiler:
    """Return the compiler named by $CC, else the first of cc, gcc and clang.

    Raises:
        DriverUnavailableError: None is installed; the message says what to install.

    """
    named = os.environ.get("CC", "").strip()
    for candidate in [named] if named else ["cc", "gcc", "clang"]:
        command = shlex.split(candidate)
        path = shutil.which(command[0]) if command else None
        if path is not None:
            found = os.stat(path)
            return _identify((path, *command[1:]), found.st_size, found.st_mtime_ns)
    where = f"$CC names {named!r}, which is not there" if named else "none of cc, gcc and clang is on the path"
    raise DriverUnavailableError(
        f"C kernels need a C compiler and {where}: install gcc or clang "
        "(Debian and Ubuntu: gcc, Fedora: gcc, Alpine: build-base, macOS: xcode-select --install); "
        "Python kernels work without one"
    )


def check_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options as a tuple.

    Raises:
        InvalidArgumentError: One is of no kind that a kernel may be compiled with.

    """
    for option in options:
        if not isinstance(option, str):
            raise TypeError(f"a compiler option is a string, not {type(option).__name__}")
        if not option.startswith((*_COMPILE_PREFIXES, *_LINK_PREFIXES)) or "\0" in option:
            known = " ".join(dict.fromkeys((*_COMPILE_PREFIXES, *_LINK_PREFIXES)))
            raise InvalidArgumentError(f"unknown option {option!r} for a C kernel: known are those that start {known}")
    return tuple(options)


def _compiling(options: Sequence[str]) -> list[str]:
    return [option for option in options if not option.startswith(("-l", "-L", "-Wl,"))]


@functools.lru_cache(maxsize=8)
def _identify(command: tuple[str, ...], size: int, changed_ns: int) -> Compiler:
    """Ask a compiler for its version, once per process unless its file changes."""
    version = _run([*command, "--version"])
    if version.returncode != 0:
        raise DriverUnavailableError(f"{command[0]} does not work as a C compiler: {version.stderr.strip()[:200]}")
    resolved = os.path.realpath(command[0])
    return Compiler(command, "\n".join([*command, resolved, str(size), str(changed_ns), version.stdout]))


def _run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            arguments,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{arguments[0]} did not end within {_TIME_LIMIT_S:.0f} s", log="") from error
    except OSError as error:
        raise DriverUnavailableError(f"{arguments[0]} cannot be started as a C compiler: {error}") from error
