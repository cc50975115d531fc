"""Python that has the shape of Cython, so that `ast` can say where everything stands.

`shadow_of` returns a text of the same length, with the same line ends. What only Cython knows is blanked or replaced
in place: casts and address signs by blanks, declarations by `pass`, heads of functions by `def name()`. So a position
in the tree of the shadow is a position in the source. For Python sources the shadow is the source itself.
"""

from __future__ import annotations

import re

_STRING = re.compile(r"#[^\n]*|([A-Za-z]{0,2})(\"\"\"|'''|\"|')(?:\\.|(?!\2).)*?\2", re.DOTALL)
_CAST = re.compile(r"<[A-Za-z_][\w ]*\**\??>(?=[\w(&<\-])")
_ADDRESS = re.compile(r"(?<=[(\s])&(?=[A-Za-z_(])")
_CYTHON = re.compile(r"(?:cdef|cpdef|ctypedef|include|cimport)\b|from\s+\S+\s+cimport\b")
_BLOCK = re.compile(r"(?:cdef|ctypedef)\s+(?:extern\b|enum\b|struct\b|union\b|public\b.*\benum\b)")
_CLASS = re.compile(r"cdef\s+class\s+(\w+)")
_FUNCTION = re.compile(r"(?:cdef|cpdef|def|async\s+def)\b[^(=]*?(\w+)\s*\(.*:\s*\Z", re.DOTALL)
_VARIABLE = re.compile(r"(?:cdef|cpdef)\b[^=(]*?(\w+)\s*(?==[^=])")


def shadow_of(source: str) -> str:
    """Return Python of the same shape as this Cython.

    Raises:
        ValueError: it has something that is not known here.

    """
    plain = _CAST.sub(_blank, _STRING.sub(_neutral, source))
    while (fewer := _CAST.sub(_blank, plain)) != plain:
        plain = fewer
    plain = _ADDRESS.sub(" ", plain)
    lines = plain.splitlines(keepends=True)
    out: list[str] = []
    at = 0
    while at < len(lines):
        end = _end_of_statement(lines, at)
        statement = "".join(lines[at:end])
        words = statement.strip()
        if _BLOCK.match(words) and words.endswith(":"):
            end = _end_of_block(lines, at)
            out.append(_fit("".join(lines[at:end]), "pass"))
        elif _CYTHON.match(words) or words.startswith(("def ", "async def ")):
            out.append(_translated(statement))
        else:
            out.append(statement)
        at = end
    shadow = "".join(out)
    assert len(shadow) == len(source)
    return shadow


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _neutral(match: re.Match[str]) -> str:
    """A comment as blanks, a string as one that holds nothing of interest."""
    text = match[0]
    if text.startswith("#"):
        return _blank(match)
    quotes = match[2]
    inside = text[len(match[1]) + len(quotes) : -len(quotes)]
    # The letters in front go into the string: what they would mean is of no interest either.
    return quotes + re.sub(r"[^\n ]", "_", match[1] + inside) + quotes


def _end_of_statement(lines: list[str], at: int) -> int:
    depth = 0
    quoted = False
    while at < len(lines):
        for part in re.findall(r'"""|[()\[\]{}]', lines[at]):
            if part == '"""':
                quoted = not quoted
            elif not quoted:
                depth += 1 if part in "([{" else -1
        at += 1
        if depth <= 0 and not quoted and not lines[at - 1].rstrip("\n").endswith("\\"):
            break
    return at


def _end_of_block(lines: list[str], at: int) -> int:
    indentation = _indentation(lines[at])
    end = at + 1
    while end < len(lines) and (not lines[end].strip() or _indentation(lines[end]) > indentation):
        end += 1
    while not lines[end - 1].strip():
        end -= 1
    return end


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _translated(statement: str) -> str:
    words = statement.strip()
    if found := _CLASS.match(words):
        return _fit(statement, f"class {found[1]}:")
    if found := _FUNCTION.match(words):
        end = len(statement.rstrip()) - len("):")
        return _fit(statement[:end], f"def {found[1]}(") + "):" + statement[end + len("):") :]
    if words.startswith(("def ", "async def ")):
        raise ValueError(f"no function: {words.splitlines()[0]}")
    found = _VARIABLE.match(words)
    if found is None or "," in found[0] or re.search(r",\s*\w+\s*=[^=]", words[found.end() :]):
        return _fit(statement, "pass")
    start = _indentation(statement)
    return f"{statement[:start]}{found[1]:{len(found[0])}}{statement[start + len(found[0]) :]}"


def _fit(statement: str, words: str) -> str:
    """Put words in the place of a statement: at its indentation, with its length and its line ends."""
    start = _indentation(statement)
    rest = statement[start + len(words) :]
    if "\n" in statement[start : start + len(words)]:
        raise ValueError(f"no room for {words!r}")
    return statement[:start] + words + re.sub(r"[^\n]", " ", rest)
