"""Finds the mutants of a source file: small changes of meaning, each of which some test should notice.

A mutant is a replacement of a span of the file's text, not a changed tree: everything else stays as it is, and so do
the line numbers, which the map from lines to tests and every traceback rely on.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Declarations: changing them changes what tools see, not what the program does.
_DECLARED = frozenset({"__slots__", "__all__", "__match_args__"})


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        file: Path from the root of the tree, with slashes.
        function: Qualified name of the function it is in, or `<module>`.
        change: What it changes, in words that hold when lines move; told apart by a number where two are alike.
        lines: First and last line of the statement that must run for the change to matter.
        body: First and last line of the function's body, or of the statement where there is none.
        start: Where the replaced span begins, in bytes.
        end: Where it ends.
        text: What stands there instead.
        at_import: Whether the statement runs when the module is imported.
    """

    file: str
    function: str
    change: str
    lines: tuple[int, int]
    body: tuple[int, int]
    start: int
    end: int
    text: str
    at_import: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies it from one version of the file to the next."""
        return self.file, self.function, self.change

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.lines[0]} {self.function}: {self.change}"


def find_mutants(root: Path, file: Path) -> list[Mutant]:
    """Return the mutants of a file, in the order of the text, without two that come to the same text."""
    source = file.read_bytes()
    found = _Finder(file.relative_to(root).as_posix(), source).find()
    alike: Counter[tuple[str, str, str]] = Counter()
    unique: dict[tuple[int, int, str], Mutant] = {}
    for mutant in sorted(found, key=lambda each: (each.start, each.end)):
        if (mutant.start, mutant.end, mutant.text) in unique or not _compiles(mutant.apply(source)):
            continue
        alike[mutant.key] += 1
        number = alike[mutant.key]
        unique[mutant.start, mutant.end, mutant.text] = (
            mutant if number == 1 else replace(mutant, change=f"{mutant.change} (#{number})")
        )
    return list(unique.values())


def _compiles(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


@dataclass
class _Place:
    """Where the walk is: in which function, and in which statement."""

    function: str
    lines: tuple[int, int]
    at_import: bool


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self._file = file
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._assigned: Counter[str] = Counter()
        self._body: tuple[int, int] | None = None

    def find(self) -> Iterator[Mutant]:
        tree = ast.parse(self._source)
        yield from self._block(tree.body, "", True)

    # Statements

    def _block(self, body: list[ast.stmt], scope: str, at_import: bool) -> Iterator[Mutant]:
        for statement in body:
            yield from self._statement(statement, scope, at_import)

    def _statement(self, node: ast.stmt, scope: str, at_import: bool) -> Iterator[Mutant]:
        if isinstance(node, _FUNCTIONS):
            yield from self._function(node, scope, at_import)
        elif isinstance(node, ast.ClassDef):
            yield from self._block(node.body, f"{scope}{node.name}.", at_import)
        elif not self._is_declaration(node):
            place = _Place(scope.rstrip(".") or "<module>", _own_lines(node), at_import)
            yield from self._of_statement(node, place)
            for child in _own_expressions(node):
                yield from self._expression(child, place)
            for block in _blocks(node):
                yield from self._block(block, scope, at_import)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: str, at_import: bool) -> Iterator[Mutant]:
        if any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
            return
        name = f"{scope}{node.name}"
        head = _Place(name, (node.lineno, max(node.lineno, node.body[0].lineno - 1)), at_import)
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            yield from self._expression(default, head)
        before, self._assigned = (
            self._assigned,
            Counter(
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            ),
        )
        outer, self._body = self._body, (node.body[0].lineno, node.end_lineno or node.lineno)
        yield from self._block(node.body, f"{name}.", False)
        self._assigned, self._body = before, outer

    @staticmethod
    def _is_declaration(node: ast.stmt) -> bool:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return True
        if isinstance(node, ast.Assign):
            return any(isinstance(target, ast.Name) and target.id in _DECLARED for target in node.targets)
        return isinstance(node, (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Pass))

    def _of_statement(self, node: ast.stmt, place: _Place) -> Iterator[Mutant]:
        words = _one_line(node)
        match node:
            case ast.Return(value=value) if value is None:
                yield self._replace(node, "pass", f"remove `{words}`", place)
            case ast.Return(value=ast.Constant(value=None | bool())):
                pass  # the other truth value is a mutant of the constant; None mostly means the same as False
            case ast.Return():
                yield self._replace(node, "return None", f"`{words}` -> `return None`", place)
            case ast.Break():
                yield self._replace(node, "continue", "`break` -> `continue`", place)
            case ast.Continue():
                yield self._replace(node, "break", "`continue` -> `break`", place)
            case _ if self._removable(node, place):
                yield self._replace(node, "pass", f"remove `{words}`", place)
        if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
            changed = ast.AugAssign(node.target, _OPERATORS[type(node.op)](), node.value)
            yield self._replace(node, ast.unparse(changed), f"`{words}` -> `{_one_line(changed)}`", place)
        if isinstance(node, (ast.If, ast.While)):
            yield from self._negated(node.test, place)

    def _removable(self, node: ast.stmt, place: _Place) -> bool:
        """Whether the program may go on without the statement.

        Without most names it plainly cannot. An assertion says what holds anyway: without it nothing changes.
        """
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.Raise():
                return True
            case ast.AugAssign():
                return True
            case ast.Assign(targets=[*targets]):
                return not place.at_import and any(map(self._survives_without, targets))
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return not place.at_import and not isinstance(target, ast.Name)
        return False

    def _survives_without(self, target: ast.expr) -> bool:
        return not isinstance(target, ast.Name) or self._assigned[target.id] > 1

    # Expressions

    def _expression(self, node: ast.expr, place: _Place) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr):
            return  # text for people; and before 3.12 the positions inside are not those of the file
        yield from self._of_expression(node, place)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child, place)
            elif isinstance(child, ast.keyword):
                yield from self._expression(child.value, place)
            elif isinstance(child, ast.comprehension):
                for condition in child.ifs:
                    yield from self._negated(condition, place)
                for part in (child.iter, *child.ifs):
                    yield from self._expression(part, place)

    def _of_expression(self, node: ast.expr, place: _Place) -> Iterator[Mutant]:
        match node:
            case ast.Compare():
                for index, operator in enumerate(node.ops):
                    for other in _COMPARISONS[type(operator)]:
                        operators = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                        yield self._swap(node, ast.Compare(node.left, operators, node.comparators), place)
            case ast.BoolOp(op=operator, values=values):
                other_op = ast.Or() if isinstance(operator, ast.And) else ast.And()
                yield self._swap(node, ast.BoolOp(other_op, values), place)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._swap(node, operand, place)
            case ast.BinOp(op=operator) if type(operator) in _OPERATORS and not _is_type_union(node, place):
                yield self._swap(node, ast.BinOp(node.left, _OPERATORS[type(operator)](), node.right), place)
            case ast.Constant(value=bool() as value):
                yield self._swap(node, ast.Constant(not value), place)
            case ast.Constant(value=int() | float() as value):
                yield self._swap(node, ast.Constant(value + 1), place)
            case ast.IfExp(test=test):
                yield from self._negated(test, place)

    def _negated(self, test: ast.expr, place: _Place) -> Iterator[Mutant]:
        """Negates a condition, unless another mutant of the same expression does that already."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return
        if isinstance(test, ast.Constant):
            return
        yield self._swap(test, ast.UnaryOp(ast.Not(), test), place)

    # Spans

    def _swap(self, node: ast.expr, other: ast.expr, place: _Place) -> Mutant:
        text = ast.unparse(ast.fix_missing_locations(other))
        if not isinstance(other, ast.Constant):
            text = f"({text}{self._newlines(node)})"
        return self._mutant(node, text, f"`{_one_line(node)}` -> `{_one_line(other)}`", place)

    def _replace(self, node: ast.stmt, text: str, change: str, place: _Place) -> Mutant:
        return self._mutant(node, text + self._newlines(node), change, place)

    def _newlines(self, node: ast.expr | ast.stmt) -> str:
        return "\n" * ((node.end_lineno or node.lineno) - node.lineno)

    def _mutant(self, node: ast.expr | ast.stmt, text: str, change: str, place: _Place) -> Mutant:
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        body = self._body or place.lines
        return Mutant(self._file, place.function, change, place.lines, body, start, end, text, place.at_import)


def _one_line(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


def _is_type_union(node: ast.BinOp, place: _Place) -> bool:
    return isinstance(node.op, ast.BitOr) and place.at_import


def _own_lines(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement without those of the blocks in it."""
    blocks = [block for block in _blocks(node) if block]
    end = min((block[0].lineno for block in blocks), default=(node.end_lineno or node.lineno) + 1) - 1
    return node.lineno, max(end, node.lineno)


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
