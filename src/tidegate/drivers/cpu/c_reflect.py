"""Finds the entry points of a C source, and writes the code by which they are called.

The text comes from the preprocessor, so that entry points made by macros are found and those switched off are not.
Of each parameter only its shape is read here (pointer or not, and the words of its type); what the type *is* is asked
of the compiler, by tables in the generated code, which is the only party that knows what a typedef stands for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.errors import CompileError

# One pattern for all three, because each may contain what looks like another.
_STRINGS_AND_COMMENTS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.DOTALL)
_ENTRY = re.compile(r"\btidegate_kernel\b")
_HEAD = re.compile(r"\s*void\s+([A-Za-z_]\w*)\s*\(")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|restrict|__restrict__|__restrict|register|_Atomic)\b")
_NAMED = re.compile(r"(?P<type>.*\S)\s*\b(?P<name>[A-Za-z_]\w*)\s*$", re.DOTALL)
# A parameter that ends in one of these has a type and no name.
_TYPE_WORDS = frozenset({"void", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "_Bool"})


@dataclass(frozen=True)
class Entry:
    """One entry point: its name, how many pointers it takes, and the C types of the constants behind them."""

    name: str
    bindings: int
    constants: tuple[str, ...]


def find_entries(text: str) -> list[Entry]:
    """Return the entry points of preprocessed C.

    Raises:
        CompileError: There is none, or one has a form that cannot be called; the log names it.

    """
    text = _STRINGS_AND_COMMENTS.sub(" ", text)
    entries: dict[str, Entry] = {}
    for entry in _scan(text):
        if entry.name in entries:
            raise _refuse(f"entry point {entry.name!r} is defined twice")
        entries[entry.name] = entry
    if not entries:
        raise _refuse("no entry point: mark one with tidegate_kernel, as in 'tidegate_kernel void name(...) { ... }'")
    return list(entries.values())


def _scan(text: str) -> Iterator[Entry]:
    for mark in _ENTRY.finditer(text):
        head = _HEAD.match(text, mark.end())
        if head is None:
            found = " ".join(text[mark.end() : mark.end() + 40].split())
            raise _refuse(f"tidegate_kernel must be followed by 'void name(...)', not by {found!r}")
        end = _closing(text, head.end())
        if text[end + 1 :].lstrip()[:1] != ";":  # a mere declaration is not an entry point
            yield _entry(head.group(1), text[head.end() : end])


def _closing(text: str, start: int) -> int:
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise _refuse("an entry point's parameter list is not closed")


def _entry(name: str, parameters: str) -> Entry:
    bindings = 0
    constants: list[str] = []
    for parameter in _split(parameters):
        if "(" in parameter or "{" in parameter or "..." in parameter:
            raise _refuse(f"{name}: parameter {parameter!r} is neither a plain pointer nor a plain value")
        if "*" in parameter or "[" in parameter:
            if constants:
                raise _refuse(f"{name}: pointers must come first and constants last, but {parameter!r} follows one")
            bindings += 1
        else:
            constants.append(_value_type(name, parameter))
    return Entry(name, bindings, tuple(constants))


def _split(parameters: str) -> list[str]:
    parts = [" ".join(part.split()) for part in parameters.split(",")]
    return [] if parts in ([""], ["void"]) else parts


def _value_type(entry: str, parameter: str) -> str:
    match = _NAMED.match(_QUALIFIERS.sub(" ", parameter))
    if match is None or match["name"] in _TYPE_WORDS or match["type"] in ("struct", "union", "enum"):
        raise _refuse(f"{entry}: parameter {parameter!r} needs a type and a name")
    return " ".join(match["type"].split())


def _refuse(reason: str) -> CompileError:
    return CompileError(f"the C source cannot be used: {reason}", log=reason)


# Stands before the source, where no macro of the source can change what it says.
SUPPORT = """
enum { TIDEGATE_STRUCT_, TIDEGATE_BOOL_, TIDEGATE_INT_, TIDEGATE_UINT_, TIDEGATE_REAL_, TIDEGATE_COMPLEX_,
       TIDEGATE_POINTER_ };
#define TIDEGATE_CLASS_(T) __builtin_classify_type(*(T *)0)
#define TIDEGATE_KIND_(T) _Generic(*(T *)0, _Bool: TIDEGATE_BOOL_, \\
    char: ((char)-1 < 0 ? TIDEGATE_INT_ : TIDEGATE_UINT_), signed char: TIDEGATE_INT_, short: TIDEGATE_INT_, \\
    int: TIDEGATE_INT_, long: TIDEGATE_INT_, long long: TIDEGATE_INT_, unsigned char: TIDEGATE_UINT_, \\
    unsigned short: TIDEGATE_UINT_, unsigned: TIDEGATE_UINT_, unsigned long: TIDEGATE_UINT_, \\
    unsigned long long: TIDEGATE_UINT_, \\
    default: TIDEGATE_CLASS_(T) == 8 ? TIDEGATE_REAL_ : TIDEGATE_CLASS_(T) == 9 ? TIDEGATE_COMPLEX_ \\
           : TIDEGATE_CLASS_(T) == 5 ? TIDEGATE_POINTER_ : TIDEGATE_STRUCT_)
#define TIDEGATE_EXPORT_ __attribute__((visibility("default")))

/* Takes the calling thread to its first workgroup. The scratch memory is moved up to a multiple of 64 in its block. */
static int tidegate_enter_(const uint32_t *dispatch, uint64_t begin, void **block) {
    uint32_t local_bytes = dispatch[6];
    *block = local_bytes ? __builtin_malloc((size_t)local_bytes + 63) : 0;
    if (local_bytes && !*block) return 1;
    for (int axis = 0; axis < 3; ++axis) {
        tidegate_group.count[axis] = dispatch[axis];
        tidegate_group.size[axis] = dispatch[3 + axis];
    }
    tidegate_group.local = (void *)(((uintptr_t)*block + 63) & ~(uintptr_t)63);
    tidegate_group.local_bytes = local_bytes;
    tidegate_group.id[0] = begin % dispatch[0];
    tidegate_group.id[1] = begin / dispatch[0] % dispatch[1];
    tidegate_group.id[2] = begin / dispatch[0] / dispatch[1];
    return 0;
}

static inline void tidegate_step_(void) {
    if (++tidegate_group.id[0] < tidegate_group.count[0]) return;
    tidegate_group.id[0] = 0;
    if (++tidegate_group.id[1] < tidegate_group.count[1]) return;
    tidegate_group.id[1] = 0;
    ++tidegate_group.id[2];
}

static void tidegate_leave_(void *block) {
    tidegate_group.local = 0;
    __builtin_free(block);
}
"""

# Stands behind the source, so each name in it is out of the way of the source's. The constants are copied out so that
# the caller may pack them at any alignment.
_SHIM = """
TIDEGATE_EXPORT_ const uint32_t tidegate_types_{name}[] = {{ {types}0 }};
TIDEGATE_EXPORT_ int tidegate_run_{name}(
    void *const *tidegate_bindings_, void *const *tidegate_constants_, const uint32_t *tidegate_dispatch_,
    uint64_t tidegate_at_, uint64_t tidegate_end_
) {{
    void *tidegate_block_;
    (void)tidegate_bindings_, (void)tidegate_constants_;
    if (tidegate_at_ >= tidegate_end_) return 0;
    if (tidegate_enter_(tidegate_dispatch_, tidegate_at_, &tidegate_block_)) return 1;
{unpack}    for (; tidegate_at_ < tidegate_end_; ++tidegate_at_, tidegate_step_()) {name}({arguments});
    tidegate_leave_(tidegate_block_);
    return 0;
}}
"""


def write_shim(entry: Entry) -> str:
    """Return C that exports `tidegate_run_NAME` and `tidegate_types_NAME` (kind and size of each constant)."""
    unpack = "".join(
        f"    {kind} tidegate_c{i}; __builtin_memcpy(&tidegate_c{i}, tidegate_constants_[{i}], sizeof tidegate_c{i});\n"
        for i, kind in enumerate(entry.constants)
    )
    arguments = [f"tidegate_bindings_[{i}]" for i in range(entry.bindings)]
    arguments += [f"tidegate_c{i}" for i in range(len(entry.constants))]
    types = "".join(f"TIDEGATE_KIND_({kind}), sizeof({kind}), " for kind in entry.constants)
    return _SHIM.format(name=entry.name, types=types, unpack=unpack, arguments=", ".join(arguments))
