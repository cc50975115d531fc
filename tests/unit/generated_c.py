"""Reads the C that Cython makes of the core, and says what is called inside of its steps.

A step is a function whose docstring begins with "Step:", or what stands between CORE_LOCK and CORE_UNLOCK. It may call
other steps, plain C, and what counts references; anything else might run Python, allocate, raise or block.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Of the language, and what says which branch is likely.
_LANGUAGE = {"if", "while", "for", "switch", "return", "sizeof", "likely", "unlikely"}

#: What counts references. Whether a reference was the last one no text tells: a build that checks it does.
_REFERENCES = {
    *("Py_INCREF", "Py_DECREF", "__Pyx_INCREF", "__Pyx_DECREF", "__Pyx_XINCREF", "__Pyx_XDECREF"),
    *("__Pyx_DECREF_SET", "__Pyx_XDECREF_SET", "__Pyx_GIVEREF", "__Pyx_XGIVEREF", "__Pyx_GOTREF", "__Pyx_XGOTREF"),
    *("__Pyx_RefNannySetupContext", "__Pyx_RefNannyFinishContext"),
}

#: Reads of memory: of a list, a tuple, a type, a word of a device, and of this thread's own state.
_READS = {
    *("PyList_GET_ITEM", "PyList_GET_SIZE", "PyTuple_GET_ITEM", "PyTuple_GET_SIZE"),
    *("__Pyx_TypeCheck", "word_load", "turn_here", "PySet_GET_SIZE", "load_word"),
}

#: Functions of compiled drivers. They are called inside of steps, and may do what a step may: see `native.h`.
_DRIVERS = {"put"}

#: CUDA's functions that return at once, as the compiled driver has their addresses.
_CUDA = {
    *("get_current", "push", "pop", "wait_event", "launch", "write", "record", "query", "copy", "launch_graph"),
    *("fill8", "fill16", "fill32", "pointer_attribute"),
}

#: Of the C library, and a lock that is only tried or given back.
_LIBRARY = {
    *("memcpy", "memmove", "realloc"),
    *("try_gate", "PyThread_release_lock", "PyThread_get_thread_ident"),
    *("SMALL_LOCK", "SMALL_UNLOCK"),
}

_ALLOWED = _LANGUAGE | _REFERENCES | _READS | _LIBRARY

_MARKED = re.compile(
    r"""^(?P<indent>\ *)cdef\ [^\n(=]*?(?P<name>\w+)\((?P<parameters>(?:[^()]|\([^()]*\))*)\)(?P<rest>[^\n:]*):\n
        \s*\"\"\"Step:""",
    re.MULTILINE | re.VERBOSE,
)
_CLASS = re.compile(r"^cdef class (\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"^static [^\n;]*?\b(__pyx_\w+)\([^\n;]*\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_CALL = re.compile(r"(->|\.)?\b([A-Za-z_]\w*)\s*\(")
_REGION = re.compile(r"\bCORE_LOCK\(\);(.*?)\bCORE_UNLOCK\(\);", re.DOTALL)
_WAY_OUT = re.compile(r"\breturn\b|\bgoto \w+_error\b|\bgoto __pyx_L0\b")


@dataclass(frozen=True)
class Step:
    """A function marked as a step."""

    name: str
    owner: str
    """The class, if it is a method."""
    cannot_fail: bool

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name

    def symbol(self, module: str) -> str:
        """Return its name in C."""
        parts = [*(f"{len(part)}{part}_" for part in module.split(".")), f"{len(self.owner)}{self.owner}_"]
        return "__pyx_f_" + "".join(parts if self.owner else parts[:-1]) + self.name


def marked_steps(source: Path) -> list[Step]:
    """Return the functions that are marked as steps in a Cython file."""
    text = source.read_text(encoding="utf-8")
    classes = [(match.start(), match.group(1)) for match in _CLASS.finditer(text)]
    found = []
    for match in _MARKED.finditer(text):
        owner = [name for start, name in classes if start < match.start()][-1:] if match["indent"] else []
        found.append(Step(match["name"], "".join(owner), "noexcept" in match["rest"]))
    return found


def sources_of(source: Path) -> list[Path]:
    """Return a Cython file and those it includes."""
    included = re.findall(r'^include "(.+)"', source.read_text(encoding="utf-8"), re.MULTILINE)
    return [source, *(source.parent / name for name in included)]


def generate(source: Path, folder: Path, include: Path) -> str:
    """Return the C that Cython makes of a file, without comments and texts."""
    target = folder / f"{source.stem}.c"
    command = [sys.executable, "-m", "cython", "-3", "-I", str(include), str(source), "-o", str(target)]
    subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return _TEXT.sub('""', _COMMENT.sub(" ", target.read_text(encoding="utf-8")))


def functions_of(code: str) -> dict[str, str]:
    """Return the bodies of the functions in generated C, by name."""
    return {match.group(1): match.group(2) for match in _FUNCTION.finditer(code)}


def offences(code: str, steps: list[Step], module: str) -> dict[str, set[str]]:
    """Return what steps call and must not, by the step or the function that a locked region stands in."""
    functions = functions_of(code)
    symbols = {step.symbol(module): step for step in steps}
    methods = {step.name for step in steps if step.owner}
    found: dict[str, set[str]] = {}
    for symbol, step in symbols.items():
        wrong = {"it is not there"} if symbol not in functions else _wrong_calls(functions[symbol], symbols, methods)
        wrong |= set() if step.cannot_fail else {"it is not noexcept"}
        if wrong:
            found[str(step)] = wrong
    for symbol, body in functions.items():
        for region in _REGION.findall(body):
            wrong = _wrong_calls(region, symbols, methods) | set(_WAY_OUT.findall(region))
            if wrong:
                found.setdefault(f"locked in {symbol}", set()).update(wrong)
    return found


def _wrong_calls(body: str, symbols: dict[str, Step], methods: set[str]) -> set[str]:
    return {name for through, name in _calls(body) if not _is_allowed(name, bool(through), symbols, methods)}


def _is_allowed(name: str, through: bool, symbols: dict[str, Step], methods: set[str]) -> bool:
    if through:
        return name in methods or name in _DRIVERS | _CUDA
    return name in _ALLOWED or name in symbols


def _calls(body: str) -> Iterator[tuple[str, str]]:
    for line in body.splitlines():
        if not line.lstrip().startswith("#"):
            yield from _CALL.findall(line)
