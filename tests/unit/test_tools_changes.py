"""Changes of code that are built in together: where they stand in Cython, and that each can be switched on alone."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "src" / "tidegate" / "_core"
CYTHON = sorted([*CORE.glob("*.pyx"), *CORE.glob("*/*.pxi")])


@pytest.fixture(autouse=True)
def tools_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


# Shadows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", CYTHON, ids=lambda path: path.name)
def test_the_shadow_of_cython_is_python_of_the_same_shape(file):
    from changes.shadow import shadow_of

    source = file.read_text()
    shadow = shadow_of(source)
    ast.parse(shadow)
    assert [len(line) for line in shadow.splitlines()] == [len(line) for line in source.splitlines()]


@pytest.mark.parametrize(
    ("cython", "python"),
    [
        ("a = <Claim>node.link", "a =        node.link"),
        ("a = (<PyObject *><Claim>b).c", "a = (                   b).c"),
        ("f(&a, b & c)", "f( a, b & c)"),
        ("cdef int a = b + 1", "a          = b + 1"),
        ("cdef Node *a", "pass        "),
        ("cdef int a = 0, b = 1", "pass" + " " * 17),
        ("cdef bint f(Claim a,\n   int b) except -1:\n    g()", "def f(              \n                  ):\n    g()"),
        ("def f(Claim a not None):\n    g()", "def f(                ):\n    g()"),
        ("cdef class A(B):\n    cdef int c", "class A:        \n    pass      "),
        ("cdef extern from *:\n    int a\nb = 1", "pass               \n         \nb = 1"),
        ("a = 'cdef' # <b>c", "a = '____'       "),
        ('f(f"{<int>a}")', 'f("_________")'),
    ],
)
def test_what_only_cython_knows_is_taken_out(cython, python):
    from changes.shadow import shadow_of

    assert shadow_of(cython) == python


# Changes ------------------------------------------------------------------------------------------------------------


def run(source, changes, on):
    """Run a text with one of its changes switched on, and return what it leaves in `found`."""
    from changes.schemata import put_in

    names = {"change_at": lambda number: number == on, "found": []}
    exec(put_in(source, changes), names)
    return names["found"]


def changes_in(source, *edits):
    from changes.edits import change_of

    return {number: change_of(source, before, after) for number, (before, after) in enumerate(edits, start=1)}


SOURCE = """
def f(a, b):
    if a < b and b:
        found.append(
            "less",
        )
        found.append(a)  # behind
    for each in (1, 2):
        found.append(each)
    return a + b
found.append(f(1, 2))
"""


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (0, ["less", 1, 1, 2, 3]),
        (1, [1, 2, 3]),
        (2, [1, 2, 3]),
        (3, ["less", 1, 2, 3]),
        (4, ["less", 2, 1, 2, 3]),
        (5, ["less", 1, 2, 3]),
        (6, ["less", 1, 9, 3]),
        (7, ["less", 1, 1, 2, 4]),
        (8, ["less", 1, 1, 2, -1]),
        (9, [1, 1, 2, 3]),
    ],
)
def test_each_change_is_there_and_none_is_on_until_it_is_switched_on(on, expected):
    changes = changes_in(
        SOURCE,
        ("a < b", "a > b"),
        ("a < b and b", "not b"),
        ("found.append(a)", "pass"),
        ("found.append(a)", "found.append(b)"),
        ("found.append(each)", "if each == 2: found.append(each)"),
        ("for each in (1, 2):\n    found.append(each)", "found.append(9)"),
        ("a + b", "a + b + 1"),
        ("return a + b", "c = a - b\nreturn c"),
        ('found.append(\n    "less",\n)', "pass"),
    )
    assert run(SOURCE, changes, on) == expected


@pytest.mark.parametrize(
    ("before", "message"),
    [("g()", "found 0 times"), ("found", "found 4 times"), ("< b and", "neither statements nor an expression")],
)
def test_an_edit_that_no_longer_applies_is_an_error(before, message):
    with pytest.raises(ValueError, match=message):
        changes_in(SOURCE, (before, "pass"))


def test_two_changes_may_be_one_inside_of_the_other_but_not_across():
    from changes.schemata import Change, put_in

    with pytest.raises(ValueError, match="overlap"):
        put_in(SOURCE, {1: Change(0, 10, "", False), 2: Change(5, 15, "", False)})
