"""As much of the Metal Shading Language as it takes to find the kernels in a source, their arguments, and mistakes.

Function bodies are not run: a kernel's work is done by the host function registered under its name. But a source with
an `#error`, unbalanced braces, an unknown type or a name that nobody declared is refused, as a compiler would.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["CompileFailure", "Kernel", "Parameter", "parse"]

_SCALARS = {
    "float": "f4", "half": "f2", "int": "i4", "uint": "u4", "short": "i2", "ushort": "u2", "char": "i1", "uchar": "u1",
    "bool": "?", "long": "i8", "ulong": "u8", "int8_t": "i1", "uint8_t": "u1", "int16_t": "i2", "uint16_t": "u2",
    "int32_t": "i4", "uint32_t": "u4", "int64_t": "i8", "uint64_t": "u8", "size_t": "u8", "atomic_uint": "u4",
    "atomic_int": "i4", "unsigned": "u4",
}  # fmt: skip
TYPES: dict[str, np.dtype[Any]] = {name: np.dtype(code) for name, code in _SCALARS.items()}
for _name in ("float", "half", "int", "uint", "short", "ushort", "char", "uchar"):
    for _count in (2, 3, 4):
        TYPES[f"{_name}{_count}"] = np.dtype((TYPES[_name], 4 if _count == 3 else _count))
        TYPES[f"packed_{_name}{_count}"] = np.dtype((TYPES[_name], _count))
DATA_TYPES = {
    53: "?", 3: "f4", 16: "f2", 29: "i4", 33: "u4", 37: "i2", 41: "u2", 45: "i1", 49: "u1", 81: "i8", 85: "u8",
}  # fmt: skip
"""MTLDataType numbers, as NumPy has them."""

_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """alignas auto break case const constant constexpr continue default device do else enum extern false for goto
        if inline kernel metal namespace nullptr operator private ray_data reinterpret_cast return signed sizeof static
        static_cast struct switch template this threadgroup threadgroup_imageblock thread true typedef typename union
        using unsigned volatile void while class as_type mem_flags memory_order_relaxed mem_none mem_device
        mem_threadgroup INFINITY NAN FLT_MAX FLT_MIN INT_MAX INT_MIN UINT_MAX M_PI_F""",
    )
)
_BUILTINS = re.compile(
    r"thread(s|group)?_\w+|grid_\w+|simdgroup\w*|quadgroup\w*|dispatch_\w+|thread_index_in_\w+|threadgroups_per_grid"
)


class CompileFailure(Exception):
    """The source is refused; the text is the log."""


@dataclass(frozen=True)
class Parameter:
    """An argument of a kernel that the host binds.

    Attributes:
        kind: "buffer" for a pointer, "value" for a reference to a constant, "threadgroup" for local memory.
        index: in the argument table of its kind.
        type: the element, as NumPy has it; None where its size does not matter.
        writes: whether the kernel may write it.
        space: the address space.

    """

    name: str
    kind: str
    index: int
    type: np.dtype[Any]
    writes: bool
    space: str


@dataclass(frozen=True)
class Kernel:
    """A kernel function of a source."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None = None
    constants: tuple[FunctionConstant, ...] = ()


@dataclass(frozen=True)
class FunctionConstant:
    """A constant whose value is given when the function is made."""

    name: str
    index: int
    type: str


def parse(source: str, macros: Mapping[str, str] | None = None) -> dict[str, Kernel]:
    """Return the kernels of a source by name.

    Raises:
        CompileFailure: the source is wrong; the log says how.

    """
    text = _preprocess(_without_comments(source), dict(macros or {}))
    _check_braces(text)
    types = {**TYPES, **_structs(text)}
    constants = _function_constants(text)
    kernels = {}
    for match in re.finditer(r"((?:\[\[[^\]]*\]\]\s*)*)\bkernel\s+((?:\[\[[^\]]*\]\]\s*)*)void\s+(\w+)\s*\(", text):
        arguments, body = _split(text, match.end())
        limit = re.search(r"max_total_threads_per_threadgroup\((\d+)\)", match[1] + match[2])
        used = tuple(each for each in constants if re.search(rf"\b{each.name}\b", arguments + body))
        kernels[match[3]] = Kernel(match[3], _parameters(arguments, types), int(limit[1]) if limit else None, used)
    _check_names(text, types, macros or {})
    return kernels


def _without_comments(source: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", source, flags=re.DOTALL)


def _preprocess(text: str, macros: dict[str, str]) -> str:
    """Follow conditionals and #error; collect #define."""
    lines, taken = [], [True]
    for number, line in enumerate(text.split("\n"), 1):
        directive = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
        if directive is None:
            lines.append(line if all(taken) else "")
            continue
        word, rest = directive[1], directive[2].strip()
        if word in ("ifdef", "ifndef"):
            taken.append((rest in macros) == (word == "ifdef"))
        elif word == "if":
            taken.append(_condition(rest, macros))
        elif word == "else":
            taken[-1] = not taken[-1]
        elif word == "endif":
            taken.pop()
        elif all(taken) and word == "define":
            name, *value = rest.split(None, 1)
            macros[name.split("(")[0]] = value[0] if value else ""
        elif all(taken) and word == "error":
            raise CompileFailure(f"program_source:{number}:2: error: {rest}\n")
        lines.append("")
    text = "\n".join(lines)
    for name, value in macros.items():
        text = re.sub(rf"\b{re.escape(name)}\b", lambda _, value=value: str(value), text)  # type: ignore[misc]
    return text


def _condition(text: str, macros: Mapping[str, str]) -> bool:
    text = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda found: str(int(found[1] in macros)), text)
    words = [macros.get(word, word) for word in text.split()]
    if len(words) == 3 and words[1] in ("==", ">=", "<=", ">", "<", "!="):
        left, right = (int(word) if str(word).isdigit() else 0 for word in (words[0], words[2]))
        return {"==": left == right, "!=": left != right, ">=": left >= right, "<=": left <= right}.get(
            words[1], left > right if words[1] == ">" else left < right
        )
    return bool(words) and words[0] not in ("0", "!1")


def _check_braces(text: str) -> None:
    pairs = {")": "(", "]": "[", "}": "{"}
    stack: list[tuple[str, int]] = []
    for number, line in enumerate(text.split("\n"), 1):
        for letter in line:
            if letter in "([{":
                stack.append((letter, number))
            elif letter in pairs and (not stack or stack.pop()[0] != pairs[letter]):
                raise CompileFailure(f"program_source:{number}: error: extraneous '{letter}'\n")
    if stack:
        raise CompileFailure(f"program_source:{stack[-1][1]}: error: '{stack[-1][0]}' is never closed\n")


def _split(text: str, start: int) -> tuple[str, str]:
    """Return the arguments that begin at `start`, and the body behind them."""
    end = _closing(text, start, "(", ")")
    opening = text.find("{", end)
    return text[start : end - 1], "" if opening < 0 else text[opening + 1 : _closing(text, opening + 1, "{", "}") - 1]


def _closing(text: str, start: int, opening: str, closing: str) -> int:
    depth = 1
    while depth:
        depth += (text[start] == opening) - (text[start] == closing)
        start += 1
    return start


def _structs(text: str) -> dict[str, np.dtype[Any]]:
    found: dict[str, np.dtype[Any]] = {}
    for match in re.finditer(r"\bstruct\s+(\w+)\s*\{([^}]*)\}", text):
        fields: list[Any] = []
        for declaration in filter(str.strip, match[2].split(";")):
            kind, names = (
                re.sub(r"\[\[.*?\]\]", "", declaration).strip().rsplit("*", 1)
                if "*" in declaration
                else (declaration.strip().split(None, 1))
            )
            for name in re.split(r"\s*,\s*", names.strip()):
                word, _, count = name.partition("[")
                base = np.dtype("u8") if "*" in declaration else {**TYPES, **found}.get(kind.strip())
                if base is None:
                    raise CompileFailure(f"program_source: error: unknown type name '{kind.strip()}'\n")
                fields.append((word.strip(), base, (int(count.rstrip("] ")),)) if count else (word.strip(), base))
        found[match[1]] = np.dtype(fields, align=True)
    return found


def _function_constants(text: str) -> list[FunctionConstant]:
    pattern = r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\((\d+)\)\s*\]\]"
    return [FunctionConstant(name, int(index), kind) for kind, name, index in re.findall(pattern, text)]


def _parameters(arguments: str, types: Mapping[str, np.dtype[Any]]) -> tuple[Parameter, ...]:
    found: list[Parameter] = []
    taken = {int(index) for index in re.findall(r"\[\[\s*buffer\((\d+)\)\s*\]\]", arguments)}
    free = (index for index in range(31) if index not in taken)
    for argument in _commas(arguments):
        attribute = re.search(r"\[\[\s*(\w+)(?:\((\d+)\))?\s*\]\]", argument)
        plain = re.sub(r"\[\[.*?\]\]", "", argument)
        words = re.findall(r"\w+", plain)
        space = next((word for word in words if word in ("device", "constant", "threadgroup")), None)
        if space is None or (attribute is not None and attribute[1] not in ("buffer", "threadgroup")):
            _check_builtin(argument, attribute, words, types)
            continue
        kind = next((word for word in words if word in types), None)
        if kind is None and "void" not in words:
            raise CompileFailure(f"program_source: error: unknown type name '{words[-2]}'\n")
        element = types[kind] if kind is not None else np.dtype("u1")
        index = int(attribute[2]) if attribute is not None and attribute[2] else next(free)
        value = space == "constant" and "&" in plain
        found.append(
            Parameter(
                words[-1],
                "threadgroup" if space == "threadgroup" else "value" if value else "buffer",
                index,
                element,
                space == "device" and "const" not in words,
                space,
            )
        )
    return tuple(sorted(found, key=lambda each: (each.kind == "threadgroup", each.index)))


def _check_builtin(
    argument: str, attribute: re.Match[str] | None, words: list[str], types: Mapping[str, np.dtype[Any]]
) -> None:
    if not words:
        return
    if attribute is None or not _BUILTINS.fullmatch(attribute[1]):
        raise CompileFailure(f"program_source: error: invalid argument '{argument.strip()}' of a kernel\n")
    if words[0] not in types:
        raise CompileFailure(f"program_source: error: unknown type name '{words[0]}'\n")


def _commas(arguments: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(arguments):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append(arguments[start:index])
            start = index + 1
    return [part for part in [*parts, arguments[start:]] if part.strip()]


def _check_names(text: str, types: Mapping[str, np.dtype[Any]], macros: Mapping[str, str]) -> None:
    """Refuse names that nothing in the source declares. Calls, members and attributes are taken on trust."""
    plain = re.sub(r'\[\[.*?\]\]|"[^"]*"', " ", text, flags=re.DOTALL)
    known = _KEYWORDS | set(types) | set(macros)
    declared = _declared(plain)
    for match in re.finditer(r"(?<![\w.])(?<!->)(?<!::)([A-Za-z_]\w*)\s*(\(|<|::)?", plain):
        name = match[1]
        if match[2] or name in known or name in declared:
            continue
        line = plain[: match.start()].count("\n") + 1
        raise CompileFailure(f"program_source:{line}: error: use of undeclared identifier '{name}'\n")


def _declared(plain: str) -> set[str]:
    """Return names that stand where declarations have them: behind another word, a template's end, or a comma."""
    behind = re.findall(r"(?=(\b[A-Za-z_]\w*|>)[\s*&]*[\s*&]([A-Za-z_]\w*))", plain)
    names = {name for word, name in behind if word not in ("return", "else", "case", "goto", "sizeof", "operator")}
    return names | set(re.findall(r",\s*[*&]*\s*([A-Za-z_]\w*)\s*(?=[,;=\[])", plain))
