"""Finds the mutants of a source file, Python or Cython: small changes of meaning that some test should notice.

What runs at import is left alone, for all mutants are built in together and switched on when that is over.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from changes.schemata import Change
from changes.shadow import shadow_of

_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.LShift: ">>",
    ast.RShift: "<<",
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# With a GIL they are nothing; what a build checks by them, a test of its own does.
_NOTHING = frozenset({"CORE_LOCK", "CORE_UNLOCK"})
_RESULT = re.compile(r"\s*cp?def\s+(?:inline\s+)?(.*?)(\**)\s*\w+\(")
_CAST = r"<[A-Za-z_][\w ]*\**\??>|(?<=[(\s])&(?!\s)"
_CASTS = re.compile(rf"(?:{_CAST})+\Z")
_SIZES = frozenset({"__hash__", "__len__"})
_NUMBERS = re.compile(r"(?:u?int\d*(?:_t)?|Py_ssize_t|long long|double)\Z")


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        file: Path from the root of the tree, with slashes.
        function: Qualified name of the function it is in.
        line: Where.
        words: What it changes, in words that hold when lines move; told apart by a number where two are alike.
        change: The same for a machine.

    """

    file: str
    function: str
    line: int
    words: str
    change: Change

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies it from one version of the file to the next."""
        return self.file, self.function, self.words

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.words}"


def find_mutants(root: Path, file: Path) -> list[Mutant]:
    """Return the mutants of a file, in the order of the text, without two that come to the same text."""
    source = file.read_text(encoding="utf-8")
    shadow = source if file.suffix == ".py" else shadow_of(source)
    found = _Finder(file.relative_to(root).as_posix(), source, shadow).find()
    alike: Counter[tuple[str, str, str]] = Counter()
    unique: dict[Change, Mutant] = {}
    for mutant in sorted(found, key=lambda each: (each.change.start, each.change.end)):
        if mutant.change in unique:
            continue
        alike[mutant.key] += 1
        number = alike[mutant.key]
        unique[mutant.change] = mutant if number == 1 else replace(mutant, words=f"{mutant.words} (#{number})")
    return list(unique.values())


class _Finder:
    def __init__(self, file: str, source: str, shadow: str) -> None:
        self._file = file
        self._source = source
        self._is_python = shadow is source
        self._tree = ast.parse(shadow)
        self._lines = shadow.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._function = ""
        self._nothing = "None"
        self._is_status = False
        self._assigned: Counter[str] = Counter()

    def find(self) -> Iterator[Mutant]:
        yield from self._top(self._tree.body, "")

    def _top(self, body: list[ast.stmt], scope: str) -> Iterator[Mutant]:
        """Modules and classes: of these only the functions."""
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from self._top(node.body, f"{scope}{node.name}.")
            elif isinstance(node, _FUNCTIONS):
                yield from self._of_function(node, scope)

    def _of_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: str) -> Iterator[Mutant]:
        if any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
            return
        before = self._function, self._nothing, self._is_status, self._assigned
        self._function = f"{scope}{node.name}"
        self._nothing, self._is_status = self._result_of(node)
        stored = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
        self._assigned = Counter(each.id for each in stored)
        yield from self._block(node.body)
        self._function, self._nothing, self._is_status, self._assigned = before

    def _result_of(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, bool]:
        """What a function returns that returns nothing in particular; and whether only errors are told by that."""
        if node.name in _SIZES:
            return "0", False
        found = _RESULT.match(self._source, self._starts[node.lineno - 1])
        kind = found[1].strip() if found else "object"
        if found and found[2]:
            return "NULL", False
        if kind == "bint":
            return "", False
        return "0" if _NUMBERS.match(kind) else "None", kind == "int"

    # Statements

    def _block(self, body: list[ast.stmt]) -> Iterator[Mutant]:
        for node in body:
            if isinstance(node, _FUNCTIONS):
                yield from self._of_function(node, f"{self._function}.")
            elif not isinstance(node, (ast.ClassDef, ast.Assert, ast.Pass, ast.Global, ast.Nonlocal)):
                yield from self._statement(node)

    def _statement(self, node: ast.stmt) -> Iterator[Mutant]:
        if self._is_status and isinstance(node, ast.Return) and isinstance(node.value, ast.Constant):
            return
        if not self._text(node).startswith("cdef "):
            yield from self._of_statement(node)
        for child in _own_expressions(node):
            yield from self._expression(child)
        for block in _blocks(node):
            yield from self._block(block)

    def _of_statement(self, node: ast.stmt) -> Iterator[Mutant]:
        words = _one_line(self._text(node))
        match node:
            case ast.Return(value=None):
                yield self._mutant(node, "pass", f"remove `{words}`", True)
            case ast.Return(value=ast.Constant(value=None | bool()) | ast.Name(id="NULL")):
                pass  # the other truth value is a mutant of the constant; None mostly means the same as False
            case ast.Return(value=value) if self._nothing == "":
                yield from self._negated(value)
            case ast.Return():
                nothing = f"return {self._nothing}"
                if words != nothing:
                    yield self._mutant(node, nothing, f"`{words}` -> `{nothing}`", True)
            case ast.Break():
                yield self._mutant(node, "continue", "`break` -> `continue`", True)
            case ast.Continue():
                yield self._mutant(node, "break", "`continue` -> `break`", True)
            case _ if self._removable(node):
                yield self._mutant(node, "pass", f"remove `{words}`", True)
        if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
            changed = f"{self._text(node.target)} {_OPERATORS[type(node.op)]}= {self._text(node.value)}"
            yield self._mutant(node, changed, f"`{words}` -> `{_one_line(changed)}`", True)
        if isinstance(node, (ast.If, ast.While)):
            yield from self._negated(node.test)

    def _removable(self, node: ast.stmt) -> bool:
        """Whether the program may go on without the statement. Without most names it plainly cannot."""
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in _NOTHING:
                return False
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.Raise() | ast.AugAssign():
                return True
            case ast.Assign(targets=[*targets]):
                return any(not isinstance(each, ast.Name) or self._assigned[each.id] > 1 for each in targets)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return not isinstance(target, ast.Name)
        return False

    # Expressions

    def _expression(self, node: ast.expr) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr):
            return  # text for people; and before 3.12 the positions inside are not those of the file
        yield from self._of_expression(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child)
            elif isinstance(child, ast.keyword):
                yield from self._expression(child.value)
            elif isinstance(child, ast.comprehension):
                for condition in child.ifs:
                    yield from self._negated(condition)
                for part in (child.iter, *child.ifs):
                    yield from self._expression(part)

    def _of_expression(self, node: ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.Compare():
                for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators):
                    for other in _COMPARISONS[type(operator)]:
                        yield self._between(node, [(left, right)], other)
            case ast.BoolOp(op=operator, values=values):
                other = "or" if isinstance(operator, ast.And) else "and"
                yield self._between(node, list(pairwise(values)), other)
            case ast.UnaryOp(op=ast.Not()):
                yield self._swap(node, self._text(node).removeprefix("not").strip())
            case ast.BinOp(op=operator) if type(operator) in _OPERATORS:
                yield self._between(node, [(node.left, node.right)], _OPERATORS[type(operator)])
            case ast.Constant(value=bool() as value):
                yield self._swap(node, str(not value))
            case ast.Constant(value=int() | float() as value):
                yield self._swap(node, str(value + 1))
            case ast.IfExp(test=test):
                yield from self._negated(test)

    def _negated(self, test: ast.expr) -> Iterator[Mutant]:
        """Negates a condition, unless another mutant of the same expression does that already."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return
        if isinstance(test, ast.Constant) or (isinstance(test, ast.Compare) and len(test.ops) == 1):
            return
        yield self._mutant(test, f"not ({self._text(test)})", f"`{_one_line(self._text(test))}` -> `not ...`", False)

    def _between(self, node: ast.expr, pairs: list[tuple[ast.expr, ast.expr]], operator: str) -> Mutant:
        """Put another operator between operands."""
        start, end = self._span(node)
        text = []
        for left, right in pairs:
            first, last = self._span(left)[1], self._span(right)[0]
            # Parentheses around the operands, and casts in front of these, are no part of their spans.
            opened = re.match(r"[\s)]*", self._source[first:last])
            closed = re.search(rf"(?:[\s(]|{_CAST})*\Z", self._source[first:last])
            assert opened
            assert closed
            text += [self._source[start : first + opened.end()].rstrip(), f" {operator} "]
            start = first + closed.start()
        text.append(self._source[start:end].lstrip())
        return self._swap(node, "".join(text))

    def _swap(self, node: ast.expr, text: str) -> Mutant:
        return self._mutant(node, text, f"`{_one_line(self._text(node))}` -> `{_one_line(text)}`", False)

    # Spans

    def _mutant(self, node: ast.expr | ast.stmt, text: str, words: str, is_statement: bool) -> Mutant:
        change = Change(*self._span(node), text, is_statement)
        return Mutant(self._file, self._function, node.lineno, words, change)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node stands, with the casts in front of it, which are blanks in the shadow."""
        start = self._place(node.lineno, node.col_offset)
        end = self._place(node.end_lineno or node.lineno, node.end_col_offset or 0)
        casts = _CASTS.search(self._source, self._starts[node.lineno - 1], start)
        return (start if casts is None or self._is_python else casts.start()), end

    def _place(self, line: int, column: int) -> int:
        text = self._lines[line - 1]
        return self._starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(node, "handlers", [])]
    return blocks + [case.body for case in getattr(node, "cases", [])]


def _own_expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """The expressions that a statement evaluates itself, without its annotations and its blocks."""
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield each
            elif isinstance(each, ast.withitem):
                yield each.context_expr
            elif isinstance(each, ast.match_case) and each.guard is not None:
                yield each.guard
